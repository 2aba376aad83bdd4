/* traffic.c - the bytes that a kernel moves through memory, and its work.
 *
 *   y[batch, d] = (x[batch, d] - mean[batch]) * g[d]
 *
 * reads x and mean, writes y, and reads g once for all rows of the batch: they
 * find it in the cache. What a nest comes back to is read again only if it has
 * touched more than CACHE bytes meanwhile; passes over a row count as one. Of a
 * table that is indexed by row, the rows count. A product reads its operands
 * once and writes its result; what is added to memory is read and written.
 *
 * Lengths are those of the rank that has most.
 */
#include "passes.h"

enum { CACHE = 1 << 20 };

typedef struct walker {
    nd_code *c;
    nd_kernel *k;
    nd_traffic *t;
} walker;

/* ---- operands ------------------------------------------------------------ */

static bool same_place(const nd_ref *a, const nd_ref *b)
{
    if (a->root != b->root || a->value != b->value || a->param != b->param ||
        a->nterms != b->nterms)
        return false;
    for (int i = 0; i < a->nterms; i++)
        if (a->term[i].repeat != b->term[i].repeat ||
            a->term[i].turn != b->term[i].turn ||
            a->term[i].ext != b->term[i].ext ||
            a->term[i].base != b->term[i].base)
            return false;
    return true;
}

/* A broadcast axis has no elements of its own. */
static bool is_real(const nd_ref *r, int i)
{
    return r->stride[i].k != 0;
}

static double elements(const nd_code *c, const nd_ref *r)
{
    double n = 1;
    for (int i = 0; i < r->rank; i++)
        if (is_real(r, i))
            n *= (double)c->exts.v[r->ext[i]].max;
    return n;
}

static nd_access *access_to(walker *w, const nd_ref *r)
{
    double bytes = elements(w->c, r) * (double)nd_dtype_size(r->dtype);
    for (int i = 0; i < w->t->v.n; i++) {
        nd_access *x = &w->t->v.v[i];
        if (!same_place(&x->at, r))
            continue;
        if (bytes > x->bytes) {
            x->at = *r;
            x->bytes = bytes;
        }
        return x;
    }
    ND_PUSH(w->c->a, &w->t->v, ((nd_access){.at = *r, .bytes = bytes}));
    return &w->t->v.v[w->t->v.n - 1];
}

/* At most so many bytes of it. */
static void limit(nd_access *x, double bytes)
{
    x->bytes = bytes < x->bytes ? bytes : x->bytes;
    x->by_row = true;
}

/* What the kernel has made itself is at hand. */
static bool is_local(const walker *w, const nd_value *v)
{
    while (nd_class_of(w->c, v) == V_VIEW)
        v = v->def ? v->def->in[0] : v->owner->parent->in[v->index];
    return nd_node_of(w->k, v) != NULL;
}

static nd_access *reads(walker *w, nd_value *v)
{
    nd_ref r;
    if (nd_class_of(w->c, v) == V_INLINE) {
        for (int i = 0; i < v->def->nin; i++)
            reads(w, v->def->in[i]);
        return NULL;
    }
    if (is_local(w, v) || !nd_ref_of(w->c, v, &r) || r.root == AT_TILE)
        return NULL;
    nd_access *x = access_to(w, &r);
    x->read = true;
    return x;
}

static nd_access *writes(walker *w, const nd_ref *r, bool adds)
{
    nd_access *x = access_to(w, r);
    x->written = true;
    x->read |= adds;
    return x;
}

/* ---- kernels ------------------------------------------------------------- */

static double row_bytes(const walker *w, const nd_value *v)
{
    return nd_local_bytes(&v->type, &w->c->m->mesh);
}

static void node_reads(walker *w, nd_op *op)
{
    if (op->kind == OP_ACCUM) {
        reads(w, nd_accum_source(w->c, op));
        return;
    }
    for (int i = 0; i < op->nin; i++) {
        nd_access *x = reads(w, op->in[i]);
        if (x && op->kind == OP_GATHER && i == 0)
            limit(x, row_bytes(w, op->out[0]));
    }
}

/* Does it add to what lies there, in every microbatch? */
static bool adds_to(const walker *w, const nd_value *v)
{
    const nd_vinfo *x = nd_info(w->c, v);
    return x->accum && !(x->first && w->c->m->plan.microbatches == 1);
}

/* Sums over outer axes begin with zeros, which are written first. */
static void node_writes(walker *w, const nd_node *n)
{
    nd_op *op = n->op;
    nd_ref r;
    bool adds = op->kind == OP_ACCUM || adds_to(w, op->out[0]);
    if (n->add)
        r = nd_add_ref(w->c, op);
    else if (!n->stored || !nd_dest_of(w->c, op->out[0], &r) ||
             r.root == AT_TILE)
        return;
    nd_access *x = writes(w, &r, adds);
    x->cleared = n->add && !adds && !n->in_parts;
    x->at_end = n->in_parts;
    if (op->kind == OP_SCATTER_ADD && adds)
        limit(x, row_bytes(w, op->in[0]));
}

static void whole_op(walker *w, nd_op *op)
{
    nd_ref r;
    for (int i = 0; i < op->nin; i++)
        reads(w, op->in[i]);
    if (op->nout && nd_dest_of(w->c, op->out[0], &r) && r.root != AT_TILE)
        writes(w, &r, adds_to(w, op->out[0]));
}

/* ---- what is read again -------------------------------------------------- */

/* The loops of a nest, outermost first. */
static const nd_axis *loop_axis(const nd_kernel *k, int i)
{
    return i < k->nouter ? k->outer_axis[i] : k->inner_axis[i - k->nouter];
}

static int loop_extent(const nd_kernel *k, int i)
{
    return i < k->nouter ? k->outer[i] : k->inner[i - k->nouter];
}

/* Each step along a loop that picks rows finds another one. */
static bool steps_along(const walker *w, const nd_access *x, int loop)
{
    int k = nd_ref_axis(&x->at, loop_axis(w->k, loop));
    return x->by_row || (k >= 0 && is_real(&x->at, k));
}

/* Bytes of an operand that the loops from `from` on touch. */
static double inside(const walker *w, const nd_access *x, int from)
{
    double bytes = x->bytes;
    for (int i = 0; i < from; i++)
        if (steps_along(w, x, i))
            bytes /= (double)w->c->exts.v[loop_extent(w->k, i)].max;
    return bytes;
}

static double all_inside(const walker *w, int from)
{
    double bytes = 0;
    for (int i = 0; i < w->t->v.n; i++)
        bytes += inside(w, &w->t->v.v[i], from);
    return bytes;
}

/* How often the nest fetches the operand: a loop that does not step along it
 * brings it back, unless it is still in the cache. What may have driven it out
 * is what the loops inside touch, from the first one that steps along it. */
static double times(const walker *w, const nd_access *x)
{
    const nd_kernel *k = w->k;
    int loops = k->kind == K_LOOP ? k->nouter + k->ninner : 0;
    double n = 1;
    for (int i = 0; i < loops && !x->at_end; i++) {
        int next = i + 1;
        while (next < loops && !steps_along(w, x, next))
            next++;
        if (!steps_along(w, x, i) && all_inside(w, next) > CACHE)
            n *= (double)w->c->exts.v[loop_extent(k, i)].max;
    }
    return n;
}

static void sum_up(walker *w)
{
    for (int i = 0; i < w->t->v.n; i++) {
        nd_access *x = &w->t->v.v[i];
        double n = times(w, x), once = x->bytes;
        bool again = x->written && (n > 1 || (x->cleared && once > CACHE));
        if (x->read || again)
            x->reads = n * once;
        if (x->written)
            x->writes = n * once + (x->cleared && again ? once : 0);
        w->t->read += x->reads;
        w->t->written += x->writes;
        w->t->least += (x->read ? once : 0) + (x->written ? once : 0);
    }
    double aside = (double)w->k->share.bytes;      /* sums of parts */
    if (aside > CACHE) {
        w->t->read += aside;
        w->t->written += aside;
    }
}

static void kernel(walker *w, nd_kernel *k)
{
    w->k = k;
    for (int i = 0; i < k->nodes.n; i++) {
        nd_node *n = &k->nodes.v[i];
        w->t->flops += nd_op_flops(n->op, &w->c->m->mesh);
        if (k->kind == K_LOOP) {
            node_reads(w, n->op);
            node_writes(w, n);
        } else {
            whole_op(w, n->op);
        }
    }
}

/* The part of the inner axis that tiles have, on average over the blocks. */
static double part_of_inner(const nd_code *c, const nd_tiles *t)
{
    const nd_tile_axis *a = &t->axis[t->blocked];
    int64_t rows = c->exts.v[a->ext].max, block = c->exts.v[a->part].max;
    int64_t all = c->exts.v[t->inner_ext].max;
    double sum = 0;
    int64_t blocks = 0;
    for (int64_t at = 0; at < rows; at += block, blocks++) {
        int64_t lo = t->begins ? at + t->begin : 0;
        int64_t hi = t->ends ? at + block + t->end : all;
        lo = lo < 0 ? 0 : lo;
        hi = hi > all ? all : hi;
        sum += hi > lo ? (double)(hi - lo) : 0;
    }
    return blocks && all ? sum / (double)blocks / (double)all : 1;
}

/* What a tile makes and uses up stays in the cache. */
nd_traffic nd_kernel_traffic(nd_code *c, nd_kernel *k)
{
    nd_traffic t = {0};
    walker w = {c, k, &t};
    if (k->kind == K_TILES) {
        for (int i = 0; i < k->tiles->v.n; i++)
            kernel(&w, k->tiles->v.v[i]);
        t.flops *= part_of_inner(c, k->tiles);
    } else {
        kernel(&w, k);
    }
    w.k = k;
    sum_up(&w);
    return t;
}
