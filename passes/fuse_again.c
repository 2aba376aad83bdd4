/* fuse_again.c - what a nest would store for later nests alone, although an
 * operation or two on what lies in memory give it again.
 *
 *   nest 1   c = x - mean        y = c * scale, for a product
 *   product
 *   nest 2   g = dy * c          c is stored by nest 1 and read here
 *
 *   -> nest 2 reads x and the mean of the row; c is never stored
 *
 * Such a value is inline from now on: computed at each use. It has one part as
 * large as itself, so that nobody reads more than before; and what is inline
 * within it counts as its own, or a long chain would start anew at each use.
 */
#include "passes.h"

enum { MAX_OPS = 3, SMALLER = 4 };   /* SMALLER: times, the other parts */

/* What a value is made of. */
typedef struct parts {
    const nd_value *v;
    int ops, large;
    bool there;                      /* all of it, in memory */
} parts;

static bool made_here(const nd_kernel *k, const nd_op *op)
{
    for (int i = 0; i < k->nodes.n; i++)
        if (k->nodes.v[i].op == op)
            return true;
    return false;
}

/* A few additions that nobody needs in memory but nests of the list at hand,
 * whose ops have marks. */
static bool is_light(nd_code *c, const nd_op *op)
{
    if (op->kind != OP_MAP || !nd_is_cheap(op) || !op->mark)
        return false;
    const nd_vinfo *info = nd_info(c, op->out[0]);
    if (info->cls != V_LOOP || info->hard || info->alias || info->accum ||
        info->yield >= 0 || info->v == c->m->loss)
        return false;
    for (int i = 0; i < info->users.n; i++) {
        const nd_op *user = info->users.v[i];
        if (!user->mark || user->block != op->block ||
            !nd_loop_op(c, user) || user->kind == OP_ACCUM)
            return false;
    }
    return true;
}

/* How many ops are made again where v is computed. */
static int ops_again(const nd_code *c, const nd_value *v)
{
    if (nd_class_of(c, v) != V_INLINE)
        return 0;
    int n = nd_info(c, v)->again;
    for (int i = 0; i < v->def->nin; i++)
        n += ops_again(c, v->def->in[i]);
    return n;
}

static int ops_of(const nd_code *c, const nd_op *op)
{
    int n = 1;
    for (int i = 0; i < op->nin; i++)
        n += ops_again(c, op->in[i]);
    return n;
}

static void add_part(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    parts *p = user;
    nd_class k = nd_class_of(c, leaf);
    bool early = k == V_LOOP && !leaf->def->mark;
    (void)in_memory;
    if (k == V_MEMORY || early) {
        p->there &= !nd_info(c, leaf)->alias;
        p->large += SMALLER * nd_numel(&leaf->type) > nd_numel(&p->v->type);
    } else if (is_light(c, leaf->def)) {
        p->ops += ops_of(c, leaf->def);
        if (p->ops <= MAX_OPS)
            nd_leaves(c, leaf->def, add_part, p);
    } else {
        p->there = false;
    }
}

static bool comes_again(nd_code *c, const nd_kernel *k, const nd_node *n)
{
    if (n->row || !is_light(c, n->op))
        return false;
    const nd_vinfo *info = nd_info(c, n->op->out[0]);
    bool further = false;
    for (int i = 0; i < info->users.n; i++)
        further |= !made_here(k, info->users.v[i]);
    parts p = {.v = info->v, .ops = ops_of(c, n->op), .there = further};
    if (further)
        nd_leaves(c, n->op, add_part, &p);
    return p.there && p.large <= 1 && p.ops <= MAX_OPS;
}

/* ---- making it inline --------------------------------------------------- */

static void take_out(nd_kernel *k, const nd_op *op)
{
    int keep = 0;
    for (int i = 0; i < k->nodes.n; i++)
        if (k->nodes.v[i].op != op)
            k->nodes.v[keep++] = k->nodes.v[i];
    k->nodes.n = keep;
}

/* Other names of values: what a view looks at -> its views. */
typedef struct names {
    nd_code *c;
    nd_table of;
} names;

typedef ND_VEC(const nd_value *) name_list;

static void add_names(names *n, const nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        const nd_op *op = b->ops.v[i];
        if (op->nout != 1 || !op->nin ||
            nd_class_of(n->c, op->out[0]) != V_VIEW)
            continue;
        name_list *l = nd_table_get(&n->of, op->in[0]);
        if (!l) {
            l = ND_NEW(n->c->a, name_list);
            nd_table_put(&n->of, op->in[0], l);
        }
        ND_PUSH(n->c->a, l, op->out[0]);
    }
}

/* Other names of an inline value are inline. */
static void rename_inline(names *n, const nd_value *v)
{
    if (!n->of.arena) {
        n->of.arena = n->c->a;
        add_names(n, v->def->block);
    }
    const name_list *l = nd_table_get(&n->of, v);
    for (int i = 0; l && i < l->n; i++) {
        nd_info(n->c, l->v[i])->cls = V_INLINE;
        rename_inline(n, l->v[i]);
    }
}

static void forget_user(nd_vinfo *info, const nd_op *op)
{
    for (int i = 0; i < info->users.n; i++)
        if (info->users.v[i] == op) {
            info->users.v[i] = info->users.v[--info->users.n];
            return;
        }
}

/* Who reads the value reads its parts. */
static void pass_users_on(nd_code *c, nd_value *leaf, bool in_memory,
                          void *user)
{
    const nd_vinfo *from = user;
    nd_vinfo *to = nd_info(c, leaf);
    (void)in_memory;
    forget_user(to, from->v->def);
    to->nuses += from->users.n - 1;
    for (int i = 0; i < from->users.n; i++)
        ND_PUSH(c->a, &to->users, from->users.v[i]);
}

static void make_inline(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    nd_vinfo *info = nd_info(c, leaf);
    (void)in_memory;
    if (info->cls != V_LOOP || !leaf->def->mark)
        return;
    nd_leaves(c, leaf->def, make_inline, user);
    nd_leaves(c, leaf->def, pass_users_on, info);
    take_out(info->kernel, leaf->def);
    info->kernel = NULL;
    info->cls = V_INLINE;
    info->again = 1;
    rename_inline(user, leaf);
}

void nd_fuse_again(nd_code *c, nd_kernels *list)
{
    names n = {.c = c};
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        for (int j = 0; k->kind == K_LOOP && j < k->nodes.n; j++)
            if (comes_again(c, k, &k->nodes.v[j])) {
                make_inline(c, k->nodes.v[j].op->out[0], false, &n);
                j = -1;              /* its parts stood before it */
            }
    }
    int keep = 0;
    for (int i = 0; i < list->v.n; i++)
        if (list->v.v[i]->kind != K_LOOP || list->v.v[i]->nodes.n) {
            list->v.v[i]->index = keep;
            list->v.v[keep++] = list->v.v[i];
        }
    list->v.n = keep;
}
