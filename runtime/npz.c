/* npz.c - arrays from numpy's .npz: a zip file of NAME.npy members, stored
 * (numpy.savez; they stay in the mapped file) or deflated (savez_compressed).
 *
 *   zip   members, then a directory of them, then a record that ends the file
 *         and says where the directory is; 64-bit forms of all for large files
 *   npy   "\x93NUMPY", version, length of a text, the text:
 *         {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *
 * Nothing in a file is trusted: every offset is checked, and every checksum.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

typedef ndrt_reader reader;

#define BAD(rd, ...) \
    (snprintf((rd)->error, (rd)->error_size, __VA_ARGS__), NDRT_EINPUT)

bool ndrt_is_npz(const char *path)
{
    size_t n = strlen(path);

    return n > 4 && strcmp(path + n - 4, ".npz") == 0;
}

static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t v = 0;

    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* n bytes at `at`, or NULL if the file ends before. */
static const unsigned char *bytes_at(const reader *rd, uint64_t at, uint64_t n)
{
    const unsigned char *map = rd->f->map;

    if (n > rd->f->bytes || at > rd->f->bytes - n)
        return NULL;
    return map + at;
}

static ndrt_status cut_short(reader *rd)
{
    return BAD(rd, "\"%s\" is no .npz file, or is cut short", rd->path);
}

static ndrt_status own(reader *rd, void *p)
{
    ndrt_st_file *f = rd->f;
    void **more = p ? realloc(f->owned, (size_t)(f->nowned + 1) * sizeof *more)
                    : NULL;

    if (!more) {
        free(p);
        snprintf(rd->error, rd->error_size, "out of memory for \"%s\"",
                 rd->path);
        return NDRT_EINTERNAL;
    }
    f->owned = more;
    f->owned[f->nowned++] = p;
    return NDRT_OK;
}

/* ---- .npy ------------------------------------------------------------- */

typedef struct array {
    const char *name;
    const unsigned char *data;    /* of the member, header first */
    uint64_t bytes;
} array;

/* What follows 'key': in the text; NULL if there is no such key. */
static const char *after(const char *text, const char *key)
{
    char quoted[32];
    const char *at;

    snprintf(quoted, sizeof quoted, "'%s':", key);
    at = strstr(text, quoted);
    if (!at)
        return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

static ndrt_status read_type(reader *rd, ndrt_st_tensor *t, const char *descr)
{
    static const struct {
        const char *name;
        ndrt_st_type type;
    } types[] = {
        {"'<f4'", NDRT_ST_F32}, {"'<f8'", NDRT_ST_F64}, {"'<f2'", NDRT_ST_F16},
        {"'<i4'", NDRT_ST_I32}, {"'<i8'", NDRT_ST_I64}, {"'|u1'", NDRT_ST_U8},
        {"'|b1'", NDRT_ST_BOOL},
    };

    for (size_t i = 0; descr && i < sizeof types / sizeof *types; i++) {
        if (strncmp(descr, types[i].name, strlen(types[i].name)) == 0) {
            t->type = types[i].type;
            return NDRT_OK;
        }
    }
    int n = descr ? (int)strcspn(descr, ",") : 0;
    return BAD(rd, "\"%s\": the array \"%s\" has the dtype %.*s; read are "
               "float 16, 32 and 64, int 32 and 64, uint8 and bool, "
               "little-endian",
               rd->path, t->name, n < 40 ? n : 40, descr ? descr : "");
}

static ndrt_status read_shape(reader *rd, ndrt_st_tensor *t, const char *text,
                              uint64_t *bytes)
{
    bool ok = text && *text == '(';

    *bytes = ndrt_st_type_size(t->type);
    for (text += ok; ok && *text != ')';) {
        char *end;
        long long n = strtoll(text, &end, 10);
        ok = end != text && n >= 0 && t->naxes < NDRT_MAX_RANK &&
             !__builtin_mul_overflow(*bytes, (uint64_t)n, bytes);
        if (ok)
            t->shape[t->naxes++] = n;
        text = end + strspn(end, ", ");
    }
    return ok ? NDRT_OK : BAD(rd, "\"%s\": the array \"%s\" has no shape of at "
                              "most %d axes", rd->path, t->name,
                              (int)NDRT_MAX_RANK);
}

static ndrt_status read_text(reader *rd, ndrt_st_tensor *t, const char *text,
                             uint64_t *bytes)
{
    const char *order = after(text, "fortran_order");
    ndrt_status s = read_type(rd, t, after(text, "descr"));

    if (s == NDRT_OK)
        s = read_shape(rd, t, after(text, "shape"), bytes);
    if (s == NDRT_OK && (!order || strncmp(order, "False", 5) != 0))
        s = BAD(rd, "\"%s\": the array \"%s\" is in Fortran order; save "
                "numpy.ascontiguousarray of it", rd->path, t->name);
    return s;
}

static ndrt_status read_array(reader *rd, const array *a)
{
    ndrt_st_tensor *t = &rd->f->t[rd->f->n];
    const unsigned char *p = a->data;
    uint64_t at = a->bytes > 6 && p[6] > 1 ? 12 : 10, length = 0, bytes = 0;

    *t = (ndrt_st_tensor){.name = a->name};
    if (a->bytes >= at && memcmp(p, "\x93NUMPY", 6) == 0)
        length = number(p + 8, (int)at - 8);
    if (length == 0 || length > a->bytes - at)
        return BAD(rd, "\"%s\": the member \"%s\" is no .npy file", rd->path,
                   a->name);
    char *text = strndup((const char *)p + at, (size_t)length);
    if (!text)
        return own(rd, NULL);
    ndrt_status s = read_text(rd, t, text, &bytes);
    free(text);
    at += length;
    if (s == NDRT_OK && bytes != a->bytes - at)
        s = BAD(rd, "\"%s\": the array \"%s\" has %llu bytes of data, its "
                "shape needs %llu", rd->path, a->name,
                (unsigned long long)(a->bytes - at),
                (unsigned long long)bytes);
    t->data = p + at;
    rd->f->n++;
    return s;
}

/* ---- zip -------------------------------------------------------------- */

typedef struct member {
    const unsigned char *name;
    size_t name_length;
    int flags, method;
    uint32_t crc;
    uint64_t packed, bytes, at;   /* at: its own header */
} member;

enum { STORED = 0, DEFLATED = 8, MOST_RATIO = 1032 };

/* Input and output in steps, as zlib counts in 32 bits. */
static bool inflate_all(const unsigned char *from, uint64_t packed,
                        unsigned char *to, uint64_t bytes)
{
    enum { STEP = 1 << 30 };
    z_stream z = {0};
    int rc = Z_OK;

    if (inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return false;
    z.next_in = (unsigned char *)from;
    z.next_out = to;
    while (rc == Z_OK) {
        uint64_t in = packed - (uint64_t)(z.next_in - from);
        uint64_t out = bytes - (uint64_t)(z.next_out - to);
        z.avail_in = (uInt)(in < STEP ? in : STEP);
        z.avail_out = (uInt)(out < STEP ? out : STEP);
        rc = inflate(&z, Z_NO_FLUSH);
    }
    bool ok = rc == Z_STREAM_END && z.next_out == to + bytes;
    inflateEnd(&z);
    return ok;
}

static ndrt_status unpack(reader *rd, const member *m, array *a)
{
    const unsigned char *h = bytes_at(rd, m->at, 30), *data = NULL;
    ndrt_status s = NDRT_OK;

    if (h && number(h, 4) == 0x04034b50)
        data = bytes_at(rd, m->at + 30 + number(h + 26, 2) + number(h + 28, 2),
                        m->packed);
    if (!data)
        return cut_short(rd);
    if ((m->method != STORED && m->method != DEFLATED) || (m->flags & 1))
        return BAD(rd, "\"%s\": the member \"%s\" is encrypted or packed in a "
                   "way that is not read", rd->path, a->name);
    a->bytes = m->bytes;
    a->data = data;
    if (m->method == STORED ? m->packed != m->bytes
                            : m->bytes / MOST_RATIO > m->packed)
        return cut_short(rd);
    bool ok = true;
    if (m->method == DEFLATED) {
        unsigned char *to = malloc((size_t)m->bytes + 1);
        s = own(rd, to);
        a->data = to;
        ok = s == NDRT_OK && inflate_all(data, m->packed, to, m->bytes);
    }
    ok = ok && crc32_z(0, a->data, (size_t)a->bytes) == m->crc;
    if (s == NDRT_OK && !ok)
        s = BAD(rd, "\"%s\": the member \"%s\" is damaged", rd->path, a->name);
    return s;
}

/* Sizes that did not fit stand in an extra field, in this order. */
static bool large_sizes(member *m, const unsigned char *extra, size_t n)
{
    uint64_t *const v[] = {&m->bytes, &m->packed, &m->at};

    while (n >= 4) {
        size_t length = (size_t)number(extra + 2, 2), at = 4;
        if (length > n - 4)
            return false;
        for (int i = 0; i < 3 && number(extra, 2) == 1; i++) {
            if (*v[i] != UINT32_MAX)
                continue;
            if (at + 8 > length + 4)
                return false;
            *v[i] = number(extra + at, 8);
            at += 8;
        }
        extra += length + 4;
        n -= length + 4;
    }
    return true;
}

/* The directory entry at *at, which moves to the next one. */
static bool read_entry(const reader *rd, uint64_t *at, member *m)
{
    const unsigned char *p = bytes_at(rd, *at, 46);

    if (!p || number(p, 4) != 0x02014b50)
        return false;
    size_t name = (size_t)number(p + 28, 2), extra = (size_t)number(p + 30, 2);
    *m = (member){.name_length = name, .flags = (int)number(p + 8, 2),
                  .method = (int)number(p + 10, 2),
                  .crc = (uint32_t)number(p + 16, 4),
                  .packed = number(p + 20, 4), .bytes = number(p + 24, 4),
                  .at = number(p + 42, 4)};
    m->name = bytes_at(rd, *at + 46, name + extra);
    *at += 46 + name + extra + number(p + 32, 2);
    return m->name && large_sizes(m, m->name + name, extra);
}

/* Where the directory begins and how many entries it has. */
static bool find_directory(const reader *rd, uint64_t *at, uint64_t *n)
{
    enum { END = 22, COMMENT = 65535 };
    uint64_t bytes = rd->f->bytes;

    for (uint64_t back = END; back <= END + COMMENT && back <= bytes; back++) {
        const unsigned char *p = bytes_at(rd, bytes - back, END);
        if (number(p, 4) != 0x06054b50)
            continue;
        *n = number(p + 10, 2);
        *at = number(p + 16, 4);
        if (*n != UINT16_MAX && *at != UINT32_MAX)
            return true;
        const unsigned char *l = bytes_at(rd, bytes - back - 20, 20);
        if (!l || number(l, 4) != 0x07064b50)
            return true;
        p = bytes_at(rd, number(l + 8, 8), 56);
        if (!p || number(p, 4) != 0x06064b50)
            return false;
        *n = number(p + 32, 8);
        *at = number(p + 48, 8);
        return true;
    }
    return false;
}

static ndrt_status read_member(reader *rd, const member *m)
{
    size_t n = m->name_length;
    array a = {0};

    if (n < 4 || memcmp(m->name + n - 4, ".npy", 4) != 0)
        return NDRT_OK;
    char *name = strndup((const char *)m->name, n - 4);
    ndrt_status s = own(rd, name);
    a.name = name;
    if (s == NDRT_OK)
        s = unpack(rd, m, &a);
    return s == NDRT_OK ? read_array(rd, &a) : s;
}

static ndrt_status read_members(reader *rd)
{
    uint64_t at, n;
    ndrt_status s = NDRT_OK;

    if (!find_directory(rd, &at, &n) || n > rd->f->bytes / 46)
        return cut_short(rd);
    rd->f->t = calloc((size_t)n + 1, sizeof *rd->f->t);
    if (!rd->f->t)
        return own(rd, NULL);
    for (uint64_t i = 0; i < n && s == NDRT_OK; i++) {
        member m;
        s = read_entry(rd, &at, &m) ? read_member(rd, &m) : cut_short(rd);
    }
    return s;
}

ndrt_status ndrt_npz_open(ndrt_st_file *f, const char *path, char *error,
                          size_t error_size)
{
    reader rd = {f, path, error, error_size};

    return ndrt_read_file(&rd, read_members);
}
