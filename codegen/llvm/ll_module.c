/* ll_module.c - the kernels of a program as one LLVM module: built, verified,
 * optimised, and written as text, assembly or an object file.
 */
#include "ll.h"

#include <stdlib.h>
#include <string.h>

typedef struct target {
    LLVMTargetMachineRef machine;
    char *triple, *layout;
} target;

static void internal(ll *x, const char *what, const char *why)
{
    nd_error(x->g->m->ctx, nd_nowhere, "internal error: %s: %s", what, why);
}

/* ---- the target ---------------------------------------------------------- */

static bool find_target(ll *x, const char *cpu, target *t)
{
    const ll_api *api = x->api;
    LLVMTargetRef kind;
    char *why = NULL;
    bool native = strcmp(cpu, "native") == 0;
    t->triple = api->GetDefaultTargetTriple();
    if (api->GetTargetFromTriple(t->triple, &kind, &why)) {
        internal(x, "LLVM", why);
        api->DisposeMessage(why);
        return false;
    }
    char *name = native ? api->GetHostCPUName() : NULL;
    char *features = native ? api->GetHostCPUFeatures() : NULL;
    t->machine = api->CreateTargetMachine(
        kind, t->triple, native ? name : cpu, native ? features : "",
        LLVMCodeGenLevelAggressive, LLVMRelocPIC, LLVMCodeModelDefault);
    if (native) {
        api->DisposeMessage(name);
        api->DisposeMessage(features);
    }
    LLVMTargetDataRef data = api->CreateTargetDataLayout(t->machine);
    t->layout = api->CopyStringRepOfTargetData(data);
    api->DisposeTargetData(data);
    api->SetTarget(x->m, t->triple);
    api->SetDataLayout(x->m, t->layout);
    return true;
}

static void drop_target(ll *x, target *t)
{
    if (t->machine)
        x->api->DisposeTargetMachine(t->machine);
    if (t->layout)
        x->api->DisposeMessage(t->layout);
    x->api->DisposeMessage(t->triple);
}

/* ---- the module ---------------------------------------------------------- */

static void start(ll *x, cg *g, const ll_api *api)
{
    *x = (ll){.api = api, .g = g, .c = api->ContextCreate()};
    x->m = api->ModuleCreateWithNameInContext(g->m->name, x->c);
    x->b = api->CreateBuilderInContext(x->c);
    x->i1 = api->IntTypeInContext(x->c, 1);
    x->i8 = api->IntTypeInContext(x->c, 8);
    x->i16 = api->IntTypeInContext(x->c, 16);
    x->i32 = api->IntTypeInContext(x->c, 32);
    x->i64 = api->IntTypeInContext(x->c, 64);
    x->f32 = api->FloatTypeInContext(x->c);
    x->f64 = api->DoubleTypeInContext(x->c);
    x->ptr = api->PointerTypeInContext(x->c, 0);
    x->nothing = api->VoidTypeInContext(x->c);
}

static void stop(ll *x)
{
    x->api->DisposeBuilder(x->b);
    x->api->DisposeModule(x->m);
    x->api->ContextDispose(x->c);
}

static bool fill(ll *x)
{
    char *why = NULL;
    for (int i = 0; i < x->g->by_llvm.n; i++)
        if (!ll_add_kernel(x, x->g->by_llvm.v[i])) {
            internal(x, x->g->by_llvm.v[i]->name, x->wrong);
            return false;
        }
    bool bad = x->api->VerifyModule(x->m, LLVMReturnStatusAction, &why);
    if (bad)
        internal(x, "LLVM refuses the kernels", why);
    x->api->DisposeMessage(why);
    return !bad;
}

static bool optimise(ll *x, const target *t)
{
    LLVMPassBuilderOptionsRef o = x->api->CreatePassBuilderOptions();
    LLVMErrorRef e = x->api->RunPasses(x->m, "default<O3>", t->machine, o);
    x->api->DisposePassBuilderOptions(o);
    if (!e)
        return true;
    char *why = x->api->GetErrorMessage(e);
    internal(x, "LLVM's passes", why);
    x->api->DisposeErrorMessage(why);
    return false;
}

static bool write(ll *x, const target *t, cg_llvm_form form, nd_buf *out)
{
    LLVMMemoryBufferRef buffer;
    char *why = NULL;
    if (form == CG_LLVM_TEXT) {
        for (int i = 0; i < x->g->by_c.n; i++)
            nd_putf(out, "; %s draws normal numbers: the C compiler makes it\n",
                    x->g->by_c.v[i]->name);
        char *text = x->api->PrintModuleToString(x->m);
        nd_put(out, text);
        x->api->DisposeMessage(text);
        return true;
    }
    if (x->api->TargetMachineEmitToMemoryBuffer(
            t->machine, x->m,
            form == CG_LLVM_ASM ? LLVMAssemblyFile : LLVMObjectFile, &why,
            &buffer)) {
        internal(x, "LLVM", why);
        x->api->DisposeMessage(why);
        return false;
    }
    nd_putn(out, x->api->GetBufferStart(buffer), x->api->GetBufferSize(buffer));
    x->api->DisposeMemoryBuffer(buffer);
    return true;
}

bool cg_llvm(cg *g, cg_llvm_form form, const cg_target_cpu *cpu, nd_buf *out)
{
    const ll_api *api = ll_open(g->m->ctx);
    target t = {0};
    ll x;
    if (!api)
        return false;
    if (!cpu->macros) {
        cg_no_macros(g->m->ctx, cpu->cpu);
        return false;
    }
    start(&x, g, api);
    x.macros = cpu->macros;
    bool ok = find_target(&x, cpu->cpu ? cpu->cpu : "native", &t) &&
              fill(&x) && optimise(&x, &t) && write(&x, &t, form, out);
    drop_target(&x, &t);
    stop(&x);
    return ok;
}
