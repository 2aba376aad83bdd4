/* nd_plans.c - random plans for any program.
 *
 *   nd_plans --seed N [--pipelines] FILE
 *                                  prints plan N for the model of FILE, after
 *                                  a line `# --set a=3 ...`: other sizes for
 *                                  some axes, with which it is still legal
 *
 * A mesh of one to four axes and at most twelve ranks; rules for some of the
 * axes that the file declares, in any order, each over one or more mesh axes;
 * perhaps microbatches, a pipeline, zero, recomputation. Axes that follow
 * others (`axis kv = seq`) have rules of their own or not. Sizes divide or not.
 * ndc may refuse the plan: it must say where and why. With --pipelines each
 * plan has one, over all outermost repeats or one of them, more microbatches,
 * stages made or said, and recompute by a budget.
 *
 * Each further line of a plan is a function here and a row of `lines`.
 */
#include "../../frontend/frontend.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_AXES = 64, MAX_RANKS = 12, MESH = 4, MAX_SET = 8,
       MAX_PIPE = 4 };

typedef struct gen {
    nd_arena *arena;
    nd_buf out;
    uint64_t state;
    int naxes;
    const char *axis[MAX_AXES];      /* those that a rule may cut */
    nd_module *m;
    int npipe;
    const nd_axis *pipe[MAX_PIPE];   /* of outermost repeats, each once */
    int64_t layers[MAX_PIPE];        /* all iterations over it */
    bool pipelines;                  /* of every plan */
    int nset;
    const char *set[MAX_SET];        /* "a=3" */
    const char *sample;              /* the sample axis, or NULL */
    int nmesh, size[MESH], stages;   /* stages: mesh axis, or -1 */
    nd_buf rows;                     /* mesh axes that cut samples: `u, v` */
    const char *keys;                /* mesh axis that cuts queries and keys,
                                        or NULL */
    bool zero;
} gen;

static const char *const mesh_name[MESH] = {"u", "v", "w", "x"};

/* ---- chance ------------------------------------------------------------- */

static int below(gen *g, int n)
{
    uint64_t z = g->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int)(((z ^ z >> 31) >> 33) % (uint64_t)n);
}

static bool chance(gen *g, int percent)
{
    return below(g, 100) < percent;
}

/* 0 .. n-1 in any order. */
static void shuffle(gen *g, int n, int *order)
{
    for (int i = 0; i < n; i++) {
        int k = below(g, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
}

/* ---- what the program has ----------------------------------------------- */

static void see_repeat(nd_op *op, void *user)
{
    gen *g = user;
    if (!op->body)
        return;
    if (!op->block->parent) {
        int k = 0;
        while (k < g->npipe && g->pipe[k] != op->axes[0])
            k++;
        if (k < MAX_PIPE) {
            g->npipe += k == g->npipe;
            g->pipe[k] = op->axes[0];
            g->layers[k] += op->axes[0]->size;
        }
    }
    for (int i = 0; i < g->naxes; i++)
        if (strcmp(g->axis[i], op->axes[0]->name) == 0)
            g->axis[i] = g->axis[--g->naxes];
}

static void silent(void *user, nd_severity s, const char *text)
{
    (void)user;
    (void)s;
    (void)text;
}

/* Is the program legal with the sizes so far? */
static bool is_legal(const gen *g, const char *path)
{
    nd_front_options o = {.nset = g->nset, .set = g->set};
    nd_ctx *c = nd_ctx_new();
    c->sink = silent;
    int file = nd_read_file(c, path);
    bool ok = file && nd_frontend(c, file, &o);
    nd_ctx_free(c);
    return ok;
}

/* Another size, if the program says a number and may say another one. */
static void resize(gen *g, const ast_decl *d, const char *path)
{
    static const int sizes[] = {1, 2, 3, 4, 6, 9, 11, 13};
    if (d->value->kind != E_NUM || g->nset == MAX_SET || !chance(g, 30))
        return;
    g->set[g->nset++] =
        nd_fmt(g->arena, "%s=%d", d->name.s,
               sizes[below(g, sizeof sizes / sizeof *sizes)]);
    if (!is_legal(g, path))
        g->nset--;
}

static bool read_program(gen *g, nd_ctx *c, const char *path)
{
    int file = nd_read_file(c, path);
    ast_file *f = file ? nd_parse(c, file) : NULL;
    for (int i = 0; f && i < f->decls.n && g->naxes < MAX_AXES; i++)
        if (f->decls.v[i]->kind == I_AXIS) {
            g->axis[g->naxes++] = f->decls.v[i]->name.s;
            resize(g, f->decls.v[i], path);
        }
    nd_front_options o = {.nset = g->nset, .set = g->set};
    nd_module *m = f ? nd_frontend(c, file, &o) : NULL;
    if (!m)
        return false;
    nd_walk(m->step, see_repeat, g);
    g->m = m;
    g->sample = m->sample ? nd_strdup(g->arena, m->sample->name) : NULL;
    return true;
}

typedef struct seek {
    const char *axis;
    bool found;
} seek;

/* A softmax over keys, `kv` of `axis kv = seq`, for each `seq`. */
static void see_softmax(nd_op *op, void *user)
{
    seek *s = user;
    const nd_axis *a = op->naxes ? op->axes[0]->like : NULL;
    s->found |= op->kind == OP_REDUCE && op->sub == RED_MAX && a &&
                strcmp(a->name, s->axis) == 0 &&
                nd_axis_at(&op->in[0]->type, a) >= 0;
}

static bool is_attended(const gen *g, const char *axis)
{
    seek s = {.axis = axis};
    nd_walk(g->m->step, see_softmax, &s);
    return s.found;
}

static bool is_stored(const gen *g, const char *axis)
{
    for (int i = 0; i < g->m->params.n; i++) {
        const nd_type *t = &g->m->params.v[i]->value->type;
        for (int k = 0; k < t->rank; k++)
            if (strcmp(t->axis[k]->name, axis) == 0)
                return true;
    }
    return false;
}

/* ---- the lines of a plan ------------------------------------------------- */

static void mesh(gen *g)
{
    static const int sizes[] = {1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 12};
    int ranks;
    g->nmesh = 1 + below(g, MESH);
    do {
        ranks = 1;
        for (int i = 0; i < g->nmesh; i++)
            ranks *= g->size[i] = sizes[below(g, sizeof sizes / sizeof *sizes)];
    } while (ranks > MAX_RANKS || ranks == 1);
    nd_put(&g->out, "  mesh ");
    for (int i = 0; i < g->nmesh; i++)
        nd_putf(&g->out, "%s%s = %d", i ? ", " : "", mesh_name[i], g->size[i]);
    nd_put(&g->out, "\n");
    g->stages = -1;
}

/* Some of the mesh axes that hold no stages, `a, b`; how many there are. */
static int some_mesh_axes(gen *g, int most, nd_buf *b)
{
    int order[MESH], n = 0, want = 1 + (chance(g, 30) ? below(g, most) : 0);
    shuffle(g, g->nmesh, order);
    for (int i = 0; i < g->nmesh && n < want; i++)
        if (order[i] != g->stages)
            nd_putf(b, "%s%s", n++ ? ", " : "", mesh_name[order[i]]);
    return n;
}

/* Any schedule that leaves the meaning alone and can have such numbers; the
 * stages on a device in `v`. Without --pipelines no more stages than layers. */
static const char *some_schedule(gen *g, int devices, int micro, int64_t layers,
                                 int *v)
{
    enum { TRIES = 20 };
    for (int i = 0; i < TRIES; i++) {
        int n = 1 + below(g, 3);
        sched_kind kind = (sched_kind)below(g, SCHED_NKINDS);
        const sched_info *k = &sched_kinds[kind];
        sched_ask ask = {.kind = kind, .ranks = devices, .v = k->v ? 0 : n,
                         .micro = micro};
        sched_error err;
        *v = sched_per_rank(kind, ask.v);
        if (!sched_has(kind, 'a') && sched_legal(&ask, &err) &&
            (g->pipelines || devices * *v <= layers))
            return k->v ? k->name : nd_fmt(g->arena, "%s(%d)", k->name, n);
    }
    *v = 1;
    return g->pipelines && chance(g, 50) ? "auto" : "1f1b";
}

/* Each iteration to any stage, in order; many stages have none. */
static void stages_by_hand(gen *g, int stages, int64_t layers)
{
    nd_put(&g->out, ", stages = [");
    for (int s = 0; s < stages; s++) {
        int n = s == stages - 1 ? (int)layers : below(g, (int)layers + 1);
        nd_putf(&g->out, "%s%d", s ? ", " : "", n);
        layers -= n;
    }
    nd_put(&g->out, "]");
}

static void pipeline(gen *g)
{
    int k = below(g, g->nmesh), v;
    int micro = 1 + below(g, g->pipelines ? 9 : 4);
    int from = g->npipe ? below(g, g->npipe) : 0, to = from + 1;
    if (g->npipe > 1 && chance(g, 60))
        from = 0, to = g->npipe;
    int64_t layers = 0;
    for (int i = from; i < to && i < g->npipe; i++)
        layers += g->layers[i];
    if (!g->npipe || !g->sample || (!g->pipelines && g->size[k] > layers))
        return;
    g->stages = k;
    nd_put(&g->out, to - from > 1 ? "  pipeline (" : "  pipeline ");
    for (int i = from; i < to; i++)
        nd_putf(&g->out, "%s%s", i > from ? ", " : "", g->pipe[i]->name);
    const char *schedule = some_schedule(g, g->size[k], micro, layers, &v);
    nd_putf(&g->out, "%s -> %s, schedule = %s, microbatches = %d",
            to - from > 1 ? ")" : "", mesh_name[k], schedule, micro);
    if (g->pipelines && chance(g, 40))
        stages_by_hand(g, g->size[k] * v, layers);
    nd_put(&g->out, "\n");
}

static void microbatches(gen *g)
{
    if (g->stages < 0 && g->sample)
        nd_putf(&g->out, "  microbatches %d\n", 2 + below(g, 3));
}

static void shard(gen *g)
{
    int order[MAX_AXES], rules = 0;
    shuffle(g, g->naxes, order);
    for (int i = 0; i < g->naxes; i++) {
        nd_buf to = {.arena = g->arena};
        int n = chance(g, 45) ? some_mesh_axes(g, 3, &to) : 0;
        if (n && g->sample && strcmp(g->axis[order[i]], g->sample) == 0)
            g->rows = to;
        if (n && is_attended(g, g->axis[order[i]]))
            g->keys = nd_strndup(g->arena, to.s, 1);
        if (n)
            nd_putf(&g->out, n > 1 ? "%s %s -> (%s)" : "%s %s -> %s",
                    rules++ ? "," : "  shard", g->axis[order[i]], to.s);
    }
    nd_put(&g->out, rules ? "\n" : "");
}

/* Over what cuts the samples, which is always legal, or over anything. */
static void zero(gen *g)
{
    nd_buf over = {.arena = g->arena};
    if (g->rows.n && chance(g, 85))
        nd_put(&over, g->rows.s);
    else if (!chance(g, 10) || !some_mesh_axes(g, 2, &over))
        return;
    g->zero = true;
    nd_putf(&g->out, "  zero %d over %s\n", 1 + below(g, 3), over.s);
}

/* A rule for what is stored; beside zero it would be refused. */
static void scoped(gen *g)
{
    static const char *const scope[] = {"params", "grads", "optimizer",
                                        "\"*w*\""};
    const char *axis = g->naxes ? g->axis[below(g, g->naxes)] : "";
    if (!g->zero && g->rows.n && is_stored(g, axis))
        nd_putf(&g->out, "  shard %s %s -> (%s)\n", scope[below(g, 4)], axis,
                g->rows.s);
}

static void context(gen *g)
{
    static const char *const how[] = {"ring", "ring zigzag", "all_to_all",
                                      "gather", "auto"};
    if (g->keys)
        nd_putf(&g->out, "  context %s over %s\n", how[below(g, 5)], g->keys);
}

static void recompute(gen *g)
{
    if (g->stages >= 0 && chance(g, 50))
        nd_putf(&g->out, "  recompute auto(%d)\n", 8000 << below(g, 6));
    else
        nd_putf(&g->out, "  recompute %s\n",
                chance(g, 50) ? "block" : "attention");
}

/* In this order: no rule may cut by the mesh axis of the stages. */
static const struct {
    void (*say)(gen *g);
    int percent;
} lines[] = {
    {mesh, 100}, {pipeline, 25}, {microbatches, 22}, {shard, 100}, {zero, 35},
    {scoped, 40}, {context, 50}, {recompute, 40},
};

static void only_errors(void *user, nd_severity s, const char *text)
{
    (void)user;
    if (s == ND_ERROR)
        fputs(text, stderr);
}

int main(int argc, char **argv)
{
    bool pipelines = argc == 5 && strcmp(argv[3], "--pipelines") == 0;
    if ((argc != 4 && !pipelines) || strcmp(argv[1], "--seed") != 0) {
        fprintf(stderr, "usage: nd_plans --seed N [--pipelines] FILE\n");
        return 2;
    }
    nd_ctx *c = nd_ctx_new();
    c->sink = only_errors;
    gen g = {.arena = c->arena, .out = {.arena = c->arena},
             .state = strtoull(argv[2], NULL, 10) * 104729,
             .pipelines = pipelines};
    bool ok = read_program(&g, c, argv[argc - 1]);
    nd_put(&g.out, g.nset ? "#" : "# no --set");
    for (int i = 0; i < g.nset; i++)
        nd_putf(&g.out, " --set %s", g.set[i]);
    nd_put(&g.out, "\nplan {\n");
    for (size_t i = 0; ok && i < sizeof lines / sizeof *lines; i++)
        if (chance(&g, lines[i].percent) ||
            (pipelines && lines[i].say == pipeline))
            lines[i].say(&g);
    if (ok)
        printf("%s}\n", g.out.s);
    nd_ctx_free(c);
    return !ok;
}
