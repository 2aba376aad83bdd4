/* ll_flow.c - what stands around the instructions of a kernel: the lengths that
 * the rank knows, calls of the runtime, loops and branches.
 */
#include "ll_flow.h"

#include <string.h>

/* ---- what the rank knows ------------------------------------------------- */

/* At the function's beginning, where everything can use it. */
static LLVMBasicBlockRef enter(ll_kernel *p)
{
    LLVMBasicBlockRef here = p->x->api->GetInsertBlock(p->x->b);
    p->x->api->PositionBuilderAtEnd(p->x->b, p->entry);
    return here;
}

static LLVMValueRef field_at(ll_kernel *p, LLVMValueRef base, size_t offset,
                             LLVMTypeRef t)
{
    ll *x = p->x;
    LLVMValueRef at = ll_int(x, LL_I64, (int64_t)offset).v;
    return x->api->BuildLoad2(
        x->b, t, x->api->BuildGEP2(x->b, x->i8, base, &at, 1, ""), "");
}

LLVMValueRef ll_field(ll_kernel *p, size_t offset, LLVMTypeRef t)
{
    LLVMBasicBlockRef here = enter(p);
    LLVMValueRef v = field_at(p, p->rank, offset, t);
    p->x->api->PositionBuilderAtEnd(p->x->b, here);
    return v;
}

/* r->n[X_...], r->off[X_...]: the C file counts the extents that it uses. */
static LLVMValueRef of_extent(ll_kernel *p, size_t offset, int ext)
{
    const cg *g = p->x->g;
    size_t i = 0;
    for (int e = 0; e < ext; e++)
        i += g->ext_used[e];
    LLVMBasicBlockRef here = enter(p);
    LLVMValueRef list = field_at(p, p->rank, offset, p->x->ptr);
    LLVMValueRef v = field_at(p, list, i * sizeof(int64_t), p->x->i64);
    p->x->api->PositionBuilderAtEnd(p->x->b, here);
    return v;
}

LLVMValueRef ll_count(ll_kernel *p, int ext)
{
    int64_t fixed = p->x->g->c->exts.v[ext].fixed;
    return fixed >= 0      ? ll_int(p->x, LL_I64, fixed).v
           : p->count[ext] ? p->count[ext]
                           : of_extent(p, offsetof(ndrt_rank, n), ext);
}

LLVMValueRef ll_start(ll_kernel *p, int ext)
{
    const nd_ext *e = &p->x->g->c->exts.v[ext];
    if (e->tile && !e->moves)
        return ll_start(p, e->whole);
    return nd_ext_whole(p->x->g->c, ext) ? ll_int(p->x, LL_I64, 0).v
           : p->start[ext]               ? p->start[ext]
                            : of_extent(p, offsetof(ndrt_rank, off), ext);
}

LLVMValueRef ll_len(ll_kernel *p, const nd_len *l)
{
    LLVMValueRef v = ll_int(p->x, LL_I64, l->k).v;
    for (int i = 0; l->k && i < l->n; i++)
        v = p->x->api->BuildMul(p->x->b, v, ll_count(p, l->ext[i]), "");
    return v;
}

LLVMValueRef ll_const(ll_kernel *p, int64_t v)
{
    return ll_int(p->x, LL_I64, v).v;
}

/* ---- calls --------------------------------------------------------------- */

LLVMValueRef ll_runtime(ll_kernel *p, const char *name, LLVMTypeRef result,
                        const char *types, LLVMValueRef *arg)
{
    ll *x = p->x;
    LLVMTypeRef t[8];
    unsigned n = (unsigned)strlen(types);
    for (unsigned i = 0; i < n; i++)
        t[i] = types[i] == 'p' ? x->ptr : types[i] == 'l' ? x->i64 : x->i32;
    LLVMTypeRef ft = x->api->FunctionType(result, t, n, 0);
    LLVMValueRef f = x->api->GetNamedFunction(x->m, name);
    if (!f)
        f = x->api->AddFunction(x->m, name, ft);
    return x->api->BuildCall2(x->b, ft, f, arg, n, "");
}

ll_span ll_span_of(ll_kernel *p, LLVMValueRef pair)
{
    ll *x = p->x;
    return (ll_span){x->api->BuildExtractValue(x->b, pair, 0, ""),
                     x->api->BuildExtractValue(x->b, pair, 1, "")};
}

LLVMTypeRef ll_span_type(ll_kernel *p)
{
    LLVMTypeRef two[] = {p->x->i64, p->x->i64};
    return p->x->api->StructTypeInContext(p->x->c, two, 2, 0);
}

ll_span ll_share(ll_kernel *p, LLVMValueRef n, int64_t grain)
{
    LLVMValueRef arg[] = {p->rank, n, ll_const(p, grain)};
    return ll_span_of(p, ll_runtime(p, "ndrt_share", ll_span_type(p), "pll",
                                    arg));
}

void ll_barrier(ll_kernel *p)
{
    ll_runtime(p, "ndrt_barrier", p->x->nothing, "p", &p->rank);
}

/* ---- control ------------------------------------------------------------- */

LLVMBasicBlockRef ll_block(ll_kernel *p)
{
    return p->x->api->AppendBasicBlockInContext(p->x->c, p->x->fn, "");
}

void ll_go_to(ll_kernel *p, LLVMBasicBlockRef b)
{
    p->x->api->BuildBr(p->x->b, b);
    p->x->api->PositionBuilderAtEnd(p->x->b, b);
}

ll_loop ll_open_loop(ll_kernel *p, ll_span s, int64_t step)
{
    ll *x = p->x;
    LLVMBasicBlockRef before = x->api->GetInsertBlock(x->b), body;
    ll_loop l = {.head = ll_block(p), .step = step};
    body = ll_block(p);
    l.after = ll_block(p);
    ll_go_to(p, l.head);
    l.i = x->api->BuildPhi(x->b, x->i64, "");
    x->api->AddIncoming(l.i, &s.from, &before, 1);
    LLVMValueRef more = x->api->BuildICmp(x->b, LLVMIntSLT, l.i, s.to, "");
    x->api->BuildCondBr(x->b, more, body, l.after);
    x->api->PositionBuilderAtEnd(x->b, body);
    return l;
}

void ll_close_loop(ll_kernel *p, ll_loop l)
{
    ll *x = p->x;
    LLVMValueRef next = x->api->BuildAdd(x->b, l.i, ll_const(p, l.step), "");
    LLVMBasicBlockRef here = x->api->GetInsertBlock(x->b);
    x->api->BuildBr(x->b, l.head);
    x->api->AddIncoming(l.i, &next, &here, 1);
    x->api->PositionBuilderAtEnd(x->b, l.after);
}

LLVMBasicBlockRef ll_open_if(ll_kernel *p, LLVMValueRef so)
{
    LLVMBasicBlockRef yes = ll_block(p), after = ll_block(p);
    p->x->api->BuildCondBr(p->x->b, so, yes, after);
    p->x->api->PositionBuilderAtEnd(p->x->b, yes);
    return after;
}
