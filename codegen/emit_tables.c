/* emit_tables.c - the tables that the runtime reads: extents, parameters,
 * buckets, inputs, devices, stages, the schedule, and `program`.
 */
#include "codegen.h"

#include <string.h>

static const char *bool_of(bool x)
{
    return x ? "true" : "false";
}

/* ---- mesh, extents, parameters ------------------------------------------ */

/* Where the stages' iterations of an axis begin. */
static const char *bounds_name(cg *g, const nd_ext *e)
{
    return g->m->plan.piped.n == 1 ? "stage_bounds"
           : nd_fmt(g->a, "stage_bounds_%s", cg_word(g->a, e->axis->name));
}

static void emit_extents(cg *g, nd_buf *b)
{
    const nd_program *p = g->m->program;
    for (int i = 0; i < g->c->exts.n; i++) {
        if (!g->ext_used[i] || !g->c->exts.v[i].piped)
            continue;
        int64_t lo, hi = 0;
        nd_putf(b, "static const int64_t %s[] = {",
                bounds_name(g, &g->c->exts.v[i]));
        for (int s = 0; s < p->nstages; s++) {
            nd_stage_range(g->m, s, g->c->exts.v[i].axis, &lo, &hi);
            nd_putf(b, "%lld, ", (long long)lo);
        }
        nd_putf(b, "%lld};\n\n", (long long)hi);
    }
    nd_put(b, "static const ndrt_extent extents[] = {\n");
    for (int i = 0; i < g->c->exts.n; i++) {
        const nd_ext *e = &g->c->exts.v[i];
        if (!g->ext_used[i])
            continue;
        nd_type t = {.rank = 1, .axis = {e->axis}, .cut = {e->cut}};
        const char *name = cg_type(g, &t);
        const char *open = strchr(name, '[');
        nd_buf w = {.arena = g->a};
        nd_putn(&w, open + 1, strlen(open) - 2);
        if (e->piped)
            nd_putf(&w, "/%s", g->m->mesh.name[g->m->mesh.pipe]);
        nd_putf(b, "    [%s] = {%s, %lld, %d, {", g->ext_name[i],
                cg_text_of(g, w.s), (long long)e->axis->size,
                e->piped ? 1 : e->cut.n);
        if (e->piped)
            nd_putf(b, "%d", g->m->mesh.pipe);
        for (int j = 0; j < e->cut.n; j++)
            if (e->cut.m[j] == g->m->mesh.micro)
                nd_putf(b, "%sNDRT_MICRO", j ? ", " : "");
            else
                nd_putf(b, "%s%d", j ? ", " : "", e->cut.m[j]);
        if (!e->cut.n && !e->piped)
            nd_put(b, "0");
        nd_putf(b, "}, %s},\n", e->piped ? bounds_name(g, e) : "NULL");
    }
    nd_put(b, "};\n\n");
}

static void list_shape(cg *g, nd_buf *b, const nd_type *t, bool param)
{
    nd_put(b, "{");
    for (int k = 0; k < t->rank; k++)
        nd_putf(b, "%s%s", k ? ", " : "", cg_ext(g, nd_ext_of(g->c, t, k)));
    nd_put(b, t->rank ? "}, {" : "0}, {");
    for (int k = 0; k < t->rank; k++)
        nd_putf(b, "%s%lld", k ? ", " : "",
                (long long)(param ? nd_param_cap(g->c, t, k)
                                  : g->c->exts.v[nd_ext_of(g->c, t, k)].max));
    nd_put(b, t->rank ? "}" : "0}");
}

static void emit_params(cg *g, nd_buf *b)
{
    static const char *const init[] = {"ZEROS", "ONES", "CONST", "NORMAL",
                                       "UNIFORM", "XAVIER", "KAIMING"};
    if (!g->m->params.n)
        return;
    nd_put(b, "static const ndrt_param params[] = {\n");
    for (int i = 0; i < g->m->params.n; i++) {
        const nd_param *p = g->m->params.v[i];
        int in = g->c->mem.bucket_of[i];
        uint32_t devices = in < 0 ? 0 : g->c->mem.buckets.v[in].devices;
        nd_buf s = {.arena = g->a};
        nd_putf(&s, "[%s] = {%s, %d, ", g->param_name[i],
                cg_text_of(g, p->name), p->value->type.rank);
        list_shape(g, &s, &p->value->type, true);
        nd_put(&s, ",");
        cg_fold(b, 4, s.s);
        s = (nd_buf){.arena = g->a};
        nd_putf(&s, "%d, {", p->nlayers);
        for (int k = 0; k < p->nlayers; k++)
            nd_putf(&s, "%s%d", k ? ", " : "", p->layer[k].at);
        nd_putf(&s, "%s}, NDRT_INIT_%s, %s, %lld, %lld, %s, %s, 0x%x, %s, %d, "
                    "%s},",
                p->nlayers ? "" : "0", init[p->init],
                cg_real(g, p->init_arg), (long long)p->fan_in,
                (long long)p->fan_out, bool_of(p->decay), bool_of(p->frozen),
                (unsigned)devices, bool_of(p->muon), p->lead + p->nlayers,
                bool_of(p->load));
        cg_fold(b, 8, s.s);
    }
    nd_put(b, "};\n\n");
}

static void emit_buckets(cg *g, nd_buf *b)
{
    const nd_memplan *mem = &g->c->mem;
    for (int i = 0; i < mem->buckets.n; i++) {
        nd_buf s = {.arena = g->a};
        nd_putf(&s, "static const int bucket%d[] = {", i);
        for (int k = 0; k < mem->buckets.v[i].params.n; k++)
            nd_putf(&s, "%s%s", k ? ", " : "",
                    g->param_name[mem->buckets.v[i].params.v[k]->index]);
        nd_put(&s, "};");
        cg_fold(b, 0, s.s);
    }
    if (!mem->buckets.n)
        return;
    nd_put(b, "\n/* Count, members, floats; mesh axes (bits): gradient "
              "pending, cut, state cut;\n * devices; weight decay, frozen, "
              "muon. */\nstatic const ndrt_bucket buckets[] = {\n");
    for (int i = 0; i < mem->buckets.n; i++) {
        const nd_bucket *k = &mem->buckets.v[i];
        nd_putf(b, "    {%d, bucket%d, %zu, 0x%x, 0x%x, 0x%x, 0x%x, %s, %s, "
                   "%s},\n", k->params.n, i, k->n, k->sum, k->cut, k->zero,
                k->devices, bool_of(k->decay), bool_of(k->frozen),
                bool_of(k->muon));
    }
    nd_put(b, "};\n\n");
}

static const char *dtype_word(nd_dtype t)
{
    return t == ND_I32 ? "NDRT_I32" : t == ND_BOOL ? "NDRT_BOOL" : "NDRT_F32";
}

static void tensor(cg *g, nd_buf *b, const char *name, const nd_type *t)
{
    nd_buf s = {.arena = g->a};
    nd_putf(&s, "{%s, %s, %d, {", cg_text_of(g, name), dtype_word(t->dtype),
            t->rank);
    for (int k = 0; k < t->rank; k++)
        nd_putf(&s, "%s%s", k ? ", " : "", cg_text_of(g, t->axis[k]->name));
    nd_put(&s, t->rank ? "}, " : "0}, ");
    list_shape(g, &s, t, false);
    nd_put(&s, "},");
    cg_fold(b, 4, s.s);
}

static bool has_integers(const cg *g)
{
    for (int i = 0; i < g->m->inputs.n; i++)
        if (g->m->inputs.v[i]->type.dtype == ND_I32)
            return true;
    return false;
}

static void emit_ranges(cg *g, nd_buf *b)
{
    if (!has_integers(g))
        return;
    nd_put(b, "/* Integers that the data may hold: [0, limit), ignored. */\n"
              "static const ndrt_range ranges[] = {\n");
    for (int i = 0; i < g->m->inputs.n; i++) {
        nd_range r = nd_range_of(g->m, g->m->inputs.v[i]);
        nd_putf(b, "    {%lld, %lld},\n", (long long)r.limit,
                (long long)r.ignore);
    }
    nd_put(b, "};\n\n");
}

static void emit_tensors(cg *g, nd_buf *b)
{
    if (g->m->inputs.n)
        nd_put(b, "static const ndrt_tensor inputs[] = {\n");
    for (int i = 0; i < g->m->inputs.n; i++)
        tensor(g, b, g->m->inputs.v[i]->def->name, &g->m->inputs.v[i]->type);
    if (g->m->inputs.n)
        nd_put(b, "};\n\n");
    if (g->m->outputs.n)
        nd_put(b, "static const ndrt_tensor outputs[] = {\n");
    for (int i = 0; i < g->m->outputs.n; i++)
        tensor(g, b, g->m->outputs.v[i]->name,
               &g->m->outputs.v[i]->in[0]->type);
    if (g->m->outputs.n)
        nd_put(b, "};\n\n");
}

/* ---- devices ------------------------------------------------------------ */

/* Where an input lies on a device: in the same place for all its stages. */
static size_t input_place(cg *g, int device, const nd_value *v)
{
    const nd_program *p = g->m->program;
    for (int s = 0; s < p->nstages; s++) {
        const nd_place *at = nd_place_of(&g->c->mem.stage[s], v);
        if (p->stage[s].device == device && at)
            return at->base;
    }
    return (size_t)-1;
}

/* Parameters whose gradients a step clears; the others are written first. */
static void put_cleared(cg *g, nd_buf *b, const nd_device_mem *mem,
                        const char *pre)
{
    nd_buf s = {.arena = g->a};
    nd_putf(&s, "static const int %scleared[] = {", pre);
    for (int i = 0; i < mem->cleared.n; i++)
        nd_putf(&s, "%s%s", i ? ", " : "",
                g->param_name[mem->cleared.v[i]]);
    nd_put(&s, "};");
    if (mem->cleared.n)
        cg_fold(b, 0, s.s);
    if (mem->cleared.n)
        nd_put(b, "\n");
}

static void device_arrays(cg *g, nd_buf *b, int d)
{
    const nd_device_mem *mem = &g->c->mem.device[d];
    const char *pre = cg_device_prefix(g, d);
    nd_buf t = {.arena = g->a};
    if (mem->buckets.n)
        nd_putf(b, "static const ndrt_place %sbuckets_at[] = {\n", pre);
    for (int i = 0; i < mem->buckets.n; i++) {
        const nd_bucket_place *p = &mem->buckets.v[i];
        nd_putf(b, "    {%d, %zu, %s, %s, %s},\n", p->bucket, p->weights,
                cg_place(g, p->grads), cg_place(g, p->state1),
                cg_place(g, p->state2));
    }
    if (mem->buckets.n)
        nd_put(b, "};\n");
    put_cleared(g, b, mem, pre);
    nd_putf(&t, "static const size_t %sinputs_at[] = {", pre);
    for (int i = 0; i < g->m->inputs.n; i++)
        nd_putf(&t, "%s%s", i ? ", " : "",
                cg_place(g, input_place(g, d, g->m->inputs.v[i])));
    nd_put(&t, "};");
    if (g->m->inputs.n)
        cg_fold(b, 0, t.s);
    nd_put(b, "\n");
}

static void device_row(cg *g, nd_buf *b, int d)
{
    const nd_device_mem *mem = &g->c->mem.device[d];
    const char *pre = cg_device_prefix(g, d);
    nd_putf(b, "    [%d] = {\n        .fixed_bytes = %zu,\n"
               "        .temp_bytes = %zu,\n", d, mem->fixed_bytes,
            mem->temp_bytes);
    if (mem->buckets.n)
        nd_putf(b, "        .nplaces = %d,\n        .places = %sbuckets_at,\n",
                mem->buckets.n, pre);
    if (g->m->inputs.n)
        nd_putf(b, "        .inputs = %sinputs_at,\n", pre);
    if (mem->cleared.n)
        nd_putf(b, "        .ncleared = %d,\n        .cleared = %scleared,\n",
                mem->cleared.n, pre);
    nd_putf(b, "        .loss = %s,\n", cg_place(g, mem->loss));
    if (mem->work_bytes)
        nd_putf(b, "        .work = %zu,\n        .work_bytes = %zu,\n",
                mem->work, mem->work_bytes);
    if (mem->scratch_bytes)
        nd_putf(b, "        .scratch = %zu,\n        .scratch_bytes = %zu,\n",
                mem->scratch, mem->scratch_bytes);
    if (mem->tile_bytes)
        nd_putf(b, "        .tile_bytes = %zu,\n", mem->tile_bytes);
    if (mem->version_bytes)
        nd_putf(b, "        .version_bytes = %zu,\n", mem->version_bytes);
    nd_put(b, "    },\n");
}

/* ---- stages ------------------------------------------------------------- */

static const char *spot_of(cg *g, int s, const nd_value *v)
{
    nd_ref r;
    const nd_place *p = NULL;
    if (nd_ref_of(g->c, v, &r) && r.root == AT_BUFFER)
        p = nd_place_of(&g->c->mem.stage[s], r.value);
    return p ? nd_fmt(g->a, "{%d, %zu}", p->room, p->base) : NULL;
}

static void stage_outputs(cg *g, nd_buf *b, int s)
{
    const nd_stage *st = &g->m->program->stage[s];
    nd_buf t = {.arena = g->a};
    nd_table here = {.arena = g->a};
    if (!g->m->outputs.n)
        return;
    for (int i = 0; i < st->fwd.n; i++)
        if (st->fwd.v[i]->kind == OP_OUTPUT)
            nd_table_put(&here, st->fwd.v[i], st->fwd.v[i]);
    nd_putf(&t, "static const ndrt_spot %soutputs_at[] = {",
            cg_stage_prefix(g, s));
    for (int i = 0; i < g->m->outputs.n; i++) {
        const nd_op *op = g->m->outputs.v[i];
        const char *x = nd_table_get(&here, op) ? spot_of(g, s, op->in[0])
                                                : NULL;
        nd_putf(&t, "%s%s", i ? ", " : "", x ? x : "{0, NDRT_NONE}");
    }
    nd_put(&t, "};");
    cg_fold(b, 0, t.s);
}

static void run_row(cg *g, nd_buf *b, int s, const char *op, const char *fn)
{
    nd_putf(b, "            [NDRT_%s] = %s%s,\n", op, cg_stage_prefix(g, s),
            fn);
}

/* halves: the schedule has I and W. */
static void stage_row(cg *g, nd_buf *b, int s, bool halves)
{
    const nd_program *p = g->m->program;
    const nd_stage *st = &p->stage[s];
    const size_t *kept =
        g->c->mem.stage[s].kept[nd_runs_again(&g->m->plan, s)];
    const size_t *bytes = kept + ROOM_UNTIL_I;
    const char *pre = cg_stage_prefix(g, s);
    nd_putf(b, "    [%d] = {\n        .device = %d,\n"
               "        .slot_bytes = {%zu, %zu, %zu},\n", s, st->device,
            bytes[SCHED_UNTIL_I], bytes[SCHED_UNTIL_W], bytes[SCHED_I_TO_W]);
    if (g->m->params.n)
        nd_putf(b, "        .weights = weights_at[%d],\n"
                   "        .grads = gradients_at[%d],\n", s, s);
    if (g->m->outputs.n)
        nd_putf(b, "        .outputs = %soutputs_at,\n", pre);
    if (g->c->stage[s].list[LIST_PRE].v.n)
        nd_putf(b, "        .pre = %sprepare,\n", pre);
    if (nd_is_stashed(g->m) && nd_prepares_weights(g->m, s))
        nd_put(b, "        .fresh = true,\n");
    if (nd_runs_again(&g->m->plan, s))
        nd_put(b, "        .again = true,\n");
    nd_put(b, "        .run = {\n");
    run_row(g, b, s, "F", "forward");
    run_row(g, b, s, "B", "backward");
    if (st->wgt.n || halves)
        run_row(g, b, s, "I", st->wgt.n ? "backward_input" : "backward");
    if (st->wgt.n)
        run_row(g, b, s, "W", "backward_weights");
    for (int op = SCHED_SEND_F; op < SCHED_NOPS; op++) {
        const char *fn = cg_message_fn(g, s, (sched_op)op);
        if (fn)
            run_row(g, b, s, sched_op_name[op], fn);
    }
    nd_put(b, "        },\n    },\n");
}

/* ---- the schedule ------------------------------------------------------- */

/* A string per device, over as many lines as it takes. */
static void emit_schedule(cg *g, nd_buf *b)
{
    const sched *x = g->m->program->sched;
    nd_put(b, "/* What each device does, in order: <stage><action>"
              "<microbatch>. */\n"
              "static const char *const schedule[] = {\n");
    for (int d = 0; d < x->ranks; d++) {
        nd_buf line = {.arena = g->a};
        nd_put(&line, "");
        for (int i = 0; i < x->row[d].n; i++) {
            const sched_action *a = &x->row[d].v[i];
            const char *cell = nd_fmt(g->a, "%d%s%d", a->stage,
                                      sched_op_name[a->op], a->mb);
            if (line.n && line.n + strlen(cell) > 70) {
                nd_putf(b, "    \"%s \"\n", line.s);
                line = (nd_buf){.arena = g->a};
            }
            nd_putf(&line, "%s%s", line.n ? " " : "", cell);
        }
        nd_putf(b, "    \"%s\",\n", line.s);
    }
    nd_put(b, "};\n\n");
}

/* ---- program ------------------------------------------------------------ */

static int sample_extent(cg *g)
{
    for (int i = 0; i < g->m->inputs.n; i++) {
        const nd_type *t = &g->m->inputs.v[i]->type;
        int k = g->m->sample ? nd_axis_at(t, g->m->sample) : -1;
        if (k >= 0)
            return nd_ext_of(g->c, t, k);
    }
    return -1;
}

static const char *source_name(cg *g)
{
    if (!g->m->ctx->files.n)
        return g->m->name;
    const char *s = g->m->ctx->files.v[0].name, *slash = strrchr(s, '/');
    for (int i = 0; i < g->m->ctx->files.n && g->m->loss; i++)
        if (g->m->train.loc.file == i + 1) {
            s = g->m->ctx->files.v[i].name;
            slash = strrchr(s, '/');
        }
    return slash ? slash + 1 : s;
}

static void count(nd_buf *b, const char *n, const char *table, int have)
{
    if (have)
        nd_putf(b, "    .%s = %d,\n    .%s = %s,\n", n, have, table, table);
}

static void emit_program(cg *g, nd_buf *b)
{
    const nd_mesh *m = &g->m->mesh;
    int real_axes = m->micro, used = 0;
    for (int i = 0; i < g->c->exts.n; i++)
        used += g->ext_used[i];
    nd_putf(b, "static const ndrt_program program = {\n    .name = %s,\n"
               "    .source = %s,\n    .cpu = NDRT_CPU,\n",
            cg_text_of(g, g->m->name), cg_text_of(g, source_name(g)));
    if (g->small)
        nd_put(b, "    .small = nd_small,\n");
    if (g->small_bf16)
        nd_put(b, "    .small_bf16 = nd_small_bf16,\n");
    if (real_axes)
        nd_putf(b, "    .nmesh = %d,\n    .mesh_name = mesh_name,\n"
                   "    .mesh_size = mesh_size,\n", real_axes);
    uint32_t zero = 0;
    for (int i = 0; i < g->c->mem.buckets.n; i++)
        zero |= g->c->mem.buckets.v[i].zero;
    int z = -1;
    for (int i = 0; i < real_axes; i++)
        z = zero >> i & 1 ? i : z;
    int sample = sample_extent(g);
    nd_putf(b, "    .pipe = %d,\n    .zero = %d,\n    .nmicro = %d,\n", m->pipe,
            z, g->m->program->nmicro);
    nd_putf(b, "    .sample_extent = %s,\n    .sample_axis = %s,\n",
            sample < 0 ? "-1" : cg_ext(g, sample),
            g->m->sample ? cg_text_of(g, g->m->sample->name) : "NULL");
    nd_putf(b, "    .nextents = %d,\n    .extents = extents,\n", used);
    count(b, "nparams", "params", g->m->params.n);
    count(b, "nbuckets", "buckets", g->c->mem.buckets.n);
    count(b, "ninputs", "inputs", g->m->inputs.n);
    if (has_integers(g))
        nd_put(b, "    .ranges = ranges,\n");
    count(b, "noutputs", "outputs", g->m->outputs.n);
    count(b, "ndevices", "devices", g->m->program->ndevices);
    count(b, "nstages", "stages", g->m->program->nstages);
    if (nd_is_stashed(g->m) || nd_is_behind(g->m))
        nd_putf(b, "    .weights = NDRT_%s,\n",
                nd_is_stashed(g->m) ? "STASHED" : "BEHIND");
    nd_putf(b, "    .schedule_name = %s,\n    .schedule = schedule,\n",
            cg_text_of(g, g->m->program->sched->name));
    count(b, "ngroups", "groups", g->groups.n);
    if (g->ticket_name.n)
        nd_putf(b, "    .nflights = %d,\n", g->ticket_name.n);
    if (g->early)
        nd_put(b, "    .early = true,\n");
    if (g->marks.n)
        nd_putf(b, "    .nmarks = %d,\n    .marks = marks,\n"
                   "    .marks_key = 0x%016llx,\n", g->marks.n,
                (unsigned long long)cg_marks_key(g));
    uint32_t micro = 1u << m->micro;
    if (g->m->loss)
        nd_putf(b, "    .loss_sum = 0x%x,\n",
                (unsigned)(g->m->loss->type.sum & ~micro));
    cg_emit_train(g, b);
    nd_put(b, "};\n\n");
}

void cg_emit_tables(cg *g, nd_buf *b)
{
    const nd_mesh *m = &g->m->mesh;
    if (m->micro) {
        nd_put(b, "static const char *const mesh_name[] = {");
        for (int i = 0; i < m->micro; i++)
            nd_putf(b, "%s%s", i ? ", " : "", cg_text_of(g, m->name[i]));
        nd_put(b, "};\nstatic const int mesh_size[] = {");
        for (int i = 0; i < m->micro; i++)
            nd_putf(b, "%s%d", i ? ", " : "", m->size[i]);
        nd_put(b, "};\n\n");
    }
    if (g->groups.n) {
        nd_put(b, "static const uint32_t groups[] = {\n");
        for (int i = 0; i < g->groups.n; i++)
            nd_putf(b, "    [%s] = 0x%x,\n",
                    cg_group_name(g, g->groups.v[i]), g->groups.v[i]);
        nd_put(b, "};\n\n");
    }
    emit_extents(g, b);
    emit_params(g, b);
    emit_buckets(g, b);
    emit_tensors(g, b);
    emit_ranges(g, b);
    cg_emit_metrics(g, b);
    for (int d = 0; d < g->m->program->ndevices; d++)
        device_arrays(g, b, d);
    nd_put(b, "static const ndrt_device devices[] = {\n");
    for (int d = 0; d < g->m->program->ndevices; d++)
        device_row(g, b, d);
    nd_put(b, "};\n\n");
    for (int s = 0; s < g->m->program->nstages; s++)
        stage_outputs(g, b, s);
    if (g->m->outputs.n)
        nd_put(b, "\n");
    bool halves = nd_in_halves(g->m->program->sched);
    nd_put(b, "static const ndrt_stage stages[] = {\n");
    for (int s = 0; s < g->m->program->nstages; s++)
        stage_row(g, b, s, halves);
    nd_put(b, "};\n\n");
    emit_schedule(g, b);
    emit_program(g, b);
    nd_put(b, "int main(int argc, char **argv)\n{\n"
              "    return ndrt_main(&program, argc, argv);\n}\n");
}
