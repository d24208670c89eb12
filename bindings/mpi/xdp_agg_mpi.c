/*
 * LD_PRELOAD library: MPI_Allreduce, MPI_Allreduce_c and MPI_Iallreduce of a program that knows
 * nothing of it go through an xdp-agg aggregator, where that can serve them; all else stays with
 * MPI. docs/mpi.md is the guide; build.sh builds it, with the program's own mpicc.
 *
 * Whether a call is taken over depends on what all ranks know alike: communicator, type, operation,
 * length.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

#define EXPORTED __attribute__((visibility("default")))

/* Calls through the aggregator, and calls left to MPI. */
static long ours, theirs;

static void count(long *calls)
{
    __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED);
}

void say(const char *format, ...)
{
    char text[2048];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* One write a line: the ranks share a terminal. */
    fprintf(stderr, "xdp-agg-mpi: %s\n", text);
}

int code_of(const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int error_code = MPI_SUCCESS;
    char words[MPI_MAX_ERROR_STRING];
    int class, code;

    snprintf(words, sizeof words, "xdp-agg: %s", text);
    pthread_mutex_lock(&lock);
    if (error_code == MPI_SUCCESS) {
        error_code = MPI_ERR_OTHER;
        if (PMPI_Add_error_class(&class) == MPI_SUCCESS
            && PMPI_Add_error_code(class, &code) == MPI_SUCCESS)
            error_code = code;
    }
    code = error_code;
    if (code != MPI_ERR_OTHER)
        PMPI_Add_error_string(code, words);
    pthread_mutex_unlock(&lock);
    return code;
}

/* An error that the communicator's handler has to deal with. */
static int raise_error(MPI_Comm comm, const char *text)
{
    int code = code_of(text);

    say("%s", text);
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

/* A call of MPI's, in our terms. */
struct call {
    struct served *served;
    const void *send;
    size_t count;
    xdp_agg_datatype_t type;
    xdp_agg_op_t op;
};

/* False: MPI's own affair, also to complain of. */
static bool take(struct call *call, const void *send, int64_t count_, MPI_Datatype type, MPI_Op op,
                 MPI_Comm comm, bool waits)
{
    int bytes;

    if (count_ <= 0 || !translate(type, op, &call->type, &call->op))
        return false;
    call->served = served_by(comm, waits);
    if (call->served == NULL || (!waits && !call->served->any_thread))
        return false;
    PMPI_Type_size(type, &bytes);
    call->send = send == MPI_IN_PLACE ? NULL : send;
    call->count = (size_t)count_;
    return call->count >= (call->served->least + (size_t)bytes - 1) / (size_t)bytes
           && call->count <= call->served->most / (size_t)bytes;
}

static int make(const struct call *call, void *recv, MPI_Comm comm)
{
    count(&ours);
    if (xdp_agg_all_reduce(call->send, recv, call->count, call->type, call->op, call->served->comm)
        == XDP_AGG_SUCCESS)
        return MPI_SUCCESS;
    return raise_error(comm, xdp_agg_last_error());
}

static int start(const struct call *call, void *recv, MPI_Comm comm, MPI_Request *request)
{
    struct flight *flight = calloc(1, sizeof *flight);
    int result;

    if (flight == NULL || !has_waiter(call->served)) {
        free(flight);
        return raise_error(comm, "no memory, or no thread, for a call in flight");
    }
    flight->error = MPI_SUCCESS;
    if (xdp_agg_start_all_reduce(call->send, recv, call->count, call->type, call->op,
                                 call->served->comm, &flight->call)
        != XDP_AGG_SUCCESS) {
        free(flight);
        return raise_error(comm, xdp_agg_last_error());
    }
    count(&ours);
    result = hand_over(call->served, flight, request);
    if (result != MPI_SUCCESS) {
        /* The vectors are the call's until it ends. */
        xdp_agg_wait(flight->call, -1);
        xdp_agg_request_free(flight->call);
        free(flight);
        PMPI_Comm_call_errhandler(comm, result);
    }
    return result;
}

EXPORTED int MPI_Allreduce(const void *send, void *recv, int count_, MPI_Datatype type, MPI_Op op,
                           MPI_Comm comm)
{
    struct call call;

    if (take(&call, send, count_, type, op, comm, true))
        return make(&call, recv, comm);
    count(&theirs);
    return PMPI_Allreduce(send, recv, count_, type, op, comm);
}

EXPORTED int MPI_Iallreduce(const void *send, void *recv, int count_, MPI_Datatype type, MPI_Op op,
                            MPI_Comm comm, MPI_Request *request)
{
    struct call call;

    if (take(&call, send, count_, type, op, comm, false))
        return start(&call, recv, comm, request);
    count(&theirs);
    return PMPI_Iallreduce(send, recv, count_, type, op, comm, request);
}

#if MPI_VERSION >= 4
EXPORTED int MPI_Allreduce_c(const void *send, void *recv, MPI_Count count_, MPI_Datatype type,
                             MPI_Op op, MPI_Comm comm)
{
    struct call call;

    if (take(&call, send, count_, type, op, comm, true))
        return make(&call, recv, comm);
    count(&theirs);
    return PMPI_Allreduce_c(send, recv, count_, type, op, comm);
}

EXPORTED int MPI_Iallreduce_c(const void *send, void *recv, MPI_Count count_, MPI_Datatype type,
                              MPI_Op op, MPI_Comm comm, MPI_Request *request)
{
    struct call call;

    if (take(&call, send, count_, type, op, comm, false))
        return start(&call, recv, comm, request);
    count(&theirs);
    return PMPI_Iallreduce_c(send, recv, count_, type, op, comm, request);
}
#endif

EXPORTED int MPI_Finalize(void)
{
    const char *verbose = getenv("XDP_AGG_MPI_VERBOSE");
    int rank = -1;

    if (verbose != NULL && *verbose != '\0' && strcmp(verbose, "0") != 0)
        PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        say("%ld all-reduces through the aggregator, %ld left to MPI", ours, theirs);
    leave_all();
    return PMPI_Finalize();
}
