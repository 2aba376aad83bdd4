/* nd_diff.c - a generated program against the oracle.
 *
 *   nd_diff FILE --work STEM [--plan F] [--set axis=N] [--tol X] [--seed N]
 *           [--f32] [--fixture F]
 *
 * Evaluates the source graph with its gradients in f64 on one device; compiles
 * the same file for its plan; runs one step of plain SGD with rate 1 on the
 * same random inputs and parameters, all ranks as threads; and compares the
 * loss and, as old minus new parameters, every gradient. With --f32 the
 * evaluator also rounds every result to float: where that alone moves a number,
 * the generated program may move as much.
 *
 * A fixture is a safetensors file with the inputs `in.X` and the parameters
 * `param.X` to take instead of random ones, and with right answers from
 * elsewhere: `loss`, `out.X` and `grad.X`. The evaluation is compared with them
 * before the program is compared with the evaluation.
 *
 * With NDC_KERNELS=llvm in the environment, loop kernels are made by LLVM, with
 * c by the C compiler; with NDC_CPU=x86-64-v3, all is for such a processor.
 */
#include "../../codegen/codegen.h"
#include "../../frontend/frontend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SET = 32 };

typedef struct options {
    const char *path, *work, *fixture;
    double tol;
    bool f32;
    uint64_t seed;
    nd_front_options front;
    const char *set[MAX_SET];
} options;

/* ---- numbers ------------------------------------------------------------ */

static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    double r = sqrt(-2 * log(uniform(state)));
    return r * cos(2 * 3.14159265358979323846 * uniform(state));
}

/* The module lives in `c`, which is the caller's. */
static nd_module *load(nd_ctx *c, const options *o, const char *last)
{
    int file = nd_read_file(c, o->path);
    nd_module *m = file ? nd_frontend(c, file, &o->front) : NULL;
    nd_options p = {0};
    if (!file)
        fprintf(stderr, "nd_diff: cannot read %s\n", o->path);
    return m && nd_run_until(m, &p, last) ? m : NULL;
}

static nd_tensor *tensor(nd_arena *a, const nd_type *t)
{
    nd_tensor *x = ND_NEW(a, nd_tensor);
    x->rank = t->rank;
    x->n = nd_numel(t);
    for (int i = 0; i < t->rank; i++)
        x->dim[i] = t->axis[i]->size;
    x->v = ND_NEWN(a, double, x->n + 1);
    return x;
}

/* Inputs, then parameters: initial values plus noise, rounded to float. */
static nd_feed *make_feeds(const options *o, nd_module *m)
{
    nd_arena *a = m->ctx->arena;
    nd_feed *f = ND_NEWN(a, nd_feed, m->inputs.n + m->params.n + 1);
    uint64_t state = o->seed * 977 + 1;
    int64_t below = 7;
    for (int i = 0; i < m->axes.n; i++)
        if (strcmp(m->axes.v[i]->name, "vocab") == 0)
            below = m->axes.v[i]->size;
    for (int i = 0; i < m->inputs.n; i++) {
        const nd_value *v = m->inputs.v[i];
        nd_tensor *t = tensor(a, &v->type);
        for (int64_t k = 0; k < t->n; k++)
            t->v[k] = nd_is_float(v->type.dtype)
                          ? (double)(float)normal(&state)
                          : floor(uniform(&state) *
                                  (v->type.dtype == ND_BOOL ? 2
                                                            : (double)below));
        f[i] = (nd_feed){v->def->name, t};
    }
    for (int i = 0; i < m->params.n; i++) {
        nd_tensor *t = nd_eval_init(m, m->params.v[i], o->seed);
        for (int64_t k = 0; k < t->n; k++)
            t->v[k] = (float)(t->v[k] + 0.1 * normal(&state));
        f[m->inputs.n + i] = (nd_feed){m->params.v[i]->name, t};
    }
    return f;
}

/* ---- safetensors -------------------------------------------------------- */

typedef struct blob {
    nd_buf head;
    FILE *data;
    size_t at;
} blob;

static void put(blob *b, const char *name, nd_dtype t, int rank,
                const int64_t *dim, const double *v)
{
    static const char *const type[] = {"F32", "I32", "I64", "BOOL"};
    int64_t n = 1;
    nd_putf(&b->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
            b->at || b->head.n > 1 ? "," : "", name, type[t]);
    for (int i = 0; i < rank; i++) {
        nd_putf(&b->head, "%s%lld", i ? "," : "", (long long)dim[i]);
        n *= dim[i];
    }
    for (int64_t i = 0; i < n; i++) {
        float x = (float)v[i];
        int32_t k = (int32_t)v[i];
        unsigned char c = v[i] != 0;
        const void *p = t == ND_F32 ? (void *)&x : t == ND_BOOL ? (void *)&c
                                                                : (void *)&k;
        fwrite(p, nd_dtype_size(t), 1, b->data);
    }
    size_t bytes = (size_t)n * nd_dtype_size(t);
    nd_putf(&b->head, "],\"data_offsets\":[%zu,%zu]}", b->at, b->at + bytes);
    b->at += bytes;
}

static void start(blob *b, nd_arena *a)
{
    *b = (blob){.head = {.arena = a}, .data = tmpfile()};
    nd_put(&b->head, "{");
}

static bool finish(blob *b, const char *path)
{
    FILE *f = fopen(path, "wb");
    nd_put(&b->head, "}");
    while (b->head.n % 8)
        nd_put(&b->head, " ");
    uint64_t n = b->head.n;
    if (!f || !b->data)
        return false;
    fwrite(&n, 8, 1, f);
    fwrite(b->head.s, 1, b->head.n, f);
    rewind(b->data);
    for (int c; (c = getc(b->data)) != EOF;)
        putc(c, f);
    fclose(b->data);
    return fclose(f) == 0;
}

static int64_t layer_count(const nd_param *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->nlayers; i++)
        n *= p->layer[i].axis->size;
    return n;
}

/* What a file calls the l-th tensor of p. */
static const char *layer_name(nd_arena *a, const nd_param *p, int64_t l)
{
    nd_buf b = {.arena = a};
    int64_t below = layer_count(p);
    int from = 0;
    for (int i = 0; i < p->nlayers; i++) {
        below /= p->layer[i].axis->size;
        nd_putn(&b, p->name + from, (size_t)(p->layer[i].at - from));
        nd_putf(&b, ".%lld", (long long)(l / below));
        l %= below;
        from = p->layer[i].at;
    }
    nd_put(&b, p->name + from);
    return b.s;
}

static bool write_files(const options *o, nd_module *m, const nd_feed *f)
{
    nd_arena *a = m->ctx->arena;
    blob b;
    start(&b, a);
    for (int i = 0; i < m->inputs.n; i++)
        put(&b, f[i].name, m->inputs.v[i]->type.dtype, f[i].t->rank,
            f[i].t->dim, f[i].t->v);
    if (!finish(&b, nd_fmt(a, "%s.data.safetensors", o->work)))
        return false;
    start(&b, a);
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        const nd_tensor *t = f[m->inputs.n + i].t;
        int64_t layers = layer_count(p), each = t->n / layers;
        for (int64_t l = 0; l < layers; l++)
            put(&b, layer_name(a, p, l), ND_F32, t->rank - p->nlayers,
                t->dim + p->nlayers, t->v + l * each);
    }
    return finish(&b, nd_fmt(a, "%s.load.safetensors", o->work));
}

static char *read_all(const char *path, nd_arena *a)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *s = nd_alloc(a, (size_t)n + 1);
    size_t got = fread(s, 1, (size_t)n, f);
    fclose(f);
    return got == (size_t)n ? s : NULL;
}

/* The n numbers of one tensor of a file, F32 or I32, or NULL. */
static double *numbers(const char *file, const char *name, int64_t n,
                       nd_arena *a)
{
    uint64_t head;
    size_t from, to;
    memcpy(&head, file, 8);
    char *text = nd_strndup(a, file + 8, head);
    char *entry = strstr(text, nd_fmt(a, "\"%s\"", name));
    char *at = entry ? strstr(entry, "data_offsets") : NULL;
    if (!at || sscanf(at, "data_offsets\":[%zu,%zu", &from, &to) != 2 ||
        to - from != (size_t)n * 4) {
        printf("%s: not there, or of another size\n", name);
        return NULL;
    }
    char *end = strchr(entry, '}'), *i32 = strstr(entry, "\"I32\"");
    const char *raw = file + 8 + head + from;
    double *x = ND_NEWN(a, double, n + 1);
    for (int64_t k = 0; k < n; k++) {
        float f;
        int32_t i;
        memcpy(&f, raw + 4 * k, 4);
        memcpy(&i, raw + 4 * k, 4);
        x[k] = i32 && i32 < end ? i : (double)f;
    }
    return x;
}

/* `prefix` and the name of a parameter, whose layers lie apart in a file. */
static double *layered(const char *file, const char *prefix, const nd_param *p,
                       int64_t n, nd_arena *a)
{
    int64_t layers = layer_count(p), each = n / layers;
    double *all = ND_NEWN(a, double, n + 1);
    for (int64_t l = 0; l < layers; l++) {
        const char *name = layer_name(a, p, l);
        double *x = numbers(file, nd_fmt(a, "%s%s", prefix, name), each, a);
        if (!x)
            return NULL;
        memcpy(all + l * each, x, (size_t)each * sizeof *x);
    }
    return all;
}

/* ---- fixtures ----------------------------------------------------------- */

static bool feed_fixture(const char *file, nd_module *m, nd_feed *f)
{
    nd_arena *a = m->ctx->arena;
    bool ok = true;
    for (int i = 0; i < m->inputs.n + m->params.n; i++) {
        int p = i - m->inputs.n;
        nd_tensor *t = (nd_tensor *)f[i].t;
        t->v = p < 0 ? numbers(file, nd_fmt(a, "in.%s", f[i].name), t->n, a)
                     : layered(file, "param.", m->params.v[p], t->n, a);
        ok &= t->v != NULL;
    }
    return ok;
}

static bool same(const char *what, const double *got, const double *want,
                 int64_t n)
{
    double scale = 1e-6;
    for (int64_t k = 0; want && k < n; k++)
        if (isfinite(want[k]))
            scale = fmax(scale, fabs(want[k]));
    for (int64_t k = 0; want && k < n; k++)
        if (got[k] != want[k] && !(fabs(got[k] - want[k]) <= 1e-6 * scale)) {
            printf("%s [%lld]: %.9g, not %.9g\n", what, (long long)k, got[k],
                   want[k]);
            return false;
        }
    return want != NULL;
}

/* The evaluation against the fixture's answers. */
static bool right(const char *file, nd_module *m, const nd_eval_result *r)
{
    nd_arena *a = m->ctx->arena;
    bool ok = same("loss", &r->loss, numbers(file, "loss", 1, a), 1);
    for (int i = 0; i < m->outputs.n; i++) {
        const char *name = nd_fmt(a, "out.%s", m->outputs.v[i]->name);
        const nd_tensor *t = r->outputs[i];
        ok &= same(name, t->v, numbers(file, name, t->n, a), t->n);
    }
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        const nd_tensor *t = r->grads[i];
        ok &= same(nd_fmt(a, "grad.%s", p->name), t->v,
                   layered(file, "grad.", p, t->n, a), t->n);
    }
    return ok;
}

/* ---- the comparison ----------------------------------------------------- */

static bool build(nd_ctx *c, const options *o)
{
    nd_module *m = load(c, o, NULL);
    if (!m)
        return false;
    m->train.data = DATA_ARRAYS;
    m->train.data_path = "none";
    m->train.opt = OPT_SGD;
    m->train.lr_kind = LR_CONST;
    m->train.lr = 1;
    m->train.momentum = m->train.weight_decay = m->train.clip = 0;
    m->train.warmup = m->train.eval_every = 0;
    m->train.metrics.n = 0;          /* nor are rows held out for them */
    m->train.steps = 1;
    m->train.seed = o->seed;
    m->train.load_path = NULL;
    nd_buf b = {.arena = m->ctx->arena};
    cg_apart apart = {b, b};
    const char *kernels = getenv("NDC_KERNELS"), *cpu = getenv("NDC_CPU");
    cg_target_cpu to;
    bool told = kernels && !strcmp(kernels, "llvm");
    bool llvm = told || (!kernels && cg_prefers_llvm(m->ctx, cpu, &to));
    if (told)
        to = cg_target_for(m->ctx, cpu);
    if (llvm && !cg_emit_llvm(m, false, CG_LLVM_OBJECT, &to, &apart.rest,
                              &apart.object))
        return false;
    return cg_emit_c(m, &b) &&
           cg_build(m->ctx, b.s, llvm ? &apart : NULL, o->work, cpu) == 0;
}

static bool close_enough(const options *o, const char *what, int64_t i,
                         double got, double want, double scale)
{
    if (fabs(got - want) <= o->tol * scale)
        return true;
    printf("%s [%lld]: %.9g, not %.9g\n", what, (long long)i, got, want);
    return false;
}

/* By how much rounding to float moves a gradient. */
static double spread(const nd_tensor *a, const nd_tensor *b)
{
    double most = 0;
    for (int64_t k = 0; k < a->n; k++)
        most = fmax(most, fabs(a->v[k] - b->v[k]));
    return most;
}

/* `low` is the evaluator's result in f32, or `r` again. */
static bool compare(const options *o, nd_module *m, const nd_feed *f,
                    const nd_eval_result *r, const nd_eval_result *low)
{
    const double room = 8 / o->tol;  /* rounding happens in another order */
    nd_arena *a = m->ctx->arena;
    char *log = read_all(nd_fmt(a, "%s.jsonl", o->work), a);
    char *out = read_all(nd_fmt(a, "%s.out.safetensors", o->work), a);
    char *at = log ? strstr(log, "\"loss\":") : NULL;
    if (!at || !out)
        return false;
    double most = 0;
    bool ok = close_enough(o, "loss", 0, atof(at + 7), r->loss,
                           fmax(fmax(1, fabs(r->loss)),
                                room * fabs(r->loss - low->loss)));
    for (int i = 0; i < m->params.n; i++)
        for (int64_t k = 0; k < r->grads[i]->n; k++)
            most = fmax(most, fabs(r->grads[i]->v[k]));
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        const nd_tensor *old = f[m->inputs.n + i].t, *g = r->grads[i];
        double scale = fmax(0.01 * most, room * spread(g, low->grads[i]));
        for (int64_t k = 0; k < g->n; k++)
            scale = fmax(scale, fabs(g->v[k]));
        double *x = layered(out, "", p, g->n, a);
        bool good = x != NULL;
        for (int64_t k = 0; k < g->n && good; k++)
            good = close_enough(o, p->name, k, old->v[k] - x[k], g->v[k],
                                fmax(scale, 0.02 * fabs(old->v[k])));
        ok &= good;
    }
    return ok;
}

static int run(nd_ctx *c, const options *o)
{
    nd_module *m = load(c, o, "autodiff");
    if (!m || !m->loss)
        return 1;
    nd_feed *f = make_feeds(o, m);
    nd_eval_options e = {.training = true, .seed = o->seed, .step = 1,
                         .nfeeds = m->inputs.n + m->params.n, .feeds = f};
    nd_eval_result r, low;
    nd_arena *a = m->ctx->arena;
    char *known = o->fixture ? read_all(o->fixture, a) : NULL;
    if (o->fixture && (!known || !feed_fixture(known, m, f))) {
        printf("the fixture %s does not fit\n", o->fixture);
        return 1;
    }
    bool ok = nd_eval(m, &e, &r) && (!known || right(known, m, &r));
    low = r;
    e.f32 = o->f32;
    if (!ok || (o->f32 && !nd_eval(m, &e, &low)) ||
        !write_files(o, m, f) || !build(c, o))
        return 1;
    /* an odd number of threads, so that they share out unevenly */
    const char *cmd = nd_fmt(
        a, "'%s' --threads 3 --data '%s.data.safetensors' "
        "--load '%s.load.safetensors' --save '%s.out.safetensors' "
        "--log '%s.jsonl' >'%s.txt' 2>&1", o->work, o->work, o->work, o->work,
        o->work, o->work);
    remove(nd_fmt(a, "%s.jsonl", o->work));
    if (system(cmd) != 0) {
        char *text = read_all(nd_fmt(a, "%s.txt", o->work), a);
        printf("the program failed: %s\n", text ? text : "");
        return 1;
    }
    return !compare(o, m, f, &r, &low);
}

int main(int argc, char **argv)
{
    options o = {.tol = 2e-5, .seed = 1};
    for (int i = 1; i < argc; i++) {
        char *x = i + 1 < argc ? argv[i + 1] : NULL;
        if (argv[i][0] != '-') {
            o.path = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--f32") == 0) {
            o.f32 = true;
            continue;
        }
        if (!x)
            return 2;
        if (strcmp(argv[i], "--work") == 0)
            o.work = x;
        else if (strcmp(argv[i], "--plan") == 0)
            o.front.plan_path = x;
        else if (strcmp(argv[i], "--mesh") == 0)
            o.front.mesh = x;
        else if (strcmp(argv[i], "--fixture") == 0)
            o.fixture = x;
        else if (strcmp(argv[i], "--set") == 0 && o.front.nset < MAX_SET)
            o.set[o.front.nset++] = x;
        else if (strcmp(argv[i], "--tol") == 0)
            o.tol = atof(x);
        else if (strcmp(argv[i], "--seed") == 0)
            o.seed = (uint64_t)atoll(x);
        else
            return 2;
        i++;
    }
    o.front.set = o.set;
    if (!o.path || !o.work)
        return 2;
    nd_ctx *c = nd_ctx_new();
    int status = run(c, &o);
    nd_ctx_free(c);
    return status;
}
