/* checksum.c - how a damaged file is told from a whole one: CRC-32, as zlib
 * computes it, of the header and of each tensor's data.
 *
 *     {"__metadata__": {"ndc.crc32": "09a4f7c1 5e2f0b13 d2fd1072", ...}, ...}
 *
 * The first is that of the header's text without these eight digits, the others
 * follow in the order of the data. They are known when all is written, so the
 * header has room for them. A file of somebody else has none and is taken as it
 * is; one that has a note of ours and no checksums has lost them.
 */
#include "ndrt_internal.h"

#include <string.h>
#include <zlib.h>

const char ndrt_sums_key[] = "ndc.crc32";
static const char prefix[] = "ndc.", mark[] = "\"ndc.crc32\":\"";

enum { DIGITS = 8 };

size_t ndrt_sums_length(int ntensors)
{
    return (size_t)(ntensors + 1) * (DIGITS + 1) - 1;
}

bool ndrt_is_note(const char *name)
{
    return strncmp(name, prefix, sizeof prefix - 1) == 0;
}

/* A name with quotes in it has backslashes before them. */
size_t ndrt_sums_at(const char *header, size_t len)
{
    const char *at = memmem(header, len, mark, sizeof mark - 1);
    size_t from = at ? (size_t)(at - header) + sizeof mark - 1 : 0;

    return from && from + DIGITS <= len ? from : 0;
}

uint32_t ndrt_sum(const void *x, size_t bytes)
{
    return (uint32_t)crc32_z(0, x, bytes);
}

uint32_t ndrt_sum_header(const char *header, size_t len, size_t sums)
{
    const unsigned char *h = (const unsigned char *)header;
    size_t rest = sums + DIGITS;

    return (uint32_t)crc32_z(crc32_z(0, h, sums), h + rest, len - rest);
}

static void to_digits(uint32_t sum, char text[DIGITS + 1])
{
    snprintf(text, DIGITS + 1, "%08x", (unsigned)sum);
}

void ndrt_put_sum(char *sums, int i, uint32_t sum)
{
    char text[DIGITS + 1];

    to_digits(sum, text);
    memcpy(sums + i * (DIGITS + 1), text, DIGITS);
}

bool ndrt_is_sum(const char *sums, int i, uint32_t sum)
{
    char text[DIGITS + 1];

    to_digits(sum, text);
    return memcmp(sums + i * (DIGITS + 1), text, DIGITS) == 0;
}
