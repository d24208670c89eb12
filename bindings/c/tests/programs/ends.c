/*
 * Ends that are not good: `abort` by another thread, `cancel` of a call in flight, `destroy` under
 * one, a `question` that is answered with the wish to end, a `deadline`, a `mismatch`, an
 * `order` of its own, a rank that is lost (`loss`). Rank 0 does it, or is the one that it is done
 * to; the others see it.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define COUNT 4096

static int rank, size;
static xdp_agg_comm_t comm;
static float vector[COUNT];

static void rest(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

static xdp_agg_result_t sum(void)
{
    return xdp_agg_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm);
}

static xdp_agg_request_t started(void)
{
    xdp_agg_request_t request;

    OK(xdp_agg_start_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &request));
    return request;
}

/* This thread's last error blames rank 0 alone. */
static void blames_rank(int to_blame)
{
    int ranks[4] = {-1, -1, -1, -1};
    size_t count = 0;

    OK(xdp_agg_missing_ranks(ranks, 4, &count));
    EXPECT(count == 1 && ranks[0] == to_blame);
}

static void *aborter(void *unused)
{
    (void)unused;
    rest(200);
    OK(xdp_agg_comm_abort(comm, "the test wants it"));
    return NULL;
}

/* The others wait in a call that rank 1 never makes. */
static void by_abort(void)
{
    pthread_t thread;

    if (rank == 1) {
        rest(1000);
        GIVES(XDP_AGG_ERROR_ABORTED, sum());
        EXPECT(strstr(xdp_agg_last_error(), "the test wants it") != NULL);
        return;
    }
    if (rank == 0)
        EXPECT(pthread_create(&thread, NULL, aborter, NULL) == 0);
    GIVES(XDP_AGG_ERROR_ABORTED, sum());
    EXPECT(strstr(xdp_agg_last_error(), "the test wants it") != NULL);
    if (rank == 0)
        EXPECT(pthread_join(thread, NULL) == 0);
    GIVES(XDP_AGG_ERROR_ABORTED, sum());
}

static void by_cancel(void)
{
    xdp_agg_request_t request;
    int done = -1;

    if (rank == 1) {
        rest(2500);
        GIVES(XDP_AGG_ERROR_ABORTED, sum());
        return;
    }
    request = started();
    OK(xdp_agg_test(request, &done));
    EXPECT(done == 0);
    GIVES(XDP_AGG_IN_PROGRESS, xdp_agg_wait(request, 50));
    GIVES(XDP_AGG_IN_PROGRESS, xdp_agg_request_free(request));
    if (rank == 0) {
        /* Rank 2 may be late on a busy machine, and has to see the call in flight first. */
        rest(1000);
        OK(xdp_agg_cancel(request));
    }
    GIVES(XDP_AGG_ERROR_ABORTED, xdp_agg_wait(request, 10000));
    GIVES(XDP_AGG_ERROR_ABORTED, xdp_agg_test(request, &done));
    EXPECT(done == 1);
    OK(xdp_agg_cancel(request));
    OK(xdp_agg_request_free(request));
}

/* A request outlives its communicator. */
static void by_destroy(void)
{
    xdp_agg_request_t request;

    if (rank == 0) {
        request = started();
        OK(xdp_agg_comm_destroy(comm));
        comm = NULL;
        GIVES(XDP_AGG_ERROR_CLOSED, xdp_agg_wait(request, 10000));
        OK(xdp_agg_cancel(request));
        OK(xdp_agg_request_free(request));
    }
}

static int asked;

static int third_time(void *counter)
{
    return ++*(int *)counter == 3;
}

/* Rank 0 is asked whether it still wants to wait. */
static void by_question(void)
{
    if (rank == 1) {
        rest(500);
        GIVES(XDP_AGG_ERROR_ABORTED, sum());
        return;
    }
    if (rank == 0) {
        OK(xdp_agg_comm_on_wait(comm, third_time, &asked));
        GIVES(XDP_AGG_ERROR_ABORTED, sum());
        EXPECT(asked == 3);
        return;
    }
    OK(xdp_agg_comm_on_wait(comm, NULL, NULL));
    GIVES(XDP_AGG_ERROR_ABORTED, sum());
}

static void by_deadline(void)
{
    if (rank == 0) {
        rest(2500);
        return;
    }
    if (rank == 1) {
        OK(xdp_agg_comm_set(comm, "XDP_AGG_DEADLINE", "0.5"));
        GIVES(XDP_AGG_ERROR_DEADLINE, sum());
        blames_rank(0);
        return;
    }
    GIVES(XDP_AGG_ERROR_ABORTED, sum());
    EXPECT(strstr(xdp_agg_last_error(), "rank 1 gave up") != NULL);
}

/* The ranks are processes of one host. */
static void by_deadline_in_host(void)
{
    if (rank == 0) {
        rest(2500);
        return;
    }
    if (rank == 1) {
        OK(xdp_agg_comm_set(comm, "XDP_AGG_DEADLINE", "0.5"));
        GIVES(XDP_AGG_ERROR_DEADLINE, sum());
        blames_rank(0);
        return;
    }
    GIVES(XDP_AGG_ERROR_ABORTED, sum());
    blames_rank(1);
}

static void by_mismatch(void)
{
    xdp_agg_op_t op = rank == 0 ? XDP_AGG_SUM : XDP_AGG_MAX;

    GIVES(XDP_AGG_ERROR_CALL_MISMATCH,
          xdp_agg_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, op, comm));
}

/* Calls of one shape in another order at rank 0: the first one is an error at all ranks. */
static void by_order(void)
{
    const char *name = rank == 0 ? "layer/2" : "layer/1";
    xdp_agg_request_t request;

    OK(xdp_agg_all_reduce_named("layer/0", NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM,
                                comm));
    OK(xdp_agg_start_all_reduce_named(name, NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM,
                                      comm, &request));
    GIVES(XDP_AGG_ERROR_CALL_MISMATCH, xdp_agg_wait(request, -1));
    EXPECT(strstr(xdp_agg_last_error(), name) != NULL);
    OK(xdp_agg_request_free(request));
}

static void by_loss(void)
{
    xdp_agg_request_t request;

    if (rank == 0) {
        rest(300);
        _exit(0);
    }
    request = started();
    GIVES(XDP_AGG_ERROR_MEMBER_LOST, xdp_agg_wait(request, -1));
    blames_rank(0);
    OK(xdp_agg_request_free(request));
    GIVES(XDP_AGG_ERROR_MEMBER_LOST, sum());
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*end)(void);
    } ends[] = {
        {"abort", by_abort},       {"cancel", by_cancel},     {"destroy", by_destroy},
        {"deadline", by_deadline}, {"mismatch", by_mismatch}, {"loss", by_loss},
        {"order", by_order},
        {"question", by_question}, {"deadline_in_host", by_deadline_in_host},
    };
    size_t i;

    EXPECT(argc == 2);
    OK(xdp_agg_comm_init(&comm, NULL));
    OK(xdp_agg_comm_rank(comm, &rank));
    OK(xdp_agg_comm_size(comm, &size));
    OK(sum());
    for (i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (strcmp(argv[1], ends[i].name) == 0) {
            ends[i].end();
            OK(xdp_agg_comm_destroy(comm));
            printf("done\n");
            return 0;
        }
    }
    FAIL("no such end: %s", argv[1]);
}
