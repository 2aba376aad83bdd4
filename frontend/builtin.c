/* builtin.c - the table of forms, builtins.def and the elementwise ops, as a
 * list: what the checker takes for a built-in function, what ndc doc prints.
 */
#include "frontend.h"

#include <string.h>

static const ck_form table[] = {
#define FORM(name, form, meaning) {name, form, meaning},
#include "builtins.def"
#undef FORM
};
enum { NTABLE = sizeof table / sizeof *table };

bool ck_form_at(nd_arena *a, int i, ck_form *out)
{
    int op = EW_EXP + i - NTABLE;
    if (i < NTABLE) {
        *out = table[i];
        return true;
    }
    if (op > EW_MAX)
        return false;
    out->name = nd_ews[op].name;
    out->form = nd_fmt(a, nd_ews[op].nin == 1 ? "%s(a)" : "%s(a, b)",
                       nd_ews[op].name);
    out->meaning = nd_ews[op].doc;
    return true;
}

int ck_ew_function(const char *name)
{
    int op = nd_ew_find(name);
    return op >= EW_EXP && op <= EW_MAX ? op : -1;
}

bool ck_is_builtin(const char *name)
{
    if (ck_ew_function(name) >= 0)
        return true;
    for (int i = 0; i < NTABLE; i++)
        if (*name && !strcmp(name, table[i].name))
            return true;
    return false;
}
