/* emit_header.c - the comment at the top of the generated file: the plan, in
 * the words of the source.
 */
#include "codegen.h"

#include <string.h>

static void put_mesh(cg *g, nd_buf *b)
{
    const nd_mesh *m = &g->m->mesh;
    nd_putf(b, " *   mesh          ");
    for (int i = 0; i < m->micro; i++)
        nd_putf(b, "%s%s = %d", i ? ", " : "", m->name[i], m->size[i]);
    nd_putf(b, "%s%d rank%s\n", m->micro ? ": " : "", nd_mesh_ranks(m),
            nd_mesh_ranks(m) == 1 ? "" : "s");
}

/* Passes add rules for axes of their own; `--mesh dp=2` alone stands for one
 * of the samples. */
static bool is_written(const cg *g, const nd_rule *r)
{
    return r->loc.file || r->axis == g->m->sample;
}

static void put_rules(cg *g, nd_buf *b)
{
    const nd_plan *p = &g->m->plan;
    nd_buf t = {.arena = g->a};
    for (int i = 0; i < p->rules.n; i++) {
        const nd_rule *r = &p->rules.v[i];
        static const char *const scope[] = {"", "params ", "grads ",
                                            "optimizer ", ""};
        if (!is_written(g, r))
            continue;
        nd_putf(&t, "%s%s", t.n ? ", " : "", scope[r->scope]);
        if (r->scope == SCOPE_NAME)
            nd_putf(&t, "\"%s\" ", r->pattern);
        nd_putf(&t, "%s -> %s", r->axis->name, r->mesh.n > 1 ? "(" : "");
        for (int j = 0; j < r->mesh.n; j++)
            nd_putf(&t, "%s%s", j ? ", " : "", g->m->mesh.name[r->mesh.m[j]]);
        nd_put(&t, r->mesh.n > 1 ? ")" : "");
    }
    if (t.n)
        nd_putf(b, " *   shard         %s\n", t.s);
}

/* What pass `context` made of each attention whose sequence is cut. */
static void put_attention(cg *g, nd_buf *b)
{
    const nd_plan *p = &g->m->plan;
    for (int i = 0; i < p->chosen.n; i++)
        nd_putf(b, " *   attention     %s: %s\n", p->chosen.v[i].path,
                p->chosen.v[i].text);
}

const char *const cg_remat_names[] = {[REMAT_NONE] = "none",
                                      [REMAT_ATTENTION] = "attention",
                                      [REMAT_BLOCK] = "block"};

static void put_recompute(cg *g, nd_buf *b)
{
    const nd_plan *p = &g->m->plan;
    const char *sep = "; forward again on stages ";
    nd_buf t = {.arena = g->a};
    for (int s = 0; s < p->nagain; s++)
        if (p->again[s]) {
            nd_putf(&t, "%s%d", sep, s);
            sep = ", ";
        }
    if (p->recompute != REMAT_NONE || t.n)
        nd_putf(b, " *   recompute     %s%s\n", cg_remat_names[p->recompute],
                t.n ? t.s : "");
}

static void put_stages(cg *g, nd_buf *b)
{
    const nd_program *p = g->m->program;
    nd_putf(b, " *   microbatches  %d\n", p->nmicro);
    if (p->nstages < 2)
        return;
    nd_put(b, " *   pipeline      ");
    for (int i = 0; i < g->m->plan.piped.n; i++)
        nd_putf(b, "%s%s", i ? ", " : "", g->m->plan.piped.v[i]->name);
    nd_putf(b, " -> %s, %s, stages", g->m->mesh.name[g->m->mesh.pipe],
            cg_schedule_name(g->m));
    for (int s = 0; s < p->nstages; s++) {
        int n = 0;
        for (int i = 0; i < g->m->plan.piped.n; i++)
            n += p->stage[s].iters[i].hi - p->stage[s].iters[i].lo;
        nd_putf(b, "%s %d", s ? "," : "", n);
    }
    nd_put(b, "\n");
    cg_put_searched(g->m, " *   ", b);
}

static void put_parameters(cg *g, nd_buf *b)
{
    int64_t n = 0;
    for (int i = 0; i < g->m->params.n; i++)
        n += nd_numel(&g->m->params.v[i]->value->type);
    nd_putf(b, " *   parameters    %lld in %d tensor%s\n", (long long)n,
            g->m->params.n, g->m->params.n == 1 ? "" : "s");
}

static void put_memory(cg *g, nd_buf *b)
{
    const nd_program *p = g->m->program;
    for (int d = 0; d < p->ndevices; d++) {
        const nd_device_mem *m = &g->c->mem.device[d];
        nd_putf(b, " *   %-13s %zu bytes per rank: weights %zu,\n"
                   " *                 gradients %zu, optimizer %zu, inputs "
                   "%zu,\n *                 saved %zu, temporary %zu\n",
                p->ndevices == 1 ? "memory"
                                 : nd_fmt(g->a, "device %d", d),
                m->arena_bytes, m->weight_bytes, m->grad_bytes, m->state_bytes,
                m->input_bytes, m->saved_bytes, m->temp_bytes);
        if (m->lent_bytes)
            nd_putf(b, " *                 of those saved, in the place of "
                       "gradients %zu\n", m->lent_bytes);
        if (m->tile_bytes)
            nd_putf(b, " *                 beside it, for tiles of each "
                       "thread, %zu\n", m->tile_bytes);
        if (m->older_bytes)
            nd_putf(b, " *                 older weights %zu\n",
                    m->older_bytes);
    }
}

void cg_emit_header(cg *g, nd_buf *b)
{
    nd_putf(b, "/* %s, compiled by ndc. One rank of the program; the runtime "
               "(libndrt) runs the\n * ranks as threads, or one per process "
               "under mpirun.\n *\n", g->m->name);
    put_mesh(g, b);
    put_rules(g, b);
    put_attention(g, b);
    put_stages(g, b);
    if (g->m->plan.zero)
        nd_putf(b, " *   zero          %d over %s\n", g->m->plan.zero,
                cg_mesh_names(g, g->m->plan.zero_mesh, ", "));
    put_recompute(g, b);
    put_parameters(g, b);
    put_memory(g, b);
    nd_put(b, " *\n * Activations are packed by the rank's own lengths r->n"
              "[X_...]; parameters and\n * inputs are spaced by those of the "
              "largest rank. r->off[X_...] is the global\n * index of the "
              "first element.\n */\n");
}
