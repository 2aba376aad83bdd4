/* heap.c - a set of numbers that gives back the least one first.
 *
 *   put 5, put 3, take -> 3, take -> 5
 */
#include "passes.h"

void nd_heap_put(nd_arena *a, nd_heap *h, int x)
{
    ND_PUSH(a, h, x);
    int i = h->n - 1;
    for (; i > 0 && h->v[(i - 1) / 2] > x; i = (i - 1) / 2)
        h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = x;
}

int nd_heap_take(nd_heap *h)
{
    int least = h->v[0], x = h->v[--h->n], i = 0;
    for (;;) {
        int k = 2 * i + 1;
        k += k + 1 < h->n && h->v[k + 1] < h->v[k];
        if (k >= h->n || h->v[k] >= x)
            break;
        h->v[i] = h->v[k];
        i = k;
    }
    h->v[i] = x;
    return least;
}
