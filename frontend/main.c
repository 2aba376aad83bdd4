/* main.c - the command line of ndc. */
#include "ndc.h"

#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: ndc FILE [options]\n"
    "\n"
    "FILE is a program (.nd), of which ndc builds an executable unless "
    "--emit asks\n"
    "for something else; or a printed graph (.ndir), which has no train and "
    "plan\n"
    "block: it can be printed, not built.\n"
    "\n"
    "  -o OUT             write OUT (default: the file's stem, or stdout)\n"
    "  --emit=FORM        print a form instead of building:\n"
    "                       ast       the syntax tree\n"
    "                       ir        the graph, as the program says it\n"
    "                       values    what it computes on one device, on "
    "made-up\n"
    "                                 inputs: outputs, loss, gradients\n"
    "                       spmd      the graph after all passes\n"
    "                       schedule  the pipeline's timeline\n"
    "                       c         the generated program\n"
    "                       plan      memory, communication, bubble\n"
    "  --mesh a=1,b=2     sizes of the plan's mesh axes (.nd only)\n"
    "  --set axis=N       another size for an axis (.nd only); may be "
    "repeated\n"
    "  --model NAME       compile that model of several (.nd only)\n"
    "  --plan FILE        use the plan block of FILE (.nd only)\n"
    "  --until=PASS       with --emit=ir: the graph after that pass\n"
    "  --dump-after=PASS  print the graph after a pass, or after `all`; not "
    "with\n"
    "                     --emit=ast, with --emit=ir only up to --until\n"
    "  --verify-each      verify the graph after every pass\n"
    "  --werror           fail on warnings\n"
    "  --list-ops         the ops of the graph\n"
    "  --list-passes      the passes in order\n"
    "  --help, --version\n"
    "\n"
    "exit status: 0 done, 1 errors in the input, 2 wrong usage, 3 a bug in "
    "ndc\n";

static int usage(const char *what, const char *arg)
{
    fprintf(stderr, "ndc: error: %s%s%s%s; see ndc --help\n", what,
            arg ? " `" : "", arg ? arg : "", arg ? "`" : "");
    return NDC_BAD_USAGE;
}

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

/* Options that print something and stop; -1 if the argument is none. */
static int informational(const char *a)
{
    if (!strcmp(a, "--help") || !strcmp(a, "-h"))
        fputs(help, stdout);
    else if (!strcmp(a, "--version"))
        puts("ndc " NDC_VERSION);
    else if (!strcmp(a, "--list-ops"))
        ndc_list_ops(stdout);
    else if (!strcmp(a, "--list-passes"))
        ndc_list_passes(stdout);
    else
        return -1;
    return fflush(stdout) ? NDC_BAD_INPUT : NDC_OK;
}

int main(int argc, char **argv)
{
    ndc_options o = {0};
    const char **set = calloc((size_t)argc + 1, sizeof *set);
    struct {
        const char *name, **dst;
    } opts[] = {
        {"-o", &o.out},              {"--emit", NULL},
        {"--mesh", &o.mesh},         {"--set", NULL},
        {"--plan", &o.plan},         {"--dump-after", &o.dump_after},
        {"--until", &o.until},       {"--model", &o.model},
    };
    int rc = set ? -1 : NDC_BUG;
    for (int i = 1; i < argc && rc < 0; i++) {
        const char *a = argv[i], *v = NULL;
        size_t k = 0, n = sizeof opts / sizeof *opts;
        while (k < n && !(v = value_of(opts[k].name, argc, argv, &i)))
            k++;
        if (v && !*v)
            rc = usage("no value for", opts[k].name);
        else if (v && opts[k].dst)
            *opts[k].dst = v;
        else if (v && !strcmp(opts[k].name, "--set"))
            set[o.nset++] = v;
        else if (v && ndc_emit_find(v) <= 0)
            rc = usage("no form is called", v);
        else if (v)
            o.emit = (ndc_emit)ndc_emit_find(v);
        else if (!strcmp(a, "--verify-each"))
            o.verify_each = true;
        else if (!strcmp(a, "--werror"))
            o.werror = true;
        else if (a[0] != '-' && !o.file)
            o.file = a;
        else if (a[0] != '-')
            rc = usage("a second file:", a);
        else if ((rc = informational(a)) < 0)
            rc = usage("unknown option", a);
    }
    o.set = set;
    if (rc < 0)
        rc = o.file ? ndc_compile(&o) : usage("no input file", NULL);
    free(set);
    return rc;
}
