/* emit_calls.c - functions that call kernels: repeat bodies, stages.
 *
 *   static void layers_forward(ndrt_rank *r, int64_t l, const float *x,
 *                              float *x_next)
 *   {
 *       float *q = at(r, B_layers_attn_q);
 *       const float *q_w = weight(r, P_layers_attn_q_w) + l * 147456;
 *       layers_ln1_fwd(x, ..., h);
 *       ndrt_gemm(r, false, 1024, 384, 384, h, 384, 1, q_w, 384, 1, q, ...);
 *
 * A carried value alternates between two buffers so that the last iteration
 * writes the result; one that backward reads goes through its saved copies.
 */
#include "kir.h"

#include <string.h>

/* ---- pointers ----------------------------------------------------------- */

const char *cg_offset(cg_fn *f, const cg_target *r)
{
    nd_arena *a = f->g->a;
    const char *s = NULL;
    for (int i = 0; i < r->nterms; i++) {
        const nd_term *t = &r->term[i];
        if (t->turn) {
            const char *half = nd_fmt(a, "%s %% 2", cg_iter(f, t->repeat));
            s = cg_sum(a, s, cg_scaled(f, half, &t->stride));
            continue;
        }
        const char *base = cg_start(f, t->base), *x;
        x = t->repeat ? cg_iter(f, t->repeat) : cg_start(f, t->ext);
        if (strcmp(base, "0") != 0)
            x = nd_fmt(a, "(%s - %s)", x, base);
        s = cg_sum(a, s, cg_scaled(f, x, &t->stride));
    }
    return s;
}

static bool is_carry(const cg_target *r)
{
    return r->root == AT_CARRY_IN || r->root == AT_CARRY_OUT;
}

static const char *root_of(cg_fn *f, const cg_target *r)
{
    cg *g = f->g;
    if (is_carry(r)) {               /* a piece of a parameter of this body */
        cg_target whole = *r;
        whole.nterms = 0;
        return cg_pointer_at(f, &whole, false)->name;
    }
    const char *cast = r->dtype == ND_F32 || r->param ? ""
                       : nd_fmt(g->a, "(%s *)", cg_ctype(r->dtype));
    f->uses_rank = true;
    if (r->param) {
        bool w = r->root == AT_WEIGHT;
        *(w ? &g->uses_weight : &g->uses_gradient) = true;
        return nd_fmt(g->a, "%s(r, %s)", w ? "weight" : "gradient",
                      g->param_name[r->param->index]);
    }
    g->buffer_used[r->value->mark] = true;
    return nd_fmt(g->a, "%sat(r, B_%s)", cast, cg_value_name(g, r->value));
}

static void declare_pointers(cg_fn *f, nd_buf *out)
{
    nd_buf body = f->b;
    f->b = *out;
    for (int i = 0; i < f->ptrs.n; i++) {
        const cg_pointer p = f->ptrs.v[i];
        if (is_carry(&p.to) && p.to.nterms == 0)
            continue;
        const char *at = cg_offset(f, &p.to);
        cg_line(f, "%s%s *%s = %s%s%s;", p.written ? "" : "const ",
                cg_ctype(p.to.dtype), p.name, root_of(f, &p.to),
                at ? " + " : "", at ? at : "");
    }
    *out = f->b;
    f->b = body;
}

/* ---- calls -------------------------------------------------------------- */

const char *cg_call_loop(cg_fn *f, nd_kernel *k)
{
    cg_kernel *fn = cg_loop_kernel(f->g, k);
    nd_buf b = {.arena = f->g->a};
    nd_putf(&b, "%s(", fn->name);
    const char *sep = "";
    if (fn->needs_rank) {
        nd_put(&b, "r");
        f->uses_rank = true;
        sep = ", ";
    }
    for (int i = 0; i < fn->parts.n; i++) {
        const cg_used *x = &fn->parts.v[i];
        if (x->off)
            nd_putf(&b, "%s%s", sep, cg_start(f, x->ext));
        if (x->off && x->len)
            sep = ", ";
        if (x->len)
            nd_putf(&b, "%s%s", sep, cg_count(f, x->ext));
        sep = ", ";
    }
    for (int i = 0; i < fn->iters.n; i++, sep = ", ")
        nd_putf(&b, "%s%s", sep, cg_iter(f, fn->iters.v[i]));
    for (int i = 0; i < fn->ptrs.n; i++, sep = ", ")
        nd_putf(&b, "%s%s", sep,
                cg_pointer_at(f, &fn->ptrs.v[i].to, fn->ptrs.v[i].written)
                    ->name);
    nd_put(&b, ");");
    cg_line(f, "%s", b.s);
    return fn->name;
}

/* ---- repeats ------------------------------------------------------------ */

typedef struct carry {
    bool in, out;                    /* does the body read, write it */
    const char *x, *next, *tmp, *last, *init;
    nd_value *kept;
    nd_ref kept_ref;
    const char *kept_name;
} carry;

static cg_pointer *carry_pointer(const cg_body *b, const nd_op *op, int i,
                                 nd_root root)
{
    for (int j = 0; j < b->ptrs.n; j++)
        if (b->ptrs.v[j].to.root == root &&
            b->ptrs.v[j].to.value == op->body->args.v[i])
            return &b->ptrs.v[j];
    return NULL;
}

static nd_ref own_buffer(cg_fn *f, const nd_value *arg)
{
    nd_ref r;
    nd_ref_of(f->g->c, arg, &r);
    r.root = AT_BUFFER;
    return r;
}

static carry plan_carry(cg_fn *f, const cg_body *b, nd_op *op, int i,
                        int64_t n)
{
    cg *g = f->g;
    nd_value *arg = op->body->args.v[i];
    nd_ref init, last, tmp;
    carry c = {.in = carry_pointer(b, op, i, AT_CARRY_IN) != NULL,
               .out = carry_pointer(b, op, i, AT_CARRY_OUT) != NULL,
               .kept = nd_kept_carry(op, i)};
    nd_ref_of(g->c, op->in[i], &init);
    nd_ref_of(g->c, op->out[i], &last);
    c.init = cg_pointer_to(f, &init, false)->name;
    c.last = cg_pointer_to(f, &last, true)->name;
    const char *word = cg_word(g->a, arg->name ? arg->name : "x");
    if (c.in)
        c.x = cg_fresh(&f->names, nd_fmt(g->a, "%s_now", word));
    c.next = cg_fresh(&f->names, nd_fmt(g->a, "%s_next", word));
    if (c.kept) {
        nd_ref_of(g->c, c.kept, &c.kept_ref);
        c.kept_name = cg_pointer_to(f, &c.kept_ref, true)->name;
    } else if (n > 1) {
        tmp = own_buffer(f, arg);
        c.tmp = cg_pointer_to(f, &tmp, true)->name;
    }
    return c;
}

const char *cg_whole_bytes(cg_fn *f, const nd_value *v)
{
    nd_ref r;
    nd_ref_of(f->g->c, v, &r);
    return cg_bytes(f, &r);
}

/* Where the iteration writes: the result at the last one. */
static void declare_next(cg_fn *f, const carry *c, nd_op *op, int i,
                         int64_t lo, int64_t hi)
{
    const char *l = cg_iter(f, op), *type = cg_ctype(op->in[i]->type.dtype);
    bool rev = op->reverse;
    int64_t last = rev ? lo : hi - 1;
    if (hi - lo == 1) {
        cg_line(f, "%s *%s = %s;", type, c->next, c->last);
        return;
    }
    if (c->kept) {
        const nd_len *s = &c->kept_ref.stride[0];
        int64_t shift = (rev ? -1 : 1) - lo;
        const char *at = !shift ? l
                         : nd_fmt(f->g->a, "(%s %c %lld)", l,
                                  shift < 0 ? '-' : '+',
                                  (long long)(shift < 0 ? -shift : shift));
        cg_line(f, "%s *%s = %s %s %lld ? %s + %s : %s;", type, c->next, l,
                rev ? ">" : "<", (long long)last, c->kept_name,
                cg_scaled(f, at, s), c->last);
        return;
    }
    const char *left = rev ? (lo ? nd_fmt(f->g->a, "(%s - %lld)", l,
                                          (long long)lo)
                                 : l)
                           : nd_fmt(f->g->a, "(%lld - %s)", (long long)last, l);
    cg_line(f, "%s *%s = %s %% 2 ? %s : %s;", type, c->next, left, c->tmp,
            c->last);
}

static void call_body(cg_fn *f, const cg_body *b, nd_op *op, const carry *c)
{
    nd_buf s = {.arena = f->g->a};
    f->uses_rank = true;
    nd_putf(&s, "%s(r", b->name);
    for (int i = 0; i < b->iters.n; i++)
        nd_putf(&s, ", %s", cg_iter(f, b->iters.v[i]));
    for (int i = 0; i < b->ptrs.n; i++) {
        const cg_target *r = &b->ptrs.v[i].to;
        const char *name;
        if (r->value->owner != op->body)
            name = cg_pointer_at(f, r, r->root == AT_CARRY_OUT)->name;
        else if (r->root == AT_CARRY_IN)
            name = c[r->value->index].x;
        else
            name = c[r->value->index].next;
        nd_putf(&s, ", %s", name);
    }
    nd_put(&s, ");");
    cg_line(f, "%s", s.s);
}

/* A stage without iterations passes on what would be carried. */
static void pass_through(cg_fn *f, nd_op *op)
{
    for (int i = 0; i < op->ncarry; i++) {
        nd_ref init, last;
        nd_ref_of(f->g->c, op->in[i], &init);
        nd_ref_of(f->g->c, op->out[i], &last);
        f->uses_rank = true;
        cg_line(f, "ndrt_copy(r, %s, %s, %s);",
                cg_pointer_to(f, &last, true)->name,
                cg_pointer_to(f, &init, false)->name,
                cg_whole_bytes(f, op->in[i]));
    }
}

/* The pointer that the first iteration reads; a kept value begins with a copy
 * of the initial one at the first iteration's place. */
static void declare_first(cg_fn *f, const carry *c, nd_op *op, int i, int64_t n)
{
    const char *from = c->init;
    if (c->kept) {
        nd_len s = c->kept_ref.stride[0];
        const char *first = nd_fmt(f->g->a, "%lld",
                                   (long long)(op->reverse ? n - 1 : 0));
        from = cg_sum(f->g->a, c->kept_name, cg_scaled(f, first, &s));
        f->uses_rank = true;
        cg_line(f, "ndrt_copy(r, %s, %s, %s);", from, c->init,
                cg_whole_bytes(f, op->in[i]));
    }
    if (c->in)
        cg_line(f, "const %s *%s = %s;", cg_ctype(op->in[i]->type.dtype), c->x,
                from);
}

void cg_range(cg *g, const nd_op *repeat, int stage, int64_t *lo, int64_t *hi)
{
    nd_stage_range(g->m, stage, repeat->axes[0], lo, hi);
}

static void call_repeat(cg_fn *f, nd_kernel *k, int stage)
{
    cg *g = f->g;
    nd_op *op = k->nodes.v[0].op;
    const cg_body *b = cg_emit_body(g, op);
    int64_t lo, hi;
    cg_range(g, op, stage, &lo, &hi);
    if (hi == lo) {
        pass_through(f, op);
        return;
    }
    carry *c = ND_NEWN(g->a, carry, op->ncarry + 1);
    for (int i = 0; i < op->ncarry; i++) {
        c[i] = plan_carry(f, b, op, i, hi - lo);
        declare_first(f, &c[i], op, i, hi - lo);
    }
    const char *l = cg_iter(f, op);
    if (op->reverse)
        cg_line(f, "for (int64_t %s = %lld; %s >= %lld; %s--) {", l,
                (long long)hi - 1, l, (long long)lo, l);
    else
        cg_line(f, "for (int64_t %s = %lld; %s < %lld; %s++) {", l,
                (long long)lo, l, (long long)hi, l);
    f->indent++;
    for (int i = 0; i < op->ncarry; i++)
        if (c[i].out)
            declare_next(f, &c[i], op, i, lo, hi);
    call_body(f, b, op, c);
    for (int i = 0; i < op->ncarry; i++)
        if (c[i].in && c[i].out)
            cg_line(f, "%s = %s;", c[i].x, c[i].next);
    cg_done_layer(f, k, lo);
    f->indent--;
    cg_line(f, "}");
}

void cg_list(cg_fn *f, const nd_kernels *list, int stage)
{
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        const char *name = NULL;
        cg_flights(f, list, i, stage);
        cg_done_before(f, list, i);
        switch (k->kind) {
        case K_LOOP:
            name = cg_call_loop(f, k);
            break;
        case K_GEMM:
            cg_gemm(f, k);
            break;
        case K_GROUPED:
            cg_grouped(f, k);
            break;
        case K_COMM:
            if (!k->flight)
                cg_comm(f, k);
            break;
        case K_TILES:
            name = cg_tiles(f, k);
            break;
        case K_REPEAT:
            call_repeat(f, k, stage);
            break;
        }
        if (k->kind != K_REPEAT && !k->flight)
            cg_mark_end(f, k, name);
    }
    cg_flights(f, list, list->v.n, stage);
}

void cg_start_caller(cg_fn *f, cg *g)
{
    cg_fn_start(f, g);
    f->caller = true;
    for (int i = 0; i < g->m->axes.n; i++)
        cg_take(&f->names, g->axis_var[i]);
}

/* ---- functions ---------------------------------------------------------- */

static int depth_of(const nd_op *op)
{
    int d = 0;
    for (const nd_block *b = op->block; b->parent; b = b->parent->block)
        d++;
    return d;
}

static void put_body_signature(cg_fn *f, cg_body *b, nd_buf *out)
{
    cg *g = f->g;
    nd_buf s = {.arena = g->a};
    nd_putf(&s, "static void %s(ndrt_rank *r", b->name);
    for (int i = 0; i < b->iters.n; i++)
        nd_putf(&s, ", int64_t %s", cg_iter(f, b->iters.v[i]));
    for (int i = 0; i < b->ptrs.n; i++)
        nd_putf(&s, ", %s%s *%s", b->ptrs.v[i].written ? "" : "const ",
                cg_ctype(b->ptrs.v[i].to.dtype), b->ptrs.v[i].name);
    nd_put(&s, ")");
    cg_fold(out, 0, s.s);
}

/* Carried values become parameters: what it reads, then what it writes. */
static void order_carries(cg_fn *f, cg_body *b)
{
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < f->ptrs.n; i++)
            if (is_carry(&f->ptrs.v[i].to) && !f->ptrs.v[i].to.nterms &&
                (f->ptrs.v[i].to.root == AT_CARRY_OUT) == w)
                ND_PUSH(f->g->a, &b->ptrs, f->ptrs.v[i]);
}

static bool encloses(const nd_op *outer, const nd_op *op)
{
    for (; op; op = op->block->parent)
        if (op == outer)
            return true;
    return false;
}

/* The iterations that the body is told, outermost first; those of repeats that
 * it runs itself are its own. */
void cg_order_iters(cg_fn *f, cg_body *b)
{
    for (int d = 0; d < ND_MAX_RANK; d++)
        for (int i = 0; i < f->iters.n; i++)
            if (depth_of(f->iters.v[i]) == d &&
                encloses(f->iters.v[i], f->in_repeat))
                ND_PUSH(f->g->a, &b->iters, f->iters.v[i]);
}

void cg_finish_body(cg_fn *f, cg_body *b, nd_buf *out)
{
    nd_buf head = {.arena = f->g->a};
    declare_pointers(f, &head);
    order_carries(f, b);
    cg_order_iters(f, b);
    put_body_signature(f, b, out);
    nd_put(out, "{\n");
    if (!f->uses_rank)
        nd_put(out, "    (void)r;\n");
    cg_declare(f, out);
    nd_put(out, head.s ? head.s : "");
    if (head.n)
        nd_put(out, "\n");
    nd_put(out, f->b.s ? f->b.s : "");
    nd_put(out, "}\n\n");
}

cg_body *cg_emit_body(cg *g, nd_op *repeat)
{
    const nd_kernels *list = nd_body_of(g->c, repeat);
    cg_body *b = nd_table_get(&g->bodies, list);
    if (b)
        return b;
    b = ND_NEW(g->a, cg_body);
    cg_fn f;
    cg_start_caller(&f, g);
    f.in_repeat = repeat;
    cg_arrivals(&f, list);
    cg_list(&f, list, -1);
    static const char *const way[] = {"forward", "backward", "weights",
                                      "prepare"};
    b->name = cg_fresh(&g->global,
                       nd_fmt(g->a, "%s_%s", repeat->axes[0]->name,
                              way[repeat->phase]));
    nd_table_put(&g->bodies, list, b);
    cg_source_comment(g, g->out, 0, repeat->loc);
    cg_finish_body(&f, b, g->out);
    return b;
}

/* ---- stages ------------------------------------------------------------- */

const char *cg_stage_prefix(cg *g, int s)
{
    return g->m->program->nstages == 1 ? "" : nd_fmt(g->a, "stage%d_", s);
}

const char *cg_device_prefix(cg *g, int d)
{
    return g->m->program->ndevices == 1 ? "" : nd_fmt(g->a, "device%d_", d);
}

void cg_finish_stage_fn(cg_fn *f, int s, const char *name)
{
    cg *g = f->g;
    nd_buf head = {.arena = g->a};
    declare_pointers(f, &head);
    nd_putf(g->out, "static void %s%s(ndrt_rank *r)\n{\n",
            cg_stage_prefix(g, s), name);
    if (!f->uses_rank)
        nd_put(g->out, "    (void)r;\n");
    cg_declare(f, g->out);
    nd_put(g->out, head.s ? head.s : "");
    if (head.n)
        nd_put(g->out, "\n");
    nd_put(g->out, f->b.s ? f->b.s : "");
    nd_put(g->out, "}\n\n");
}

/* Nothing follows: what the loss is made of stays until all are done. */
static void add_loss(cg_fn *f, int s)
{
    cg *g = f->g;
    if (!nd_has_loss(g->m, s))
        return;
    int at;
    kir_kernel *value = kir_build_scalar(g, g->m->loss, &at);
    f->uses_rank = true;
    const char *loss = kir_scalar_c(f, value, at);
    cg_line(f, "if (r->thread == 0)");
    f->indent++;
    cg_line(f, "at(r, B_loss)[0] += %s;", loss);
    f->indent--;
}

/* ---- a stage ------------------------------------------------------------ */

static void emit_list(cg *g, int s, const nd_kernels *list, const char *name)
{
    cg_fn f;
    cg_start_caller(&f, g);
    f.finals = nd_finals(g->c, s, list);
    cg_arrivals(&f, list);
    cg_list(&f, list, s);
    if (list == &g->c->stage[s].list[LIST_FWD])
        add_loss(&f, s);
    cg_finish_stage_fn(&f, s, name);
}

void cg_emit_stage(cg *g, int s)
{
    const nd_kernels *list = g->c->stage[s].list;
    const char *pre = cg_stage_prefix(g, s);
    if (list[LIST_PRE].v.n)
        emit_list(g, s, &list[LIST_PRE], "prepare");
    emit_list(g, s, &list[LIST_FWD], "forward");
    if (!list[LIST_WGT].v.n) {
        emit_list(g, s, &list[LIST_BWD], "backward");
    } else {
        emit_list(g, s, &list[LIST_BWD], "backward_input");
        emit_list(g, s, &list[LIST_WGT], "backward_weights");
        nd_putf(g->out, "static void %sbackward(ndrt_rank *r)\n{\n"
                        "    %sbackward_input(r);\n"
                        "    %sbackward_weights(r);\n}\n\n", pre, pre, pre);
    }
    for (int op = SCHED_SEND_F; op < SCHED_NOPS; op++)
        cg_emit_crossing(g, s, (sched_op)op);
}
