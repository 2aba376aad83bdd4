/* type.c - dtypes, named-axis types, mesh coordinates, extents. */
#include "ir.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [ND_F32] = {"f32", 4},  [ND_I32] = {"i32", 4},   [ND_I64] = {"i64", 8},
    [ND_BOOL] = {"bool", 1}, [ND_BF16] = {"bf16", 2}, [ND_F16] = {"f16", 2},
};
enum { NDTYPES = sizeof dtypes / sizeof *dtypes };

const char *nd_dtype_name(nd_dtype t)
{
    return dtypes[t].name;
}

size_t nd_dtype_size(nd_dtype t)
{
    return dtypes[t].size;
}

bool nd_dtype_parse(const char *s, nd_dtype *t)
{
    for (int i = 0; i < NDTYPES; i++)
        if (strcmp(dtypes[i].name, s) == 0) {
            *t = (nd_dtype)i;
            return true;
        }
    return false;
}

bool nd_is_float(nd_dtype t)
{
    return t == ND_F32 || t == ND_BF16 || t == ND_F16;
}

bool nd_is_narrow(nd_dtype t)
{
    return t == ND_BF16 || t == ND_F16;
}

int nd_mesh_ranks(const nd_mesh *m)
{
    int n = 1;
    for (int i = 0; i < m->n; i++)
        if (i != m->micro)
            n *= m->size[i];
    return n;
}

int nd_mesh_find(const nd_mesh *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->name[i], name) == 0)
            return i;
    return -1;
}

void nd_mesh_coords(const nd_mesh *m, int rank, int coord[ND_MAX_MESH])
{
    for (int i = m->n - 1; i >= 0; i--) {
        coord[i] = 0;
        if (i != m->micro) {
            coord[i] = rank % m->size[i];
            rank /= m->size[i];
        }
    }
}

nd_type nd_type_of(nd_dtype t, int rank, nd_axis *const *axes)
{
    nd_type r = {.dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++)
        r.axis[i] = axes[i];
    return r;
}

int nd_axis_at(const nd_type *t, const nd_axis *a)
{
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] == a)
            return i;
    return -1;
}

bool nd_has_axis(const nd_op *op, const nd_axis *a)
{
    for (int i = 0; i < op->naxes; i++)
        if (op->axes[i] == a)
            return true;
    return false;
}

int64_t nd_numel(const nd_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->axis[i]->size;
    return n;
}

uint32_t nd_cut_bits(nd_cut c)
{
    uint32_t mask = 0;
    for (int j = 0; j < c.n; j++)
        mask |= 1u << c.m[j];
    return mask;
}

uint32_t nd_cut_mask(const nd_type *t)
{
    uint32_t mask = 0;
    for (int i = 0; i < t->rank; i++)
        mask |= nd_cut_bits(t->cut[i]);
    return mask;
}

nd_cut nd_cut_at(const nd_type *t, const nd_axis *a)
{
    int i = nd_axis_at(t, a);
    return i < 0 ? (nd_cut){0} : t->cut[i];
}

int nd_cut_by(const nd_type *t, int mesh)
{
    for (int i = 0; i < t->rank; i++)
        if (nd_cut_bits(t->cut[i]) >> mesh & 1)
            return i;
    return -1;
}

void nd_drop_axis(nd_type *t, int i)
{
    t->rank--;
    for (; i < t->rank; i++) {
        t->axis[i] = t->axis[i + 1];
        t->cut[i] = t->cut[i + 1];
    }
    t->axis[t->rank] = NULL;
    t->cut[t->rank] = (nd_cut){0};
}

bool nd_same_axes(const nd_type *a, const nd_type *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->axis[i] != b->axis[i])
            return false;
    return true;
}

bool nd_cut_eq(nd_cut a, nd_cut b)
{
    return a.n == b.n && memcmp(a.m, b.m, a.n) == 0;
}

bool nd_cut_begins(nd_cut a, nd_cut b)
{
    return a.n >= b.n && memcmp(a.m, b.m, b.n) == 0;
}

bool nd_same_cut(const nd_type *a, const nd_type *b)
{
    for (int i = 0; i < a->rank; i++)
        if (!nd_cut_eq(a->cut[i], b->cut[i]))
            return false;
    return a->sum == b->sum && a->max == b->max;
}

nd_type nd_union(const nd_type *a, const nd_type *b)
{
    nd_type u = {.dtype = a->dtype, .rank = a->rank};
    memcpy(u.axis, a->axis, sizeof u.axis);
    for (int i = 0; i < b->rank; i++)
        if (nd_axis_at(&u, b->axis[i]) < 0 && u.rank < ND_MAX_RANK)
            u.axis[u.rank++] = b->axis[i];
    return u;
}

void nd_extent(const nd_mesh *m, int64_t size, nd_cut cut, const int *coord,
               int64_t *off, int64_t *n)
{
    *off = 0;
    *n = size;
    for (int j = 0; j < cut.n; j++) {
        int64_t parts = m->size[cut.m[j]], c = coord[cut.m[j]];
        int64_t each = *n / parts, longer = *n % parts;
        *off += c * each + (c < longer ? c : longer);
        *n = each + (c < longer);
    }
}

int64_t nd_extent_max(const nd_mesh *m, int64_t size, nd_cut cut)
{
    static const int origin[ND_MAX_MESH];
    int64_t off, n;
    nd_extent(m, size, cut, origin, &off, &n);
    return n;
}

/* ---- rows that travel ---------------------------------------------------- */

nd_axis *nd_routed_axis(const nd_type *t)
{
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i]->route)
            return t->axis[i];
    return NULL;
}

nd_cut nd_route_cut(const nd_route *r)
{
    nd_cut c = {0};
    for (int i = 0; i < r->rows.rank; i++)
        for (int j = 0; j < r->rows.cut[i].n && c.n < ND_MAX_CUT; j++)
            c.m[c.n++] = r->rows.cut[i].m[j];
    return c;
}

/* Rows of the ranks along `over`, at the first place along all other mesh axes:
 * none has longer pieces. */
static int64_t group_rows(const nd_mesh *m, const nd_route *r, int axis)
{
    int64_t sum = 0, off, n;
    bool met = nd_cut_bits(r->rows.cut[axis]) >> r->over & 1;
    for (int c = 0; c < (met ? m->size[r->over] : 1); c++) {
        int coord[ND_MAX_MESH] = {0};
        coord[r->over] = c;
        nd_extent(m, r->rows.axis[axis]->size, r->rows.cut[axis], coord, &off,
                  &n);
        sum += n;
    }
    return sum;
}

int64_t nd_route_size(const nd_mesh *m, const nd_route *r)
{
    int64_t n = 1;
    for (int i = 0; i < r->rows.rank; i++) {
        n *= group_rows(m, r, i);
        for (int j = 0; j < r->rows.cut[i].n; j++)
            n *= m->size[r->rows.cut[i].m[j]];
    }
    return n;
}
