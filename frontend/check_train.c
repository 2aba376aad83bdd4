/* check_train.c - the train block.
 *
 *   optimizer = adamw(lr = cosine(3e-4, warmup = 100, min = 3e-5))
 *   no_decay  = ["wte"]
 *   metric    = correct
 *
 * Defaults are PyTorch's where it has one: adam and adamw use betas 0.9 and
 * 0.999, eps 1e-8; adamw decays by 0.01, muon by 0.1, the others by nothing.
 * lion's are its paper's: 1e-4, betas 0.9 and 0.99. Without an optimizer it is
 * adamw at 1e-3.
 *
 * Weight decay is for matrices, parameters written with an arrow. `decay` and
 * `no_decay` change that for the parameters that they match; where both match
 * one, the entry that is written later decides. muon is for matrices too: what
 * its `adamw` matches (tables that are looked up, the head) and all others take
 * AdamW's update instead.
 */
#include "frontend.h"

#include <string.h>

/* ---- patterns over parameters -------------------------------------------- */

typedef enum {
    PAT_DECAY, PAT_NO_DECAY, PAT_FREEZE, PAT_ADAMW, PAT_LOAD
} pattern_use;

static void use_pattern(nd_param *q, pattern_use use)
{
    if (use == PAT_FREEZE)
        q->frozen = true;
    else if (use == PAT_ADAMW)
        q->muon = false;
    else if (use == PAT_LOAD)
        q->load = true;
    else
        q->decay = use == PAT_DECAY;
}

static void patterns(ck *c, ast_expr *e, pattern_use use)
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
        if (!ck_cfg_str(c, e->args->v[i].e, &p))
            return;
        for (int k = 0; k < c->m->params.n; k++) {
            nd_param *q = c->m->params.v[k];
            if (!nd_glob(p, q->name))
                continue;
            hit = true;
            use_pattern(q, use);
        }
        if (!hit && c->m->loss)
            nd_warning(c->ctx, e->args->v[i].e->loc,
                       "no parameter matches \"%s\"", p);
    }
}

/* An entry of `train` that an optimizer may hold too. */
static ast_expr *one_of(ck *c, ast_expr *a, ast_expr *b, const char *what)
{
    if (a && b) {
        ck_error(c, b->loc, "`%s` is given twice", what);
        ck_note(c, a->loc, "the first one is here");
    }
    return a ? a : b;
}

static void decay_groups(ck *c, ast_expr *yes, ast_expr *no)
{
    bool yes_first = !yes || !no || yes->loc.begin < no->loc.begin;
    if (!yes_first)
        patterns(c, no, PAT_NO_DECAY);
    patterns(c, yes, PAT_DECAY);
    if (yes_first)
        patterns(c, no, PAT_NO_DECAY);
}

/* Without a `freeze`, the loss itself is what is wrong (autodiff.c). */
static void check_freeze(ck *c, const ast_expr *e)
{
    for (int k = 0; e && k < c->m->params.n; k++)
        if (!c->m->params.v[k]->frozen)
            return;
    if (e && c->m->loss && c->m->params.n)
        ck_error(c, e->loc, "`freeze` leaves no parameter to train");
}

static void muon_group(ck *c, ast_expr *adamw)
{
    for (int k = 0; k < c->m->params.n; k++)
        c->m->params.v[k]->muon = c->m->params.v[k]->matrix;
    patterns(c, adamw, PAT_ADAMW);
    for (int k = 0; k < c->m->params.n; k++) {
        nd_param *q = c->m->params.v[k];
        q->muon = q->muon && !q->frozen;
        if (q->muon && q->lead < 0)
            ck_error(c, q->loc, "muon: the axes of `%s` that make many "
                     "matrices of it come first; or list it in muon's `adamw`",
                     q->name);
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

/* u8, u16 or u32: bytes of a token. */
static int token_width(ck *c, ast_expr *e)
{
    static const char *const names[] = {"u8", "u16", "u32"};
    int k = ck_cfg_choose(c, e, "token type", names, 3);
    return k >= 0 && ck_cfg_word(c, e) ? 1 << k : 0;
}

/* text(path), tokens(path, u16), arrays(path): each with its evaluation data in
 * `eval`, else the last part of the one file is held out. */
static void data(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const names[] = {"text", "tokens", "arrays",
                                        "synthetic"};
    static const nd_data kinds[] = {DATA_TEXT, DATA_TOKENS, DATA_ARRAYS,
                                    DATA_SYNTHETIC};
    static const char *const args[] = {"path", "eval"};
    static const char *const token_args[] = {"path", "type", "eval"};
    ast_expr *slot[3];
    int k = ck_cfg_choose(c, e, "data", names, 4);
    if (k < 0)
        return;
    t->data = kinds[k];
    if (k == 3) {
        ck_cfg_word(c, e);
        return;
    }
    bool tokens = t->data == DATA_TOKENS;
    if (!ck_cfg_args(c, names[k], e->args, tokens ? token_args : args,
                     tokens ? 3 : 2, slot))
        return;
    if (!slot[0])
        ck_error(c, e->loc, "`%s` needs a path", names[k]);
    else
        ck_cfg_str(c, slot[0], &t->data_path);
    if (tokens)
        t->token_bytes = slot[1] ? token_width(c, slot[1]) : 2;
    ast_expr *eval = slot[tokens ? 2 : 1];
    if (eval)
        ck_cfg_str(c, eval, &t->eval_path);
}

/* lr = 3e-4, or a schedule with its peak first. */
static void learning_rate(ck *c, ast_expr *e, nd_train *t,
                          ast_expr **warmup, ast_expr **decay)
{
    static const char *const names[] = {"constant", "cosine", "linear",
                                        "wsd"};
    static const nd_lr_kind kinds[] = {LR_CONST, LR_COSINE, LR_LINEAR,
                                       LR_WSD};
    static const int nargs[] = {2, 3, 3, 4};
    static const char *const args[] = {"peak", "warmup", "min", "decay"};
    ast_expr *slot[4] = {0};
    if (e->kind != E_CALL) {
        ck_cfg_at_least(c, e, 0, &t->lr);
        return;
    }
    int k = ck_cfg_choose(c, e, "schedule", names, 4);
    if (k < 0 || !ck_cfg_args(c, names[k], e->args, args, nargs[k], slot))
        return;
    t->lr_kind = kinds[k];
    if (!slot[0])
        ck_error(c, e->loc, "`%s` needs its peak rate", names[k]);
    else
        ck_cfg_at_least(c, slot[0], 0, &t->lr);
    if (slot[1] && ck_cfg_int(c, slot[1], 0, &t->warmup))
        *warmup = slot[1];
    if (nargs[k] > 2 && slot[2] &&
        ck_cfg_at_least(c, slot[2], 0, &t->lr_min) && t->lr_min > t->lr)
        ck_error(c, slot[2]->loc, "the least rate is above the peak");
    *decay = nargs[k] > 3 ? slot[3] : NULL;
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

/* What an optimizer says of groups of parameters, for later. */
typedef struct groups {
    ast_expr *warmup, *wsd, *decay, *no_decay, *adamw;
} groups;

/* The arguments of all optimizers: each takes some, in its own order. */
typedef enum {
    A_LR, A_MOMENTUM, A_NESTEROV, A_BETAS, A_EPS, A_STEPS, A_WEIGHT_DECAY,
    A_ADAMW, A_ADAMW_LR, A_DECAY, A_NO_DECAY, NARGS
} arg;

static const char *const arg_names[NARGS] = {
    "lr", "momentum", "nesterov", "betas", "eps", "steps", "weight_decay",
    "adamw", "adamw_lr", "decay", "no_decay",
};

static const struct {
    const char *name;
    nd_optimizer opt;
    double lr, beta2, weight_decay, momentum;
    int nargs;
    arg args[NARGS];
} optimizers[] = {
    {"sgd", OPT_SGD, 1e-3, 0.999, 0, 0, 6,
     {A_LR, A_MOMENTUM, A_NESTEROV, A_WEIGHT_DECAY, A_DECAY, A_NO_DECAY}},
    {"adam", OPT_ADAM, 1e-3, 0.999, 0, 0, 6,
     {A_LR, A_BETAS, A_EPS, A_WEIGHT_DECAY, A_DECAY, A_NO_DECAY}},
    {"adamw", OPT_ADAMW, 1e-3, 0.999, 0.01, 0, 6,
     {A_LR, A_BETAS, A_EPS, A_WEIGHT_DECAY, A_DECAY, A_NO_DECAY}},
    {"lion", OPT_LION, 1e-4, 0.99, 0, 0, 5,
     {A_LR, A_BETAS, A_WEIGHT_DECAY, A_DECAY, A_NO_DECAY}},
    {"muon", OPT_MUON, 1e-3, 0.999, 0.1, 0.95, 11,
     {A_LR, A_MOMENTUM, A_NESTEROV, A_STEPS, A_WEIGHT_DECAY, A_ADAMW,
      A_ADAMW_LR, A_BETAS, A_EPS, A_DECAY, A_NO_DECAY}},
};
enum { NOPTIMIZERS = sizeof optimizers / sizeof *optimizers };

static void optimizer_args(ck *c, ast_expr **a, nd_train *t, groups *g)
{
    double adamw_lr;
    if (a[A_LR])
        learning_rate(c, a[A_LR], t, &g->warmup, &g->wsd);
    if (a[A_MOMENTUM] && ck_cfg_num(c, a[A_MOMENTUM], &t->momentum) &&
        !(t->momentum >= 0 && t->momentum < 1))
        ck_error(c, a[A_MOMENTUM]->loc, "a momentum is in [0, 1)");
    if (a[A_NESTEROV])
        ck_cfg_bool(c, a[A_NESTEROV], &t->nesterov);
    if (a[A_BETAS])
        betas(c, a[A_BETAS], t);
    if (a[A_EPS])
        ck_cfg_at_least(c, a[A_EPS], 0, &t->eps);
    if (a[A_STEPS])
        ck_cfg_int(c, a[A_STEPS], 1, &t->ns_steps);
    if (a[A_WEIGHT_DECAY])
        ck_cfg_at_least(c, a[A_WEIGHT_DECAY], 0, &t->weight_decay);
    if (a[A_ADAMW_LR] && ck_cfg_at_least(c, a[A_ADAMW_LR], 0, &adamw_lr) &&
        t->lr > 0)
        t->adamw_ratio = adamw_lr / t->lr;
    g->decay = a[A_DECAY];
    g->no_decay = a[A_NO_DECAY];
    g->adamw = a[A_ADAMW];
}

static void optimizer(ck *c, ast_expr *e, nd_train *t, groups *g)
{
    const char *names[NOPTIMIZERS], *args[NARGS];
    ast_expr *slot[NARGS], *a[NARGS] = {0};
    for (int i = 0; i < NOPTIMIZERS; i++)
        names[i] = optimizers[i].name;
    int k = ck_cfg_choose(c, e, "optimizer", names, NOPTIMIZERS);
    if (k < 0)
        return;
    t->opt = optimizers[k].opt;
    t->lr = optimizers[k].lr;
    t->beta2 = optimizers[k].beta2;
    t->weight_decay = optimizers[k].weight_decay;
    t->momentum = optimizers[k].momentum;
    t->nesterov = t->opt == OPT_MUON;
    t->ns_steps = t->opt == OPT_MUON ? 5 : 0;
    for (int i = 0; i < optimizers[k].nargs; i++)
        args[i] = arg_names[optimizers[k].args[i]];
    if (!ck_cfg_args(c, names[k], e->args, args, optimizers[k].nargs, slot))
        return;
    for (int i = 0; i < optimizers[k].nargs; i++)
        a[optimizers[k].args[i]] = slot[i];
    optimizer_args(c, a, t, g);
}

static void evaluation(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const args[] = {"steps", "batches"};
    ast_expr *slot[2];
    if (!ck_cfg_form(c, e, "eval", "every", "every(100, batches = 8)") ||
        !ck_cfg_args(c, "every", e->args, args, 2, slot))
        return;
    if (!slot[0])
        ck_error(c, e->loc, "`every` needs a number of steps");
    else
        ck_cfg_int(c, slot[0], 1, &t->eval_every);
    if (slot[1])
        ck_cfg_int(c, slot[1], 1, &t->eval_batches);
}

static void checkpoint(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const args[] = {"steps", "keep", "path"};
    ast_expr *slot[3];
    if (!ck_cfg_form(c, e, "checkpoint", "every", "every(1000, keep = 3)") ||
        !ck_cfg_args(c, "every", e->args, args, 3, slot))
        return;
    t->save_folder = "checkpoints";
    if (!slot[0])
        ck_error(c, e->loc, "`every` needs a number of steps");
    else
        ck_cfg_int(c, slot[0], 1, &t->save_every);
    if (slot[1])
        ck_cfg_int(c, slot[1], 1, &t->keep);
    if (slot[2])
        ck_cfg_str(c, slot[2], &t->save_folder);
}

/* Is `path` inside the instance `prefix`: "teacher.w" in "teacher"? */
static bool is_below(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);
    return !strncmp(path, prefix, n) && path[n] == '.';
}

static void initial(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const args[] = {"path", "prefix", "only"};
    ast_expr *slot[3];
    bool below = false;
    if (!ck_cfg_form(c, e, "init", "load", "load(\"path.safetensors\")") ||
        !ck_cfg_args(c, "load", e->args, args, 3, slot))
        return;
    if (!slot[0])
        ck_error(c, e->loc, "`load` needs a path");
    else
        ck_cfg_str(c, slot[0], &t->load_path);
    if (slot[1] && !ck_cfg_str(c, slot[1], &t->load_prefix))
        return;
    patterns(c, slot[2], PAT_LOAD);
    for (int i = 0; i < c->m->params.n; i++) {
        nd_param *q = c->m->params.v[i];
        bool inside = !slot[1] || is_below(q->name, t->load_prefix);
        q->load = inside && (!slot[2] || q->load);
        below |= inside;
    }
    if (slot[1] && !below && c->m->loss)
        ck_error(c, slot[1]->loc, "no parameter is below `%s`",
                 t->load_prefix);
}

/* metric = correct, or a list: outputs with the sample axis, whose mean over
 * the evaluation data is reported beside the loss. */
static void add_metric(ck *c, const ast_expr *e, nd_train *t)
{
    nd_module *m = c->m;
    const char **names = ND_NEWN(c->ctx->arena, const char *,
                                 m->outputs.n + 1);
    if (e->kind != E_NAME) {
        ck_error(c, e->loc, "the name of an output is expected here");
        return;
    }
    for (int i = 0; i < m->outputs.n; i++) {
        const nd_op *op = m->outputs.v[i];
        names[i] = op->name;
        if (strcmp(op->name, e->str))
            continue;
        if (!m->sample || nd_axis_at(&op->in[0]->type, m->sample) < 0)
            ck_error(c, e->loc, "a metric has a value per sample: `%s` is %s, "
                     "without the axis `%s`", e->str,
                     ck_type(c, &op->in[0]->type),
                     m->sample ? m->sample->name : "batch");
        for (int k = 0; k < t->metrics.n; k++)
            if (!strcmp(t->metrics.v[k], e->str))
                ck_error(c, e->loc, "`%s` is listed twice", e->str);
        ND_PUSH(c->ctx->arena, &t->metrics, e->str);
        return;
    }
    if (m->outputs.n)
        ck_near_error(c, e->loc, "output", e->str, names, m->outputs.n);
    else
        ck_error(c, e->loc, "the model has no `output %s`", e->str);
}

static void metrics(ck *c, const ast_expr *e, nd_train *t)
{
    if (e->kind != E_LIST) {
        add_metric(c, e, t);
        return;
    }
    for (int i = 0; i < e->args->n; i++)
        add_metric(c, e->args->v[i].e, t);
}

static void precision(ck *c, ast_expr *e, nd_train *t)
{
    static const char *const names[] = {"f32", "bf16"};
    int k = ck_cfg_choose(c, e, "precision", names, 2);
    if (k >= 0 && ck_cfg_word(c, e))
        t->precision = k ? ND_BF16 : ND_F32;
}

/* A run may be short to try something out, and ends before the peak. */
static void check_warmup(ck *c, const ast_expr *e, const nd_train *t)
{
    if (e && t->warmup > t->steps)
        nd_warning(c->ctx, e->loc, "the warmup is longer than the training of "
                   "%lld steps: the peak is never reached",
                   (long long)t->steps);
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
        "metric",
    };
    enum { DATA, OPTIMIZER, CLIP, STEPS, SEED, EVAL, INIT, PRECISION, DECAY,
           NO_DECAY, FREEZE, OVER, CHECKPOINT, METRIC, N };
    nd_train *t = &c->m->train;
    ast_expr *slot[N] = {0};
    groups g = {0};
    int64_t seed = 1;
    *t = (nd_train){.opt = OPT_ADAMW, .lr = 1e-3, .beta1 = 0.9,
                    .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01,
                    .adamw_ratio = 1, .steps = 1000, .seed = 1};
    if (!d)
        return;
    t->loc = d->loc;
    ck_cfg_args(c, "train", d->ents, names, N, slot);
    if (slot[DATA])
        data(c, slot[DATA], t);
    if (slot[OPTIMIZER])
        optimizer(c, slot[OPTIMIZER], t, &g);
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
        checkpoint(c, slot[CHECKPOINT], t);
    if (slot[METRIC])
        metrics(c, slot[METRIC], t);
    if (t->eval_every && !t->eval_batches && !t->metrics.n)
        t->eval_batches = 1;         /* a metric is of all evaluation data */
    check_warmup(c, g.warmup, t);
    wsd_decay(c, g.wsd, t);
    decay_groups(c, one_of(c, slot[DECAY], g.decay, "decay"),
                 one_of(c, slot[NO_DECAY], g.no_decay, "no_decay"));
    patterns(c, slot[FREEZE], PAT_FREEZE);
    check_freeze(c, slot[FREEZE]);
    if (t->opt == OPT_MUON)
        muon_group(c, g.adamw);
}
