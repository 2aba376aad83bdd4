/* verify_sizes.c - small sizes that mean the same to a plan.
 *
 *   axis vocab = 50257, cut over tp = 4   -> 9 = 2 * 4 + 1: one element over
 *   axis heads = 12, cut over tp = 4      -> 12: three for each, evenly
 *   axis d = 768, cut by nothing          -> 24: head = d / heads, two parts
 *
 * Every axis that the file declares by a number is tried with ascending sizes,
 * and the program is compiled with each. A size will do if for every cut in
 * the sharded program, into p pieces, each axis keeps its remainder over p and
 * has pieces of two elements where it had as many, and if the collectives are
 * those of the program as it is. Other axes follow as they are declared
 * (`axis head = d / heads`), which is why all axes of the module are looked
 * at. Where no small size gives the same collectives, because costs decided
 * some of them, the same cuts will do.
 *
 * Axes are taken in turn until none gets smaller. Stages, microbatches and the
 * mesh stay as they are.
 */
#include "frontend.h"
#include "../passes/passes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_REPEAT = 2, TRIES = 64, PIECE = 2 };

/* ---- compiling ----------------------------------------------------------- */

typedef struct errors {
    nd_buf text;
    bool note;                       /* a note now belongs to an error */
} errors;

static void keep_errors(void *user, nd_severity s, const char *text)
{
    errors *e = user;
    e->note = s == ND_ERROR || (s == ND_NOTE && e->note);
    if (e->note)
        nd_put(&e->text, text);
}

nd_module *vf_compile(const vf_request *q, const nd_front_options *front,
                      const char *last, const char **why)
{
    nd_ctx *c = nd_ctx_new();
    errors e = {.text = {.arena = q->arena}};
    nd_options o = {0};
    c->sink = keep_errors;
    c->sink_user = &e;
    int file = nd_read_file(c, q->path), unread = errno;
    nd_module *m = file ? nd_frontend(c, file, front) : NULL;
    if (m && last && !nd_run_until(m, &o, strcmp(last, "all") ? last : NULL))
        m = NULL;
    if (m && !c->nerrors) {
        c->sink = NULL;              /* what comes later is for the user */
        return m;
    }
    *why = e.text.n ? e.text.s : nd_fmt(q->arena, "ndc: error: cannot read "
                                        "`%s`: %s\n", q->path,
                                        strerror(unread));
    nd_ctx_free(c);
    return NULL;
}

nd_front_options vf_sized(const vf_request *q, int n, const vf_size *size)
{
    nd_front_options f = q->front;
    const char **set = ND_NEWN(q->arena, const char *, n + f.nset + 1);
    f.nset = 0;
    for (int i = 0; i < n; i++)
        set[f.nset++] = nd_fmt(q->arena, "%s=%lld", size[i].axis,
                               (long long)size[i].is);
    f.set = set;
    return f;
}

/* ---- what a plan asks of sizes ------------------------------------------- */

typedef struct need {
    const char *axis;
    int64_t size;
    int64_t pieces;                  /* of a cut, or the first part of it */
} need;

typedef struct plan_needs {
    const vf_request *q;
    const nd_module *m;
    ND_VEC(need) v;
    nd_table repeats;                /* axes of repeats, by name */
    nd_buf collectives;
} plan_needs;

static void add_need(plan_needs *n, const nd_axis *a, int64_t pieces)
{
    for (int i = 0; i < n->v.n; i++)
        if (!strcmp(n->v.v[i].axis, a->name) && n->v.v[i].pieces == pieces)
            return;
    need x = {nd_strdup(n->q->arena, a->name), a->size, pieces};
    ND_PUSH(n->q->arena, &n->v, x);
}

static void needs_of_type(plan_needs *n, const nd_type *t)
{
    for (int i = 0; i < t->rank; i++) {
        int64_t pieces = 1;
        for (int j = 0; j < t->cut[i].n; j++) {
            pieces *= n->m->mesh.size[t->cut[i].m[j]];
            if (pieces > 1)
                add_need(n, t->axis[i], pieces);
        }
    }
}

static void needs_of_op(nd_op *op, void *user)
{
    plan_needs *n = user;
    for (int i = 0; i < op->nout; i++)
        needs_of_type(n, &op->out[i]->type);
    for (int i = 0; op->body && i < op->body->args.n; i++)
        needs_of_type(n, &op->body->args.v[i]->type);
    if (op->body)
        nd_table_put(&n->repeats, nd_strdup(n->q->arena, op->axes[0]->name),
                     n);
    if (!nd_has_trait(op, 'k') && op->kind != OP_SLICE)
        return;
    nd_putf(&n->collectives, "%s %x ", nd_op_name(op), op->mesh);
    nd_print_type(&n->collectives, n->m, &op->out[0]->type);
    nd_put(&n->collectives, "\n");
}

static plan_needs needs_of(const vf_request *q, const nd_module *m)
{
    plan_needs n = {.q = q, .m = m, .repeats = {.arena = q->arena,
                                                .strings = true},
                    .collectives = {.arena = q->arena}};
    nd_put(&n.collectives, "");
    nd_walk(m->step, needs_of_op, &n);
    for (int i = 0; i < m->params.n; i++)
        needs_of_type(&n, &m->params.v[i]->grad);
    for (int i = 0; i < m->plan.piped.n && m->program; i++)
        add_need(&n, m->plan.piped.v[i], m->program->nstages);
    return n;
}

static int64_t at_most(int64_t x, int64_t most)
{
    return x < most ? x : most;
}

static bool will_do(const need *n, int64_t size)
{
    return size % n->pieces == n->size % n->pieces &&
           at_most(size / n->pieces, PIECE) ==
               at_most(n->size / n->pieces, PIECE);
}

static bool sizes_will_do(const plan_needs *n, const nd_module *was,
                          const nd_module *m)
{
    nd_table is = {.arena = n->q->arena, .strings = true};
    for (int i = 0; i < m->axes.n; i++)
        nd_table_put(&is, m->axes.v[i]->name, m->axes.v[i]);
    for (int i = 0; i < n->v.n; i++) {
        const nd_axis *a = nd_table_get(&is, n->v.v[i].axis);
        if (a && !will_do(&n->v.v[i], a->size))
            return false;
    }
    for (int i = 0; i < was->axes.n; i++) {
        const nd_axis *a = nd_table_get(&is, was->axes.v[i]->name);
        if (a && a->size < at_most(was->axes.v[i]->size, VF_LEAST - 1))
            return false;
    }
    return true;
}

/* ---- trying -------------------------------------------------------------- */

typedef struct search {
    const vf_request *q;
    nd_module *was;                  /* the program as it is */
    plan_needs needs;
    bool strict;                     /* the same collectives */
    int least;                       /* where the sizes that are tried begin */
    int n;
    vf_size *size;
} search;

static bool same_plan(const search *s, const plan_needs *b)
{
    const plan_needs *a = &s->needs;
    if (s->strict && strcmp(a->collectives.s, b->collectives.s))
        return false;
    bool same = a->v.n == b->v.n;
    for (int i = 0; same && i < b->v.n; i++) {
        bool found = false;
        for (int k = 0; k < a->v.n; k++)
            found |= !strcmp(a->v.v[k].axis, b->v.v[i].axis) &&
                     a->v.v[k].pieces == b->v.v[i].pieces &&
                     will_do(&a->v.v[k], b->v.v[i].size);
        same = found;
    }
    return same;
}

/* The sizes alone first: the passes take longer than the frontend. */
static bool try_sizes(const search *s)
{
    const char *why;
    nd_front_options f = vf_sized(s->q, s->n, s->size);
    nd_module *m = vf_compile(s->q, &f, NULL, &why);
    bool ok = m && sizes_will_do(&s->needs, s->was, m);
    if (m)
        nd_ctx_free(m->ctx);
    m = ok ? vf_compile(s->q, &f, "all", &why) : NULL;
    if (!m)
        return false;
    plan_needs n = needs_of(s->q, m);
    ok = same_plan(s, &n);
    nd_ctx_free(m->ctx);
    return ok;
}

static bool shrink_axis(search *s, vf_size *z)
{
    int64_t was = z->is;
    bool repeat = nd_table_get(&s->needs.repeats, z->axis);
    int tries = 0;
    for (z->is = repeat ? LEAST_REPEAT : s->least; z->is < was; z->is++) {
        bool fits = true;
        for (int i = 0; i < s->needs.v.n; i++)
            if (!strcmp(s->needs.v.v[i].axis, z->axis))
                fits &= will_do(&s->needs.v.v[i], z->is);
        if (!fits)
            continue;
        if (try_sizes(s))
            return true;
        if (++tries == TRIES)
            break;
    }
    z->is = was;
    return false;
}

/* The axes of the file whose sizes are numbers, its own or the user's. */
static void find_axes(search *s, const ast_file *f)
{
    const nd_front_options *o = &s->q->front;
    s->size = ND_NEWN(s->q->arena, vf_size, f->decls.n + 1);
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        if (d->kind != I_AXIS)
            continue;
        int64_t size = d->value->kind == E_NUM && d->value->integer
                           ? d->value->inum : 0;
        size_t n = strlen(d->name.s);
        for (int k = 0; k < o->nset; k++)
            if (!strncmp(o->set[k], d->name.s, n) && o->set[k][n] == '=')
                size = strtoll(o->set[k] + n + 1, NULL, 10);
        if (size)
            s->size[s->n++] = (vf_size){nd_strdup(s->q->arena, d->name.s),
                                        size, size};
    }
}

int vf_shrink(const vf_request *q, nd_module *m, int least, vf_size **out)
{
    search s = {.q = q, .was = m, .needs = needs_of(q, m), .least = least};
    nd_ctx *c = nd_ctx_new();
    int file = nd_read_file(c, q->path);
    const ast_file *f = file ? nd_parse(c, file) : NULL;
    if (f)
        find_axes(&s, f);
    nd_ctx_free(c);
    for (int loose = 0; loose < 2; loose++) {
        s.strict = !loose;
        for (bool smaller = true; smaller;) {
            smaller = false;
            for (int i = 0; i < s.n; i++)
                if (!loose || s.size[i].is > TRIES)
                    smaller |= shrink_axis(&s, &s.size[i]);
        }
    }
    *out = s.size;
    return s.n;
}
