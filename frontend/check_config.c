/* check_config.c - reading configuration values: numbers, words, calls whose
 * arguments have names.
 *
 *   every(100, batches = 8)      ck_cfg_args sorts the two into slots
 */
#include "frontend.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- reading values ------------------------------------------------------ */

/* "; did you mean `b`?", or what there is. */
static const char *hint(ck *c, const char *name, const char *const *cand,
                        int n)
{
    const char *near = nd_nearest(name, cand, n);
    nd_buf b = {c->ctx->arena, NULL, 0, 0};
    if (near)
        return nd_fmt(c->ctx->arena, "; did you mean `%s`?", near);
    nd_put(&b, n > 1 ? "; there are " : n ? "; there is " : "");
    for (int i = 0; i < n; i++)
        nd_putf(&b, "%s`%s`", !i ? "" : i + 1 < n ? ", " : " and ", cand[i]);
    return b.s;
}

void ck_near_error(ck *c, nd_loc at, const char *what, const char *name,
                   const char *const *cand, int n)
{
    ck_say(c, at, "unknown %s `%s`%s", what, name, hint(c, name, cand, n));
}

bool ck_cfg_num(ck *c, ast_expr *e, double *out)
{
    bool was = c->const_only;
    c->const_only = true;
    ck_val v = ck_expr(c, e);
    c->const_only = was;
    if (v.kind == VAL_BAD)
        return false;
    if (v.kind != VAL_CONST || v.dtype == ND_BOOL) {
        ck_error(c, e->loc, v.kind == VAL_TENSOR
                     ? "a compile-time number is expected here"
                     : "a number is expected here");
        return false;
    }
    if (!(fabs(v.f) <= FLT_MAX)) {
        ck_error(c, e->loc, "a finite number is expected here, this is %s",
                 isnan(v.f) ? "not a number"
                            : nd_fmt(c->ctx->arena, "%g", v.f));
        return false;
    }
    *out = v.f;
    return true;
}

bool ck_cfg_int(ck *c, ast_expr *e, int64_t lo, int64_t *out)
{
    double f;
    if (!ck_cfg_num(c, e, &f))
        return false;
    if (!(f >= (double)lo && f < 9e18) || f != (double)(int64_t)f) {
        ck_error(c, e->loc, "an integer of at least %lld is expected here",
                 (long long)lo);
        return false;
    }
    *out = (int64_t)f;
    return true;
}

bool ck_cfg_bool(ck *c, ast_expr *e, bool *out)
{
    if (e->kind != E_TRUE && e->kind != E_FALSE) {
        ck_error(c, e->loc, "true or false is expected here");
        return false;
    }
    *out = e->kind == E_TRUE;
    return true;
}

bool ck_cfg_str(ck *c, ast_expr *e, const char **out)
{
    if (e->kind != E_STR) {
        ck_error(c, e->loc, "a string is expected here");
        return false;
    }
    *out = e->str;
    return true;
}

bool ck_cfg_at_least(ck *c, ast_expr *e, double lo, double *out)
{
    if (!ck_cfg_num(c, e, out))
        return false;
    if (*out >= lo)
        return true;
    ck_error(c, e->loc, "a number of at least %g is expected here", lo);
    return false;
}

bool ck_cfg_args(ck *c, const char *what, const ast_args *args,
                 const char *const *names, int n, ast_expr **out)
{
    int next = 0;
    bool ok = true;
    memset(out, 0, sizeof *out * (size_t)n);
    for (int i = 0; args && i < args->n; i++) {
        const ast_arg *a = &args->v[i];
        int k = next;
        if (a->name.s) {
            for (k = 0; k < n && strcmp(names[k], a->name.s); k++)
                ;
            if (k == n) {
                ck_say(c, a->name.loc, "`%s` has no %s `%s`%s", what,
                       strcmp(what, "train") ? "argument" : "entry",
                       a->name.s, hint(c, a->name.s, names, n));
                ok = false;
                continue;
            }
        } else if (k >= n) {
            ck_error(c, a->e->loc, "`%s` takes %d argument%s", what, n,
                     n == 1 ? "" : "s");
            return false;
        } else {
            next++;
        }
        if (out[k]) {
            ck_error(c, a->name.s ? a->name.loc : a->e->loc,
                     "`%s` is given twice", names[k]);
            ck_note(c, out[k]->loc, "the first one is here");
            ok = false;
            continue;
        }
        out[k] = a->e;
    }
    return ok;
}

/* The name of `name` or `name(...)`, or NULL. */
static const char *head(const ast_expr *e)
{
    if (e->kind == E_CALL && e->a->kind == E_NAME)
        return e->a->str;
    return e->kind == E_NAME ? e->str : NULL;
}

bool ck_cfg_word(ck *c, const ast_expr *e)
{
    if (e->kind != E_CALL || !e->args->n)
        return true;
    ck_error(c, e->loc, "`%s` takes no arguments", head(e));
    return false;
}

int ck_cfg_choose(ck *c, ast_expr *e, const char *what,
                  const char *const *names, int n)
{
    const char *h = head(e);
    for (int i = 0; h && i < n; i++)
        if (!strcmp(h, names[i]))
            return i;
    if (h) {
        ck_near_error(c, e->kind == E_CALL ? e->a->loc : e->loc, what, h,
                      names, n);
    } else {
        ck_near_error(c, e->loc, what, ast_text(c->ctx->arena, e), names, n);
    }
    return -1;
}

bool ck_cfg_form(ck *c, const ast_expr *e, const char *entry,
                 const char *name, const char *form)
{
    if (e->kind == E_CALL && head(e) && !strcmp(head(e), name))
        return true;
    ck_error(c, e->loc, "`%s` is written %s", entry, form);
    return false;
}
