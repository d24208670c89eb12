/*
 * Which communicators are served. The ranks of one agree in the first blocking call on it, and join
 * a job of its own; what was agreed is kept as an attribute. So calls on two communicators, which
 * ranks may make in different orders, never meet.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parts.h"

/* If the environment does not say. All ranks come at once: one that is not there now will not come. */
#define JOIN_DEADLINE "10"
/* How often MPI is asked to go on, each time that a rank has waited a while in a call of ours. */
#define PROGRESS_STEPS 64

/* What the ranks tell each other before the first call. The first rank's choices are for all. */
struct hello {
    char job[64];
    uint64_t host, least, most;
    int any_thread;
};

/* The attribute of communicators that are left to MPI. */
static struct served nobody;
static int key = MPI_KEYVAL_INVALID;
static pthread_once_t key_made = PTHREAD_ONCE_INIT;
/* All that are served. */
static struct served *list;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

/* Leaves the job. Calls in flight have ended by MPI's rules. */
static void leave(struct served *served)
{
    xdp_agg_comm_destroy(served->comm);
    served->comm = NULL;
    end_waiter(served);
}

void leave_all(void)
{
    struct served *served;

    pthread_mutex_lock(&list_lock);
    served = list;
    list = NULL;
    pthread_mutex_unlock(&list_lock);
    for (; served != NULL; served = served->next)
        leave(served);
}

/* MPI frees a communicator. */
static int forget(MPI_Comm comm, int keyval, void *value, void *extra)
{
    struct served *served = value, **place;

    (void)comm;
    (void)keyval;
    (void)extra;
    if (served == &nobody)
        return MPI_SUCCESS;
    pthread_mutex_lock(&list_lock);
    for (place = &list; *place != NULL; place = &(*place)->next) {
        if (*place == served) {
            *place = served->next;
            break;
        }
    }
    pthread_mutex_unlock(&list_lock);
    leave(served);
    pthread_mutex_destroy(&served->lock);
    pthread_cond_destroy(&served->changed);
    free(served);
    return MPI_SUCCESS;
}

static void make_key(void)
{
    if (PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, NULL) != MPI_SUCCESS)
        key = MPI_KEYVAL_INVALID;
}

/* A number of bytes of the environment. */
static uint64_t bytes_from(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    char *end;
    unsigned long long bytes;

    if (value == NULL || *value == '\0')
        return otherwise;
    errno = 0;
    bytes = strtoull(value, &end, 10);
    if (*end == '\0' && errno == 0 && *value != '-')
        return bytes;
    say("%s: \"%s\" is no number of bytes, such as 65536; it is ignored", name, value);
    return otherwise;
}

/* Ranks that share it can share memory: kernel, network namespace and user are the same. */
static uint64_t host(void)
{
    char text[128] = "";
    uint64_t hash = 14695981039346656037u;
    struct stat net = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t i, length;

    if (file != NULL) {
        if (fgets(text, 64, file) == NULL)
            *text = '\0';
        fclose(file);
    }
    stat("/proc/self/ns/net", &net);
    length = strlen(text);
    snprintf(text + length, sizeof text - length, "/%llu/%lu", (unsigned long long)net.st_ino,
             (unsigned long)getuid());
    /* FNV-1a. */
    for (i = 0; text[i] != '\0'; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

/* What this rank has to say. */
static struct hello greeting(void)
{
    struct hello hello;
    const char *name = getenv("XDP_AGG_JOB");
    uint64_t number;
    int level = MPI_THREAD_SINGLE;

    memset(&hello, 0, sizeof hello);
    /* Each communicator has a job of its own, whose name nobody else may have. */
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        number = ((uint64_t)getpid() << 32) ^ (uint64_t)(uintptr_t)&hello;
    snprintf(hello.job, sizeof hello.job, "%.40s-%016llx", name == NULL ? "mpi" : name,
             (unsigned long long)number);
    hello.host = host();
    hello.least = bytes_from("XDP_AGG_MPI_MIN", 0);
    hello.most = bytes_from("XDP_AGG_MPI_MAX", SIZE_MAX);
    PMPI_Query_thread(&level);
    hello.any_thread = level == MPI_THREAD_MULTIPLE;
    return hello;
}

/* Of the first `count` processes those on this one's host. */
static int on_host(const struct hello *hellos, int rank, int count)
{
    int found = 0, i;

    for (i = 0; i < count; i++)
        found += hellos[i].host == hellos[rank].host;
    return found;
}

/* A setting that is a number. */
static void set(xdp_agg_config_t config, const char *name, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    xdp_agg_config_set(config, name, text);
}

/* A setting, unless the environment has it. */
static void set_default(xdp_agg_config_t config, const char *name, const char *value)
{
    if (getenv(name) == NULL)
        xdp_agg_config_set(config, name, value);
}

/* Joins the job of a communicator. */
static xdp_agg_result_t join(const struct hello *hellos, int rank, int size, xdp_agg_comm_t *comm)
{
    xdp_agg_config_t config;
    xdp_agg_result_t result = xdp_agg_config_create(&config);

    *comm = NULL;
    if (result != XDP_AGG_SUCCESS)
        return result;
    xdp_agg_config_set(config, "XDP_AGG_JOB", hellos[0].job);
    set(config, "RANK", rank);
    set(config, "WORLD_SIZE", size);
    set(config, "LOCAL_RANK", on_host(hellos, rank, rank));
    set(config, "LOCAL_WORLD_SIZE", on_host(hellos, rank, size));
    /* A program of MPI may be a solver: it has not asked for fixed point. Jobs that go on without
     * lost workers have nothing else. */
    if (getenv("XDP_AGG_ON_WORKER_LOSS") == NULL)
        set_default(config, "XDP_AGG_PRECISION", "exact");
    set_default(config, "XDP_AGG_JOIN_DEADLINE", JOIN_DEADLINE);
    result = xdp_agg_comm_init(comm, config);
    xdp_agg_config_destroy(config);
    return result;
}

/* Lets MPI go on with messages that others wait for, while this rank waits for them. */
static int let_mpi_go_on(void *unused)
{
    int i, flag;

    (void)unused;
    for (i = 0; i < PROGRESS_STEPS; i++)
        PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
    return 0;
}

/* All ranks join, or none. Collective over the communicator. NULL: it is left to MPI. */
static struct served *agree(MPI_Comm comm)
{
    struct hello own = greeting(), *hellos;
    struct served *served;
    xdp_agg_result_t result;
    int rank, size, failed, i;

    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
    hellos = calloc((size_t)size, sizeof *hellos);
    served = calloc(1, sizeof *served);
    if (hellos == NULL || served == NULL) {
        /* The others wait for this rank: it has to end. */
        say("rank %d: no memory", rank);
        PMPI_Abort(comm, 1);
    }
    PMPI_Allgather(&own, sizeof own, MPI_BYTE, hellos, sizeof own, MPI_BYTE, comm);
    result = join(hellos, rank, size, &served->comm);
    failed = result == XDP_AGG_SUCCESS ? size : rank;
    PMPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, comm);
    if (failed == rank)
        say("MPI sums alone: rank %d: %s", rank, xdp_agg_last_error());
    if (failed == size) {
        served->least = hellos[0].least;
        served->most = hellos[0].most;
        served->any_thread = true;
        for (i = 0; i < size; i++)
            served->any_thread &= hellos[i].any_thread != 0;
        xdp_agg_comm_on_wait(served->comm, let_mpi_go_on, NULL);
        pthread_mutex_init(&served->lock, NULL);
        pthread_cond_init(&served->changed, NULL);
        served->last = &served->first;
    } else {
        xdp_agg_comm_destroy(served->comm);
        free(served);
        served = NULL;
    }
    free(hellos);
    return served;
}

struct served *served_by(MPI_Comm comm, bool may_agree)
{
    struct served *served;
    void *value;
    int found = 0, same = MPI_UNEQUAL;

    pthread_once(&key_made, make_key);
    if (comm == MPI_COMM_NULL || key == MPI_KEYVAL_INVALID
        || PMPI_Comm_get_attr(comm, key, &value, &found) != MPI_SUCCESS)
        return NULL;
    if (found)
        return value == &nobody ? NULL : value;
    if (!may_agree)
        return NULL;
    served = NULL;
    if (PMPI_Comm_compare(MPI_COMM_WORLD, comm, &same) == MPI_SUCCESS
        && (same == MPI_IDENT || same == MPI_CONGRUENT))
        served = agree(comm);
    if (served != NULL) {
        pthread_mutex_lock(&list_lock);
        served->next = list;
        list = served;
        pthread_mutex_unlock(&list_lock);
    }
    PMPI_Comm_set_attr(comm, key, served == NULL ? &nobody : served);
    return served;
}
