/* make_loop.c - schedules whose stages go round the ranks: stage s is on rank
 * s % p. Rank 1 of 4, 5 microbatches, one stage per rank:
 *
 *   gpipe   F0 F1 F2 F3 F4 B0 B1 B2 B3 B4
 *   1f1b    F0 F1 F2 B0 F3 B1 F4 B2 B3 B4
 *   zb_h1   F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4
 */
#include "make.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

void make_gpipe(sched *s)
{
    for (int r = 0; r < s->ranks; r++) {
        for (int mb = 0; mb < s->micro; mb++)
            sched_push(s, r, SCHED_F, r, mb);
        for (int mb = 0; mb < s->micro; mb++)
            sched_push(s, r, SCHED_B, r, mb);
    }
}

/* One forward per later stage fills the pipeline; then they alternate. A stage
 * holds at most min(p - r, m) microbatches. */
void make_1f1b(sched *s)
{
    for (int r = 0; r < s->ranks; r++) {
        int warm = least(s->ranks - 1 - r, s->micro);
        for (int mb = 0; mb < warm; mb++)
            sched_push(s, r, SCHED_F, r, mb);
        for (int mb = 0; mb < s->micro; mb++) {
            if (warm + mb < s->micro)
                sched_push(s, r, SCHED_F, r, warm + mb);
            sched_push(s, r, SCHED_B, r, mb);
        }
    }
}

/* The k-th forward of a rank: groups of g microbatches go through its stages
 * one after another. Its k-th backward goes through them from the last. */
static void put_interleaved(sched *s, int r, sched_op op, int k, int g)
{
    int v = s->stages / s->ranks;
    int group = k / (g * v), chunk = k % (g * v) / g;
    if (op == SCHED_B)
        chunk = v - 1 - chunk;
    sched_push(s, r, op, chunk * s->ranks + r, group * g + k % g);
}

/* 1f1b over all stages of a rank. The microbatches are cut in m / p rounds of
 * equal size: of p where p divides m. */
void make_interleaved(sched *s)
{
    int p = s->ranks, m = s->micro, v = s->stages / p;
    int g = m < p ? m : m / (m / p);
    for (int r = 0; r < p; r++) {
        int warm = least((p - r - 1) * 2 + (v - 1) * g, m * v);
        for (int k = 0; k < warm; k++)
            put_interleaved(s, r, SCHED_F, k, g);
        for (int k = 0; k < m * v; k++) {
            if (warm + k < m * v)
                put_interleaved(s, r, SCHED_F, warm + k, g);
            put_interleaved(s, r, SCHED_B, k, g);
        }
    }
}

/* A stage does all microbatches at once, so that weights which are fetched for
 * it are fetched once each way. */
void make_bfs(sched *s)
{
    int p = s->ranks, m = s->micro;
    for (int r = 0; r < p; r++) {
        for (int stage = r; stage < s->stages; stage += p)
            for (int mb = 0; mb < m; mb++)
                sched_push(s, r, SCHED_F, stage, mb);
        for (int stage = s->stages - p + r; stage >= 0; stage -= p)
            for (int mb = m - 1; mb >= 0; mb--)
                sched_push(s, r, SCHED_B, stage, mb);
    }
}

/* Step x does F(x), the I of h (p - 1 - r) steps ago and the W of h (p - 1)
 * steps ago: ranks that start later have W left to fill what would be their
 * wait at the end. */
static void zero_bubble(sched *s, int h)
{
    int p = s->ranks, m = s->micro;
    for (int r = 0; r < p; r++)
        for (int x = 0; x < m + h * (p - 1); x++) {
            int i = x - h * (p - 1 - r), w = x - h * (p - 1);
            if (x < m)
                sched_push(s, r, SCHED_F, r, x);
            if (i >= 0 && i < m)
                sched_push(s, r, SCHED_I, r, i);
            if (w >= 0)
                sched_push(s, r, SCHED_W, r, w);
        }
}

void make_zb_h1(sched *s)
{
    zero_bubble(s, 1);
}

void make_zb_h2(sched *s)
{
    zero_bubble(s, 2);
}
