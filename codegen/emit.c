/* emit.c - the C file as a whole.
 *
 * Functions are written first, because they say which extents, buffers and
 * groups have to have names; then everything is put in reading order: the plan
 * as a comment, names, places, kernels and the functions that call them, then
 * tables and main.
 */
#include "codegen.h"

#include <string.h>

/* What emit_places.c, emit_calls.c and emit_tables.c define at file scope. */
static void take_file_names(cg *g)
{
    static const char *const fixed[] = {
        "at", "at_stage", "weight", "gradient", "places", "weights_at",
        "gradients_at", "reduce_scatter", "all_gather", "all_to_all",
        "start_reduce_scatter", "start_all_gather", "start_all_to_all",
        "mesh_name", "mesh_size", "groups", "extents", "stage_bounds",
        "params", "buckets", "inputs", "outputs", "ranges", "metrics",
        "stages", "devices", "schedule", "program", "marks",
    };
    static const char *const by_stage[] = {
        "prepare", "forward", "backward", "backward_input", "backward_weights",
        "send_forward", "send_backward", "receive_forward", "receive_backward",
        "take_forward", "give_backward", "outputs_at",
    };
    static const char *const by_device[] = {"buckets_at", "inputs_at",
                                            "cleared"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        cg_take(&g->global, fixed[i]);
    for (int s = 0; s < g->m->program->nstages; s++)
        for (size_t i = 0; i < sizeof by_stage / sizeof *by_stage; i++)
            cg_take(&g->global, nd_fmt(g->a, "%s%s", cg_stage_prefix(g, s),
                                       by_stage[i]));
    for (int d = 0; d < g->m->program->ndevices; d++)
        for (size_t i = 0; i < sizeof by_device / sizeof *by_device; i++)
            cg_take(&g->global, nd_fmt(g->a, "%s%s", cg_device_prefix(g, d),
                                       by_device[i]));
    for (int i = 0; i < g->c->mem.buckets.n; i++)
        cg_take(&g->global, nd_fmt(g->a, "bucket%d", i));
}

static cg *start(nd_module *m, unsigned how)
{
    cg *g = ND_NEW(m->ctx->arena, cg);
    g->marked = how & CG_MARKS;
    g->llvm = how & CG_LLVM;
    g->m = m;
    g->a = m->ctx->arena;
    g->c = nd_code_new(m);
    g->global.arena = g->buffers.arena = g->groups_taken.arena = g->a;
    g->tickets_taken.arena = g->marks_taken.arena = g->a;
    g->mark_of.arena = g->mark_named.arena = g->a;
    g->mark_named.strings = true;
    g->kernels.arena = g->bodies.arena = g->aheads.arena = g->a;
    g->value_name = ND_NEWN(g->a, const char *, g->c->nvalues + 1);
    g->buffer_used = ND_NEWN(g->a, bool, g->c->nvalues + 1);
    g->param_name = ND_NEWN(g->a, const char *, m->params.n + 1);
    cg_names names = {.arena = g->a};
    for (int i = 0; i < m->params.n; i++)
        g->param_name[i] = nd_fmt(
            g->a, "P_%s", cg_unique(&names, m->params.v[i]->name));
    cg_name_extents(g);
    cg_name_axes(g);
    take_file_names(g);
    cg_take(&g->buffers, "loss");
    return g;
}

/* The tables name extents that no function needed. */
static void name_table_extents(cg *g)
{
    for (int i = 0; i < g->m->params.n; i++)
        for (int k = 0; k < g->m->params.v[i]->value->type.rank; k++)
            cg_ext(g, nd_ext_of(g->c, &g->m->params.v[i]->value->type, k));
    for (int i = 0; i < g->m->inputs.n; i++)
        for (int k = 0; k < g->m->inputs.v[i]->type.rank; k++)
            cg_ext(g, nd_ext_of(g->c, &g->m->inputs.v[i]->type, k));
    for (int i = 0; i < g->m->outputs.n; i++)
        for (int k = 0; k < g->m->outputs.v[i]->in[0]->type.rank; k++)
            cg_ext(g, nd_ext_of(g->c, &g->m->outputs.v[i]->in[0]->type, k));
}

/* Where LLVM makes the loops, the C compiler is told not to try hard with what
 * is left: calls, and the products of tiles, which need it. */
static void put_includes(const cg *g, nd_buf *out)
{
    bool small = g->small || g->small_bf16;
    bool harder = small && g->llvm;
    nd_put(out, "#include <ndrt.h>\n#include <ndrt_math.h>\n");
    if (harder)
        nd_put(out, "#pragma GCC push_options\n"
                    "#pragma GCC optimize (\"O3\")\n");
    if (small)
        nd_put(out, "#include <ndrt_small.h>\n");
    if (harder)
        nd_put(out, "#pragma GCC pop_options\n");
    nd_put(out, "\n");
}

cg *cg_emit(nd_module *m, unsigned how, nd_buf *out)
{
    cg *g = start(m, how);
    nd_buf code = {.arena = g->a};
    g->out = &code;
    if (!nd_buckets_check(g->c) || !nd_extents_check(g->c) ||
        !nd_overlap_check(g->c) || !nd_first_check(g->c) ||
        !nd_rooms_check(g->c) || !nd_places_check(g->c) ||
        !nd_lend_check(g->c) || !nd_memory_check(g->c))
        return NULL;
    for (int s = 0; s < m->program->nstages; s++)
        cg_emit_stage(g, s);
    cg_count_marks(g);
    name_table_extents(g);
    cg_emit_header(g, out);
    put_includes(g, out);
    nd_put(out, "#ifdef __clang__             /* not every loop has a vector "
                "form */\n"
                "#pragma clang diagnostic ignored \"-Wpass-failed\"\n"
                "#endif\n\n");
    cg_emit_enums(g, out);
    cg_emit_marks(g, out);
    cg_emit_places(g, out);
    nd_put(out, code.s ? code.s : "");
    cg_emit_tables(g, out);
    return g;
}

bool cg_emit_c(nd_module *m, nd_buf *out)
{
    return cg_emit(m, 0, out) != NULL;
}

bool cg_emit_marked(nd_module *m, nd_buf *out)
{
    return cg_emit(m, CG_MARKS, out) != NULL;
}

#ifdef NDC_LLVM_LIB
bool cg_emit_llvm(nd_module *m, bool marks, cg_llvm_form form,
                  const cg_target_cpu *cpu, nd_buf *c, nd_buf *out)
{
    cg *g = cg_emit(m, CG_LLVM | (marks ? CG_MARKS : 0), c);
    return g && cg_llvm(g, form, cpu, out);
}
#else
bool cg_emit_llvm(nd_module *m, bool marks, cg_llvm_form form,
                  const cg_target_cpu *cpu, nd_buf *c, nd_buf *out)
{
    (void)marks, (void)form, (void)cpu, (void)c, (void)out;
    nd_error(m->ctx, nd_nowhere, "this ndc was built without LLVM: it has no "
             "--kernels=llvm, --emit=llvm and --emit=asm");
    return false;
}
#endif
