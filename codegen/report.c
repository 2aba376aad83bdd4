/* report.c - cg_report_plan: what a person wants to know before a run. Every
 * number comes from the structures that the C text is printed from.
 */
#include "codegen.h"

#include <string.h>
#include <unistd.h>

typedef struct report {
    nd_module *m;
    nd_code *c;
    nd_arena *a;
    nd_buf *b;
    nd_comm_rows rows;
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

const char *cg_commas(nd_arena *a, int64_t n)
{
    char *s = nd_fmt(a, "%lld", (long long)n);
    nd_buf b = {.arena = a};
    size_t len = strlen(s);
    for (size_t i = 0; i < len; i++)
        nd_putf(&b, "%s%c", i && (len - i) % 3 == 0 ? "," : "", s[i]);
    return b.s;
}

const char *cg_mesh_text(const nd_module *m, uint32_t mesh)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_put(&b, "");
    for (int i = 0; i < m->mesh.n; i++)
        if (mesh >> i & 1)
            nd_putf(&b, "%s%s", b.n ? "," : "", m->mesh.name[i]);
    return b.s;
}

/* ---- messages ----------------------------------------------------------- */

/* Rows that differ in nothing but where they come from are one line. */
static void merge(report *r, nd_comm_rows *sums)
{
    for (int i = 0; i < r->rows.n; i++) {
        const nd_comm_row *x = &r->rows.v[i];
        nd_comm_row *sum = NULL;
        for (int k = 0; k < sums->n && !sum; k++)
            if (strcmp(sums->v[k].name, x->name) == 0 &&
                strcmp(sums->v[k].when, x->when) == 0 &&
                sums->v[k].mesh == x->mesh)
                sum = &sums->v[k];
        if (sum) {
            sum->calls += x->calls;
            sum->bytes += x->bytes;
        } else if (x->kind != COMM_RECV) {
            ND_PUSH(r->a, sums, *x);
        }
    }
}

static void report_messages(report *r, int device)
{
    nd_comm_rows sums = {0};
    r->rows.n = 0;
    nd_comm_rows_of(r->c, nd_first_rank(r->m, device), &nd_default_cluster,
                    &r->rows);
    merge(r, &sums);
    for (int i = 0; i < sums.n; i++) {
        const nd_comm_row *t = &sums.v[i];
        nd_putf(r->b, "    %-10s  %-14s over %-10s %6lld x  %10s\n", t->when,
                t->name, cg_mesh_text(r->m, t->mesh), (long long)t->calls,
                size_text(r->a, (double)t->bytes));
    }
    if (!sums.n)
        nd_put(r->b, "    none\n");
}

/* ---- sections ----------------------------------------------------------- */

/* The rules that say how parameters, gradients and state are stored. */
static void report_scopes(report *r)
{
    static const char *const scope[] = {
        [SCOPE_PARAMS] = "params", [SCOPE_GRADS] = "grads",
        [SCOPE_OPT] = "optimizer",
    };
    for (int i = 0; i < r->m->plan.rules.n; i++) {
        const nd_rule *u = &r->m->plan.rules.v[i];
        if (u->scope == SCOPE_ALL)
            continue;
        nd_putf(r->b, "  stored        %s, %s over %s\n",
                u->scope == SCOPE_NAME
                    ? nd_fmt(r->a, "\"%s\"", u->pattern)
                    : scope[u->scope],
                u->axis->name, cg_mesh_text(r->m, nd_cut_bits(u->mesh)));
    }
}

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
        nd_putf(r->b, "  pipeline      %d stages over %s, %s, bubble %.1f%%, "
                "%s a step\n",
                p->nstages, m->name[m->pipe],
                cg_schedule_name(r->m),
                100 * nd_schedule_bubble(r->m),
                cg_seconds(r->a, nd_schedule_seconds(r->m)));
    int64_t n = 0;
    for (int i = 0; i < r->m->params.n; i++)
        n += nd_numel(&r->m->params.v[i]->value->type);
    nd_putf(r->b, "  parameters    %s\n", cg_commas(r->a, n));
    if (nd_is_narrow(r->m->train.precision))
        nd_putf(r->b, "  precision     %s products; weights and sums f32\n",
                nd_dtype_name(r->m->train.precision));
    if (r->m->plan.zero)
        nd_putf(r->b, "  zero          %d over %s\n", r->m->plan.zero,
                cg_mesh_text(r->m, r->m->plan.zero_mesh));
    report_scopes(r);
    if (r->m->plan.recompute != REMAT_NONE)
        nd_putf(r->b, "  recompute     %s\n",
                cg_remat_names[r->m->plan.recompute]);
}

/* A device with one stage goes by the stage's name. */
static const char *device_word(const report *r)
{
    const nd_program *p = r->m->program;
    return p->nstages > p->ndevices ? "device" : "stage";
}

/* Ranks of a device are alike; devices are not, and the fullest one decides. */
static void report_fullest(report *r)
{
    const nd_program *p = r->m->program;
    const nd_device_mem *mem = r->c->mem.device;
    int d = 0;
    for (int i = 1; i < p->ndevices; i++)
        if (mem[i].arena_bytes > mem[d].arena_bytes)
            d = i;
    if (p->ndevices > 1)
        nd_putf(r->b, "  memory        at most %s (%s bytes) per rank: %s "
                "%d\n", size_text(r->a, (double)mem[d].arena_bytes),
                cg_commas(r->a, (int64_t)mem[d].arena_bytes), device_word(r),
                d);
}

static void put_unspared(report *r, const char *before, int device)
{
    nd_putf(r->b, "%s%s bytes; without recompute %s", before,
            cg_commas(r->a, (int64_t)r->c->mem.device[device].arena_bytes),
            cg_commas(r->a, (int64_t)r->m->plan.unspared[device]));
}

/* What `recompute auto` made of each stage. */
static void report_remat(report *r)
{
    const nd_plan *p = &r->m->plan;
    const nd_program *x = r->m->program;
    if (!p->unspared)
        return;
    nd_putf(r->b, "\nrecompute auto, at most %s bytes per rank: %s\n",
            cg_commas(r->a, (int64_t)p->room), cg_remat_names[p->recompute]);
    bool own = x->ndevices == x->nstages;    /* a device each */
    for (int s = 0; s < p->nagain; s++) {
        nd_putf(r->b, "  stage %d  %s", s,
                p->again[s] ? "runs forward again before backward"
                            : "keeps what backward reads");
        if (own)
            put_unspared(r, ", ", s);
        nd_put(r->b, "\n");
    }
    for (int d = 0; d < x->ndevices && !own; d++) {
        put_unspared(r, nd_fmt(r->a, "  device %d  ", d), d);
        nd_put(r->b, "\n");
    }
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
static void put_iterations(report *r, const char *axis, nd_iters it)
{
    if (it.hi <= it.lo)
        nd_putf(r->b, ", no %s", axis);
    else if (it.hi - it.lo == 1)
        nd_putf(r->b, ", %s %d", axis, it.lo);
    else
        nd_putf(r->b, ", %s %d to %d", axis, it.lo, it.hi - 1);
}

/* Of a microbatch, by the cost model. */
static void report_time(report *r, int s)
{
    const sched_costs *x = &r->m->program->costs;
    const nd_program *p = r->m->program;
    nd_putf(r->b, "  time of a microbatch%s\n    forward    %12s\n",
            p->nstages > p->ndevices ? nd_fmt(r->a, ", stage %d", s) : "",
            cg_seconds(r->a, x->f[s]));
    nd_putf(r->b, "    %-10s %12s\n", x->w[s] > 0 ? "inputs" : "backward",
            cg_seconds(r->a, x->i[s]));
    if (x->w[s] > 0)
        nd_putf(r->b, "    %-10s %12s\n", "weights",
                cg_seconds(r->a, x->w[s]));
}

/* The device whose stages take longest: it is the pipeline's pace. */
static void report_slowest(report *r)
{
    const nd_program *p = r->m->program;
    const sched_costs *x = &p->costs;
    double *load = ND_NEWN(r->a, double, p->ndevices), mean = 0;
    int most = 0;
    for (int s = 0; s < p->nstages; s++)
        load[p->stage[s].device] += x->f[s] + x->i[s] + x->w[s];
    for (int d = 0; d < p->ndevices; d++) {
        most = load[d] > load[most] ? d : most;
        mean += load[d] / p->ndevices;
    }
    if (p->nstages > 1)
        nd_putf(r->b, "  time          at most %s of a microbatch: %s %d; "
                "%.0f%% over the mean\n", cg_seconds(r->a, load[most]),
                device_word(r),
                most, mean > 0 ? 100 * (load[most] / mean - 1) : 0.0);
}

static void put_stages(report *r, int device)
{
    const nd_program *p = r->m->program;
    bool several = p->nstages > p->ndevices;
    for (int s = 0; s < p->nstages; s++) {
        if (p->stage[s].device != device)
            continue;
        if (several)
            nd_putf(r->b, ", stage %d", s);
        for (int i = 0; i < r->m->plan.piped.n; i++)
            put_iterations(r, r->m->plan.piped.v[i]->name,
                           p->stage[s].iters[i]);
    }
}

static int params_of(const report *r, int device)
{
    int n = 0;
    for (int i = 0; i < r->c->mem.buckets.n; i++)
        if (r->c->mem.buckets.v[i].devices >> device & 1)
            n += r->c->mem.buckets.v[i].params.n;
    return n;
}

static void report_device(report *r, int d)
{
    const nd_program *p = r->m->program;
    const nd_device_mem *m = &r->c->mem.device[d];
    int ranks = nd_mesh_ranks(&r->m->mesh) / p->ndevices;
    int params = params_of(r, d);
    nd_putf(r->b, "\n%s %d: %d rank%s", device_word(r), d, ranks,
            ranks == 1 ? "" : "s");
    put_stages(r, d);
    nd_putf(r->b, ", %d parameter tensor%s\n", params,
            params == 1 ? "" : "s");
    size_t known = m->weight_bytes + m->grad_bytes + m->state_bytes +
                   m->input_bytes + m->saved_bytes + m->temp_bytes +
                   m->older_bytes - m->lent_bytes;
    struct {
        const char *name;
        size_t bytes;
    } part[] = {{"weights", m->weight_bytes},
                {"versions", m->older_bytes}, {"gradients", m->grad_bytes},
                {"optimizer", m->state_bytes}, {"inputs", m->input_bytes},
                {"saved", m->saved_bytes}, {"temporary", m->temp_bytes},
                {"other", m->arena_bytes - known},    /* loss, alignment */
                {"peak", m->arena_bytes}};
    for (int s = 0; s < p->nstages; s++)
        if (p->stage[s].device == d)
            report_time(r, s);
    nd_put(r->b, "  memory of one rank\n");
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i].bytes && !strcmp(part[i].name, "versions"))
            continue;
        nd_putf(r->b, "    %-10s %12s  %15s bytes\n", part[i].name,
                size_text(r->a, (double)part[i].bytes),
                cg_commas(r->a, (int64_t)part[i].bytes));
        if (m->lent_bytes && !strcmp(part[i].name, "saved"))
            nd_putf(r->b, "      of which%12s  %15s bytes in the place of "
                    "gradients\n", size_text(r->a, (double)m->lent_bytes),
                    cg_commas(r->a, (int64_t)m->lent_bytes));
    }
    if (m->tile_bytes)
        nd_putf(r->b, "    beside it, for tiles of each thread: %s\n",
                size_text(r->a, (double)m->tile_bytes));
    nd_put(r->b, "  messages that one rank sends per step\n");
    report_messages(r, d);
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

/* The mesh axes that parameters can be cut along: not those of the samples
 * unless pieces are stored over them, nor that of the stages. */
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
    if (r->m->plan.zero > 1)
        mask |= r->m->plan.zero_mesh;
    for (int i = 0; i < r->m->plan.rules.n; i++) {
        const nd_rule *u = &r->m->plan.rules.v[i];
        if (u->scope != SCOPE_ALL && u->scope != SCOPE_OPT)
            mask |= nd_cut_bits(u->mesh);
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

/* How the parameters are stored that are gathered at each use, or once. */
static void report_pieces(report *r, const char *title, bool once)
{
    int width = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->m->params.n; i++) {
            const nd_param *p = r->m->params.v[i];
            nd_buf t = {.arena = r->a};
            if (!nd_is_in_pieces(r->m, p) ||
                (p->value->def->phase == PH_PRE) != once)
                continue;
            int n = (int)strlen(p->name);
            if (pass == 0) {
                if (!width)
                    nd_putf(r->b, "\n%s\n", title);
                width = n > width ? n : width;
                continue;
            }
            nd_print_type(&t, r->m, &p->value->type);
            nd_putf(r->b, "  %-*s  %s\n", width, p->name, t.s);
        }
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
    report_fullest(&r);
    report_slowest(&r);
    nd_memory_check(r.c);
    if (m->plan.searched)
        nd_put(out, "\n");
    cg_put_searched(m, "", out);
    report_remat(&r);
    report_context(&r);
    for (int d = 0; d < m->program->ndevices; d++)
        report_device(&r, d);
    report_params(&r, "with weight decay", has_decay);
    report_params(&r, "without weight decay", has_no_decay);
    report_params(&r, "frozen", is_frozen);
    report_pieces(&r, "stored in pieces, gathered once per step", true);
    report_pieces(&r, "stored in pieces, gathered at each use", false);
    report_params(&r, "on every rank: no rule cuts these", is_whole);
    nd_put(out, "\nrun\n  ./train\n");
    report_launch(&r, nd_mesh_ranks(&m->mesh));
}
