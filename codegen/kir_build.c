/* kir_build.c - the kernel IR of a loop kernel.
 *
 * A value that has no place becomes the instructions of its expression wherever
 * it is used; an op of the kernel, a node, is computed once in a pass.
 *
 *   %a = map mul %s, %c      ->  %0 = load s[...]; %1 = const 0.125;
 *                                %2 = map mul %0, %1
 *   %x = gather [vocab] ...  ->  %1 = at %0 in vocab; %2 = pick wte[%1 * 384]
 */
#include "kir.h"

#include <string.h>

typedef struct build {
    cg *g;
    nd_code *c;
    nd_kernel *k;
    kir_kernel *out;
    nd_axis *axis[2 * ND_MAX_RANK];  /* of each loop, as values name it here */
    int pass;
    bool *need;                      /* by node: computed in this pass */
    int *at;                         /* by node: its instruction now, or -1 */
    int *kept, *fold;                /* by node: its row, its fold; or -1 */
    bool *in_place;                  /* by node: it is stored in place of what
                                        the kernel reads, behind all else */
    ND_VEC(int) late;                /* of this pass: such nodes */
} build;

static int value(build *b, const nd_value *v);
static int op_value(build *b, nd_op *op);

/* ---- instructions ------------------------------------------------------- */

static int put(build *b, kir_inst x)
{
    bool stores = x.op == KIR_STORE || x.op == KIR_KEEP;
    for (int i = 0; i < x.nin; i++) {
        b->out->inst.v[x.in[i]].uses++;
        b->out->inst.v[x.in[i]].read |= !stores;
    }
    for (int i = 0; x.place && i < x.place->n; i++)
        if (x.place->term[i].inst >= 0)
            b->out->inst.v[x.place->term[i].inst].uses++;
    ND_PUSH(b->g->a, &b->out->inst, x);
    return b->out->inst.n - 1;
}

static int put_const(build *b, nd_dtype t, double num)
{
    return put(b, (kir_inst){.op = KIR_CONST, .type = t, .num = num});
}

/* ---- memory ------------------------------------------------------------- */

static int find_loop(const build *b, const nd_axis *a)
{
    for (int i = 0; i < b->out->nloops; i++)
        if (b->axis[i] == a)
            return i;
    return -1;
}

static int param_of(build *b, const nd_ref *r, bool write)
{
    kir_kernel *k = b->out;
    cg_target to = {r->root, r->value, r->param, r->dtype, r->nterms, r->term};
    for (int i = 0; i < k->params.n; i++)
        if (cg_same_place(&k->params.v[i].to, &to)) {
            k->params.v[i].written |= write;
            return i;
        }
    nd_term *term = ND_NEWN(b->g->a, nd_term, to.nterms);
    if (to.nterms)
        memcpy(term, to.term, sizeof *term * (size_t)to.nterms);
    to.term = term;
    ND_PUSH(b->g->a, &k->params, ((kir_param){to, write, -1}));
    return k->params.n - 1;
}

/* An element of r; axis `at`, if not NULL, stands where `as` says. */
static kir_place *place_of(build *b, const nd_ref *r, bool write,
                           const nd_axis *at, kir_term as)
{
    kir_place *p = ND_NEW(b->g->a, kir_place);
    p->param = param_of(b, r, write);
    p->n = r->rank;
    p->term = ND_NEWN(b->g->a, kir_term, r->rank + 1);
    for (int i = 0; i < r->rank; i++) {
        p->term[i] = (kir_term){.loop = find_loop(b, r->axis[i]), .inst = -1};
        if (r->axis[i] == at)
            p->term[i] = as;
        p->term[i].stride = r->stride[i];
    }
    return p;
}

static const kir_term plain = {.loop = -1, .inst = -1};

static bool has_inner(const build *b, const nd_type *t)
{
    for (int i = 0; i < t->rank; i++) {
        int l = find_loop(b, t->axis[i]);
        if (l >= 0 && b->out->loop[l].inner)
            return true;
    }
    return false;
}

/* In a tile, its part. */
static nd_ref ref_of(const build *b, const nd_value *v)
{
    nd_ref r;
    nd_ref_of(b->c, v, &r);
    if (b->k && b->k->tiles)
        nd_tile_part(b->k->tiles, false, &r);
    return r;
}

static int load(build *b, const nd_value *v)
{
    nd_ref r = ref_of(b, v);
    return put(b, (kir_inst){.op = KIR_LOAD, .type = r.dtype, .value = v,
                             .once = !has_inner(b, &v->type),
                             .place = place_of(b, &r, false, NULL, plain)});
}

/* ---- ops ---------------------------------------------------------------- */

static int index_value(build *b, const nd_op *op)
{
    if (op->out[0]->type.rank == 0)
        return put(b, (kir_inst){
            .op = KIR_ITER, .type = ND_I32,
            .repeat = nd_enclosing(op->block, op->axes[0])});
    return put(b, (kir_inst){.op = KIR_INDEX, .type = ND_I32,
                             .slot = find_loop(b, op->axes[0])});
}

static int renamed_value(build *b, const nd_op *op)
{
    nd_axis *was[2 * ND_MAX_RANK];
    int l = find_loop(b, op->to[0]), n = b->out->nloops;
    memcpy(was, b->axis, sizeof *was * (size_t)n);
    for (int i = 0; i < n; i++)      /* that name is now the loop's over `to` */
        if (b->axis[i] == op->axes[0])
            b->axis[i] = NULL;
    if (l >= 0)
        b->axis[l] = op->axes[0];
    int x = value(b, op->in[0]);
    memcpy(b->axis, was, sizeof *was * (size_t)n);
    return x;
}

static int cast_value(build *b, const nd_op *op)
{
    int x = value(b, op->in[0]);
    nd_dtype to = op->out[0]->type.dtype;
    if (op->in[0]->type.dtype == to)
        return x;
    return put(b, (kir_inst){.op = KIR_CAST, .type = to, .nin = 1, .in = {x}});
}

static int map_value(build *b, const nd_op *op)
{
    kir_inst x = {.op = KIR_MAP, .type = op->out[0]->type.dtype,
                  .sub = op->sub, .nin = op->nin};
    for (int i = 0; i < op->nin; i++)
        x.in[i] = value(b, op->in[i]);
    return put(b, x);
}

/* The position that a gather or scatter_add touches in its table. */
static int row_index(build *b, nd_op *op, const nd_value *table, int *ext)
{
    int x = value(b, op->in[1]);
    *ext = nd_ext_of(b->c, &table->type,
                     nd_axis_at(&table->type, op->axes[0]));
    return put(b, (kir_inst){.op = KIR_AT, .type = ND_I64, .nin = 1, .in = {x},
                             .slot = *ext,
                             .once = !has_inner(b, &op->in[1]->type)});
}

/* Does a constant index an axis that is whole on every rank? */
static bool is_inside(nd_code *c, const nd_op *op)
{
    const nd_op *at = op->in[1]->def;
    const nd_type *t = &op->in[0]->type;
    int i = nd_axis_at(t, op->axes[0]);
    return at && at->kind == OP_CONST && at->num >= 0 &&
           at->num < (double)t->axis[i]->size &&
           nd_ext_whole(c, nd_ext_of(c, t, i));
}

static int gather_value(build *b, nd_op *op)
{
    nd_ref r = ref_of(b, op->in[0]);
    kir_term as = plain;
    kir_inst x = {.op = KIR_LOAD, .type = op->out[0]->type.dtype};
    if (is_inside(b->c, op)) {
        as.shift = (int64_t)op->in[1]->def->num;
    } else {
        as.inst = row_index(b, op, op->in[0], &x.slot);
        x.op = KIR_PICK;
        x.nin = 1;
        x.in[0] = as.inst;
    }
    x.place = place_of(b, &r, false, op->axes[0], as);
    return put(b, x);
}

static int roll_value(build *b, nd_op *op)
{
    nd_ref r = ref_of(b, op->in[0]);
    kir_term as = {.loop = find_loop(b, op->axes[0]), .inst = -1,
                   .shift = nd_roll_by(op), .size = op->axes[0]->size};
    return put(b, (kir_inst){.op = KIR_LOAD, .type = op->out[0]->type.dtype,
                             .place = place_of(b, &r, false, op->axes[0], as)});
}

/* Dropout is on in training; noise is always there. */
static int random_value(build *b, const nd_op *op)
{
    uint64_t h = nd_hash(op->name);
    const nd_type *t = &op->out[0]->type;
    kir_draw *d = ND_NEW(b->g->a, kir_draw);
    d->stream = (uint32_t)(h ^ h >> 32);
    d->repeat = op->block->parent;
    d->n = t->rank;
    for (int i = 0; i < t->rank; i++)
        d->loop[i] = find_loop(b, t->axis[i]);
    return put(b, (kir_inst){
        .op = op->kind == OP_NORMAL ? KIR_NORMAL : KIR_MASK, .type = ND_F32,
        .num = op->num, .draw = d});
}

static int op_value(build *b, nd_op *op)
{
    switch (op->kind) {
    case OP_CONST:
        return put_const(b, op->out[0]->type.dtype, op->num);
    case OP_INDEX:
        return index_value(b, op);
    case OP_RENAME:
        return renamed_value(b, op);
    case OP_CAST:
        return cast_value(b, op);
    case OP_MAP:
        return map_value(b, op);
    case OP_GATHER:
        return gather_value(b, op);
    case OP_ROLL:
        return roll_value(b, op);
    case OP_RANDOM:
    case OP_NORMAL:
        return random_value(b, op);
    case OP_ACCUM:
        return value(b, nd_accum_source(b->c, op));
    default:
        return value(b, op->in[0]);
    }
}

static int value(build *b, const nd_value *v)
{
    nd_class k = nd_class_of(b->c, v);
    if (k == V_INLINE)
        return op_value(b, v->def);
    if (k == V_VIEW && v->def &&
        (v->def->kind == OP_BROADCAST || nd_is_same(b->c, v->def)))
        return value(b, v->def->in[0]);
    const nd_node *n = b->k ? nd_node_of(b->k, v) : NULL;
    if (n) {
        int i = (int)(n - b->k->nodes.v);
        if (b->at[i] >= 0)
            return b->at[i];
        if (b->kept[i] >= 0)
            return put(b, (kir_inst){.op = KIR_KEPT, .slot = b->kept[i],
                                     .type = v->type.dtype});
    }
    return load(b, v);
}

/* ---- what a pass computes ----------------------------------------------- */

static void need_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    build *b = user;
    (void)in_memory;
    nd_node *n = nd_node_of(b->k, leaf);
    if (!n)
        return;
    int i = (int)(n - b->k->nodes.v);
    if (n->row || n->fold || b->need[i] ||
        (n->pass < b->pass && (n->stored || n->keep)))
        return;
    b->need[i] = true;
    nd_leaves(c, n->op, need_leaf, b);
}

static void find_needs(build *b)
{
    memset(b->need, 0, sizeof *b->need * (size_t)b->k->nodes.n);
    for (int i = 0; i < b->k->nodes.n; i++) {
        const nd_node *n = &b->k->nodes.v[i];
        bool sink = n->stored || n->fold || n->add || n->keep;
        if (n->row || n->pass != b->pass || !sink || b->need[i])
            continue;
        b->need[i] = true;
        nd_leaves(b->c, n->op, need_leaf, b);
    }
}

/* ---- adding to memory --------------------------------------------------- */

static int reduction_of(const nd_op *op)
{
    return op->kind == OP_REDUCE ? op->sub : RED_SUM;
}

static bool reduces(const nd_op *op, const nd_axis *a)
{
    return op->kind == OP_REDUCE && nd_has_axis(op, a);
}

/* Does a reduce that adds to memory first sum the whole row? */
static bool by_rows(const build *b, const nd_node *n)
{
    const nd_kernel *k = b->k;
    return n->add && !n->row && k->ninner &&
           reduces(n->op, k->inner_axis[k->ninner - 1]);
}

static void add_to_memory(build *b, const nd_node *n, int v)
{
    nd_op *op = n->op;
    nd_ref r = nd_add_ref(b->c, op);
    kir_inst x = {.op = KIR_ADD, .type = r.dtype, .sub = reduction_of(op),
                  .nin = 1, .in = {v}};
    kir_term as = plain;
    if (op->kind == OP_SCATTER_ADD) {
        x.in[x.nin++] = as.inst = row_index(b, op, op->out[0], &x.slot);
        x.place = place_of(b, &r, true, op->axes[0], as);
    } else {
        x.place = place_of(b, &r, true, NULL, plain);
    }
    put(b, x);
}

/* What is added up in memory begins at the identity, or in parts of the rows.
 */
static void start_sums(build *b)
{
    for (int i = 0; i < b->k->nodes.n; i++) {
        const nd_node *n = &b->k->nodes.v[i];
        if (!n->add || !n->stored || n->in_parts)
            continue;
        nd_ref r = nd_add_ref(b->c, n->op);
        kir_clear x = {param_of(b, &r, true), reduction_of(n->op),
                       nd_numel_local(b->c, &r)};
        ND_PUSH(b->g->a, &b->out->clears, x);
    }
    for (int i = 0; i < b->k->nodes.n; i++) {
        const nd_node *n = &b->k->nodes.v[i];
        if (!n->in_parts)
            continue;
        nd_ref r = nd_add_ref(b->c, n->op);
        kir_part x = {param_of(b, &r, true), nd_part_len(b->c, &r), n->part_at,
                      !n->stored, n->op->nout &&
                                      nd_info(b->c, n->op->out[0])->first};
        ND_PUSH(b->g->a, &b->out->parts, x);
    }
}

/* ---- nodes -------------------------------------------------------------- */

static void store(build *b, const nd_node *n, int v)
{
    nd_ref r = ref_of(b, n->op->out[0]);
    put(b, (kir_inst){.op = KIR_STORE, .type = r.dtype, .nin = 1, .in = {v},
                      .place = place_of(b, &r, true, NULL, plain)});
}

/* The row that a node is kept in, from the pass on that computes it. */
static int kept_row(build *b, int i)
{
    const nd_value *v = b->k->nodes.v[i].op->out[0];
    if (b->kept[i] < 0) {
        ND_PUSH(b->g->a, &b->out->kept, ((kir_kept){v->type.dtype, v}));
        b->kept[i] = b->out->kept.n - 1;
    }
    return b->kept[i];
}

static void name_it(build *b, const nd_node *n, int v)
{
    kir_inst *x = &b->out->inst.v[v];
    bool own = n->row || n->op->kind == OP_GATHER ||
               n->op->kind == OP_RANDOM || n->op->kind == OP_NORMAL;
    if (x->naming == KIR_PART) {
        x->naming = own ? KIR_OWN : KIR_LONG;
        x->value = n->op->out[0];
    }
}

static void emit_node(build *b, int i)
{
    const nd_node *n = &b->k->nodes.v[i];
    nd_op *op = n->op;
    int v = op_value(b, op);
    if (b->fold[i] >= 0) {
        v = put(b, (kir_inst){.op = n->scan ? KIR_SCAN : KIR_FOLD,
                              .type = op->out[0]->type.dtype,
                              .slot = b->fold[i], .nin = 1, .in = {v}});
        if (n->scan)
            store(b, n, v);
        return;
    }
    if (n->add) {
        add_to_memory(b, n, v);
        return;
    }
    name_it(b, n, v);
    b->at[i] = v;
    bool here = n->stored && (n->row || n->pass == b->pass);
    if (here && b->in_place[i])
        ND_PUSH(b->g->a, &b->late, i);
    else if (here)
        store(b, n, v);
    if (n->keep && n->pass == b->pass)
        put(b, (kir_inst){.op = KIR_KEEP, .type = op->out[0]->type.dtype,
                          .slot = kept_row(b, i), .nin = 1, .in = {v}});
}

/* ---- in place ----------------------------------------------------------- */

typedef struct sharing {
    nd_code *c;
    const nd_value *out;
    bool found;
} sharing;

static void find_sharing(void *user, const nd_ref *at, bool write, int index)
{
    sharing *s = user;
    (void)index;
    if (!write && at->root == AT_BUFFER && at->value != s->out)
        s->found |= nd_share_bytes(s->c, at->value, s->out);
}

static void find_in_place(build *b)
{
    for (int i = 0; i < b->k->nodes.n; i++) {
        const nd_node *n = &b->k->nodes.v[i];
        sharing s = {.c = b->c};
        if (!n->stored || n->row || n->add || n->fold || n->scan)
            continue;
        s.out = n->op->out[0];
        nd_touch_kernel(b->c, b->k, find_sharing, &s, 0);
        b->in_place[i] = s.found;
    }
}

/* Unless it is the last thing that the pass does, the value has a name: what it
 * is made of may be gone when it is stored. */
static void late_stores(build *b)
{
    bool last = b->late.n == 1 && b->at[b->late.v[0]] == b->out->inst.n - 1;
    for (int i = 0; i < b->late.n && !last; i++)
        b->out->inst.v[b->at[b->late.v[i]]].naming = KIR_NOW;
    for (int i = 0; i < b->late.n; i++)
        store(b, &b->k->nodes.v[b->late.v[i]], b->at[b->late.v[i]]);
    b->late.n = 0;
}

/* Which parameters are one place. */
static void pair_params(build *b)
{
    kir_kernel *k = b->out;
    for (int w = 0; w < k->params.n; w++)
        for (int r = 0; r < k->params.n; r++) {
            kir_param *out = &k->params.v[w], *in = &k->params.v[r];
            if (out->written && !in->written && out->to.root == AT_BUFFER &&
                in->to.root == AT_BUFFER &&
                nd_share_bytes(b->c, out->to.value, in->to.value)) {
                out->shares = r;
                in->shares = w;
            }
        }
}

/* ---- passes ------------------------------------------------------------- */

static bool folds_here(const build *b, int i)
{
    const nd_node *n = &b->k->nodes.v[i];
    return !n->row && n->pass == b->pass &&
           (n->fold || n->scan || by_rows(b, n));
}

static void start_folds(build *b)
{
    for (int i = 0; i < b->k->nodes.n; i++) {
        const nd_node *n = &b->k->nodes.v[i];
        b->fold[i] = -1;
        if (!folds_here(b, i))
            continue;
        const nd_value *v = n->op->out[0];
        kir_fold f = {b->pass, reduction_of(n->op), v->type.dtype, n->scan, v};
        ND_PUSH(b->g->a, &b->out->folds, f);
        b->fold[i] = b->out->folds.n - 1;
    }
}

static void end_folds(build *b)
{
    for (int i = 0; i < b->k->nodes.n; i++)
        if (!b->k->nodes.v[i].row && !b->k->nodes.v[i].fold)
            b->at[i] = -1;
    for (int i = 0; i < b->k->nodes.n; i++) {
        const nd_node *n = &b->k->nodes.v[i];
        if (b->fold[i] < 0 || n->scan)
            continue;
        int v = put(b, (kir_inst){.op = KIR_TOTAL, .slot = b->fold[i],
                                  .type = n->op->out[0]->type.dtype});
        b->fold[i] = -1;
        if (!n->fold) {
            add_to_memory(b, n, v);
            continue;
        }
        b->at[i] = v;
        if (n->stored)
            store(b, n, v);
    }
}

/* May two elements of the innermost loop add to one place, or follow each
 * other? */
static bool is_serial(const build *b)
{
    const nd_kernel *k = b->k;
    for (int i = 0; i < k->nodes.n && k->ninner; i++) {
        const nd_op *op = k->nodes.v[i].op;
        if (b->need[i] && (k->nodes.v[i].scan ||
                           (op->kind == OP_SCATTER_ADD &&
                            nd_axis_at(&op->in[1]->type,
                                       k->inner_axis[k->ninner - 1]) >= 0)))
            return true;
    }
    return false;
}

static void row_ops(build *b)
{
    for (int i = 0; i < b->k->nodes.n; i++)
        if (b->k->nodes.v[i].row && b->k->nodes.v[i].pass == b->pass)
            emit_node(b, i);
}

static void one_row(build *b)
{
    kir_kernel *k = b->out;
    for (b->pass = 0; b->pass < b->k->npasses; b->pass++) {
        kir_pass p = {.row = k->inst.n};
        row_ops(b);
        find_needs(b);
        start_folds(b);
        p.serial = is_serial(b);
        p.body = k->inst.n;
        for (int i = 0; i < b->k->nodes.n; i++)
            if (b->need[i])
                emit_node(b, i);
        late_stores(b);
        p.after = k->inst.n;
        end_folds(b);
        p.end = k->inst.n;
        ND_PUSH(b->g->a, &k->passes, p);
    }
    kir_pass last = {.row = k->inst.n};
    row_ops(b);
    last.body = last.after = last.end = k->inst.n;
    if (last.row < last.end)
        ND_PUSH(b->g->a, &k->passes, last);
}

/* ---- the kernel --------------------------------------------------------- */

static void set_up(build *b, cg *g, nd_kernel *k)
{
    int n = k ? k->nodes.n : 0;
    *b = (build){.g = g, .c = g->c, .k = k, .out = ND_NEW(g->a, kir_kernel)};
    b->out->from = k;
    b->need = ND_NEWN(g->a, bool, n);
    b->at = ND_NEWN(g->a, int, n);
    b->kept = ND_NEWN(g->a, int, n);
    b->fold = ND_NEWN(g->a, int, n);
    b->in_place = ND_NEWN(g->a, bool, n);
    for (int i = 0; i < n; i++)
        b->at[i] = b->kept[i] = b->fold[i] = -1;
}

static void set_loops(build *b)
{
    const nd_kernel *k = b->k;
    kir_kernel *out = b->out;
    out->nloops = k->nouter + k->ninner;
    out->ninner = k->ninner;
    out->share = k->share;
    out->backwards = k->nodes.v[0].scan && k->nodes.v[0].op->reverse;
    for (int i = 0; i < out->nloops; i++) {
        bool in = i >= k->nouter;
        int j = in ? i - k->nouter : i;
        nd_axis *a = in ? k->inner_axis[j] : k->outer_axis[j];
        int ext = in ? k->inner[j] : k->outer[j];
        bool once = !in && b->c->exts.v[ext].fixed == 1;
        out->loop[i] = (kir_loop){a, ext, in, once};
        b->axis[i] = a;
    }
}

static void find_iters(build *b)
{
    kir_kernel *k = b->out;
    for (int i = 0; i < k->inst.n; i++) {
        const kir_inst *x = &k->inst.v[i];
        nd_op *rep = x->draw ? x->draw->repeat : x->repeat;
        while (rep) {
            bool known = false;
            for (int j = 0; j < k->iters.n; j++)
                known |= k->iters.v[j] == rep;
            if (!known)
                ND_PUSH(b->g->a, &k->iters, rep);
            rep = x->draw ? rep->block->parent : NULL;
        }
    }
}

kir_kernel *kir_build(cg *g, nd_kernel *k)
{
    build b;
    set_up(&b, g, k);
    set_loops(&b);
    start_sums(&b);
    find_in_place(&b);
    one_row(&b);
    pair_params(&b);
    find_iters(&b);
    return b.out;
}

kir_kernel *kir_build_scalar(cg *g, const nd_value *v, int *at)
{
    build b;
    set_up(&b, g, NULL);
    *at = value(&b, v);
    find_iters(&b);
    return b.out;
}
