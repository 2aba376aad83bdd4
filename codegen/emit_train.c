/* emit_train.c - the part of `program` that says how it is trained, and how
 * strings and numbers are written in the tables.
 */
#include "codegen.h"

#include <string.h>

const char *cg_text_of(cg *g, const char *s)
{
    nd_buf b = {.arena = g->a};
    nd_put(&b, "");
    for (; s && *s; s++) {
        if (*s == '"' || *s == '\\')
            nd_put(&b, "\\");
        if ((unsigned char)*s < 32)
            nd_putf(&b, "\\%03o", (unsigned char)*s);
        else
            nd_putn(&b, s, 1);
    }
    return s ? nd_fmt(g->a, "\"%s\"", b.s) : "NULL";
}

const char *cg_real(cg *g, double v)
{
    for (int digits = 6; digits <= 17; digits++) {
        const char *s = nd_fmt(g->a, "%.*g", digits, v);
        double back;
        if (sscanf(s, "%lf", &back) == 1 && back == v)
            return s;
    }
    return "0";
}

/* Metrics are outputs, by number. */
void cg_emit_metrics(cg *g, nd_buf *b)
{
    const nd_train *t = &g->m->train;
    nd_buf s = {.arena = g->a};
    if (!t->metrics.n)
        return;
    nd_put(&s, "static const int metrics[] = {");
    for (int k = 0; k < t->metrics.n; k++) {
        int i = 0;
        while (strcmp(g->m->outputs.v[i]->name, t->metrics.v[k]))
            i++;
        nd_putf(&s, "%s%d", k ? ", " : "", i);
    }
    nd_put(&s, "};");
    cg_fold(b, 0, s.s);
    nd_put(b, "\n");
}

void cg_emit_train(cg *g, nd_buf *b)
{
    static const char *const data[] = {"NONE", "TEXT", "ARRAYS", "SYNTHETIC",
                                       "TOKENS"};
    static const char *const opt[] = {"SGD", "ADAM", "ADAMW", "LION", "MUON"};
    static const char *const lr[] = {"CONST", "COSINE", "LINEAR", "WSD"};
    const nd_train *t = &g->m->train;
    nd_put(b, "    .train = {\n");
    nd_putf(b, "        .data = NDRT_DATA_%s,\n", data[t->data]);
    if (t->data_path)
        nd_putf(b, "        .data_path = %s,\n", cg_text_of(g, t->data_path));
    if (t->eval_path)
        nd_putf(b, "        .eval_path = %s,\n", cg_text_of(g, t->eval_path));
    if (t->data == DATA_TOKENS)
        nd_putf(b, "        .token_bytes = %d,\n", t->token_bytes);
    nd_putf(b, "        .opt = NDRT_%s,\n        .lr_kind = NDRT_LR_%s,\n",
            opt[t->opt], lr[t->lr_kind]);
    struct {
        const char *name;
        double v;
    } num[] = {{"lr", t->lr}, {"lr_min", t->lr_min}, {"beta1", t->beta1},
               {"beta2", t->beta2}, {"eps", t->eps},
               {"weight_decay", t->weight_decay}, {"momentum", t->momentum},
               {"clip", t->clip}};
    for (size_t i = 0; i < sizeof num / sizeof *num; i++)
        if (num[i].v != 0)
            nd_putf(b, "        .%s = %s,\n", num[i].name,
                    cg_real(g, num[i].v));
    if (t->nesterov)
        nd_put(b, "        .nesterov = true,\n");
    if (t->opt == OPT_MUON)
        nd_putf(b, "        .ns_steps = %lld,\n        .adamw_ratio = %s,\n",
                (long long)t->ns_steps, cg_real(g, t->adamw_ratio));
    nd_putf(b, "        .warmup = %lld,\n        .steps = %lld,\n"
               "        .seed = %llu,\n",
            (long long)t->warmup, (long long)t->steps,
            (unsigned long long)t->seed);
    if (t->lr_kind == LR_WSD && t->steps > 0)
        nd_putf(b, "        .decay_fraction = %s,\n",
                cg_real(g, t->decay_steps || t->steps < 5
                            ? (double)t->decay_steps / (double)t->steps
                            : -1.0));
    if (t->eval_every)
        nd_putf(b, "        .eval_every = %lld,\n        .eval_batches = "
                   "%lld,\n", (long long)t->eval_every,
                (long long)t->eval_batches);
    if (t->metrics.n)
        nd_putf(b, "        .nmetrics = %d,\n        .metrics = metrics,\n",
                t->metrics.n);
    if (t->load_path)
        nd_putf(b, "        .load_path = %s,\n", cg_text_of(g, t->load_path));
    if (t->load_prefix)
        nd_putf(b, "        .load_prefix = %s,\n",
                cg_text_of(g, t->load_prefix));
    if (t->save_every)
        nd_putf(b, "        .save_every = %lld,\n        .keep = %lld,\n"
                   "        .save_folder = %s,\n", (long long)t->save_every,
                (long long)t->keep, cg_text_of(g, t->save_folder));
    nd_put(b, "    },\n");
}
