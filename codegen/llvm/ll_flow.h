/* ll_flow.h - loops, branches, and calls of the runtime. */
#ifndef ND_LL_FLOW_H
#define ND_LL_FLOW_H

#include "ll.h"

typedef struct ll_span {
    LLVMValueRef from, to;
} ll_span;

typedef struct ll_loop {
    LLVMBasicBlockRef head, after;
    LLVMValueRef i;
    int64_t step;
} ll_loop;

LLVMValueRef ll_const(ll_kernel *p, int64_t v);

/* A function of the runtime, by its C types: p pointer, l 64 bits, i 32. */
LLVMValueRef ll_runtime(ll_kernel *p, const char *name, LLVMTypeRef result,
                        const char *types, LLVMValueRef *arg);
LLVMTypeRef ll_span_type(ll_kernel *p);          /* of an ndrt_span */
ll_span ll_span_of(ll_kernel *p, LLVMValueRef pair);
/* This thread's part of n, in pieces of `grain`. */
ll_span ll_share(ll_kernel *p, LLVMValueRef n, int64_t grain);
void ll_barrier(ll_kernel *p);

/* What is built between the two runs for each l.i. */
ll_loop ll_open_loop(ll_kernel *p, ll_span s, int64_t step);
void ll_close_loop(ll_kernel *p, ll_loop l);
LLVMBasicBlockRef ll_block(ll_kernel *p);
void ll_go_to(ll_kernel *p, LLVMBasicBlockRef b);
/* Where to go on after what runs only if so. */
LLVMBasicBlockRef ll_open_if(ll_kernel *p, LLVMValueRef so);

#endif
