/* marks.c - the kernels of a program by name, and where each of them ends.
 *
 *   enum { K_layers_ln1_fwd, K_layers_attn_q_y };
 *   ...
 *   layers_ln1_fwd(x, ..., h);
 *   ndrt_mark(r, K_layers_ln1_fwd);
 *
 * The time from one mark to the next is that of the kernel which the next one
 * names (runtime/profile.c). A loop kernel goes by its function's name, a
 * product or a collective by that of its result. What is in flight is marked
 * where it starts and where it is waited for. Programs that nobody asks for
 * their times have no marks.
 */
#include "codegen.h"

#include <string.h>

static const char *name_of(cg *g, const nd_kernel *k)
{
    const nd_op *op = k->nodes.v[0].op;
    const nd_op *accum = nd_info(g->c, op->out[0])->accum;
    const char *name = accum ? nd_fmt(g->a, "d_%s", accum->param->name)
                             : cg_value_name(g, op->out[0]);
    return cg_unique(&g->marks_taken, name);
}

/* Stages share a loop kernel, which has one name. */
static int add_mark(cg *g, nd_kernel *k, const char *function)
{
    int at = function
                 ? (int)(intptr_t)nd_table_get(&g->mark_named, function) : 0;
    if (!at) {
        const char *name = function ? cg_unique(&g->marks_taken, function)
                                    : name_of(g, k);
        ND_PUSH(g->a, &g->marks, ((cg_mark){.name = name, .k = k}));
        at = g->marks.n;
    }
    if (function)
        nd_table_put(&g->mark_named, function, (void *)(intptr_t)at);
    nd_table_put(&g->mark_of, k, (void *)(intptr_t)at);
    return at;
}

void cg_mark_end(cg_fn *f, nd_kernel *k, const char *name)
{
    cg *g = f->g;
    if (!g->marked)
        return;
    int at = (int)(intptr_t)nd_table_get(&g->mark_of, k);
    if (!at)
        at = add_mark(g, k, name);
    f->uses_rank = true;
    cg_line(f, "ndrt_mark(r, K_%s);", g->marks.v[at - 1].name);
}

/* ---- what is known of them ----------------------------------------------- */

/* stage < 0: a body, which has all iterations of the repeats inside. */
static void count(cg *g, const nd_kernels *list, int stage, int64_t times)
{
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        if (k->kind == K_REPEAT) {
            const nd_op *op = k->nodes.v[0].op;
            int64_t lo, hi;
            cg_range(g, op, stage, &lo, &hi);
            count(g, nd_body_of(g->c, op), -1, times * (hi - lo));
            continue;
        }
        int at = (int)(intptr_t)nd_table_get(&g->mark_of, k);
        if (at)
            g->marks.v[at - 1].calls += times;
    }
}

/* How often a stage runs one of its lists in a step. */
static int64_t runs_of(const cg *g, int stage, int list)
{
    int64_t micro = g->m->program->nmicro;
    bool fresh = nd_is_stashed(g->m) && nd_prepares_weights(g->m, stage);
    if (list == LIST_PRE)
        return fresh ? 1 + 2 * micro : 1;
    return list == LIST_FWD && nd_runs_again(&g->m->plan, stage) ? 2 * micro
                                                                 : micro;
}

void cg_count_marks(cg *g)
{
    for (int i = 0; i < g->marks.n; i++)
        g->marks.v[i].t = nd_kernel_traffic(g->c, g->marks.v[i].k);
    for (int s = 0; s < g->m->program->nstages && g->marked; s++)
        for (int k = 0; k < NLISTS; k++)
            count(g, &g->c->stage[s].list[k], s, runs_of(g, s, k));
}

uint64_t cg_marks_key(const cg *g)
{
    nd_buf b = {.arena = g->a};
    nd_put(&b, g->m->name);
    for (int i = 0; i < g->m->mesh.n; i++)
        nd_putf(&b, " %d", g->m->mesh.size[i]);
    for (int i = 0; i < g->marks.n; i++) {
        const cg_mark *m = &g->marks.v[i];
        nd_putf(&b, "\n%s %lld %.0f %.0f %.0f", m->name, (long long)m->calls,
                m->t.read, m->t.written, m->t.flops);
    }
    return nd_hash(b.s);
}

/* ---- the text ------------------------------------------------------------ */

void cg_emit_marks(cg *g, nd_buf *b)
{
    if (!g->marks.n)
        return;
    nd_put(b, "/* Kernels, by the names that a profile has. */\nenum {\n");
    for (int i = 0; i < g->marks.n; i++)
        nd_putf(b, "    K_%s,\n", g->marks.v[i].name);
    nd_put(b, "};\n\nstatic const char *const marks[] = {\n");
    for (int i = 0; i < g->marks.n; i++)
        nd_putf(b, "    [K_%s] = \"%s\",\n", g->marks.v[i].name,
                g->marks.v[i].name);
    nd_put(b, "};\n\n");
}
