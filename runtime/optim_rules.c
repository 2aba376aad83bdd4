/* optim_rules.c - the updates, element by element. x is the gradient after the
 * clip; all arithmetic is in f32.
 *
 *   sgd     x += wd w; m = mu m + x; w -= lr m        as PyTorch's, dampening 0
 *           (nesterov: w -= lr (x + mu m))
 *   adam    x += wd w, then as adamw without decay    arXiv 1412.6980, and L2
 *   adamw   m = b1 m + (1 - b1) x; v = b2 v + (1 - b2) x x
 *           w -= lr wd w + lr m^ / (sqrt(v^) + eps)   arXiv 1711.05101
 *           with m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)
 *   lion    c = b1 m + (1 - b1) x; w -= lr (sign(c) + wd w)
 *           m = b2 m + (1 - b2) x                     arXiv 2302.06675
 *
 * In adamw and lion the decay is a factor on the old weight, which the moments
 * do not see.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

/* Eight running sums, because one would wait for itself at every addition. */
NDRT_CLONES
double ndrt_sum_squares(const float *x, size_t n)
{
    double s[8] = {0}, total = 0.0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < n; i++)
        s[0] += (double)x[i] * (double)x[i];
    for (int j = 0; j < 8; j++)
        total += s[j];
    return total;
}

NDRT_CLONES
void ndrt_sgd(const ndrt_rule *u, size_t n, float *restrict w,
              const float *restrict g, float *restrict m)
{
    const float rate = (float)u->lr, mu = (float)u->train->momentum;
    const float l2 = (float)u->weight_decay, scale = u->scale;
    const bool nesterov = u->train->nesterov;

    for (size_t i = 0; i < n && !m; i++)
        w[i] -= rate * (g[i] * scale + l2 * w[i]);
    for (size_t i = 0; i < n && m; i++) {
        float x = g[i] * scale + l2 * w[i];
        m[i] = mu * m[i] + x;
        w[i] -= rate * (nesterov ? x + mu * m[i] : m[i]);
    }
}

NDRT_CLONES
void ndrt_adam(const ndrt_rule *u, bool decoupled, size_t n,
               float *restrict w, const float *restrict g, float *restrict m,
               float *restrict v)
{
    const ndrt_train *t = u->train;
    const double update = (double)u->update;
    const float b1 = (float)t->beta1, b2 = (float)t->beta2;
    const float c1 = (float)(1.0 - t->beta1), c2 = (float)(1.0 - t->beta2);
    const float rate = (float)(u->lr / (1.0 - pow(t->beta1, update)));
    const float root = (float)(1.0 / sqrt(1.0 - pow(t->beta2, update)));
    const float eps = (float)t->eps, scale = u->scale;
    const float shrink = decoupled ? (float)(u->lr * u->weight_decay) : 0.0f;
    const float l2 = decoupled ? 0.0f : (float)u->weight_decay;

    for (size_t i = 0; i < n; i++) {
        float x = g[i] * scale + l2 * w[i];
        m[i] = b1 * m[i] + c1 * x;
        v[i] = b2 * v[i] + c2 * x * x;
        float step = rate * m[i] / (nd_sqrt(v[i]) * root + eps);
        w[i] = w[i] - shrink * w[i] - step;
    }
}

NDRT_CLONES
void ndrt_lion(const ndrt_rule *u, size_t n, float *restrict w,
               const float *restrict g, float *restrict m)
{
    const ndrt_train *t = u->train;
    const float b1 = (float)t->beta1, b2 = (float)t->beta2;
    const float c1 = (float)(1.0 - t->beta1), c2 = (float)(1.0 - t->beta2);
    const float rate = (float)u->lr, scale = u->scale;
    const float shrink = (float)(u->lr * u->weight_decay);

    for (size_t i = 0; i < n; i++) {
        float x = g[i] * scale, c = b1 * m[i] + c1 * x;
        float sign = (float)((c > 0.0f) - (c < 0.0f));
        w[i] = w[i] - shrink * w[i] - rate * sign;
        m[i] = b2 * m[i] + c2 * x;
    }
}
