/* test_safetensors.c - files written and read back, and damaged files. */
#include "ndrt_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char path[64], error[512];

static void write_file(const void *x, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(x, 1, n, f), n);
    fclose(f);
}

/* A file of this header and `data` bytes 0, 1, 2, ... */
static void write_parts(const char *header, size_t data)
{
    size_t len = strlen(header);
    unsigned char *x = calloc(1, 8 + len + data);

    for (int i = 0; i < 8; i++)
        x[i] = (unsigned char)(len >> 8 * i);
    memcpy(x + 8, header, len);
    for (size_t i = 0; i < data; i++)
        x[8 + len + i] = (unsigned char)i;
    write_file(x, 8 + len + data);
    free(x);
}

static void test_round_trip(void **state)
{
    static const float a[6] = {1, -2, 3.5f, 0, 1e-40f, 6}, b[1] = {7};
    const ndrt_st_tensor t[3] = {
        {.name = "a.w", .naxes = 2, .shape = {2, 3}},
        {.name = "scalar \"quoted\"", .naxes = 0},
        {.name = "empty", .naxes = 2, .shape = {0, 5}}};
    const ndrt_notes notes = {.text = {[NDRT_NOTE_SEED] = (char[]){"4"}}};
    ndrt_st_writer w;
    ndrt_st_file f;
    float x[6];

    (void)state;
    assert_int_equal(ndrt_st_create(&w, path, t, 3, &notes, error,
                                    sizeof error),
                     NDRT_OK);
    assert_int_equal(ndrt_st_write(&w, a, 6, error, sizeof error), NDRT_OK);
    assert_int_equal(access(path, F_OK), -1);      /* not before the end */
    assert_int_equal(ndrt_st_write(&w, b, 1, error, sizeof error), NDRT_OK);
    assert_int_equal(ndrt_st_finish(&w, error, sizeof error), NDRT_OK);
    assert_int_equal(ndrt_st_open(&f, path, error, sizeof error), NDRT_OK);
    assert_int_equal(f.n, 3);
    for (int i = 0; i < 3; i++) {
        const ndrt_st_tensor *u = ndrt_st_find(&f, t[i].name);
        assert_non_null(u);
        assert_int_equal(u->naxes, t[i].naxes);
        assert_memory_equal(u->shape, t[i].shape, sizeof u->shape);
    }
    ndrt_st_floats(ndrt_st_find(&f, "a.w"), 0, 6, x);
    assert_memory_equal(x, a, sizeof a);
    ndrt_st_floats(ndrt_st_find(&f, t[1].name), 0, 1, x);
    assert_true(x[0] == 7.0f);
    assert_null(ndrt_st_find(&f, "nothing"));
    ndrt_st_close(&f);
    unlink(path);
}

static void test_cancel(void **state)
{
    const ndrt_st_tensor t = {.name = "a", .naxes = 1, .shape = {1}};
    const ndrt_notes notes = {0};
    char tmp[80];
    ndrt_st_writer w;

    (void)state;
    write_file("old", 3);
    assert_int_equal(ndrt_st_create(&w, path, &t, 1, &notes, error,
                                    sizeof error),
                     NDRT_OK);
    ndrt_st_cancel(&w);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    assert_int_equal(access(tmp, F_OK), -1);
    assert_int_equal(access(path, F_OK), 0);       /* the old file stays */
    assert_int_equal(ndrt_st_create(&w, "/nowhere/x", &t, 1, &notes,
                                    error, sizeof error), NDRT_EINPUT);
    assert_non_null(strstr(error, "/nowhere/x"));
}

/* Each has one fault. */
static void test_damaged(void **state)
{
    static const char *const bad[] = {
        "", "{", "[1]", "{\"a\": 3}", "{\"a\": {}}",
        "{\"a\": {\"dtype\": \"F7\", \"shape\": [1], "
        "\"data_offsets\": [0, 4]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": 1, "
        "\"data_offsets\": [0, 4]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], "
        "\"data_offsets\": [0, 4]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], "
        "\"data_offsets\": [0, 4]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], "
        "\"data_offsets\": [0, 0]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], "
        "\"data_offsets\": [4, 0]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], "
        "\"data_offsets\": [-4, 0]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], "
        "\"data_offsets\": [0]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], "
        "\"data_offsets\": [0, 4]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [3], "
        "\"data_offsets\": [0, 12]}}",
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": "
        "[9223372036854775800, 9223372036854775804]}}",
        "{\"a\": {\"dtype\": \"U8\", \"shape\": "
        "[1,1,1,1,1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 1]}}",
    };
    ndrt_st_file f;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_parts(bad[i], 8);
        error[0] = '\0';
        assert_int_equal(ndrt_st_open(&f, path, error, sizeof error),
                         NDRT_EINPUT);
        assert_non_null(strstr(error, path));
    }
    assert_int_equal(ndrt_st_open(&f, "/nowhere", error, sizeof error),
                     NDRT_EINPUT);
    write_file("", 0);
    assert_int_equal(ndrt_st_open(&f, path, error, sizeof error), NDRT_EINPUT);
    write_file("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    assert_int_equal(ndrt_st_open(&f, path, error, sizeof error), NDRT_EINPUT);
}

/* Tensors a and b of 4 bytes each and `rest` after them, a at `x`, b at `y`. */
static ndrt_status two(int x, int y, size_t rest)
{
    char h[300];
    ndrt_st_file f;

    snprintf(h, sizeof h, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
             "\"data_offsets\":[%d,%d]},\"none\":{\"dtype\":\"F32\","
             "\"shape\":[0],\"data_offsets\":[4,4]},\"b\":{\"dtype\":"
             "\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]}}", x, x + 4,
             y, y + 4);
    write_parts(h, 8 + rest);
    ndrt_status s = ndrt_st_open(&f, path, error, sizeof error);
    if (s == NDRT_OK) {
        assert_int_equal(ndrt_st_find(&f, "b")->data[0], y);
        ndrt_st_close(&f);
    }
    return s;
}

/* The tensors cover the data exactly, in whatever order they are listed. */
static void test_cover(void **state)
{
    (void)state;
    assert_int_equal(two(0, 4, 0), NDRT_OK);
    assert_int_equal(two(4, 0, 0), NDRT_OK);
    assert_int_equal(two(0, 4, 1), NDRT_EINPUT);
    assert_non_null(strstr(error, "1 bytes after the last tensor"));
    assert_int_equal(two(0, 0, 0), NDRT_EINPUT);
    assert_non_null(strstr(error, "overlap"));
    assert_int_equal(two(0, 2, 0), NDRT_EINPUT);
    assert_int_equal(two(2, 0, 0), NDRT_EINPUT);
    assert_int_equal(two(0, 5, 1), NDRT_EINPUT);
    assert_non_null(strstr(error, "gap"));
    assert_int_equal(two(1, 5, 1), NDRT_EINPUT);
}

static void test_metadata(void **state)
{
    static const char *const bad[] = {"3", "[]", "\"x\"", "null",
                                      "{\"a\":1}", "{\"a\":\"b\",\"c\":{}}"};
    char h[100];
    ndrt_st_file f;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(h, sizeof h, "{\"__metadata__\":%s}", bad[i]);
        write_parts(h, 0);
        assert_int_equal(ndrt_st_open(&f, path, error, sizeof error),
                         NDRT_EINPUT);
        assert_non_null(strstr(error, "__metadata__"));
    }
    write_parts("{\"__metadata__\":{}}", 0);
    assert_int_equal(ndrt_st_open(&f, path, error, sizeof error), NDRT_OK);
    ndrt_st_close(&f);
}

/* Every prefix of a good file is refused, and no byte flipped in the header
 * makes the reader leave the file (run under ASan). */
static void test_every_prefix(void **state)
{
    static const char good[] =
        "{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
        "\"__metadata__\":{\"x\":\"y\"}}";
    unsigned char x[200] = {sizeof good - 1};
    const size_t n = 8 + sizeof good - 1 + 16;
    ndrt_st_file f;

    (void)state;
    memcpy(x + 8, good, sizeof good - 1);
    x[n - 16] = 5;
    write_file(x, n);
    assert_int_equal(ndrt_st_open(&f, path, error, sizeof error), NDRT_OK);
    assert_int_equal(f.n, 1);
    assert_int_equal(ndrt_st_int(&f.t[0], 0), 5);
    ndrt_st_close(&f);
    for (size_t i = 0; i < n; i++) {
        write_file(x, i);
        assert_int_equal(ndrt_st_open(&f, path, error, sizeof error),
                         NDRT_EINPUT);
    }
    for (size_t i = 0; i < (n - 16) * 8; i++) {
        x[i / 8] ^= (unsigned char)(1 << i % 8);
        write_file(x, n);
        x[i / 8] ^= (unsigned char)(1 << i % 8);
        if (ndrt_st_open(&f, path, error, sizeof error) != NDRT_OK)
            continue;
        for (int k = 0; k < f.n; k++)
            if (f.t[k].naxes == 1 && f.t[k].shape[0] > 0)
                ndrt_st_int(&f.t[k], 0);
        ndrt_st_close(&f);
    }
}

/* No bit of what we write can turn over unnoticed, in notes, names, checksums
 * or data. */
static void test_every_bit(void **state)
{
    static const float a[3] = {1, -2, 3.5f}, b[1] = {7};
    const ndrt_st_tensor t[3] = {
        {.name = "a.w", .naxes = 1, .shape = {3}},
        {.name = "empty", .naxes = 1, .shape = {0}},
        {.name = "\"ndc.crc32\":\"", .naxes = 0}};
    const ndrt_notes notes = {.text = {
        [NDRT_NOTE_HOLDS] = (char[]){"weights"}}};
    unsigned char x[600];
    ndrt_st_writer w;
    ndrt_st_file f;

    (void)state;
    assert_int_equal(ndrt_st_create(&w, path, t, 3, &notes, error,
                                    sizeof error), NDRT_OK);
    ndrt_st_write(&w, a, 3, error, sizeof error);
    ndrt_st_write(&w, a, 0, error, sizeof error);
    ndrt_st_write(&w, b, 1, error, sizeof error);
    assert_int_equal(ndrt_st_finish(&w, error, sizeof error), NDRT_OK);
    FILE *in = fopen(path, "rb");
    const size_t n = fread(x, 1, sizeof x, in);
    fclose(in);
    for (size_t i = 0; i <= n * 8; i++) {          /* in the end, none */
        bool whole = true;
        if (i < n * 8)
            x[i / 8] ^= (unsigned char)(1 << i % 8);
        write_file(x, n);
        if (i < n * 8)
            x[i / 8] ^= (unsigned char)(1 << i % 8);
        if (ndrt_st_open(&f, path, error, sizeof error) == NDRT_OK) {
            assert_int_equal(f.n, 3);
            for (int k = 0; k < f.n; k++)
                whole = whole && ndrt_st_whole(&f, &f.t[k]);
            ndrt_st_close(&f);
        } else {
            assert_non_null(strstr(error, path));
            whole = false;
        }
        if (whole != (i == n * 8))
            fail_msg("bit %zu of byte %zu", i % 8, i / 8);
    }
    unlink(path);
}

static void test_types(void **state)
{
    static const unsigned char d[8] = {0, 0x3c, 0, 0xfc, 1, 0, 0x80, 0x3f};
    ndrt_st_tensor t = {.type = NDRT_ST_F16, .data = d};
    float x[4];

    (void)state;
    ndrt_st_floats(&t, 0, 3, x);
    assert_true(x[0] == 1.0f && x[1] < -3e38f && x[2] == 0x1p-24f);
    t.type = NDRT_ST_BF16;
    ndrt_st_floats(&t, 3, 1, x);
    assert_true(x[0] == 1.0f);
    t.type = NDRT_ST_BOOL;
    ndrt_st_floats(&t, 0, 2, x);
    assert_true(x[0] == 0.0f && x[1] == 1.0f);
    assert_int_equal(ndrt_st_int(&t, 1), 1);
    t.type = NDRT_ST_I64;
    assert_true(ndrt_st_int(&t, 0) == 0x3f800001fc003c00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_cover),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_types),
    };

    snprintf(path, sizeof path, "/tmp/ndrt-st-%d", (int)getpid());
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
