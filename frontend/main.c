/* main.c - the command line of ndc. */
#include "ndc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: ndc FILE [options]           build an executable, or print a form\n"
    "       ndc check FILE... [options]  tell errors and warnings, write "
    "nothing\n"
    "       ndc verify FILE [options]    prove that the plan computes what "
    "one\n"
    "                                    device computes; needs no hardware\n"
    "       ndc roofline FILE [options] [-- options of the program]\n"
    "                                    run some steps: the time of each "
    "kernel, and\n"
    "                                    how far it is from its limit\n"
    "       ndc fmt FILE...              format programs in place\n"
    "       ndc doc [FILE] [NAME]        the reference of a library\n"
    "       ndc schedule NAME|FILE       make or read a pipeline schedule, "
    "prove it\n"
    "                                    and show it\n"
    "\n"
    "FILE is a program (.nd), of which ndc builds an executable unless "
    "--emit asks\n"
    "for something else; or a printed graph (.ndir), which has no train and "
    "plan\n"
    "block: it can be printed, not built.\n"
    "\n"
    "  -o OUT             write OUT (default: the file's stem, or stdout)\n"
    "  --emit=FORM        print a form instead of building:\n"
    "                       ast       the syntax tree, with places\n"
    "                       ir        the graph, as the program says it\n"
    "                       values    what it computes on one device, on "
    "made-up\n"
    "                                 inputs: outputs, loss, gradients\n"
    "                       spmd      the graph after all passes\n"
    "                       schedule  the pipeline's timeline; also "
    "schedule.csv,\n"
    "                                 schedule.comms.csv (with messages),\n"
    "                                 schedule.svg, schedule.json (for "
    "Perfetto)\n"
    "                       c         the generated program\n"
    "                       llvm      its kernels as LLVM IR, as they run\n"
    "                       asm       ... as assembly\n"
    "                       plan      memory, communication, bubble\n"
    "                       comm      every collective: bytes, calls, time\n"
    "                       kernels   what each kernel reads and writes\n"
    "                       roofline  how far each is from its limit, by a "
    "run's\n"
    "                                 --profile FILE\n"
    "  --until=PASS       with --emit=ir: the graph after that pass\n"
    "  --cpu=NAME         build for that processor: native (this one), "
    "x86-64-v2,\n"
    "                     x86-64-v3, x86-64-v4, any -march of the C compiler\n"
    "  --kernels=c|llvm   loop kernels by the C compiler, or by LLVM (the "
    "default\n"
    "                     where ndc has it)\n"
    "  --rank=N           with --emit=comm: that rank, not the first of each "
    "stage\n"
    "  --marks            build a program that knows --profile FILE: the time "
    "of each\n"
    "                     kernel\n"
    "\n"
    "building, check, verify and roofline:\n"
    "  --mesh a=1,b=2     sizes of the plan's mesh axes (.nd only)\n"
    "  --set axis=N       another size for an axis (.nd only); may be "
    "repeated\n"
    "  --model NAME       compile that model of several (.nd only)\n"
    "  --plan FILE        use the plan block of FILE (.nd only)\n"
    "\n"
    "building, check and roofline:\n"
    "  --times FILE       the times of stages that the program wrote with "
    "--times\n"
    "  --require-even     refuse sizes that do not divide over the mesh (.nd "
    "only)\n"
    "  --dump-after=PASS  print the graph after a pass, or after `all`; not "
    "with\n"
    "                     --emit=ast, with --emit=ir only up to --until\n"
    "  --verify-each      verify the graph after every pass\n"
    "  --werror           fail on warnings\n"
    "\n"
    "verify:\n"
    "  --all              on meshes of all sizes 1 to 4, up to 12 ranks; sizes "
    "that\n"
    "                     --mesh gives stay, and do not count\n"
    "  --no-shrink        keep the sizes of all axes\n"
    "\n"
    "roofline:\n"
    "  --steps N          of the run (5); the first one does not count\n"
    "  --threads N, --data FILE\n"
    "                     as the program has them\n"
    "  --profile FILE     keep what the run has measured\n"
    "  -o OUT, --cpu=NAME, --kernels=c|llvm\n"
    "                     as above\n"
    "  -- OPTION...       what else the program is to be told: --seed 3\n"
    "\n"
    "fmt (FILE may be `-`: stdin, formatted to stdout):\n"
    "  --check            change nothing, list files that would; then exit "
    "with 1\n"
    "  --stdout           write to stdout\n"
    "\n"
    "doc (NAME is a function, of nn.nd unless a FILE is given):\n"
    "  --ops              operators and built-in functions instead\n"
    "  --keywords, --builtins\n"
    "                     the words alone, for editors\n"
    "  --markdown         as markdown\n"
    "\n"
    "schedule (a FILE has a dot or a slash in its name; NAMEs: --list):\n"
    "  --ranks P --microbatches M\n"
    "                     of what is made; a file has its own\n"
    "  --costs F,I,W[,M]  the times of forward, of both halves of backward, of "
    "a\n"
    "                     message; default 1,1,1,0\n"
    "  --times FILE       the times that a program wrote with --times\n"
    "  --room N           auto: a rank may hold N microbatches of one stage\n"
    "  --emit=FORM        timeline, figures (of each rank), csv "
    "(computations),\n"
    "                     comms (csv with messages), svg, or json for "
    "Perfetto; -o OUT\n"
    "                     as above\n"
    "  --list             the schedules that have a name\n"
    "\n"
    "  --list-ops         the ops of the graph\n"
    "  --list-passes      the passes in order\n"
    "  --help, --version\n"
    "\n"
    "exit status: 0 done, 1 errors in the input, 2 wrong usage, 3 a bug in "
    "ndc\n";

static int usage(const char *what, const char *arg, const char *near)
{
    fprintf(stderr, "ndc: error: %s%s%s%s", what, arg ? " `" : "",
            arg ? arg : "", arg ? "`" : "");
    if (near)
        fprintf(stderr, "; did you mean `%s`?\n", near);
    else
        fprintf(stderr, "; see ndc --help\n");
    return NDC_BAD_USAGE;
}

/* ---- options ------------------------------------------------------------- */

/* An option has one of: a value, a flag, or with `n` a list of values. */
typedef struct option {
    const char *name;
    const char **value;
    bool *flag;
    int *n;
} option;

/* The value of `--name=value` or `--name value`; NULL if it is not this
 * option; "" if its value is missing. */
static const char *value_of(const char *name, int argc, char **argv, int *i)
{
    size_t n = strlen(name);
    const char *a = argv[*i];
    if (strncmp(a, name, n))
        return NULL;
    if (a[n] == '=')
        return a + n + 1;
    if (a[n])
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

static int unknown(const char *arg, const option *o, int n)
{
    enum { MANY = 32 };
    const char *cand[MANY];
    char word[64];
    for (int k = 0; k < n && k < MANY; k++)
        cand[k] = o[k].name;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(arg, "="), arg);
    return usage("unknown option", arg,
                 ndc_nearest(word, cand, n < MANY ? n : MANY));
}

/* How many arguments stand in front of `--`. */
static int before_dashes(int argc, char **argv)
{
    int n = 0;
    while (n < argc && strcmp(argv[n], "--"))
        n++;
    return n;
}

/* Sorts the arguments into options and, at the front of argv, files. Returns
 * how many files, or -1 after an error. */
static int parse(int argc, char **argv, const option *o, int n)
{
    int files = 0;
    for (int i = 0; i < argc; i++) {
        const char *v = NULL;
        int k = 0;
        if (argv[i][0] != '-' || !argv[i][1]) {
            argv[files++] = argv[i];
            continue;
        }
        for (k = 0; k < n; k++)
            if (o[k].flag ? !strcmp(argv[i], o[k].name)
                : (v = value_of(o[k].name, argc, argv, &i)) != NULL)
                break;
        if (k == n) {
            unknown(argv[i], o, n);
            return -1;
        }
        if (v && !*v) {
            usage("no value for", o[k].name, NULL);
            return -1;
        }
        if (o[k].flag)
            *o[k].flag = true;
        else
            o[k].value[o[k].n ? (*o[k].n)++ : 0] = v;
    }
    return files;
}

/* ---- commands ------------------------------------------------------------ */

typedef struct info {                /* what prints something and stops */
    bool help, version, ops, passes;
} info;

static int print_info(const info *i)
{
    if (i->help)
        fputs(help, stdout);
    else if (i->version)
        puts("ndc " NDC_VERSION);
    else if (i->ops)
        ndc_list_ops(stdout);
    else if (i->passes)
        ndc_list_passes(stdout);
    else
        return -1;
    return fflush(stdout) ? NDC_BAD_INPUT : NDC_OK;
}

/* Of a command that takes one file: that, and -1; or the exit status. */
static int one_file(int n, char **argv, const info *i, const char **file)
{
    int rc = n < 0 ? NDC_BAD_USAGE : print_info(i);
    if (rc >= 0)
        return rc;
    if (!n)
        return usage("no input file", NULL, NULL);
    if (n > 1)
        return usage("a second file:", argv[1], NULL);
    *file = argv[0];
    return -1;
}

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} command;

static int cmd_check(int argc, char **argv);
static int cmd_verify(int argc, char **argv);
static int cmd_fmt(int argc, char **argv);
static int cmd_doc(int argc, char **argv);
static int cmd_schedule(int argc, char **argv);
static int cmd_roofline(int argc, char **argv);

static const command commands[] = {
    {"check", cmd_check}, {"verify", cmd_verify},
    {"fmt", cmd_fmt}, {"doc", cmd_doc}, {"schedule", cmd_schedule},
    {"roofline", cmd_roofline},
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

/* `ndc fmtt a.nd` means a command, not a file. */
static int many_files(char **argv)
{
    const char *names[NCOMMANDS];
    for (int i = 0; i < NCOMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = ndc_nearest(argv[0], names, NCOMMANDS);
    if (near && access(argv[0], F_OK))
        return usage("no command is called", argv[0], near);
    return usage("a second file:", argv[1], NULL);
}

static int each_file(ndc_options *o, int n, char **files)
{
    int rc = NDC_OK;
    for (int i = 0; i < n; i++) {
        o->file = files[i];
        int one = ndc_compile(o);
        rc = one > rc ? one : rc;
    }
    return rc;
}

/* `ndc check`, or `ndc` alone; `set` has room for every argument. */
static int compile(int argc, char **argv, const char **set, bool check)
{
    ndc_options o = {.emit = check ? NDC_CHECK : NDC_EXE, .set = set};
    const char *emit = NULL;
    info i = {0};
    const option opts[] = {
        {"--set", set, NULL, &o.nset},
        {"--mesh", &o.mesh, NULL, NULL},
        {"--plan", &o.plan, NULL, NULL},
        {"--model", &o.model, NULL, NULL},
        {"--dump-after", &o.dump_after, NULL, NULL},
        {"--require-even", NULL, &o.require_even, NULL},
        {"--verify-each", NULL, &o.verify_each, NULL},
        {"--werror", NULL, &o.werror, NULL},
        {"--help", NULL, &i.help, NULL},
        {"-h", NULL, &i.help, NULL},
        /* not for check */
        {"--emit", &emit, NULL, NULL},
        {"-o", &o.out, NULL, NULL},
        {"--until", &o.until, NULL, NULL},
        {"--cpu", &o.cpu, NULL, NULL},
        {"--kernels", &o.kernels, NULL, NULL},
        {"--rank", &o.rank, NULL, NULL},
        {"--times", &o.times, NULL, NULL},
        {"--profile", &o.profile, NULL, NULL},
        {"--marks", NULL, &o.marks, NULL},
        {"--version", NULL, &i.version, NULL},
        {"--list-ops", NULL, &i.ops, NULL},
        {"--list-passes", NULL, &i.passes, NULL},
    };
    int all = sizeof opts / sizeof *opts, n = check ? 10 : all;
    int files = parse(argc, argv, opts, n);
    int rc = files < 0 ? NDC_BAD_USAGE : print_info(&i);
    if (rc >= 0)
        return rc;
    if (emit && ndc_emit_find(emit) < 0)
        return usage("no form is called", emit, NULL);
    if (emit)
        o.emit = (ndc_emit)ndc_emit_find(emit);
    if (!files)
        return usage("no input file", NULL, NULL);
    if (files > 1 && !check)
        return many_files(argv);
    return each_file(&o, files, argv);
}

/* f with room for the value of every --set. */
static int with_set(int argc, char **argv,
                    int f(int argc, char **argv, const char **set))
{
    const char **set = calloc((size_t)argc + 1, sizeof *set);
    int rc = set ? f(argc, argv, set) : NDC_BUG;
    free(set);
    return rc;
}

static int build(int argc, char **argv, const char **set)
{
    return compile(argc, argv, set, false);
}

static int check(int argc, char **argv, const char **set)
{
    return compile(argc, argv, set, true);
}

static int cmd_check(int argc, char **argv)
{
    return with_set(argc, argv, check);
}

static int verify(int argc, char **argv, const char **set)
{
    ndc_verify_options o = {.set = set};
    info i = {0};
    const option opts[] = {
        {"--set", set, NULL, &o.nset},
        {"--mesh", &o.mesh, NULL, NULL},
        {"--plan", &o.plan, NULL, NULL},
        {"--model", &o.model, NULL, NULL},
        {"--all", NULL, &o.all, NULL},
        {"--no-shrink", NULL, &o.keep_sizes, NULL},
        {"--help", NULL, &i.help, NULL},
        {"-h", NULL, &i.help, NULL},
    };
    int n = parse(argc, argv, opts, sizeof opts / sizeof *opts);
    int rc = one_file(n, argv, &i, &o.file);
    return rc < 0 ? ndc_verify(&o) : rc;
}

static int roofline(int argc, char **argv, const char **set)
{
    int own = before_dashes(argc, argv);
    bool more = own < argc;
    ndc_roofline_options o = {.build.set = set, .nrun = argc - own - more,
                              .run = argv + own + more};
    ndc_options *b = &o.build;
    info i = {0};
    const option opts[] = {
        {"--set", set, NULL, &b->nset},
        {"--mesh", &b->mesh, NULL, NULL},
        {"--plan", &b->plan, NULL, NULL},
        {"--model", &b->model, NULL, NULL},
        {"--times", &b->times, NULL, NULL},
        {"--cpu", &b->cpu, NULL, NULL},
        {"--kernels", &b->kernels, NULL, NULL},
        {"--dump-after", &b->dump_after, NULL, NULL},
        {"--require-even", NULL, &b->require_even, NULL},
        {"--verify-each", NULL, &b->verify_each, NULL},
        {"--werror", NULL, &b->werror, NULL},
        {"--steps", &o.steps, NULL, NULL},
        {"--threads", &o.threads, NULL, NULL},
        {"--data", &o.data, NULL, NULL},
        {"--profile", &b->profile, NULL, NULL},
        {"-o", &b->out, NULL, NULL},
        {"--help", NULL, &i.help, NULL},
        {"-h", NULL, &i.help, NULL},
    };
    int n = parse(own, argv, opts, sizeof opts / sizeof *opts);
    int rc = one_file(n, argv, &i, &b->file);
    return rc < 0 ? ndc_roofline(&o) : rc;
}

static int cmd_roofline(int argc, char **argv)
{
    return with_set(argc, argv, roofline);
}

static int cmd_verify(int argc, char **argv)
{
    return with_set(argc, argv, verify);
}

static int cmd_fmt(int argc, char **argv)
{
    ndc_fmt_options o = {0};
    info i = {0};
    const option opts[] = {
        {"--check", NULL, &o.check, NULL},
        {"--stdout", NULL, &o.to_stdout, NULL},
        {"--help", NULL, &i.help, NULL},
        {"-h", NULL, &i.help, NULL},
    };
    int n = parse(argc, argv, opts, sizeof opts / sizeof *opts);
    int rc = n < 0 ? NDC_BAD_USAGE : print_info(&i);
    if (rc >= 0)
        return rc;
    if (!n)
        return usage("no input file", NULL, NULL);
    if (o.check && o.to_stdout)
        return usage("--check writes nothing to", "--stdout", NULL);
    rc = NDC_OK;
    for (int k = 0; k < n; k++) {
        o.file = argv[k];
        int one = ndc_fmt(&o);
        rc = one > rc ? one : rc;
    }
    return rc;
}

static int cmd_doc(int argc, char **argv)
{
    ndc_doc_options o = {0};
    bool ops = false, keywords = false, builtins = false;
    info i = {0};
    const option opts[] = {
        {"--ops", NULL, &ops, NULL},
        {"--keywords", NULL, &keywords, NULL},
        {"--builtins", NULL, &builtins, NULL},
        {"--markdown", NULL, &o.markdown, NULL},
        {"--help", NULL, &i.help, NULL},
        {"-h", NULL, &i.help, NULL},
    };
    int n = parse(argc, argv, opts, sizeof opts / sizeof *opts);
    int rc = n < 0 ? NDC_BAD_USAGE : print_info(&i);
    if (rc >= 0)
        return rc;
    if (ops + keywords + builtins + (n > 0) > 1)
        return usage("one of --ops, --keywords, --builtins and a name",
                     NULL, NULL);
    o.kind = ops ? NDC_DOC_FORMS : keywords ? NDC_DOC_KEYWORDS
             : builtins ? NDC_DOC_BUILTINS : NDC_DOC_FUNCTIONS;
    /* No name of a function has a dot or a slash. */
    int k = n && strpbrk(argv[0], "./") ? 1 : 0;
    o.file = k ? argv[0] : NULL;
    o.name = k < n ? argv[k] : NULL;
    if (n > k + 1)
        return usage("a second name:", argv[k + 1], NULL);
    return ndc_doc(&o);
}

static int cmd_schedule(int argc, char **argv)
{
    ndc_schedule_options o = {0};
    info i = {0};
    const option opts[] = {
        {"--ranks", &o.ranks, NULL, NULL},
        {"--microbatches", &o.microbatches, NULL, NULL},
        {"--costs", &o.costs, NULL, NULL},
        {"--times", &o.times, NULL, NULL},
        {"--room", &o.room, NULL, NULL},
        {"--emit", &o.emit, NULL, NULL},
        {"-o", &o.out, NULL, NULL},
        {"--list", NULL, &o.list, NULL},
        {"--help", NULL, &i.help, NULL},
        {"-h", NULL, &i.help, NULL},
    };
    int n = parse(argc, argv, opts, sizeof opts / sizeof *opts);
    int rc = n < 0 ? NDC_BAD_USAGE : print_info(&i);
    if (rc >= 0)
        return rc;
    if (!n && !o.list)
        return usage("no schedule and no file", NULL, NULL);
    if (n > 1)
        return usage("a second schedule:", argv[1], NULL);
    o.what = argv[0];
    return ndc_schedule(&o);
}

int main(int argc, char **argv)
{
    for (int i = 0; argc > 1 && i < NCOMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 2, argv + 2);
    return with_set(argc > 0 ? argc - 1 : 0, argv + 1, build);
}
