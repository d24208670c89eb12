/*
 * What the parts of libxdp_agg_mpi.so have in common.
 *
 * xdp_agg_mpi.c: the functions that are taken over. communicators.c: which communicators are
 * served, and the agreement of their ranks. flights.c: calls in flight. types.c: types and
 * operations.
 */
#ifndef XDP_AGG_MPI_PARTS_H
#define XDP_AGG_MPI_PARTS_H

#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <xdp_agg.h>

/* A call in flight, for MPI a generalized request. */
struct flight {
    xdp_agg_request_t call;
    MPI_Request request;
    /* How it ended, for MPI. */
    int error;
    struct flight *next;
};

/* An MPI communicator that is served. */
struct served {
    xdp_agg_comm_t comm;
    /* Bytes of the shortest and the longest vector that goes through the aggregator. */
    size_t least, most;
    /* At all ranks any thread may call MPI: a thread of ours may complete requests. */
    bool any_thread;
    struct served *next;
    /* Calls in flight, in their order, and the thread that waits for them. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t waiter;
    bool has_waiter, is_over;
    struct flight *first, **last;
};

/* A line on standard error. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The code of our errors for MPI, with the text of the last one. */
int code_of(const char *text);

/* False: the type or the operation is MPI's own affair. */
bool translate(MPI_Datatype mpi, MPI_Op mpi_op, xdp_agg_datatype_t *type, xdp_agg_op_t *op);

/*
 * How a communicator is served; NULL: by MPI. `may_agree`: all ranks are in the same call, which
 * may wait for all of them.
 */
struct served *served_by(MPI_Comm comm, bool may_agree);

/* Leaves all jobs: MPI ends. */
void leave_all(void);

/* Whether there is a thread that waits for calls in flight; it is started at first. */
bool has_waiter(struct served *served);

/* A generalized request for a call in flight, which is given to that thread. */
int hand_over(struct served *served, struct flight *flight, MPI_Request *request);

/* Ends that thread. */
void end_waiter(struct served *served);

#endif
