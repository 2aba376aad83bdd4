/* meaning.c - a number for what a step computes, wherever it computes it.
 *
 *   %y = contract [d] %x, %w         %y = contract [d] %x_2, %w_2 : ...+tp
 *   %z = add %y, %b                  %y_2 = all_reduce sum over tp %y
 *                                    %z = add %y_2, %b
 *
 * Both have the same number. What only changes where a value lives (trait i),
 * copies, types, phases, places and names of values do not count; a shift_ring
 * is the roll that it carries out. What is kept for backward and what is made
 * again are one thing: the slice of a stacked result, in a repeat over the same
 * axis, is what was stacked.
 *
 * The numbers of the accumulates, the outputs and the loss are added up, so
 * that two modules with different numbers compute different things from here
 * on: a collective that moves elements was left out or done twice, an op lost,
 * a constant changed. Types say what remains, that nothing is added up twice or
 * not at all.
 */
#include "ir.h"

#include <string.h>

typedef struct meaning {
    nd_module *m;
    nd_arena *arena;
    nd_table of;                     /* value -> its number */
    nd_table each;                   /* number of a stack -> of one element */
    uint64_t sum;                    /* of what has an effect */
} meaning;

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t mix_axes(uint64_t h, int n, nd_axis *const *axes)
{
    for (int i = 0; i < n; i++)
        h = mix(h, nd_hash(axes[i]->name));
    return mix(h, (uint64_t)n);
}

/* Tables hold pointers: a number is kept as one, never 0. */
static uint64_t number_of(const meaning *c, const nd_value *v)
{
    return (uint64_t)(uintptr_t)nd_table_get(&c->of, v);
}

static void set(meaning *c, const nd_value *v, uint64_t h)
{
    nd_table_put(&c->of, v, (void *)(uintptr_t)(h | 1));
}

static const void *key(uint64_t stack, const nd_axis *a)
{
    return (const void *)(uintptr_t)(mix(stack, nd_hash(a->name)) | 1);
}

/* The same elements, perhaps elsewhere. */
static bool is_copy(const nd_op *op)
{
    if (nd_has_trait(op, 'i') || op->kind == OP_STOP_GRAD)
        return true;
    return op->kind == OP_BROADCAST &&
           nd_same_axes(&op->in[0]->type, &op->out[0]->type);
}

static uint64_t number_of_op(const meaning *c, const nd_op *op)
{
    nd_opcode kind = op->kind == OP_SHIFT_RING ? OP_ROLL : op->kind;
    uint64_t h = mix(1, kind), bits;
    double num = kind == OP_ROLL ? (double)nd_roll_by(op) : op->num;
    memcpy(&bits, &num, sizeof bits);
    h = mix(mix(h, bits), (uint64_t)op->reverse);
    if (kind == OP_MAP || kind == OP_REDUCE)
        h = mix(h, (uint64_t)op->sub);
    h = mix_axes(mix_axes(h, op->naxes, op->axes), op->nto, op->to);
    if (op->name)
        h = mix(h, nd_hash(op->name));
    if (strchr(nd_ops[op->kind].attrs, 'T'))
        h = mix(mix_axes(h, op->out[0]->type.rank, op->out[0]->type.axis),
                op->out[0]->type.dtype);
    for (int i = 0; i < op->nin; i++)
        h = mix(h, number_of(c, op->in[i]));
    return h;
}

static void block(meaning *c, const nd_block *b);

/* What is carried is known by what it begins with: its place among others may
 * change when dead ones go. */
static void repeat(meaning *c, const nd_op *op)
{
    const nd_block *b = op->body;
    const nd_axis *a = op->axes[0];
    uint64_t self = mix(mix(2, nd_hash(a->name)), (uint64_t)op->reverse);
    for (int i = 0; i < op->nin; i++) {
        uint64_t h = number_of(c, op->in[i]);
        const void *one = i < op->ncarry ? NULL
                                         : nd_table_get(&c->each, key(h, a));
        if (one)
            h = (uint64_t)(uintptr_t)one;
        else
            h = i < op->ncarry ? mix(self, h)
                               : mix(mix(3, nd_hash(a->name)), h);
        set(c, b->args.v[i], h);
    }
    block(c, b);
    for (int i = 0; i < op->nout; i++) {
        uint64_t y = number_of(c, b->yields.v[i]), h;
        if (i < op->ncarry) {
            h = mix(mix(4, number_of(c, b->args.v[i])), y);
        } else {
            h = mix(mix(5, nd_hash(a->name)), y) | 1;
            nd_table_put(&c->each, key(h, a), (void *)(uintptr_t)y);
        }
        set(c, op->out[i], h);
    }
}

static void block(meaning *c, const nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        const nd_op *op = b->ops.v[i];
        if (op->kind == OP_REPEAT)
            repeat(c, op);
        else if (is_copy(op))
            set(c, op->out[0], number_of(c, op->in[0]));
        else if (op->nout)
            set(c, op->out[0], number_of_op(c, op));
        else
            c->sum += number_of_op(c, op);
    }
}

uint64_t nd_meaning(nd_module *m)
{
    meaning c = {.m = m, .arena = nd_arena_new()};
    c.of = c.each = (nd_table){.arena = c.arena};
    block(&c, m->step);
    if (m->loss)
        c.sum += mix(6, number_of(&c, m->loss));
    nd_arena_free(c.arena);
    return c.sum ? c.sum : 1;
}
