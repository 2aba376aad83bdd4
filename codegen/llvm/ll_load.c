/* ll_load.c - opens LLVM when it is needed. */
#include "ll.h"

#include <dlfcn.h>

static const struct {
    const char *name;
    size_t at;
} names[] = {
#define LL(name) {"LLVM" #name, offsetof(ll_api, name)},
#include "ll.def"
#undef LL
};

/* The native target's parts have a name that the headers make at compile time.
 */
static bool start_target(void *lib)
{
    static const char *const part[] = {"TargetInfo", "Target", "TargetMC",
                                       "AsmPrinter"};
    char name[64];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "LLVMInitialize" NDC_LLVM_TARGET "%s",
                 part[i]);
        void (*init)(void);
        *(void **)&init = dlsym(lib, name);
        if (!init)
            return false;
        init();
    }
    return true;
}

const ll_api *ll_open(nd_ctx *ctx)
{
    static ll_api api;
    static bool open;
    if (open)
        return &api;
    void *lib = dlopen(NDC_LLVM_LIB, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        nd_error(ctx, nd_nowhere, "--kernels=llvm: cannot open LLVM: %s",
                 dlerror());
        return NULL;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *f = dlsym(lib, names[i].name);
        if (!f) {
            nd_error(ctx, nd_nowhere, "--kernels=llvm: `" NDC_LLVM_LIB "` has "
                     "no %s", names[i].name);
            return NULL;
        }
        *(void **)((char *)&api + names[i].at) = f;
    }
    if (!start_target(lib)) {
        nd_error(ctx, nd_nowhere, "--kernels=llvm: `" NDC_LLVM_LIB "` cannot "
                 "make code for " NDC_LLVM_TARGET);
        return NULL;
    }
    open = true;
    return &api;
}
