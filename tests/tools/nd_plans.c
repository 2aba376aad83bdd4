/* nd_plans.c - random plans for any program.
 *
 *   nd_plans --seed N FILE           prints plan N for the model of FILE, after
 *                                    a line `# --set a=3 ...`: other sizes for
 *                                    some axes, with which it is still legal
 *
 * A mesh of one to four axes and at most twelve ranks; rules for some of the
 * axes that the file declares, in any order, each over one or several mesh axes;
 * perhaps microbatches, a pipeline, zero, recomputation. Axes that follow
 * others (`axis kv = seq`) have rules of their own or not. Sizes divide or not.
 * ndc may refuse the plan: it must say where and why.
 *
 * Each further line of a plan is a function here and a row of `lines`.
 */
#include "../../frontend/frontend.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_AXES = 64, MAX_RANKS = 12, MESH = 4, MAX_SET = 8 };

typedef struct gen {
    nd_arena *arena;
    nd_buf out;
    uint64_t state;
    int naxes;
    const char *axis[MAX_AXES];      /* those that a rule may cut */
    const char *pipe;                /* of an outermost repeat, or NULL */
    int64_t layers;                  /* its size */
    int nset;
    const char *set[MAX_SET];        /* "a=3" */
    bool sample;
    int nmesh, size[MESH], stages;   /* stages: mesh axis, or -1 */
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
        g->pipe = nd_strdup(g->arena, op->axes[0]->name);
        g->layers = op->axes[0]->size;
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
    g->sample = m->sample != NULL;
    return true;
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

static void pipeline(gen *g)
{
    int k = below(g, g->nmesh);
    if (!g->pipe || !g->sample || g->size[k] > g->layers)
        return;
    g->stages = k;
    nd_putf(&g->out, "  pipeline %s -> %s, schedule = %s, microbatches = %d\n",
            g->pipe, mesh_name[k], chance(g, 50) ? "1f1b" : "gpipe",
            1 + below(g, 4));
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
        if (n)
            nd_putf(&g->out, n > 1 ? "%s %s -> (%s)" : "%s %s -> %s",
                    rules++ ? "," : "  shard", g->axis[order[i]], to.s);
    }
    nd_put(&g->out, rules ? "\n" : "");
}

static void zero(gen *g)
{
    nd_buf over = {.arena = g->arena};
    if (some_mesh_axes(g, 2, &over))
        nd_putf(&g->out, "  zero 1 over %s\n", over.s);
}

static void recompute(gen *g)
{
    nd_putf(&g->out, "  recompute %s\n", chance(g, 50) ? "block" : "attention");
}

/* In this order: no rule may cut by the mesh axis of the stages. */
static const struct {
    void (*say)(gen *g);
    int percent;
} lines[] = {
    {mesh, 100}, {pipeline, 25}, {microbatches, 30}, {shard, 100}, {zero, 30},
    {recompute, 40},
};

static void only_errors(void *user, nd_severity s, const char *text)
{
    (void)user;
    if (s == ND_ERROR)
        fputs(text, stderr);
}

int main(int argc, char **argv)
{
    if (argc != 4 || strcmp(argv[1], "--seed") != 0) {
        fprintf(stderr, "usage: nd_plans --seed N FILE\n");
        return 2;
    }
    nd_ctx *c = nd_ctx_new();
    c->sink = only_errors;
    gen g = {.arena = c->arena, .out = {.arena = c->arena},
             .state = strtoull(argv[2], NULL, 10) * 104729};
    bool ok = read_program(&g, c, argv[3]);
    nd_put(&g.out, g.nset ? "#" : "# no --set");
    for (int i = 0; i < g.nset; i++)
        nd_putf(&g.out, " --set %s", g.set[i]);
    nd_put(&g.out, "\nplan {\n");
    for (size_t i = 0; ok && i < sizeof lines / sizeof *lines; i++)
        if (chance(&g, lines[i].percent))
            lines[i].say(&g);
    if (ok)
        printf("%s}\n", g.out.s);
    nd_ctx_free(c);
    return !ok;
}
