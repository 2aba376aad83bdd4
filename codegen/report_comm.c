/* report_comm.c - cg_report_comm: every collective of the program and of the
 * update, in order, under the source line that asks for it; then the sums.
 *
 *   gpt.nd:20  x = x + attention(layernorm[d](x) as ln1) as attn
 *     forward    all_gather    over tp    16 x  12,288 B  196,608 B  48.4 us
 *
 * The calls are those of a step; the bytes are those of the largest call and
 * of all of them. What kernels run beside is marked. The rows come from
 * passes/comm_report.c.
 */
#include "codegen.h"

#include <string.h>

typedef struct report {
    nd_module *m;
    nd_arena *a;
    nd_buf *b;
    nd_comm_rows rows;
    bool marked;                     /* one of them */
} report;

const char *cg_seconds(nd_arena *a, double t)
{
    static const char *const unit[] = {"us", "ms", "s"};
    int u = 0;
    if (t > 0 && t < 0.05e-6)
        return nd_fmt(a, "%.1f ns", t * 1e9);
    for (t *= 1e6; t >= 1000 && u < 2; u++)
        t /= 1000;
    return nd_fmt(a, "%.1f %s", t, unit[u]);
}

/* "~": it depends on the data. */
static const char *bytes_text(nd_arena *a, bool about, int64_t n)
{
    return nd_fmt(a, "%s%s B", about ? "~" : "", cg_commas(a, n));
}

/* ---- rows ---------------------------------------------------------------- */

static const char *heading(report *r, const nd_comm_row *x)
{
    nd_ctx *c = r->m->ctx;
    if (!x->loc.file)
        return x->what;
    const char *name = c->files.v[x->loc.file - 1].name;
    const char *slash = strrchr(name, '/');
    return nd_fmt(r->a, "%s%s%s:%d  %s", x->what ? x->what : "",
                  x->what ? ": " : "", slash ? slash + 1 : name,
                  nd_line_of(c, x->loc), nd_source_line(c, x->loc, 100));
}

static void put_row(report *r, const nd_comm_row *x)
{
    r->marked |= x->flight != NULL;
    const char *mark = !x->flight ? "" : x->flight->ahead ? "  ahead" : "  *";
    nd_putf(r->b, "    %-10s %-14s over %-10s %6lld x %17s %19s %9s%s\n",
            x->when, x->name, cg_mesh_text(r->m, x->mesh),
            (long long)x->calls, bytes_text(r->a, x->about, x->once),
            bytes_text(r->a, x->about, x->bytes),
            x->kind == COMM_RECV ? "-" : cg_seconds(r->a, x->seconds), mark);
}

static void put_rows(report *r)
{
    const char *last = "";
    for (int i = 0; i < r->rows.n; i++) {
        const char *head = heading(r, &r->rows.v[i]);
        if (strcmp(head, last) != 0)
            nd_putf(r->b, "  %s\n", head);
        put_row(r, &r->rows.v[i]);
        last = head;
    }
}

/* ---- sums ---------------------------------------------------------------- */

enum { ANY = -1 };

/* One line for what goes over `mesh` (0: anything) by `kind` (or ANY). What a
 * rank receives by `recv` is another rank's to count. */
static void put_sum(report *r, uint32_t mesh, int kind)
{
    int64_t calls = 0, bytes = 0;
    double seconds = 0;
    bool about = false;
    for (int i = 0; i < r->rows.n; i++) {
        const nd_comm_row *x = &r->rows.v[i];
        if ((mesh && x->mesh != mesh) ||
            (kind == ANY ? x->kind == COMM_RECV : (int)x->kind != kind))
            continue;
        calls += x->calls;
        bytes += x->bytes;
        about |= x->about;
        seconds += x->seconds;
    }
    nd_putf(r->b, "    %-10s %-14s %-15s %6lld x %37s %9s\n", "",
            kind == ANY ? "all" : nd_comm_names[kind],
            mesh ? nd_fmt(r->a, "over %s", cg_mesh_text(r->m, mesh)) : "all",
            (long long)calls, bytes_text(r->a, about, bytes),
            kind == COMM_RECV ? "-" : cg_seconds(r->a, seconds));
}

/* The kinds that occur over `mesh` (0: anywhere), as bits. */
static uint32_t kinds_over(const report *r, uint32_t mesh)
{
    uint32_t kinds = 0;
    for (int i = 0; i < r->rows.n; i++)
        if (!mesh || r->rows.v[i].mesh == mesh)
            kinds |= 1u << r->rows.v[i].kind;
    return kinds;
}

/* Each kind, and then all of them. */
static void put_kinds(report *r, uint32_t mesh)
{
    uint32_t kinds = kinds_over(r, mesh);
    for (int k = 0; k < COMM_NKINDS; k++)
        if (kinds >> k & 1)
            put_sum(r, mesh, k);
    put_sum(r, mesh, ANY);
}

static bool seen_before(const report *r, int row)
{
    for (int i = 0; i < row; i++)
        if (r->rows.v[i].mesh == r->rows.v[row].mesh)
            return true;
    return false;
}

static void put_sums(report *r)
{
    nd_put(r->b, "  sums\n");
    for (int i = 0; i < r->rows.n; i++)
        if (!seen_before(r, i))
            put_kinds(r, r->rows.v[i].mesh);
    put_kinds(r, 0);
}

/* ---- all ----------------------------------------------------------------- */

static void put_head(report *r, const nd_cluster *c)
{
    const nd_mesh *m = &r->m->mesh;
    nd_putf(r->b, "communication of %s: what one rank sends in a step\n\n"
            "  ranks         %d", r->m->name, nd_mesh_ranks(m));
    for (int i = 0; i < m->micro; i++)
        nd_putf(r->b, "%s%s = %d", i ? ", " : "   mesh ", m->name[i],
                m->size[i]);
    nd_putf(r->b, "\n  microbatches  %d\n", r->m->program->nmicro);
    nd_putf(r->b, "  times         as if %d neighbouring ranks shared links of "
            "%g GB/s, %g us;\n                others %g GB/s, %g us; one after "
            "another, nothing overlapped\n", c->near, c->near_bandwidth / 1e9,
            c->near_latency * 1e6, c->far_bandwidth / 1e9,
            c->far_latency * 1e6);
}

void cg_report_comm(nd_module *m, int rank, nd_buf *out)
{
    report r = {.m = m, .a = m->ctx->arena, .b = out};
    nd_code *c = nd_code_new(m);
    int each = nd_mesh_ranks(&m->mesh) / m->program->ndevices;
    put_head(&r, &nd_default_cluster);
    for (int d = 0; d < m->program->ndevices; d++) {
        int at = rank < 0 ? nd_first_rank(m, d) : rank;
        r.rows.n = 0;
        nd_comm_rows_of(c, at, &nd_default_cluster, &r.rows);
        nd_putf(out, "\nrank %d", at);
        if (rank < 0)
            nd_putf(out, ", the first of %d of %s %d", each,
                    m->program->nstages > m->program->ndevices ? "device"
                                                               : "stage", d);
        nd_put(out, "\n");
        if (r.rows.n) {
            put_rows(&r);
            put_sums(&r);
        } else {
            nd_put(out, "  nothing\n");
        }
        if (rank >= 0)
            break;
    }
    if (r.marked)
        nd_put(out, "\n*      starts early, is waited for late: a product is "
                    "computed beside it\nahead  starts one iteration of its "
                    "repeat ahead\n");
}
