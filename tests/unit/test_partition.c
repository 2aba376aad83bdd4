/* The partition against every cut there is, and by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "passes/partition.h"

enum { MOST = 12 };

static uint32_t seed = 7;

static int draw(int n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int)((seed >> 10) % (uint32_t)n);
}

/* ---- by trying everything ------------------------------------------------ */

typedef struct brute {
    const part_ask *q;
    int begin[MOST + 1];
    double heaviest, squares;
} brute;

static void weigh(brute *b)
{
    const part_ask *q = b->q;
    double load[MOST] = {0}, bytes[MOST] = {0}, heaviest = 0, squares = 0;
    for (int s = 0; s < q->stages; s++) {
        double sum = 0;
        for (int u = b->begin[s]; u < b->begin[s + 1]; u++)
            sum += q->seconds[u];
        load[q->device[s]] += sum;
        for (int i = 0; i < q->nshares; i++) {
            const part_share *x = &q->share[i];
            if (x->unit >= b->begin[s] && x->unit < b->begin[s + 1] &&
                x->before < b->begin[s])
                bytes[q->device[s]] += x->fixed + x->held * q->flight[s];
        }
    }
    for (int d = 0; d < q->devices; d++) {
        if (q->room > 0 && bytes[d] > q->room)
            return;
        heaviest = load[d] > heaviest ? load[d] : heaviest;
        squares += load[d] * load[d];
    }
    if (heaviest < b->heaviest ||
        (heaviest == b->heaviest && squares < b->squares)) {
        b->heaviest = heaviest;
        b->squares = squares;
    }
}

static void try_all(brute *b, int s)
{
    const part_ask *q = b->q;
    if (s == q->stages) {
        b->begin[s] = q->n;
        weigh(b);
        return;
    }
    for (int u = b->begin[s - 1] + 1; u < q->n; u++) {
        if (!q->opens[u] ||
            (q->least && (u < q->least[s] || u > q->most[s])))
            continue;
        b->begin[s] = u;
        try_all(b, s + 1);
    }
}

/* ---- problems ------------------------------------------------------------ */

typedef struct problem {
    part_ask q;
    double seconds[MOST];
    bool opens[MOST];
    part_share share[3 * MOST];
    int device[MOST], flight[MOST];
} problem;

static void make(problem *p, int v, bool memory)
{
    memset(p, 0, sizeof *p);
    part_ask *q = &p->q;
    q->devices = 1 + draw(3);
    q->stages = q->devices * v;
    q->n = q->stages + draw(MOST - q->stages + 1);
    q->n = q->n > MOST ? MOST : q->n;
    q->seconds = p->seconds, q->opens = p->opens, q->share = p->share;
    q->device = p->device, q->flight = p->flight;
    int tied = -1, last = -1;
    for (int u = 0; u < q->n; u++) {
        p->seconds[u] = draw(4) ? 1 + draw(3) : 10 * draw(2);
        p->opens[u] = draw(5) > 0;
        p->share[q->nshares++] = (part_share){u, -1, draw(5), draw(3)};
        if (draw(3) == 0)
            p->share[q->nshares++] = (part_share){u, last, 6, 1};
        tied = p->share[q->nshares - 1].fixed == 6 ? u : tied;
        last = tied;
    }
    for (int s = 0; s < q->stages; s++) {
        p->device[s] = s % q->devices;
        p->flight[s] = q->stages - s;
    }
    q->room = memory ? 8 + draw(30) : 0;
}

static void check(bool memory, int v, int times, int *same, int *found)
{
    for (int i = 0; i < times; i++) {
        problem p;
        part_result r = {0};
        make(&p, v, memory);
        brute b = {.q = &p.q, .heaviest = INFINITY};
        try_all(&b, 1);
        bool any = part_cut(&p.q, &r);
        if (isfinite(b.heaviest)) {
            double squares = 0;
            for (int s = 0; s < p.q.stages; s++)
                squares += r.stage[s].seconds * r.stage[s].seconds;
            ++*found;
            assert_true(any);
            if (v == 1) {
                assert_true(r.fits);
                assert_float_equal(r.heaviest, b.heaviest, 1e-9);
                assert_float_equal(squares, b.squares, 1e-6);
            }
            *same += r.fits && fabs(r.heaviest - b.heaviest) < 1e-9;
        } else {
            assert_true(!any || !r.fits || v > 1);
        }
        free(r.stage);
    }
}

static void the_best_of_all_cuts(void **state)
{
    (void)state;
    int same = 0, found = 0;
    check(false, 1, 3000, &same, &found);
    assert_int_equal(same, found);
    assert_true(found > 1500);
}

static void the_best_that_fits(void **state)
{
    (void)state;
    int same = 0, found = 0;
    check(true, 1, 3000, &same, &found);
    assert_int_equal(same, found);
    assert_true(found > 1000);
}

/* Several stages of a device: seldom more than the best of all. */
static void several_per_device(void **state)
{
    (void)state;
    int same = 0, found = 0;
    check(false, 2, 1000, &same, &found);
    print_message("v = 2: %d of %d are the best\n", same, found);
    assert_true(same * 10 >= found * 9);
}

/* ---- by hand ------------------------------------------------------------- */

enum { MANY = 6000 };
static double seconds[MANY];
static bool opens[MANY];

static part_result cut(int n, int devices, int v)
{
    int device[1024];
    part_result r = {0};
    for (int u = 0; u < n; u++)
        opens[u] = true;
    for (int s = 0; s < devices * v; s++)
        device[s] = s % devices;
    part_ask q = {.n = n, .seconds = seconds, .opens = opens,
                  .stages = devices * v, .devices = devices,
                  .device = device};
    assert_true(part_cut(&q, &r));
    return r;
}

static void expect(int n, int devices, int v, const char *want)
{
    part_result r = cut(n, devices, v);
    char is[64] = "";
    for (int s = 0; s < devices * v; s++)
        snprintf(is + strlen(is), sizeof is - strlen(is), "%s%d",
                 s ? "+" : "", r.stage[s].end - r.stage[s].begin);
    assert_string_equal(is, want);
    free(r.stage);
}

static void equal(int n)
{
    for (int u = 0; u < n; u++)
        seconds[u] = 0.1;
}

static void by_hand(void **state)
{
    (void)state;
    equal(11);
    expect(11, 3, 1, "4+4+3");
    expect(11, 4, 1, "3+3+3+2");
    expect(11, 11, 1, "1+1+1+1+1+1+1+1+1+1+1");
    expect(11, 1, 1, "11");
    seconds[10] = 5;                 /* a head heavier than all layers */
    expect(11, 3, 1, "5+5+1");
    equal(16);
    expect(16, 2, 2, "4+4+4+4");
}

static void large_and_fast(void **state)
{
    (void)state;
    for (int u = 0; u < MANY; u++)
        seconds[u] = 1 + draw(1000) * 1e-3;
    clock_t from = clock();
    for (int p = 2; p <= 64; p *= 2)
        free(cut(MANY, p, 1).stage);
    assert_true((double)(clock() - from) / CLOCKS_PER_SEC < 20);
    equal(256);
    part_result r = cut(256, 16, 4);
    assert_float_equal(r.heaviest, 1.6, 1e-6);
    free(r.stage);
}

/* 32 devices of 32 stages each; and a chain of many units on few stages. */
static void thousands_of_stages(void **state)
{
    (void)state;
    clock_t from = clock();
    for (int u = 0; u < MANY; u++)
        seconds[u] = 1 + draw(10) * 1e-2;
    double all = 0;
    for (int u = 0; u < MANY; u++)
        all += seconds[u];
    part_result r = cut(MANY, 32, 32);
    assert_true(r.heaviest < 1.02 * all / 32);
    free(r.stage);
    assert_true((double)(clock() - from) / CLOCKS_PER_SEC < 10);
}

/* What cannot be: too few units, too little memory, with the numbers. */
static void refusals(void **state)
{
    (void)state;
    int device[3] = {0, 1, 2}, flight[3] = {3, 2, 1};
    const part_share share[] = {{0, -1, 10, 1}, {1, -1, 10, 1}, {2, -1, 10, 1},
                                {3, -1, 10, 1}};
    equal(4);
    for (int u = 0; u < 4; u++)
        opens[u] = true;
    part_ask q = {.n = 2, .seconds = seconds, .opens = opens, .stages = 3,
                  .devices = 3, .device = device, .flight = flight};
    part_result r = {0};
    assert_false(part_cut(&q, &r));
    free(r.stage);
    q.n = q.nshares = 4;
    q.share = share;
    q.room = 20;                     /* one stage has two units */
    assert_true(part_cut(&q, &r));
    assert_false(r.fits);
    assert_float_equal(r.bytes, 22, 0.5);
    free(r.stage);
    q.room = 22;
    assert_true(part_cut(&q, &r));
    assert_true(r.fits);
    assert_int_equal(r.stage[2].end - r.stage[2].begin, 2);
    free(r.stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_of_all_cuts),
        cmocka_unit_test(the_best_that_fits),
        cmocka_unit_test(several_per_device),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(large_and_fast),
        cmocka_unit_test(thousands_of_stages),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
