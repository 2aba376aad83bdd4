/* jitter.c - NDRT_JITTER=N: what a rank does begins up to N microseconds late,
 * to test what else may happen meanwhile.
 *
 *   ndrt_jitter j = ndrt_jitter_new(rank);   ndrt_doze(&j);
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <time.h>

ndrt_jitter ndrt_jitter_new(int seed)
{
    const char *text = getenv("NDRT_JITTER");

    return (ndrt_jitter){text ? (uint32_t)strtoul(text, NULL, 10) : 0,
                         (uint32_t)seed};
}

void ndrt_doze(ndrt_jitter *j)
{
    if (!j->most)
        return;
    j->random = j->random * 1664525u + 1013904223u;
    struct timespec t = {0, (long)(j->random >> 8) % j->most * 1000};
    nanosleep(&t, NULL);
}
