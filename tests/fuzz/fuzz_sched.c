/* fuzz_sched.c - bytes as a schedule: what is read is written as it was read;
 * what is right stays right with messages, can be timed and be shown. */
#include "fuzz.h"

#include "../../runtime/schedule/sched.h"

#include <stdlib.h>
#include <string.h>

static void broken(const char *promise, const sched_error *e)
{
    fprintf(stderr, "%s: %s\n", promise, e->text);
    abort();
}

static void round_trip(const sched *s)
{
    sched_text once = {0}, twice = {0};
    sched_error e = {.text = "it differs"};
    sched_write(s, false, &once);
    sched *again = sched_read(once.s, once.n, s->name, &e);
    if (!again)
        broken("a written schedule cannot be read", &e);
    sched_write(again, false, &twice);
    if (strcmp(once.s, twice.s))
        broken("a schedule that is read again", &e);
    sched_free(again);
    free(once.s);
    free(twice.s);
}

static void show(sched *s)
{
    sched_times t;
    sched_error e;
    sched_text text = {0};
    if (!sched_time(s, NULL, &t, &e))
        broken("a right schedule cannot be timed", &e);
    sched_draw(s, &t, 0, &text);
    sched_svg(s, &t, NULL, 0, &text);
    sched_trace(s, NULL, 0, &text);
    sched_write(s, true, &text);
    free(text.s);
    free(t.rank);
}

static void check_slots(const sched *s)
{
    sched_error e;
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            if (!sched_check_slots(s, stage, (sched_span)k,
                                   sched_slots(s, stage, (sched_span)k), &e))
                broken("there are too few slots", &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sched_error e = {.rank = -1};
    sched *s = sched_read((const char *)data, n, "fuzzed", &e);
    if (!s) {
        if (!*e.text)
            broken("no schedule and no error", &e);
        return 0;
    }
    round_trip(s);
    if (!sched_check(s, NULL, &e)) {
        free(sched_table_around(s, &e));
    } else {
        if (!s->lowered &&
            (!sched_lower(s, NULL, &e) || !sched_check(s, NULL, &e)))
            broken("a right schedule is wrong with messages", &e);
        check_slots(s);
        show(s);
    }
    sched_free(s);
    return 0;
}
