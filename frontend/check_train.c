/* check_train.c - the train block, and reading configuration values.
 *
 *   optimizer = adamw(lr = cosine(3e-4, warmup = 100, min = 3e-5))
 *
 * Defaults are PyTorch's where it has one: adam and adamw use betas 0.9 and
 * 0.999, eps 1e-8; adamw decays by 0.01, the others by nothing. Without an
 * optimizer it is adamw at 1e-3.
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
    nd_put(&b, n ? "; there is " : "");
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
        ck_error(c, e->loc, "a number is expected here");
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

static bool cfg_bool(ck *c, ast_expr *e, bool *out)
{
    if (e->kind != E_TRUE && e->kind != E_FALSE) {
        ck_error(c, e->loc, "true or false is expected here");
        return false;
    }
    *out = e->kind == E_TRUE;
    return true;
}

static bool cfg_str(ck *c, ast_expr *e, const char **out)
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
                return false;
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
            return false;
        }
        out[k] = a->e;
    }
    return true;
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

static int choose(ck *c, ast_expr *e, const char *what,
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

/* An entry that has one form: name(...). */
static bool written(ck *c, const ast_expr *e, const char *entry,
                    const char *name, const char *form)
{
    if (e->kind == E_CALL && head(e) && !strcmp(head(e), name))
        return true;
    ck_error(c, e->loc, "`%s` is written %s", entry, form);
    return false;
}

/* ---- patterns over parameter paths --------------------------------------- */

/* `*` stands for any characters. */
bool ck_glob(const char *p, const char *s)
{
    const char *star = NULL, *back = NULL;
    while (*s) {
        if (*p == '*') {
            star = p++;
            back = s;
        } else if (*p == *s || *p == '?') {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return !*p;
}

static void patterns(ck *c, ast_expr *e, bool frozen, bool value)
{
    if (!e)
        return;
    if (e->kind != E_LIST) {
        ck_error(c, e->loc, "a list of patterns is expected: [\"*.b\"]");
        return;
    }
    for (int i = 0; i < e->args->n; i++) {
        const char *p;
        bool hit = false;
        if (!cfg_str(c, e->args->v[i].e, &p))
            return;
        for (int k = 0; k < c->m->params.n; k++) {
            nd_param *q = c->m->params.v[k];
            if (!ck_glob(p, q->name))
                continue;
            hit = true;
            if (frozen)
                q->frozen = true;
            else
                q->decay = value;
        }
        if (!hit && c->m->loss)
            nd_warning(c->ctx, e->args->v[i].e->loc,
                       "no parameter matches \"%s\"", p);
    }
}

/* ---- the entries --------------------------------------------------------- */

void ck_sample_axis(ck *c, const ast_decl *train, ck_file *model)
{
    for (int i = 0; train && i < train->ents->n; i++) {
        const ast_arg *a = &train->ents->v[i];
        if (strcmp(a->name.s, "over"))
            continue;
        ck_bind *b = a->e->kind == E_NAME ? ck_find_bind(c, a->e->str) : NULL;
        if (b)
            c->m->sample = b->axis[0];
        else
            ck_unknown(c, a->e->loc, "axis", ast_text(c->ctx->arena, a->e));
        return;
    }
    ck_scope s = {.path = ""};
    ck_frame f = {.file = model, .scope = &s}, *was = c->f;
    c->f = &f;
    ck_bind *b = ck_find_bind(c, "batch");
    c->f = was;
    if (b)
        c->m->sample = b->axis[0];
}

static void data(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const names[] = {"text", "tokens", "arrays",
                                        "synthetic"};
    static const char *const arg[] = {"path"};
    ast_expr *slot[1];
    int k = choose(c, e, "data", names, 4);
    if (k < 0)
        return;
    if (k == 1) {
        ck_later(c, e->loc, "data from `tokens`");
        return;
    }
    t->data = k == 0 ? DATA_TEXT : k == 2 ? DATA_ARRAYS : DATA_SYNTHETIC;
    if (k == 3) {
        ck_cfg_word(c, e);
        return;
    }
    if (!ck_cfg_args(c, names[k], e->args, arg, 1, slot))
        return;
    if (!slot[0])
        ck_error(c, e->loc, "`%s` needs a path", names[k]);
    else
        cfg_str(c, slot[0], &t->data_path);
    if (k == 2 && t->data_path && strlen(t->data_path) > 4 &&
        !strcmp(t->data_path + strlen(t->data_path) - 4, ".npz"))
        ck_later(c, slot[0]->loc, "data from an .npz file");
}

/* lr = 3e-4, or a schedule with its peak first. */
static void learning_rate(ck *c, ast_expr *e, nd_train *t,
                          ast_expr **decay)
{
    static const char *const names[] = {"cosine", "linear", "wsd"};
    static const char *const args[] = {"peak", "warmup", "min", "decay"};
    ast_expr *slot[4];
    if (e->kind != E_CALL) {
        ck_cfg_at_least(c, e, 0, &t->lr);
        return;
    }
    int k = choose(c, e, "schedule", names, 3);
    if (k < 0 || !ck_cfg_args(c, names[k], e->args, args, k == 2 ? 4 : 3,
                              slot))
        return;
    t->lr_kind = k == 0 ? LR_COSINE : k == 1 ? LR_LINEAR : LR_WSD;
    if (!slot[0])
        ck_error(c, e->loc, "`%s` needs its peak rate", names[k]);
    else
        ck_cfg_at_least(c, slot[0], 0, &t->lr);
    if (slot[1])
        ck_cfg_int(c, slot[1], 0, &t->warmup);
    if (slot[2])
        ck_cfg_at_least(c, slot[2], 0, &t->lr_min);
    *decay = k == 2 ? slot[3] : NULL;
}

static void betas(ck *c, ast_expr *e, nd_train *t)
{
    double *dst[] = {&t->beta1, &t->beta2};
    if (e->kind != E_LIST || e->args->n != 2) {
        ck_error(c, e->loc, "two numbers are expected: [0.9, 0.999]");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (ck_cfg_num(c, e->args->v[i].e, dst[i]) &&
            !(*dst[i] >= 0 && *dst[i] < 1))
            ck_error(c, e->args->v[i].e->loc, "a beta is in [0, 1)");
}

static void optimizer(ck *c, ast_expr *e, nd_train *t, ast_expr **wsd,
                      ast_expr **decay, ast_expr **no_decay)
{
    static const char *const names[] = {"sgd", "adam", "adamw", "lion",
                                        "muon"};
    static const char *const sgd[] = {"lr", "momentum", "nesterov",
                                      "weight_decay", "decay", "no_decay"};
    static const char *const adam[] = {"lr", "betas", "eps", "weight_decay",
                                       "decay", "no_decay"};
    ast_expr *slot[6];
    int k = choose(c, e, "optimizer", names, 5);
    if (k < 0)
        return;
    if (k > 2) {
        ck_later(c, e->loc, nd_fmt(c->ctx->arena, "`%s`", names[k]));
        return;
    }
    t->opt = k == 0 ? OPT_SGD : k == 1 ? OPT_ADAM : OPT_ADAMW;
    t->weight_decay = k == 2 ? 0.01 : 0;
    if (!ck_cfg_args(c, names[k], e->args, k ? adam : sgd, 6, slot))
        return;
    if (slot[0])
        learning_rate(c, slot[0], t, wsd);
    if (k == 0) {
        if (slot[1])
            ck_cfg_at_least(c, slot[1], 0, &t->momentum);
        if (slot[2])
            cfg_bool(c, slot[2], &t->nesterov);
    } else {
        if (slot[1])
            betas(c, slot[1], t);
        if (slot[2])
            ck_cfg_at_least(c, slot[2], 0, &t->eps);
    }
    if (slot[3])
        ck_cfg_at_least(c, slot[3], 0, &t->weight_decay);
    *decay = slot[4] ? slot[4] : *decay;
    *no_decay = slot[5] ? slot[5] : *no_decay;
}

static void evaluation(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const args[] = {"steps", "batches"};
    ast_expr *slot[2];
    if (!written(c, e, "eval", "every", "every(100, batches = 8)") ||
        !ck_cfg_args(c, "every", e->args, args, 2, slot))
        return;
    t->eval_batches = 1;
    if (!slot[0])
        ck_error(c, e->loc, "`every` needs a number of steps");
    else
        ck_cfg_int(c, slot[0], 1, &t->eval_every);
    if (slot[1])
        ck_cfg_int(c, slot[1], 1, &t->eval_batches);
}

static void initial(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const args[] = {"path", "prefix"};
    ast_expr *slot[2];
    if (!written(c, e, "init", "load", "load(\"path.safetensors\")") ||
        !ck_cfg_args(c, "load", e->args, args, 2, slot))
        return;
    if (!slot[0])
        ck_error(c, e->loc, "`load` needs a path");
    else
        cfg_str(c, slot[0], &t->load_path);
    if (slot[1])
        cfg_str(c, slot[1], &t->load_prefix);
}

static void precision(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const names[] = {"f32", "bf16"};
    int k = choose(c, e, "precision", names, 2);
    if (k >= 0 && ck_cfg_word(c, e))
        t->precision = k ? ND_BF16 : ND_F32;
}

/* wsd: the last part of the steps, as a fraction or a number of them. */
static void wsd_decay(ck *c, ast_expr *e, nd_train *t)
{
    double part = 0.2;
    if (t->lr_kind != LR_WSD)
        return;
    if (e && !ck_cfg_at_least(c, e, 0, &part))
        return;
    if (e && part > (double)t->steps) {
        ck_error(c, e->loc, "the decay is longer than the training");
        return;
    }
    t->decay_steps = (int64_t)(part < 1 ? part * (double)t->steps : part);
}

void ck_train(ck *c, const ast_decl *d)
{
    static const char *const names[] = {
        "data", "optimizer", "clip", "steps", "seed", "eval", "init",
        "precision", "decay", "no_decay", "freeze", "over", "checkpoint",
    };
    enum { DATA, OPTIMIZER, CLIP, STEPS, SEED, EVAL, INIT, PRECISION, DECAY,
           NO_DECAY, FREEZE, OVER, CHECKPOINT, N };
    nd_train *t = &c->m->train;
    ast_expr *slot[N] = {0}, *wsd = NULL;
    int64_t seed = 1;
    *t = (nd_train){.opt = OPT_ADAMW, .lr = 1e-3, .beta1 = 0.9,
                    .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01,
                    .steps = 1000, .seed = 1};
    if (!d)
        return;
    t->loc = d->loc;
    if (!ck_cfg_args(c, "train", d->ents, names, N, slot))
        return;
    if (slot[DATA])
        data(c, slot[DATA], t);
    if (slot[OPTIMIZER])
        optimizer(c, slot[OPTIMIZER], t, &wsd, &slot[DECAY], &slot[NO_DECAY]);
    if (slot[CLIP])
        ck_cfg_at_least(c, slot[CLIP], 0, &t->clip);
    if (slot[STEPS])
        ck_cfg_int(c, slot[STEPS], 1, &t->steps);
    if (slot[SEED] && ck_cfg_int(c, slot[SEED], 0, &seed))
        t->seed = (uint64_t)seed;
    if (slot[EVAL])
        evaluation(c, slot[EVAL], t);
    if (slot[INIT])
        initial(c, slot[INIT], t);
    if (slot[PRECISION])
        precision(c, slot[PRECISION], t);
    if (slot[CHECKPOINT])
        ck_later(c, slot[CHECKPOINT]->loc, "`checkpoint`");
    wsd_decay(c, wsd, t);
    patterns(c, slot[DECAY], false, true);
    patterns(c, slot[NO_DECAY], false, false);
    patterns(c, slot[FREEZE], true, true);
}
