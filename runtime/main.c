/* main.c - from the command line to an exit status.
 *
 * A rank goes through set-up, training, saving and generation. Before and
 * after set-up all ranks compare how they were started (same.c) and whether
 * anything failed (ndrt_agree), so that a failure which all see, such as a
 * missing file, is told once. Later failures go through comm->abort: the first
 * one is printed with its rank, everybody else stops quietly.
 *
 * NDRT_FAIL_AT=rank:n makes the n-th communication call of a rank fail, to
 * test just that.
 */
#include "ndrt_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

ndrt_status ndrt_fail(ndrt_rank *r, ndrt_status s, const char *fmt, ...)
{
    ndrt_state *st = r->state;
    va_list ap;

    ndrt_lock_failure(r, true);
    if (st->status == NDRT_OK) {
        st->status = s;
        va_start(ap, fmt);
        vsnprintf(st->error, sizeof st->error, fmt, ap);
        va_end(ap);
    }
    s = st->status;
    ndrt_lock_failure(r, false);
    return s;
}

static void read_fail_at(ndrt_rank *r)
{
    const char *text = getenv("NDRT_FAIL_AT");
    char *end;

    if (text && strtol(text, &end, 10) == r->rank && *end == ':')
        r->state->fail_at = strtoll(end + 1, NULL, 10);
}

/* Better now than after the training. Rank 0 alone will write. */
static ndrt_status check_target(ndrt_rank *r, const char *path)
{
    char error[sizeof r->state->error];

    if (!path || r->rank != 0)
        return NDRT_OK;
    ndrt_status s = ndrt_check_target(path, error, sizeof error);
    return s == NDRT_OK ? s : ndrt_fail(r, s, "%s", error);
}

static ndrt_status set_up(ndrt_rank *r)
{
    const ndrt_train *t = &r->state->config->train;
    ndrt_status s = ndrt_make_arena(r);

    if (s == NDRT_OK)
        s = ndrt_tiles_open(r);
    if (s == NDRT_OK)
        s = ndrt_mm_open(r);
    if (s == NDRT_OK)
        s = ndrt_micro_open(r);
    if (s == NDRT_OK)
        s = ndrt_log_open(r);
    if (s == NDRT_OK)
        s = check_target(r, r->state->config->save_path);
    if (s == NDRT_OK)
        s = check_target(r, r->state->config->comm_path);
    if (s == NDRT_OK)
        s = check_target(r, r->state->config->trace_path);
    if (s == NDRT_OK)
        s = check_target(r, r->state->config->times_path);
    if (s == NDRT_OK)
        s = check_target(r, r->state->config->profile_path);
    if (s == NDRT_OK)
        s = check_target(r, r->state->config->products_path);
    if (s == NDRT_OK)
        s = ndrt_products_open(r);
    if (s == NDRT_OK)
        s = ndrt_data_open(r);
    if (s == NDRT_OK)
        s = ndrt_lane_open(r);
    if (s == NDRT_OK)
        s = ndrt_team_open(r);
    if (s != NDRT_OK)
        return s;
    s = ndrt_init_params(r, t->seed);
    if (s == NDRT_OK && r->state->config->resume_path)
        s = ndrt_resume(r);
    if (s == NDRT_OK)
        s = ndrt_trace_open(r);         /* knows where the run begins */
    if (s == NDRT_OK)
        s = ndrt_profile_open(r);
    if (s == NDRT_OK)
        s = ndrt_check_folder(r);
    if (s != NDRT_OK || r->state->config->resume_path)
        return s;
    if (t->load_path)
        s = ndrt_load(r);
    ndrt_keep_behind(r);             /* nothing was updated yet */
    return s;
}

static ndrt_status work(ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    ndrt_status s = ndrt_profile_peaks(r);

    if (s == NDRT_OK)
        s = ndrt_train_loop(r);
    if (s == NDRT_OK)
        s = ndrt_profile_peaks(r);
    if (s == NDRT_OK && c->check_replicas)
        s = ndrt_check_replicas(r);
    if (s == NDRT_OK && c->save_path)
        s = ndrt_save(r, c->save_path);
    if (s == NDRT_OK)
        s = ndrt_count_write(r);
    if (s == NDRT_OK)
        s = ndrt_trace_write(r);
    if (s == NDRT_OK)
        s = ndrt_profile_write(r);
    if (s == NDRT_OK)
        s = ndrt_products_write(r);
    ndrt_status logged = ndrt_log_close(r);
    if (s == NDRT_OK && c->generate)
        s = ndrt_generate(r, stdout);
    return s == NDRT_OK ? ndrt_agree(r, logged) : s;
}

void ndrt_report(ndrt_rank *r, ndrt_status s)
{
    ndrt_state *st = r->state;
    char line[sizeof st->error + 96];

    snprintf(line, sizeof line, "%.48s: error: rank %d: %s", r->program->name,
             r->rank, st->error);
    if (!st->reported && s != NDRT_ESTOPPED)
        st->comm->ops->abort(st->comm, s, line);
}

ndrt_status ndrt_run_rank(ndrt_rank *r)
{
    ndrt_status s = ndrt_open_world(r);

    if (s == NDRT_OK)
        s = ndrt_same_options(r);
    if (s == NDRT_OK)
        s = ndrt_open_groups(r);
    read_fail_at(r);
    if (s == NDRT_OK)
        s = ndrt_agree(r, set_up(r));
    if (s == NDRT_OK)
        s = ndrt_same_data(r);
    if (s == NDRT_OK) {
        ndrt_banner(r, !ndrt_under_launcher());
        s = work(r);
    }
    if (s != NDRT_OK)
        ndrt_report(r, s);
    ndrt_air_close(r);
    ndrt_lane_close(r);
    ndrt_log_close(r);
    ndrt_data_close(r);
    ndrt_team_close(r);
    ndrt_own_close(&r->state->own);
    return s;
}

/* ---- ranks as threads ------------------------------------------------- */

typedef struct job {
    ndrt_rank *rank;
    pthread_t thread;
    bool started;
    ndrt_status status;
} job;

static void *job_main(void *arg)
{
    job *j = arg;

    j->status = ndrt_run_rank(j->rank);
    return NULL;
}

static bool start(const ndrt_program *p, const ndrt_config *config,
                  ndrt_world *w, job *j, int rank, const pthread_attr_t *attr)
{
    j->rank = ndrt_rank_new(p, config, ndrt_world_comm(w, rank));
    j->started = j->rank &&
                 pthread_create(&j->thread, attr, job_main, j) == 0;
    return j->started;
}

ndrt_status ndrt_run_local(const ndrt_program *p, const ndrt_config *config)
{
    int n = ndrt_mesh_ranks(p);
    ndrt_world *w = ndrt_world_new(n);
    job *jobs = calloc((size_t)n, sizeof *jobs);
    ndrt_status s = NDRT_OK;
    pthread_attr_t attr;

    if (!w || !jobs) {
        fprintf(stderr, "%s: error: out of memory\n", p->name);
        free(jobs);
        if (w)
            ndrt_world_free(w);
        return NDRT_EINTERNAL;
    }
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, NDRT_STACK_BYTES);
    for (int i = 0; i < n; i++) {
        if (!start(p, config, w, &jobs[i], i, &attr)) {
            ndrt_comm *c = ndrt_world_comm(w, i);
            c->ops->abort(c, NDRT_EINTERNAL, "ndrt: error: cannot start a "
                          "thread for every rank");
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        if (jobs[i].started)
            pthread_join(jobs[i].thread, NULL);
        if (s == NDRT_OK && jobs[i].status != NDRT_ESTOPPED)
            s = jobs[i].status;
    }
    for (int i = 0; i < n; i++)
        if (jobs[i].rank)
            ndrt_rank_free(jobs[i].rank);
    pthread_attr_destroy(&attr);
    if (ndrt_world_status(w) != NDRT_OK)
        s = ndrt_world_status(w);
    ndrt_world_free(w);
    free(jobs);
    return s;
}

/* An earlier line may be the one that was lost. */
static ndrt_status check_output(const ndrt_program *p)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return NDRT_OK;
    fprintf(stderr, "%s: error: cannot write to the standard output\n",
            p->name);
    return NDRT_EINPUT;
}

int ndrt_main(const ndrt_program *p, int argc, char **argv)
{
    bool launched = ndrt_under_launcher();
    bool speak = !launched || ndrt_launcher_first();
    ndrt_config config;
    char *said = NULL;            /* told if only this rank is wrong */
    size_t size;

    if (!ndrt_cpu_serves(p, speak ? stderr : NULL))
        return NDRT_EUSAGE;
    FILE *err = speak ? stderr : open_memstream(&said, &size);
    ndrt_status s = ndrt_options(p, argc, argv, &config,
                                 speak ? stdout : NULL, err);

    ndrt_course course = {0};
    if (s == NDRT_OK && !config.done)
        s = ndrt_course_open(&course, p, &config, err);
    config.course = &course;
    if (err && !speak)
        fclose(err);
    if (s != NDRT_OK && launched)
        ndrt_mpi_meet(p, s, said);
    free(said);
    if (s == NDRT_OK && !config.done)
        s = launched ? ndrt_run_mpi(&course.program, &config)
                     : ndrt_run_local(&course.program, &config);
    ndrt_course_close(&course);
    if (s == NDRT_OK)
        s = check_output(p);
    return s == NDRT_ESTOPPED ? (int)NDRT_EINPUT : (int)s;
}
