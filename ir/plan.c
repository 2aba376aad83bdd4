/* plan.c - which rule of the plan cuts an axis.
 *
 *   axis key = seq      shard seq -> cp
 *   rule of key: none   rule over key: seq -> cp
 *
 * Scoped rules cut how parameters are stored and are not meant here. And what
 * its schedule is called, and how a fault of one is told.
 */
#include "ir.h"

#include <stdlib.h>
#include <string.h>

const char *nd_schedule_name(nd_arena *a, const nd_plan *p)
{
    int v = p->per_device;
    if (p->schedule == SCHED_KIND_FILE)
        return nd_fmt(a, v ? "file(\"%s\", %d)" : "file(\"%s\")",
                      p->schedule_file, v);
    if (p->schedule == SCHED_KIND_AUTO)
        return v ? nd_fmt(a, "auto(%d)", v) : "auto";
    const sched_info *k = &sched_kinds[p->schedule];
    return k->v ? k->name : nd_fmt(a, "%s(%d)", k->name, v);
}

bool nd_schedule_error(nd_ctx *c, nd_loc at, const char *what, const sched *s,
                       const sched_error *e)
{
    nd_error(c, at, "%s: %s", what, e->text);
    char *table = s ? sched_table_around(s, e) : NULL;
    for (char *line = table, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        nd_note(c, nd_nowhere, "%.*s", (int)(end - line), line);
    }
    free(table);
    return false;
}

const nd_rule *nd_rule_of(const nd_plan *p, const nd_axis *a)
{
    for (int i = 0; i < p->rules.n; i++)
        if (p->rules.v[i].axis == a && p->rules.v[i].scope == SCOPE_ALL)
            return &p->rules.v[i];
    return NULL;
}

const nd_rule *nd_rule_over(const nd_plan *p, const nd_axis *a)
{
    const nd_rule *r = NULL;
    for (; a && !r; a = a->like)
        r = nd_rule_of(p, a);
    return r;
}

bool nd_runs_again(const nd_plan *p, int stage)
{
    return stage < p->nagain && p->again[stage];
}
