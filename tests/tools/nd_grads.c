/* nd_grads.c - what has a gradient, for tests/eval/grads.sh.
 *
 *   nd_grads --list        every row of ops.def with a gradient and every
 *                          function of nn.nd:  row add / op gather / fn gelu
 *   nd_grads --row NAME    a program whose loss is that elementwise function
 *                          of parameters, made from its form in nd_forms.h
 */
#include "../../frontend/frontend.h"
#include "nd_forms.h"

#include <string.h>

static const char *const op_vjp[OP_COUNT] = {
#define OP(KIND, name, nin, attrs, traits, rule, vjp, ...) [OP_##KIND] = #vjp,
#define EW(...)
#include "../../ir/ops.def"
#undef OP
#undef EW
};

static const char *const ew_vjp[EW_COUNT] = {
#define OP(...)
#define EW(KIND, name, nin, result, c, cost, value, vjp, ...) \
    [EW_##KIND] = #vjp,
#include "../../ir/ops.def"
#undef OP
#undef EW
};

static bool has_gradient(const char *vjp)
{
    return strcmp(vjp, "NOGRAD") != 0;
}

static int list(void)
{
    for (int i = 0; i < EW_COUNT; i++)
        if (has_gradient(ew_vjp[i]))
            printf("row %s\n", nd_ews[i].name);
    for (int i = 0; i < OP_COUNT; i++)
        if (has_gradient(op_vjp[i]))
            printf("op %s\n", nd_ops[i].name);
    nd_ctx *c = nd_ctx_new();
    int file = nd_add_file(c, "nn.nd", nd_lib_nn, strlen(nd_lib_nn));
    ast_file *f = nd_parse(c, file);
    for (int i = 0; f && i < f->decls.n; i++)
        if (f->decls.v[i]->kind == I_FN)
            printf("fn %s\n", f->decls.v[i]->name.s);
    nd_ctx_free(c);
    return f == NULL;
}

/* Operands over different axes, one of them scaled, so that a gradient that
 * forgets an axis or swaps two operands shows. */
static int row(const char *name)
{
    static const char *const value[] = {"u", "(1.7 * v)", "w"};
    int k = nd_ew_find(name);
    if (k < 0 || !ew_forms[k].text) {
        fprintf(stderr, "nd_grads: `%s` has no form in nd_forms.h\n", name);
        return 1;
    }
    const char *operand[3];
    for (int i = 0; ew_forms[k].args[i]; i++)
        operand[i] = ew_forms[k].args[i] == 'b' ? "(u < 0.2 * w)" : value[i];
    nd_arena *a = nd_arena_new();
    nd_buf b = {.arena = a};
    ew_say(&b, k, operand);
    printf("axis a = 3\naxis b = 5\naxis c = 2\nmodel m() {\n"
           "  u = param [a, b] ~ normal(0.7)\n"
           "  v = param [b, c] ~ normal(0.7)\n"
           "  w = param [a, c] ~ normal(0.7)\n"
           "  y = %s + 0.1 * u * v * w\n"
           "  return sum[a, b, c](y * y * (1 + index[a] + 0.3 * index[b]))\n"
           "}\n", b.s);
    nd_arena_free(a);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        return list();
    if (argc == 3 && strcmp(argv[1], "--row") == 0)
        return row(argv[2]);
    fprintf(stderr, "usage: nd_grads --list | --row NAME\n");
    return 2;
}
