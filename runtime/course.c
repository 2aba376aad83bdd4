/* course.c - the schedule that a run follows, and what goes with it: the
 * program's own one, or what --schedule and --microbatches ask for.
 *
 *   ./train --schedule zb_h1 --microbatches 16
 *   ./train --schedule mine.csv
 *
 * It is made once for all ranks, before anything else is, and never changes.
 * Another schedule runs what was compiled: the same stages on the same devices,
 * with backward in two halves only if it was compiled in two, and microbatches
 * of other sizes only where sizes are no constants.
 */
#include "ndrt_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct maker {
    const ndrt_program *p;
    const ndrt_config *config;
    ndrt_course *c;
    FILE *err;                    /* or NULL */
} maker;

/* What the schedule at hand is called in messages. */
static const char *called(const maker *m)
{
    return m->config->schedule ? m->config->schedule : m->p->schedule_name;
}

static ndrt_status refuse(const maker *m, ndrt_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static ndrt_status refuse(const maker *m, ndrt_status s, const char *fmt, ...)
{
    va_list ap;

    if (!m->err)
        return s;
    fprintf(m->err, "%s: error: ", m->p->name);
    va_start(ap, fmt);
    vfprintf(m->err, fmt, ap);
    va_end(ap);
    fputc('\n', m->err);
    return s;
}

static ndrt_status no_memory(const maker *m)
{
    return refuse(m, NDRT_EINTERNAL, "out of memory for the schedule");
}

/* With the rows around the action that is wrong. */
static ndrt_status wrong(const maker *m, const sched *s, const sched_error *e)
{
    refuse(m, NDRT_EINPUT, "schedule %s: %s", called(m), e->text);
    char *table = s && e->rank >= 0 ? sched_table_around(s, e) : NULL;
    if (m->err && table)
        fputs(table, m->err);
    free(table);
    return NDRT_EINPUT;
}

/* ---- what the program has --------------------------------------------- */

static uint8_t *crossings(const ndrt_program *p)
{
    uint8_t *cross = calloc((size_t)p->nstages, 1);

    for (int s = 0; cross && s + 1 < p->nstages; s++) {
        const ndrt_stage *next = &p->stages[s + 1];
        cross[s] = (uint8_t)((next->run[NDRT_RECV_F] ? SCHED_AHEAD : 0) |
                             (next->run[NDRT_SEND_B] ? SCHED_BACK : 0));
    }
    return cross;
}

/* Backward in two halves. */
static bool is_split(const ndrt_program *p)
{
    for (int s = 0; s < p->nstages; s++)
        if (p->stages[s].run[NDRT_I] || p->stages[s].run[NDRT_W])
            return true;
    return false;
}

/* The rows that the compiler wrote. */
static ndrt_status own_schedule(const maker *m)
{
    sched_text rows = {0};
    sched_error e = {.text = "out of memory"};

    for (int d = 0; d < m->p->ndevices; d++)
        sched_put(&rows, "%s\n", m->p->schedule[d]);
    m->c->sched = sched_read(rows.s, rows.n, m->p->schedule_name, &e);
    free(rows.s);
    if (!m->c->sched)
        return refuse(m, NDRT_EINTERNAL, "the schedule: %s", e.text);
    m->c->sched->lowered = true;
    return NDRT_OK;
}

/* ---- another one ------------------------------------------------------- */

/* A word is a name, if not a file: `ndc schedule` takes it for one, too. */
static ndrt_status unknown_schedule(const maker *m, const char *name)
{
    sched_text names = {0};

    for (int k = 0; k < SCHED_NKINDS; k++)
        sched_put(&names, " %s%s", sched_kinds[k].name,
                  sched_kinds[k].v ? "" : "(2)");
    ndrt_status s = refuse(m, NDRT_EUSAGE, "no schedule is called \"%s\"; "
                           "there are%s, and files", name,
                           names.s ? names.s : "");
    free(names.s);
    return s;
}

static ndrt_status read_schedule(maker *m, const char *path)
{
    char error[512];
    void *text;
    size_t n;
    sched_error e = {.rank = -1};
    ndrt_status s = ndrt_map_file(path, &text, &n, error, sizeof error);

    if (s != NDRT_OK && !strpbrk(path, "./"))
        return unknown_schedule(m, path);
    if (s != NDRT_OK)
        return refuse(m, s, "--schedule: %s", error);
    m->c->sched = sched_read(text ? text : "", n, path, &e);
    if (text)
        munmap(text, n);
    if (!m->c->sched)
        return wrong(m, NULL, &e);
    if (m->config->microbatches &&
        m->config->microbatches != m->c->sched->micro)
        return refuse(m, NDRT_EUSAGE, "schedule %s has %d microbatches, "
                      "--microbatches says %lld", path, m->c->sched->micro,
                      (long long)m->config->microbatches);
    return NDRT_OK;
}

/* What an asynchronous program was compiled for; NULL of others. */
static const char *async_name(const ndrt_program *p)
{
    return p->weights == NDRT_STASHED
               ? sched_kinds[SCHED_KIND_PIPEDREAM].name
           : p->weights == NDRT_BEHIND
               ? sched_kinds[SCHED_KIND_PIPEDREAM_2BW].name
               : NULL;
}

static ndrt_status make_named(maker *m, const char *name, sched_kind kind,
                              int v)
{
    const ndrt_program *p = m->p;
    int64_t micro = m->config->microbatches ? m->config->microbatches
                                            : p->nmicro;
    int n = p->ndevices, have = p->nstages / n;
    sched_error e = {.rank = -1};

    if (kind == SCHED_KIND_AUTO)
        return refuse(m, NDRT_EUSAGE, "schedule auto: only the compiler "
                      "knows what a search needs; name one, or a file");
    if (sched_has(kind, 'a') && !async_name(p))
        return refuse(m, NDRT_EUSAGE, "schedule %s changes what is computed: "
                      "compile the program with it", name);
    if (sched_per_rank(kind, v) != have)
        return refuse(m, NDRT_EUSAGE, "schedule %s has %d stage%s per "
                      "device, the program was compiled with %d", name,
                      sched_per_rank(kind, v),
                      sched_per_rank(kind, v) == 1 ? "" : "s", have);
    sched_ask ask = {.kind = kind, .ranks = n, .v = v, .micro = (int)micro,
                     .sync = true};
    m->c->sched = sched_make(&ask, &e);
    if (!m->c->sched)
        return refuse(m, NDRT_EUSAGE, "schedule %s", e.text);
    return NDRT_OK;
}

/* The program's own one, for other microbatches. */
static ndrt_status make_own(maker *m)
{
    const char *async = async_name(m->p);
    const char *name = async                 ? async
                       : m->p->nstages == 1 ? "1f1b"
                                            : m->p->schedule_name;
    sched_kind kind;
    int v;

    if (sched_parse_name(name, &kind, &v) && kind != SCHED_KIND_AUTO)
        return make_named(m, name, kind, v);
    return refuse(m, NDRT_EUSAGE, "--microbatches: the program's schedule "
                  "(%s) is for %d alone; --schedule names another", name,
                  m->p->nmicro);
}

static ndrt_status choose(maker *m)
{
    const char *name = m->config->schedule;
    const char *async = async_name(m->p);
    sched_kind kind;
    int v;

    if (async && name && strcmp(name, async) != 0)
        return refuse(m, NDRT_EUSAGE, "the program was compiled for %s alone, "
                      "which is asynchronous", async);
    if (!name)
        return make_own(m);
    if (m->p->pipe < 0)
        return refuse(m, NDRT_EUSAGE, "--schedule: the program has no "
                      "pipeline");
    return sched_parse_name(name, &kind, &v) ? make_named(m, name, kind, v)
                                             : read_schedule(m, name);
}

/* ---- does the program run it? ------------------------------------------ */

static ndrt_status check_place(const maker *m)
{
    const sched *s = m->c->sched;
    const char *name = called(m);

    if (s->ranks != m->p->ndevices || s->stages != m->p->nstages)
        return refuse(m, NDRT_EUSAGE, "schedule %s has %d stages on %d "
                      "ranks, the program %d on %d", name, s->stages, s->ranks,
                      m->p->nstages, m->p->ndevices);
    for (int i = 0; i < s->stages; i++)
        if (s->rank_of[i] != m->p->stages[i].device)
            return refuse(m, NDRT_EUSAGE, "schedule %s has stage %d on rank "
                          "%d, the program on %d: compile it with such a "
                          "schedule", name, i, s->rank_of[i],
                          m->p->stages[i].device);
    return NDRT_OK;
}

static ndrt_status check_actions(const maker *m)
{
    const sched *s = m->c->sched;
    bool split = is_split(m->p);

    for (int d = 0; d < s->ranks; d++) {
        for (int i = 0; i < s->row[d].n; i++) {
            const sched_action *a = &s->row[d].v[i];
            if (a->op == SCHED_U && m->p->weights != NDRT_STASHED)
                return refuse(m, NDRT_EUSAGE, "schedule %s updates weights "
                              "on its way, which changes what is computed: "
                              "compile the program with it",
                              called(m));
            if ((a->op == SCHED_I || a->op == SCHED_W) && !split)
                return refuse(m, NDRT_EUSAGE, "schedule %s has backward in "
                              "two halves (%d%s%d), the program in one: "
                              "compile it with a schedule such as zb_h1",
                              called(m), a->stage,
                              sched_op_name[a->op], a->mb);
        }
    }
    return NDRT_OK;
}

/* The largest and the least piece of an extent: the first ones are longer. */
static void piece_sizes(const ndrt_program *p, int extent, int64_t *most,
                        int64_t *least)
{
    int64_t off;

    ndrt_extent_of(p, extent, 0, 0, 0, &off, most);
    ndrt_extent_of(p, extent, ndrt_mesh_ranks(p) - 1, 0, p->nmicro - 1, &off,
                   least);
}

/* Do pieces of another number of microbatches fit in the extent? */
static bool extent_fits(const ndrt_program *p, const ndrt_program *other, int e)
{
    int64_t most, least, now, fewest;

    piece_sizes(p, e, &most, &least);
    piece_sizes(other, e, &now, &fewest);
    return most == least ? now == most && fewest == most : now <= most;
}

/* So many rows every rank has to cut in microbatches; -1: nothing is cut. */
static int64_t rows_to_cut(const ndrt_program *p)
{
    ndrt_program whole = *p;
    int64_t rows = -1, most, least;

    whole.nmicro = 1;
    for (int e = 0; e < p->nextents; e++) {
        if (!ndrt_follows_micro(&p->extents[e]))
            continue;
        piece_sizes(&whole, e, &most, &least);
        rows = rows < 0 || least < rows ? least : rows;
    }
    return rows;
}

static bool micro_fits(const ndrt_program *p, int nmicro)
{
    ndrt_program other = *p;

    other.nmicro = nmicro;
    for (int e = 0; e < p->nextents; e++)
        if (ndrt_follows_micro(&p->extents[e]) && !extent_fits(p, &other, e))
            return false;
    return true;
}

/* "4 to 7 fit": as many as there are rows at most. */
static void print_fitting(const ndrt_program *p, char *out, size_t size)
{
    int low = p->nmicro, high = p->nmicro;
    int64_t rows = rows_to_cut(p);

    while (low > 1 && micro_fits(p, low - 1))
        low--;
    while (high < rows && micro_fits(p, high + 1))
        high++;
    if (low == high)
        snprintf(out, size, "only %d fit", low);
    else
        snprintf(out, size, "%d to %d fit", low, high);
}

/* A size that all microbatches have is a constant of the program; of others,
 * there is room for the largest. A program of one microbatch cuts nothing. */
static ndrt_status check_micro(const maker *m)
{
    const ndrt_program *p = m->p, *other = &m->c->program;
    int64_t most, least, now, ignored;
    char fit[48];

    if (other->nmicro == p->nmicro)
        return NDRT_OK;
    for (int e = 0; e < p->nextents; e++) {
        if (!ndrt_follows_micro(&p->extents[e]) || extent_fits(p, other, e))
            continue;
        piece_sizes(p, e, &most, &least);
        piece_sizes(other, e, &now, &ignored);
        print_fitting(p, fit, sizeof fit);
        if (most == least)
            return refuse(m, NDRT_EUSAGE, "%d microbatches: the program was "
                          "compiled for %d, all of size %lld (%s), which is a "
                          "constant in it: %s; compile it for %d",
                          other->nmicro, p->nmicro, (long long)most,
                          p->extents[e].name, fit, other->nmicro);
        return refuse(m, NDRT_EUSAGE, "%d microbatches of up to %lld (%s): "
                      "the program was compiled for %d and has room for "
                      "%lld: %s; or compile it for %d", other->nmicro,
                      (long long)now, p->extents[e].name, p->nmicro,
                      (long long)most, fit, other->nmicro);
    }
    return rows_to_cut(p) >= 0
               ? NDRT_OK
               : refuse(m, NDRT_EUSAGE, "%d microbatches: the program was "
                        "compiled for %d, and nothing in it is cut in more; "
                        "compile it for %d", other->nmicro, p->nmicro,
                        other->nmicro);
}

/* Messages as the stages need them, or those of the file, proved. */
static ndrt_status give_messages(maker *m)
{
    sched *s = m->c->sched;
    sched_costs costs = {.cross = m->c->cross};
    sched_error e = {.rank = -1};
    bool ok = s->lowered || sched_lower(s, &costs, &e);

    return ok && sched_check(s, m->c->cross, &e) ? NDRT_OK : wrong(m, s, &e);
}

static ndrt_status make_other(maker *m)
{
    ndrt_status s = choose(m);

    if (s == NDRT_OK)
        s = check_place(m);
    if (s == NDRT_OK)
        s = give_messages(m);
    if (s == NDRT_OK)
        s = check_actions(m);
    if (s != NDRT_OK)
        return s;
    m->c->program.nmicro = m->c->sched->micro;
    return check_micro(m);
}

/* ---- all of it --------------------------------------------------------- */

/* Nobody overwrites what is still needed: proved. */
static ndrt_status set_rooms(const maker *m)
{
    ndrt_course *c = m->c;
    size_t n = (size_t)c->sched->stages;
    size_t (*of)[SCHED_NSPANS] = calloc(n, sizeof *of);
    const size_t (*bytes)[SCHED_NSPANS] = (const size_t (*)[SCHED_NSPANS])of;
    sched_error e;

    for (size_t s = 0; of && s < n; s++)
        memcpy(of[s], c->program.stages[s].slot_bytes, sizeof of[s]);
    ndrt_status s = !of || !sched_rooms_new(c->sched, bytes, &c->rooms)
                        ? no_memory(m)
                    : sched_check_rooms(c->sched, bytes, &c->rooms, &e)
                        ? NDRT_OK
                        : wrong(m, c->sched, &e);
    free(of);
    return s;
}

static bool set_needs(ndrt_course *c)
{
    const sched *s = c->sched;
    bool ok = (c->needs = calloc((size_t)s->ranks, sizeof *c->needs));

    for (int d = 0; ok && d < s->ranks; d++) {
        c->needs[d] = calloc((size_t)s->row[d].n + 1, sizeof **c->needs);
        ok = c->needs[d] && ndrt_order(s, d, &c->rooms, c->needs[d]);
    }
    return ok;
}

static bool set_versions(ndrt_course *c)
{
    const sched *s = c->sched;
    bool ok = (c->versions = calloc((size_t)s->ranks, sizeof *c->versions)) &&
              (c->ran_on = calloc((size_t)s->stages, sizeof *c->ran_on));

    for (int i = 0; ok && i < s->stages; i++) {
        int *most = &c->versions[s->rank_of[i]];
        c->ran_on[i] = calloc((size_t)s->micro, sizeof **c->ran_on);
        ok = c->ran_on[i];
        int n = !ok                                 ? 0
                : c->program.weights == NDRT_BEHIND ? 2
                                  : sched_versions(s, i, c->ran_on[i]);
        *most = n > *most ? n : *most;
    }
    return ok;
}

/* The norm is known when the last stage has updated, and the first one must
 * not wait for it. */
static ndrt_status check_clip(const maker *m)
{
    if (m->p->weights != NDRT_STASHED || m->config->train.clip <= 0.0)
        return NDRT_OK;
    return refuse(m, NDRT_EUSAGE, "--clip: the norm is over all stages, which "
                  "pipedream updates one before the other");
}

ndrt_status ndrt_course_open(ndrt_course *c, const ndrt_program *p,
                             const ndrt_config *config, FILE *err)
{
    maker m = {p, config, c, err};
    ndrt_status s = NDRT_OK;

    *c = (ndrt_course){.program = *p, .cross = crossings(p)};
    if (!c->cross)
        return no_memory(&m);
    if (config->schedule || (config->microbatches &&
                             config->microbatches != p->nmicro))
        s = make_other(&m);
    else
        s = own_schedule(&m);
    if (s == NDRT_OK)
        s = check_clip(&m);
    if (s == NDRT_OK)
        s = set_rooms(&m);
    if (s == NDRT_OK && (!set_needs(c) || !set_versions(c)))
        s = no_memory(&m);
    return s;
}

void ndrt_course_close(ndrt_course *c)
{
    for (int d = 0; c->needs && d < c->sched->ranks; d++)
        free(c->needs[d]);
    for (int i = 0; c->ran_on && i < c->sched->stages; i++)
        free(c->ran_on[i]);
    free(c->needs);
    free(c->versions);
    free(c->ran_on);
    sched_rooms_free(&c->rooms);
    free(c->cross);
    sched_free(c->sched);
}
