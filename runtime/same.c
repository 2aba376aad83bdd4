/* same.c - ranks that were started by themselves must have been started alike.
 *
 *   a: error: rank 1: --steps is 6 here and 4 on rank 0: all ranks need the
 *   same
 *
 * A rank that trains more steps, saves where others do not or has other samples
 * would wait for the others for ever, or train on what nobody asked for. So all
 * compare the options that decide what is done and in which order, and how much
 * data there is. Names of files and threads are a rank's own.
 *
 * One number that stands for everything is gathered; only where it differs are
 * the facts compared one after the other, to tell which one it is.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

typedef enum { NUMBER, GIVEN, OTHER } fact_kind;

typedef struct fact {
    const char *name, *unit;      /* "--steps", "" */
    fact_kind kind;               /* how a difference is told */
    uint64_t bits;                /* of a NUMBER: a double, or whole */
    bool whole;
} fact;

static fact whole(const char *name, const char *unit, int64_t n)
{
    return (fact){name, unit, NUMBER, (uint64_t)n, true};
}

static fact number(const char *name, double x)
{
    fact f = {name, "", NUMBER, 0, false};

    memcpy(&f.bits, &x, sizeof x);
    return f;
}

static fact given(const char *name, bool yes)
{
    return (fact){name, "", GIVEN, yes, true};
}

static fact other(const char *name, uint64_t bits)
{
    return (fact){name, "", OTHER, bits, true};
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    return (h ^ x) * 0x100000001b3u;
}

/* Every action of every row. */
static uint64_t schedule_bits(const sched *s)
{
    uint64_t h = 1;

    for (int d = 0; d < s->ranks; d++)
        for (int i = 0; i < s->row[d].n; i++) {
            const sched_action *a = &s->row[d].v[i];
            h = mix(mix(mix(h, a->op), (uint64_t)a->stage), (uint64_t)a->mb);
        }
    return h;
}

/* ---- the comparison ---------------------------------------------------- */

/* The first rank whose number is not that of rank 0; 0: all are equal. */
static ndrt_status first_unlike(ndrt_rank *r, uint64_t bits, int *rank,
                                uint64_t *first)
{
    const ndrt_state *st = r->state;
    double mine;

    memcpy(&mine, &bits, sizeof mine);
    ndrt_status s = ndrt_gather_doubles(r, &mine, 1);
    *rank = 0;
    for (int q = st->world.n - 1; q > 0 && s == NDRT_OK; q--)
        if (memcmp(&st->all[q], &st->all[0], sizeof mine) != 0)
            *rank = q;
    memcpy(first, st->all, sizeof *first);
    return s;
}

/* As short as tells them apart. */
static void print_number(char *out, size_t size, const fact *f, uint64_t bits)
{
    double x, back = -1.0;

    if (f->whole) {
        snprintf(out, size, "%llu", (unsigned long long)bits);
        return;
    }
    memcpy(&x, &bits, sizeof x);
    for (int digits = 6; digits <= 17 && back != x; digits++) {
        snprintf(out, size, "%.*g", digits, x);
        back = strtod(out, NULL);
    }
}

static ndrt_status tell(ndrt_rank *r, ndrt_status s, const fact *f,
                        uint64_t first)
{
    char here[32], there[32];

    if (f->kind == GIVEN)
        return ndrt_fail(r, s, "%s is given %s: all ranks need the same",
                         f->name, f->bits ? "here and not on rank 0"
                                          : "on rank 0 and not here");
    if (f->kind == OTHER)
        return ndrt_fail(r, s, "%s is another one than on rank 0: all ranks "
                         "need the same", f->name);
    print_number(here, sizeof here, f, f->bits);
    print_number(there, sizeof there, f, first);
    return ndrt_fail(r, s, "%s %s%s here and %s on rank 0: all ranks need the "
                     "same", f->name, here, f->unit, there);
}

/* `s` is what a difference comes to. */
static ndrt_status compare(ndrt_rank *r, const fact *f, int n, ndrt_status s)
{
    uint64_t all = 0, first;
    int rank;

    for (int i = 0; i < n; i++)
        all = mix(all, f[i].bits);
    ndrt_status got = first_unlike(r, all, &rank, &first);
    if (got != NDRT_OK || rank == 0)
        return got;
    for (int i = 0; i < n; i++) {
        got = first_unlike(r, f[i].bits, &rank, &first);
        if (got != NDRT_OK)
            return got;
        if (rank > 0)
            return ndrt_agree(r, rank == r->rank ? tell(r, s, &f[i], first)
                                                 : NDRT_OK);
    }
    return NDRT_OK;
}

/* ---- what is compared --------------------------------------------------- */

ndrt_status ndrt_same_options(ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    const ndrt_train *t = &c->train;
    const fact facts[] = {
        whole("--steps is", "", t->steps),
        whole("--seed is", "", (int64_t)t->seed),
        number("--lr is", t->lr),
        whole("--warmup is", "", t->warmup),
        number("--clip is", t->clip),
        whole("--microbatches is", "", r->program->nmicro),
        other("--schedule", schedule_bits(r->state->course->sched)),
        other("--overlap", c->overlap),
        other("--messages", c->messages),
        other("the kind of --data", t->data),
        given("--eval-data", t->eval_path),
        given("--load", c->load_all),
        given("--resume", c->resume_path),
        given("--save", c->save_path),
        given("--check-replicas", c->check_replicas),
        given("--micro-losses", c->micro_losses),
        given("--comm", c->comm_path),
        given("--trace", c->trace_path),
        whole("--trace-step is", "", c->trace_step),
        given("--times", c->times_path),
        given("--profile", c->profile_path),
        given("--products", c->products_path),
        other("--generate", c->generate ? ndrt_hash(c->generate) : 0),
        whole("--tokens is", "", c->tokens),
        number("--temperature is", c->temperature),
    };

    return compare(r, facts, sizeof facts / sizeof *facts, NDRT_EUSAGE);
}

ndrt_status ndrt_same_data(ndrt_rank *r)
{
    const ndrt_data *d = r->state->data;
    const fact facts[] = {
        whole("the training data have", " bytes", (int64_t)d->file[0].bytes),
        whole("the training data have", " samples", d->part[0].rows),
        whole("the evaluation data have", " bytes",
              (int64_t)d->file[1].bytes),
        whole("the evaluation data have", " samples", d->part[1].rows),
        whole("the run goes on after step", "", r->state->start),
    };

    return compare(r, facts, sizeof facts / sizeof *facts, NDRT_EINPUT);
}
