/* gemm_dnnl.c - matrix products by oneDNN, 2.x or 3.x.
 *
 * Those of floats are calls of dnnl_sgemm, which on one thread is faster than a
 * primitive for most shapes, and adds up in the same order whatever part of C
 * it is asked for (see BLOCK).
 *
 * Those of bf16 are primitives. One is made once per shape and thread, then
 * found in a hash table; that the library has made the same for another thread
 * it knows itself. The scratchpad is ours: one buffer per thread, as large as
 * the greediest needs. Where the CPU has no bf16, that is remembered as a
 * product that cannot run.
 *
 * The library has two kinds of them. One adds up in order, as dnnl_sgemm does.
 * The other takes matrices without gaps between rows only, and adds up in an
 * order that all pieces of rows have. It is left to choose but where pieces
 * have gaps and the whole has none: then all are of the first kind (in_order),
 * which where A is transposed is also the faster one.
 */
#include "ndrt_internal.h"

#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

const char ndrt_mm_name[] = "oneDNN";

enum { SCRATCH_ALIGN = 64 };

typedef struct product {
    struct product *next;         /* same hash */
    ndrt_mm_key key;
    dnnl_primitive_t run;         /* NULL: not on this CPU */
    dnnl_memory_t a, b, c, scratch;
} product;

enum { BUCKETS = 256 };

struct ndrt_mm {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    product *table[BUCKETS];
    void *scratch;
    size_t scratch_bytes;
};

/* Is it the kind that adds up in order? */
static bool is_gemm(const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    dnnl_status_t s =
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);

    return !s && name && strstr(name, "gemm:jit");
}

/* ---- what differs between the versions -------------------------------- */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t md_own;
#define MD(x) (x)
#define MD_CREATE(md, dims, type, strides) \
    dnnl_memory_desc_create_with_strides(md, 2, dims, type, strides)
#define MD_DESTROY(md) dnnl_memory_desc_destroy(md)
#define ADD_TO_C(ops) dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_f32)

static dnnl_status_t describe(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                              const md_own md[3], dnnl_primitive_attr_t attr,
                              bool in_order)
{
    dnnl_status_t s = dnnl_matmul_primitive_desc_create(
        pd, engine, md[0], md[1], NULL, md[2], attr);

    while (!s && in_order && !is_gemm(*pd))
        s = dnnl_primitive_desc_next_impl(*pd);
    return s == dnnl_last_impl_reached ? dnnl_unimplemented : s;
}

#else

typedef dnnl_memory_desc_t md_own;
#define MD(x) (&(x))
#define MD_CREATE(md, dims, type, strides) \
    dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides)
#define MD_DESTROY(md) ((void)(md))
#define ADD_TO_C(ops) dnnl_post_ops_append_sum(ops, 1.0f)

static dnnl_status_t describe(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                              const md_own md[3], dnnl_primitive_attr_t attr,
                              bool in_order)
{
    dnnl_primitive_desc_iterator_t it = NULL;
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, &md[0], &md[1], NULL, &md[2]);

    s = s ? s : dnnl_primitive_desc_iterator_create(&it, &d, attr, engine,
                                                    NULL);
    while (!s && !*pd) {
        *pd = dnnl_primitive_desc_iterator_fetch(it);
        if (!*pd)
            s = dnnl_out_of_memory;
        else if (in_order && !is_gemm(*pd)) {
            dnnl_primitive_desc_destroy(*pd);
            *pd = NULL;
            s = dnnl_primitive_desc_iterator_next(it);
        }
    }
    if (it)
        dnnl_primitive_desc_iterator_destroy(it);
    return s == dnnl_iterator_ends ? dnnl_unimplemented : s;
}

#endif

/* ---- making a product ------------------------------------------------- */

static dnnl_status_t describe_operands(md_own md[3], const ndrt_mm_key *k)
{
    dnnl_dims_t da = {k->m, k->k}, db = {k->k, k->n}, dc = {k->m, k->n};
    dnnl_dims_t sa = {k->ta ? 1 : k->lda, k->ta ? k->lda : 1};
    dnnl_dims_t sb = {k->tb ? 1 : k->ldb, k->tb ? k->ldb : 1};
    dnnl_dims_t sc = {k->ldc, 1};
    dnnl_status_t s = MD_CREATE(&md[0], da, dnnl_bf16, sa);

    s = s ? s : MD_CREATE(&md[1], db, dnnl_bf16, sb);
    return s ? s : MD_CREATE(&md[2], dc, dnnl_f32, sc);
}

static dnnl_status_t make_attr(dnnl_primitive_attr_t *attr, bool acc)
{
    dnnl_post_ops_t ops;
    dnnl_status_t s = dnnl_primitive_attr_create(attr);

    s = s ? s : dnnl_primitive_attr_set_scratchpad_mode(
                    *attr, dnnl_scratchpad_mode_user);
    if (s || !acc)
        return s;
    s = dnnl_post_ops_create(&ops);
    if (s)
        return s;
    s = ADD_TO_C(ops);
    s = s ? s : dnnl_primitive_attr_set_post_ops(*attr, ops);
    dnnl_post_ops_destroy(ops);
    return s;
}

/* The buffer may move when it grows: handles are set at every run. */
static dnnl_status_t grow_scratch(ndrt_mm *mm, size_t bytes)
{
    if (bytes <= mm->scratch_bytes)
        return dnnl_success;
    bytes = (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    void *p = aligned_alloc(SCRATCH_ALIGN, bytes);
    if (!p)
        return dnnl_out_of_memory;
    free(mm->scratch);
    mm->scratch = p;
    mm->scratch_bytes = bytes;
    return dnnl_success;
}

static dnnl_status_t make_parts(ndrt_mm *mm, product *p, const md_own md[3],
                                dnnl_primitive_desc_t pd)
{
    dnnl_memory_t *to[3] = {&p->a, &p->b, &p->c};
    dnnl_status_t s = dnnl_primitive_create(&p->run, pd);

    for (int i = 0; i < 3 && !s; i++)
        s = dnnl_memory_create(to[i], MD(md[i]), mm->engine,
                               DNNL_MEMORY_NONE);
    if (s)
        return s;
    s = grow_scratch(mm, dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)));
    return s ? s : dnnl_memory_create(
            &p->scratch,
            dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0),
            mm->engine, DNNL_MEMORY_NONE);
}

/* No bf16 here, or only in the library's plainest loop. */
static bool too_slow(dnnl_status_t s, const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;

    if (s)
        return s == dnnl_unimplemented;
    s = dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return !s && name && strncmp(name, "ref", 3) == 0;
}

static dnnl_status_t make(ndrt_mm *mm, product *p)
{
    md_own md[3] = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = describe_operands(md, &p->key);

    s = s ? s : make_attr(&attr, p->key.acc);
    s = s ? s : describe(&pd, mm->engine, md, attr,
                         p->key.in_order && ndrt_mm_merges(&p->key));
    if (too_slow(s, pd))
        s = dnnl_success;
    else
        s = s ? s : make_parts(mm, p, md, pd);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 3; i++)
        MD_DESTROY(md[i]);
    return s;
}

static void free_product(product *p)
{
    dnnl_memory_t mem[4] = {p->a, p->b, p->c, p->scratch};

    for (int i = 0; i < 4; i++)
        if (mem[i])
            dnnl_memory_destroy(mem[i]);
    if (p->run)
        dnnl_primitive_destroy(p->run);
    free(p);
}

/* ---- the table -------------------------------------------------------- */

static bool same(const ndrt_mm_key *x, const ndrt_mm_key *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda &&
           x->ldb == y->ldb && x->ldc == y->ldc && x->ta == y->ta &&
           x->tb == y->tb && x->acc == y->acc && x->in_order == y->in_order;
}

static unsigned hash(const ndrt_mm_key *x)
{
    uint64_t h = (uint64_t)x->m;

    h = h * 0x9e3779b97f4a7c15u + (uint64_t)x->n;
    h = h * 0x9e3779b97f4a7c15u + (uint64_t)x->k;
    h = h * 0x9e3779b97f4a7c15u + (uint64_t)x->lda;
    h = h * 0x9e3779b97f4a7c15u + (uint64_t)x->ldb;
    h = h * 0x9e3779b97f4a7c15u + (uint64_t)x->ldc;
    h = h * 0x9e3779b97f4a7c15u +
        (uint64_t)(x->ta | x->tb << 1 | x->acc << 2 | x->in_order << 3);
    return (unsigned)(h >> 32) % BUCKETS;
}

static dnnl_status_t find(ndrt_mm *mm, const ndrt_mm_key *key, product **out)
{
    product **head = &mm->table[hash(key)];

    for (product *p = *head; p; p = p->next) {
        if (same(&p->key, key)) {
            *out = p;
            return dnnl_success;
        }
    }
    product *p = calloc(1, sizeof *p);
    if (!p)
        return dnnl_out_of_memory;
    p->key = *key;
    dnnl_status_t s = make(mm, p);
    if (s) {
        free_product(p);
        return s;
    }
    p->next = *head;
    *out = *head = p;
    return dnnl_success;
}

ndrt_status ndrt_mm_open(ndrt_rank *r)
{
    ndrt_mm *mm = calloc(1, sizeof *mm);

    ndrt_mine(r)->mm = mm;
    ndrt_set_threads();
    if (!mm || dnnl_engine_create(&mm->engine, dnnl_cpu, 0) ||
        dnnl_stream_create(&mm->stream, mm->engine,
                           dnnl_stream_default_flags))
        return ndrt_fail(r, NDRT_EINTERNAL, "cannot start oneDNN");
    return NDRT_OK;
}

bool ndrt_mm_has_bf16(ndrt_rank *r, const ndrt_mm_key *key)
{
    product *p = NULL;
    dnnl_status_t s = find(ndrt_mine(r)->mm, key, &p);

    if (s) {
        ndrt_fail(r, NDRT_EINTERNAL, "oneDNN status %d for a product in bf16",
                  (int)s);
        ndrt_raise(r);
    }
    return p->run;
}

/* ---- running it --------------------------------------------------------- */

static dnnl_status_t run_bf16(ndrt_mm *mm, const ndrt_mm_key *key,
                              const void *a, const void *b, float *c)
{
    product *p = NULL;
    dnnl_status_t s = find(mm, key, &p);

    s = s ? s : dnnl_memory_set_data_handle(p->a, (void *)a);
    s = s ? s : dnnl_memory_set_data_handle(p->b, (void *)b);
    s = s ? s : dnnl_memory_set_data_handle(p->c, c);
    s = s ? s : dnnl_memory_set_data_handle(p->scratch, mm->scratch);
    if (!s) {
        dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, p->a},
                                   {DNNL_ARG_WEIGHTS, p->b},
                                   {DNNL_ARG_DST, p->c},
                                   {DNNL_ARG_SCRATCHPAD, p->scratch}};
        s = dnnl_primitive_execute(p->run, mm->stream, 4, args);
    }
    return s;
}

/* dnnl_sgemm takes either of two ways, by the shape. Both add up in order
 * unless k is large and B alone is transposed; then, one of them does it in
 * halves. Of so many numbers at a time, neither does. */
enum { BLOCK = 384 };

/* A call packs 384 rows of all columns that it is given, up to 9984: of 16 MB
 * for each thread most would stay with the process. So it is given about WIDE
 * columns: as many units as any other call, the last one what is left as well.
 * (A call of one column adds up in another order.) */
enum { WIDE = 4096, COLUMNS = 96 };

static int64_t column_of(int64_t n, int64_t call, int64_t calls)
{
    return call == calls ? n : n / COLUMNS * call / calls * COLUMNS;
}

/* Some columns of C, some terms of their sums. */
static dnnl_status_t run_columns(const ndrt_mm_key *key, int64_t n, int64_t k,
                                 bool acc, const float *a, const float *b,
                                 float *c)
{
    return dnnl_sgemm(key->ta ? 'T' : 'N', key->tb ? 'T' : 'N', key->m, n, k,
                      1.0f, a, key->lda, b, key->ldb, acc ? 1.0f : 0.0f, c,
                      key->ldc);
}

static dnnl_status_t run_f32(const ndrt_mm_key *key, const float *a,
                             const float *b, float *c)
{
    int64_t calls = (key->n + WIDE - 1) / WIDE;
    int64_t most = key->tb && !key->ta ? BLOCK : key->k;
    dnnl_status_t s = dnnl_success;

    for (int64_t call = 0; call < calls; call++) {
        int64_t j = column_of(key->n, call, calls);
        int64_t n = column_of(key->n, call + 1, calls) - j;
        for (int64_t i = 0; i < key->k && !s; i += most) {
            int64_t k = key->k - i < most ? key->k - i : most;
            s = run_columns(key, n, k, key->acc || i > 0,
                            a + i * (key->ta ? key->lda : 1),
                            b + i * (key->tb ? 1 : key->ldb) +
                                j * (key->tb ? key->ldb : 1),
                            c + j);
        }
    }
    return s;
}

static bool cpu_has(dnnl_cpu_isa_t isa)
{
    unsigned all = (unsigned)isa;

    return ((unsigned)dnnl_get_effective_cpu_isa() & all) == all;
}

/* The kernels for AVX-512 know no other order of additions, tails included, for
 * pieces of the sizes that gemm.c makes; those for older CPUs do, and of those
 * for AMX nothing is known. */
bool ndrt_mm_merges(const ndrt_mm_key *key)
{
    if (!key->bf16)
        return cpu_has(dnnl_cpu_isa_avx512_core);
    return cpu_has(dnnl_cpu_isa_avx512_core_bf16) &&
           !cpu_has(dnnl_cpu_isa_avx512_core_amx);
}

/* Measured: with B as it is, these kernels are 4 to 9% slower where n is small;
 * to turn it takes as long as a hundredth of the product at TURN_ROWS. */
enum { TURN_ROWS = 256, TURN_COLS = 1024 };

int64_t ndrt_mm_turns(const ndrt_mm_key *key)
{
    return !key->bf16 && key->tb && !key->ta && key->m >= TURN_ROWS &&
                   key->n <= TURN_COLS && ndrt_mm_merges(key)
               ? BLOCK
               : 0;
}

ndrt_status ndrt_mm_run(ndrt_rank *r, const ndrt_mm_key *key, const void *a,
                        const void *b, float *c)
{
    dnnl_status_t s = key->bf16 ? run_bf16(ndrt_mine(r)->mm, key, a, b, c)
                                : run_f32(key, a, b, c);

    if (!s)
        return NDRT_OK;
    return ndrt_fail(r, NDRT_EINTERNAL, "oneDNN status %d in a product of "
                     "%lld x %lld x %lld", (int)s, (long long)key->m,
                     (long long)key->n, (long long)key->k);
}

size_t ndrt_mm_scratch(const ndrt_own *own)
{
    return own->mm ? own->mm->scratch_bytes : 0;
}

void ndrt_mm_close(ndrt_own *own)
{
    ndrt_mm *mm = own->mm;

    if (!mm)
        return;
    for (int i = 0; i < BUCKETS; i++) {
        while (mm->table[i]) {
            product *p = mm->table[i];
            mm->table[i] = p->next;
            free_product(p);
        }
    }
    if (mm->stream)
        dnnl_stream_destroy(mm->stream);
    if (mm->engine)
        dnnl_engine_destroy(mm->engine);
    free(mm->scratch);
    free(mm);
    own->mm = NULL;
}
