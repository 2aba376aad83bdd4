/* eval.c - the loss and the metrics over the evaluation data.
 *
 *   eval 100  loss 0.231742  accuracy=0.9312  (40 held-out batches)
 *
 * A metric is an output with the sample axis; its mean over all elements of all
 * evaluation samples is reported. Without a number of batches these are all
 * there are, each once: rows of the last batch that wrap to the first samples
 * are left out. The loss is the mean over batches, a last one that wraps
 * included. Elements are added in double, on the rank that owns them.
 */
#include "ndrt_internal.h"

#include <stdlib.h>

enum { DEFAULT_EVAL_BATCHES = 8 };

/* This rank's share of the loss: partial sums count on every coordinate of the
 * axes that they are pending over, the rest on coordinate 0. */
double ndrt_loss_share(const ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    size_t at = ndrt_here(r)->loss;

    if (at == NDRT_NONE)
        return 0.0;
    for (int a = 0; a < p->nmesh; a++)
        if (a != p->pipe && !(p->loss_sum >> a & 1) && r->state->coord[a])
            return 0.0;
    return (double)*(const float *)(const void *)(r->arena + at);
}

/* ---- metrics ---------------------------------------------------------- */

/* Does this rank speak for its piece of the output? */
static bool speaks(const ndrt_rank *r, const ndrt_tensor *t)
{
    const ndrt_program *p = r->program;
    uint32_t cut = ndrt_cut_mask(p, t->extent, t->naxes);

    for (int a = 0; a < p->nmesh; a++)
        if (a != p->pipe && !(cut >> a & 1) && r->state->coord[a] != 0)
            return false;
    return true;
}

static double element(const ndrt_tensor *t, const char *x, int64_t i)
{
    switch (t->dtype) {
    case NDRT_F32:
        return (double)((const float *)(const void *)x)[i];
    case NDRT_I32:
        return (double)((const int32_t *)(const void *)x)[i];
    case NDRT_BOOL:
        break;
    }
    return x[i] ? 1.0 : 0.0;
}

static void add_output(ndrt_rank *r, int output, double sum[2])
{
    const ndrt_program *p = r->program;
    const ndrt_tensor *t = &p->outputs[output];
    ndrt_spot at = p->stages[r->stage].outputs[output];
    const char *x = r->room[at.room] + at.at;
    int64_t rows = r->state->tally_rows;
    ndrt_walk w = ndrt_walk_tensor(p, r->rank, t, r->mb);
    int sample = 0;

    while (sample < t->naxes && !ndrt_is_sample(p, t, sample))
        sample++;
    while (ndrt_walk_next(&w)) {
        for (int64_t j = 0; j < w.length; j++) {
            int64_t row = w.off[sample] +
                          (sample == t->naxes - 1 ? j : w.i[sample]);
            if (row >= rows)
                continue;
            sum[0] += element(t, x, w.local + j);
            sum[1] += 1.0;
        }
    }
}

void ndrt_tally(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    const ndrt_train *t = &r->state->config->train;
    const ndrt_stage *stage = &p->stages[r->stage];

    for (int k = 0; k < t->nmetrics; k++) {
        int o = t->metrics[k];
        if (stage->outputs[o].at != NDRT_NONE && speaks(r, &p->outputs[o]))
            add_output(r, o, r->state->tally + 2 * k);
    }
}

/* Over all ranks, and from sums and counts to means. */
static ndrt_status means(ndrt_rank *r, int n, double *sums)
{
    for (int k = 0; k < n; k++) {
        ndrt_status s = ndrt_sum_doubles(r, sums + 2 * k, 2);
        if (s != NDRT_OK)
            return s;
        sums[k] = sums[2 * k] / sums[2 * k + 1];
    }
    return NDRT_OK;
}

/* ---- evaluation ------------------------------------------------------- */

static ndrt_status run_batch(ndrt_rank *r, int64_t k, double *loss)
{
    ndrt_status s = ndrt_data_batch(r, k, true);

    if (s == NDRT_OK)
        s = ndrt_forward(r, -1);
    *loss = ndrt_loss_share(r);
    return s == NDRT_OK ? ndrt_sum_doubles(r, loss, 1) : s;
}

/* sums: two numbers for each metric. */
static ndrt_status run_batches(ndrt_rank *r, double *sums)
{
    ndrt_state *st = r->state;
    const ndrt_train *t = &st->config->train;
    int64_t size = ndrt_batch_size(r->program), rows = ndrt_eval_rows(r);
    int64_t all = rows > 0 ? (rows + size - 1) / size : DEFAULT_EVAL_BATCHES;
    int64_t n = t->eval_batches > 0 ? t->eval_batches : all;
    double total = 0.0, loss;
    ndrt_status s = NDRT_OK;

    if (t->nmetrics > 0 && n > all && rows > 0)
        n = all;
    st->tally = t->nmetrics > 0 ? sums : NULL;
    for (int64_t k = 0; k < n && s == NDRT_OK; k++) {
        st->tally_rows = rows > 0 ? rows - k * size : INT64_MAX;
        s = run_batch(r, k, &loss);
        total += loss;
    }
    st->tally = NULL;
    if (s == NDRT_OK)
        s = means(r, t->nmetrics, sums);
    if (s == NDRT_OK)
        ndrt_log_eval(r, total / (double)n, n, sums);
    return s;
}

ndrt_status ndrt_evaluate(ndrt_rank *r)
{
    const ndrt_train *t = &r->state->config->train;
    bool due = t->eval_every > 0 && r->step % t->eval_every == 0;
    bool last = t->nmetrics > 0 && r->step == t->steps;

    if (!due && !last)
        return NDRT_OK;
    if (!ndrt_data_can_eval(r)) {
        if (r->step == t->eval_every || (last && t->eval_every <= 0))
            ndrt_log_note(r, "warning: no evaluation: the data hold a single "
                          "sample, so none can be held out");
        return NDRT_OK;
    }
    double *sums = calloc(2 * (size_t)t->nmetrics + 1, sizeof *sums);
    if (!sums)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    ndrt_status s = run_batches(r, sums);
    free(sums);
    return s;
}
