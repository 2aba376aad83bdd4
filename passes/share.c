/* share.c - how the threads of a rank share out a loop nest.
 *
 *   layer norm over [batch, seq, d]   rows: (batch, seq) as one range
 *   its gradients of gain and bias    the same rows in ND_PARTS parts, each
 *                                     with sums of its own, then added up
 *   rows added to an embedding        columns: each thread takes all rows, and
 *                                     its range of the innermost axis
 *   what is too small for that, or    one thread
 *   adds to one place all the time
 *
 * No sum's order depends on the number of threads, and whether it is made in
 * parts depends on its op and the axes of its nest alone, not on what else that
 * computes: a nest that computes less adds up the same.
 */
#include "passes.h"

#include <string.h>

enum {
    ENOUGH = 64,                     /* iterations to share out */
    FEW = 16,                        /* less: rather columns */
    COLUMNS = 32,                    /* two threads' grains */
    LONG_SUM = 64,                   /* terms of a sum that is cut in parts */
    LARGE_SUM = 1 << 14,             /* elements: one that is not */
    LARGE_NEST = 1 << 12             /* elements: not for one thread alone */
};

nd_ref nd_add_ref(nd_code *c, const nd_op *op)
{
    nd_ref r;
    if (op->kind == OP_ACCUM)
        return nd_grad_ref(c, op);
    nd_dest_of(c, op->out[0], &r);
    return r;
}

static int64_t most(const nd_code *c, int ext)
{
    return c->exts.v[ext].max;
}

/* Does the axis tell apart what the node adds to? */
static bool keeps_apart(const nd_op *op, const nd_ref *to, const nd_axis *a)
{
    return !(op->kind == OP_SCATTER_ADD && a == op->axes[0]) &&
           nd_ref_axis(to, a) >= 0;
}

/* ---- sums in parts ------------------------------------------------------- */

static int64_t terms_of(nd_code *c, const nd_kernel *k, const nd_node *n,
                        const nd_ref *to)
{
    int64_t terms = 1;
    for (int i = 0; i < k->nouter; i++)
        if (!keeps_apart(n->op, to, k->outer_axis[i]))
            terms *= most(c, k->outer[i]);
    for (int i = 0; i < k->ninner && !n->row; i++)
        if (!keeps_apart(n->op, to, k->inner_axis[i]))
            terms *= most(c, k->inner[i]);
    return terms;
}

nd_len nd_part_len(nd_code *c, const nd_ref *to)
{
    if (nd_is_packed(c, to))
        return nd_numel_local(c, to);
    nd_len n = {.k = 1};
    for (int i = 0; i < to->rank; i++)
        n.k += (most(c, to->ext[i]) - 1) * nd_len_max(c, &to->stride[i]);
    return n;
}

static void cut_sum(nd_code *c, nd_kernel *k, nd_node *n)
{
    const nd_op *op = n->op;
    nd_ref to = nd_add_ref(c, op);
    nd_len len = nd_part_len(c, &to);
    int64_t most_len = nd_len_max(c, &len);
    if (!k->nouter || to.dtype != ND_F32 ||
        (op->kind == OP_REDUCE && op->sub != RED_SUM) ||
        (to.root != AT_GRAD && !nd_is_packed(c, &to)) ||
        terms_of(c, k, n, &to) < LONG_SUM || most_len > LARGE_SUM)
        return;
    n->in_parts = true;
    n->part_at = (int64_t)(k->share.bytes / sizeof(float));
    k->share.bytes += ND_PARTS * (size_t)((most_len + 15) / 16 * 16) *
                      sizeof(float);
    k->share.parts = true;
}

/* ---- rows ---------------------------------------------------------------- */

/* Is axis i of the outer ones that of one place per iteration, for every sum
 * that is not made in parts? */
static bool is_own(nd_code *c, const nd_kernel *k, int i)
{
    for (int j = 0; j < k->nodes.n; j++) {
        const nd_node *n = &k->nodes.v[j];
        if (!n->add || n->in_parts)
            continue;
        nd_ref to = nd_add_ref(c, n->op);
        if (!keeps_apart(n->op, &to, k->outer_axis[i]))
            return false;
    }
    return true;
}

/* Moves those outwards. Terms of one sum stay in order. */
static int own_first(nd_code *c, nd_kernel *k)
{
    int ext[ND_MAX_RANK], own = 0, n = 0;
    nd_axis *axis[ND_MAX_RANK];
    for (int other = 0; other < 2; other++) {
        for (int i = 0; i < k->nouter; i++)
            if (is_own(c, k, i) != (bool)other) {
                ext[n] = k->outer[i];
                axis[n++] = k->outer_axis[i];
            }
        own = other ? own : n;
    }
    memcpy(k->outer, ext, sizeof *ext * (size_t)n);
    memcpy(k->outer_axis, axis, sizeof *axis * (size_t)n);
    return own;
}

/* As many of the first n outer axes as give enough iterations; returns how
 * many those are. */
static int64_t take_rows(const nd_code *c, nd_kernel *k, int n)
{
    int64_t rows = 1;
    for (k->share.n = 0; k->share.n < n && rows < ENOUGH; k->share.n++)
        rows *= most(c, k->outer[k->share.n]);
    return rows;
}

/* ---- columns ------------------------------------------------------------- */

/* Can threads take ranges of the innermost axis, each for all rows? */
static bool has_columns(nd_code *c, const nd_kernel *k)
{
    if (!k->ninner || k->share.parts)
        return false;
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        if (n->fold || n->scan || (n->row && (n->stored || n->add)))
            return false;
        if (!n->add)
            continue;
        nd_ref to = nd_add_ref(c, n->op);
        if (!keeps_apart(n->op, &to, k->inner_axis[k->ninner - 1]))
            return false;
    }
    return true;
}

static int64_t elements(const nd_code *c, const nd_kernel *k)
{
    int64_t n = 1;
    for (int i = 0; i < k->nouter; i++)
        n *= most(c, k->outer[i]);
    for (int i = 0; i < k->ninner; i++)
        n *= most(c, k->inner[i]);
    return n;
}

void nd_share_out(nd_code *c, nd_kernel *k)
{
    nd_share *s = &k->share;
    *s = (nd_share){.kind = SHARE_ONE, .grain = 1};
    for (int i = 0; i < k->nodes.n; i++) {
        k->nodes.v[i].in_parts = false;
        if (k->nodes.v[i].add)
            cut_sum(c, k, &k->nodes.v[i]);
    }
    if (s->parts) {
        s->kind = SHARE_ROWS;
        take_rows(c, k, k->nouter);
        for (int i = 0; i < s->n; i++)
            if (!is_own(c, k, i))
                s->grain = ND_PARTS; /* all of them are one thread's */
        return;
    }
    if (elements(c, k) < ENOUGH)
        return;
    int64_t rows = take_rows(c, k, own_first(c, k));
    int64_t columns = has_columns(c, k) ? most(c, k->inner[k->ninner - 1]) : 0;
    if (columns >= COLUMNS && rows < FEW)
        s->kind = SHARE_COLUMNS;
    else if (rows > 1)
        s->kind = SHARE_ROWS;
    if (s->kind != SHARE_ROWS)
        s->n = 0;
}

bool nd_shares_well(nd_code *c, const nd_kernel *k)
{
    bool adds = false;
    nd_kernel t = *k;
    for (int i = 0; i < t.nodes.n; i++)
        adds |= t.nodes.v[i].add;
    if (!adds || elements(c, k) < LARGE_NEST)
        return true;
    if (!t.split && t.nouter) {      /* as nd_loop_finish does */
        t.inner[0] = t.outer[--t.nouter];
        t.inner_axis[0] = t.outer_axis[t.nouter];
        t.ninner = 1;
    }
    nd_share_out(c, &t);
    return t.share.kind != SHARE_ONE && t.share.grain == 1;
}
