/* layout.c - how values lie in memory: extents, strides, views.
 *
 * A view op (slice, rename, split, flatten, broadcast, stop_gradient, a scanned
 * argument) moves nothing; nd_ref_of follows it to the root and composes
 * strides:
 *
 *   param "layers.q.w" f32[layers, d, heads, head]   scanned at iteration l
 *     -> weight + l * 147456, strides d 384, heads 64, head 1
 *   slice [batch] over micro %tokens
 *     -> tokens + (off[batch/(dp,micro)] - off[batch/dp]) * 256
 */
#include "passes.h"

#include <string.h>

/* ---- extents ------------------------------------------------------------ */

static bool is_piped(const nd_module *m, const nd_axis *a, nd_cut cut)
{
    return nd_is_piped(m, a) && cut.n == 0 && m->program &&
           m->program->nstages > 1;
}

static void measure(const nd_module *m, nd_ext *e)
{
    if (e->piped) {
        int64_t lo, hi;
        e->fixed = e->max = nd_range_max(m, e->axis);
        e->device = nd_device_max(m, e->axis);
        for (int s = 0; s < m->program->nstages; s++) {
            nd_stage_range(m, s, e->axis, &lo, &hi);
            if (hi - lo != e->max)
                e->fixed = -1;
        }
        return;
    }
    int64_t parts = 1;
    for (int j = 0; j < e->cut.n; j++)
        parts *= m->mesh.size[e->cut.m[j]];
    e->max = e->device = nd_extent_max(&m->mesh, e->axis->size, e->cut);
    e->fixed = e->axis->size % parts == 0 && !e->axis->route ? e->max : -1;
}

/* A mesh axis of size 1 cuts nothing. */
static nd_cut real_cut(const nd_mesh *m, nd_cut cut)
{
    nd_cut out = {0};
    for (int j = 0; j < cut.n; j++)
        if (m->size[cut.m[j]] > 1)
            out.m[out.n++] = cut.m[j];
    return out;
}

static int intern(nd_code *c, nd_axis *a, nd_cut given)
{
    nd_cut cut = real_cut(&c->m->mesh, given);
    nd_ext e = {.axis = a, .cut = cut, .piped = is_piped(c->m, a, cut)};
    for (int i = 0; i < c->exts.n; i++)
        if (c->exts.v[i].axis == a && nd_cut_eq(c->exts.v[i].cut, cut) &&
            !c->exts.v[i].tile)
            return i;
    measure(c->m, &e);
    ND_PUSH(c->a, &c->exts, e);
    return c->exts.n - 1;
}

int nd_ext_of(nd_code *c, const nd_type *t, int i)
{
    return intern(c, t->axis[i], t->cut[i]);
}

static void intern_types(nd_op *op, void *user)
{
    for (int i = 0; i < op->nout; i++)
        for (int k = 0; k < op->out[i]->type.rank; k++)
            nd_ext_of(user, &op->out[i]->type, k);
}

int nd_tile_ext(nd_code *c, int ext, int64_t max, bool even, bool first)
{
    nd_ext e = c->exts.v[ext];
    e.tile = true;
    e.whole = ext;
    e.moves = !first;
    e.max = e.device = max;
    e.fixed = even ? max : -1;
    for (int i = 0; i < c->exts.n; i++) {
        const nd_ext *x = &c->exts.v[i];
        if (x->tile && x->whole == ext && x->max == e.max &&
            x->fixed == e.fixed && x->moves == e.moves)
            return i;
    }
    ND_PUSH(c->a, &c->exts, e);
    return c->exts.n - 1;
}

void nd_extents(nd_code *c)
{
    nd_walk(c->m->step, intern_types, c);
}

bool nd_ext_whole(const nd_code *c, int ext)
{
    const nd_ext *e = &c->exts.v[ext];
    return !e->piped && !e->tile && e->cut.n == 0;
}

/* ---- lengths ------------------------------------------------------------ */

void nd_len_mul(const nd_code *c, nd_len *l, int ext)
{
    const nd_ext *e = &c->exts.v[ext];
    if (e->fixed >= 0)
        l->k *= e->fixed;
    else
        l->ext[l->n++] = ext;
}

int64_t nd_len_max(const nd_code *c, const nd_len *l)
{
    int64_t n = l->k;
    for (int i = 0; i < l->n; i++)
        n *= c->exts.v[l->ext[i]].max;
    return n;
}

bool nd_len_eq(const nd_len *a, const nd_len *b)
{
    return a->k == b->k && a->n == b->n &&
           memcmp(a->ext, b->ext, sizeof *a->ext * (size_t)a->n) == 0;
}

/* ---- roots -------------------------------------------------------------- */

/* Strides of the last `n` axes: packed by own lengths, or by the largest. */
static void set_strides(nd_code *c, nd_ref *r, int from, bool largest)
{
    nd_len s = {.k = 1};
    for (int i = r->rank - 1; i >= from; i--) {
        r->stride[i] = s;
        if (largest)
            s.k *= c->exts.v[r->ext[i]].max;
        else
            nd_len_mul(c, &s, r->ext[i]);
    }
}

static nd_ref shaped(nd_code *c, const nd_type *t)
{
    nd_ref r = {.dtype = t->dtype, .rank = t->rank};
    for (int i = 0; i < t->rank; i++) {
        r.axis[i] = t->axis[i];
        r.ext[i] = nd_ext_of(c, t, i);
    }
    return r;
}

static int64_t spread_of(const nd_code *c, const nd_ref *r, int from)
{
    int64_t n = 1;
    for (int i = from; i < r->rank; i++)
        n *= c->exts.v[r->ext[i]].max;
    return n;
}

/* What a repeat stacks, maybe inside another: how many leading axes count
 * iterations. */
static int stacked_axes(const nd_code *c, const nd_value *v)
{
    int n = 0;
    while (v->def && v->def->kind == OP_REPEAT &&
           v->index >= v->def->ncarry) {
        n++;
        v = nd_behind(c, v->def->body->yields.v[v->index]);
    }
    return n;
}

static nd_ref buffer(nd_code *c, const nd_value *v)
{
    nd_ref r = shaped(c, &v->type);
    r.root = AT_BUFFER;
    r.value = v;
    bool shared = v->def && (v->def->kind == OP_INPUT ||
                             (nd_is_copy(v->def) && v->def->sub == 2));
    int stacked = stacked_axes(c, v);
    set_strides(c, &r, stacked, shared);
    int64_t step = (spread_of(c, &r, stacked) + 15) & ~(int64_t)15;
    for (int i = stacked - 1; i >= 0; i--) {
        r.stride[i] = (nd_len){.k = step};
        step *= c->exts.v[r.ext[i]].max;
    }
    return r;
}

static void drop(nd_ref *r, int i)
{
    r->rank--;
    for (; i < r->rank; i++) {
        r->axis[i] = r->axis[i + 1];
        r->ext[i] = r->ext[i + 1];
        r->stride[i] = r->stride[i + 1];
    }
}

int nd_ref_axis(const nd_ref *r, const nd_axis *a)
{
    for (int i = 0; i < r->rank; i++)
        if (r->axis[i] == a)
            return i;
    return -1;
}

/* One tile of it, spaced by the largest lengths. */
static nd_ref in_scratch(nd_code *c, const nd_tiles *t, const nd_value *v)
{
    nd_ref r = shaped(c, &v->type);
    r.root = AT_TILE;
    r.value = v;
    for (int i = 0; i < t->n; i++)
        r.ext[nd_ref_axis(&r, t->axis[i].axis)] = t->axis[i].part;
    r.ext[nd_ref_axis(&r, t->inner)] = t->inner_part;
    set_strides(c, &r, 0, true);
    return r;
}

/* Fixes the repeat's axis at the current iteration. */
static void at_iteration(nd_ref *r, nd_op *repeat)
{
    int i = nd_ref_axis(r, repeat->axes[0]);
    if (i < 0)
        return;
    r->term[r->nterms++] =
        (nd_term){.repeat = repeat, .base = r->ext[i], .stride = r->stride[i]};
    drop(r, i);
}

/* ---- views -------------------------------------------------------------- */

nd_value *nd_kept_carry(const nd_op *repeat, int i)
{
    const nd_block *b = repeat->body;
    for (int j = repeat->ncarry; j < b->yields.n; j++)
        if (b->yields.v[j] == b->args.v[i])
            return repeat->out[j];
    return NULL;
}

static bool ref_of_arg(nd_code *c, const nd_value *v, nd_ref *r)
{
    nd_op *repeat = v->owner->parent;
    if (v->index < repeat->ncarry) {
        *r = buffer(c, v);
        r->root = AT_CARRY_IN;
        return true;
    }
    if (!nd_ref_of(c, repeat->in[v->index], r))
        return false;
    at_iteration(r, repeat);
    return true;
}

/* The value's own axis names: it may be yielded under others. */
static void name_axes(nd_code *c, const nd_value *v, nd_ref *r)
{
    for (int i = 0; i < r->rank; i++) {
        r->axis[i] = v->type.axis[i];
        r->ext[i] = nd_ext_of(c, &v->type, i);
    }
}

/* A value that a body makes and yields lies in the repeat's result. */
static bool ref_of_yield(nd_code *c, const nd_value *v, int yield, nd_ref *r)
{
    nd_op *repeat = nd_block_of(v)->parent;
    if (yield < repeat->ncarry) {
        *r = buffer(c, v);
        r->root = AT_CARRY_OUT;
        r->value = repeat->body->args.v[yield];
        return true;
    }
    if (!nd_ref_of(c, repeat->out[yield], r))
        return false;
    at_iteration(r, repeat);
    name_axes(c, v, r);
    return true;
}

static void cut_piece(nd_code *c, const nd_op *slice, nd_ref *r)
{
    int i = nd_ref_axis(r, slice->axes[0]);
    const nd_type *t = &slice->out[0]->type;
    int ext = nd_ext_of(c, t, nd_axis_at(t, slice->axes[0]));
    if (ext != r->ext[i])
        r->term[r->nterms++] = (nd_term){.ext = ext, .base = r->ext[i],
                                         .stride = r->stride[i]};
    r->ext[i] = ext;
}

static void repeat_along(nd_code *c, const nd_op *op, nd_ref *r)
{
    nd_ref wide = shaped(c, &op->out[0]->type);
    for (int i = 0; i < wide.rank; i++) {
        int j = nd_ref_axis(r, wide.axis[i]);
        wide.stride[i] = j < 0 ? (nd_len){0} : r->stride[j];
    }
    r->rank = wide.rank;
    memcpy(r->axis, wide.axis, sizeof r->axis);
    memcpy(r->ext, wide.ext, sizeof r->ext);
    memcpy(r->stride, wide.stride, sizeof r->stride);
}

/* The parts step by the minor ones' sizes; pieces are whole multiples. */
static void split_axis(nd_code *c, const nd_op *op, nd_ref *r)
{
    nd_ref x = *r;
    int k = nd_ref_axis(r, op->axes[0]), extra = op->nto - 1;
    nd_len stride = x.stride[k];
    r->rank += extra;
    for (int i = x.rank - 1; i > k; i--) {
        r->axis[i + extra] = x.axis[i];
        r->ext[i + extra] = x.ext[i];
        r->stride[i + extra] = x.stride[i];
    }
    for (int i = extra; i >= 0; i--) {
        const nd_type *t = &op->out[0]->type;
        r->axis[k + i] = op->to[i];
        r->ext[k + i] = nd_ext_of(c, t, nd_axis_at(t, op->to[i]));
        r->stride[k + i] = stride;
        stride.k *= op->to[i]->size;
    }
}

/* The operand's axes nest: nd_insert_copies sees to that. */
static void flatten_axes(nd_code *c, const nd_op *op, nd_ref *r)
{
    const nd_type *t = &op->out[0]->type;
    nd_len step = r->stride[nd_ref_axis(r, op->axes[op->naxes - 1])];
    for (int i = 1; i < op->naxes; i++)
        drop(r, nd_ref_axis(r, op->axes[i]));
    int k = nd_ref_axis(r, op->axes[0]);
    r->axis[k] = op->to[0];
    r->ext[k] = nd_ext_of(c, t, nd_axis_at(t, op->to[0]));
    r->stride[k] = step;
}

static bool ref_of_view(nd_code *c, const nd_value *v, nd_ref *r)
{
    const nd_op *op = v->def;
    if (!nd_ref_of(c, op->in[0], r))
        return false;
    if (op->kind == OP_SLICE)
        cut_piece(c, op, r);
    else if (op->kind == OP_BROADCAST)
        repeat_along(c, op, r);
    else if (op->kind == OP_SPLIT)
        split_axis(c, op, r);
    else if (op->kind == OP_FLATTEN)
        flatten_axes(c, op, r);
    else if (op->kind == OP_RENAME) {
        int i = nd_ref_axis(r, op->axes[0]);
        r->axis[i] = op->to[0];
        r->ext[i] = nd_ext_of(c, &v->type, nd_axis_at(&v->type, op->to[0]));
    }
    return true;
}

static nd_ref param_ref(nd_code *c, nd_param *p, nd_root root)
{
    nd_ref r = shaped(c, &p->value->type);
    r.root = root;
    r.param = p;
    set_strides(c, &r, 0, true);
    return r;
}

/* One of two places, this iteration's. */
static void take_turns(nd_code *c, const nd_value *v, nd_op *repeat, nd_ref *r)
{
    size_t n = nd_bytes_on(c, v, -1) / nd_dtype_size(v->type.dtype);
    r->term[r->nterms++] = (nd_term){.repeat = repeat, .turn = true,
                                     .stride = {.k = (int64_t)n}};
}

bool nd_ref_of(nd_code *c, const nd_value *v, nd_ref *r)
{
    nd_class k = nd_class_of(c, v);
    if (k == V_INLINE)
        return false;
    if (!v->def)
        return ref_of_arg(c, v, r);
    if (v->def->kind == OP_PARAM) {
        *r = param_ref(c, nd_param_of(v), AT_WEIGHT);
        return true;
    }
    if (k == V_VIEW)
        return ref_of_view(c, v, r);
    const nd_vinfo *info = nd_info(c, v);
    if (info->tiles) {
        *r = in_scratch(c, info->tiles, v);
        return true;
    }
    if (info->alias)
        return nd_ref_of(c, info->alias, r);
    if (info->yield >= 0)
        return ref_of_yield(c, v, info->yield, r);
    *r = buffer(c, v);
    if (info->ahead)
        take_turns(c, v, info->ahead, r);
    return true;
}

/* ---- gradients ---------------------------------------------------------- */

nd_value *nd_accum_source(const nd_code *c, const nd_op *accum)
{
    return nd_behind(c, accum->in[0]);
}

nd_ref nd_grad_ref(nd_code *c, const nd_op *accum)
{
    nd_param *p = accum->param;
    nd_ref r = param_ref(c, p, AT_GRAD);
    for (int i = 0; i < p->nlayers; i++) {
        nd_op *repeat = nd_enclosing(accum->block, p->layer[i].axis);
        if (repeat && nd_axis_at(&accum->in[0]->type, p->layer[i].axis) < 0)
            at_iteration(&r, repeat);
    }
    for (nd_value *v = accum->in[0]; v != nd_accum_source(c, accum);
         v = v->def->in[0])
        if (v->def->kind == OP_RENAME)
            r.axis[nd_ref_axis(&r, v->def->to[0])] = v->def->axes[0];
    return r;
}

bool nd_dest_of(nd_code *c, const nd_value *v, nd_ref *r)
{
    const nd_vinfo *info = nd_info(c, v);
    if (info->accum) {
        *r = nd_grad_ref(c, info->accum);
        return true;
    }
    return nd_ref_of(c, v, r);
}

/* ---- questions ---------------------------------------------------------- */

bool nd_is_packed(const nd_code *c, const nd_ref *r)
{
    nd_len s = {.k = 1};
    for (int i = r->rank - 1; i >= 0; i--) {
        if (c->exts.v[r->ext[i]].fixed != 1 && !nd_len_eq(&r->stride[i], &s))
            return false;
        nd_len_mul(c, &s, r->ext[i]);
    }
    return true;
}

nd_len nd_numel_local(nd_code *c, const nd_ref *r)
{
    nd_len n = {.k = 1};
    for (int i = 0; i < r->rank; i++)
        nd_len_mul(c, &n, r->ext[i]);
    return n;
}

size_t nd_bytes_on(nd_code *c, const nd_value *v, int stage)
{
    nd_ref r = buffer(c, v);
    int64_t n = spread_of(c, &r, 0), lo, hi;
    if (stacked_axes(c, v)) {
        n = nd_len_max(c, &r.stride[0]);
        if (c->exts.v[r.ext[0]].piped &&
            nd_stage_range(c->m, stage, r.axis[0], &lo, &hi))
            n *= hi - lo;
        else
            n *= c->exts.v[r.ext[0]].max;
    }
    size_t bytes = (size_t)n * nd_dtype_size(v->type.dtype);
    return (bytes + 63) & ~(size_t)63;
}
