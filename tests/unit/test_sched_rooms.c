/* Where microbatches keep what they keep: enough for all, and no more than the
 * most that ever live at once where stages keep the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../../runtime/schedule/sched.h"

static sched *made(int kind, int p, int m)
{
    sched_error e;
    sched_ask ask = {.kind = (sched_kind)kind, .ranks = p, .micro = m,
                     .v = sched_kinds[kind].v ? 0 : 2};
    return sched_make(&ask, &e);
}

/* bytes: equal ones, or of all sizes, 0 among them. */
static void fill(size_t (*bytes)[SCHED_NSPANS], int stages, bool equal)
{
    unsigned x = 12345;
    for (int i = 0; i < stages; i++)
        for (int k = 0; k < SCHED_NSPANS; k++) {
            x = x * 1664525u + 1013904223u;
            bytes[i][k] = equal ? 64 : 64 * (x >> 16 & 7);
        }
}

static size_t own_slots(const sched *s, const size_t (*bytes)[SCHED_NSPANS],
                        int rank)
{
    size_t all = 0;
    for (int i = 0; i < s->stages; i++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            if (s->rank_of[i] == rank)
                all += bytes[i][k] *
                       (size_t)sched_slots(s, i, (sched_span)k);
    return all;
}

static void test_all_kinds(void **state)
{
    (void)state;
    static size_t bytes[32][SCHED_NSPANS];
    sched_error e;
    int schedules = 0;
    for (int kind = 0; kind < SCHED_NKINDS; kind++)
        for (int p = 1; p <= 5; p++)
            for (int m = 1; m <= 11; m++)
                for (int how = 0; how < 4; how++) {
                    sched *s = made(kind, p, m);
                    sched_rooms r;
                    if (!s)
                        continue;
                    schedules++;
                    fill(bytes, s->stages, how & 1);
                    assert_true(how & 2 || sched_lower(s, NULL, &e));
                    assert_true(sched_rooms_new(s, bytes, &r));
                    if (!sched_check_rooms(s, bytes, &r, &e))
                        fail_msg("%s, p %d, m %d: %s", s->name, p, m, e.text);
                    for (int d = 0; d < p; d++)
                        assert_true(r.bytes[d] <= own_slots(s, bytes, d));
                    sched_rooms_free(&r);
                    sched_free(s);
                }
    assert_true(schedules > 1000);
}

/* The memory that v_half and v_min are made for: the most chunks at once, as in
 * the table of timelines, and not the sum of what each stage has at most. */
static void test_shared(void **state)
{
    (void)state;
    static const struct {
        int kind, chunks[4];
    } table[] = {
        {SCHED_KIND_1F1B, {4, 3, 2, 1}},
        {SCHED_KIND_INTERLEAVED, {11, 9, 7, 5}},
        {SCHED_KIND_BFS, {16, 16, 16, 16}},
        {SCHED_KIND_ZB_V, {8, 8, 8, 8}},
        {SCHED_KIND_V_HALF, {6, 6, 6, 6}},
        {SCHED_KIND_V_MIN, {4, 4, 4, 4}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t bytes[8][SCHED_NSPANS] = {{0}};
        sched *s = made(table[i].kind, 4, 8);
        sched_rooms r;
        for (int k = 0; k < s->stages; k++)
            bytes[k][SCHED_UNTIL_W] = 64;
        assert_true(sched_rooms_new(s, (const size_t (*)[SCHED_NSPANS])bytes,
                                    &r));
        for (int d = 0; d < 4; d++)
            assert_int_equal(r.bytes[d], 64 * table[i].chunks[d]);
        sched_rooms_free(&r);
        sched_free(s);
    }
}

/* Every slot is needed: without it, somebody overwrites somebody. */
static void test_faults(void **state)
{
    (void)state;
    size_t bytes[8][SCHED_NSPANS];
    sched *s = made(SCHED_KIND_V_HALF, 4, 8);
    sched_error e;
    sched_rooms r;
    fill(bytes, 8, true);
    assert_true(sched_lower(s, NULL, &e));
    assert_true(sched_rooms_new(s, (const size_t (*)[SCHED_NSPANS])bytes, &r));
    int all = 8 * 8 * SCHED_NSPANS, caught = 0, tried = 0;
    for (int i = 0; i + SCHED_NSPANS < all; i++) {
        size_t at = r.at[i];
        int slot = r.slot[i], other = i + SCHED_NSPANS;
        if (slot < 0 || r.slot[other] == slot ||
            (i / SCHED_NSPANS + 1) % 8 == 0)
            continue;
        r.at[i] = r.at[other], r.slot[i] = r.slot[other];
        tried++;
        caught += !sched_check_rooms(s, (const size_t (*)[SCHED_NSPANS])bytes,
                                     &r, &e);
        r.at[i] = at, r.slot[i] = slot;
    }
    assert_true(tried > 50);
    assert_true(caught * 2 > tried);     /* neighbours mostly live together */
    r.bytes[2]--;
    assert_false(sched_check_rooms(s, (const size_t (*)[SCHED_NSPANS])bytes,
                                   &r, &e));
    sched_rooms_free(&r);
    sched_free(s);
}

/* Slot 1 of three is empty: slot 0 may not reach into slot 2. */
static void test_empty_slot(void **state)
{
    (void)state;
    static const size_t bytes[1][SCHED_NSPANS] = {{64}};
    size_t at[] = {0, 0, 0, 63, 0, 0}, all = 127;
    int slot[] = {0, -1, -1, 2, -1, -1}, slots = 3;
    sched_rooms r = {at, slot, &slots, &all};
    sched *s = sched_new("two", 1, 1, 2, SCHED_LOOP);
    sched_error e;
    assert_false(sched_check_rooms(s, bytes, &r, &e));
    at[3] = 64, all = 128;
    assert_true(sched_check_rooms(s, bytes, &r, &e));
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_empty_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
