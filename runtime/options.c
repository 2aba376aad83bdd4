/* options.c - the command line of a generated program. One table holds every
 * option: how it is read, where it goes, what --help says.
 */
#include "ndrt_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NDRT_VERSION "0.1"

enum { DEFAULT_TOKENS = 200, MOST_THREADS = 1024, MOST_MICRO = 100000 };

typedef enum {
    STEPS, DATA, EVAL_DATA, SEED, LR, WARMUP, CLIP, LOG, COMM, LOAD, SAVE,
    CHECKPOINTS, RESUME, GENERATE, TOKENS, TEMPERATURE, THREADS,
    CHECK_REPLICAS, MICRO_LOSSES, OVERLAP, SCHEDULE, MICROBATCHES, MESSAGES,
    TRACE, TRACE_STEP, TIMES, PROFILE, PRODUCTS, HELP, VERSION, NOPTIONS
} option_id;

static const struct {
    const char *name, *value, *help;
} options[NOPTIONS] = {
    [STEPS] = {"--steps", "N", "training steps; 0 trains nothing"},
    [DATA] = {"--data", "FILE", "training data: text or tokens as in the "
              "source, or arrays\n                       in a .safetensors or "
              ".npz file"},
    [EVAL_DATA] = {"--eval-data", "FILE", "evaluation data of the same kind; "
                   "without it, the last 5%"},
    [SEED] = {"--seed", "N", "of initial values, dropout, made-up data and "
              "--generate"},
    [LR] = {"--lr", "X", "peak learning rate; its schedule stays"},
    [WARMUP] = {"--warmup", "N", "steps until the peak"},
    [CLIP] = {"--clip", "X", "limit of the global gradient norm; 0: none"},
    [LOG] = {"--log", "FILE", "write a JSON object per step"},
    [COMM] = {"--comm", "FILE", "write the calls and bytes that each rank sent "
              "in a step"},
    [LOAD] = {"--load", "FILE", "start from these weights (.safetensors)"},
    [SAVE] = {"--save", "FILE", "write the weights at the end "
              "(.safetensors)"},
    [CHECKPOINTS] = {"--checkpoints", "DIR", "where the source's `checkpoint` "
                     "goes"},
    [RESUME] = {"--resume", "DIR", "go on from the last checkpoint there, with "
                "its seed; with\n                       the same optimizer and "
                "sizes of inputs"},
    [GENERATE] = {"--generate", "TEXT", "continue this text, after training "
                  "and saving"},
    [TOKENS] = {"--tokens", "N", "bytes to generate (200)"},
    [TEMPERATURE] = {"--temperature", "X", "of --generate; 0: always the "
                     "likeliest byte (1)"},
    [THREADS] = {"--threads", "N", "threads per rank; 0: the CPUs by the ranks "
                 "of this host,\n                       or 1 if it has little "
                 "to do (0)"},
    [CHECK_REPLICAS] = {"--check-replicas", NULL, "fail if two copies of a "
                        "parameter differ\n                       after "
                        "training, in any bit"},
    [MICRO_LOSSES] = {"--micro-losses", NULL, "print the loss of each "
                      "microbatch"},
    [OVERLAP] = {"--overlap", "on|off", "make calls in flight in a thread of "
                 "their own; without\n                       it, where a rank "
                 "has two CPUs"},
    [SCHEDULE] = {"--schedule", "NAME", "of the pipeline: 1f1b, zb_h1, .. or "
                  "a file of actions"},
    [MICROBATCHES] = {"--microbatches", "N", "parts that a batch is cut into"},
    [MESSAGES] = {"--messages", "ahead|inline", "between stages: in a thread "
                  "of their own as early\n                       as can be "
                  "(ahead), or between computations"},
    [TRACE] = {"--trace", "FILE", "write the timeline of one step for "
               "Perfetto or Chrome"},
    [TRACE_STEP] = {"--trace-step", "N", "which one (the third)"},
    [TIMES] = {"--times", "FILE", "write how long each stage's actions took, "
               "the median"},
    [PROFILE] = {"--profile", "FILE", "write the time of each kernel, for `ndc "
                 "--emit=roofline`"},
    [PRODUCTS] = {"--products", "FILE", "write how fast the matrix products "
                  "of a step are alone"},
    [HELP] = {"--help", NULL, "this text"},
    [VERSION] = {"--version", NULL, "print the version"},
};

/* What the train block of the source says, which options override. */
static void print_defaults(const ndrt_train *t, FILE *out)
{
    fprintf(out, "\nThe source has --steps %lld --seed %llu --lr %g --warmup "
            "%lld --clip %g\n", (long long)t->steps,
            (unsigned long long)t->seed, t->lr, (long long)t->warmup, t->clip);
    if (t->data_path)
        fprintf(out, "--data %s", t->data_path);
    else
        fputs(t->data == NDRT_DATA_SYNTHETIC ? "made-up data" : "no data",
              out);
    if (t->eval_path)
        fprintf(out, " --eval-data %s", t->eval_path);
    if (t->load_path)
        fprintf(out, " --load %s", t->load_path);
    fputs("; what is not given here stays so.\n", out);
}

static void print_help(const ndrt_program *p, FILE *out)
{
    int ranks = ndrt_mesh_ranks(p);

    fprintf(out, "%s: trains the model of %s on %d rank%s\n\n"
            "usage: ./PROGRAM [options]               ranks are threads\n"
            "       mpirun -n %d ./PROGRAM [options]   ranks are processes\n\n",
            p->name, p->source ? p->source : "a .nd file", ranks,
            ranks == 1 ? "" : "s", ranks);
    for (int i = 0; i < NOPTIONS; i++) {
        char left[40];
        snprintf(left, sizeof left, "%s %s", options[i].name,
                 options[i].value ? options[i].value : "");
        fprintf(out, "  %-20s %s\n", left, options[i].help);
    }
    print_defaults(&p->train, out);
    fputs("How many threads there are changes no result. Where they and the "
          "ranks are as many\nas the CPUs, each stays on its own.\n", out);
    fprintf(out, "--name=VALUE works too. Exit status: 0 done, 1 bad data, a "
            "file that cannot be\nread or written, or a run that is not "
            "finite; 2 wrong usage; 3 internal error.\n");
}

/* ---- reading values --------------------------------------------------- */

static bool to_int(const char *s, int64_t low, int64_t *out)
{
    char *end;

    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno || v < low)
        return false;
    *out = v;
    return true;
}

static bool to_seed(const char *s, uint64_t *out)
{
    char *end;

    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (end == s || *end || errno || *s == '-')
        return false;
    *out = v;
    return true;
}

static bool to_double(const char *s, double *out)
{
    char *end;
    double v = strtod(s, &end);

    if (end == s || *end || !isfinite(v) || v < 0.0)
        return false;
    *out = v;
    return true;
}

static void set_data(ndrt_train *t, const char *path)
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(path), e = sizeof ending - 1;
    bool arrays = n > e && strcmp(path + n - e, ending) == 0;

    if (arrays || ndrt_is_npz(path))
        t->data = NDRT_DATA_ARRAYS;
    else if (t->data != NDRT_DATA_TOKENS)
        t->data = NDRT_DATA_TEXT;
    t->data_path = path;
    t->eval_path = NULL;          /* it went with the other file */
}

/* What stands first in "on|off", or second. */
static bool to_choice(const char *v, const char *first, const char *second,
                      bool *is_first)
{
    *is_first = strcmp(v, first) == 0;
    return *is_first || strcmp(v, second) == 0;
}

/* False if the value is none for this option. */
static bool set(ndrt_config *c, option_id id, const char *v)
{
    ndrt_train *t = &c->train;
    bool first, ok;

    switch (id) {
    case STEPS:
        return to_int(v, 0, &t->steps);
    case DATA:
        set_data(t, v);
        return true;
    case EVAL_DATA:
        c->eval_path = v;
        return true;
    case SEED:
        c->seed_given = true;
        return to_seed(v, &t->seed);
    case LR:
        if (!to_double(v, &t->lr))
            return false;
        t->lr_min = t->lr_min < t->lr ? t->lr_min : t->lr;
        return true;
    case WARMUP:
        return to_int(v, 0, &t->warmup);
    case CLIP:
        return to_double(v, &t->clip);
    case LOG:
        c->log_path = v;
        return true;
    case COMM:
        c->comm_path = v;
        return true;
    case LOAD:
        t->load_path = v;
        c->load_all = true;
        return true;
    case SAVE:
        c->save_path = v;
        return true;
    case CHECKPOINTS:
        t->save_folder = v;
        return true;
    case RESUME:
        c->resume_path = v;
        return true;
    case GENERATE:
        c->generate = v;
        return true;
    case TOKENS:
        return to_int(v, 0, &c->tokens);
    case TEMPERATURE:
        return to_double(v, &c->temperature);
    case THREADS:
        return to_int(v, 0, &c->threads) && c->threads <= MOST_THREADS;
    case CHECK_REPLICAS:
        c->check_replicas = true;
        return true;
    case MICRO_LOSSES:
        c->micro_losses = true;
        return true;
    case OVERLAP:
        ok = to_choice(v, "on", "off", &first);
        c->overlap = first ? NDRT_OVERLAP_ON : NDRT_OVERLAP_OFF;
        return ok;
    case SCHEDULE:
        c->schedule = v;
        return true;
    case MICROBATCHES:
        return to_int(v, 1, &c->microbatches) &&
               c->microbatches <= MOST_MICRO;
    case MESSAGES:
        ok = to_choice(v, "ahead", "inline", &first);
        c->messages = first ? NDRT_MESSAGES_AHEAD : NDRT_MESSAGES_INLINE;
        return ok;
    case TRACE:
        c->trace_path = v;
        return true;
    case TRACE_STEP:
        return to_int(v, 1, &c->trace_step);
    case TIMES:
        c->times_path = v;
        return true;
    case PROFILE:
        c->profile_path = v;
        return true;
    case PRODUCTS:
        c->products_path = v;
        return true;
    case HELP:
    case VERSION:
    case NOPTIONS:
        break;
    }
    return true;
}

/* ---- unknown options -------------------------------------------------- */

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;

    return m < c ? m : c;
}

/* Edit distance of short words; long ones are far from everything. */
static int distance(const char *a, const char *b)
{
    enum { MOST = 32 };
    int row[MOST + 1], la = (int)strlen(a), lb = (int)strlen(b);

    if (la > MOST || lb > MOST)
        return MOST;
    for (int j = 0; j <= lb; j++)
        row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int up = row[j];
            row[j] = min3(row[j - 1] + 1, up + 1,
                          diagonal + (a[i - 1] != b[j - 1]));
            diagonal = up;
        }
    }
    return row[lb];
}

static void unknown(const ndrt_program *p, const char *word, FILE *err)
{
    int best = 0, near = 3;

    for (int i = 0; i < NOPTIONS; i++) {
        int d = distance(word, options[i].name);
        if (d <= near) {
            near = d - 1;
            best = i + 1;
        }
    }
    fprintf(err, "%s: error: unknown option \"%s\"", p->name, word);
    if (best)
        fprintf(err, "; did you mean \"%s\"?", options[best - 1].name);
    fprintf(err, "\n%s: --help lists the options\n", p->name);
}

/* ---- the loop --------------------------------------------------------- */

static int find(const char *arg, size_t len)
{
    for (int i = 0; i < NOPTIONS; i++)
        if (strlen(options[i].name) == len &&
            strncmp(options[i].name, arg, len) == 0)
            return i;
    return -1;
}

static ndrt_status one(const ndrt_program *p, int argc, char **argv, int *at,
                       ndrt_config *c, FILE *out, FILE *err)
{
    char *arg = argv[*at];
    size_t len = strcspn(arg, "=");
    int id = find(arg, len);

    if (id < 0) {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)(len < 63 ? len : 63), arg);
        unknown(p, word, err);
        return NDRT_EUSAGE;
    }
    if (id == HELP || id == VERSION) {
        if (id == HELP)
            print_help(p, out);
        else
            fprintf(out, "%s, ndrt %s\n", p->name, NDRT_VERSION);
        c->done = true;
        return NDRT_OK;
    }
    const char *value = arg[len] == '=' ? arg + len + 1 : NULL;
    if (value && !options[id].value) {
        fprintf(err, "%s: error: %s takes no value\n", p->name,
                options[id].name);
        return NDRT_EUSAGE;
    }
    if (!value && options[id].value && *at + 1 < argc)
        value = argv[++*at];
    if (!value && options[id].value) {
        fprintf(err, "%s: error: %s needs a value: %s %s\n", p->name,
                options[id].name, options[id].name, options[id].value);
        return NDRT_EUSAGE;
    }
    if (!set(c, (option_id)id, value)) {
        const char *kind = options[id].value, *or = strchr(kind, '|');
        if (or)
            fprintf(err, "%s: error: %s \"%s\" is neither %.*s nor %s\n",
                    p->name, options[id].name, value, (int)(or - kind), kind,
                    or + 1);
        else
            fprintf(err, "%s: error: %s \"%s\" is not a number of that kind "
                    "(%s%s)\n", p->name, options[id].name, value,
                    (option_id)id == MICROBATCHES ||
                            (option_id)id == TRACE_STEP ? "at least 1"
                                                        : "not negative",
                    kind[0] == 'N' ? ", whole" : "");
        return NDRT_EUSAGE;
    }
    return NDRT_OK;
}

/* What the program cannot use. Made-up data may stand for text or arrays. */
static ndrt_status check_data(const ndrt_program *p, const ndrt_config *c,
                              FILE *err)
{
    const ndrt_train *t = &c->train;
    bool arrays = p->train.data == NDRT_DATA_ARRAYS ||
                  (p->train.data == NDRT_DATA_SYNTHETIC &&
                   !ndrt_takes_text(p));

    if (t->data == NDRT_DATA_TEXT && arrays) {
        fprintf(err, "%s: error: --data \"%s\": arrays need .safetensors or "
                ".npz\n", p->name, t->data_path);
        return NDRT_EINPUT;
    }
    if (c->eval_path && t->eval_every <= 0 && t->nmetrics == 0) {
        fprintf(err, "%s: error: --eval-data: the program evaluates nothing; "
                "its source needs `eval` or `metric` in the train block\n",
                p->name);
        return NDRT_EUSAGE;
    }
    if (c->eval_path && t->data == NDRT_DATA_SYNTHETIC) {
        fprintf(err, "%s: error: --eval-data: the program's data are made up; "
                "give --data too\n", p->name);
        return NDRT_EUSAGE;
    }
    return NDRT_OK;
}

ndrt_status ndrt_options(const ndrt_program *p, int argc, char **argv,
                         ndrt_config *c, FILE *out, FILE *err)
{
    FILE *sink = out && err ? NULL : fopen("/dev/null", "we");
    ndrt_status s = NDRT_OK;

    *c = (ndrt_config){.train = p->train, .tokens = DEFAULT_TOKENS,
                       .temperature = 1.0};
    for (int i = 1; i < argc && s == NDRT_OK && !c->done; i++)
        s = one(p, argc, argv, &i, c, out ? out : sink, err ? err : sink);
    if (s == NDRT_OK && !c->done && c->load_all && c->resume_path) {
        fprintf(err ? err : sink, "%s: error: --load and --resume both say "
                "which weights to begin with: give one\n", p->name);
        s = NDRT_EUSAGE;
    }
    if (c->eval_path)
        c->train.eval_path = c->eval_path;
    if (s == NDRT_OK && !c->done)
        s = check_data(p, c, err ? err : sink);
    if (sink)
        fclose(sink);
    return s;
}
