/* table.c - a hash table from pointers or strings to pointers.
 *
 * Open addressing with linear probing, at most half full. Entries are never
 * removed; a table lives and dies with its arena. Nothing iterates over one, so
 * no output depends on the order of keys.
 */
#include "ir.h"

#include <string.h>

static size_t slot_of(const nd_table *t, const void *key)
{
    uint64_t h = t->strings ? nd_hash(key)
                            : (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u;
    size_t mask = (size_t)t->cap - 1, i = (size_t)(h ^ h >> 32) & mask;
    while (t->key[i] && t->key[i] != key &&
           !(t->strings && strcmp(t->key[i], key) == 0))
        i = (i + 1) & mask;
    return i;
}

void *nd_table_get(const nd_table *t, const void *key)
{
    if (!t->cap)
        return NULL;
    size_t i = slot_of(t, key);
    return t->key[i] ? t->val[i] : NULL;
}

static void enlarge(nd_table *t)
{
    nd_table old = *t;
    t->cap = old.cap ? old.cap * 2 : 32;
    t->key = ND_NEWN(t->arena, const void *, t->cap);
    t->val = ND_NEWN(t->arena, void *, t->cap);
    for (int i = 0; i < old.cap; i++)
        if (old.key[i]) {
            size_t j = slot_of(t, old.key[i]);
            t->key[j] = old.key[i];
            t->val[j] = old.val[i];
        }
}

void nd_table_put(nd_table *t, const void *key, void *val)
{
    if (2 * t->n >= t->cap)
        enlarge(t);
    size_t i = slot_of(t, key);
    if (!t->key[i])
        t->n++;
    t->key[i] = key;
    t->val[i] = val;
}
