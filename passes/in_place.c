/* in_place.c - may a kernel write a value where it reads another one?
 *
 *   d = (exp(x - m) - at) * g      one pass: element i of x is read where
 *                                  element i of d is made, and never again: yes
 *   p = e / sum(e), e = exp(x)     rows of x are read twice, p is written in
 *                                  the last pass: yes
 *   y = x[seq: kv]                 element i of y is made of another one: no
 *
 * Asked of the nest alone: every read of `in` is of the element that this
 * iteration writes, and in no later pass. So it holds for any sharing out over
 * threads and any vectors; the store stands behind all else in its pass
 * (kir_build.c).
 */
#include "passes.h"

/* Is it read here, and as it lies? */
typedef struct reads {
    const nd_value *in;
    bool any, elsewhere;
} reads;

static void read_op(nd_code *c, const nd_op *op, bool moved, reads *r);

/* `moved`: by other indices than those of the loops. */
static void read_value(nd_code *c, const nd_value *v, bool moved, reads *r)
{
    nd_class k = nd_class_of(c, v);
    nd_ref at;
    if (!v->def && k == V_VIEW) {
        read_value(c, v->owner->parent->in[v->index], true, r);
    } else if (k == V_INLINE || k == V_VIEW) {
        bool alike = v->def->kind == OP_MAP || v->def->kind == OP_CAST ||
                     v->def->kind == OP_BROADCAST || nd_is_same(c, v->def);
        read_op(c, v->def, moved || !alike, r);
    } else if (nd_ref_of(c, v, &at) && at.root == AT_BUFFER &&
               at.value == r->in) {
        r->any = true;
        r->elsewhere |= moved || v != r->in;
    }
}

static void read_op(nd_code *c, const nd_op *op, bool moved, reads *r)
{
    bool table = op->kind == OP_GATHER || op->kind == OP_ROLL ||
                 op->kind == OP_CUMSUM;
    if (op->kind == OP_ACCUM) {
        read_value(c, nd_accum_source(c, op), moved, r);
        return;
    }
    for (int i = 0; i < op->nin; i++)
        read_value(c, op->in[i], moved || (table && i == 0), r);
}

/* Do they lie alike, each in a place of its own? */
static bool lie_alike(nd_code *c, const nd_value *a, const nd_value *b)
{
    nd_ref x, y;
    if (!nd_ref_of(c, a, &x) || !nd_ref_of(c, b, &y) ||
        x.root != AT_BUFFER || y.root != AT_BUFFER || x.value != a ||
        y.value != b || x.nterms || y.nterms || x.dtype != y.dtype ||
        x.rank != y.rank)
        return false;
    for (int i = 0; i < x.rank; i++)
        if (x.axis[i] != y.axis[i] || x.ext[i] != y.ext[i] ||
            !nd_len_eq(&x.stride[i], &y.stride[i]))
            return false;
    return true;
}

/* The last pass in which the node may be computed: again in later ones, unless
 * its result is somewhere. */
static int last_pass(const nd_kernel *k, const nd_node *n)
{
    bool there = n->stored || n->fold || n->add || n->keep;
    return there ? n->pass : k->npasses - 1;
}

bool nd_may_take_place(nd_code *c, nd_kernel *k, const nd_value *out,
                       const nd_value *in)
{
    const nd_node *made = k->kind == K_LOOP && !k->tiles
                              ? nd_node_of(k, out) : NULL;
    if (!made || !made->stored || made->row || made->fold || made->scan ||
        made->add || out == in || nd_node_of(k, in) || !lie_alike(c, out, in))
        return false;
    bool any = false;
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        reads r = {.in = in};
        read_op(c, n->op, false, &r);
        any |= r.any;
        if (r.elsewhere || (r.any && (n->row || n->scan ||
                                      last_pass(k, n) > made->pass)))
            return false;
    }
    return any;
}

static bool overlap(const nd_place *a, const nd_place *b)
{
    return a && b && a->room == b->room && a->base < b->base + b->bytes &&
           b->base < a->base + a->bytes;
}

bool nd_share_bytes(const nd_code *c, const nd_value *a, const nd_value *b)
{
    for (int s = 0; s < c->m->program->nstages; s++) {
        const nd_stage_mem *mem = &c->mem.stage[s];
        if (overlap(nd_place_of(mem, a), nd_place_of(mem, b)))
            return true;
    }
    return false;
}
