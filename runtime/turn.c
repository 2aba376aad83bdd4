/* turn.c - a matrix of floats, transposed:
 *
 *   1 2 3        1 4
 *   4 5 6   to   2 5
 *                3 6
 *
 * in bands of 16 rows, which fill a cache line of each row of the result, and
 * of those in blocks of 4 x 4, which is what registers of any x86-64 hold.
 */
#include "ndrt_internal.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum { BAND = 16, BLOCK = 4 };

static void turn_plainly(float *to, int64_t to_row, const float *x,
                         int64_t x_row, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            to[j * to_row + i] = x[i * x_row + j];
}

static void turn_block(float *to, int64_t to_row, const float *x,
                       int64_t x_row)
{
#ifdef __SSE__
    __m128 a = _mm_loadu_ps(x), b = _mm_loadu_ps(x + x_row);
    __m128 c = _mm_loadu_ps(x + 2 * x_row), d = _mm_loadu_ps(x + 3 * x_row);

    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + to_row, b);
    _mm_storeu_ps(to + 2 * to_row, c);
    _mm_storeu_ps(to + 3 * to_row, d);
#else
    turn_plainly(to, to_row, x, x_row, BLOCK, BLOCK);
#endif
}

/* A line of each row of the next band: no processor expects those by itself. */
static void fetch(const float *x, int64_t x_row)
{
    for (int i = 0; i < BAND; i++)
        __builtin_prefetch(x + i * x_row);
}

void ndrt_turn(float *to, int64_t to_row, const float *x, int64_t x_row,
               int64_t rows, int64_t cols)
{
    int64_t r = rows - rows % BAND, c = cols - cols % BLOCK;

    for (int64_t i = 0; i < r; i += BAND)
        for (int64_t j = 0; j < c; j += BLOCK) {
            if (j % BAND == 0 && i + BAND < r)
                fetch(x + (i + BAND) * x_row + j, x_row);
            for (int64_t q = i; q < i + BAND; q += BLOCK)
                turn_block(to + j * to_row + q, to_row, x + q * x_row + j,
                           x_row);
        }
    turn_plainly(to + r, to_row, x + r * x_row, x_row, rows - r, c);
    turn_plainly(to + c * to_row, to_row, x + c, x_row, rows, cols - c);
}
