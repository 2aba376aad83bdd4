/* make_vee.c - zb_v and dualpipe_v: rank r has the stages r and 2p - 1 - r, so
 * that a microbatch goes down the ranks and up again, and its loss is made on
 * the rank where it began.
 *
 *   zb_v, rank 1 of 2, 3 microbatches (lower case: stage 2)
 *       F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 I1 i2 I2 W1 w2 W2
 */
#include "make.h"

#include <stdlib.h>

typedef struct vee {
    sched *s;
    int rank, stage[2];              /* on the way down, on the way up */
    int f[2], b[2], w[2];            /* done: forwards; I or B; W of zb_v */
    int *queue, head, tail;          /* dualpipe_v: W to do, 2 * mb + way */
} vee;

static vee vee_of(sched *s, int rank)
{
    return (vee){.s = s, .rank = rank,
                 .stage = {rank, s->stages - 1 - rank}};
}

/* Those beyond the last microbatch are left out. */
static void put(vee *x, sched_op op, int way)
{
    int *count = op == SCHED_F ? x->f : op == SCHED_W ? x->w : x->b;
    int mb = count[way]++;
    if (mb < x->s->micro)
        sched_push(x->s, x->rank, op, x->stage[way], mb);
}

/* ---- zb_v ---------------------------------------------------------------- */

static void zb_v_rank(vee *x)
{
    int p = x->s->ranks, r = x->rank;
    int n = x->s->micro < 2 * p - 1 ? 2 * p - 1 : x->s->micro;
    for (int i = 0; i < 2 * (p - r) - 1; i++)
        put(x, SCHED_F, 0);
    for (int i = 0; i < r; i++) {
        put(x, SCHED_F, 1);
        put(x, SCHED_F, 0);
    }
    for (int i = 0; i < p - r; i++) {
        put(x, SCHED_F, 1);
        put(x, SCHED_I, 1);
        put(x, SCHED_W, 1);
    }
    while (x->f[1] < x->f[0] || x->f[0] < n) {
        if (x->f[0] < n)
            put(x, SCHED_F, 0);
        put(x, SCHED_I, 0);
        put(x, SCHED_W, 0);
        put(x, SCHED_F, 1);
        put(x, SCHED_I, 1);
        put(x, SCHED_W, 1);
    }
    for (int i = 0; i < r; i++) {
        put(x, SCHED_I, 0);
        put(x, SCHED_I, 1);
    }
    for (int i = 0; i < p - r; i++) {
        put(x, SCHED_I, 0);
        put(x, SCHED_W, 0);
    }
    while (x->w[1] < n)
        put(x, SCHED_W, 1);
    while (x->w[0] < n)
        put(x, SCHED_W, 0);
}

void make_zb_v(sched *s)
{
    for (int r = 0; r < s->ranks; r++) {
        vee x = vee_of(s, r);
        zb_v_rank(&x);
    }
}

/* ---- dualpipe_v ---------------------------------------------------------- */

/* An I leaves its W for later, in the order of the I. */
static void put_i(vee *x, int way)
{
    x->queue[x->tail++] = 2 * x->b[way] + way;
    put(x, SCHED_I, way);
}

static void put_w(vee *x)
{
    int w = x->queue[x->head++];
    sched_push(x->s, x->rank, SCHED_W, x->stage[w % 2], w / 2);
}

/* A forward of one way and a backward of the other: one cell. */
static void put_cell(vee *x, int forward)
{
    sched_row *row = &x->s->row[x->rank];
    put(x, SCHED_F, forward);
    row->v[row->n - 1].joined = true;
    put(x, SCHED_B, !forward);
}

static void dualpipe_v_rank(vee *x)
{
    int p = x->s->ranks, r = x->rank, later = p - r - 1;
    for (int i = 0; i < 2 * later; i++)
        put(x, SCHED_F, 0);
    for (int i = 0; i < r + 1; i++) {
        put(x, SCHED_F, 0);
        put(x, SCHED_F, 1);
    }
    for (int i = 0; i < later; i++) {
        put_i(x, 1);
        put_w(x);
        put(x, SCHED_F, 1);
    }
    for (int i = 0; i < x->s->micro - 2 * p + r + 1; i++) {
        if (i == 0 && r == p - 1) {  /* nothing to do beside it yet */
            put(x, SCHED_F, 0);
            put(x, SCHED_B, 1);
        } else {
            put_cell(x, 0);
        }
        put_cell(x, 1);
    }
    for (int i = 0; i < later; i++) {
        put(x, SCHED_B, 1);
        put_cell(x, 1);
    }
    /* r + 1 pairs of backwards; the later half of the 2 (r + 1) put off W. */
    for (int i = 0; i < 2 * (r + 1); i++) {
        if (i < r + 1)
            put(x, SCHED_B, 1 - i % 2);
        else
            put_i(x, 1 - i % 2);
    }
    for (int i = 0; i < later; i++) {
        put_w(x);
        put_i(x, 0);
    }
    while (x->head < x->tail)
        put_w(x);
}

void make_dualpipe_v(sched *s)
{
    int *queue = make_room(2 * s->micro, sizeof *queue);
    for (int r = 0; r < s->ranks; r++) {
        vee x = vee_of(s, r);
        x.queue = queue;
        dualpipe_v_rank(&x);
    }
    free(queue);
}
