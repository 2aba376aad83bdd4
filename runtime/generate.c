/* generate.c - text from a trained model: the last T bytes in row 0 of the
 * input "tokens", a forward pass, and the next byte drawn from the output
 * "logits" at the last position. All ranks draw the same byte, as the random
 * number depends on seed and position alone.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <stdlib.h>

typedef struct generator {
    int tokens, logits;           /* indices of input and output */
    int seq, vocab;               /* axes of the output */
    int64_t t, nvocab;
    float *scores;                /* nvocab */
} generator;

static int find_tensor(const ndrt_tensor *t, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return i;
    return -1;
}

static ndrt_status prepare(ndrt_rank *r, generator *g)
{
    const ndrt_program *p = r->program;

    g->tokens = find_tensor(p->inputs, p->ninputs, "tokens");
    g->logits = find_tensor(p->outputs, p->noutputs, "logits");
    if (g->tokens < 0 || g->logits < 0)
        return ndrt_fail(r, NDRT_EINPUT, "--generate needs a model with the "
                         "input \"tokens\" and `output logits`");
    const ndrt_tensor *in = &p->inputs[g->tokens];
    const ndrt_tensor *out = &p->outputs[g->logits];
    if (in->naxes != 2 || !ndrt_is_sample(p, in, 0) || in->dtype != NDRT_I32 ||
        out->naxes != 3)
        return ndrt_fail(r, NDRT_EINPUT, "--generate needs i32 tokens[batch, "
                         "seq] and logits[batch, seq, vocab]");
    g->seq = g->vocab = -1;
    for (int a = 0; a < 3; a++) {
        if (strcmp(out->axis[a], in->axis[1]) == 0)
            g->seq = a;
        else if (!ndrt_is_sample(p, out, a))
            g->vocab = a;
    }
    if (g->seq < 0 || g->vocab < 0)
        return ndrt_fail(r, NDRT_EINPUT, "--generate: logits must have the "
                         "axes of tokens and one more");
    g->t = p->extents[in->extent[1]].size;
    g->nvocab = p->extents[out->extent[g->vocab]].size;
    if (g->t < 1 || g->nvocab < 1)
        return ndrt_fail(r, NDRT_EINPUT, "--generate: logits are empty");
    g->scores = malloc((size_t)g->nvocab * sizeof *g->scores);
    return g->scores ? NDRT_OK : ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
}

/* All inputs are 0 but for row 0 of the tokens. */
static void fill(ndrt_rank *r, const generator *g, const unsigned char *text,
                 int64_t len)
{
    const ndrt_program *p = r->program;

    for (int i = 0; i < p->ninputs; i++) {
        const ndrt_tensor *in = &p->inputs[i];
        size_t size = in->dtype == NDRT_BOOL ? 1 : sizeof(float);
        char *x = ndrt_input(r, i);
        ndrt_walk w = ndrt_walk_tensor(p, r->rank, in, 0);
        while (x && ndrt_walk_next(&w)) {
            memset(x + (size_t)w.local * size, 0, (size_t)w.length * size);
            if (i != g->tokens || w.off[0] + w.i[0] != 0)
                continue;
            int32_t *ids = (int32_t *)(void *)x + w.local;
            for (int64_t j = 0; j < w.length && w.off[1] + j < len; j++)
                ids[j] = text[w.off[1] + j];
        }
    }
}

/* The stage whose output it is. */
static int stage_of(const ndrt_program *p, int output)
{
    int s = 0;

    while (p->stages[s].outputs[output].at == NDRT_NONE)
        s++;
    return s;
}

/* Does this rank speak for its piece of the output? */
static bool owns_output(const ndrt_rank *r, const ndrt_tensor *out, int output)
{
    const ndrt_program *p = r->program;
    uint32_t cut = ndrt_cut_mask(p, out->extent, out->naxes);

    for (int a = 0; a < p->nmesh; a++)
        if (a != p->pipe && !(cut >> a & 1) && r->state->coord[a] != 0)
            return false;
    return p->stages[stage_of(p, output)].device == r->device;
}

/* Logits of row 0 at position `pos`, whole, on all ranks. Each element comes
 * from one rank; the sum with zeros is exact. */
static ndrt_status collect(ndrt_rank *r, const generator *g, int64_t pos)
{
    const ndrt_program *p = r->program;
    const ndrt_tensor *out = &p->outputs[g->logits];
    int stage = stage_of(p, g->logits);
    ndrt_comm *c = r->state->comm;

    memset(g->scores, 0, (size_t)g->nvocab * sizeof *g->scores);
    if (owns_output(r, out, g->logits)) {
        ndrt_spot where = p->stages[stage].outputs[g->logits];
        const float *x = (const float *)(const void *)(
            ndrt_room(r, stage, where.room) + where.at);
        ndrt_walk w = ndrt_walk_tensor(p, r->rank, out, 0);
        while (ndrt_walk_next(&w)) {
            for (int64_t j = 0; j < w.length; j++) {
                int64_t at[NDRT_MAX_RANK];
                for (int a = 0; a < 3; a++)
                    at[a] = w.off[a] + (a == 2 ? j : w.i[a]);
                int sample = 3 - g->seq - g->vocab;
                if (at[sample] == 0 && at[g->seq] == pos)
                    g->scores[at[g->vocab]] = x[w.local + j];
            }
        }
    }
    if (r->state->world.n == 1)
        return NDRT_OK;
    return ndrt_comm_check(r, c->ops->all_reduce(c, &r->state->world,
                                                 g->scores, g->nvocab,
                                                 NDRT_SUM));
}

static int64_t draw(const ndrt_rank *r, const generator *g, int64_t index)
{
    double temperature = r->state->config->temperature;
    double total = 0.0, u;
    int64_t best = 0;

    for (int64_t v = 1; v < g->nvocab; v++)
        if (g->scores[v] > g->scores[best])
            best = v;
    if (temperature <= 0.0)
        return best;
    for (int64_t v = 0; v < g->nvocab; v++)
        total += exp((double)(g->scores[v] - g->scores[best]) / temperature);
    u = (double)nd_uniform(r->seed, (uint64_t)index, 0,
                           ndrt_stream("generate")) * total;
    for (int64_t v = 0; v < g->nvocab; v++) {
        u -= exp((double)(g->scores[v] - g->scores[best]) / temperature);
        if (u < 0.0)
            return v;
    }
    return best;
}

static void print_token(FILE *out, int64_t id)
{
    if (id < 256)
        fputc((int)id, out);
    else
        fprintf(out, "<%lld>", (long long)id);
    fflush(out);
}

ndrt_status ndrt_generate(ndrt_rank *r, FILE *out)
{
    const ndrt_config *c = r->state->config;
    const char *prompt = c->generate[0] ? c->generate : "\n";
    size_t len = strlen(prompt);
    generator g = {0};
    ndrt_status s = ndrt_agree(r, prepare(r, &g));
    unsigned char *text = malloc(len + (size_t)c->tokens + 1);

    if (s == NDRT_OK && !text)
        s = ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    if (s == NDRT_OK && r->rank == 0)
        fputs(prompt, out);
    if (text)
        memcpy(text, prompt, len);
    for (int64_t i = 0; i < c->tokens && s == NDRT_OK; i++) {
        int64_t have = (int64_t)len < g.t ? (int64_t)len : g.t;
        fill(r, &g, text + len - have, have);
        s = ndrt_forward(r, 0);
        if (s == NDRT_OK)
            s = collect(r, &g, have - 1);
        if (s != NDRT_OK)
            break;
        int64_t id = draw(r, &g, i);
        text[len++] = (unsigned char)id;
        if (r->rank == 0)
            print_token(out, id);
    }
    if (s == NDRT_OK && r->rank == 0)
        fputc('\n', out);
    free(text);
    free(g.scores);
    return s;
}
