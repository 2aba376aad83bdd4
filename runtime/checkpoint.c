/* checkpoint.c - parameters from and to a safetensors file, in global form:
 * one tensor per parameter, one per index for those inside a `repeat`. A file
 * does not show how the program that wrote it was cut.
 *
 * Optimizer state goes the same way, as "optimizer.1.wte": for that it takes
 * the place of the gradients, which no one needs between two steps, and there
 * it is whole again where `zero` cuts it.
 *
 * Saving: for each tensor in turn the ranks that own pieces send them to rank
 * 0, which puts them in place and writes. Loading: every rank maps the file
 * and takes what it needs.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

int64_t ndrt_layer_count(const ndrt_program *p, int param)
{
    const ndrt_param *q = &p->params[param];
    int64_t n = 1;

    for (int a = 0; a < q->nlayers; a++)
        n *= p->extents[q->extent[a]].size;
    return n;
}

char *ndrt_layer_name(const ndrt_program *p, int param, int64_t layer,
                      const char *prefix)
{
    const ndrt_param *q = &p->params[param];
    enum { DIGITS = 21 };            /* of an index, with its dot */
    size_t n = strlen(prefix) + strlen(q->name) + 1 +
               (size_t)q->nlayers * DIGITS;
    char *s = malloc(n);
    size_t to = 0;
    int from = 0;
    int64_t below = ndrt_layer_count(p, param);

    if (!s)
        return NULL;
    to = (size_t)snprintf(s, n, "%s", prefix);
    for (int a = 0; a < q->nlayers && layer >= 0; a++) {
        below /= p->extents[q->extent[a]].size;
        to += (size_t)snprintf(s + to, n - to, "%.*s.%lld",
                               q->layer_at[a] - from, q->name + from,
                               (long long)(layer / below));
        layer %= below;
        from = q->layer_at[a];
    }
    snprintf(s + to, n - to, "%s", q->name + from);
    return s;
}

/* The shape of one tensor in the file. */
static int file_shape(const ndrt_program *p, int param,
                      int64_t shape[NDRT_MAX_RANK])
{
    const ndrt_param *q = &p->params[param];
    int n = 0;

    for (int a = q->nlayers; a < q->naxes; a++)
        shape[n++] = p->extents[q->extent[a]].size;
    return n;
}

/* ---- weights, and state in place of gradients -------------------------- */

static const char *const prefixes[] = {"", "optimizer.1.", "optimizer.2."};

/* How many arrays of state a parameter has. */
static int states_of(const ndrt_train *t, const ndrt_param *q)
{
    if (q->frozen)
        return 0;
    if (t->opt == NDRT_SGD)
        return t->momentum != 0.0;
    return t->opt == NDRT_LION || q->muon ? 1 : 2;
}

/* Where the parameter's weights (0), or its state, lie. */
static float *tensor_at(const ndrt_rank *r, int param, int kind)
{
    const ndrt_stage *stage = &r->program->stages[r->stage];
    size_t at = kind ? stage->grads[param] : stage->weights[param];

    return (float *)(void *)(r->arena + at);
}

static float *state_at(const ndrt_rank *r, const ndrt_place *pl, int kind)
{
    size_t at = kind == 1 ? pl->state1 : pl->state2;

    return at == NDRT_NONE ? NULL : (float *)(void *)(r->arena + at);
}

/* From state to gradients, and back. */
static ndrt_status show_state(ndrt_rank *r, int kind)
{
    const ndrt_stage *stage = &r->program->stages[r->stage];
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < stage->nplaces && s == NDRT_OK; i++) {
        const ndrt_place *pl = &stage->places[i];
        const float *x = state_at(r, pl, kind);
        float *g = (float *)(void *)(r->arena + pl->grads);
        size_t from, n;
        if (!x)
            continue;
        ndrt_my_part(r, pl->bucket, &from, &n);
        memcpy(g + from, x, n * sizeof *g);
        s = ndrt_gather_parts(r, pl->bucket, g);
    }
    return s;
}

static void take_state(ndrt_rank *r, int kind)
{
    const ndrt_stage *stage = &r->program->stages[r->stage];

    for (int i = 0; i < stage->nplaces; i++) {
        const ndrt_place *pl = &stage->places[i];
        float *x = state_at(r, pl, kind);
        const float *g = (const float *)(const void *)(r->arena + pl->grads);
        size_t from, n;
        if (!x)
            continue;
        ndrt_my_part(r, pl->bucket, &from, &n);
        memcpy(x, g + from, n * sizeof *x);
    }
}

/* ---- loading ---------------------------------------------------------- */

static void print_shape(char out[160], const int64_t *shape, int n)
{
    size_t at = 0;

    out[at++] = '[';
    for (int a = 0; a < n && at < 130; a++)
        at += (size_t)snprintf(out + at, 160 - at, "%s%lld", a ? ", " : "",
                               (long long)shape[a]);
    out[at++] = ']';
    out[at] = '\0';
}

static ndrt_status check_shape(ndrt_rank *r, const char *path, int param,
                               const ndrt_st_tensor *t)
{
    int64_t want[NDRT_MAX_RANK];
    int n = file_shape(r->program, param, want);
    char found[160], expected[160];

    if (t->naxes == n &&
        memcmp(t->shape, want, (size_t)n * sizeof *want) == 0)
        return NDRT_OK;
    print_shape(found, t->shape, t->naxes);
    print_shape(expected, want, n);
    return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" has the shape %s, "
                     "expected %s", path, t->name, found, expected);
}

typedef struct missing {
    int n;
    char text[200];               /* the first few names */
} missing;

static void add_missing(missing *m, const char *name)
{
    size_t at = strlen(m->text);

    if (m->n++ < 3)
        snprintf(m->text + at, sizeof m->text - at, "%s\"%s\"",
                 at ? ", " : "", name);
}

/* An open file and how its names follow from the parameters'. */
typedef struct source {
    ndrt_st_file f;
    const char *path;
    const char *below;            /* only what is below it, by the rest of the
                                     name; or NULL */
    bool all;                     /* else only what `init = load` chose */
    missing m;
} source;

static ndrt_status load_tensor(ndrt_rank *r, source *from, int param,
                               int64_t layer, int kind)
{
    const ndrt_program *p = r->program;
    float *x = tensor_at(r, param, kind);
    char *name = ndrt_layer_name(p, param, layer, prefixes[kind]);

    if (!name)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    const char *rest = from->below ? name + strlen(from->below) + 1 : name;
    const ndrt_st_tensor *t = ndrt_st_find(&from->f, rest);
    if (!t)
        add_missing(&from->m, rest);
    free(name);
    ndrt_status s = t ? check_shape(r, from->path, param, t) : NDRT_OK;
    if (!t || s != NDRT_OK)
        return s;
    ndrt_walk w = ndrt_walk_param(p, r->rank, param, layer);
    while (ndrt_walk_next(&w))
        ndrt_st_floats(t, w.global, w.length, x + w.local);
    return NDRT_OK;
}

static ndrt_status load_param(ndrt_rank *r, source *from, int param, int kind)
{
    const ndrt_program *p = r->program;
    const ndrt_param *q = &p->params[param];
    int64_t off, n, inner;

    if (!q->nlayers)
        return load_tensor(r, from, param, -1, kind);
    /* only the first of them may be cut: by the pipeline */
    ndrt_extent_of(p, q->extent[0], r->rank, 0, &off, &n);
    inner = ndrt_layer_count(p, param) / p->extents[q->extent[0]].size;
    for (int64_t i = off * inner; i < (off + n) * inner; i++) {
        ndrt_status s = load_tensor(r, from, param, i, kind);
        if (s != NDRT_OK)
            return s;
    }
    return NDRT_OK;
}

/* Two counts as four floats, each exact: 24 bits. */
static const char counts_name[] = "optimizer.counts";
enum { HALF = 1 << 24 };

static void load_counts(const ndrt_st_file *f, int64_t counts[2], missing *m)
{
    const ndrt_st_tensor *t = ndrt_st_find(f, counts_name);
    float x[4] = {0};

    if (!t || t->naxes != 1 || t->shape[0] != 4)
        add_missing(m, counts_name);
    else
        ndrt_st_floats(t, 0, 4, x);
    for (int i = 0; i < 2; i++)
        counts[i] = (int64_t)x[2 * i] * HALF + (int64_t)x[2 * i + 1];
}

static ndrt_status load_kind(ndrt_rank *r, source *from, int kind)
{
    const ndrt_program *p = r->program;
    const ndrt_train *t = &r->state->config->train;
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < p->nparams && s == NDRT_OK; i++)
        if (p->stages[r->stage].weights[i] != NDRT_NONE &&
            kind <= states_of(t, &p->params[i]) &&
            (from->all || p->params[i].load))
            s = load_param(r, from, i, kind);
    return s;
}

/* Kinds 0 .. kinds - 1 of the parameters. */
static ndrt_status load_file(ndrt_rank *r, source *from, int kinds,
                             int64_t counts[2])
{
    char error[sizeof r->state->error];
    ndrt_status s = ndrt_st_open(&from->f, from->path, error, sizeof error);

    if (s != NDRT_OK)
        return ndrt_fail(r, s, "%s", error);
    for (int kind = 0; kind < kinds && s == NDRT_OK; kind++) {
        s = load_kind(r, from, kind);
        if (kind)
            take_state(r, kind);
    }
    if (counts && s == NDRT_OK)
        load_counts(&from->f, counts, &from->m);
    if (s == NDRT_OK && from->m.n > 0)
        s = ndrt_fail(r, NDRT_EINPUT, "\"%s\" lacks %d of the parameters: "
                      "%s%s", from->path, from->m.n, from->m.text,
                      from->m.n > 3 ? ", ..." : "");
    ndrt_st_close(&from->f);
    return s;
}

ndrt_status ndrt_load(ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    source from = {.path = c->train.load_path, .all = c->load_all,
                   .below = c->load_all ? NULL : c->train.load_prefix};

    return load_file(r, &from, 1, NULL);
}

ndrt_status ndrt_load_all(ndrt_rank *r, const char *path, int64_t counts[2])
{
    source from = {.path = path, .all = true};

    return load_file(r, &from, 3, counts);
}

/* ---- saving ----------------------------------------------------------- */

static int64_t held(const ndrt_program *p, int rank, int param, int64_t layer)
{
    ndrt_walk w = ndrt_walk_param(p, rank, param, layer);
    int64_t n = 0;

    while (ndrt_walk_next(&w))
        n += w.length;
    return n;
}

static void pack(const ndrt_rank *r, int param, int64_t layer, int kind,
                 float *to)
{
    const ndrt_program *p = r->program;
    const float *x = tensor_at(r, param, kind);
    ndrt_walk w = ndrt_walk_param(p, r->rank, param, layer);

    for (; ndrt_walk_next(&w); to += w.length)
        memcpy(to, x + w.local, (size_t)w.length * sizeof *to);
}

static void place(const ndrt_program *p, int rank, int param, int64_t layer,
                  const float *from, float *whole)
{
    ndrt_walk w = ndrt_walk_param(p, rank, param, layer);

    for (; ndrt_walk_next(&w); from += w.length)
        memcpy(whole + w.global, from, (size_t)w.length * sizeof *from);
}

/* Rank 0's `whole` receives the tensor; `piece` is room for as much. */
static ndrt_status gather_tensor(ndrt_rank *r, int param, int64_t layer,
                                 int kind, float *whole, float *piece)
{
    const ndrt_program *p = r->program;
    ndrt_comm *c = r->state->comm;

    for (int q = 0; q < c->size; q++) {
        int64_t n = ndrt_owns_param(p, q, param) ? held(p, q, param, layer)
                                                 : 0;
        size_t bytes = (size_t)n * sizeof *piece;
        ndrt_status s = NDRT_OK;
        if (n == 0)
            continue;
        if (q == r->rank)
            pack(r, param, layer, kind, piece);
        if (q != 0 && q == r->rank)
            s = c->ops->send(c, 0, piece, bytes);
        else if (q != 0 && r->rank == 0)
            s = c->ops->recv(c, q, piece, bytes);
        if (s != NDRT_OK)
            return ndrt_comm_check(r, s);
        if (r->rank == 0)
            place(p, q, param, layer, piece, whole);
    }
    return NDRT_OK;
}

typedef struct list {             /* every tensor of the file, in order */
    int n;
    ndrt_st_tensor *t;
    int *param, *kind;
    int64_t *layer;
    int64_t largest;              /* elements */
} list;

static void free_list(list *l)
{
    for (int i = 0; l->t && i < l->n; i++)
        free((char *)l->t[i].name);
    free(l->t);
    free(l->param);
    free(l->kind);
    free(l->layer);
}

static bool add_tensor(const ndrt_program *p, list *l, int param,
                       int64_t layer, int kind)
{
    ndrt_st_tensor *t = &l->t[l->n];
    int64_t n = 1;

    t->type = NDRT_ST_F32;
    t->name = ndrt_layer_name(p, param, layer, prefixes[kind]);
    t->naxes = file_shape(p, param, t->shape);
    for (int a = 0; a < t->naxes; a++)
        n *= t->shape[a];
    l->largest = n > l->largest ? n : l->largest;
    l->param[l->n] = param;
    l->kind[l->n] = kind;
    l->layer[l->n++] = layer;
    return t->name != NULL;
}

static bool make_list(const ndrt_rank *r, int kinds, list *l)
{
    const ndrt_program *p = r->program;
    const ndrt_train *train = &r->state->config->train;
    size_t total = 2;

    for (int i = 0; i < p->nparams; i++)
        total += (size_t)(kinds * ndrt_layer_count(p, i));
    *l = (list){.t = calloc(total, sizeof *l->t),
                .param = calloc(total, sizeof *l->param),
                .kind = calloc(total, sizeof *l->kind),
                .layer = calloc(total, sizeof *l->layer)};
    if (!l->t || !l->param || !l->kind || !l->layer)
        return false;
    for (int kind = 0; kind < kinds; kind++)
        for (int i = 0; i < p->nparams; i++)
            for (int64_t k = 0; k < ndrt_layer_count(p, i); k++)
                if (kind <= states_of(train, &p->params[i]) &&
                    !add_tensor(p, l, i, p->params[i].nlayers ? k : -1, kind))
                    return false;
    if (kinds == 1)
        return true;
    ndrt_st_tensor *t = &l->t[l->n];     /* the counts, behind all others */
    *t = (ndrt_st_tensor){.name = strdup(counts_name), .type = NDRT_ST_F32,
                          .naxes = 1, .shape = {4}};
    l->kind[l->n++] = -1;
    return t->name != NULL;
}

/* Rank 0's `whole` receives tensor i of the list. */
static ndrt_status fill(ndrt_rank *r, const list *l, int i, float *whole,
                        float *piece)
{
    const int64_t counts[2] = {r->step, r->state->updates};
    int kind = l->kind[i];

    for (int k = 0; k < 2 && kind < 0 && r->rank == 0; k++) {
        whole[2 * k] = (float)(counts[k] / HALF);
        whole[2 * k + 1] = (float)(counts[k] % HALF);
    }
    if (kind < 0)
        return NDRT_OK;
    if (kind > 0 && l->kind[i - 1] != kind) {
        ndrt_status s = show_state(r, kind);
        if (s != NDRT_OK)
            return s;
    }
    return gather_tensor(r, l->param[i], l->layer[i], kind, whole, piece);
}

static ndrt_status save_list(ndrt_rank *r, const list *l, const char *path,
                             float *whole, float *piece)
{
    bool first = r->rank == 0;
    ndrt_st_writer w = {0};
    char error[sizeof r->state->error];
    ndrt_status s = NDRT_OK;

    if (first)
        s = ndrt_st_create(&w, path, l->t, l->n, error, sizeof error);
    /* a full disk is noticed on rank 0 alone; nobody sends then */
    s = ndrt_agree(r, s == NDRT_OK ? s : ndrt_fail(r, s, "%s", error));
    for (int i = 0; i < l->n && s == NDRT_OK; i++) {
        int64_t n = 1;
        for (int a = 0; a < l->t[i].naxes; a++)
            n *= l->t[i].shape[a];
        s = fill(r, l, i, whole, piece);
        if (s != NDRT_OK || !first)
            continue;
        s = ndrt_st_write(&w, whole, n, error, sizeof error);
        if (s != NDRT_OK)
            s = ndrt_fail(r, s, "%s", error);
    }
    if (first && s == NDRT_OK) {
        s = ndrt_st_finish(&w, error, sizeof error);
        if (s != NDRT_OK)
            s = ndrt_fail(r, s, "%s", error);
    }
    ndrt_st_cancel(&w);
    return s;
}

static ndrt_status save_file(ndrt_rank *r, const char *path, int kinds)
{
    list l;
    bool ok = make_list(r, kinds, &l);
    size_t bytes = (size_t)(l.largest + 4) * sizeof(float);
    float *whole = ok && r->rank == 0 ? malloc(bytes) : NULL;
    float *piece = ok ? malloc(bytes) : NULL;
    ndrt_status s;

    if (!piece || (r->rank == 0 && !whole))
        s = ndrt_fail(r, NDRT_EINTERNAL, "out of memory for saving");
    else
        s = save_list(r, &l, path, whole, piece);
    free(whole);
    free(piece);
    free_list(&l);
    return s;
}

ndrt_status ndrt_save(ndrt_rank *r, const char *path)
{
    return save_file(r, path, 1);
}

ndrt_status ndrt_save_all(ndrt_rank *r, const char *path)
{
    return save_file(r, path, 3);
}
