/* report.c - cg_report_plan: what a person wants to know before a run. Every
 * number comes from the structures that the C text is printed from.
 */
#include "codegen.h"

#include <string.h>
#include <unistd.h>

typedef struct traffic {             /* one kind of message */
    const char *what;
    nd_opcode kind;                  /* OP_COUNT: a send */
    uint32_t mesh;
    const char *when;
    double count, bytes;
} traffic;

typedef struct report {
    nd_module *m;
    nd_code *c;
    nd_arena *a;
    nd_buf *b;
    ND_VEC(traffic) rows;
} report;

static const char *size_text(nd_arena *a, double n)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (n >= 1024 && u < 4) {
        n /= 1024;
        u++;
    }
    return nd_fmt(a, u ? "%.1f %s" : "%.0f %s", n, unit[u]);
}

static const char *commas(nd_arena *a, int64_t n)
{
    char *s = nd_fmt(a, "%lld", (long long)n);
    nd_buf b = {.arena = a};
    size_t len = strlen(s);
    for (size_t i = 0; i < len; i++)
        nd_putf(&b, "%s%c", i && (len - i) % 3 == 0 ? "," : "", s[i]);
    return b.s;
}

static const char *mesh_text(report *r, uint32_t mesh)
{
    nd_buf b = {.arena = r->a};
    nd_put(&b, "");
    for (int i = 0; i < r->m->mesh.n; i++)
        if (mesh >> i & 1)
            nd_putf(&b, "%s%s", b.n ? "," : "", r->m->mesh.name[i]);
    return b.s;
}

static int mesh_size(const report *r, uint32_t mesh)
{
    int n = 1;
    for (int i = 0; i < r->m->mesh.n; i++)
        if (mesh >> i & 1)
            n *= r->m->mesh.size[i];
    return n;
}

/* ---- traffic ------------------------------------------------------------ */

static void add(report *r, const char *what, nd_opcode kind, uint32_t mesh,
                const char *when, double count, double bytes)
{
    for (int i = 0; i < r->rows.n; i++) {
        traffic *t = &r->rows.v[i];
        if (t->kind == kind && t->mesh == mesh && strcmp(t->what, what) == 0 &&
            strcmp(t->when, when) == 0) {
            t->count += count;
            t->bytes += count * bytes;
            return;
        }
    }
    traffic t = {what, kind, mesh, when, count, count * bytes};
    ND_PUSH(r->a, &r->rows, t);
}

static void walk_list(report *r, const nd_kernels *list, int stage,
                      double times, const char *when)
{
    const nd_stage *st = &r->m->program->stage[stage];
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        nd_op *op = k->nodes.v[0].op;
        if (k->kind == K_REPEAT) {
            bool piped = !list->block && op->axes[0] == r->m->plan.pipe_axis &&
                         r->m->program->nstages > 1;
            double n = piped ? st->hi - st->lo : (double)op->axes[0]->size;
            walk_list(r, k->body, stage, times * n, when);
        } else if (k->kind == K_COMM) {
            add(r, nd_ops[op->kind].name, op->kind, op->mesh, when, times,
                nd_op_comm_bytes(op, &r->m->mesh));
        }
    }
}

static double cross_bytes(report *r, const nd_cross *x, int n)
{
    double bytes = 0;
    for (int i = 0; i < n; i++) {
        nd_ref ref;
        nd_ref_of(r->c, x[i].from, &ref);
        nd_len len = nd_numel_local(r->c, &ref);
        bytes += (double)nd_len_max(r->c, &len) *
                 (double)nd_dtype_size(ref.dtype);
    }
    return bytes;
}

/* muon gathers the pieces of a matrix that is cut. */
static void walk_matrix(report *r, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    uint32_t cut = nd_matrix_cut(p);
    double bytes = 4;
    for (int i = 0; i < t->rank; i++)
        bytes *= (double)r->c->exts.v[nd_ext_of(r->c, t, i)].max;
    if (mesh_size(r, cut) > 1)
        add(r, "all_gather", OP_ALL_GATHER, cut, "momenta", 1,
            bytes * (mesh_size(r, cut) - 1));
}

/* What the runtime does between the last microbatch and the next step. */
static void walk_buckets(report *r, int stage)
{
    for (int i = 0; i < r->c->mem.buckets.n; i++) {
        const nd_bucket *b = &r->c->mem.buckets.v[i];
        if (!(b->stages >> stage & 1) || b->frozen)
            continue;
        double bytes = (double)b->n * 4;
        uint32_t rest = b->sum & ~b->zero;
        int n = mesh_size(r, rest), z = mesh_size(r, b->zero);
        if (n > 1)
            add(r, "all_reduce", OP_ALL_REDUCE, rest, "gradients", 1,
                2 * bytes / z * (n - 1) / n);
        if (z > 1) {
            add(r, "reduce_scatter", OP_REDUCE_SCATTER, b->zero, "gradients",
                1, bytes * (z - 1) / z);
            add(r, "all_gather", OP_ALL_GATHER, b->zero,
                b->muon ? "momenta" : "parameters", 1, bytes * (z - 1) / z);
        }
        for (int k = 0; k < b->params.n && b->muon; k++)
            walk_matrix(r, b->params.v[k]);
    }
}

static void report_traffic(report *r, int stage)
{
    const nd_stage *st = &r->m->program->stage[stage];
    const nd_stage_code *code = &r->c->stage[stage];
    double micro = r->m->program->nmicro;
    uint32_t pipe = r->m->mesh.pipe >= 0 ? 1u << r->m->mesh.pipe : 0;
    r->rows.n = 0;
    walk_list(r, &code->pre, stage, 1, "before");
    walk_list(r, &code->fwd, stage, micro, "forward");
    walk_list(r, &code->bwd, stage, micro, "backward");
    if (st->send_fwd.n)
        add(r, "send", OP_COUNT, pipe, "forward", micro,
            cross_bytes(r, st->send_fwd.v, st->send_fwd.n));
    if (st->send_bwd.n)
        add(r, "send", OP_COUNT, pipe, "backward", micro,
            cross_bytes(r, st->send_bwd.v, st->send_bwd.n));
    walk_buckets(r, stage);
    for (int i = 0; i < r->rows.n; i++) {
        const traffic *t = &r->rows.v[i];
        nd_putf(r->b, "    %-10s  %-14s over %-10s %6.0f x  %10s\n", t->when,
                t->what, mesh_text(r, t->mesh), t->count,
                size_text(r->a, t->bytes));
    }
    if (!r->rows.n)
        nd_put(r->b, "    none\n");
}

/* ---- sections ----------------------------------------------------------- */

static void report_plan(report *r)
{
    const nd_mesh *m = &r->m->mesh;
    const nd_program *p = r->m->program;
    nd_putf(r->b, "plan of %s\n\n", r->m->name);
    nd_putf(r->b, "  ranks         %d", nd_mesh_ranks(m));
    for (int i = 0; i < m->micro; i++)
        nd_putf(r->b, "%s%s = %d", i ? ", " : "   mesh ", m->name[i],
                m->size[i]);
    nd_putf(r->b, "\n  microbatches  %d\n", p->nmicro);
    if (p->nstages > 1)
        nd_putf(r->b, "  pipeline      %d stages over %s, %s, bubble %.1f%%\n",
                p->nstages, m->name[m->pipe],
                r->m->plan.schedule == SCHED_GPIPE ? "gpipe" : "1f1b",
                100 * nd_schedule_bubble(r->m));
    int64_t n = 0;
    for (int i = 0; i < r->m->params.n; i++)
        n += nd_numel(&r->m->params.v[i]->value->type);
    nd_putf(r->b, "  parameters    %s\n", commas(r->a, n));
    if (nd_is_narrow(r->m->train.precision))
        nd_putf(r->b, "  precision     %s products; weights and sums f32\n",
                nd_dtype_name(r->m->train.precision));
    if (r->m->plan.zero)
        nd_putf(r->b, "  zero          %d over %s\n", r->m->plan.zero,
                mesh_text(r, r->m->plan.zero_mesh));
}

/* How attention finds keys on other ranks, pass `context`. */
static void report_context(report *r)
{
    for (int i = 0; i < r->m->plan.chosen.n; i++) {
        const nd_chosen *x = &r->m->plan.chosen.v[i];
        nd_putf(r->b, "%s  %s%s%s\n", i ? "" : "\nattention\n", x->path,
                *x->path ? ": " : "", x->text);
    }
}

/* "layers 0 to 2", the last one included. */
static void put_iterations(report *r, const nd_stage *st)
{
    const char *axis = r->m->plan.pipe_axis->name;
    if (st->hi <= st->lo)
        nd_putf(r->b, ", no %s", axis);
    else if (st->hi - st->lo == 1)
        nd_putf(r->b, ", %s %d", axis, st->lo);
    else
        nd_putf(r->b, ", %s %d to %d", axis, st->lo, st->hi - 1);
}

static void report_stage(report *r, int s)
{
    const nd_program *p = r->m->program;
    const nd_stage *st = &p->stage[s];
    const nd_stage_mem *m = &r->c->mem.stage[s];
    int ranks = nd_mesh_ranks(&r->m->mesh) / p->nstages;
    nd_putf(r->b, "\nstage %d: %d rank%s", s, ranks,
            ranks == 1 ? "" : "s");
    if (r->m->plan.pipe_axis)
        put_iterations(r, st);
    nd_putf(r->b, ", %d parameter tensor%s\n", st->params.n,
            st->params.n == 1 ? "" : "s");
    size_t known = m->weight_bytes + m->grad_bytes + m->state_bytes +
                   m->input_bytes + m->saved_bytes + m->temp_bytes;
    struct {
        const char *name;
        size_t bytes;
    } part[] = {{"weights", m->weight_bytes}, {"gradients", m->grad_bytes},
                {"optimizer", m->state_bytes}, {"inputs", m->input_bytes},
                {"saved", m->saved_bytes}, {"temporary", m->temp_bytes},
                {"other", m->arena_bytes - known},    /* loss, alignment */
                {"peak", m->arena_bytes}};
    nd_put(r->b, "  memory of one rank\n");
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        nd_putf(r->b, "    %-10s %12s  %15s bytes\n", part[i].name,
                size_text(r->a, (double)part[i].bytes),
                commas(r->a, (int64_t)part[i].bytes));
    nd_put(r->b, "  messages that one rank sends per step\n");
    report_traffic(r, s);
}

typedef bool param_test(const report *r, const nd_param *p);

static bool has_decay(const report *r, const nd_param *p)
{
    (void)r;
    return p->decay && !p->frozen;
}

static bool has_no_decay(const report *r, const nd_param *p)
{
    (void)r;
    return !p->decay && !p->frozen;
}

static bool is_frozen(const report *r, const nd_param *p)
{
    (void)r;
    return p->frozen;
}

/* The mesh axes that parameters can be cut along: not those of the samples,
 * nor that of the stages. */
static uint32_t model_mesh(const report *r)
{
    const nd_mesh *m = &r->m->mesh;
    uint32_t mask = 0;
    for (int i = 0; i < m->micro; i++)
        if (m->size[i] > 1 && i != m->pipe)
            mask |= 1u << i;
    for (int i = 0; i < r->m->inputs.n && r->m->sample; i++) {
        const nd_type *t = &r->m->inputs.v[i]->type;
        int k = nd_axis_at(t, r->m->sample);
        for (int j = 0; k >= 0 && j < t->cut[k].n; j++)
            mask &= ~(1u << t->cut[k].m[j]);
    }
    return mask;
}

static bool is_whole(const report *r, const nd_param *p)
{
    uint32_t mesh = model_mesh(r);
    return mesh && !(nd_cut_mask(&p->value->type) & mesh);
}

static void report_params(report *r, const char *title, param_test *test)
{
    nd_buf b = {.arena = r->a};
    for (int i = 0; i < r->m->params.n; i++)
        if (test(r, r->m->params.v[i]))
            nd_putf(&b, "%s%s", b.n ? ", " : "", r->m->params.v[i]->name);
    if (!b.n)
        return;
    nd_putf(r->b, "\n%s\n ", title);
    int col = 1;
    for (char *s = b.s, *end; *s; s = end) {
        end = s + strcspn(s, " ");
        end += *end == ' ';
        int n = (int)(end - s);
        if (col + n > 79) {
            nd_put(r->b, "\n ");
            col = 1;
        }
        nd_putf(r->b, " %.*s", n - (end[-1] == ' '), s);
        col += n;
    }
    nd_put(r->b, "\n");
}

/* The launch command for the MPI that ndc was built with, by this user: Open
 * MPI wants to be told that more ranks than cores, or root, are meant. */
static void report_launch(report *r, int ranks)
{
    const char *launcher = NDC_MPIRUN;
    bool open_mpi = strstr(launcher, "oversubscribe") != NULL;
    if (ranks == 1 || !*launcher)
        return;
    nd_putf(r->b, "  %s%s -n %d ./train\n", launcher,
            open_mpi && geteuid() == 0 ? " --allow-run-as-root" : "", ranks);
}

void cg_report_plan(nd_module *m, nd_buf *out)
{
    report r = {.m = m, .c = nd_code_new(m), .a = m->ctx->arena, .b = out};
    report_plan(&r);
    report_context(&r);
    for (int s = 0; s < m->program->nstages; s++)
        report_stage(&r, s);
    report_params(&r, "with weight decay", has_decay);
    report_params(&r, "without weight decay", has_no_decay);
    report_params(&r, "frozen", is_frozen);
    report_params(&r, "on every rank: no rule cuts these", is_whole);
    nd_put(out, "\nrun\n  ./train\n");
    report_launch(&r, nd_mesh_ranks(&m->mesh));
}
