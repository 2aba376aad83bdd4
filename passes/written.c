/* written.c - which values forward writes to memory in any case: to keep one
 * costs backward a read, where another one has to be written first.
 *
 *   %u = contract ...        the product writes %u
 *   %g = gelu(%u + bias)     a dozen maps in registers; the next product reads
 *   %y = contract %g, ...    %g, so that is written; %u + bias is not
 *
 * Kernels are not made yet. What a loop nest makes stays in it unless something
 * reads it that is no loop nest, or comes after one: a value whose reader needs
 * a product that was not there when the value was made.
 */
#include "recompute.h"

/* A kernel of its own: what it reads and makes is in memory. */
static bool stands_alone(const nd_op *op)
{
    return op->nin && !nd_has_trait(op, 'n') && !nd_has_trait(op, 'v');
}

/* Does it read at other places than it writes? A reduction does it row by row,
 * next to the loops that make the rows. */
static bool needs_whole(const nd_op *op)
{
    return stands_alone(op) ||
           (nd_has_trait(op, 'm') && !nd_has_trait(op, 'v') &&
            op->kind != OP_REDUCE);
}

/* The same elements under another name. */
static const nd_value *renamed(const nd_value *v)
{
    bool view = v->def && nd_has_trait(v->def, 'v') &&
                nd_numel(&v->type) == nd_numel(&v->def->in[0]->type);
    return view && v->def->in[0]->mark ? v->def->in[0] : NULL;
}

void nd_find_written(nd_arena *a, nd_value *const *v, int n,
                     const nd_block *b, bool *written)
{
    int *level = ND_NEWN(a, int, n + 1);     /* products before it, in a row */
    for (int i = 0; i < n; i++) {
        const nd_op *op = v[i]->def;
        written[i] = !op || (!nd_has_trait(op, 'c') && op->kind != OP_REDUCE);
        for (int k = 0; op && k < op->nin; k++) {
            int j = op->in[k]->mark - 1;
            if (j >= 0 && level[j] > level[i])
                level[i] = level[j];
        }
        for (int k = 0; op && k < op->nin; k++) {
            int j = op->in[k]->mark - 1;
            if (j >= 0)
                written[j] |= level[i] > level[j] || needs_whole(op);
        }
        level[i] += op && stands_alone(op);
    }
    for (int k = 0; b->parent && k < b->parent->ncarry; k++)
        if (b->yields.v[k]->mark)
            written[b->yields.v[k]->mark - 1] = true;
    for (int i = n - 1; i >= 0; i--)
        if (written[i] && renamed(v[i]))
            written[renamed(v[i])->mark - 1] = true;
    for (int i = 0; i < n; i++)
        if (renamed(v[i]))
            written[i] = written[renamed(v[i])->mark - 1];
}
