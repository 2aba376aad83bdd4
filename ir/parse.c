/* parse.c - reads the text form: all but the ops, which parse_op.c reads.
 *
 * Grammar (print.c shows an example; { } repeats, [ ] may be absent):
 *
 *   module  = "module" name {head} "step" "{" block "}" {grad}
 *   head    = "axis" name "=" int ["like" axis] | "sample" axis
 *           | "mesh" name "=" int {"," name "=" int} | "pipe" mesh
 *           | "route" axis "to" axis "over" mesh ":" type
 *           | "rule" [scope | string] axis "->" cut
 *           | "pipeline" axis ["->" mesh] {"," option} | "microbatches" int
 *           | "zero" int "over" cut | "recompute" name
 *             [number] ["again" int { "," int }]
 *           | "context" name ["zigzag"] "over" mesh
 *           | "state" name {"," name}
 *   grad    = "grad" string ":" type
 *   type    = dtype ["[" axis ["/" cut] {"," axis ["/" cut]} "]"]
 *             {"+" mesh} {"^" mesh}
 *   cut     = mesh | "(" mesh {"," mesh} ")"
 *
 * The text may come from anywhere: whatever it says, the reader reports the
 * first error with its place and gives up. What the reader accepts has known
 * names and right arities; types are the verifier's business.
 */
#include "parse.h"

#include <stdlib.h>
#include <string.h>

/* ---- tokens -------------------------------------------------------------- */

void nd_rd_fail(nd_reader *r, nd_loc at, const char *fmt, ...)
{
    if (r->failed)
        return;
    r->failed = true;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    nd_error(r->c, at, "%s", text);
}

void nd_rd_next(nd_reader *r)
{
    r->prev = r->tok;
    r->tok = nd_lex(&r->lex);
}

/* After a failure nothing matches any more, so every loop ends. */
bool nd_rd_is(nd_reader *r, int kind)
{
    return !r->failed && (int)r->tok.kind == kind;
}

bool nd_rd_word(nd_reader *r, const char *w)
{
    return nd_rd_is(r, T_WORD) && strcmp(r->tok.text, w) == 0;
}

bool nd_rd_take(nd_reader *r, int kind)
{
    if (!nd_rd_is(r, kind))
        return false;
    nd_rd_next(r);
    return true;
}

bool nd_rd_take_word(nd_reader *r, const char *w)
{
    if (!nd_rd_word(r, w))
        return false;
    nd_rd_next(r);
    return true;
}

void nd_rd_expect(nd_reader *r, int kind, const char *what)
{
    if (!nd_rd_take(r, kind))
        nd_rd_fail(r, r->tok.loc, "expected %s, found `%.40s`", what,
                   r->tok.text);
}

const char *nd_rd_name(nd_reader *r, const char *what)
{
    nd_rd_expect(r, T_WORD, what);
    return r->failed ? "" : r->prev.text;
}

const char *nd_rd_string(nd_reader *r)
{
    nd_rd_expect(r, T_STRING, "a name in quotes");
    return r->failed ? "" : r->prev.text;
}

double nd_rd_num(nd_reader *r)
{
    nd_rd_expect(r, T_WORD, "a number");
    if (r->failed)
        return 0;
    char *end;
    double x = strtod(r->prev.text, &end);
    if (*end)
        nd_rd_fail(r, r->prev.loc, "`%.40s` is not a number", r->prev.text);
    return x;
}

int64_t nd_rd_int(nd_reader *r, int64_t lo, int64_t hi, const char *what)
{
    nd_rd_expect(r, T_WORD, what);
    if (r->failed)
        return lo;
    char *end;
    long long x = strtoll(r->prev.text, &end, 10);
    if (*end || x < lo || x > hi) {
        nd_rd_fail(r, r->prev.loc, "expected %s from %lld to %lld, found "
                   "`%.40s`", what, (long long)lo, (long long)hi,
                   r->prev.text);
        return lo;
    }
    return x;
}

int nd_rd_choice(nd_reader *r, const char *const *names, const char *what)
{
    const char *s = nd_rd_name(r, what);
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], s) == 0)
            return i;
    nd_rd_fail(r, r->prev.loc, "`%.40s` is not %s", s, what);
    return 0;
}

/* ---- axes, mesh, types --------------------------------------------------- */

nd_axis *nd_rd_axis(nd_reader *r)
{
    const char *s = nd_rd_name(r, "an axis");
    nd_axis *a = nd_table_get(&r->axes, s);
    if (!a)
        nd_rd_fail(r, r->prev.loc, "no axis is called `%.40s`", s);
    return a;
}

int nd_rd_mesh(nd_reader *r)
{
    const char *s = nd_rd_name(r, "a mesh axis");
    int i = nd_mesh_find(&r->m->mesh, s);
    if (i < 0)
        nd_rd_fail(r, r->prev.loc, "the mesh has no axis `%.40s`", s);
    return i < 0 ? 0 : i;
}

nd_cut nd_rd_cut(nd_reader *r)
{
    nd_cut c = {0};
    bool many = nd_rd_take(r, '(');
    do {
        int i = nd_rd_mesh(r);
        if (c.n == ND_MAX_CUT)
            nd_rd_fail(r, r->prev.loc, "more than %d mesh axes cut one axis",
                       ND_MAX_CUT);
        else
            c.m[c.n++] = (uint8_t)i;
    } while (many && nd_rd_take(r, ','));
    if (many)
        nd_rd_expect(r, ')', "`)`");
    return c;
}

uint32_t nd_rd_mask(nd_reader *r)
{
    nd_cut c = nd_rd_cut(r);
    uint32_t mask = 0;
    for (int i = 0; i < c.n; i++)
        mask |= 1u << c.m[i];
    return mask;
}

nd_type nd_rd_type(nd_reader *r)
{
    nd_type t = {0};
    const char *s = nd_rd_name(r, "a type");
    if (!nd_dtype_parse(s, &t.dtype))
        nd_rd_fail(r, r->prev.loc, "`%.40s` is not a dtype", s);
    if (nd_rd_take(r, '[')) {
        do {
            nd_axis *a = nd_rd_axis(r);
            if (t.rank == ND_MAX_RANK)
                nd_rd_fail(r, r->prev.loc, "more than %d axes", ND_MAX_RANK);
            if (a && nd_axis_at(&t, a) >= 0)
                nd_rd_fail(r, r->prev.loc, "axis `%s` twice in one type",
                           a->name);
            if (r->failed)
                return t;
            t.axis[t.rank] = a;
            if (nd_rd_take(r, '/'))
                t.cut[t.rank] = nd_rd_cut(r);
            t.rank++;
        } while (nd_rd_take(r, ','));
        nd_rd_expect(r, ']', "`]`");
    }
    while (nd_rd_take(r, '+'))
        t.sum |= 1u << nd_rd_mesh(r);
    while (nd_rd_take(r, '^'))
        t.max |= 1u << nd_rd_mesh(r);
    return t;
}

/* ---- the head ------------------------------------------------------------ */

static void read_axis(nd_reader *r)
{
    const char *name = nd_rd_name(r, "a name for the axis");
    nd_loc at = r->prev.loc;
    if (nd_table_get(&r->axes, name))
        nd_rd_fail(r, at, "axis `%.40s` is declared twice", name);
    nd_rd_expect(r, '=', "`=`");
    int64_t size = nd_rd_int(r, 1, (int64_t)1 << 40, "a size");
    nd_axis *like = nd_rd_take_word(r, "like") ? nd_rd_axis(r) : NULL;
    if (r->failed)
        return;
    nd_axis *a = nd_axis_new(r->m, name, size, at);
    a->like = like;
    nd_table_put(&r->axes, a->name, a);
}

static void read_mesh(nd_reader *r)
{
    nd_mesh *s = &r->m->mesh;
    int64_t ranks = 1;
    *s = (nd_mesh){.pipe = -1};
    do {
        const char *name = nd_rd_name(r, "a name for the mesh axis");
        if (s->n == ND_MAX_MESH || nd_mesh_find(s, name) >= 0)
            nd_rd_fail(r, r->prev.loc, s->n == ND_MAX_MESH
                       ? "too many mesh axes" : "this mesh axis stands twice");
        nd_rd_expect(r, '=', "`=`");
        int size = (int)nd_rd_int(r, 1, 1 << 16, "a size");
        ranks *= size;
        if (ranks > 1 << 20)
            nd_rd_fail(r, r->prev.loc, "the mesh has too many ranks");
        if (r->failed)
            return;
        s->name[s->n] = name;
        s->size[s->n++] = size;
    } while (nd_rd_take(r, ','));
    s->micro = s->n - 1;
    if (strcmp(s->name[s->micro], "micro") != 0)
        nd_rd_fail(r, r->prev.loc, "the last mesh axis is not `micro`");
}

static void read_pipe(nd_reader *r)
{
    int i = nd_rd_mesh(r);
    if (i == r->m->mesh.micro)
        nd_rd_fail(r, r->prev.loc, "stages cannot be microbatches");
    r->m->mesh.pipe = i;
}

static void read_route(nd_reader *r)
{
    nd_axis *a = nd_rd_axis(r);
    nd_route *t = ND_NEW(r->c->arena, nd_route);
    if (!nd_rd_take_word(r, "to"))
        nd_rd_fail(r, r->tok.loc, "expected `to` and the axis of experts");
    t->experts = nd_rd_axis(r);
    if (!nd_rd_take_word(r, "over"))
        nd_rd_fail(r, r->tok.loc, "expected `over` and a mesh axis");
    t->over = nd_rd_mesh(r);
    nd_rd_expect(r, ':', "`:` and the rows");
    t->rows = nd_rd_type(r);
    if (r->failed)
        return;
    int cuts = 0;
    for (int i = 0; i < t->rows.rank; i++)
        cuts += t->rows.cut[i].n;
    uint32_t mask = nd_cut_mask(&t->rows);
    if (cuts > ND_MAX_CUT || !(mask >> t->over & 1) || t->rows.sum ||
        nd_route_size(&r->m->mesh, t) != a->size)
        nd_rd_fail(r, r->prev.loc, "`%s` is not as long as these rows need",
                   a->name);
    a->route = t;
}

static void read_rule(nd_reader *r)
{
    nd_rule u = {.loc = r->prev.loc};
    if (nd_rd_is(r, T_STRING)) {
        u.scope = SCOPE_NAME;
        u.pattern = nd_rd_string(r);
    } else {
        for (int i = SCOPE_PARAMS; nd_scope_names[i]; i++)
            if (nd_rd_word(r, nd_scope_names[i]) &&
                !nd_table_get(&r->axes, nd_scope_names[i])) {
                u.scope = (nd_scope)i;
                nd_rd_next(r);
                break;
            }
    }
    u.axis = nd_rd_axis(r);
    nd_rd_expect(r, T_ARROW, "`->`");
    u.mesh = nd_rd_cut(r);
    if (!r->failed)
        ND_PUSH(r->c->arena, &r->m->plan.rules, u);
}

static void read_stages(nd_reader *r)
{
    nd_plan *p = &r->m->plan;
    ND_VEC(int) v = {0};
    nd_rd_expect(r, '[', "`[`");
    do {
        int k = (int)nd_rd_int(r, 0, 1 << 20, "iterations");
        ND_PUSH(r->c->arena, &v, k);
    } while (nd_rd_take(r, ','));
    nd_rd_expect(r, ']', "`]`");
    p->stages_given = v.v;
    p->nstages_given = v.n;
}

static int read_per_device(nd_reader *r)
{
    return (int)nd_rd_int(r, 1, 1 << 10, "stages per device");
}

/* 1f1b, interleaved(2), file("x.csv") */
static void read_schedule(nd_reader *r)
{
    nd_plan *p = &r->m->plan;
    const char *name = nd_rd_name(r, "a schedule");
    nd_loc at = p->schedule_loc = r->prev.loc;
    bool args = nd_rd_take(r, '(');
    if (args && strcmp(name, "file") == 0) {
        p->schedule = SCHED_KIND_FILE;
        p->schedule_file = nd_rd_string(r);
        if (nd_rd_take(r, ','))
            p->per_device = read_per_device(r);
        nd_rd_expect(r, ')', "`)`");
        return;
    }
    if (args) {
        name = nd_fmt(r->c->arena, "%s(%d)", name, read_per_device(r));
        nd_rd_expect(r, ')', "`)`");
    }
    if (!r->failed && !sched_parse_name(name, &p->schedule, &p->per_device))
        nd_rd_fail(r, at, "expected a schedule, found `%.40s`", name);
}

static void read_pipeline(nd_reader *r)
{
    nd_plan *p = &r->m->plan;
    p->pipe_loc = r->prev.loc;
    do
        ND_PUSH(r->c->arena, &p->piped, nd_rd_axis(r));
    while (nd_rd_take(r, '+'));
    if (nd_rd_take(r, T_ARROW))
        read_pipe(r);
    while (nd_rd_take(r, ',')) {
        const char *what = nd_rd_name(r, "an option");
        nd_loc at = r->prev.loc;
        nd_rd_expect(r, '=', "`=`");
        if (strcmp(what, "schedule") == 0)
            read_schedule(r);
        else if (strcmp(what, "microbatches") == 0)
            p->microbatches = (int)nd_rd_int(r, 1, 1 << 20, "a number");
        else if (strcmp(what, "stages") == 0)
            read_stages(r);
        else if (strcmp(what, "memory") == 0)
            p->memory = nd_rd_num(r);
        else
            nd_rd_fail(r, at, "`%.40s` is not an option of pipeline", what);
    }
}

static void read_zero(nd_reader *r)
{
    nd_plan *p = &r->m->plan;
    p->zero_loc = r->prev.loc;
    p->zero = (int)nd_rd_int(r, 0, 3, "a level");
    if (!nd_rd_take_word(r, "over"))
        nd_rd_fail(r, r->tok.loc, "expected `over`");
    p->zero_mesh = nd_rd_mask(r);
}

static void read_context(nd_reader *r)
{
    nd_context x = {.loc = r->prev.loc};
    x.form = (nd_context_form)nd_rd_choice(r, nd_context_names, "a form");
    x.zigzag = nd_rd_take_word(r, "zigzag");
    if (!nd_rd_take_word(r, "over"))
        nd_rd_fail(r, r->tok.loc, "expected `over`");
    uint32_t mask = nd_rd_mask(r);
    while (!r->failed && x.mesh < r->m->mesh.n && !(mask >> x.mesh & 1))
        x.mesh++;
    if (!r->failed)
        ND_PUSH(r->c->arena, &r->m->plan.context, x);
}

static void read_recompute(nd_reader *r)
{
    enum { MOST = 1 << 15 };
    nd_plan *p = &r->m->plan;
    p->remat_loc = r->prev.loc;
    p->recompute = (nd_remat)nd_rd_choice(r, nd_remat_names,
                                          "a kind of recompute");
    if (p->recompute == REMAT_AUTO)
        p->room = nd_rd_num(r);
    if (!nd_rd_take_word(r, "again"))
        return;
    p->again = ND_NEWN(r->c->arena, bool, MOST);
    do {
        int s = (int)nd_rd_int(r, 0, MOST - 1, "a stage");
        p->again[s] = !r->failed;
        p->nagain = s >= p->nagain ? s + 1 : p->nagain;
    } while (!r->failed && nd_rd_take(r, ','));
}

static void read_state(nd_reader *r)
{
    static const char *const bits[] = {"grads", "phases", "sharded", NULL};
    do
        r->m->state |= 1u << nd_rd_choice(r, bits, "a state");
    while (nd_rd_take(r, ','));
}

static bool read_head(nd_reader *r)
{
    if (nd_rd_take_word(r, "axis"))
        read_axis(r);
    else if (nd_rd_take_word(r, "sample"))
        r->m->sample = nd_rd_axis(r);
    else if (nd_rd_take_word(r, "mesh"))
        read_mesh(r);
    else if (nd_rd_take_word(r, "pipe"))
        read_pipe(r);
    else if (nd_rd_take_word(r, "route"))
        read_route(r);
    else if (nd_rd_take_word(r, "rule"))
        read_rule(r);
    else if (nd_rd_take_word(r, "pipeline"))
        read_pipeline(r);
    else if (nd_rd_take_word(r, "microbatches"))
        r->m->plan.microbatches = (int)nd_rd_int(r, 1, 1 << 20, "a number");
    else if (nd_rd_take_word(r, "zero"))
        read_zero(r);
    else if (nd_rd_take_word(r, "recompute"))
        read_recompute(r);
    else if (nd_rd_take_word(r, "context"))
        read_context(r);
    else if (nd_rd_take_word(r, "state"))
        read_state(r);
    else
        return false;
    return !r->failed;
}

/* ---- the whole ----------------------------------------------------------- */

static void read_grad(nd_reader *r)
{
    const char *name = nd_rd_string(r);
    nd_loc at = r->prev.loc;
    nd_rd_expect(r, ':', "`:`");
    nd_type t = nd_rd_type(r);
    nd_param *p = nd_table_get(&r->params, name);
    if (p)
        p->grad = t;
    else
        nd_rd_fail(r, at, "no parameter is called `%.40s`", name);
}

static uint32_t implied(const nd_type *t)
{
    return nd_cut_mask(t) || t->sum || t->max ? ND_IS_SHARDED : 0;
}

/* A text written by hand may leave out `state`: cuts and pending sums say
 * that a module is sharded, gradients that autodiff ran. */
static void imply_state(nd_op *op, void *user)
{
    nd_reader *r = user;
    nd_module *m = r->m;
    for (int i = 0; i < op->nout; i++)
        m->state |= implied(&op->out[i]->type);
    if (op->kind == OP_ACCUM) {
        m->state |= ND_HAS_GRADS;
        op->param = nd_table_get(&r->params, op->name);
    }
    if (op->phase == PH_PRE)
        m->state |= ND_HAS_PHASES;
}

nd_module *nd_parse_ir(nd_ctx *c, int file)
{
    const nd_file *f = &c->files.v[file - 1];
    nd_reader r = {.c = c};
    r.lex = (nd_lexer){c->arena, f->text, f->len, 0, file};
    nd_table names = {.arena = c->arena, .strings = true};
    r.values = r.axes = r.params = names;
    nd_rd_next(&r);
    if (!nd_rd_take_word(&r, "module"))
        nd_rd_fail(&r, r.tok.loc, "expected `module`");
    const char *name = nd_rd_is(&r, T_STRING) ? nd_rd_string(&r)
                                              : nd_rd_name(&r, "a name");
    r.m = nd_module_new(c, name);
    while (read_head(&r))
        continue;
    if (!nd_rd_take_word(&r, "step"))
        nd_rd_fail(&r, r.tok.loc, "expected `step`, found `%.40s`",
                   r.tok.text);
    nd_rd_expect(&r, '{', "`{`");
    nd_rd_block(&r, r.m->step);
    while (nd_rd_take_word(&r, "grad"))
        read_grad(&r);
    if (!nd_rd_is(&r, T_END))
        nd_rd_fail(&r, r.tok.loc, "expected the end, found `%.40s`",
                   r.tok.text);
    if (r.failed)
        return NULL;
    nd_walk(r.m->step, imply_state, &r);
    return r.m;
}
