/* test_npz.c - a small .npz file cut short anywhere, and with any bit turned
 * over: refused or read, never a byte outside it. What is read of good files
 * is tested by tests/data.
 */
#include "ndrt_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <cmocka.h>

static char path[64];

static size_t put(unsigned char *to, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(v >> 8 * i);
    return (size_t)bytes;
}

/* x: int32 [2, 3], 0 .. 5, in one member. */
static size_t make_array(unsigned char *to)
{
    static const char text[] = "{'descr': '<i4', 'fortran_order': False, "
                               "'shape': (2, 3), }\n";
    size_t n = 0;

    memcpy(to, "\x93NUMPY\x01", 8);
    n = 8 + put(to + 8, sizeof text - 1, 2);
    memcpy(to + n, text, sizeof text - 1);
    n += sizeof text - 1;
    for (uint32_t i = 0; i < 6; i++)
        n += put(to + n, i, 4);
    return n;
}

static size_t pack(const unsigned char *from, size_t n, unsigned char *to)
{
    z_stream z = {.next_in = (unsigned char *)from, .avail_in = (uInt)n,
                  .next_out = to, .avail_out = 512};

    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8,
                                  Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return z.total_out;
}

/* What both headers of a member say of it: method to lengths. */
static size_t put_sizes(unsigned char *to, int method, uint32_t crc,
                        size_t packed, size_t bytes)
{
    size_t n = put(to, (uint32_t)method, 2) + put(to + 2, 0, 4);

    n += put(to + n, crc, 4);
    n += put(to + n, (uint32_t)packed, 4);
    n += put(to + n, (uint32_t)bytes, 4);
    n += put(to + n, 5, 2);
    return n + put(to + n, 0, 2);
}

static size_t make_file(unsigned char *to, bool deflated)
{
    unsigned char array[512], packed[512];
    size_t bytes = make_array(array), n, at, size = bytes;
    uint32_t crc = (uint32_t)crc32_z(0, array, bytes);

    memcpy(packed, array, bytes);
    if (deflated)
        size = pack(array, bytes, packed);
    n = put(to, 0x04034b50, 4);
    n += put(to + n, 20, 4);
    n += put_sizes(to + n, deflated ? 8 : 0, crc, size, bytes);
    memcpy(to + n, "x.npy", 5);
    memcpy(to + n + 5, packed, size);
    at = n += 5 + size;
    n += put(to + n, 0x02014b50, 4);
    n += put(to + n, 20, 4) + put(to + n + 4, 0, 2);
    n += put_sizes(to + n, deflated ? 8 : 0, crc, size, bytes);
    memset(to + n, 0, 14);        /* comment, disk, attributes, offset */
    n += 14;
    memcpy(to + n, "x.npy", 5);
    n += 5;
    size = n - at;
    n += put(to + n, 0x06054b50, 4);
    n += put(to + n, 0, 4);
    n += put(to + n, 1, 2);
    n += put(to + n, 1, 2);
    n += put(to + n, (uint32_t)size, 4);
    n += put(to + n, (uint32_t)at, 4);
    return n + put(to + n, 0, 2);
}

static ndrt_status try(const unsigned char *x, size_t n, bool good)
{
    ndrt_st_file f;
    char error[512] = "";
    FILE *out = fopen(path, "wb");

    assert_non_null(out);
    assert_int_equal(fwrite(x, 1, n, out), n);
    fclose(out);
    ndrt_status s = ndrt_npz_open(&f, path, error, sizeof error);
    if (s != NDRT_OK) {
        assert_true(error[0] != '\0');
        return s;
    }
    for (int k = 0; k < f.n; k++) {
        int64_t size = 1, sum = 0;
        for (int a = 0; a < f.t[k].naxes; a++)
            size *= f.t[k].shape[a];
        for (int64_t i = 0; i < size; i++)
            sum += ndrt_st_int(&f.t[k], i);
        assert_true(!good || (size == 6 && sum == 15));
    }
    assert_true(!good || f.n == 1);
    ndrt_st_close(&f);
    return s;
}

static void test_damage(void **state)
{
    unsigned char x[2048];

    (void)state;
    for (int deflated = 0; deflated < 2; deflated++) {
        size_t n = make_file(x, deflated);
        assert_int_equal(try(x, n, true), NDRT_OK);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(try(x, i, false), NDRT_EINPUT);
        for (size_t i = 0; i < 8 * n; i++) {
            x[i / 8] ^= (unsigned char)(1 << i % 8);
            try(x, n, false);
            x[i / 8] ^= (unsigned char)(1 << i % 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damage)};

    snprintf(path, sizeof path, "/tmp/ndrt-npz-%d", (int)getpid());
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
