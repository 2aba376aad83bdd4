/* works.c - what a step consists of: the kernels of the program, and those
 * parts of the runtime's work whose bytes are known.
 *
 *   layers_ln1_fwd     loop       gpt.nd:33   48 calls   0.8 MB read ...
 *   layers_attn_q_y    product    gpt.nd:18   48 calls
 *   update             runtime                 1 call
 *
 * Figures are of one rank of each stage, added up.
 */
#include "codegen.h"

const char *const cg_class_names[WORK_NCLASSES] = {
    [WORK_LOOP] = "loop", [WORK_PRODUCT] = "product",
    [WORK_COMM] = "collective", [WORK_RUNTIME] = "runtime",
};

static cg_class class_of(const nd_kernel *k)
{
    return k->kind == K_LOOP ? WORK_LOOP
           : k->kind == K_COMM ? WORK_COMM : WORK_PRODUCT;
}

static bool multiplies_bf16(const nd_kernel *k)
{
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_op *op = k->nodes.v[i].op;
        if ((op->kind == OP_CONTRACT || op->kind == OP_GROUPED ||
             op->kind == OP_GROUPED_SUM) &&
            op->in[0]->type.dtype == ND_BF16)
            return true;
    }
    return false;
}

static cg_work work_of(cg *g, const cg_mark *m)
{
    const nd_kernel *k = m->k;
    const nd_op *op = k->nodes.v[0].op;
    cg_class class = class_of(k);
    bool nest = k->kind == K_LOOP || k->kind == K_TILES;
    return (cg_work){
        .name = m->name,
        .class = class,
        .kind = class == WORK_COMM   ? nd_ops[op->kind].name
                : k->kind == K_TILES ? "tiles" : cg_class_names[class],
        .where = cg_where(g, nest ? k->loc : op->loc),
        .narrow = multiplies_bf16(k),
        .ends = k->flight && !k->flight->ahead ? 2 : 1,
        .calls = (double)m->calls,
        .read = m->t.read,
        .written = m->t.written,
        .least = m->t.least,
        .flops = m->t.flops,
    };
}

/* ---- the runtime's ------------------------------------------------------- */

/* Muon multiplies matrices, how often says the train block: not known here. */
static bool has_muon(const nd_code *c)
{
    for (int i = 0; i < c->mem.buckets.n; i++)
        if (c->mem.buckets.v[i].muon)
            return true;
    return false;
}

/* That a rank updates. */
static double floats_of(const cg *g, const nd_bucket *b)
{
    double n = b->frozen ? 0 : (double)b->n;
    return b->zero ? n / nd_group_size(&g->m->mesh, b->zero) : n;
}

/* That a step clears. */
static double floats_cleared(const cg *g, int device)
{
    const nd_device_mem *mem = &g->c->mem.device[device];
    double sum = 0;
    for (int i = 0; i < mem->cleared.n; i++) {
        const nd_type *t = &g->m->params.v[mem->cleared.v[i]]->value->type;
        double n = 1;
        for (int k = 0; k < t->rank; k++)
            n *= (double)nd_param_cap(g->c, t, k);
        sum += n;
    }
    return sum;
}

static int states_of(const nd_bucket_place *p)
{
    return (p->state1 != (size_t)-1) + (p->state2 != (size_t)-1);
}

/* One call on each device; figures are added up and divided by the calls. */
static void own_works(cg *g, cg_works *out)
{
    const nd_memplan *mem = &g->c->mem;
    double calls = g->m->program->ndevices;
    cg_work zero = {.name = "zero gradients"}, norm = {.name = "gradient norm"},
            update = {.name = "update"};
    for (int d = 0; d < g->m->program->ndevices; d++) {
        zero.written += 4 * floats_cleared(g, d);
        for (int i = 0; i < mem->device[d].buckets.n; i++) {
            const nd_bucket_place *p = &mem->device[d].buckets.v[i];
            const nd_bucket *b = &mem->buckets.v[p->bucket];
            double n = floats_of(g, b);
            norm.read += 4 * n;
            update.read += 4 * n * (2 + states_of(p));
            update.written += 4 * n * (1 + states_of(p));
        }
    }
    cg_work *all[] = {&zero, &norm, &update};
    for (int i = 0; i < (has_muon(g->c) ? 2 : 3); i++) {
        cg_work *x = all[i];
        x->class = WORK_RUNTIME;
        x->kind = cg_class_names[WORK_RUNTIME];
        x->where = "";
        x->ends = 1;
        x->calls = calls;
        x->read /= calls;
        x->written /= calls;
        x->least = x->read + x->written;
        ND_PUSH(g->a, out, *x);
    }
}

cg_works cg_works_of(cg *g)
{
    cg_works out = {0};
    for (int i = 0; i < g->marks.n; i++)
        ND_PUSH(g->a, &out, work_of(g, &g->marks.v[i]));
    own_works(g, &out);
    return out;
}
