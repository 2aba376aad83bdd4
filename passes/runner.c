/* runner.c - runs the passes of passes.def in order, with their state bits
 * checked before, set after, and the module verified in between.
 */
#include <string.h>

#include "passes.h"

typedef struct pass {
    const char *name;
    bool (*run)(nd_module *, const nd_options *);
    uint32_t requires, ensures;
    const char *summary;
} pass;

static const pass passes[] = {
#define PASS(name, fn, requires, ensures, summary) \
    {name, fn, requires, ensures, summary},
#include "passes.def"
#undef PASS
};
enum { NPASSES = sizeof passes / sizeof *passes };

static void dump(nd_module *m, const nd_options *o, const pass *p)
{
    if (!o->dump_after || (strcmp(o->dump_after, "all") &&
                           strcmp(o->dump_after, p->name)))
        return;
    nd_buf b = {.arena = m->ctx->arena};
    nd_print(&b, m);
    FILE *out = o->dump_to ? o->dump_to : stderr;
    fprintf(out, "# ---- after %s ----\n%s", p->name, b.s ? b.s : "");
}

/* What a pass establishes is proved before anyone relies on it; other passes
 * are checked on request. A module that does not verify is a fault of the pass
 * and not of the user's program: say whose. */
static bool run_one(nd_module *m, const nd_options *o, const pass *p)
{
    if ((m->state & p->requires) != p->requires) {
        nd_error(m->ctx, m->plan.loc,
                 "pass `%s` needs a pass that has not run", p->name);
        return false;
    }
    if (p->ensures & ND_IS_SHARDED)
        m->meaning = nd_meaning(m);
    if (!p->run(m, o))
        return false;
    m->state |= p->ensures;
    dump(m, o, p);
    if ((o->verify_each || p->ensures) && !nd_verify(m)) {
        nd_note(m->ctx, m->plan.loc,
                "found after pass `%s`: a fault of ndc, please report it",
                p->name);
        return false;
    }
    if (m->meaning && m->meaning != nd_meaning(m)) {
        nd_error(m->ctx, m->plan.loc, "pass `%s` changed what the program "
                 "computes: a fault of ndc, please report it", p->name);
        return false;
    }
    return true;
}

bool nd_run_until(nd_module *m, const nd_options *o, const char *last)
{
    int end = NPASSES;
    if (last) {
        const char *names[NPASSES];
        for (int i = 0; i < NPASSES; i++) {
            names[i] = passes[i].name;
            if (!strcmp(last, passes[i].name))
                end = i + 1;
        }
        if (end == NPASSES && strcmp(last, passes[NPASSES - 1].name)) {
            const char *near = nd_nearest(last, names, NPASSES);
            nd_error(m->ctx, (nd_loc){0}, "no pass is called `%s`%s%s%s", last,
                     near ? "; did you mean `" : "", near ? near : "",
                     near ? "`?" : "");
            return false;
        }
    }
    for (int i = 0; i < end; i++) {
        /* A module read from its text form starts where it was printed. */
        uint32_t gives = passes[i].ensures;
        if (gives && (m->state & gives) == gives)
            continue;
        if (!run_one(m, o, &passes[i]))
            return false;
    }
    return true;
}

bool nd_run_from(nd_module *m, const nd_options *o, const char *first)
{
    int i = 0;
    while (strcmp(first, passes[i].name))
        i++;
    for (; i < NPASSES; i++)
        if (!run_one(m, o, &passes[i]))
            return false;
    return true;
}

static void ignore(void *user, nd_severity sev, const char *text)
{
    (void)user;
    (void)sev;
    (void)text;
}

bool nd_run_quietly(nd_module *m, const nd_options *o, const char *first)
{
    nd_ctx *x = m->ctx, was = *x;
    nd_options plain = {.verify_each = o && o->verify_each,
                        .times = o ? o->times : NULL};
    x->sink = ignore;
    bool ok = nd_run_from(m, &plain, first);
    x->sink = was.sink;
    x->nerrors = was.nerrors;
    x->nwarnings = was.nwarnings;
    x->muted = was.muted;
    x->note_file = was.note_file;
    return ok;
}

bool nd_run_passes(nd_module *m, const nd_options *o)
{
    return nd_run_until(m, o, NULL);
}

void nd_list_passes(FILE *out)
{
    for (int i = 0; i < NPASSES; i++)
        fprintf(out, "%-10s %s\n", passes[i].name, passes[i].summary);
}
