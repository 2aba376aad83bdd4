/* ll_kernel.c - a kernel as one LLVM function: its rows, as the threads share
 * them out, and the loops of its passes.
 *
 *   for (row of this thread)
 *       for (at = 0; at + 16 <= 61; at += 16)     16 elements
 *       those of 13 that are left                 behind a mask
 */
#include "ll_flow.h"

#include <string.h>

/* ---- the body of a pass -------------------------------------------------- */

static void insts(ll_kernel *p, int from, int to)
{
    for (int i = from; i < to && !p->x->wrong; i++)
        ll_inst(p, i);
}

static bool moves(const kir_kernel *k, const kir_place *at)
{
    for (int i = 0; i < at->n; i++)
        if (at->term[i].loop == k->nloops - 1 && at->term[i].stride.k)
            return true;
    return false;
}

/* In vectors, unless elements follow each other or go to one place. */
static bool is_wide(const kir_kernel *k, const kir_pass *s)
{
    for (int i = s->body; i < s->after; i++) {
        const kir_inst *x = &k->inst.v[i];
        if ((x->op == KIR_STORE || x->op == KIR_ADD) && !moves(k, x->place))
            return false;
    }
    return !s->serial && !k->backwards;
}

static void one_by_one(ll_kernel *p, const kir_pass *s, ll_span all)
{
    int last = p->k->nloops - 1;
    ll_loop l = ll_open_loop(p, all, 1);
    p->var[last] = l.i;
    if (p->k->backwards) {
        LLVMValueRef end = p->x->api->BuildSub(p->x->b, all.to,
                                               ll_const(p, 1), "");
        p->var[last] = p->x->api->BuildSub(p->x->b, end, l.i, "");
    }
    insts(p, s->body, s->after);
    ll_close_loop(p, l);
}

/* 16 at once; then what is left, if that is not known to be nothing. */
static void in_vectors(ll_kernel *p, const kir_pass *s, ll_span all,
                       int64_t fixed)
{
    ll *x = p->x;
    int last = p->k->nloops - 1;
    ll_value arg[] = {{all.from, LL_I64, false}, {all.to, LL_I64, false}};
    ll_span most = {all.from, ll_eval(x, "$0 + (($1 - $0) & -16)", arg).v};
    p->wide = true;
    if (fixed < 0 || fixed >= KIR_LANES) {
        ll_loop l = ll_open_loop(p, most, KIR_LANES);
        p->var[last] = l.i;
        insts(p, s->body, s->after);
        ll_close_loop(p, l);
    }
    if (fixed < 0 || fixed % KIR_LANES) {
        LLVMValueRef lane[KIR_LANES];
        for (int i = 0; i < KIR_LANES; i++)
            lane[i] = ll_const(p, i);
        LLVMValueRef some = x->api->BuildICmp(x->b, LLVMIntSLT, most.to, all.to,
                                              "");
        LLVMBasicBlockRef after = ll_open_if(p, some);
        ll_value left[] = {{x->api->ConstVector(lane, KIR_LANES), LL_I64, true},
                           {all.to, LL_I64, false}, {most.to, LL_I64, false}};
        p->mask = ll_eval(x, "$0 < $1 - $2", left).v;
        p->var[last] = most.to;
        insts(p, s->body, s->after);
        p->mask = NULL;
        ll_go_to(p, after);
    }
    p->wide = false;
}

static void inner_loops(ll_kernel *p, const kir_pass *s, const ll_span *columns)
{
    const kir_kernel *k = p->k;
    int first = k->nloops - k->ninner, last = k->nloops - 1;
    ll_loop l[2 * ND_MAX_RANK];
    for (int i = first; i < last; i++) {
        ll_span all = {ll_const(p, 0), ll_count(p, k->loop[i].ext)};
        l[i] = ll_open_loop(p, all, 1);
        p->var[i] = l[i].i;
    }
    ll_span all = {ll_const(p, 0), ll_count(p, k->loop[last].ext)};
    int64_t fixed = p->x->g->c->exts.v[k->loop[last].ext].fixed;
    if (columns) {
        all = *columns;
        fixed = -1;
    }
    if (is_wide(k, s))
        in_vectors(p, s, all, fixed);
    else
        one_by_one(p, s, all);
    for (int i = last - 1; i >= first; i--)
        ll_close_loop(p, l[i]);
}

static void start_folds(ll_kernel *p, int pass)
{
    for (int i = 0; i < p->k->folds.n; i++) {
        const kir_fold *f = &p->k->folds.v[i];
        if (f->pass != pass)
            continue;
        ll_value none = ll_identity(p, f->red, f->type);
        if (!f->scan)
            none = ll_spread(p->x, none);
        p->x->api->BuildStore(p->x->b, none.v, p->fold[i]);
    }
}

static void one_row(ll_kernel *p, const ll_span *columns)
{
    for (int i = 0; i < p->k->passes.n; i++) {
        const kir_pass *s = &p->k->passes.v[i];
        insts(p, s->row, s->body);
        start_folds(p, i);
        if (p->k->ninner && s->body < s->after)
            inner_loops(p, s, columns);
        else
            insts(p, s->body, s->after);
        insts(p, s->after, s->end);
    }
}

/* ---- rows ---------------------------------------------------------------- */

static int outer_of(const ll_kernel *p)
{
    return p->k->nloops - p->k->ninner;
}

/* The loops that are not shared out. */
static void rows_inside(ll_kernel *p, const ll_span *columns)
{
    ll_loop l[ND_MAX_RANK];
    int n = outer_of(p);
    for (int i = p->k->share.n; i < n; i++) {
        if (p->k->loop[i].once)
            continue;
        ll_span all = {ll_const(p, 0), ll_count(p, p->k->loop[i].ext)};
        l[i] = ll_open_loop(p, all, 1);
        p->var[i] = l[i].i;
    }
    one_row(p, columns);
    for (int i = n - 1; i >= p->k->share.n; i--)
        if (!p->k->loop[i].once)
            ll_close_loop(p, l[i]);
}

static LLVMValueRef shared_count(ll_kernel *p)
{
    LLVMValueRef n = ll_const(p, 1);
    for (int i = 0; i < p->k->share.n; i++)
        if (!p->k->loop[i].once)
            n = p->x->api->BuildMul(p->x->b, n,
                                    ll_count(p, p->k->loop[i].ext), "");
    return n;
}

/* A range of the first axes counted as one. */
static void rows_of(ll_kernel *p, ll_span rows)
{
    ll *x = p->x;
    ll_loop l = ll_open_loop(p, rows, 1);
    LLVMValueRef left = l.i;
    int outermost = 0;
    while (outermost < p->k->share.n && p->k->loop[outermost].once)
        outermost++;
    for (int i = p->k->share.n - 1; i >= outermost; i--) {
        if (p->k->loop[i].once)
            continue;
        LLVMValueRef n = ll_count(p, p->k->loop[i].ext);
        p->var[i] = i == outermost ? left
                                   : x->api->BuildURem(x->b, left, n, "");
        left = x->api->BuildUDiv(x->b, left, n, "");
    }
    rows_inside(p, NULL);
    ll_close_loop(p, l);
}

/* Is a part added to what is there? An i32. */
static LLVMValueRef adds(ll_kernel *p, const kir_part *part)
{
    ll *x = p->x;
    if (!part->first)
        return ll_int(x, LL_I32, part->acc).v;
    LLVMValueRef v = ll_field(p, offsetof(ndrt_rank, adds), x->i8);
    return x->api->BuildZExt(x->b, v, x->i32, "");
}

static void rows_in_parts(ll_kernel *p)
{
    ll *x = p->x;
    const kir_kernel *k = p->k;
    LLVMValueRef n = shared_count(p);
    int grain = k->share.grain == 1 ? 1 : ND_PARTS;
    ll_span parts = ll_share(p, ll_const(p, ND_PARTS), grain);
    LLVMValueRef *whole = ND_NEWN(x->g->a, LLVMValueRef, k->params.n);
    memcpy(whole, p->param, sizeof *whole * (size_t)k->params.n);
    ll_loop l = ll_open_loop(p, parts, 1);
    for (int i = 0; i < k->parts.n; i++) {
        const kir_part *part = &k->parts.v[i];
        LLVMValueRef arg[] = {p->rank, ll_const(p, part->at), l.i,
                              ll_len(p, &part->n)};
        p->param[part->param] = ll_runtime(p, "ndrt_new_part", x->ptr, "plll",
                                           arg);
    }
    LLVMValueRef arg[] = {l.i, n};
    LLVMValueRef rows = ll_runtime(p, "ndrt_rows_of", ll_span_type(p), "ll",
                                   arg);
    rows_of(p, ll_span_of(p, rows));
    ll_close_loop(p, l);
    ll_barrier(p);
    for (int i = 0; i < k->parts.n; i++) {
        const kir_part *part = &k->parts.v[i];
        LLVMValueRef add[] = {p->rank, adds(p, part),
                              whole[part->param], ll_const(p, part->at),
                              ll_len(p, &part->n)};
        ll_runtime(p, "ndrt_add_parts", x->nothing, "pipll", add);
    }
}

/* ---- clearing ------------------------------------------------------------ */

static void clear(ll_kernel *p, const kir_clear *c)
{
    ll *x = p->x;
    nd_share_kind kind = p->k->share.kind;
    nd_dtype t = p->k->params.v[c->param].to.dtype;
    bool shared = kind == SHARE_ROWS || kind == SHARE_COLUMNS;
    LLVMValueRef to = p->param[c->param], n = ll_len(p, &c->n);
    if (shared && c->red == RED_SUM) {
        LLVMValueRef size = ll_const(p, (int64_t)nd_dtype_size(t));
        LLVMValueRef arg[] = {p->rank, to,
                              x->api->BuildMul(x->b, n, size, "")};
        ll_runtime(p, "ndrt_clear", x->nothing, "ppl", arg);
        return;
    }
    ll_span all = {ll_const(p, 0), n};
    ll_loop l = ll_open_loop(p, shared ? ll_share(p, n, 16) : all, 1);
    LLVMValueRef at = x->api->BuildGEP2(x->b, ll_memory_type(x, t), to, &l.i, 1,
                                        "");
    x->api->BuildStore(x->b, ll_identity(p, c->red, t).v, at);
    ll_close_loop(p, l);
    if (shared)
        ll_barrier(p);
}

/* ---- the function -------------------------------------------------------- */

static void nest(ll_kernel *p)
{
    const kir_kernel *k = p->k;
    LLVMBasicBlockRef after = NULL;
    if (k->share.kind == SHARE_ONE) {
        LLVMValueRef thread = ll_field(p, offsetof(ndrt_rank, thread),
                                       p->x->i32);
        after = ll_open_if(p, p->x->api->BuildICmp(p->x->b, LLVMIntEQ, thread,
                                                ll_int(p->x, LL_I32, 0).v, ""));
    }
    for (int i = 0; i < k->clears.n; i++)
        clear(p, &k->clears.v[i]);
    if (k->share.kind == SHARE_COLUMNS) {
        ll_span mine = ll_share(p, ll_count(p, k->loop[k->nloops - 1].ext), 16);
        rows_inside(p, &mine);
    } else if (k->share.kind == SHARE_ROWS && k->share.parts) {
        rows_in_parts(p);
    } else if (k->share.kind == SHARE_ROWS) {
        rows_of(p, ll_share(p, shared_count(p), 1));
    } else {
        rows_inside(p, NULL);
    }
    if (after)
        ll_go_to(p, after);
    if (k->share.kind != SHARE_NOT)
        ll_barrier(p);
}

/* Kept rows and folds; aligned for vectors. */
static void places_on_stack(ll_kernel *p)
{
    ll *x = p->x;
    const kir_kernel *k = p->k;
    p->kept = ND_NEWN(x->g->a, LLVMValueRef, k->kept.n);
    p->fold = ND_NEWN(x->g->a, LLVMValueRef, k->folds.n);
    for (int i = 0; i < k->kept.n; i++) {
        uint64_t n = 1;
        for (int j = k->nloops - k->ninner; j < k->nloops; j++)
            n *= (uint64_t)x->g->c->exts.v[k->loop[j].ext].max;
        LLVMTypeRef t = ll_memory_type(x, k->kept.v[i].type);
        p->kept[i] = x->api->BuildAlloca(x->b, x->api->ArrayType2(t, n), "");
        x->api->SetAlignment(p->kept[i], 64);
    }
    for (int i = 0; i < k->folds.n; i++) {
        LLVMTypeRef t = ll_memory_type(x, k->folds.v[i].type);
        if (!k->folds.v[i].scan)
            t = x->api->VectorType(t, KIR_LANES);
        p->fold[i] = x->api->BuildAlloca(x->b, t, "");
    }
}

/* As kir_c.c's put_signature says. */
static void parameters(ll_kernel *p)
{
    ll *x = p->x;
    unsigned at = 0;
    unsigned noalias = x->api->GetEnumAttributeKindForName("noalias", 7);
    const cg_kernel *c = p->c;
    if (c->needs_rank)
        p->rank = x->api->GetParam(x->fn, at++);
    for (int i = 0; i < c->parts.n; i++) {
        const cg_used *part = &c->parts.v[i];
        if (part->off)
            p->start[part->ext] = x->api->GetParam(x->fn, at++);
        if (part->len)
            p->count[part->ext] = x->api->GetParam(x->fn, at++);
    }
    for (int i = 0; i < c->iters.n; i++)
        p->iter[i] = x->api->GetParam(x->fn, at++);
    p->param = ND_NEWN(x->g->a, LLVMValueRef, p->k->params.n);
    for (int i = 0; i < c->ptrs.n; i++, at++) {
        if (!kir_shares(c, &c->ptrs.v[i].to))
            x->api->AddAttributeAtIndex(
                x->fn, at + 1, x->api->CreateEnumAttribute(x->c, noalias, 0));
        for (int j = 0; j < p->k->params.n; j++)
            if (cg_same_place(&c->ptrs.v[i].to, &p->k->params.v[j].to))
                p->param[j] = x->api->GetParam(x->fn, at);
    }
}

static void declare(ll_kernel *p)
{
    ll *x = p->x;
    int most = 1 + 2 * p->c->parts.n + p->c->iters.n + p->c->ptrs.n;
    LLVMTypeRef *t = ND_NEWN(x->g->a, LLVMTypeRef, most);
    unsigned n = 0;
    if (p->c->needs_rank)
        t[n++] = x->ptr;
    for (int i = 0; i < p->c->parts.n; i++)
        for (int k = 0; k < p->c->parts.v[i].off + p->c->parts.v[i].len; k++)
            t[n++] = x->i64;
    for (int i = 0; i < p->c->iters.n; i++)
        t[n++] = x->i64;
    for (int i = 0; i < p->c->ptrs.n; i++)
        t[n++] = x->ptr;
    x->fn = x->api->AddFunction(x->m, p->c->name,
                                x->api->FunctionType(x->nothing, t, n, 0));
    static const char *const words[][2] = {
        {"prefer-vector-width", "512"}, {"min-legal-vector-width", "512"}};
    for (int i = 0; i < 2; i++)
        x->api->AddAttributeAtIndex(
            x->fn, LLVMAttributeFunctionIndex,
            x->api->CreateStringAttribute(
                x->c, words[i][0], (unsigned)strlen(words[i][0]), words[i][1],
                (unsigned)strlen(words[i][1])));
}

bool ll_add_kernel(ll *x, const cg_kernel *c)
{
    ll_kernel p = {.x = x, .c = c, .k = c->ir};
    p.value = ND_NEWN(x->g->a, ll_value, p.k->inst.n);
    p.start = ND_NEWN(x->g->a, LLVMValueRef, x->g->c->exts.n);
    p.count = ND_NEWN(x->g->a, LLVMValueRef, x->g->c->exts.n);
    declare(&p);
    parameters(&p);
    p.entry = ll_block(&p);
    LLVMBasicBlockRef start = ll_block(&p);
    x->api->PositionBuilderAtEnd(x->b, p.entry);
    places_on_stack(&p);
    for (int i = 0; i < p.k->nloops; i++)
        p.var[i] = ll_const(&p, 0);
    x->api->PositionBuilderAtEnd(x->b, start);
    nest(&p);
    x->api->BuildRetVoid(x->b);
    x->api->PositionBuilderAtEnd(x->b, p.entry);
    x->api->BuildBr(x->b, start);
    return !x->wrong;
}
