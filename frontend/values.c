/* values.c - what a program computes, as text.
 *
 *   y f32[a, b] =
 *     [[0, 1, 2],
 *      [3, 4, 5]]
 *   loss = 2.5
 *   gradient of w f32[b] = [1, 1, 1]
 *
 * The evaluator runs the graph on one device. Inputs are those of the first
 * step on made-up data, so the loss is the one that ./train prints.
 */
#include "frontend.h"

#include <math.h>

enum { MAX_SHOWN = 48 };

/* ---- text ---------------------------------------------------------------- */

/* `true` and `false`, whole numbers, or six digits. */
static void put_number(nd_buf *b, nd_dtype t, double v)
{
    if (t == ND_BOOL)
        nd_put(b, v != 0 ? "true" : "false");
    else if (isnan(v))
        nd_put(b, "nan");            /* printf may say -nan */
    else if (!nd_is_float(t))
        nd_putf(b, "%.0f", v);
    else
        nd_putf(b, "%.6g", v == 0 ? 0 : v);          /* no -0 */
}

/* The elements from *at on, nested by the axes from `axis` on; rows of a
 * matrix stand below each other. */
static void put_elements(nd_buf *b, const nd_type *t, const nd_tensor *x,
                         int axis, int64_t *at)
{
    if (axis == x->rank) {
        put_number(b, t->dtype, x->v[(*at)++]);
        return;
    }
    nd_put(b, "[");
    for (int64_t i = 0; i < x->dim[axis]; i++) {
        if (i && axis == x->rank - 1)
            nd_put(b, ", ");
        else if (i)
            nd_putf(b, ",\n%*s", axis + 3, "");
        put_elements(b, t, x, axis + 1, at);
    }
    nd_put(b, "]");
}

/* More than a screen of numbers is summed up. */
static void put_summary(nd_buf *b, const nd_tensor *x)
{
    double sum = 0, square = 0, lo = INFINITY, hi = -INFINITY;
    for (int64_t i = 0; i < x->n; i++) {
        sum += x->v[i];
        square += x->v[i] * x->v[i];
        lo = fmin(lo, x->v[i]);
        hi = fmax(hi, x->v[i]);
    }
    nd_putf(b, " %lld numbers: mean %.6g, norm %.6g, from %.6g to %.6g\n",
            (long long)x->n, sum / (double)x->n, sqrt(square), lo, hi);
}

static void put_value(nd_buf *b, nd_module *m, const char *what,
                      const char *name, const nd_type *type,
                      const nd_tensor *x)
{
    nd_type t = *type;
    int64_t at = 0;
    t.sum = t.max = 0;
    for (int i = 0; i < t.rank; i++)
        t.cut[i] = (nd_cut){0};
    nd_putf(b, "%s%s ", what, name);
    nd_print_type(b, m, &t);
    if (x->n > MAX_SHOWN) {
        nd_put(b, ":");
        put_summary(b, x);
        return;
    }
    nd_put(b, x->rank > 1 ? " =\n  " : " = ");
    put_elements(b, &t, x, 0, &at);
    nd_put(b, "\n");
}

bool nd_values(nd_module *m, nd_buf *out)
{
    const nd_op *large = nd_too_large(m);
    if (large) {
        nd_error(m->ctx, large->loc, "too large to evaluate");
        return false;
    }
    nd_feed *feed = ND_NEWN(m->ctx->arena, nd_feed, m->inputs.n);
    for (int i = 0; i < m->inputs.n; i++)
        feed[i] = (nd_feed){m->inputs.v[i]->def->name,
                            nd_made_up(m, m->inputs.v[i], m->train.seed, 1)};
    nd_eval_options o = {.f32 = true, .training = true, .seed = m->train.seed,
                         .step = 1, .nfeeds = m->inputs.n, .feeds = feed};
    nd_eval_result r;
    if (!nd_eval(m, &o, &r))
        return false;
    for (int i = 0; i < m->outputs.n; i++)
        put_value(out, m, "", m->outputs.v[i]->name,
                  &m->outputs.v[i]->in[0]->type, r.outputs[i]);
    if (m->loss)
        nd_putf(out, "loss = %.6g\n", r.loss);
    for (int i = 0; r.grads && i < m->params.n; i++)
        if (r.grads[i] && !m->params.v[i]->frozen)
            put_value(out, m, "gradient of ", m->params.v[i]->name,
                      &m->params.v[i]->value->type, r.grads[i]);
    return true;
}
