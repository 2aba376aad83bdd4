/* digits.c - makes a small set of handwriting-like digits for the examples.
 *
 *     ndc-digits OUT.safetensors [COUNT]
 *
 *   images  f32[COUNT, 12, 12]   0 (paper) to 1 (ink)
 *   labels  i32[COUNT]           0 to 9, every digit equally often
 *
 * Each image is a 5 x 7 letter form, drawn with a random place, size, slant and
 * pen, and with noise on the paper. The same bytes on every machine.
 */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 12, ROWS = 7, COLUMNS = 5, MAX_COUNT = 100000 };

/* One string per row, '#' is ink. */
static const char *const form[10][ROWS] = {
    {" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "},
    {"  #  ", " ##  ", "# #  ", "  #  ", "  #  ", "  #  ", "#####"},
    {" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"},
    {" ### ", "#   #", "    #", "  ## ", "    #", "#   #", " ### "},
    {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "},
    {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "},
    {"  ## ", " #   ", "#    ", "#### ", "#   #", "#   #", " ### "},
    {"#####", "    #", "   # ", "   # ", "  #  ", "  #  ", "  #  "},
    {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "},
    {" ### ", "#   #", "#   #", " ####", "    #", "   # ", " ##  "},
};

/* Steele and Vigna's splitmix64 (2014): one 64-bit state, uniform in [0, 1). */
static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static double between(uint64_t *state, double lo, double hi)
{
    return lo + (hi - lo) * uniform(state);
}

/* Distance from (x, y) to the nearest inked cell of the letter form. */
static double distance(int digit, double x, double y)
{
    double best = 1e9;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            if (form[digit][r][c] != '#')
                continue;
            double d = hypot(x - c, y - r);
            best = d < best ? d : best;
        }
    return best;
}

static void draw(uint64_t *state, int digit, float *image)
{
    double size = between(state, 0.62, 0.9), slant = between(state, -0.35, 0.35);
    double cx = between(state, 4.5, 6.5), cy = between(state, 4.7, 6.3);
    double pen = between(state, 0.55, 0.95), ink = between(state, 0.7, 1.0);
    double stretch = between(state, 0.85, 1.15);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            double y = (i - cy) * size, x = (j - cx) * size * stretch;
            double d = distance(digit, x + slant * y + (COLUMNS - 1) / 2.0,
                                y + (ROWS - 1) / 2.0);
            double v = d < pen ? ink : ink * exp(-4 * (d - pen) * (d - pen));
            v += between(state, -0.35, 0.35);
            image[i * SIDE + j] = (float)(v < 0 ? 0 : v > 1 ? 1 : v);
        }
}

static int write_file(const char *path, int count, const float *images,
                      const int32_t *labels)
{
    char head[512];
    size_t pixels = sizeof *images * SIDE * SIDE * (size_t)count;
    size_t end = pixels + sizeof *labels * (size_t)count;
    int n = snprintf(head, sizeof head,
                     "{\"images\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],"
                     "\"data_offsets\":[0,%zu]},\"labels\":{\"dtype\":\"I32\","
                     "\"shape\":[%d],\"data_offsets\":[%zu,%zu]}}",
                     count, SIDE, SIDE, pixels, count, pixels, end);
    while (n % 8)                    /* the data begins on 8 bytes */
        head[n++] = ' ';
    uint64_t length = (uint64_t)n;
    FILE *f = fopen(path, "wb");
    int ok = f && fwrite(&length, sizeof length, 1, f) == 1 &&
             fwrite(head, (size_t)n, 1, f) == 1 &&
             fwrite(images, pixels, 1, f) == 1 &&
             fwrite(labels, end - pixels, 1, f) == 1;
    if (f && fclose(f))
        ok = 0;
    if (!ok)
        fprintf(stderr, "ndc-digits: cannot write %s: %s\n", path, strerror(errno));
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    long count = argc > 2 ? strtol(argv[2], &end, 10) : 4000;
    if (argc < 2 || argc > 3 || (end && *end) || count < 1 ||
        count > MAX_COUNT) {
        fprintf(stderr, "usage: ndc-digits OUT.safetensors [COUNT]\n");
        return 2;
    }
    uint64_t state = 1;
    float *images = calloc((size_t)count * SIDE * SIDE, sizeof *images);
    int32_t *labels = calloc((size_t)count, sizeof *labels);
    int status = 1;
    if (images && labels) {
        for (long i = 0; i < count; i++) {
            labels[i] = (int32_t)((i * 7 + i / 10) % 10);
            draw(&state, labels[i], images + i * SIDE * SIDE);
        }
        status = write_file(argv[1], (int)count, images, labels);
    }
    free(images);
    free(labels);
    return status;
}
