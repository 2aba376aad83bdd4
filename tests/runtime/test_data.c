/* test_data.c - which numbers land in which input, on any mesh; what is said
 * of data that do not fit; generation; the command line.
 *
 * The program has i32 inputs tokens and targets [batch, seq], cut over dp, and
 * logits that make the byte after v be v + 1.
 */
#include "ndrt_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { B = 6, T = 5, V = 128 };
enum { E_ROWS, E_SEQ, E_MICRO, E_VOCAB, NEXTENTS };

typedef struct lm {
    ndrt_program p;
    int mesh[2];
    ndrt_extent extents[NEXTENTS];
    ndrt_tensor in[2], out;
    ndrt_range ranges[2];
    size_t inputs[2];
    ndrt_spot outputs[1];
    ndrt_device device;
    ndrt_stage stage;
    ndrt_course course;
    ndrt_config config;
} lm;

static char path[64];

/* Logits are [batch/(dp,micro), seq, vocab/tp] at byte 4096 of the arena. */
static void next_byte(ndrt_rank *r)
{
    const int32_t *tokens = (const int32_t *)(void *)r->arena;
    float *x = (float *)(void *)(r->arena + 4096);
    int64_t cap = r->program->outputs[0].cap[2];

    for (int64_t i = 0; i < r->n[E_MICRO]; i++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t v = 0; v < r->n[E_VOCAB]; v++)
                x[(i * T + t) * cap + v] =
                    r->off[E_VOCAB] + v == tokens[i * T + t] + 1 ? 50.0f
                                                                 : 0.0f;
}

static const ndrt_program *make(lm *m, int dp, int tp)
{
    static const char *const names[] = {"dp", "tp"};
    static const char *const schedule[] = {"0F0 0F1"};
    int64_t rows = (B + dp - 1) / dp;

    memset(m, 0, sizeof *m);
    m->mesh[0] = dp;
    m->mesh[1] = tp;
    m->extents[E_ROWS] = (ndrt_extent){"batch/dp", B, 1, {0}, NULL};
    m->extents[E_SEQ] = (ndrt_extent){"seq", T, 0, {0}, NULL};
    m->extents[E_MICRO] = (ndrt_extent){"batch/(dp,micro)", B, 2,
                                        {0, NDRT_MICRO}, NULL};
    m->extents[E_VOCAB] = (ndrt_extent){"vocab/tp", V, 1, {1}, NULL};
    for (int i = 0; i < 2; i++) {
        m->in[i] = (ndrt_tensor){
            .name = i ? "targets" : "tokens", .dtype = NDRT_I32, .naxes = 2,
            .axis = {"batch", "seq"}, .extent = {E_ROWS, E_SEQ},
            .cap = {rows, T}};
        m->ranges[i] = (ndrt_range){V, i ? -100 : 0};
        m->inputs[i] = (size_t)i * 1024;
    }
    m->out = (ndrt_tensor){
        .name = "logits", .naxes = 3, .axis = {"batch", "seq", "vocab"},
        .extent = {E_MICRO, E_SEQ, E_VOCAB},
        .cap = {rows, T, (V + tp - 1) / tp}};
    m->outputs[0] = (ndrt_spot){NDRT_FIXED, 4096};
    m->device = (ndrt_device){.fixed_bytes = 65536, .inputs = m->inputs,
                              .loss = NDRT_NONE};
    m->stage = (ndrt_stage){.outputs = m->outputs,
                            .run = {[NDRT_F] = next_byte}};
    m->p = (ndrt_program){
        .name = "lm", .nmesh = 2, .mesh_name = names, .mesh_size = m->mesh,
        .pipe = -1, .zero = -1, .nmicro = 2, .sample_extent = E_ROWS,
        .sample_axis = "batch", .nextents = NEXTENTS, .extents = m->extents,
        .ninputs = 2, .inputs = m->in, .ranges = m->ranges,
        .noutputs = 1, .outputs = &m->out,
        .ndevices = 1, .devices = &m->device, .nstages = 1,
        .stages = &m->stage, .schedule_name = "test", .schedule = schedule};
    m->config.course = &m->course;
    m->config.train = (ndrt_train){.data = NDRT_DATA_TEXT, .data_path = path,
                                   .steps = 1, .seed = 3};
    return &m->p;
}

static void write_bytes(int n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    for (int i = 0; i < n; i++)
        fputc(i % 100, f);
    fclose(f);
}

/* Gathers batch k of one input over all ranks; returns the worst status. */
static ndrt_status batch(lm *m, int input, int64_t k, bool eval,
                         int32_t out[B * T], char message[512])
{
    int n = ndrt_mesh_ranks(&m->p);
    ndrt_world *w = ndrt_world_new(n);
    ndrt_status worst = NDRT_OK;

    assert_int_equal(ndrt_course_open(&m->course, &m->p, &m->config, stderr),
                     NDRT_OK);
    for (int q = 0; q < n; q++) {
        ndrt_rank *r = ndrt_rank_new(&m->p, &m->config,
                                     ndrt_world_comm(w, q));
        ndrt_status s = ndrt_make_arena(r);
        if (s == NDRT_OK)
            s = ndrt_data_open(r);
        if (s == NDRT_OK)
            s = ndrt_data_batch(r, k, eval);
        if (s != NDRT_OK) {
            worst = s;
            strcpy(message, r->state->error);
        }
        for (int64_t i = 0; i < r->n[E_ROWS]; i++)
            memcpy(out + (r->off[E_ROWS] + i) * T,
                   (int32_t *)ndrt_input(r, input) + i * T,
                   T * sizeof *out);
        ndrt_data_close(r);
        ndrt_rank_free(r);
    }
    ndrt_world_free(w);
    ndrt_course_close(&m->course);
    return worst;
}

/* ---- text --------------------------------------------------------------- */

static void test_windows(void **state)
{
    static const struct {
        int bytes, windows;
    } files[] = {{6, 1}, {30, 5}, {31, 6}, {50, 9}, {60, 11}, {61, 12},
                 {95, 18}};
    int32_t x[B * T];
    char text[512];
    lm m;

    (void)state;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        write_bytes(files[f].bytes);
        for (int dp = 1; dp <= 4; dp++) {
            make(&m, dp, 1);
            for (int k = 0; k < 8; k++) {
                int input = k % 2;
                assert_int_equal(batch(&m, input, k / 2, false, x, text),
                                 NDRT_OK);
                for (int i = 0; i < B * T; i++) {
                    int w = (k / 2 * B + i / T) % files[f].windows;
                    assert_int_equal(x[i], w * T + i % T + input);
                }
            }
        }
    }
}

static void test_held_out(void **state)
{
    int32_t x[B * T];
    char text[512];
    lm m;

    (void)state;
    make(&m, 2, 1);
    m.config.train.eval_every = 1;
    write_bytes(5 * T + 1);       /* 5 windows, the last one is held out */
    assert_int_equal(batch(&m, 0, 0, true, x, text), NDRT_OK);
    for (int i = 0; i < B * T; i++)
        assert_int_equal(x[i], 4 * T + i % T);
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_OK);
    for (int i = 0; i < B * T; i++)
        assert_int_equal(x[i], i / T % 4 * T + i % T);
}

static void test_bad_text(void **state)
{
    int32_t x[B * T];
    char text[512];
    lm m;

    (void)state;
    make(&m, 2, 1);
    for (int n = 0; n <= T; n++) {
        char found[32];
        write_bytes(n);
        assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
        snprintf(found, sizeof found, "has %d bytes", n);
        assert_non_null(strstr(text, found));
        assert_non_null(strstr(text, "at least 6"));
    }
    unlink(path);
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, path));
    static const char *const odd[] = {"/tmp", "/dev/null", "/dev/zero"};
    for (int i = 0; i < 3; i++) {
        m.config.train.data_path = odd[i];
        assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
        assert_non_null(strstr(text, odd[i]));
    }
    m.config.train.data_path = path;
    assert_int_equal(mkfifo(path, 0600), 0);       /* nobody writes into it */
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, "no regular file"));
    m.config.train.data = NDRT_DATA_ARRAYS;
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, "no regular file"));
    m.config.train.data = NDRT_DATA_TEXT;
    unlink(path);
    m.config.train.data_path = path;
    m.in[1].name = "labels";
    write_bytes(100);
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, "labels"));
}

/* A byte beyond the vocabulary is told with its offset, never clamped. */
static void test_ids(void **state)
{
    int32_t x[B * T];
    char text[512];
    FILE *f;
    lm m;

    (void)state;
    write_bytes(61);
    f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 34, SEEK_SET);
    fputc(V, f);
    fclose(f);
    make(&m, 2, 1);
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_OK);
    assert_int_equal(batch(&m, 0, 1, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, "128 at offset 34"));
    assert_non_null(strstr(text, "0 .. 127"));
}

/* ---- arrays and made-up data -------------------------------------------- */

/* 7 samples in an I64 and a U8 tensor. */
static void write_arrays(int bad)
{
    char h[512];
    int row = bad == 1 ? 4 : 5, end = 7 * row * 8;
    int n = snprintf(h, sizeof h,
        "{\"tokens\":{\"dtype\":\"I64\",\"shape\":[7,%d],"
        "\"data_offsets\":[0,%d]},\"%s\":{\"dtype\":\"U8\","
        "\"shape\":[7,5],\"data_offsets\":[%d,%d]}}", row, end,
        bad == 2 ? "labels" : "targets", end, end + 35);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    for (int i = 0; i < 8; i++)
        fputc((int64_t)n >> 8 * i & 255, f);
    fputs(h, f);
    for (int64_t i = 0; i < 7 * row; i++) {
        int64_t v = bad == 3 && i == 20 ? -100 : i;
        fwrite(&v, sizeof v, 1, f);
    }
    for (int i = 0; i < 35; i++)
        fputc(i + 1, f);
    fclose(f);
}

static void test_arrays(void **state)
{
    int32_t x[B * T];
    char text[512];
    lm m;

    (void)state;
    write_arrays(0);
    for (int dp = 1; dp <= 4; dp++) {
        make(&m, dp, 1);
        m.config.train.data = NDRT_DATA_ARRAYS;
        for (int k = 0; k < 6; k++) {
            assert_int_equal(batch(&m, k % 2, k / 2, false, x, text),
                             NDRT_OK);
            for (int i = 0; i < B * T; i++)
                assert_int_equal(x[i], (k / 2 * B + i / T) % 7 * T + i % T +
                                 k % 2);
        }
    }
    write_arrays(1);
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, "length 4 along axis \"seq\", expected 5"));
    write_arrays(2);
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    assert_non_null(strstr(text, "no tensor \"targets\""));
    write_arrays(3);              /* the ignore value, but not in labels */
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_EINPUT);
    m.ranges[0].ignore = -100;
    assert_int_equal(batch(&m, 0, 0, false, x, text), NDRT_OK);
    assert_int_equal(x[20], -100);
}

static void test_synthetic(void **state)
{
    int32_t x[B * T], first[B * T];
    char text[512];
    lm m;

    (void)state;
    for (int dp = 1; dp <= 4; dp++) {
        make(&m, dp, 1);
        m.config.train.data = NDRT_DATA_SYNTHETIC;
        assert_int_equal(batch(&m, 0, 3, false, dp == 1 ? first : x, text),
                         NDRT_OK);
        if (dp > 1)
            assert_memory_equal(x, first, sizeof x);
    }
    for (int i = 0; i < B * T; i++)
        assert_in_range(x[i], 0, V - 1);
    assert_int_equal(batch(&m, 0, 4, false, x, text), NDRT_OK);
    assert_memory_not_equal(x, first, sizeof x);
}

/* ---- generation --------------------------------------------------------- */

typedef struct speaker {
    lm *m;
    ndrt_comm *comm;
    ndrt_status status;
    FILE *out;
} speaker;

static void *speak(void *arg)
{
    speaker *s = arg;
    ndrt_rank *r = ndrt_rank_new(&s->m->p, &s->m->config, s->comm);

    ndrt_open_groups(r);
    ndrt_make_arena(r);
    s->status = ndrt_generate(r, s->out);
    ndrt_rank_free(r);
    return NULL;
}

static void generate(lm *m, const char *prompt, const char *expect)
{
    int n = ndrt_mesh_ranks(&m->p);
    ndrt_world *w = ndrt_world_new(n);
    speaker s[8];
    pthread_t t[8];
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    m->config.generate = prompt;
    m->config.tokens = 10;
    assert_int_equal(ndrt_course_open(&m->course, &m->p, &m->config, stderr),
                     NDRT_OK);
    for (int q = 0; q < n; q++) {
        s[q] = (speaker){m, ndrt_world_comm(w, q), NDRT_OK, out};
        pthread_create(&t[q], NULL, speak, &s[q]);
    }
    for (int q = 0; q < n; q++) {
        pthread_join(t[q], NULL);
        assert_int_equal(s[q].status, NDRT_OK);
    }
    fclose(out);
    assert_string_equal(text, expect);
    free(text);
    ndrt_world_free(w);
    ndrt_course_close(&m->course);
}

static void test_generate(void **state)
{
    lm m;

    (void)state;
    for (int dp = 1; dp <= 2; dp++) {
        for (int tp = 1; tp <= 3; tp++) {
            make(&m, dp, tp);
            m.config.temperature = 0.0;
            generate(&m, "a", "abcdefghijk\n");
            generate(&m, "xyz0123A", "xyz0123ABCDEFGHIJK\n");
            m.config.temperature = 1.0;
            generate(&m, "a", "abcdefghijk\n");
            generate(&m, "", "\n\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\n");
        }
    }
}

/* ---- options ------------------------------------------------------------- */

static ndrt_status options(ndrt_config *c, const char *a, const char *b,
                           char **text)
{
    char *argv[] = {"lm", (char *)a, (char *)b, NULL};
    size_t size;
    FILE *f = open_memstream(text, &size);
    lm m;

    make(&m, 2, 1);
    ndrt_status s = ndrt_options(&m.p, b ? 3 : 2, argv, c, f, f);
    fclose(f);
    return s;
}

static void refuse(const char *a, const char *b, const char *say)
{
    ndrt_config c;
    char *text;

    assert_int_equal(options(&c, a, b, &text), NDRT_EUSAGE);
    if (!strstr(text, say))
        fail_msg("no \"%s\" in: %s", say, text);
    free(text);
}

static void test_options(void **state)
{
    ndrt_config c;
    char *text;

    (void)state;
    assert_int_equal(options(&c, "--steps", "12", &text), NDRT_OK);
    assert_int_equal(c.train.steps, 12);
    free(text);
    assert_int_equal(options(&c, "--seed=18446744073709551615", NULL, &text),
                     NDRT_OK);
    assert_true(c.train.seed == UINT64_MAX);
    free(text);
    assert_int_equal(options(&c, "--data", "x.safetensors", &text), NDRT_OK);
    assert_int_equal(c.train.data, NDRT_DATA_ARRAYS);
    free(text);
    assert_int_equal(options(&c, "--help", NULL, &text), NDRT_OK);
    assert_true(c.done);
    assert_non_null(strstr(text, "--generate"));
    assert_non_null(strstr(text, "mpirun -n 2"));
    assert_non_null(strstr(text, "--threads N"));
    assert_non_null(strstr(text, "The source has --steps"));
    free(text);
    refuse("--stpes", "3", "did you mean \"--steps\"");
    refuse("--zzzzzzzz", NULL, "unknown option \"--zzzzzzzz\"\n");
    refuse("steps", NULL, "unknown option");
    refuse("--steps", NULL, "needs a value");
    refuse("--steps", "-1", "not a number");
    refuse("--steps", "3x", "not a number");
    refuse("--lr", "nan", "not a number");
    refuse("--lr", "", "not a number");
    refuse("--seed", "-5", "not a number");
    assert_int_equal(options(&c, "--threads", "3", &text), NDRT_OK);
    assert_int_equal(c.threads, 3);
    free(text);
    refuse("--threads", "-1", "not a number");
    refuse("--threads", "1025", "not a number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_options),
    };

    snprintf(path, sizeof path, "/tmp/ndrt-data-%d", (int)getpid());
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
