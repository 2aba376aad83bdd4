/* verify.c - `ndc verify`: does the plan compute what one device computes?
 *
 *   mesh dp=2 tp=4: 8 ranks, 1 microbatch
 *   sizes: batch 4 (64), d 8 (512), vocab 9 (50257)
 *   parameter  type               gradient             differences
 *   up.w       f32[d, ffn/tp]     f32[d, ffn/tp]+dp    2.2e-16  1.1e-16
 *   ...
 *   equal to one device: no difference over 6.7e-16
 *
 * The program is compiled as it is, so that a plan that cannot be kept is
 * refused with the compiler's message; then with small axes (verify_sizes.c),
 * which are evaluated (passes/prove.c).
 */
#include "ndc.h"
#include "frontend.h"
#include "../passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_SIZE = 4, SWEEP_RANKS = 12, MOST_RANKS = 1024,
    GROW = 4, GROWN = 16 * VF_LEAST  /* where small sizes make all zero */
};

typedef struct verdict {
    bool refused;                    /* `why` is the compiler's message */
    bool equal;
    bool told;                       /* what is wrong has been printed */
    bool flat;                       /* one device has zeros for gradients */
    const char *why;
    nd_proof proof;
    nd_module *m;                    /* what was evaluated, or NULL */
    int microbatches;                /* as the program says */
    int nsizes;
    vf_size *size;
} verdict;

/* ---- one mesh ------------------------------------------------------------ */

static bool prove(const vf_request *q, const nd_front_options *f, int turn,
                  verdict *v)
{
    nd_module *one = vf_compile(q, f, "autodiff", &v->why);
    v->m = one ? vf_compile(q, f, "all", &v->why) : NULL;
    nd_answers *x = v->m ? nd_answers_new(one, one->train.seed + (uint64_t)turn)
                      : NULL;
    v->flat = x && nd_answers_flat(x);
    if (v->flat)
        v->why = "ndc: error: on one device every gradient is 0 in every step: "
                 "there is nothing to compare\n";
    nd_code *code = x && !v->flat ? nd_sim_code(v->m) : NULL;
    bool ok = code && nd_buckets_check(code) &&
              nd_extents_check(code) &&
              nd_prove(x, code, &v->proof);
    nd_answers_free(x);
    if (one)
        nd_ctx_free(one->ctx);
    if (!ok && !v->why) {            /* it has been told, at its place */
        v->told = true;
        v->why = "ndc: error: the plan could not be evaluated\n";
    }
    return ok;
}

static void free_verdict(verdict *v)
{
    if (v->m)
        nd_ctx_free(v->m->ctx);
    v->m = NULL;
}

/* As few microbatches as mean the same: more than stages, over by as many, and
 * the rows divide where they did. */
static int fewer_microbatches(const nd_module *m)
{
    int micro = m->plan.microbatches, stages = m->program->nstages;
    const nd_rule *r = m->sample ? nd_rule_of(&m->plan, m->sample) : NULL;
    int64_t parts = r ? nd_group_size(&m->mesh, nd_cut_bits(r->mesh)) : 1;
    int64_t rows = m->sample ? m->sample->size : 1;
    for (int k = stages + 1; k < micro; k++)
        if (k > 2 && k % stages == micro % stages &&
            (rows % (parts * k) == 0) == (rows % (parts * micro) == 0))
            return k;
    return micro;
}

/* Small sizes that leave nothing to compare (`where = targets > 3` in a
 * vocabulary of 3) are tried again larger, and with other numbers. */
static void judge(const vf_request *q, bool keep_sizes, verdict *v)
{
    *v = (verdict){0};
    nd_module *m = vf_compile(q, &q->front, "all", &v->why);
    if (!m) {
        v->refused = true;
        return;
    }
    if (!m->loss) {
        v->refused = true;
        v->why = "ndc: error: the model returns no loss: there is nothing to "
                 "train\n";
        nd_ctx_free(m->ctx);
        return;
    }
    int ranks = nd_mesh_ranks(&m->mesh);
    if (ranks > MOST_RANKS) {
        v->refused = true;
        v->why = nd_fmt(q->arena, "ndc: error: the mesh has %d ranks, and %d "
                        "are simulated at most; a smaller one, by --mesh, "
                        "follows the same rules\n", ranks, MOST_RANKS);
        nd_ctx_free(m->ctx);
        return;
    }
    int least = VF_LEAST, turn = 0;
    vf_request few = *q;
    v->microbatches = m->plan.microbatches;
    if (!keep_sizes && fewer_microbatches(m) < v->microbatches) {
        few.front.microbatches = fewer_microbatches(m);
        nd_ctx_free(m->ctx);
        m = vf_compile(&few, &few.front, "all", &v->why);
        if (!m) {
            v->refused = true;
            return;
        }
    }
    do {
        nd_front_options f = few.front;
        free_verdict(v);
        v->why = NULL;
        if (!keep_sizes) {
            v->nsizes = vf_shrink(&few, m, least, &v->size);
            f = vf_sized(&few, v->nsizes, v->size);
        }
        v->equal = prove(q, &f, turn++, v) && v->proof.equal;
        least *= GROW;
    } while (v->flat && least <= GROWN);
    nd_ctx_free(m->ctx);
}

/* ---- the table ----------------------------------------------------------- */

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

static void put_mesh(const verdict *v)
{
    const nd_module *m = v->m;
    printf("mesh");
    for (int i = 0; i < m->mesh.n; i++)
        if (i != m->mesh.micro)
            printf(" %s=%d", m->mesh.name[i], m->mesh.size[i]);
    int ranks = nd_mesh_ranks(&m->mesh), micro = m->mesh.size[m->mesh.micro];
    int stages = m->program->nstages;
    printf("%s: %d rank%s, %d stage%s, %d microbatch%s",
           m->mesh.n > 1 ? "" : " of one", ranks, plural(ranks), stages,
           plural(stages), micro, micro == 1 ? "" : "es");
    if (micro != v->microbatches)
        printf(" (%d)", v->microbatches);
    printf("\n");
    if (sched_has(m->plan.schedule, 'a'))
        printf("%s changes what is computed: compared is one update per step, "
               "of gradients at the newest weights\n",
               sched_kinds[m->plan.schedule].name);
}

static void put_sizes(const verdict *v)
{
    for (int i = 0; i < v->nsizes; i++) {
        printf("%s %s %lld", i ? "," : "sizes:", v->size[i].axis,
               (long long)v->size[i].is);
        if (v->size[i].is != v->size[i].was)
            printf(" (%lld)", (long long)v->size[i].was);
    }
    printf("%s", v->nsizes ? "\n" : "");
}

static const char *type_text(const nd_module *m, const nd_type *t)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_print_type(&b, m, t);
    return b.s;
}

static int wider(int w, const char *s)
{
    int n = (int)strlen(s);
    return n > w ? n : w;
}

static void put_params(const verdict *v)
{
    const nd_proof *p = &v->proof;
    int name = 9, type = 4, grad = 8;
    for (int i = 0; i < p->nrows; i++) {
        const nd_param *q = p->row[i].p;
        name = wider(name, q->name);
        type = wider(type, type_text(v->m, &q->value->type));
        grad = wider(grad, type_text(v->m, &q->grad));
    }
    printf("\n%-*s  %-*s  %-*s  %-9s %s\n", name, "parameter", type, "type",
           grad, "gradient", "gradient", "weight");
    for (int i = 0; i < p->nrows; i++) {
        const nd_param *q = p->row[i].p;
        printf("%-*s  %-*s  %-*s  %-9.1e %.1e%s\n", name, q->name, type,
               type_text(v->m, &q->value->type), grad,
               type_text(v->m, &q->grad), p->row[i].grad, p->row[i].weight,
               q->frozen ? " (frozen)" : p->row[i].live ? ""
                                                        : " (always 0)");
    }
}

static void put_steps(const verdict *v)
{
    const nd_proof *p = &v->proof;
    bool any = false;
    printf("\n");
    for (int i = 0; i < ND_PROVE_STEPS; i++)
        printf("step %d: loss %.9g, norm %.9g\n", i + 1, p->loss[i],
               p->norm[i]);
    printf("collectives:");
    for (int i = 0; i < OP_COUNT; i++)
        if (p->collectives[i]) {
            printf("%s %lld %s", any ? "," : "", (long long)p->collectives[i],
                   nd_ops[i].name);
            any = true;
        }
    printf("%s %lld of gradients, in %d steps\n", any ? "," : "",
           (long long)p->reductions, ND_PROVE_STEPS);
}

static int report(const verdict *v)
{
    if (v->m && v->proof.row) {
        put_mesh(v);
        put_sizes(v);
        put_params(v);
        put_steps(v);
    }
    fflush(stdout);
    if (v->equal)
        printf("equal to one device: no difference over %.1e\n",
               v->proof.worst);
    else if (v->proof.row && v->proof.what[0])
        printf("DIFFERS from one device: %s\n", v->proof.what);
    else if (!v->told)
        fputs(v->why, stderr);
    else if (v->nsizes)
        fputs("ndc: note: that is with small axes; --no-shrink keeps the sizes "
              "of the program\n", stderr);
    return v->equal ? NDC_OK : NDC_BAD_INPUT;
}

/* ---- a sweep of meshes --------------------------------------------------- */

typedef struct sweep {
    vf_request q;
    bool keep_sizes;
    int n;                           /* mesh axes of the plan */
    const char *name[ND_MAX_MESH];
    int size[ND_MAX_MESH];
    bool fixed[ND_MAX_MESH];         /* the user gave the size */
    int equal, differ, refused;
} sweep;

static const char *mesh_text(const sweep *s, char between)
{
    nd_buf b = {.arena = s->q.arena};
    for (int i = 0; i < s->n; i++)
        nd_putf(&b, "%.*s%s=%d", i > 0, &between, s->name[i], s->size[i]);
    return b.s;
}

/* The message alone, without its place and source line. */
static const char *first_line(nd_arena *a, const char *why)
{
    const char *at = strstr(why, "error: ");
    why = at ? at + 7 : why;
    return nd_strndup(a, why, strcspn(why, "\n"));
}

static void try_mesh(sweep *s)
{
    verdict v;
    vf_request q = s->q;
    q.front.mesh = mesh_text(s, ',');
    judge(&q, s->keep_sizes, &v);
    printf("%-32s ", mesh_text(s, ' '));
    if (v.refused) {
        s->refused++;
        printf("refused: %s\n", first_line(q.arena, v.why));
    } else if (v.equal) {
        s->equal++;
        printf("equal (%.1e)\n", v.proof.worst);
    } else {
        s->differ++;
        if (v.proof.what[0])
            printf("DIFFERS: %s\n", v.proof.what);
        else
            printf("not compared: %s\n", first_line(q.arena, v.why));
    }
    fflush(stdout);
    free_verdict(&v);
}

/* `ranks` are those of the axes whose sizes are not given. */
static void try_from(sweep *s, int axis, int ranks)
{
    if (axis == s->n) {
        try_mesh(s);
        return;
    }
    int lo = s->fixed[axis] ? s->size[axis] : 1;
    int hi = s->fixed[axis] ? lo : SWEEP_SIZE;
    for (int k = lo; k <= hi; k++) {
        int all = s->fixed[axis] ? ranks : ranks * k;
        if (all > SWEEP_RANKS)
            break;
        s->size[axis] = k;
        try_from(s, axis + 1, all);
    }
}

static bool is_given(const char *mesh, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = mesh; p && *p; p = strchr(p, ',')) {
        p += *p == ',';
        if (!strncmp(p, name, n) && p[n] == '=')
            return true;
    }
    return false;
}

static int sweep_meshes(const vf_request *q, bool keep_sizes)
{
    sweep s = {.q = *q, .keep_sizes = keep_sizes};
    const char *why;
    nd_module *m = vf_compile(q, &q->front, NULL, &why);
    if (!m) {
        fputs(why, stderr);
        return NDC_BAD_INPUT;
    }
    for (int i = 0; i < m->mesh.n; i++) {
        if (i == m->mesh.micro)
            continue;
        s.name[s.n] = nd_strdup(q->arena, m->mesh.name[i]);
        s.fixed[s.n] = is_given(q->front.mesh, m->mesh.name[i]);
        s.size[s.n++] = m->mesh.size[i];
    }
    nd_ctx_free(m->ctx);
    if (!s.n) {
        fprintf(stderr, "ndc: error: the plan has no mesh: there is nothing "
                "to sweep\n");
        return NDC_BAD_INPUT;
    }
    try_from(&s, 0, 1);
    printf("%d meshes: %d equal, %d differ, %d refused\n",
           s.equal + s.differ + s.refused, s.equal, s.differ, s.refused);
    return s.equal && !s.differ ? NDC_OK : NDC_BAD_INPUT;
}

/* ---- the command --------------------------------------------------------- */

int ndc_verify(const ndc_verify_options *o)
{
    size_t n = strlen(o->file);
    if (n > 5 && !strcmp(o->file + n - 5, ".ndir")) {
        fprintf(stderr, "ndc: error: `%s` is a graph; the plan of a program "
                "(.nd) is verified\n", o->file);
        return NDC_BAD_USAGE;
    }
    vf_request q = {.path = o->file, .arena = nd_arena_new()};
    q.front = (nd_front_options){.mesh = o->mesh, .nset = o->nset,
                                 .set = o->set, .plan_path = o->plan,
                                 .model = o->model};
    verdict v;
    int rc;
    if (o->all) {
        rc = sweep_meshes(&q, o->keep_sizes);
    } else {
        judge(&q, o->keep_sizes, &v);
        rc = report(&v);
        free_verdict(&v);
    }
    nd_arena_free(q.arena);
    if (!fflush(stdout) && !ferror(stdout))
        return rc;
    fprintf(stderr, "ndc: error: cannot write `stdout`\n");
    return NDC_BAD_INPUT;
}
