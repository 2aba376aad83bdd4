/* eval.c - what a module means: naive loops over doubles.
 *
 * On a sharded module every value has one piece per simulated rank, and each
 * op runs on all ranks before the next op begins. The ranks' pieces meet only
 * in collectives and in messages between stages, exactly where they do in a
 * generated program, so a missing collective gives wrong numbers here too.
 *
 *   eval.c         frames, values, dispatch, nd_eval
 *   eval_walk.c    loops over named axes
 *   eval_ops.c     sources, elementwise ops, products, gather and scatter
 *   eval_struct.c  repeat, accumulate, output
 *   eval_ranks.c   collectives, replicas, joining pieces
 *   eval_run.c     microbatches, stages, the schedule
 *
 * What is bf16 or f16 is always rounded: that is what a cast to it means. With
 * o->f32 every result is rounded to its dtype. Sums within one op
 * (contract, reduce, a collective) run in double and are rounded once, so they
 * are at least as exact as any order of float additions.
 */
#include "priv.h"

#include <math.h>
#include <string.h>

bool ev_error(ev_stage *s, const nd_op *op, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    nd_ctx *c = s->w->m->ctx;
    nd_error(c, op ? op->loc : (nd_loc){0}, "evaluation: %s", why);
    if (op) {
        nd_buf b = {.arena = s->w->arena};
        nd_print_op(&b, s->w->m, op);
        nd_note(c, (nd_loc){0}, "in `%s`", b.s);
    }
    return false;
}

/* ---- rounding ------------------------------------------------------------ */

/* To `bits` of mantissa, half to even; `least` is the exponent below which
 * numbers are subnormal. */
static double narrow(double x, int bits, int least, double most)
{
    if (x == 0 || isnan(x) || isinf(x))
        return x;
    int e = ilogb(x);
    double unit = ldexp(1, (e > least ? e : least) - bits + 1);
    double y = nearbyint(x / unit) * unit;
    return fabs(y) > most ? copysign(INFINITY, x) : y;
}

/* Integers wrap around, as 32 bits do. */
static double wrap32(double x)
{
    if (x >= -0x1p31 && x < 0x1p31)
        return x;
    double y = x - floor(x * 0x1p-32) * 0x1p32;
    return y >= 0x1p31 ? y - 0x1p32 : y;
}

/* To a grid whose points are multiples of a number that no sum of halves is,
 * so that sums which come out even in bits leave something here. Equal numbers
 * stay equal, and a number of the grid stays what it is. */
static double coarse(double x)
{
    if (x == 0 || !isfinite(x))
        return x;
    double unit = ldexp(1.37, ilogb(x) - 24);
    return nearbyint(x / unit) * unit;
}

double ev_round(const ev_stage *s, nd_dtype t, double x)
{
    if (s->w->o->coarse && nd_is_float(t))
        return coarse(x);
    if (s->w->o->exact && nd_is_float(t))
        return x;
    switch (t) {
    case ND_F32:
        return s->w->o->f32 ? (float)x : x;
    case ND_BF16:
        return narrow((float)x, 8, -126, 0x1.fep127);
    case ND_F16:
        return narrow((float)x, 11, -14, 65504);
    case ND_I32:
        return wrap32(x);
    default:
        return x;
    }
}

/* ---- frames and pieces --------------------------------------------------- */

ev_frame *ev_frame_new(ev_frame *up)
{
    nd_arena *a = nd_arena_new();
    ev_frame *f = ND_NEW(a, ev_frame);
    f->up = up;
    f->arena = a;
    f->table.arena = a;
    return f;
}

void ev_frame_free(ev_frame *f)
{
    if (f)
        nd_arena_free(f->arena);
}

ev_piece *ev_alloc(ev_stage *s, nd_arena *a, const nd_type *t)
{
    ev_piece *p = ND_NEWN(a, ev_piece, s->nranks);
    for (int r = 0; r < s->nranks; r++)
        p[r] = ev_piece_at(s->w->m, a, t, s->coord[r],
                           s->plan ? s->index : -1);
    return p;
}

ev_piece *ev_result(ev_stage *s, const nd_op *op, int i)
{
    ev_piece *p = ev_alloc(s, s->cur->arena, &op->out[i]->type);
    nd_table_put(&s->cur->table, op->out[i], p);
    return p;
}

ev_piece *ev_copy(const ev_stage *s, nd_arena *a, const ev_piece *p)
{
    ev_piece *q = ND_NEWN(a, ev_piece, s->nranks);
    for (int r = 0; r < s->nranks; r++) {
        q[r] = p[r];
        q[r].v = ND_NEWN(a, double, p[r].count + 1);
        memcpy(q[r].v, p[r].v, sizeof(double) * (size_t)p[r].count);
    }
    return q;
}

void ev_keep(ev_stage *s, ev_record *r, const nd_type *t, const ev_piece *p)
{
    ev_world *w = s->w;
    if (!r->mb)
        r->mb = ND_NEWN(w->arena, ev_piece *, w->nmicro);
    if (r->mb[s->micro])
        return;                      /* another stage computed it as well */
    r->set = true;
    r->type = *t;
    r->stage = s->index;
    r->mb[s->micro] = ev_copy(s, w->arena, p);
}

/* ---- values -------------------------------------------------------------- */

ev_piece *ev_find(ev_stage *s, const nd_value *v)
{
    for (const ev_frame *f = s->cur; f; f = f->up) {
        ev_piece *p = nd_table_get(&f->table, v);
        if (p)
            return p;
    }
    return NULL;
}

static bool follows_micro(const ev_stage *s, const nd_type *t)
{
    uint32_t bits = nd_cut_mask(t) | t->sum | t->max;
    return bits >> s->w->m->mesh.micro & 1;
}

ev_piece *ev_get(ev_stage *s, const nd_op *user, const nd_value *v)
{
    ev_piece *p = ev_find(s, v);
    if (p)
        return p;
    const nd_op *def = v->def;
    if (def && def->nin == 0 && !def->body && def->block == s->w->m->step) {
        ev_frame *here = s->cur, *mb = s->mb[s->micro];
        s->cur = mb && follows_micro(s, &v->type) ? mb : s->base;
        bool ok = ev_run(s, def);
        s->cur = here;
        return ok ? ev_find(s, v) : NULL;
    }
    ev_error(s, user, "%%%s is not on stage %d (microbatch %d)",
             v->name ? v->name : "?", s->index, s->micro);
    return NULL;
}

typedef bool eval_fn(ev_stage *s, const nd_op *op);

static eval_fn *const evals[OP_COUNT] = {
#define OP(K, name, nin, attrs, traits, rule, vjp, eval, doc) \
    [OP_##K] = eval_##eval,
#define EW(...)
#include "ops.def"
#undef OP
#undef EW
};

bool ev_run(ev_stage *s, const nd_op *op)
{
    if (!evals[op->kind](s, op))
        return false;
    for (int i = 0; i < op->nout; i++) {
        const ev_piece *p = ev_find(s, op->out[i]);
        if (p && !ev_same_replicas(s, op, &op->out[i]->type, p))
            return false;
    }
    return true;
}

/* ---- the whole ----------------------------------------------------------- */

/* The ranks of one stage: those at its device's place on the pipeline axis, all
 * others counted through. */
static void make_stage(ev_world *w, int index, bool staged)
{
    nd_module *m = w->m;
    ev_stage *s = &w->stage[index];
    bool sharded = m->state & ND_IS_SHARDED;
    int all = sharded ? nd_mesh_ranks(&m->mesh) : 1;
    *s = (ev_stage){.w = w, .index = index};
    s->plan = staged ? &m->program->stage[index] : NULL;
    int device = staged ? s->plan->device : 0;
    s->coord = nd_alloc(w->arena, sizeof *s->coord * (size_t)all);
    s->rank = ND_NEWN(w->arena, int, all);
    for (int r = 0; r < all; r++) {
        int *c = s->coord[s->nranks];
        memset(c, 0, sizeof *s->coord);
        if (sharded)
            nd_mesh_coords(&m->mesh, r, c);
        if (!sharded || m->mesh.pipe < 0 || c[m->mesh.pipe] == device)
            s->rank[s->nranks++] = r;
    }
    s->base = ev_frame_new(NULL);
    s->mb = ND_NEWN(w->arena, ev_frame *, w->nmicro);
    s->cur = s->base;
    s->arrived.arena = w->arena;
    s->grad = ND_NEWN(w->arena, ev_record, m->params.n);
}

/* Sizes that would only exhaust the machine. */
static void find_large(nd_op *op, void *user)
{
    const int64_t most = (int64_t)1 << 28;
    const nd_op **found = user;
    if (op->kind == OP_REPEAT && op->axes[0]->size > most)
        *found = op;
    for (int i = 0; i < op->nout; i++)
        if (nd_numel(&op->out[i]->type) > most)
            *found = op;
}

const nd_op *nd_too_large(nd_module *m)
{
    const nd_op *large = NULL;
    nd_walk(m->step, find_large, &large);
    return large;
}

/* Each rank's own gradients, as they stand when its last backward is over. */
static void hand_out(ev_world *w)
{
    nd_module *m = w->m;
    nd_arena *a = m->ctx->arena;
    w->r->held_grads = ND_NEWN(a, nd_piece *, m->params.n);
    for (int i = 0; i < m->params.n; i++) {
        int all = m->state & ND_IS_SHARDED ? nd_mesh_ranks(&m->mesh) : 1;
        w->r->held_grads[i] = ND_NEWN(a, nd_piece, w->nstages * all);
        for (int k = 0; k < w->nstages; k++) {
            const ev_stage *s = &w->stage[k];
            if (!s->grad[i].set)
                continue;
            const ev_piece *p = ev_copy(s, a, s->grad[i].mb[0]);
            for (int r = 0; r < s->nranks; r++)
                w->r->held_grads[i][k * all + s->rank[r]] = p[r];
        }
    }
}

static bool join_grads(ev_world *w)
{
    nd_module *m = w->m;
    nd_arena *a = m->ctx->arena;
    nd_tensor **grads = ND_NEWN(a, nd_tensor *, m->params.n);
    bool ok = true;
    for (int i = 0; i < m->params.n; i++) {
        grads[i] = ev_tensor(a, &m->params.v[i]->value->type);
        for (int k = 0; k < w->nstages; k++)
            if (w->stage[k].grad[i].set)
                ok &= ev_join(&w->stage[k], &w->stage[k].grad[i], grads[i]);
    }
    w->r->grads = grads;
    return ok;
}

static bool collect(ev_world *w)
{
    nd_module *m = w->m;
    nd_arena *a = m->ctx->arena;
    nd_eval_result *r = w->r;
    bool ok = true;
    if (m->state & ND_HAS_GRADS && w->o->held)
        hand_out(w);
    else if (m->state & ND_HAS_GRADS)
        ok = join_grads(w);
    r->outputs = ND_NEWN(a, nd_tensor *, m->outputs.n);
    for (int i = 0; i < m->outputs.n; i++) {
        ev_record *o = &w->output[i];
        if (!o->set)
            return ev_error(&w->stage[0], m->outputs.v[i], "never computed");
        r->outputs[i] = ev_tensor(a, &o->type);
        ok &= ev_join(&w->stage[o->stage], o, r->outputs[i]);
    }
    if (!m->loss)
        return ok;
    if (!w->loss.set)
        return ev_error(&w->stage[0], m->loss->def, "no stage has the loss");
    nd_tensor *t = ev_tensor(w->arena, &w->loss.type);
    ok &= ev_join(&w->stage[w->loss.stage], &w->loss, t);
    r->loss = t->v[0];
    return ok;
}

bool nd_eval(nd_module *m, const nd_eval_options *o, nd_eval_result *r)
{
    *r = (nd_eval_result){0};
    if (!nd_verify(m))
        return false;
    bool staged = m->program && m->state & ND_HAS_STAGES;
    bool sharded = m->state & ND_IS_SHARDED;
    ev_world w = {.m = m, .o = o, .r = r, .arena = nd_arena_new()};
    w.nstages = staged ? m->program->nstages : 1;
    w.nmicro = sharded ? m->mesh.size[m->mesh.micro] : 1;
    w.stage = ND_NEWN(w.arena, ev_stage, w.nstages);
    w.output = ND_NEWN(w.arena, ev_record, m->outputs.n);
    for (int i = 0; i < w.nstages; i++)
        make_stage(&w, i, staged);
    const nd_op *large = nd_too_large(m);
    bool ok = large ? ev_error(&w.stage[0], large, "too large to evaluate")
                    : ev_run_all(&w) && collect(&w);
    for (int i = 0; i < w.nstages; i++) {
        for (int k = 0; k < w.nmicro; k++)
            ev_frame_free(w.stage[i].mb[k]);
        ev_frame_free(w.stage[i].base);
    }
    nd_arena_free(w.arena);
    return ok;
}
