/* micro.c - one forward pass of a microbatch, and the loss that it adds.
 *
 *   step 1 microbatch 0  loss 1.42185497         with --micro-losses
 *   step 1 microbatch 1  loss 1.39046144
 *
 * Generated code adds its loss to that of the microbatches before it. To know
 * the summand, forward begins from 0 and the sum is put together here: the same
 * additions, so the same bits with the option and without. Where forward runs
 * again to make what backward reads, the loss has been added already.
 * Evaluation leaves no notes.
 */
#include "ndrt_internal.h"

#include <stdlib.h>

ndrt_status ndrt_micro_open(ndrt_rank *r)
{
    if (!r->state->config->micro_losses)
        return NDRT_OK;
    r->state->micro_loss = calloc((size_t)r->program->nmicro,
                                  sizeof *r->state->micro_loss);
    return r->state->micro_loss
               ? NDRT_OK
               : ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
}

ndrt_status ndrt_micro_forward(ndrt_rank *r, void (*f)(ndrt_rank *))
{
    float *loss = ndrt_loss_at(r);
    double *note = r->state->micro_loss;

    if (!loss || !note || !r->training)
        return ndrt_compute(r, f);
    float before = *loss;
    *loss = 0.0f;
    ndrt_status s = ndrt_compute(r, f);
    note[r->mb] += ndrt_loss_share(r);     /* 0 of stages without the loss */
    *loss += before;
    return s;
}

ndrt_status ndrt_micro_again(ndrt_rank *r, void (*f)(ndrt_rank *))
{
    float *loss = ndrt_loss_at(r), sum = loss ? *loss : 0.0f;
    ndrt_status s = ndrt_compute(r, f);

    if (loss)
        *loss = sum;
    return s;
}

ndrt_status ndrt_micro_report(ndrt_rank *r)
{
    double *note = r->state->micro_loss;
    ndrt_status s = NDRT_OK;

    for (int mb = 0; note && mb < r->program->nmicro && s == NDRT_OK; mb++) {
        s = ndrt_sum_doubles(r, &note[mb], 1);
        if (s == NDRT_OK)
            ndrt_log_micro(r, mb, note[mb]);
        note[mb] = 0.0;
    }
    return s;
}
