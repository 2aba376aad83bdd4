/* ll_expr.c - one instruction of a kernel.
 *
 *   load x[batch * 384 + d], d innermost   ->  one load of 16 floats
 *   load x[d * 7], a column                ->  a gather
 *   load x[batch]                          ->  a number, spread where it meets
 *                                              a vector
 */
#include "ll.h"

ll_type ll_type_from(nd_dtype t)
{
    switch (t) {
    case ND_I32:
        return LL_I32;
    case ND_I64:
        return LL_I64;
    case ND_BOOL:
        return LL_BOOL;
    case ND_BF16:
    case ND_F16:
        return LL_U16;
    default:
        return LL_F32;
    }
}

LLVMTypeRef ll_memory_type(ll *x, nd_dtype t)
{
    return t == ND_BOOL ? x->i8 : ll_type_of(x, ll_type_from(t), false);
}

/* Numbers 0 to 15. */
static ll_value lanes(ll *x)
{
    LLVMValueRef v[KIR_LANES];
    for (int i = 0; i < KIR_LANES; i++)
        v[i] = ll_int(x, LL_I64, i).v;
    return (ll_value){x->api->ConstVector(v, KIR_LANES), LL_I64, true};
}

static int innermost(const ll_kernel *p)
{
    return p->k->ninner ? p->k->nloops - 1 : -1;
}

static ll_value var_of(ll_kernel *p, int loop)
{
    ll_value v = {p->var[loop], LL_I64, false};
    if (!p->wide || loop != innermost(p))
        return v;
    ll_value arg[] = {v, lanes(p->x)};
    return ll_eval(p->x, "$0 + $1", arg);
}

/* ---- places in memory ---------------------------------------------------- */

bool ll_varies(const ll_kernel *p, const kir_place *at)
{
    for (int i = 0; i < at->n; i++) {
        const kir_term *t = &at->term[i];
        if ((t->loop >= 0 && t->loop == innermost(p) && t->stride.k) ||
            (t->inst >= 0 && p->value[t->inst].vec))
            return true;
    }
    return false;
}

/* Do neighbours in the innermost axis lie one after another? */
static bool is_dense(const ll_kernel *p, const kir_place *at)
{
    int unit = 0;
    for (int i = 0; i < at->n; i++) {
        const kir_term *t = &at->term[i];
        if (t->inst >= 0 && p->value[t->inst].vec)
            return false;
        if (t->loop < 0 || t->loop != innermost(p) || !t->stride.k)
            continue;
        if (t->size || t->stride.k != 1 || t->stride.n)
            return false;
        unit++;
    }
    return unit == 1;
}

/* The index of the first element, or of each (`all`). */
static ll_value index_of(ll_kernel *p, const kir_place *at, bool all)
{
    ll *x = p->x;
    ll_value sum = ll_int(x, LL_I64, 0);
    for (int i = 0; i < at->n; i++) {
        const kir_term *t = &at->term[i];
        ll_value v = ll_int(x, LL_I64, t->shift);
        if (t->inst < 0 && (t->loop < 0 ? !t->shift
                                        : p->k->loop[t->loop].once))
            continue;                /* and its stride may be unknown here */
        if (t->inst >= 0)
            v = p->value[t->inst];
        else if (t->loop >= 0)
            v = all ? var_of(p, t->loop)
                    : (ll_value){p->var[t->loop], LL_I64, false};
        if (t->size) {
            ll_value arg[] = {v, ll_int(x, LL_I64, t->shift),
                              ll_int(x, LL_I64, t->size)};
            v = ll_eval(x, "($0 + $1) % $2", arg);
        }
        ll_value arg[] = {sum, v, {ll_len(p, &t->stride), LL_I64, false}};
        sum = ll_eval(x, "$0 + $1 * $2", arg);
    }
    return sum;
}

/* A pointer, or a vector of them. */
static LLVMValueRef address(ll_kernel *p, const kir_place *at, nd_dtype t,
                            bool all)
{
    ll_value i = index_of(p, at, all);
    return p->x->api->BuildGEP2(p->x->b, ll_memory_type(p->x, t),
                                p->param[at->param], &i.v, 1, "");
}

static LLVMValueRef mask_of(ll_kernel *p)
{
    return p->mask ? p->mask : ll_spread(p->x, ll_int(p->x, LL_BOOL, 1)).v;
}

static ll_value from_memory(ll *x, LLVMValueRef v, nd_dtype t, bool vec)
{
    ll_value y = {v, ll_type_from(t), vec};
    if (t == ND_BOOL)
        y.v = x->api->BuildICmp(x->b, LLVMIntNE, v,
                                x->api->ConstNull(x->api->TypeOf(v)), "");
    return y;
}

static LLVMValueRef aligned(ll *x, LLVMValueRef access, nd_dtype t)
{
    x->api->SetAlignment(access, (unsigned)nd_dtype_size(t));
    return access;
}

static ll_value load_at(ll_kernel *p, LLVMValueRef at, nd_dtype t, bool vec,
                        bool dense, LLVMValueRef mask)
{
    ll *x = p->x;
    LLVMTypeRef one = ll_memory_type(x, t), many = one;
    if (vec)
        many = x->api->VectorType(one, KIR_LANES);
    if (!vec || (dense && !mask))
        return from_memory(
            x, aligned(x, x->api->BuildLoad2(x->b, many, at, ""), t), t, vec);
    LLVMTypeRef types[] = {many, x->api->TypeOf(at)};
    LLVMValueRef arg[] = {at, ll_int(x, LL_I32, (int)nd_dtype_size(t)).v,
                          mask ? mask : mask_of(p), x->api->ConstNull(many)};
    return from_memory(x, ll_call(x, dense ? "llvm.masked.load"
                                           : "llvm.masked.gather",
                                  2, types, 4, arg), t, true);
}

static void store_at(ll_kernel *p, LLVMValueRef at, nd_dtype t, ll_value v,
                     bool vec, bool dense, LLVMValueRef mask)
{
    ll *x = p->x;
    if (vec)
        v = ll_spread(x, v);
    LLVMTypeRef one = ll_memory_type(x, t);
    LLVMTypeRef many = vec ? x->api->VectorType(one, KIR_LANES) : one;
    if (t == ND_BOOL)
        v.v = x->api->BuildZExt(x->b, v.v, many, "");
    if (!vec || (dense && !mask)) {
        aligned(x, x->api->BuildStore(x->b, v.v, at), t);
        return;
    }
    LLVMTypeRef types[] = {many, x->api->TypeOf(at)};
    LLVMValueRef arg[] = {v.v, at, ll_int(x, LL_I32, (int)nd_dtype_size(t)).v,
                          mask ? mask : mask_of(p)};
    ll_call(x, dense ? "llvm.masked.store" : "llvm.masked.scatter", 2, types, 4,
            arg);
}

static ll_value load(ll_kernel *p, const kir_inst *i)
{
    bool vec = p->wide && ll_varies(p, i->place);
    bool dense = vec && is_dense(p, i->place);
    return load_at(p, address(p, i->place, i->type, vec && !dense), i->type,
                   vec, dense, p->mask);
}

/* Is the `at` an index of the extent? */
static ll_value is_within(ll_kernel *p, const kir_inst *i, int at)
{
    ll_value arg[] = {p->value[at], {ll_count(p, i->slot), LL_I64, false}};
    return ll_eval(p->x, "(uint64_t)$0 < (uint64_t)$1", arg);
}

static ll_value both(ll_kernel *p, ll_value a)
{
    ll_value arg[] = {a, {p->mask, LL_BOOL, true}};
    return p->mask ? ll_eval(p->x, "$0 && $1", arg) : ll_spread(p->x, a);
}

/* Memory is read only where the index is one. */
static ll_value pick(ll_kernel *p, const kir_inst *i)
{
    ll *x = p->x;
    ll_value in = is_within(p, i, i->in[0]);
    if (p->wide && ll_varies(p, i->place)) {
        bool dense = is_dense(p, i->place);
        return load_at(p, address(p, i->place, i->type, !dense), i->type, true,
                       dense, both(p, in).v);
    }
    LLVMBasicBlockRef before = x->api->GetInsertBlock(x->b);
    LLVMBasicBlockRef yes = x->api->AppendBasicBlockInContext(x->c, x->fn, "");
    LLVMBasicBlockRef after = x->api->AppendBasicBlockInContext(x->c, x->fn,
                                                                "");
    x->api->BuildCondBr(x->b, in.v, yes, after);
    x->api->PositionBuilderAtEnd(x->b, yes);
    ll_value v = load_at(p, address(p, i->place, i->type, false), i->type,
                         false, false, NULL);
    x->api->BuildBr(x->b, after);
    x->api->PositionBuilderAtEnd(x->b, after);
    LLVMTypeRef t = x->api->TypeOf(v.v);
    LLVMValueRef phi = x->api->BuildPhi(x->b, t, "");
    LLVMValueRef from[] = {x->api->ConstNull(t), v.v};
    LLVMBasicBlockRef block[] = {before, yes};
    x->api->AddIncoming(phi, from, block, 2);
    v.v = phi;
    return v;
}

static void store(ll_kernel *p, const kir_inst *i)
{
    bool vec = p->wide && ll_varies(p, i->place);
    bool dense = vec && is_dense(p, i->place);
    store_at(p, address(p, i->place, i->type, vec && !dense), i->type,
             p->value[i->in[0]], vec, dense, p->mask);
}

/* ---- adding to memory ---------------------------------------------------- */

static void add_to(ll_kernel *p, const kir_inst *i, LLVMValueRef mask)
{
    bool vec = p->wide, dense = vec && is_dense(p, i->place);
    LLVMValueRef at = address(p, i->place, i->type, vec && !dense);
    ll_value arg[] = {load_at(p, at, i->type, vec, dense, mask),
                      p->value[i->in[0]]};
    store_at(p, at, i->type,
             ll_eval(p->x, kir_combine_text(i->sub, i->type), arg), vec, dense,
             mask);
}

static void add(ll_kernel *p, const kir_inst *i)
{
    ll *x = p->x;
    if (i->nin < 2) {
        add_to(p, i, p->mask);
        return;
    }
    ll_value in = is_within(p, i, i->in[1]);
    if (p->wide) {
        add_to(p, i, both(p, in).v);
        return;
    }
    LLVMBasicBlockRef yes = x->api->AppendBasicBlockInContext(x->c, x->fn, "");
    LLVMBasicBlockRef after = x->api->AppendBasicBlockInContext(x->c, x->fn,
                                                                "");
    x->api->BuildCondBr(x->b, in.v, yes, after);
    x->api->PositionBuilderAtEnd(x->b, yes);
    add_to(p, i, NULL);
    x->api->BuildBr(x->b, after);
    x->api->PositionBuilderAtEnd(x->b, after);
}

/* ---- kept rows and folds ------------------------------------------------- */

static LLVMValueRef kept_at(ll_kernel *p, int slot, nd_dtype t)
{
    ll *x = p->x;
    ll_value sum = ll_int(x, LL_I64, 0);
    for (int i = p->k->nloops - p->k->ninner; i < p->k->nloops; i++) {
        int64_t most = x->g->c->exts.v[p->k->loop[i].ext].max;
        ll_value arg[] = {sum, ll_int(x, LL_I64, most),
                          {p->var[i], LL_I64, false}};
        sum = ll_eval(x, "$0 * $1 + $2", arg);
    }
    return x->api->BuildGEP2(x->b, ll_memory_type(x, t), p->kept[slot], &sum.v,
                             1, "");
}

/* Where the lane of this element is; of a scan, the one place. */
static LLVMValueRef lane_at(ll_kernel *p, const kir_fold *f, LLVMValueRef all)
{
    ll *x = p->x;
    if (p->wide || f->scan || innermost(p) < 0)
        return all;
    ll_value arg[] = {{p->var[innermost(p)], LL_I64, false}};
    ll_value lane = ll_eval(x, "$0 & 15", arg);
    return x->api->BuildGEP2(x->b, ll_memory_type(x, f->type), all, &lane.v, 1,
                             "");
}

static ll_value fold(ll_kernel *p, const kir_inst *i)
{
    ll *x = p->x;
    const kir_fold *f = &p->k->folds.v[i->slot];
    LLVMValueRef at = lane_at(p, f, p->fold[i->slot]);
    ll_value arg[] = {load_at(p, at, f->type, p->wide, true, NULL),
                      p->value[i->in[0]]};
    ll_value v = ll_eval(x, kir_combine_text(f->red, f->type), arg);
    if (p->mask) {
        ll_value pick3[] = {{p->mask, LL_BOOL, true}, v, arg[0]};
        v = ll_eval(x, "$0 ? $1 : $2", pick3);
    }
    store_at(p, at, f->type, v, p->wide, true, NULL);
    return v;
}

ll_value ll_identity(ll_kernel *p, int red, nd_dtype t)
{
    ll_value none = ll_eval(p->x, kir_identity_text(p->x->g->a, red, t), NULL);
    return ll_convert(p->x, none, ll_type_from(t));
}

/* Lanes by halves, as nd_sum_16 and its like do. */
static ll_value total(ll_kernel *p, const kir_inst *i)
{
    ll *x = p->x;
    const kir_fold *f = &p->k->folds.v[i->slot];
    ll_value v = load_at(p, p->fold[i->slot], f->type, true, true, NULL);
    for (int half = KIR_LANES / 2; half; half /= 2) {
        LLVMValueRef from[KIR_LANES];
        for (int k = 0; k < KIR_LANES; k++)
            from[k] = ll_int(x, LL_I32, (k + half) % KIR_LANES).v;
        ll_value arg[] = {v, v};
        arg[1].v = x->api->BuildShuffleVector(
            x->b, v.v, v.v, x->api->ConstVector(from, KIR_LANES), "");
        v = ll_eval(x, kir_combine_text(f->red, f->type), arg);
    }
    v.v = x->api->BuildExtractElement(x->b, v.v, ll_int(x, LL_I32, 0).v, "");
    v.vec = false;
    return v;
}

/* ---- random numbers ------------------------------------------------------ */

static ll_value iteration(ll_kernel *p, nd_op *rep)
{
    ll_value all = ll_int(p->x, LL_I64, 0);
    int64_t each = 1;
    for (; rep; rep = rep->block->parent) {
        for (int i = 0; i < p->k->iters.n; i++) {
            ll_value arg[] = {all, {p->iter[i], LL_I64, false},
                              ll_int(p->x, LL_I64, each)};
            if (p->k->iters.v[i] == rep)
                all = ll_eval(p->x, "$0 + $1 * $2", arg);
        }
        each *= rep->axes[0]->size;
    }
    return all;
}

static ll_value mask_value(ll_kernel *p, const kir_inst *i)
{
    ll *x = p->x;
    const kir_draw *d = i->draw;
    ll_value at = ll_int(x, LL_I64, 0);
    for (int k = 0; k < d->n; k++) {
        const kir_loop *l = &p->k->loop[d->loop[k]];
        ll_value arg[] = {at, ll_int(x, LL_I64, l->axis->size),
                          {ll_start(p, l->ext), LL_I64, false},
                          var_of(p, d->loop[k])};
        at = ll_eval(x, "$0 * $1 + $2 + $3", arg);
    }
    ll_value stream = ll_int(x, LL_U32, d->stream);
    if (d->repeat) {
        ll_value arg[] = {stream, iteration(p, d->repeat)};
        stream = ll_eval(x, "$0 + 0x9e3779b9u * (uint32_t)($1 + 1)", arg);
    }
    ll_value arg[] = {
        {x->api->ConstReal(x->f32, (double)(float)i->num), LL_F32, false},
        {ll_field(p, offsetof(ndrt_rank, seed), x->i64), LL_U64, false}, at,
        {ll_field(p, offsetof(ndrt_rank, step), x->i64), LL_I64, false},
        stream, {ll_field(p, offsetof(ndrt_rank, training), x->i8), LL_U16,
                 false}};
    arg[5].v = x->api->BuildZExt(x->b, arg[5].v, x->i16, "");
    return ll_eval(x, "$5 != 0 ? nd_dropout($0, $1, (uint64_t)$2, (uint32_t)$3,"
                      " $4) : 1.0f", arg);
}

/* ---- instructions -------------------------------------------------------- */

static ll_value map(ll_kernel *p, const kir_inst *i, const char *text)
{
    ll_value arg[KIR_NIN];
    for (int k = 0; k < i->nin; k++)
        arg[k] = p->value[i->in[k]];
    return ll_convert(p->x, ll_eval(p->x, text, arg), ll_type_from(i->type));
}

static ll_value at_value(ll_kernel *p, const kir_inst *i)
{
    ll_value arg[] = {p->value[i->in[0]],
                      {ll_start(p, i->slot), LL_I64, false}};
    return ll_eval(p->x, "(int64_t)$0 - $1", arg);
}

static ll_value index_value(ll_kernel *p, const kir_inst *i)
{
    ll_value arg[] = {{ll_start(p, p->k->loop[i->slot].ext), LL_I64, false},
                      var_of(p, i->slot)};
    return ll_eval(p->x, "(int32_t)($0 + $1)", arg);
}

static ll_value iter_value(ll_kernel *p, const kir_inst *i)
{
    ll_value v = ll_int(p->x, LL_I32, 0);
    for (int k = 0; k < p->k->iters.n; k++)
        if (p->k->iters.v[k] == i->repeat)
            v = ll_convert(p->x, (ll_value){p->iter[k], LL_I64, false}, LL_I32);
    return v;
}

void ll_inst(ll_kernel *p, int at)
{
    ll *x = p->x;
    const kir_inst *i = &p->k->inst.v[at];
    ll_value *v = &p->value[at];
    switch (i->op) {
    case KIR_CONST:
        *v = ll_convert(x, ll_eval(x, cg_number(x->g->a, i->type, i->num),
                                   NULL), ll_type_from(i->type));
        break;
    case KIR_INDEX:
        *v = index_value(p, i);
        break;
    case KIR_ITER:
        *v = iter_value(p, i);
        break;
    case KIR_LOAD:
        *v = load(p, i);
        break;
    case KIR_AT:
        *v = at_value(p, i);
        break;
    case KIR_PICK:
        *v = pick(p, i);
        break;
    case KIR_KEPT:
        *v = load_at(p, kept_at(p, i->slot, i->type), i->type, p->wide, true,
                     p->mask);
        break;
    case KIR_TOTAL:
        *v = total(p, i);
        break;
    case KIR_SCAN:
    case KIR_FOLD:
        *v = fold(p, i);
        break;
    case KIR_MAP:
        *v = map(p, i, kir_map_text(i));
        break;
    case KIR_CAST:
        *v = map(p, i, kir_cast_text(x->g->a, p->k->inst.v[i->in[0]].type,
                                     i->type));
        break;
    case KIR_MASK:
        *v = mask_value(p, i);
        break;
    case KIR_STORE:
        store(p, i);
        break;
    case KIR_ADD:
        add(p, i);
        break;
    case KIR_KEEP:
        store_at(p, kept_at(p, i->slot, i->type), i->type, p->value[i->in[0]],
                 p->wide, true, p->mask);
        break;
    default:
        x->wrong = "draws normal numbers";
    }
}
