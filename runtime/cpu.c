/* cpu.c - may this program run on this processor?
 *
 *   gpt: error: this processor lacks avx512f, avx512vl, for which the program
 *   was built; build it with --cpu=x86-64-v3
 *
 * rather than to crash at the first instruction that is not there. libndrt
 * itself is compiled for the oldest processors, and its hot loops for several
 * (NDRT_CLONES). NDRT_CPU_LACKS=avx2,fma takes features away, to test just
 * that.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>

typedef struct cpuid {
    unsigned eax, ebx, ecx, edx;
} cpuid;

static cpuid ask(unsigned leaf, unsigned sub)
{
    cpuid c = {0};

    if (!__get_cpuid_count(leaf, sub, &c.eax, &c.ebx, &c.ecx, &c.edx))
        c = (cpuid){0};
    return c;
}

/* Which registers the operating system saves: XCR0. */
static unsigned saved(void)
{
    unsigned low = 0, high;

    if (ask(1, 0).ecx >> 27 & 1)
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool there(unsigned have, unsigned bit, unsigned needed)
{
    return have >> bit & 1 && (saved() & needed) == needed;
}
#define THERE(name, macro, leaf, sub, reg, bit, state, level) \
    there(ask(leaf, sub).reg, bit, state),
#else
#define THERE(...) true,
#endif

/* Is `name` a word of the list a,b,c? */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *s = list; s && *s; s += strcspn(s, ","), s += *s == ',')
        if (strcspn(s, ",") == n && !strncmp(s, name, n))
            return true;
    return false;
}

#define NAME(name, ...) name,
#define LEVEL(name, macro, leaf, sub, reg, bit, state, level) level,

bool ndrt_cpu_serves(const ndrt_program *p, FILE *err)
{
    static const char *const name[] = {NDRT_CPU_FEATURES(NAME)};
    static const int first[] = {NDRT_CPU_FEATURES(LEVEL)};
    static const char *const version[] = {"", "", "-v2", "-v3", "-v4"};
    bool has[] = {NDRT_CPU_FEATURES(THERE)};
    const char *lacks = getenv("NDRT_CPU_LACKS");
    int n = sizeof name / sizeof *name, level = 4, missing = 0;

    for (int i = 0; i < n; i++) {
        has[i] = has[i] && !listed(lacks, name[i]);
        if (!has[i] && first[i] <= level)
            level = first[i] - 1;
    }
    for (int i = 0; i < n && p->cpu; i++) {
        if (!p->cpu[i] || has[i])
            continue;
        if (err && !missing)
            fprintf(err, "%s: error: this processor lacks ", p->name);
        if (err)
            fprintf(err, "%s%s", missing ? ", " : "", name[i]);
        missing++;
    }
    if (err && missing)
        fprintf(err, ", for which the program was built; build it with "
                "--cpu=x86-64%s\n", version[level]);
    return !missing;
}
