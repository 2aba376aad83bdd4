/* tile.c - what a thread needs aside for the tile that it works at.
 *
 *   char *tile = ndrt_tile_scratch(r);      tile_bytes of the rank's device
 *
 * Each thread of a team has its own, there from the start as the arena is.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

enum { TILE_ALIGN = 4096 };

/* A page between two threads keeps their caches apart. */
static size_t stride(const ndrt_rank *r)
{
    size_t n = ndrt_here(r)->tile_bytes;

    return (n + 2 * TILE_ALIGN - 1) / TILE_ALIGN * TILE_ALIGN;
}

void *ndrt_tile_scratch(const ndrt_rank *r)
{
    return r->state->tiles + (size_t)r->thread * stride(r);
}

ndrt_status ndrt_tiles_open(ndrt_rank *r)
{
    size_t bytes = (size_t)ndrt_threads(r) * stride(r);

    if (!ndrt_here(r)->tile_bytes)
        return NDRT_OK;
    r->state->tiles = aligned_alloc(TILE_ALIGN, bytes);
    if (!r->state->tiles) {
        char text[24];
        ndrt_bytes(text, bytes);
        return ndrt_fail(r, NDRT_EINTERNAL, "cannot allocate tiles of %s",
                         text);
    }
    memset(r->state->tiles, 0, bytes);
    return NDRT_OK;
}
