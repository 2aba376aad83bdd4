/* save.c - parameters and optimizer state to a safetensors file: for each
 * tensor in turn the ranks that own pieces send them to rank 0, which puts them
 * in place and writes.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

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
    const float *x = ndrt_tensor_at(r, param, kind);
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
    t->name = ndrt_layer_name(p, param, layer, ndrt_kind_prefix[kind]);
    t->naxes = ndrt_file_shape(p, param, t->shape);
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
                if (ndrt_has_kind(r, i, kind) &&
                    !add_tensor(p, l, i, p->params[i].nlayers ? k : -1, kind))
                    return false;
    if (kinds == 1)
        return true;
    ndrt_st_tensor *t = &l->t[l->n];     /* the counts, behind all others */
    *t = (ndrt_st_tensor){.name = strdup(ndrt_counts_name), .type = NDRT_ST_F32,
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
        whole[2 * k] = (float)(counts[k] / NDRT_HALF);
        whole[2 * k + 1] = (float)(counts[k] % NDRT_HALF);
    }
    if (kind < 0)
        return NDRT_OK;
    if (kind > 0 && l->kind[i - 1] != kind) {
        ndrt_status s = ndrt_show_state(r, kind);
        if (s != NDRT_OK)
            return s;
    }
    return gather_tensor(r, l->param[i], l->layer[i], kind, whole, piece);
}

static ndrt_status create(ndrt_rank *r, const list *l, const char *path,
                          ndrt_st_writer *w)
{
    char error[sizeof r->state->error];
    ndrt_status s = NDRT_EINTERNAL;
    ndrt_notes notes;

    snprintf(error, sizeof error, "out of memory for notes");
    if (ndrt_notes_make(r, l->n > 0 && l->kind[l->n - 1] < 0, &notes))
        s = ndrt_st_create(w, path, l->t, l->n, &notes, error, sizeof error);
    ndrt_notes_free(&notes);
    return s == NDRT_OK ? s : ndrt_fail(r, s, "%s", error);
}

static ndrt_status save_list(ndrt_rank *r, const list *l, const char *path,
                             float *whole, float *piece)
{
    bool first = r->rank == 0;
    ndrt_st_writer w = {0};
    char error[sizeof r->state->error];
    ndrt_status s = NDRT_OK;

    if (first)
        s = create(r, l, path, &w);
    /* a full disk is noticed on rank 0 alone; nobody sends then */
    s = ndrt_agree(r, s);
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
    return save_file(r, path, NDRT_NKINDS);
}
