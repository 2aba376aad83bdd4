/* emit_places.c - names of extents, parameters, groups and buffers, where each
 * lies in the arena, and the few functions that look there.
 */
#include "codegen.h"

#include <string.h>

enum { MAX_BESIDE = 36 };            /* characters of a name and its type */

const char *cg_place(cg *g, size_t x)
{
    return x == (size_t)-1 ? "NDRT_NONE" : nd_fmt(g->a, "%zu", x);
}

/* ---- names -------------------------------------------------------------- */

static void enum_of(nd_buf *b, const char *comment, const char *const *names,
                    int n)
{
    if (!n)
        return;
    nd_putf(b, "/* %s */\nenum {\n", comment);
    for (int i = 0; i < n; i++)
        nd_putf(b, "    %s,\n", names[i]);
    nd_put(b, "};\n\n");
}

typedef ND_VEC(const char *) words;

void cg_emit_enums(cg *g, nd_buf *b)
{
    words x = {0}, p = {0}, v = {0}, q = {0};
    for (int i = 0; i < g->c->exts.n; i++)
        if (g->ext_used[i])
            ND_PUSH(g->a, &x, g->ext_name[i]);
    enum_of(b, "Extents: an axis and the mesh axes that cut it.", x.v, x.n);
    for (int i = 0; i < g->m->params.n; i++)
        ND_PUSH(g->a, &p, g->param_name[i]);
    enum_of(b, "Parameters.", p.v, p.n);
    for (int i = 0; i < g->groups.n; i++)
        ND_PUSH(g->a, &q, g->group_name.v[i]);
    enum_of(b, "Groups: ranks that differ along these mesh axes only.", q.v,
            q.n);
    enum_of(b, "Calls in flight.", g->ticket_name.v, g->ticket_name.n);
    for (int i = 0; i < g->c->nvalues; i++)
        if (g->buffer_used[i])
            ND_PUSH(g->a, &v, nd_fmt(g->a, "B_%s", g->value_name[i]));
    if (g->m->loss)
        ND_PUSH(g->a, &v, "B_loss");
    enum_of(b, "Buffers.", v.v, v.n);
}

static int count_buffers(const cg *g)
{
    int n = g->m->loss != NULL;
    for (int i = 0; i < g->c->nvalues; i++)
        n += g->buffer_used[i];
    return n;
}

/* ---- places ------------------------------------------------------------- */

static void stage_places(cg *g, nd_buf *b, int s)
{
    const nd_stage_mem *mem = &g->c->mem.stage[s];
    nd_putf(b, "    [%d] = {\n", s);
    for (int i = 0; i < g->c->nvalues; i++) {
        const nd_value *v = g->c->info[i].v;
        const nd_place *p =
            g->buffer_used[i] ? nd_place_of(mem, v) : NULL;
        if (!p)
            continue;
        const char *left = nd_fmt(g->a, "[B_%s] = {%d, %zu},",
                                  g->value_name[i], p->room, p->base);
        const char *type = cg_type(g, &v->type);
        /* Where the comment stands must not depend on the numbers' width. */
        if (strlen(g->value_name[i]) + strlen(type) <= MAX_BESIDE)
            nd_putf(b, "        %s /* %s */\n", left, type);
        else
            nd_putf(b, "        /* %s */\n        %s\n", type, left);
    }
    if (nd_has_loss(g->m, s))
        nd_putf(b, "        [B_loss] = {0, %zu},\n",
                g->c->mem.device[g->m->program->stage[s].device].loss);
    nd_put(b, "    },\n");
}

/* Of a stacked parameter, how many floats before the stage's own iterations are
 * those of other stages of its device. */
static size_t floats_before(const cg *g, int s, const nd_type *t)
{
    size_t at = 0;
    for (int i = 0; i < t->rank; i++) {
        const nd_ext *e = &g->c->exts.v[nd_ext_of(g->c, t, i)];
        at = at * (size_t)nd_param_cap(g->c, t, i) +
             (size_t)(e->piped ? nd_range_at(g->m, s, e->axis) : 0);
    }
    return at;
}

static size_t param_place(const cg *g, int s, int param, bool grad)
{
    const nd_memplan *all = &g->c->mem;
    const nd_stage *st = &g->m->program->stage[s];
    const nd_device_mem *mem = &all->device[st->device];
    const nd_param *q = g->m->params.v[param];
    for (int i = 0; i < mem->buckets.n && nd_stage_has(st, q); i++) {
        const nd_bucket_place *p = &mem->buckets.v[i];
        size_t base = grad ? p->grads : p->weights;
        if (p->bucket != all->bucket_of[param])
            continue;
        size_t at = all->buckets.v[p->bucket].at.v[all->member_of[param]] +
                    floats_before(g, s, &q->value->type);
        return base == (size_t)-1 ? base : base + 4 * at;
    }
    return (size_t)-1;
}

static void param_places(cg *g, nd_buf *b, const char *name, bool grad)
{
    const nd_program *p = g->m->program;
    if (!g->m->params.n)
        return;
    nd_putf(b, "static const size_t %s[%d][%d] = {\n", name, p->nstages,
            g->m->params.n);
    for (int s = 0; s < p->nstages; s++) {
        nd_putf(b, "    [%d] = {\n", s);
        for (int i = 0; i < g->m->params.n; i++)
            nd_putf(b, "        [%s] = %s,\n", g->param_name[i],
                    cg_place(g, param_place(g, s, i, grad)));
        nd_put(b, "    },\n");
    }
    nd_put(b, "};\n\n");
}

static void helper(nd_buf *b, const char *name, const char *base,
                   const char *table)
{
    nd_putf(b,
            "static float *%s(const ndrt_rank *r, int p)\n{\n"
            "    return (float *)(r->%s + %s[r->stage][p]);\n}\n\n",
            name, base, table);
}

/* A function's head: its name and parameters. */
static void put_signature(nd_buf *b, bool start, const char *name,
                          const char *params)
{
    nd_buf s = {.arena = b->arena};
    nd_putf(&s, "static void %s%s(ndrt_rank *r, %s%s)", start ? "start_" : "",
            name, start ? "int ticket, " : "", params);
    cg_fold(b, 0, s.s);
    nd_put(b, "{\n");
}

static void put_call(nd_buf *b, bool start, const char *name, const char *args)
{
    nd_buf s = {.arena = b->arena};
    nd_putf(&s, "ndrt_%s%s(r, %s%s);", start ? "start_" : "", name,
            start ? "ticket, " : "", args);
    cg_fold(b, 4, s.s);
    nd_put(b, "}\n\n");
}

static void put_scatter(nd_buf *b, int most, bool start)
{
    put_signature(b, start, "reduce_scatter",
                  "int group, int extent, const float *x, float *y, int64_t "
                  "outer, int64_t whole, int64_t inner, ndrt_fold_kind how");
    nd_putf(b, "    int64_t n[%d];\n    ndrt_pieces(r, group, extent, n);\n",
            most);
    put_call(b, start, "reduce_scatter",
             "group, x, whole * inner, y, r->n[extent] * inner, outer, n, "
             "inner, how");
}

static void put_gather(nd_buf *b, int most, bool start)
{
    put_signature(b, start, "all_gather",
                  "int group, int extent, const float *x, float *y, int64_t "
                  "outer, int64_t whole, int64_t inner");
    nd_putf(b, "    int64_t n[%d];\n    ndrt_pieces(r, group, extent, n);\n",
            most);
    put_call(b, start, "all_gather",
             "group, x, r->n[extent] * inner, y, whole * inner, outer, n, "
             "inner");
}

static void put_exchange(nd_buf *b, int most, bool start)
{
    put_signature(b, start, "all_to_all",
                  "int group, int first, int second, const void *x, void *y, "
                  "int64_t outer, int64_t mid, int64_t inner, bool "
                  "joins_first");
    nd_putf(b, "    int64_t p[%d], q[%d];\n"
               "    ndrt_pieces(r, group, first, p);\n"
               "    ndrt_pieces(r, group, second, q);\n", most, most);
    put_call(b, start, "all_to_all",
             "group, x, y, outer, p, mid, q, inner, joins_first");
}

/* What a collective over pieces needs besides the buffers. */
static void put_helpers(cg *g, nd_buf *b)
{
    int most = nd_mesh_ranks(&g->m->mesh);
    for (int start = 0; start < 2; start++) {
        if (start ? g->starts_scatter : g->uses_scatter)
            put_scatter(b, most, start);
        if (start ? g->starts_gather : g->uses_gather)
            put_gather(b, most, start);
        if (start ? g->starts_exchange : g->uses_exchange)
            put_exchange(b, most, start);
    }
}

void cg_emit_places(cg *g, nd_buf *b)
{
    const nd_program *p = g->m->program;
    int n = count_buffers(g);
    if (n) {
        nd_put(b, "/* Where things lie, by stage: a room, and bytes from its "
                  "start. Room 0 is there\n * once; what a microbatch keeps is "
                  "in the others, where it has a slot. */\n");
        nd_putf(b, "static const ndrt_spot places[%d][%d] = {\n", p->nstages,
                n);
        for (int s = 0; s < p->nstages; s++)
            stage_places(g, b, s);
        nd_put(b, "};\n\n");
    }
    param_places(g, b, "weights_at", false);
    param_places(g, b, "gradients_at", true);
    if (n)
        nd_put(b, "static float *at(const ndrt_rank *r, int buffer)\n{\n"
                  "    const ndrt_spot *p = &places[r->stage][buffer];\n"
                  "    return (float *)(r->room[p->room] + p->at);\n}\n\n");
    if (g->uses_at_stage)
        nd_put(b, "/* The same of another stage of this device. */\n"
                  "static float *at_stage(const ndrt_rank *r, int stage, "
                  "int buffer)\n{\n"
                  "    const ndrt_spot *p = &places[stage][buffer];\n"
                  "    return (float *)(ndrt_room(r, stage, p->room) + p->at);"
                  "\n}\n\n");
    if (g->uses_weight)
        helper(b, "weight", nd_is_stashed(g->m) || nd_is_behind(g->m)
                                ? "weights" : "arena", "weights_at");
    if (g->uses_gradient)
        helper(b, "gradient", "arena", "gradients_at");
    put_helpers(g, b);
}
