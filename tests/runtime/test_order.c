/* test_order.c - which actions of a list wait for which, by hand and, on random
 * lists, that no two accesses to a slot change places. */
#include "ndrt_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* One stage in the middle: its row, `slots` in each span. */
static void order(const sched *s, int slots, int *needs)
{
    enum { SPANS = 3 * SCHED_NSPANS };
    int *slot = calloc((size_t)(SPANS * s->micro), sizeof *slot);
    int all[] = {0, SPANS * slots, 0};
    sched_rooms rooms = {.slot = slot, .slots = all};

    assert_non_null(slot);
    for (int i = 0; i < SPANS * s->micro; i++) {
        int span = i % SCHED_NSPANS, cell = i / SCHED_NSPANS;
        int stage = cell / s->micro, mb = cell % s->micro;
        slot[i] = (stage * SCHED_NSPANS + span) * slots + mb % slots;
    }
    assert_true(ndrt_order(s, 1, &rooms, needs));
    free(slot);
}

static sched *middle(int micro)
{
    sched *s = sched_new("test", 3, 3, micro, SCHED_LOOP);

    assert_non_null(s);
    return s;
}

typedef struct step {
    sched_op op;
    int mb, needs;
} step;

static void expect(const step *v, int n, int micro, int slots)
{
    sched *s = middle(micro);
    int needs[64];

    for (int i = 0; i < n; i++)
        sched_push(s, 1, v[i].op, 1, v[i].mb);
    order(s, slots, needs);
    for (int i = 0; i < n; i++)
        if (needs[i] != v[i].needs)
            fail_msg("action %d needs %d, expected %d", i, needs[i],
                     v[i].needs);
    sched_free(s);
}

#define EXPECT(micro, slots, ...) \
    expect((const step[]){__VA_ARGS__}, \
           sizeof((const step[]){__VA_ARGS__}) / sizeof(step), micro, slots)

/* A second slot lets the next receive begin before anything is computed. */
static void test_receive_ahead(void **state)
{
    (void)state;
    EXPECT(3, 2, {SCHED_RECV_F, 0, 0}, {SCHED_F, 0, 1}, {SCHED_RECV_F, 1, 0},
           {SCHED_SEND_F, 0, 1}, {SCHED_F, 1, 2}, {SCHED_SEND_F, 1, 2},
           {SCHED_RECV_B, 0, 1}, {SCHED_B, 0, 5}, {SCHED_SEND_B, 0, 3},
           {SCHED_RECV_F, 2, 3}, {SCHED_F, 2, 7});
}

/* With one slot it waits until that is free. */
static void test_one_slot(void **state)
{
    (void)state;
    EXPECT(2, 1, {SCHED_RECV_F, 0, 0}, {SCHED_F, 0, 1}, {SCHED_SEND_F, 0, 1},
           {SCHED_RECV_B, 0, 1}, {SCHED_B, 0, 3}, {SCHED_SEND_B, 0, 2},
           {SCHED_RECV_F, 1, 2}, {SCHED_F, 1, 5});
}

/* W reads what I kept for it, and so does a send: neither waits for the other,
 * but the next microbatch in the slot waits for both. */
static void test_readers(void **state)
{
    (void)state;
    EXPECT(2, 1, {SCHED_F, 0, 0}, {SCHED_I, 0, 0}, {SCHED_SEND_B, 0, 2},
           {SCHED_W, 0, 0}, {SCHED_RECV_F, 1, 3}, {SCHED_F, 1, 2});
}

/* Stages of one device hand over in memory: a receive waits until the next
 * stage has taken what lies in the slot. */
static void test_hand_over(void **state)
{
    sched *s = middle(2);
    int needs[6];

    (void)state;
    s->rank_of[2] = 1;
    sched_push(s, 1, SCHED_RECV_F, 1, 0);
    sched_push(s, 1, SCHED_F, 1, 0);
    sched_push(s, 1, SCHED_F, 2, 0);
    sched_push(s, 1, SCHED_RECV_F, 1, 1);
    sched_push(s, 1, SCHED_F, 1, 1);
    order(s, 1, needs);
    assert_int_equal(needs[1], 1);
    assert_int_equal(needs[2], 1);
    assert_int_equal(needs[3], 2);
    assert_int_equal(needs[4], 2);
    sched_free(s);
}

/* What stands from I until W, here in one slot for all, is not there yet when
 * an activation is sent. */
static void test_send_before_i(void **state)
{
    int slot[] = {-1, -1, -1, -1, -1, -1, 0, 1, 4, 2, 3, 4,
                  -1, -1, -1, -1, -1, -1};
    int slots[] = {0, 5, 0}, needs[5];
    sched_rooms rooms = {.slot = slot, .slots = slots};
    sched *s = middle(2);

    (void)state;
    sched_push(s, 1, SCHED_F, 1, 0);
    sched_push(s, 1, SCHED_SEND_F, 1, 0);
    sched_push(s, 1, SCHED_F, 1, 1);
    sched_push(s, 1, SCHED_SEND_F, 1, 1);
    sched_push(s, 1, SCHED_I, 1, 0);
    assert_true(ndrt_order(s, 1, &rooms, needs));
    assert_int_equal(needs[4], 1);
    sched_free(s);
}

/* ---- random lists -------------------------------------------------------- */

static bool writes(sched_op op)
{
    return op != SCHED_W && op != SCHED_SEND_F && op != SCHED_SEND_B;
}

/* Do they meet in memory? Of one stage, W uses what F does not. */
static bool meet(const sched_action *a, const sched_action *b, int slots)
{
    return a->mb % slots == b->mb % slots && (writes(a->op) || writes(b->op));
}

/* Whoever stands before in the other stream and meets this one has ended. */
static void check_row(const sched_row *row, int slots, const int *needs)
{
    for (int i = 0; i < row->n; i++) {
        int ended = 0, before = 0;
        for (int k = 0; k < i; k++) {
            if (sched_is_compute(row->v[k].op) ==
                sched_is_compute(row->v[i].op))
                continue;
            before++;
            if (meet(&row->v[k], &row->v[i], slots))
                ended = before;
        }
        assert_true(needs[i] >= ended);
        assert_true(needs[i] <= before);
    }
}

static void test_random(void **state)
{
    static const sched_op ops[] = {SCHED_F, SCHED_B, SCHED_SEND_F,
                                   SCHED_RECV_F, SCHED_SEND_B, SCHED_RECV_B};
    uint32_t x = 1;

    (void)state;
    for (int t = 0; t < 500; t++) {
        sched *s = middle(5);
        int needs[40], slots = 1 + t % 4;
        for (int i = 0; i < 40; i++) {
            x = x * 1664525u + 1013904223u;
            sched_push(s, 1, ops[(x >> 8) % 6], 1, (int)(x >> 16) % 5);
        }
        order(s, slots, needs);
        check_row(&s->row[1], slots, needs);
        sched_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receive_ahead), cmocka_unit_test(test_one_slot),
        cmocka_unit_test(test_readers), cmocka_unit_test(test_hand_over),
        cmocka_unit_test(test_send_before_i),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
