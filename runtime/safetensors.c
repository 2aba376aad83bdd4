/* safetensors.c - reading and writing the safetensors format:
 *
 *     8 bytes   length of the header, little-endian
 *     header    JSON: {"wte": {"dtype": "F32", "shape": [256, 384],
 *                              "data_offsets": [0, 393216]}, ...}
 *     data      offsets count from here
 *
 * Nothing in a header is trusted: sizes are multiplied with overflow checks
 * and must equal the offsets' difference. Together the tensors cover the data
 * exactly, without a gap, an overlap or a rest; the header may list them in any
 * order. What is written has notes (notes.c) and checksums (checksum.c).
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_HEADER = 100 * 1024 * 1024 };

static const struct {
    const char *name;
    size_t size;
} types[NDRT_ST_NTYPES] = {
    [NDRT_ST_F32] = {"F32", 4},   [NDRT_ST_F64] = {"F64", 8},
    [NDRT_ST_F16] = {"F16", 2},   [NDRT_ST_BF16] = {"BF16", 2},
    [NDRT_ST_I32] = {"I32", 4},   [NDRT_ST_I64] = {"I64", 8},
    [NDRT_ST_U8] = {"U8", 1},     [NDRT_ST_BOOL] = {"BOOL", 1},
};

const char *ndrt_st_type_name(ndrt_st_type t)
{
    return types[t].name;
}

size_t ndrt_st_type_size(ndrt_st_type t)
{
    return types[t].size;
}

/* ---- the header ------------------------------------------------------- */

typedef ndrt_reader reader;

#define BAD(rd, ...) \
    (snprintf((rd)->error, (rd)->error_size, __VA_ARGS__), NDRT_EINPUT)

static ndrt_status read_type(reader *rd, ndrt_st_tensor *t, const json_t *j)
{
    const char *name = json_string_value(j);

    for (int i = 0; name && i < NDRT_ST_NTYPES; i++) {
        if (strcmp(name, types[i].name) == 0) {
            t->type = (ndrt_st_type)i;
            return NDRT_OK;
        }
    }
    return BAD(rd, "\"%s\": tensor \"%s\" has the dtype %s, which is not "
               "supported", rd->path, t->name, name ? name : "(none)");
}

static ndrt_status read_shape(reader *rd, ndrt_st_tensor *t, const json_t *j,
                              uint64_t *bytes)
{
    if (!json_is_array(j) || json_array_size(j) > NDRT_MAX_RANK)
        return BAD(rd, "\"%s\": tensor \"%s\" has no shape of at most %d axes",
                   rd->path, t->name, (int)NDRT_MAX_RANK);
    t->naxes = (int)json_array_size(j);
    *bytes = types[t->type].size;
    for (int a = 0; a < t->naxes; a++) {
        const json_t *v = json_array_get(j, (size_t)a);
        t->shape[a] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (t->shape[a] < 0 ||
            __builtin_mul_overflow(*bytes, (uint64_t)t->shape[a], bytes))
            return BAD(rd, "\"%s\": tensor \"%s\" has an impossible shape",
                       rd->path, t->name);
    }
    return NDRT_OK;
}

static ndrt_status read_tensor(reader *rd, ndrt_st_tensor *t, const json_t *j,
                               const unsigned char *data, uint64_t avail)
{
    const json_t *offs = json_object_get(j, "data_offsets");
    const json_t *a = json_array_get(offs, 0), *b = json_array_get(offs, 1);
    uint64_t bytes;
    ndrt_status s = read_type(rd, t, json_object_get(j, "dtype"));

    if (s == NDRT_OK)
        s = read_shape(rd, t, json_object_get(j, "shape"), &bytes);
    if (s != NDRT_OK)
        return s;
    if (json_array_size(offs) != 2 || !json_is_integer(a) ||
        !json_is_integer(b) || json_integer_value(a) < 0 ||
        json_integer_value(b) < json_integer_value(a))
        return BAD(rd, "\"%s\": tensor \"%s\" has bad data_offsets", rd->path,
                   t->name);
    uint64_t begin = (uint64_t)json_integer_value(a);
    uint64_t end = (uint64_t)json_integer_value(b);
    if (end - begin != bytes)
        return BAD(rd, "\"%s\": tensor \"%s\" has %llu bytes of data, its "
                   "shape needs %llu", rd->path, t->name,
                   (unsigned long long)(end - begin),
                   (unsigned long long)bytes);
    if (end > avail)
        return BAD(rd, "\"%s\" is cut short: tensor \"%s\" ends at byte %llu "
                   "of the data, there are %llu", rd->path, t->name,
                   (unsigned long long)end, (unsigned long long)avail);
    t->data = data + begin;
    return NDRT_OK;
}

static ndrt_status check_metadata(reader *rd, const json_t *j)
{
    const char *key;
    json_t *v;
    bool ok = json_is_object(j);

    bool ours = false;

    json_object_foreach((json_t *)j, key, v) {
        ok = ok && json_is_string(v);
        ours = ours || ndrt_is_note(key);
    }
    if (!ok)
        return BAD(rd, "\"%s\": __metadata__ is not an object of strings",
                   rd->path);
    rd->f->sums = json_string_value(json_object_get(j, ndrt_sums_key));
    if (ours && !rd->f->sums)
        return BAD(rd, "\"%s\" is damaged: its checksums are lost", rd->path);
    return NDRT_OK;
}

static ndrt_status read_entries(reader *rd, const unsigned char *data,
                                uint64_t avail)
{
    ndrt_st_file *f = rd->f;
    ndrt_status s = NDRT_OK;
    const char *name;
    json_t *j;

    json_object_foreach((json_t *)f->header, name, j) {
        if (strcmp(name, "__metadata__") == 0) {
            s = check_metadata(rd, j);
        } else {
            f->t[f->n].name = name;
            s = read_tensor(rd, &f->t[f->n], j, data, avail);
            f->n++;
        }
        if (s != NDRT_OK)
            break;
    }
    return s;
}

size_t ndrt_st_bytes(const ndrt_st_tensor *t)
{
    size_t n = types[t->type].size;

    for (int a = 0; a < t->naxes; a++)
        n *= (size_t)t->shape[a];
    return n;
}

/* By place in the data; an empty tensor before the one that begins there. */
static int by_place(const void *a, const void *b)
{
    const ndrt_st_tensor *x = a, *y = b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (ndrt_st_bytes(x) > 0) - (ndrt_st_bytes(y) > 0);
}

static ndrt_status check_cover(reader *rd, const unsigned char *data,
                               uint64_t avail)
{
    ndrt_st_file *f = rd->f;
    const unsigned char *at = data;

    qsort(f->t, (size_t)f->n, sizeof *f->t, by_place);
    for (int i = 0; i < f->n; i++) {
        if (f->t[i].data != at)
            return BAD(rd, "\"%s\": the data of tensor \"%s\" %s",
                       rd->path, f->t[i].name, f->t[i].data < at
                       ? "overlap another tensor's" : "follow a gap");
        at += ndrt_st_bytes(&f->t[i]);
    }
    uint64_t rest = avail - (uint64_t)(at - data);
    return rest == 0 ? NDRT_OK : BAD(
        rd, "\"%s\": %llu bytes after the last tensor", rd->path,
        (unsigned long long)rest);
}

/* Before its text is believed. */
static ndrt_status check_header(reader *rd, const char *header, size_t len)
{
    size_t at = ndrt_sums_at(header, len);

    if (at && !ndrt_is_sum(header + at, 0, ndrt_sum_header(header, len, at)))
        return BAD(rd, "\"%s\" is damaged: the header does not match its "
                   "checksum", rd->path);
    return NDRT_OK;
}

static ndrt_status check_sums(reader *rd)
{
    const ndrt_st_file *f = rd->f;

    if (f->sums && strlen(f->sums) != ndrt_sums_length(f->n))
        return BAD(rd, "\"%s\" is damaged: its checksums are not those of %d "
                   "tensors", rd->path, f->n);
    return NDRT_OK;
}

static ndrt_status read_header(reader *rd)
{
    ndrt_st_file *f = rd->f;
    const unsigned char *p = f->map;
    uint64_t len = 0;
    json_error_t je;

    if (f->bytes < 8)
        return BAD(rd, "\"%s\" is no safetensors file: %zu bytes", rd->path,
                   f->bytes);
    for (int i = 7; i >= 0; i--)
        len = len << 8 | p[i];
    if (len > f->bytes - 8 || len > MAX_HEADER)
        return BAD(rd, "\"%s\" is no safetensors file, or cut short: a header "
                   "of %llu bytes in a file of %zu", rd->path,
                   (unsigned long long)len, f->bytes);
    ndrt_status s = check_header(rd, (const char *)p + 8, (size_t)len);
    if (s != NDRT_OK)
        return s;
    f->header = json_loadb((const char *)p + 8, (size_t)len,
                           JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object((json_t *)f->header))
        return BAD(rd, "\"%s\": the header is not a JSON object: %s", rd->path,
                   f->header ? "another value" : je.text);
    f->t = calloc(json_object_size(f->header) + 1, sizeof *f->t);
    if (!f->t) {
        snprintf(rd->error, rd->error_size, "out of memory");
        return NDRT_EINTERNAL;
    }
    s = read_entries(rd, p + 8 + len, f->bytes - 8 - len);
    if (s == NDRT_OK)
        s = check_cover(rd, p + 8 + len, f->bytes - 8 - len);
    return s == NDRT_OK ? check_sums(rd) : s;
}

ndrt_status ndrt_read_file(ndrt_reader *rd,
                           ndrt_status (*read)(ndrt_reader *))
{
    ndrt_st_file *f = rd->f;

    *f = (ndrt_st_file){0};
    ndrt_status s = ndrt_map_file(rd->path, &f->map, &f->bytes, rd->error,
                                  rd->error_size);
    if (s != NDRT_OK)
        return s;
    s = read(rd);
    if (s != NDRT_OK)
        ndrt_st_close(f);
    return s;
}

ndrt_status ndrt_st_open(ndrt_st_file *f, const char *path, char *error,
                         size_t error_size)
{
    reader rd = {f, path, error, error_size};

    return ndrt_read_file(&rd, read_header);
}

void ndrt_st_close(ndrt_st_file *f)
{
    if (f->map)
        munmap(f->map, f->bytes);
    if (f->header)
        json_decref(f->header);
    for (int i = 0; i < f->nowned; i++)
        free(f->owned[i]);
    free(f->owned);
    free(f->t);
    *f = (ndrt_st_file){0};
}

const ndrt_st_tensor *ndrt_st_find(const ndrt_st_file *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->t[i].name, name) == 0)
            return &f->t[i];
    return NULL;
}

const char *ndrt_st_note(const ndrt_st_file *f, ndrt_note note)
{
    const json_t *all = json_object_get(f->header, "__metadata__");

    return json_string_value(json_object_get(all, ndrt_note_key[note]));
}

bool ndrt_st_whole(const ndrt_st_file *f, const ndrt_st_tensor *t)
{
    return !f->sums || ndrt_is_sum(f->sums, (int)(t - f->t) + 1,
                                   ndrt_sum(t->data, ndrt_st_bytes(t)));
}

/* ---- elements --------------------------------------------------------- */

static float float_at(const ndrt_st_tensor *t, const unsigned char *p)
{
    double d;
    uint16_t h;
    int32_t i;
    int64_t l;
    float f = 0.0f;

    switch (t->type) {
    case NDRT_ST_F32:
        memcpy(&f, p, sizeof f);
        return f;
    case NDRT_ST_F64:
        memcpy(&d, p, sizeof d);
        return (float)d;
    case NDRT_ST_F16:
        memcpy(&h, p, sizeof h);
        return nd_from_f16(h);
    case NDRT_ST_BF16:
        memcpy(&h, p, sizeof h);
        return nd_from_bf16(h);
    case NDRT_ST_I32:
        memcpy(&i, p, sizeof i);
        return (float)i;
    case NDRT_ST_I64:
        memcpy(&l, p, sizeof l);
        return (float)l;
    case NDRT_ST_U8:
        return (float)*p;
    case NDRT_ST_BOOL:
        return *p ? 1.0f : 0.0f;
    case NDRT_ST_NTYPES:
        break;
    }
    return f;
}

void ndrt_st_floats(const ndrt_st_tensor *t, int64_t at, int64_t n, float *out)
{
    size_t size = types[t->type].size;
    const unsigned char *p = t->data + (size_t)at * size;

    if (t->type == NDRT_ST_F32) {
        memcpy(out, p, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = float_at(t, p + (size_t)i * size);
}

int64_t ndrt_st_int(const ndrt_st_tensor *t, int64_t at)
{
    const unsigned char *p = t->data + (size_t)at * types[t->type].size;
    int64_t l;
    int32_t i;

    switch (t->type) {
    case NDRT_ST_I32:
        memcpy(&i, p, sizeof i);
        return i;
    case NDRT_ST_I64:
        memcpy(&l, p, sizeof l);
        return l;
    case NDRT_ST_BOOL:
        return *p != 0;
    default:
        return *p;                /* U8 */
    }
}

/* ---- writing ---------------------------------------------------------- */

/* Notes, and room for the checksums. */
static json_t *metadata_of(const ndrt_notes *notes, int n)
{
    json_t *m = json_object();
    size_t len = ndrt_sums_length(n);
    char *room = malloc(len);
    bool ok = m && room;

    if (room)
        memset(room, ' ', len);
    for (int k = 0; ok && k < NDRT_NNOTES; k++)
        if (notes->text[k])
            ok = json_object_set_new(m, ndrt_note_key[k],
                                     json_string(notes->text[k])) == 0;
    ok = ok && json_object_set_new(m, ndrt_sums_key,
                                   json_stringn(room, len)) == 0;
    free(room);
    if (ok)
        return m;
    json_decref(m);
    return NULL;
}

static json_t *header_of(const ndrt_st_tensor *t, int n,
                         const ndrt_notes *notes)
{
    json_t *h = json_object();
    json_int_t at = 0;

    if (json_object_set_new(h, "__metadata__", metadata_of(notes, n)) < 0) {
        json_decref(h);
        return NULL;
    }
    for (int i = 0; h && i < n; i++) {
        json_t *shape = json_array();
        json_int_t bytes = (json_int_t)types[t[i].type].size;
        for (int a = 0; a < t[i].naxes; a++) {
            json_array_append_new(shape, json_integer(t[i].shape[a]));
            bytes *= t[i].shape[a];
        }
        json_t *one = json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                types[t[i].type].name, "shape", shape,
                                "data_offsets", at, at + bytes);
        if (!one || json_object_set_new(h, t[i].name, one) < 0) {
            json_decref(h);
            return NULL;
        }
        at += bytes;
    }
    return h;
}

static ndrt_status write_failed(ndrt_st_writer *w, char *error, size_t size)
{
    snprintf(error, size, "cannot write \"%s\": %s", w->path,
             strerror(errno));
    ndrt_st_cancel(w);
    return NDRT_EINPUT;
}

/* Spaces round the header up, so that the data are aligned to 8 bytes. */
static char *round_up(char *text, size_t *all)
{
    size_t len = text ? strlen(text) : 0;
    char *t = text ? realloc(text, len + 8) : NULL;

    *all = (len + 7) / 8 * 8;
    if (t)
        memset(t + len, ' ', *all - len);
    else
        free(text);
    return t;
}

static bool write_header(const ndrt_st_writer *w)
{
    unsigned char head[8];

    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)((uint64_t)w->header_bytes >> 8 * i);
    return fwrite(head, 1, sizeof head, w->f) == sizeof head &&
           fwrite(w->header, 1, w->header_bytes, w->f) == w->header_bytes;
}

/* Once more, with the checksums. */
static bool write_sums(ndrt_st_writer *w)
{
    ndrt_put_sum(w->header + w->sums, 0,
                 ndrt_sum_header(w->header, w->header_bytes, w->sums));
    return fseeko(w->f, 0, SEEK_SET) == 0 && write_header(w);
}

static void forget(ndrt_st_writer *w)
{
    free(w->path);
    free(w->tmp);
    free(w->header);
    *w = (ndrt_st_writer){0};
}

ndrt_status ndrt_st_create(ndrt_st_writer *w, const char *path,
                           const ndrt_st_tensor *t, int n,
                           const ndrt_notes *notes, char *error,
                           size_t error_size)
{
    json_t *h = header_of(t, n, notes);
    char *text = h ? json_dumps(h, JSON_COMPACT) : NULL;

    *w = (ndrt_st_writer){.path = strdup(path), .tmp = ndrt_tmp_name(path)};
    json_decref(h);
    w->header = round_up(text, &w->header_bytes);
    if (!w->header || !w->path || !w->tmp) {
        forget(w);
        snprintf(error, error_size, "out of memory for a header");
        return NDRT_EINTERNAL;
    }
    w->f = fopen(w->tmp, "wbe");
    w->sums = ndrt_sums_at(w->header, w->header_bytes);
    bool ok = w->f && write_header(w);
    return ok ? NDRT_OK : write_failed(w, error, error_size);
}

ndrt_status ndrt_st_write(ndrt_st_writer *w, const float *x, int64_t n,
                          char *error, size_t error_size)
{
    if (fwrite(x, sizeof *x, (size_t)n, w->f) != (size_t)n)
        return write_failed(w, error, error_size);
    ndrt_put_sum(w->header + w->sums, ++w->written,
                 ndrt_sum(x, (size_t)n * sizeof *x));
    return NDRT_OK;
}

/* The data are on disk before the name is: a crash leaves the old file. */
ndrt_status ndrt_st_finish(ndrt_st_writer *w, char *error, size_t error_size)
{
    bool ok = write_sums(w) && fflush(w->f) == 0 && fsync(fileno(w->f)) == 0;

    ok = fclose(w->f) == 0 && ok;
    w->f = NULL;
    if (!ok || rename(w->tmp, w->path) < 0)
        return write_failed(w, error, error_size);
    forget(w);
    return NDRT_OK;
}

void ndrt_st_cancel(ndrt_st_writer *w)
{
    if (w->f)
        fclose(w->f);
    if (w->tmp)
        unlink(w->tmp);
    forget(w);
}
