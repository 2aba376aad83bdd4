/* nd_eval.c - the oracle on the command line.
 *
 *   nd_eval FILE [options]               loss, outputs and gradient norms
 *   nd_eval --compare FILE [options]     one device against simulated ranks
 *   nd_eval --gradcheck FILE [options]   gradients against differences, of a
 *                                        few elements or of --all
 *
 * FILE is .nd or .ndir. Inputs are random: integers below the size of the axis
 * `vocab` (or 7), floats normal. Parameters start as the program says, plus
 * noise in the checks, where zeros and ones would hide mistakes.
 *
 * --compare evaluates the source graph with its gradients on one device, then
 * the graph after the passes on all ranks of its mesh with its schedule, and
 * fails if the loss, an output or a gradient differs by more than --tol,
 * relative to the largest number in it. With --each it does so after every
 * pass and says after which one the meaning changed. Under precision = bf16 the
 * source graph has its casts already, and --gradcheck leaves them out. With
 * --against the source graph is another file's, which is to mean the same.
 */
#include "../../frontend/frontend.h"
#include "../../passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SET = 32, CHECKED = 4 };

typedef struct options {
    const char *path, *last, *against;
    bool compare, gradcheck, each, all, grads, evaluation, f32, print;
    double noise, tol;
    uint64_t seed;
    int64_t step;
    nd_front_options front;
    const char *set[MAX_SET];
} options;

/* Global tensors for all inputs and params of the source graph. */
typedef struct feeds {
    nd_arena *arena;
    int n;
    nd_feed *v;
} feeds;

/* ---- numbers ------------------------------------------------------------- */

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

static double largest(const nd_tensor *t)
{
    double most = 0;
    for (int64_t i = 0; i < t->n; i++)
        most = isnan(t->v[i]) ? INFINITY : fmax(most, fabs(t->v[i]));
    return most;
}

static double norm(const nd_tensor *t)
{
    double sum = 0;
    for (int64_t i = 0; i < t->n; i++)
        sum += t->v[i] * t->v[i];
    return sqrt(sum);
}

/* ---- modules, feeds ------------------------------------------------------ */

/* Reads the file into a context of its own and runs the passes up to `last`;
 * NULL or "" runs none. */
static nd_module *load(const options *o, const char *last)
{
    nd_ctx *c = nd_ctx_new();
    int file = nd_read_file(c, o->path);
    if (!file)
        fprintf(stderr, "nd_eval: cannot read %s\n", o->path);
    size_t n = strlen(o->path);
    bool text = n > 5 && strcmp(o->path + n - 5, ".ndir") == 0;
    nd_module *m = !file  ? NULL
                   : text ? nd_parse_ir(c, file)
                          : nd_frontend(c, file, &o->front);
    nd_options p = {.verify_each = true};
    bool ok = m && nd_verify(m);
    if (ok && o->gradcheck)
        m->train.precision = ND_F32;  /* rounding has no derivative */
    if (ok && last && *last)
        ok = nd_run_until(m, &p, strcmp(last, "all") ? last : NULL);
    if (ok && o->print) {
        nd_buf b = {.arena = c->arena};
        nd_print(&b, m);
        fputs(b.s, stdout);
    }
    if (!ok)
        nd_ctx_free(c);
    return ok ? m : NULL;
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

static double draw(nd_dtype t, int64_t below, uint64_t *state)
{
    if (nd_is_float(t))
        return normal(state);
    return floor(uniform(state) * (t == ND_BOOL ? 2 : (double)below));
}

static feeds make_feeds(const options *o, nd_module *m)
{
    feeds f = {.arena = nd_arena_new()};
    f.v = ND_NEWN(f.arena, nd_feed, m->inputs.n + m->params.n);
    uint64_t state = o->seed * 977 + 1;
    int64_t below = 7;
    for (int i = 0; i < m->axes.n; i++)
        if (strcmp(m->axes.v[i]->name, "vocab") == 0)
            below = m->axes.v[i]->size;
    for (int i = 0; i < m->inputs.n; i++) {
        const nd_value *v = m->inputs.v[i];
        nd_tensor *t = tensor(f.arena, &v->type);
        for (int64_t k = 0; k < t->n; k++)
            t->v[k] = draw(v->type.dtype, below, &state);
        f.v[f.n++] = (nd_feed){nd_strdup(f.arena, v->def->name), t};
    }
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        const nd_tensor *init = nd_eval_init(m, p, o->seed);
        nd_tensor *t = tensor(f.arena, &p->value->type);
        for (int64_t k = 0; k < t->n; k++)
            t->v[k] = init->v[k] + (o->noise ? o->noise * normal(&state) : 0);
        f.v[f.n++] = (nd_feed){nd_strdup(f.arena, p->name), t};
    }
    return f;
}

static bool evaluate(const options *o, nd_module *m, const feeds *f,
                     nd_eval_result *r)
{
    nd_eval_options e = {
        .f32 = o->f32, .training = !o->evaluation, .seed = o->seed,
        .step = o->step, .nfeeds = f->n, .feeds = f->v,
    };
    return nd_eval(m, &e, r);
}

/* ---- printing ------------------------------------------------------------ */

static int show(const options *o)
{
    nd_module *m = load(o, o->last ? o->last : o->grads ? "autodiff" : "");
    if (!m)
        return 1;
    feeds f = make_feeds(o, m);
    nd_eval_result r;
    bool ok = evaluate(o, m, &f, &r);
    if (ok && m->loss)
        printf("loss %.17g\n", r.loss);
    for (int i = 0; ok && i < m->outputs.n; i++)
        printf("output %s norm %.17g\n", m->outputs.v[i]->name,
               norm(r.outputs[i]));
    for (int i = 0; ok && r.grads && i < m->params.n; i++)
        printf("grad %s norm %.17g\n", m->params.v[i]->name,
               norm(r.grads[i]));
    for (int i = 0; ok && i < OP_COUNT; i++)
        if (r.collectives[i])
            printf("collective %s %lld\n", nd_ops[i].name,
                   (long long)r.collectives[i]);
    nd_arena_free(f.arena);
    nd_ctx_free(m->ctx);
    return !ok;
}

/* ---- one device against many --------------------------------------------- */

/* Differences count relative to the largest number of the tensor; `floor_`
 * keeps what should be 0 from being compared with its own rounding. */
static bool agree(const options *o, const char *what, const char *name,
                  const nd_tensor *a, const nd_tensor *b, double floor_)
{
    double scale = fmax(fmax(largest(a), floor_), 1e-300), worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < a->n && a->n == b->n; i++) {
        double d = a->v[i] == b->v[i] ? 0 : fabs(a->v[i] - b->v[i]) / scale;
        if (d > worst || isnan(d)) {
            worst = isnan(d) ? INFINITY : d;
            at = i;
        }
    }
    if (a->n == b->n && worst <= o->tol)
        return true;
    if (a->n != b->n)
        printf("%s %s: %lld elements, not %lld\n", what, name,
               (long long)b->n, (long long)a->n);
    else
        printf("%s %s: element %lld is %.17g, not %.17g (%.1e relative)\n",
               what, name, (long long)at, b->v[at], a->v[at], worst);
    return false;
}

static int param_named(const nd_module *m, const char *name)
{
    for (int i = 0; i < m->params.n; i++)
        if (strcmp(m->params.v[i]->name, name) == 0)
            return i;
    return -1;
}

static bool same_grads(const options *o, const nd_module *a,
                       const nd_eval_result *x, const nd_module *b,
                       const nd_eval_result *y)
{
    bool ok = true;
    double most = 0;
    if (!x->grads || !y->grads)
        return true;
    for (int i = 0; i < a->params.n; i++)
        most = fmax(most, largest(x->grads[i]));
    for (int i = 0; i < a->params.n; i++) {
        int k = param_named(b, a->params.v[i]->name);
        if (k < 0)
            printf("parameter %s is gone\n", a->params.v[i]->name);
        ok &= k >= 0 && agree(o, "gradient", a->params.v[i]->name,
                              x->grads[i], y->grads[k], 1e-6 * most);
    }
    return ok;
}

static bool same_results(const options *o, const nd_module *a,
                         const nd_eval_result *x, const nd_module *b,
                         const nd_eval_result *y)
{
    double lx = x->loss, ly = y->loss;
    nd_tensor tx = {.n = 1, .v = &lx}, ty = {.n = 1, .v = &ly};
    bool ok = agree(o, "loss", "", &tx, &ty, 1e-12);
    for (int i = 0; i < a->outputs.n; i++) {
        const char *name = a->outputs.v[i]->name;
        int k = 0;
        while (k < b->outputs.n && strcmp(b->outputs.v[k]->name, name) != 0)
            k++;
        if (k == b->outputs.n)
            printf("output %s is gone\n", name);
        ok &= k < b->outputs.n && agree(o, "output", name, x->outputs[i],
                                        y->outputs[k], 1e-12);
    }
    return same_grads(o, a, x, b, y) && ok;
}

static bool compare_after(const options *o, const char *last,
                          const nd_module *a, const nd_eval_result *x,
                          const feeds *f)
{
    nd_module *b = load(o, last);
    nd_eval_result y;
    bool ok = b && evaluate(o, b, f, &y) && same_results(o, a, x, b, &y);
    printf("%s after %s\n", ok ? "equal" : b ? "DIFFERS" : "FAILED", last);
    if (b)
        nd_ctx_free(b->ctx);
    return ok;
}

static int compare(const options *o)
{
    static const char *const passes[] = {
#define PASS(name, fn, requires, ensures, summary) name,
#include "../../passes/passes.def"
#undef PASS
    };
    const int n = sizeof passes / sizeof *passes;
    options source = *o;
    source.path = o->against ? o->against : o->path;
    nd_module *a = load(&source, "autodiff");
    if (!a)
        return 1;
    feeds f = make_feeds(o, a);
    nd_eval_result x;
    bool ok = evaluate(o, a, &f, &x);
    if (ok && !o->each)
        ok = compare_after(o, o->last ? o->last : "all", a, &x, &f);
    for (int i = 1; ok && o->each && i < n; i++) {
        ok = compare_after(o, passes[i], a, &x, &f);
        if (o->last && strcmp(o->last, passes[i]) == 0)
            break;
    }
    nd_arena_free(f.arena);
    nd_ctx_free(a->ctx);
    return !ok;
}

/* ---- gradients against differences --------------------------------------- */

/* The loss with one element of one param moved by h. */
static bool loss_at(const options *o, nd_module *m, const feeds *f, double *x,
                    double h, double *loss)
{
    nd_eval_result r;
    double old = *x;
    *x += h;
    bool ok = evaluate(o, m, f, &r);
    *x = old;
    *loss = r.loss;
    return ok;
}

static bool check_param(const options *o, nd_module *m, const feeds *f,
                        const char *name, const nd_tensor *g, uint64_t *state)
{
    const nd_tensor *t = NULL;
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->v[i].name, name) == 0)
            t = f->v[i].t;
    bool ok = t != NULL;
    int64_t n = ok && o->all ? t->n : CHECKED;
    for (int64_t k = 0; ok && k < n; k++) {
        int64_t i = o->all ? k : (int64_t)(uniform(state) * (double)t->n);
        double h = 1e-5 * fmax(1, fabs(t->v[i])), up, down;
        if (!loss_at(o, m, f, &t->v[i], h, &up) ||
            !loss_at(o, m, f, &t->v[i], -h, &down))
            return false;
        double d = (up - down) / (2 * h);
        double room = o->tol * (fabs(d) + fabs(g->v[i])) +
                      1e-9 * (fabs(up) + 1e-3);
        if (!(fabs(d - g->v[i]) <= room)) {
            printf("gradient %s: element %lld is %.12g, differences say "
                   "%.12g\n", name, (long long)i, g->v[i], d);
            ok = false;
        }
    }
    return ok;
}

static int gradcheck(const options *o)
{
    nd_module *m = load(o, ""), *g = load(o, o->last ? o->last : "autodiff");
    nd_eval_result r = {0};
    int bad = !m || !g;
    if (!bad) {
        feeds f = make_feeds(o, m);
        uint64_t state = o->seed + 17;
        bad = !evaluate(o, g, &f, &r) || !r.grads;
        for (int i = 0; !bad && i < g->params.n; i++)
            if (!g->params.v[i]->frozen)
                bad += !check_param(o, m, &f, g->params.v[i]->name,
                                    r.grads[i], &state);
        printf("%s: %d of %d parameters wrong\n", bad ? "WRONG" : "right",
               bad, g->params.n);
        nd_arena_free(f.arena);
    }
    if (m)
        nd_ctx_free(m->ctx);
    if (g)
        nd_ctx_free(g->ctx);
    return bad != 0;
}

/* ---- command line -------------------------------------------------------- */

static int usage(void)
{
    fprintf(stderr,
            "usage: nd_eval [--compare [--each] | --gradcheck [--all]] FILE\n"
            "  --passes=LAST   run the passes up to LAST (or all)\n"
            "  --mesh=a=N,...  another mesh      --plan=FILE  another plan\n"
            "  --set a=N       size of an axis   --print  the graph, too\n"
            "  --seed N  --step N  --noise X  --tol X\n"
            "  --f32           round every result to float\n"
            "  --grads         with gradients    --eval  dropout off\n"
            "  --against=FILE  compare with what FILE means\n");
    return 2;
}

/* The value of `--name=value` or `--name value`; NULL if it is not that. */
static const char *value(const char *name, char **argv, int *i)
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=')
        return argv[*i] + n + 1;
    return argv[*i][n] || !argv[*i + 1] ? NULL : argv[++*i];
}

static bool read_flag(options *o, const char *s)
{
    const struct {
        const char *name;
        bool *to;
    } flags[] = {
        {"--compare", &o->compare}, {"--gradcheck", &o->gradcheck},
        {"--each", &o->each},       {"--grads", &o->grads},
        {"--all", &o->all},
        {"--eval", &o->evaluation}, {"--f32", &o->f32},
        {"--print", &o->print},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(s, flags[i].name) == 0)
            return *flags[i].to = true;
    return false;
}

static bool read_options(options *o, char **argv)
{
    for (int i = 1; argv[i]; i++) {
        const char *v;
        if (read_flag(o, argv[i]))
            continue;
        if ((v = value("--passes", argv, &i)))
            o->last = v;
        else if ((v = value("--against", argv, &i)))
            o->against = v;
        else if ((v = value("--mesh", argv, &i)))
            o->front.mesh = v;
        else if ((v = value("--plan", argv, &i)))
            o->front.plan_path = v;
        else if ((v = value("--set", argv, &i)) && o->front.nset < MAX_SET)
            o->set[o->front.nset++] = v;
        else if ((v = value("--seed", argv, &i)))
            o->seed = strtoull(v, NULL, 10);
        else if ((v = value("--step", argv, &i)))
            o->step = strtoll(v, NULL, 10);
        else if ((v = value("--noise", argv, &i)))
            o->noise = strtod(v, NULL);
        else if ((v = value("--tol", argv, &i)))
            o->tol = strtod(v, NULL);
        else if (argv[i][0] == '-' || o->path)
            return false;
        else
            o->path = argv[i];
    }
    return o->path != NULL;
}

int main(int argc, char **argv)
{
    (void)argc;
    options o = {.seed = 1, .step = 1, .noise = -1, .tol = -1};
    if (!read_options(&o, argv))
        return usage();
    o.front.set = o.set;
    bool check = o.compare || o.gradcheck;
    if (o.noise < 0)
        o.noise = check ? 0.1 : 0;
    if (o.tol < 0)
        o.tol = o.gradcheck ? 1e-6 : o.f32 ? 1e-4 : 1e-9;
    return o.compare ? compare(&o) : o.gradcheck ? gradcheck(&o) : show(&o);
}
