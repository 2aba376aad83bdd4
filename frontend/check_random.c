/* check_random.c - random numbers.
 *
 *   dropout(x, 0.1)        ->  %m = dropout_mask 0.1 "layers.drop"; mul %x, %m
 *   random_normal[seq, d]  ->  %n = random_normal "layers.random_normal"
 *
 * A number is a function of the seed, the step, the instance, the iteration and
 * the global element index, so it does not depend on the mesh.
 */
#include "frontend.h"

#include <string.h>

/* A name for random numbers of their own: `like` shares parameters, never
 * those. */
static const char *random_stream(ck *c, const char *path)
{
    const char *stream = path;
    for (int k = 2, i = 0; i < c->streams.n; i++)
        if (!strcmp(c->streams.v[i], stream)) {
            stream = nd_fmt(c->ctx->arena, "%s_%d", path, k++);
            i = -1;
        }
    ND_PUSH(c->ctx->arena, &c->streams, stream);
    return stream;
}

/* random_normal[axes]: the same numbers on every mesh. */
ck_val ck_random_normal(ck *c, ast_expr *e)
{
    ck_axes ax;
    ast_expr call = {.kind = E_CALL, .loc = e->loc};
    if (e->brk->right) {
        ck_error(c, e->loc, "this is written random_normal[axes]");
        return ck_bad();
    }
    if (!ck_bracket(c, e->brk->left, &ax))
        return ck_bad();
    ck_at(c, e->loc);
    nd_type t = nd_type_of(ND_F32, ax.n, ax.a);
    const char *path = ck_instance(c, &call, "random_normal");
    return ck_tensor(nd_random_normal(&c->b, &t, random_stream(c, path)));
}

ck_val ck_dropout(ck *c, ast_expr *e)
{
    static const char *const names[] = {"x", "p"};
    ast_expr *slot[2];
    double p;
    if (!ck_cfg_args(c, "dropout", e->args, names, 2, slot))
        return ck_bad();
    if (!slot[0] || !slot[1]) {
        ck_error(c, e->loc, "`dropout` is written dropout(x, p)");
        return ck_bad();
    }
    ck_val x = ck_expr(c, slot[0]);
    const char *path = ck_instance(c, e, "dropout");
    if (!path || !ck_is_value(c, slot[0]->loc, x) ||
        !ck_cfg_num(c, slot[1], &p))
        return ck_bad();
    if (!(p >= 0 && p < 1)) {
        ck_error(c, slot[1]->loc, "a dropout probability is in [0, 1)");
        return ck_bad();
    }
    if (p == 0)
        return x;
    const char *stream = random_stream(c, path);
    ck_at(c, e->loc);
    nd_value *v = ck_strong(c, x, ND_F32);
    ck_val r = x;
    if (!v)
        return ck_bad();
    r = ck_tensor(nd_map(&c->b, EW_MUL, v,
                         nd_dropout_mask(&c->b, &v->type, p, stream), NULL));
    r.gone = x.gone;
    return ck_narrow(c, r, ck_dtype(x));
}
