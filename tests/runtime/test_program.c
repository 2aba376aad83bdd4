/* test_program.c - the mini program, end to end, on many meshes.
 *
 * Weights and log of every mesh must agree with a plain loop in double; runs
 * that differ only in ZeRO must agree bit for bit. Called as
 *     test_program run PP DP TP MICRO ZERO [options of the program]
 * it is the mini program itself, for mpi.sh.
 */
#include "mini.h"
#include "ndrt_math.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { STEPS = 4, NW = MINI_D + MINI_LAYERS * MINI_D };

/* ---- the reference ------------------------------------------------------ */

typedef struct reference {
    double w[NW], m[NW], v[NW];   /* e, then the layers */
    double loss[STEPS], norm[STEPS];
} reference;

static float ref_x(uint64_t seed, int step, int i, int j)
{
    return nd_uniform(seed, (uint64_t)(i * MINI_D + j), (uint32_t)step,
                      ndrt_stream("x"));
}

static double ref_gradient(const reference *f, uint64_t seed, int step,
                           double g[NW])
{
    double loss = 0.0;

    memset(g, 0, NW * sizeof *g);
    for (int i = 0; i < MINI_BATCH; i++) {
        for (int j = 0; j < MINI_D; j++) {
            double x = (double)ref_x(seed, step, i, j), e = f->w[j], y = x;
            for (int l = 0; l < MINI_LAYERS; l++)
                y *= f->w[MINI_D * (l + 1) + j];
            y *= e * e;
            loss += y * y / MINI_BATCH;
            g[j] += 2.0 * y / MINI_BATCH * 2.0 * y / e;
            for (int l = 1; l <= MINI_LAYERS; l++)
                g[MINI_D * l + j] +=
                    2.0 * y / MINI_BATCH * y / f->w[MINI_D * l + j];
        }
    }
    return loss;
}

static void ref_update(reference *f, const ndrt_train *t, int step,
                       const double g[NW], double scale)
{
    for (int i = 0; i < NW; i++) {
        double x = g[i] * scale, *m = &f->m[i], *v = &f->v[i];
        double decay = i >= MINI_D ? t->weight_decay : 0.0;
        if (t->opt == NDRT_SGD || t->opt == NDRT_ADAM)
            x += decay * f->w[i];
        if (t->opt == NDRT_SGD) {
            *m = t->momentum * *m + x;
            f->w[i] -= t->lr * (t->nesterov ? x + t->momentum * *m : *m);
            continue;
        }
        if (t->opt == NDRT_LION) {
            double c = t->beta1 * *m + (1 - t->beta1) * x;
            f->w[i] -= t->lr * ((c > 0) - (c < 0) + decay * f->w[i]);
            *m = t->beta2 * *m + (1 - t->beta2) * x;
            continue;
        }
        *m = t->beta1 * *m + (1 - t->beta1) * x;
        *v = t->beta2 * *v + (1 - t->beta2) * x * x;
        double mh = *m / (1 - pow(t->beta1, step));
        double vh = *v / (1 - pow(t->beta2, step));
        if (t->opt == NDRT_ADAMW)
            f->w[i] -= t->lr * decay * f->w[i];
        f->w[i] -= t->lr * mh / (sqrt(vh) + t->eps);
    }
}

static void ref_run(reference *f, const mini *m)
{
    const ndrt_train *t = &m->p.train;
    double g[NW];

    memset(f, 0, sizeof *f);
    for (int i = 0; i < NW; i++) {
        const ndrt_param *q = &m->params[i >= MINI_D];
        int index = i >= MINI_D ? i - MINI_D : i;
        f->w[i] = (double)ndrt_init_value(q, t->seed, ndrt_stream(q->name),
                                          (uint64_t)index);
    }
    for (int k = 0; k < STEPS; k++) {
        double sum = 0.0;
        f->loss[k] = ref_gradient(f, t->seed, k + 1, g);
        for (int i = 0; i < NW; i++)
            sum += g[i] * g[i];
        f->norm[k] = sqrt(sum);
        ref_update(f, t, k + 1, g,
                   f->norm[k] > t->clip ? t->clip / f->norm[k] : 1.0);
    }
}

/* ---- running ------------------------------------------------------------ */

static char save_path[64], log_path[64];

static void silence(bool on)
{
    static int kept_out = -1, kept_err = -1;

    fflush(stdout);
    if (on) {
        kept_out = dup(STDOUT_FILENO);
        kept_err = dup(STDERR_FILENO);
        assert_non_null(freopen("/dev/null", "w", stdout));
        assert_non_null(freopen("/dev/null", "w", stderr));
    } else {
        fflush(stderr);
        dup2(kept_out, STDOUT_FILENO);
        dup2(kept_err, STDERR_FILENO);
        close(kept_out);
        close(kept_err);
    }
}

static int run_main(const ndrt_program *p, int argc, char **argv)
{
    silence(true);
    int rc = ndrt_main(p, argc, argv);
    silence(false);
    return rc;
}

static void read_weights(float w[NW])
{
    static const char *const names[] = {"e", "layers.0.a.w", "layers.1.a.w",
                                        "layers.2.a.w"};
    char error[256];
    ndrt_st_file f;

    assert_int_equal(ndrt_st_open(&f, save_path, error, sizeof error),
                     NDRT_OK);
    assert_int_equal(f.n, 4);
    for (int i = 0; i < 4; i++) {
        const ndrt_st_tensor *t = ndrt_st_find(&f, names[i]);
        assert_non_null(t);
        assert_int_equal(t->naxes, 1);
        ndrt_st_floats(t, 0, MINI_D, w + i * MINI_D);
    }
    ndrt_st_close(&f);
}

static void near(double a, double b)
{
    if (fabs(a - b) > 2e-5 * (1e-3 + fabs(b)))
        fail_msg("%.9g is not %.9g", a, b);
}

static void check_log(const reference *f)
{
    FILE *in = fopen(log_path, "r");
    json_error_t je;

    assert_non_null(in);
    for (int k = 0; k < STEPS; k++) {
        json_t *j = json_loadf(in, JSON_DISABLE_EOF_CHECK, &je);
        assert_non_null(j);
        assert_int_equal(json_object_size(j), 6);
        assert_int_equal(json_integer_value(json_object_get(j, "step")),
                         k + 1);
        assert_int_equal(json_integer_value(json_object_get(j, "tokens")),
                         MINI_BATCH);
        near(json_number_value(json_object_get(j, "loss")), f->loss[k]);
        near(json_number_value(json_object_get(j, "grad_norm")), f->norm[k]);
        json_decref(j);
    }
    fclose(in);
}

static void run(const ndrt_program *p, float w[NW])
{
    char *argv[] = {"mini", "--save", save_path, "--log", log_path,
                    "--check-replicas", NULL};

    assert_int_equal(run_main(p, 6, argv), 0);
    read_weights(w);
}

static void check(mini *m)
{
    reference f;
    float w[NW];

    ref_run(&f, m);
    assert_true(f.norm[0] > m->p.train.clip);      /* the clip bites */
    run(&m->p, w);
    check_log(&f);
    for (int i = 0; i < NW; i++)
        near((double)w[i], f.w[i]);
}

/* ---- tests -------------------------------------------------------------- */

static const int meshes[][5] = {   /* pp dp tp micro zero */
    {1, 1, 1, 1, 0}, {1, 1, 1, 4, 0}, {1, 3, 1, 1, 0}, {1, 1, 3, 2, 0},
    {2, 1, 1, 1, 0}, {2, 1, 1, 3, 0}, {1, 4, 1, 1, 1}, {1, 5, 1, 2, 1},
    {2, 2, 2, 3, 1}, {2, 3, 2, 2, 0}, {2, 1, 5, 6, 0}, {2, 4, 3, 1, 1},
};
enum { NMESHES = sizeof meshes / sizeof *meshes };

static void make(mini *m, int i)
{
    mini_make(m, meshes[i][0], meshes[i][1], meshes[i][2], meshes[i][3],
              meshes[i][4]);
}

static void test_sgd(void **state)
{
    mini m;

    (void)state;
    for (int i = 0; i < NMESHES; i++) {
        make(&m, i);
        check(&m);
        m.p.train.momentum = 0.9;
        check(&m);
        m.p.train.nesterov = true;
        check(&m);
    }
}

static void test_adam(void **state)
{
    mini m;

    (void)state;
    for (int i = 0; i < NMESHES; i++) {
        make(&m, i);
        m.p.train.lr = 0.01;
        m.p.train.opt = NDRT_ADAM;
        check(&m);
        m.p.train.opt = NDRT_ADAMW;
        check(&m);
        m.p.train.opt = NDRT_LION;
        check(&m);
    }
}

/* ZeRO changes who updates what, and no bit of the result. */
static void test_zero_bits(void **state)
{
    float a[NW], b[NW];
    mini m;

    (void)state;
    for (int dp = 2; dp <= 5; dp++) {
        for (int zero = 0; zero < 2; zero++) {
            mini_make(&m, 2, dp, 1, 2, zero);
            m.p.train.opt = NDRT_ADAMW;
            m.p.train.clip = 0.0;
            run(&m.p, zero ? b : a);
        }
        assert_memory_equal(a, b, sizeof a);
    }
}

/* A gradient that is not added up over dp moves the copies apart. */
static void test_replicas(void **state)
{
    char *argv[] = {"mini", "--check-replicas", NULL};
    mini m;

    (void)state;
    for (int b = 0; b < 2; b++) {
        for (int tp = 1; tp < 4; tp++) {
            mini_make(&m, 2, 2, tp, 1, false);
            assert_int_equal(run_main(&m.p, 2, argv), 0);
            m.buckets[b].sum = 0;
            assert_int_equal(run_main(&m.p, 2, argv), NDRT_EINTERNAL);
            assert_int_equal(run_main(&m.p, 1, argv), 0);
        }
    }
}

/* Steps 0 saves the initial weights; they do not depend on the mesh. */
static void test_initial(void **state)
{
    char *argv[] = {"mini", "--steps=0", "--save", save_path, NULL};
    float first[NW], w[NW];
    mini m;

    (void)state;
    for (int i = 0; i < NMESHES; i++) {
        make(&m, i);
        assert_int_equal(run_main(&m.p, 4, argv), 0);
        read_weights(i == 0 ? first : w);
        if (i > 0)
            assert_memory_equal(first, w, sizeof w);
    }
}

/* Saved on one mesh, loaded on another: 2 + 0 steps give the same weights. */
static void test_load(void **state)
{
    char copy[80];
    char *save[] = {"mini", "--steps", "2", "--save", copy, NULL};
    char *load[] = {"mini", "--steps", "0", "--load", copy, "--save",
                    save_path, NULL};
    float w[NW], v[NW];
    mini m;

    (void)state;
    snprintf(copy, sizeof copy, "%s.copy", save_path);
    make(&m, NMESHES - 1);
    assert_int_equal(run_main(&m.p, 5, save), 0);
    for (int i = 0; i < NMESHES; i++) {
        make(&m, i);
        assert_int_equal(run_main(&m.p, 7, load), 0);
        read_weights(i == 0 ? v : w);
        if (i > 0)
            assert_memory_equal(v, w, sizeof w);
    }
    m.p.params = (ndrt_param[]){m.params[0], m.params[1]};
    ((ndrt_param *)m.p.params)[0].name = "other";
    assert_int_equal(run_main(&m.p, 7, load), NDRT_EINPUT);
    unlink(copy);
}

/* One rank fails at each of its communication calls in turn: nobody hangs,
 * and the status says so. */
static void test_failing_rank(void **state)
{
    char *argv[] = {"mini", NULL};
    char text[32];
    mini m;

    (void)state;
    mini_make(&m, 2, 2, 2, 3, true);
    for (int rank = 0; rank < 8; rank += 3) {
        for (int n = 1; n <= 24; n += 4) {
            snprintf(text, sizeof text, "%d:%d", rank, n);
            setenv("NDRT_FAIL_AT", text, 1);
            assert_int_equal(run_main(&m.p, 1, argv), NDRT_EINTERNAL);
        }
    }
    unsetenv("NDRT_FAIL_AT");
}

static void test_not_finite(void **state)
{
    char *argv[] = {"mini", "--lr", "1e30", "--clip=0", "--save", save_path,
                    NULL};
    mini m;

    (void)state;
    unlink(save_path);
    mini_make(&m, 2, 2, 1, 1, false);
    assert_int_equal(run_main(&m.p, 6, argv), NDRT_EINPUT);
    assert_int_equal(access(save_path, F_OK), -1);
}

/* Evaluation has no effect on training, whatever the mesh. */
static void test_eval(void **state)
{
    float a[NW], b[NW];
    mini m;

    (void)state;
    for (int eval = 0; eval < 2; eval++) {
        mini_make(&m, 2, 2, 1, 3, false);
        m.p.train.eval_every = eval;
        m.p.train.eval_batches = 2;
        run(&m.p, eval ? b : a);
    }
    assert_memory_equal(a, b, sizeof a);
}

static int as_program(int argc, char **argv)
{
    int v[5];
    mini m;

    for (int i = 0; i < 5; i++)
        v[i] = argc > i + 2 ? atoi(argv[i + 2]) : 1;
    const ndrt_program *p = mini_make(&m, v[0], v[1], v[2], v[3], v[4]);
    m.p.train.opt = NDRT_ADAMW;
    m.p.train.lr = 0.01;
    argv[6] = argv[0];
    return ndrt_main(p, argc - 6, argv + 6);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_zero_bits),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_initial),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_failing_rank),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_eval),
    };

    if (argc > 6 && strcmp(argv[1], "run") == 0)
        return as_program(argc, argv);
    snprintf(save_path, sizeof save_path, "/tmp/ndrt-%d.safetensors",
             (int)getpid());
    snprintf(log_path, sizeof log_path, "/tmp/ndrt-%d.jsonl", (int)getpid());
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(save_path);
    unlink(log_path);
    return rc;
}
