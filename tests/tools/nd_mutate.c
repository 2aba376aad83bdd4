/* nd_mutate.c - is every way to break a sharded program found?
 *
 *   nd_mutate FILE [--mesh=... --plan=FILE --model=NAME --set a=N]
 *             [--list] [--only=TEXT]
 *
 * Compiles the program at small sizes, then breaks what the passes made in
 * every way of mutate_graph.h and mutate_plan.h, one at a time, and asks who
 * says so: the static checks (nd_meaning, nd_verify, nd_stages_check,
 * nd_schedule_check, nd_buckets_check, nd_extents_check), or else the
 * simulation against one device (nd_prove). Prints a line per kind:
 *
 *   drop a collective     41 broken: 41 static, 0 simulated, 0 lost
 *
 * What mesh axes of one rank make equivalent is counted apart. Some mutations
 * are what another pass might have made: retyped, or in another order. Those
 * that the static checks accept must then be right. Fails if anything gets
 * through. --list tells each mutation and what was said, --only those of the
 * kinds that contain a text.
 */
#include "mutate_graph.h"
#include "mutate_plan.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const mutation mutations[] = {
    {"drop a collective", MUST_SHOW, drop, false, false},
    {"drop a collective, retyped", MAY_BE_RIGHT, drop, true, false},
    {"reduce twice", MUST_SHOW, reduce_twice, false, false},
    {"reduce twice, retyped", MAY_BE_RIGHT, reduce_twice, true, false},
    {"wrong mesh axis", MUST_SHOW, wrong_mesh, false, false},
    {"wrong mesh axis, retyped", MAY_BE_RIGHT, wrong_mesh, true, false},
    {"another mesh axis too", MUST_SHOW, more_mesh, false, false},
    {"another mesh axis too, retyped", MAY_BE_RIGHT, more_mesh, true, false},
    {"wrong kind", MUST_SHOW, wrong_kind, false, false},
    {"wrong kind, retyped", MAY_BE_RIGHT, wrong_kind, true, false},
    {"wrong reduction", MUST_SHOW, wrong_reduction, false, false},
    {"wrong axis", MUST_SHOW, wrong_axis, false, false},
    {"wrong axis, retyped", MAY_BE_RIGHT, wrong_axis, true, false},
    {"wrong pending sum", MUST_SHOW, wrong_sum, false, false},
    {"wrong cut", MUST_SHOW, wrong_cut, false, false},
    {"wrong pending sum, retyped", MAY_BE_RIGHT, wrong_given_sum, true, false},
    {"wrong cut, retyped", MAY_BE_RIGHT, wrong_given_cut, true, false},
    {"wrong order of a cut", MUST_SHOW, wrong_order, false, false},
    {"wrong sum of a gradient", MUST_SHOW, wrong_grad, false, false},
    {"wrong cut of a gradient", MUST_SHOW, wrong_grad_cut, false, false},
    {"wrong number", MUST_DIFFER, wrong_number, false, false},
    {"wrong shift", MUST_DIFFER, wrong_shift, false, false},
    {"no factor", MUST_DIFFER, no_factor, false, false},
    {"averaged", MUST_DIFFER, averaged, false, false},
    {"gradient doubled", MUST_DIFFER, grad_doubled, false, false},
    {"bucket: wrong sum", MUST_SHOW, bucket_sum, false, true},
    {"bucket: wrong norm", MUST_SHOW, bucket_cut, false, true},
    {"bucket: wrong zero", MUST_SHOW, bucket_zero, false, true},
    {"bucket: wrong stages", MUST_SHOW, bucket_devices, false, true},
    {"bucket: decay, frozen", MUST_SHOW, bucket_flags, false, true},
    {"bucket: one missing", MUST_SHOW, bucket_missing, false, true},
    {"bucket: one twice", MUST_SHOW, bucket_twice, false, true},
    {"bucket: one in another", MUST_SHOW, bucket_moved, false, true},
    {"bucket: wrong place", MUST_SHOW, bucket_place, false, true},
    {"bucket: too short", MUST_SHOW, bucket_size, false, true},
    {"shard off by one", MUST_SHOW, extent, false, true},
    {"stage off by one", MUST_SHOW, range, false, false},
    {"crossing dropped", MUST_SHOW, cross_dropped, false, false},
    {"crossing twice", MUST_SHOW, cross_twice, false, false},
    {"crossing elsewhere", MUST_SHOW, cross_elsewhere, false, false},
    {"crossings confused", MUST_SHOW, cross_confused, false, false},
    {"op dropped", MUST_SHOW, op_dropped, false, false},
    {"op twice", MUST_SHOW, op_twice, false, false},
    {"op on another stage", MUST_SHOW, op_elsewhere, false, false},
    {"op before its neighbour", MAY_BE_RIGHT, op_early, false, false},
    {"parameter missing", MUST_SHOW, param_missing, false, false},
    {"action dropped", MUST_SHOW, action_dropped, false, false},
    {"action twice", MUST_SHOW, action_twice, false, false},
    {"wrong microbatch", MUST_SHOW, action_microbatch, false, false},
    {"wrong action", MUST_SHOW, action_kind, false, false},
    {"action before its neighbour", MAY_BE_RIGHT, action_early, false, false},
    {"too few slots", MUST_SHOW, slots, false, false},
};
enum { NMUTATIONS = sizeof mutations / sizeof *mutations };

/* What became of one mutation. */
typedef enum {
    R_NO_SITE, R_NO_SENSE, R_SAME, R_STATIC, R_SIMULATED, R_RIGHT, R_SURVIVED,
    R_CRASHED, R_COUNT
} result;
static const char *const result_names[R_COUNT] = {
    [R_SAME] = "the same", [R_STATIC] = "static", [R_SIMULATED] = "simulation",
    [R_RIGHT] = "right", [R_SURVIVED] = "SURVIVED", [R_CRASHED] = "CRASHED",
};

typedef struct shared {              /* what a child tells its parent */
    char what[sizeof ((subject *)0)->what], said[400];
} shared;

/* ---- judging, in a child ------------------------------------------------- */

static void keep_first(void *user, nd_severity severity, const char *text)
{
    shared *out = user;
    if (severity == ND_ERROR && !out->said[0])
        snprintf(out->said, sizeof out->said, "%.*s",
                 (int)strcspn(text, "\n"), text);
}

/* Types follow the ops, as if a pass had built them so. */
static bool retype(nd_module *m, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        for (int k = 0; op->body && k < op->nin; k++) {
            nd_type t = op->in[k]->type;
            int at = k < op->ncarry ? -1 : nd_axis_at(&t, op->axes[0]);
            t.dtype = op->body->args.v[k]->type.dtype;
            if (at >= 0)
                nd_drop_axis(&t, at);
            op->body->args.v[k]->type = t;
        }
        if (op->body && !retype(m, op->body))
            return false;
        if (op->kind == OP_ACCUM)
            op->param->grad.sum = op->in[0]->type.sum;
        if (op->nout && !nd_retype(m, op))
            return false;
    }
    return true;
}

static bool accepted(subject *s)
{
    if (nd_meaning(s->m) != s->m->meaning || !nd_verify(s->m) ||
        !nd_stages_check(s->m) || !nd_schedule_check(s->m) ||
        !nd_slots_check(s->m))
        return false;
    if (!s->c)
        s->c = nd_sim_code(s->m);
    return nd_buckets_check(s->c) && nd_extents_check(s->c);
}

/* Does nothing depend on the constant, such as what a softmax of no numbers
 * would be? Then not even one that spoils all it meets is seen. */
static bool is_idle(subject *s)
{
    nd_proof p;
    if (!s->number)
        return false;
    s->number->num = nd_is_float(s->number->out[0]->type.dtype) ? NAN : 12345;
    return nd_prove(s->x, s->c, &p) && p.equal;
}

static result judge(subject *s, const mutation *k, int site, shared *out)
{
    s->m->ctx->sink = keep_first;
    s->m->ctx->sink_user = out;
    s->c = k->buckets ? nd_sim_code(s->m) : NULL;
    made how = k->make(s, site);
    memcpy(out->what, s->what, sizeof out->what);
    if (how != MADE)
        return how == NO_SITE ? R_NO_SITE
               : how == NO_SENSE ? R_NO_SENSE : R_SAME;
    if ((k->retype && !retype(s->m, s->m->step)) || !accepted(s))
        return R_STATIC;
    nd_proof p;
    bool same = nd_prove(s->x, s->c, &p) && p.equal;
    if (!same && !out->said[0])
        snprintf(out->said, sizeof out->said, "%s", p.what);
    if (same && is_idle(s))
        return R_SAME;
    if (k->demand == MAY_BE_RIGHT)
        return same ? R_RIGHT : R_SURVIVED;
    return same || k->demand == MUST_SHOW ? R_SURVIVED : R_SIMULATED;
}

static result try_site(subject *s, const mutation *k, int site, shared *out)
{
    out->what[0] = out->said[0] = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit((int)judge(s, k, site, out));
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) ||
        WEXITSTATUS(status) >= R_COUNT)
        return R_CRASHED;
    return (result)WEXITSTATUS(status);
}

/* ---- all of them --------------------------------------------------------- */

typedef struct options {
    vf_request q;
    const char *only;
    bool list;
} options;

static void try_kind(const options *o, subject *s, const mutation *k,
                     shared *out, long total[R_COUNT])
{
    long n[R_COUNT] = {0};
    for (int site = 0;; site++) {
        result r = try_site(s, k, site, out);
        n[r]++;
        if (r == R_NO_SITE || (r == R_CRASHED && n[r] > 20))
            break;
        if (r >= R_SURVIVED || (o->list && r != R_NO_SENSE))
            printf("  %-10s %s: %s\n             %s\n", result_names[r],
                   k->kind, out->what, out->said);
    }
    long found = n[R_STATIC] + n[R_SIMULATED];
    long lost = n[R_SURVIVED] + n[R_CRASHED];
    if (found + lost + n[R_SAME] + n[R_RIGHT])
        printf("%-32s %5ld broken: %5ld static, %4ld simulated, %ld lost",
               k->kind, found + lost, n[R_STATIC], n[R_SIMULATED], lost);
    if (n[R_RIGHT])
        printf("; %ld right too", n[R_RIGHT]);
    if (n[R_SAME])
        printf("; %ld the same", n[R_SAME]);
    if (found + lost + n[R_SAME] + n[R_RIGHT])
        printf("\n");
    for (int i = 0; i < R_COUNT; i++)
        total[i] += n[i];
}

static void note_op(nd_op *op, void *user)
{
    subject *s = user;
    ND_PUSH(s->m->ctx->arena, &s->ops, op);
    if (moves_data(op->kind))
        ND_PUSH(s->m->ctx->arena, &s->moves, op);
}

static int mutate(const options *o)
{
    const vf_request *q = &o->q;
    const char *why = "";
    nd_front_options f = q->front;
    nd_module *m = vf_compile(q, &f, "all", &why), *one = NULL;
    if (m) {
        vf_size *size;
        int n = vf_shrink(q, m, VF_LEAST, &size);
        f = vf_sized(q, n, size);
        nd_ctx_free(m->ctx);
        one = vf_compile(q, &f, "autodiff", &why);
        m = one ? vf_compile(q, &f, "all", &why) : NULL;
    }
    nd_answers *x = m ? nd_answers_new(one, one->train.seed) : NULL;
    if (!x) {
        fputs(why, stderr);
        return 1;
    }
    nd_buf named = {.arena = m->ctx->arena};
    nd_print(&named, m);             /* gives every value its name */
    subject s = {.m = m, .x = x};
    nd_walk(m->step, note_op, &s);
    shared *out = mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (out == MAP_FAILED)
        return 1;
    long total[R_COUNT] = {0};
    for (int i = 0; i < NMUTATIONS; i++)
        if (!o->only || strstr(mutations[i].kind, o->only))
            try_kind(o, &s, &mutations[i], out, total);
    long found = total[R_STATIC] + total[R_SIMULATED];
    long lost = total[R_SURVIVED] + total[R_CRASHED];
    printf("score %ld of %ld: %ld static, %ld simulated; %ld the same, %ld "
           "right too\n", found, found + lost, total[R_STATIC],
           total[R_SIMULATED], total[R_SAME], total[R_RIGHT]);
    nd_answers_free(x);
    nd_ctx_free(one->ctx);
    nd_ctx_free(m->ctx);
    return lost || !found;
}

/* ---- command line -------------------------------------------------------- */

static const char *value(const char *name, const char *arg)
{
    size_t n = strlen(name);
    return strncmp(arg, name, n) || arg[n] != '=' ? NULL : arg + n + 1;
}

int main(int argc, char **argv)
{
    options o = {.q.arena = nd_arena_new()};
    const char **set = calloc((size_t)argc, sizeof *set);
    nd_front_options *f = &o.q.front;
    int bad = !set;
    f->set = set;
    for (int i = 1; i < argc && !bad; i++) {
        const char *v;
        if ((v = value("--mesh", argv[i])))
            f->mesh = v;
        else if ((v = value("--plan", argv[i])))
            f->plan_path = v;
        else if ((v = value("--model", argv[i])))
            f->model = v;
        else if ((v = value("--only", argv[i])))
            o.only = v;
        else if (!strcmp(argv[i], "--list"))
            o.list = true;
        else if (!strcmp(argv[i], "--set") && i + 1 < argc)
            set[f->nset++] = argv[++i];
        else if (argv[i][0] != '-' && !o.q.path)
            o.q.path = argv[i];
        else
            bad = 1;
    }
    if (bad || !o.q.path)
        fprintf(stderr, "usage: nd_mutate FILE [--mesh=.. --plan=.. --model=.. "
                "--set a=N --list --only=TEXT]\n");
    int rc = bad || !o.q.path ? 2 : mutate(&o);
    free(set);
    nd_arena_free(o.q.arena);
    return rc;
}
