/* What one rank sends, piece by piece, against rings that are walked; and the
 * time of a message. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "passes/passes.h"

enum { MICRO = 2 };

static const nd_mesh mesh = {.n = 3, .name = {"a", "b", "micro"},
                             .size = {2, 3, 1}, .micro = MICRO, .pipe = -1};
static nd_axis rows = {.name = "rows", .size = 11};
static nd_axis cols = {.name = "cols", .size = 7};

/* Without a pipeline. */
static const nd_module module;

static nd_spot spot(int a, int b)
{
    return (nd_spot){.m = &module, .mesh = &mesh, .coord = {a, b, 0}};
}

/* [rows/a/b, cols], or without the b. */
static nd_type type_of(bool cut, nd_dtype t)
{
    nd_type x = nd_type_of(t, 2, (nd_axis *[]){&rows, &cols});
    x.cut[0] = (nd_cut){cut ? 2 : 1, {0, 1}};
    return x;
}

/* Of an op over b. */
static nd_message message_of(nd_opcode kind, const nd_type *x, const nd_type *y,
                             nd_spot s)
{
    nd_value in = {.type = *x}, out = {.type = *y};
    nd_value *ins[] = {&in, &in}, *outs[] = {&out};
    nd_op op = {.kind = kind, .nin = 1, .nout = 1, .in = ins, .out = outs,
                .naxes = 1, .axes = (nd_axis *[]){x->axis[0]}, .mesh = 2};
    return nd_op_message(&op, &s);
}

/* Bytes of piece b of the rows of a. */
static int64_t piece(int a, int b)
{
    static const int64_t n[2][3] = {{2, 2, 2}, {2, 2, 1}};
    return n[a][b] * 7 * 4;
}

/* In round t of a ring, member i sends on piece i - t (all_gather), or the sum
 * so far of piece i - t - 1 (reduce_scatter). */
static int64_t ring(int a, int i, int first)
{
    int64_t sent = 0;
    for (int t = 0; t < 2; t++)
        sent += piece(a, (i - t - first + 6) % 3);
    return sent;
}

static void test_rings(void **state)
{
    (void)state;
    nd_type cut = type_of(true, ND_F32), whole = type_of(false, ND_F32);
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 3; b++) {
            nd_spot s = spot(a, b);
            nd_message g = message_of(OP_ALL_GATHER, &cut, &whole, s);
            nd_message r = message_of(OP_REDUCE_SCATTER, &whole, &cut, s);
            assert_int_equal(g.bytes, ring(a, b, 0));
            assert_int_equal(r.bytes, ring(a, b, 1));
            assert_int_equal(g.kind, COMM_ALL_GATHER);
            assert_int_equal(r.kind, COMM_REDUCE_SCATTER);
        }
}

/* 13 numbers in pieces of 5, 4 and 4: both rings send all but one. */
static void test_sum(void **state)
{
    (void)state;
    static const int64_t n[3] = {5, 4, 4};
    for (int b = 0; b < 3; b++) {
        nd_spot s = spot(1, b);
        nd_message x = nd_sum_message(&s, 2, 13);
        assert_int_equal(x.bytes, 4 * (26 - n[b] - n[(b + 1) % 3]));
        assert_int_equal(x.calls, 1);
    }
}

/* Members of a group over two axes: the last one counts fastest. */
static void test_two_axes(void **state)
{
    (void)state;
    nd_spot s = spot(0, 2);
    assert_int_equal(nd_group_size(&mesh, 3), 6);
    assert_int_equal(nd_sum_message(&s, 3, 9).bytes, 4 * (18 - 2 - 1));
    assert_int_equal(nd_parts_message(&s, COMM_ALL_GATHER, 3, 12).bytes, 40);
}

/* Every rank gets all copies of integers of 64 bits, 1024 at a time. */
static void test_wide(void **state)
{
    (void)state;
    nd_axis many = {.name = "many", .size = 1500};
    nd_type x = nd_type_of(ND_I64, 1, (nd_axis *[]){&many});
    nd_spot s = spot(0, 0);
    nd_message w = message_of(OP_ALL_REDUCE, &x, &x, s);
    assert_int_equal(w.kind, COMM_ALL_GATHER);
    assert_int_equal(w.calls, 2);
    assert_int_equal(w.bytes, 1500 * 8 * 2);
}

/* A new collective is a row of the table in comm_bytes.c. */
static void test_all_collectives(void **state)
{
    (void)state;
    nd_type here = type_of(true, ND_F32);
    nd_route way = {.rows = here};
    nd_axis routed = {.name = "routed", .size = 77, .route = &way};
    nd_type there = nd_type_of(ND_F32, 1, (nd_axis *[]){&routed});
    nd_spot s = spot(0, 0);
    for (int k = 0; k < OP_COUNT; k++) {
        if (!strchr(nd_ops[k].traits, 'k'))
            continue;
        bool travels = k == OP_DISPATCH || k == OP_COMBINE;
        const nd_type *x = travels ? &there : &here;
        print_message("%s\n", nd_ops[k].name);
        nd_message sent = message_of((nd_opcode)k, x, x, s);
        assert_true(sent.calls > 0);
        assert_true(sent.about == travels);
    }
}

static void same(double x, double y)
{
    assert_true(fabs(x - y) < 1e-12);
}

static void test_seconds(void **state)
{
    (void)state;
    const nd_cluster c = {3, 1e9, 1e-6, 1e8, 1e-5, 0, 0, 0};
    same(nd_comm_seconds(&c, &mesh, COMM_ALL_GATHER, 2, 3, 1000), 3e-6);
    same(nd_comm_seconds(&c, &mesh, COMM_ALL_REDUCE, 2, 3, 1000), 5e-6);
    same(nd_comm_seconds(&c, &mesh, COMM_ALL_REDUCE, 1, 2, 1000), 3e-5);
    same(nd_comm_seconds(&c, &mesh, COMM_SEND, 1, 2, 1000), 2e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_two_axes),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_all_collectives),
        cmocka_unit_test(test_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
