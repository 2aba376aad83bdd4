/* notes.c - what a checkpoint says of the run that wrote it, so that the one
 * that goes on from there does so:
 *
 *     "ndc.holds": "checkpoint", "ndc.seed": "4", "ndc.optimizer": "adamw",
 *     "ndc.inputs": "tokens[batch=8, seq=16], mask[seq=16]",
 *     "ndc.data": "text, 120 samples, begins with 1a2b3c4d"
 *
 * The seed is taken over. State of another optimizer means something else, and
 * with other sizes the batches so far would not be those that were seen: both
 * are refused. Other data are told of, as they may be what was meant. Nothing
 * is asked of a file without a note, which is older.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

const char *const ndrt_note_key[NDRT_NNOTES] = {
    [NDRT_NOTE_HOLDS] = "ndc.holds",         [NDRT_NOTE_SEED] = "ndc.seed",
    [NDRT_NOTE_OPTIMIZER] = "ndc.optimizer", [NDRT_NOTE_INPUTS] = "ndc.inputs",
    [NDRT_NOTE_DATA] = "ndc.data",
};

/* Of what decides which state there is. */
static const char *optimizer_of(const ndrt_train *t)
{
    static const char *const name[] = {
        [NDRT_SGD] = "sgd",   [NDRT_ADAM] = "adam", [NDRT_ADAMW] = "adamw",
        [NDRT_LION] = "lion", [NDRT_MUON] = "muon"};

    return t->opt == NDRT_SGD && t->momentum != 0.0 ? "sgd with momentum"
                                                    : name[t->opt];
}

/* The whole inputs of a step, which no mesh cuts. */
static char *inputs_of(const ndrt_program *p)
{
    char *s = NULL;
    size_t n;
    FILE *f = open_memstream(&s, &n);

    for (int i = 0; f && i < p->ninputs; i++) {
        const ndrt_tensor *t = &p->inputs[i];
        fprintf(f, "%s%s[", i ? ", " : "", t->name);
        for (int a = 0; a < t->naxes; a++)
            fprintf(f, "%s%s=%lld", a ? ", " : "",
                    t->axis[a] ? t->axis[a] : "",
                    (long long)p->extents[t->extent[a]].size);
        fputc(']', f);
    }
    if (f && fclose(f) == 0)
        return s;
    free(s);
    return NULL;
}

/* Told apart by how they begin, as a file may move. */
static char *data_of(const ndrt_data *d)
{
    enum { HEAD = 1 << 16 };
    static const char *const kind[] = {
        [NDRT_DATA_NONE] = "none", [NDRT_DATA_TEXT] = "text",
        [NDRT_DATA_ARRAYS] = "arrays", [NDRT_DATA_SYNTHETIC] = "synthetic",
        [NDRT_DATA_TOKENS] = "tokens"};
    const ndrt_source *f = &d->file[0];
    const void *x = f->map ? f->map : f->file.map;
    size_t n = f->map ? f->bytes : f->file.bytes;
    char *s;

    if (!x)
        return strdup(kind[d->kind]);
    int len = asprintf(&s, "%s, %lld samples, begins with %08x", kind[d->kind],
                       (long long)d->part[0].rows,
                       (unsigned)ndrt_sum(x, n < HEAD ? n : HEAD));
    return len < 0 ? NULL : s;
}

static char *seed_of(const ndrt_rank *r)
{
    char *s;

    return asprintf(&s, "%llu", (unsigned long long)r->seed) < 0 ? NULL : s;
}

bool ndrt_notes_make(const ndrt_rank *r, bool checkpoint, ndrt_notes *n)
{
    bool ok = true;

    *n = (ndrt_notes){.text = {
        [NDRT_NOTE_HOLDS] = strdup(checkpoint ? "checkpoint" : "weights")}};
    if (!checkpoint)
        return n->text[NDRT_NOTE_HOLDS];
    n->text[NDRT_NOTE_SEED] = seed_of(r);
    n->text[NDRT_NOTE_OPTIMIZER] = strdup(
        optimizer_of(&r->state->config->train));
    n->text[NDRT_NOTE_INPUTS] = inputs_of(r->program);
    n->text[NDRT_NOTE_DATA] = data_of(r->state->data);
    for (int i = 0; i < NDRT_NNOTES; i++)
        ok = ok && n->text[i];
    return ok;
}

void ndrt_notes_free(ndrt_notes *n)
{
    for (int i = 0; i < NDRT_NNOTES; i++)
        free(n->text[i]);
}

/* ---- going on ----------------------------------------------------------- */

/* A --seed that says something else is for --generate alone. */
static ndrt_status heed_seed(ndrt_rank *r, const char *was, const char *path,
                             bool trains)
{
    const ndrt_config *c = r->state->config;
    uint64_t seed = strtoull(was, NULL, 10);

    if (seed == r->seed)
        return NDRT_OK;
    if (!c->seed_given) {
        ndrt_log_note(r, "the seed is %s, as in \"%s\"", was, path);
        r->seed = seed;
        return NDRT_OK;
    }
    if (!trains)
        return NDRT_OK;
    return ndrt_fail(r, NDRT_EINPUT, "--seed %llu, but \"%s\" is of a run with "
                     "seed %s: leave --seed out to go on with that one",
                     (unsigned long long)r->seed, path, was);
}

static ndrt_status differ(ndrt_rank *r, const char *path, const char *what,
                          const char *was, const char *is)
{
    return ndrt_fail(r, NDRT_EINPUT, "\"%s\" is of a run with %s %.120s, this "
                     "one has %.120s; --load takes the weights alone", path,
                     what, was, is);
}

ndrt_status ndrt_notes_heed(ndrt_rank *r, const ndrt_st_file *f,
                            const char *path, int64_t step)
{
    bool trains = r->state->config->train.steps > step;
    const char *was[NDRT_NNOTES];
    ndrt_status s = NDRT_OK;
    ndrt_notes is;

    for (int i = 0; i < NDRT_NNOTES; i++)
        was[i] = ndrt_st_note(f, (ndrt_note)i);
    if (!ndrt_notes_make(r, true, &is))
        s = ndrt_fail(r, NDRT_EINTERNAL, "out of memory for notes");
    char **now = is.text;
    bool other[NDRT_NNOTES] = {false};
    for (int i = 0; i < NDRT_NNOTES && s == NDRT_OK; i++)
        other[i] = was[i] && strcmp(was[i], now[i]) != 0;
    if (other[NDRT_NOTE_SEED])
        s = heed_seed(r, was[NDRT_NOTE_SEED], path, trains);
    if (s == NDRT_OK && other[NDRT_NOTE_OPTIMIZER])
        s = differ(r, path, "optimizer", was[NDRT_NOTE_OPTIMIZER],
                   now[NDRT_NOTE_OPTIMIZER]);
    if (s == NDRT_OK && trains && other[NDRT_NOTE_INPUTS])
        s = differ(r, path, "inputs", was[NDRT_NOTE_INPUTS],
                   now[NDRT_NOTE_INPUTS]);
    if (s == NDRT_OK && trains && other[NDRT_NOTE_DATA])
        ndrt_log_note(r, "warning: \"%s\" is of a run on other data (%s; now "
                      "%s)", path, was[NDRT_NOTE_DATA], now[NDRT_NOTE_DATA]);
    if (s == NDRT_OK && !trains)
        ndrt_log_note(r, "\"%s\" is of step %lld: nothing is left to train up "
                      "to step %lld", path, (long long)step,
                      (long long)r->state->config->train.steps);
    ndrt_notes_free(&is);
    return s;
}
