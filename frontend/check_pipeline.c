/* check_pipeline.c - the plan's `pipeline` line.
 *
 *   pipeline layers -> pp, schedule = interleaved(2), microbatches = 8
 *   pipeline (enc, dec) -> pp, stages = [4, 5, 3]
 *
 * Which schedules there are is in runtime/schedule/sched.def, and which ranks,
 * stages and microbatches go together is known there.
 */
#include "frontend.h"

#include <string.h>

/* ---- the schedule -------------------------------------------------------- */

enum { MAX_PER_DEVICE = 1 << 10 };

/* interleaved(2): -> 2; 0 after an error. */
static int per_device(ck *c, ast_expr *e, const char *name)
{
    static const char *const arg[] = {"v"};
    ast_expr *slot[1] = {NULL};
    int64_t v;
    if (e->kind == E_CALL && !ck_cfg_args(c, name, e->args, arg, 1, slot))
        return 0;
    if (!slot[0]) {
        ck_error(c, e->loc, "`%s` needs the number of stages on each rank: "
                 "%s(2)", name, name);
        return 0;
    }
    if (!ck_cfg_int(c, slot[0], 1, &v))
        return 0;
    if (v > MAX_PER_DEVICE) {
        ck_error(c, slot[0]->loc, "more than %d stages on a rank",
                 MAX_PER_DEVICE);
        return 0;
    }
    return (int)v;
}

static void schedule_file(ck *c, ast_expr *e)
{
    static const char *const arg[] = {"path"};
    ast_expr *slot[1];
    if (!ck_cfg_form(c, e, "file", "file", "file(\"schedule.csv\")") ||
        !ck_cfg_args(c, "file", e->args, arg, 1, slot))
        return;
    if (slot[0])
        ck_cfg_str(c, slot[0], &c->m->plan.schedule_file);
    else
        ck_error(c, e->loc, "`file` is written file(\"schedule.csv\")");
}

static void schedule(ck *c, ast_expr *e)
{
    nd_plan *p = &c->m->plan;
    const char *names[SCHED_NKINDS + 2];
    for (int k = 0; k < SCHED_NKINDS; k++)
        names[k] = sched_kinds[k].name;
    names[SCHED_KIND_AUTO] = "auto";
    names[SCHED_KIND_FILE] = "file";
    int k = ck_cfg_choose(c, e, "schedule", names, SCHED_NKINDS + 2);
    if (k < 0)
        return;
    p->schedule = (sched_kind)k;
    if (k == SCHED_KIND_FILE)
        schedule_file(c, e);
    else if (k == SCHED_KIND_AUTO ? e->kind == E_CALL
                                  : !sched_kinds[k].v)
        p->per_device = per_device(c, e, names[k]);
    else
        ck_cfg_word(c, e);
}

/* ---- stages -------------------------------------------------------------- */

/* How many; 0: the file or the search says. */
static int64_t count_stages(const ck *c)
{
    const nd_plan *p = &c->m->plan;
    int64_t ranks = c->m->mesh.size[c->m->mesh.pipe];
    if (ranks == 1)                  /* nothing to be cut for */
        return 1;
    if (p->schedule >= SCHED_NKINDS && !p->per_device)
        return 0;
    return ranks * sched_per_rank(p->schedule, p->per_device);
}

/* A list has an entry per stage. Of a schedule that does not say how many there
 * are on a rank, the list says it. */
static bool right_length(ck *c, const ast_expr *e, int n)
{
    nd_plan *p = &c->m->plan;
    int64_t ranks = c->m->mesh.size[c->m->mesh.pipe], want = count_stages(c);
    if (!want && n % ranks == 0) {
        p->per_device = n / (int)ranks;
        return true;
    }
    if (n == want)
        return true;
    const char *each = want == ranks ? ""
                       : !want ? ", each with as many"
                               : nd_fmt(c->ctx->arena, ", %lld on each rank",
                                        (long long)(want / ranks));
    ck_error(c, e->loc, "%d stage%s for a mesh axis of size %lld%s", n,
             n == 1 ? "" : "s", (long long)ranks, each);
    return false;
}

/* Of all repeats that are cut in stages. */
static int64_t iterations(const nd_module *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->step->ops.n; i++) {
        const nd_op *op = m->step->ops.v[i];
        if (op->kind == OP_REPEAT && nd_is_piped(m, op->axes[0]))
            n += op->axes[0]->size;
    }
    return n;
}

static const char *axes_text(ck *c)
{
    nd_buf b = {.arena = c->ctx->arena};
    for (int i = 0; i < c->m->plan.piped.n; i++)
        nd_putf(&b, "%s%s", i ? "`, `" : "", c->m->plan.piped.v[i]->name);
    return b.s;
}

static void stages(ck *c, ast_expr *e)
{
    nd_plan *p = &c->m->plan;
    int64_t sum = 0, most = iterations(c->m);
    if (e->kind == E_NAME && !strcmp(e->str, "auto"))
        return;
    if (e->kind != E_LIST) {
        ck_error(c, e->loc, "stages are `auto` or a list: [6, 6]");
        return;
    }
    int n = e->args->n;
    if (!right_length(c, e, n))
        return;
    p->stages_given = ND_NEWN(c->ctx->arena, int, n);
    for (int i = 0; i < n; i++) {
        int64_t k;
        if (!ck_cfg_int(c, e->args->v[i].e, 0, &k))
            return;
        p->stages_given[i] = (int)(k > most ? most + 1 : k);
        sum += k;
    }
    if (sum != most)
        ck_error(c, e->loc, "the stages hold %lld of %lld `%s`",
                 (long long)sum, (long long)most, axes_text(c));
    p->nstages_given = n;
}

void ck_microbatches(ck *c, ast_expr *e)
{
    nd_plan *p = &c->m->plan;
    int64_t n;
    if (p->micro_loc.file && p->micro_loc.begin != e->loc.begin) {
        ck_say(c, e->loc, "the microbatches are given twice");
        ck_note(c, p->micro_loc, "they are given here already");
        return;
    }
    p->micro_loc = e->loc;
    if (!ck_cfg_int(c, e, 1, &n))
        return;
    if (n > 1 << 20)
        ck_error(c, e->loc, "more than %d microbatches", 1 << 20);
    else
        p->microbatches = (int)n;
}

/* ---- the line ------------------------------------------------------------ */

typedef struct seek {
    nd_axis *axis;
    nd_op *found;                    /* a repeat over it, the outermost */
} seek;

static void find_repeat(nd_op *op, void *user)
{
    seek *s = user;
    if (op->kind == OP_REPEAT && op->axes[0] == s->axis &&
        (!s->found || s->found->block->parent))
        s->found = op;
}

/* The pipelined axis needs a repeat that is in no other one. */
static void check_repeat(ck *c, nd_loc at, nd_axis *a)
{
    seek s = {.axis = a};
    nd_walk(c->m->step, find_repeat, &s);
    if (!s.found) {
        ck_say(c, at, "the model has no `repeat %s` to cut in stages",
               a->name);
    } else if (s.found->block->parent) {
        nd_op *outer = s.found->block->parent;
        while (outer->block->parent)
            outer = outer->block->parent;
        ck_say(c, at, "`repeat %s` is inside `repeat %s`: an outermost repeat "
               "is cut in stages", a->name, outer->axes[0]->name);
        ck_note(c, s.found->loc, "the repeat is here");
    }
}

static bool piped_axes(ck *c, const ast_names *names)
{
    nd_plan *p = &c->m->plan;
    for (int i = 0; i < names->n; i++) {
        nd_axis *a = ck_model_axis(c, names->v[i]);
        if (!a)
            return false;
        if (nd_is_piped(c->m, a)) {
            ck_say(c, names->v[i].loc, "`%s` is named twice", a->name);
            return false;
        }
        ND_PUSH(c->ctx->arena, &p->piped, a);
        if (c->m->loss)
            check_repeat(c, names->v[i].loc, a);
    }
    return true;
}

/* A stage without iterations is mostly a mistake; a list may ask for it. */
static void check_empty(ck *c)
{
    const nd_plan *p = &c->m->plan;
    int64_t n = count_stages(c), most = iterations(c->m);
    if (p->nstages_given || !most || n <= most)
        return;
    ck_say(c, p->pipe_loc, "%lld stages for %lld `%s`: a stage would be empty",
           (long long)n, (long long)most, axes_text(c));
    ck_note(c, p->schedule_loc, "`stages = [...]` may give a stage 0 of them");
}

void ck_pipeline(ck *c, const ast_pent *e)
{
    static const char *const names[] = {"schedule", "microbatches", "stages",
                                        "memory"};
    nd_plan *p = &c->m->plan;
    nd_mesh *m = &c->m->mesh;
    const ast_rule *r = &e->rules->v[0];
    ast_expr *slot[4];
    if (p->piped.n) {
        ck_say(c, e->loc, "a second `pipeline`");
        ck_note(c, p->pipe_loc, "the first one is here");
        return;
    }
    if (r->to->n != 1) {
        ck_say(c, r->loc, "a pipeline is over one mesh axis");
        return;
    }
    int k = ck_mesh_axis(c, r->to->v[0]);
    if (!piped_axes(c, r->from) || k < 0)
        return;
    p->pipe_loc = r->loc;
    m->pipe = k;
    if (!ck_cfg_args(c, "pipeline", e->kvs, names, 4, slot))
        return;
    p->schedule_loc = slot[0] ? slot[0]->loc : r->loc;
    if (slot[0])
        schedule(c, slot[0]);
    if (slot[1])
        ck_microbatches(c, slot[1]);
    else if (!p->micro_loc.file)
        p->microbatches = (int)(count_stages(c) ? count_stages(c)
                                                : m->size[k]);
    if (slot[2])
        stages(c, slot[2]);
    check_empty(c);
    if (slot[3])
        ck_cfg_at_least(c, slot[3], 1, &p->memory);
}

/* Its doc says what is new about it, before the paper. */
static void warn_of_meaning(ck *c)
{
    const sched_info *k = &sched_kinds[c->m->plan.schedule];
    nd_warning(c->ctx, c->m->plan.schedule_loc, "`%s` changes what is "
               "computed: %.*s", k->name, (int)strcspn(k->doc, ";"), k->doc);
    if (c->m->plan.schedule == SCHED_KIND_PIPEDREAM && c->m->train.clip > 0)
        ck_say(c, c->m->plan.schedule_loc, "`clip` limits the norm over all "
               "stages, which `%s` updates one before the other: leave it out, "
               "or take `pipedream_2bw`", k->name);
}

/* Once the number of microbatches is known: can the schedule have them? */
void ck_pipeline_numbers(ck *c)
{
    const nd_plan *p = &c->m->plan;
    sched_error err;
    if (!p->piped.n)
        return;
    sched_ask ask = {.kind = p->schedule, .v = p->per_device,
                     .ranks = c->m->mesh.size[c->m->mesh.pipe],
                     .micro = p->microbatches};
    if (p->schedule < SCHED_NKINDS && ask.ranks > 1 &&
        !sched_legal(&ask, &err)) {
        ck_say(c, p->schedule_loc, "%s", err.text);
        return;
    }
    if (sched_has(p->schedule, 'a'))
        warn_of_meaning(c);
}

/* An axis or a mesh axis in both pipeline and shard. */
void ck_pipeline_conflicts(ck *c)
{
    const nd_plan *p = &c->m->plan;
    const nd_mesh *m = &c->m->mesh;
    for (int i = 0; p->piped.n && i < p->rules.n; i++) {
        const nd_rule *r = &p->rules.v[i];
        if (nd_is_piped(c->m, r->axis)) {
            ck_say(c, r->loc, "`%s` is cut in pipeline stages and "
                   "cannot be in `shard`", r->axis->name);
            ck_note(c, p->pipe_loc, "the pipeline is here");
        }
        for (int k = 0; k < r->mesh.n; k++)
            if (r->mesh.m[k] == m->pipe) {
                ck_say(c, r->loc, "the mesh axis `%s` holds the "
                       "pipeline stages and cannot be in `shard`",
                       m->name[m->pipe]);
                ck_note(c, p->pipe_loc, "the pipeline is here");
            }
    }
}
