/*
 * libxdp_agg: all-reduce and other collectives through an aggregator in the network.
 *
 * Functions return a result; what went wrong is told in words by xdp_agg_last_error, on the same
 * thread. docs/c.md is the guide.
 *
 * Made by cbindgen from bindings/c/src: change it there, and write it anew with
 *     XDP_AGG_WRITE_HEADER=1 cargo test -p xdp-agg-c --test header
 */

#ifndef XDP_AGG_H
#define XDP_AGG_H

#include <stddef.h>
#include <stdint.h>

/* Version of this header: major * 10000 + minor * 100 + patch. */
#define XDP_AGG_VERSION 100

/**
 * What a function returned. Numbers never change; a newer library may return further ones, all of
 * which are errors.
 *
 * After an error of a call, XDP_AGG_ERROR_ARGUMENT excepted, the contents of its vectors are
 * unspecified and the communicator is of no more use: each later call returns an error. Destroy
 * it, and make another one at all ranks.
 */
enum xdp_agg_result_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It is done.
     */
    XDP_AGG_SUCCESS = 0,
    /**
     * Of a request: the call has not ended yet. Not an error.
     */
    XDP_AGG_IN_PROGRESS = 1,
    /**
     * An argument cannot be: the text names it. Nothing was done, and the communicator is as good
     * as before.
     */
    XDP_AGG_ERROR_ARGUMENT = 2,
    /**
     * A setting is missing or out of its range: the text names it.
     */
    XDP_AGG_ERROR_CONFIG = 3,
    /**
     * The aggregator, or its data path, does not answer.
     */
    XDP_AGG_ERROR_UNREACHABLE = 4,
    /**
     * The aggregator does not take this worker: version, token, TLS, no room.
     */
    XDP_AGG_ERROR_REFUSED = 5,
    /**
     * Time is up: xdp_agg_missing_ranks says for whom it was waited.
     */
    XDP_AGG_ERROR_DEADLINE = 6,
    /**
     * A rank is gone: xdp_agg_missing_ranks says which.
     */
    XDP_AGG_ERROR_MEMBER_LOST = 7,
    /**
     * The ranks' calls differ: the text says how.
     */
    XDP_AGG_ERROR_CALL_MISMATCH = 8,
    /**
     * The values, or the type, cannot be reduced in this way.
     */
    XDP_AGG_ERROR_UNSUPPORTED = 9,
    /**
     * The aggregator is gone.
     */
    XDP_AGG_ERROR_AGGREGATOR_LOST = 10,
    /**
     * A rank gave up, this one or another, or the job was ended.
     */
    XDP_AGG_ERROR_ABORTED = 11,
    /**
     * The communicator was destroyed while the call was in flight.
     */
    XDP_AGG_ERROR_CLOSED = 12,
    /**
     * This process was forked from the one that made the communicator.
     */
    XDP_AGG_ERROR_FORKED = 13,
    /**
     * The operating system refused something.
     */
    XDP_AGG_ERROR_SYSTEM = 14,
    /**
     * A fault of the library, or of the aggregator.
     */
    XDP_AGG_ERROR_INTERNAL = 15,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum xdp_agg_result_t xdp_agg_result_t;
#else
typedef int32_t xdp_agg_result_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Types of elements, in the machine's order of bytes.
 */
enum xdp_agg_datatype_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * float
     */
    XDP_AGG_FLOAT32 = 0,
    /**
     * IEEE 754 binary16, _Float16
     */
    XDP_AGG_FLOAT16 = 1,
    /**
     * The upper half of a float
     */
    XDP_AGG_BFLOAT16 = 2,
    /**
     * double
     */
    XDP_AGG_FLOAT64 = 3,
    /**
     * int32_t
     */
    XDP_AGG_INT32 = 4,
    /**
     * int64_t
     */
    XDP_AGG_INT64 = 5,
    /**
     * int16_t
     */
    XDP_AGG_INT16 = 6,
    /**
     * int8_t
     */
    XDP_AGG_INT8 = 7,
    /**
     * uint8_t
     */
    XDP_AGG_UINT8 = 8,
    /**
     * bool of <stdbool.h>: a byte, 0 or 1
     */
    XDP_AGG_BOOL = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum xdp_agg_datatype_t xdp_agg_datatype_t;
#else
typedef int32_t xdp_agg_datatype_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How the ranks' elements become one.
 */
enum xdp_agg_op_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Integers wrap; of bool it is XDP_AGG_OR.
     */
    XDP_AGG_SUM = 0,
    /**
     * The sum, divided by the number of ranks; integers towards zero. Not of bool.
     */
    XDP_AGG_AVERAGE = 1,
    /**
     * A NaN goes before all numbers.
     */
    XDP_AGG_MIN = 2,
    /**
     * A NaN goes before all numbers.
     */
    XDP_AGG_MAX = 3,
    /**
     * Of bool alone.
     */
    XDP_AGG_AND = 4,
    /**
     * Of bool alone.
     */
    XDP_AGG_OR = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum xdp_agg_op_t xdp_agg_op_t;
#else
typedef int32_t xdp_agg_op_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Memory that the processes of a host share.
 */
struct xdp_agg_buffer;

/**
 * A membership in a job.
 */
struct xdp_agg_comm;

/**
 * Settings of communicators.
 */
struct xdp_agg_config;

/**
 * A call in flight.
 */
struct xdp_agg_request;

/**
 * The result of a call, to read.
 */
struct xdp_agg_view;

/**
 * Settings of communicators. To be used by one thread at a time.
 */
typedef struct xdp_agg_config *xdp_agg_config_t;

/**
 * A membership in a job. Several threads may use it; calls are carried out in the order in which
 * they were made, which must be the same at all ranks.
 *
 * It belongs to the process that made it. In a child that was forked each function on it returns
 * XDP_AGG_ERROR_FORKED, except xdp_agg_comm_destroy, which leaves the parent's membership alone.
 */
typedef struct xdp_agg_comm *xdp_agg_comm_t;

/**
 * Asked while a thread waits in a call. Not 0: the call is given up, and the communicator with it.
 */
typedef int (*xdp_agg_waiting_t)(void *argument);

/**
 * Memory of this process that the other processes of its host can read: vectors of calls that lie
 * in it are not copied there.
 */
typedef struct xdp_agg_buffer *xdp_agg_buffer_t;

/**
 * The result of xdp_agg_all_reduce_view, which stays what it is until this is destroyed.
 */
typedef struct xdp_agg_view *xdp_agg_view_t;

/**
 * A call in flight. Its vectors are the caller's again when xdp_agg_test or xdp_agg_wait has said
 * that it has ended, with a result or an error. It has to be freed then; it outlives its
 * communicator.
 */
typedef struct xdp_agg_request *xdp_agg_request_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library: major * 10000 + minor * 100 + patch. XDP_AGG_VERSION is that of the
 * header.
 */
int xdp_agg_version(void);

/**
 * A result in words: a constant text for each number, also for one that is none.
 */
const char *xdp_agg_error_string(xdp_agg_result_t result);

/**
 * What went wrong in this thread's last function that did not return XDP_AGG_SUCCESS: what was
 * found, what was expected, and what to do. The text is valid until the thread's next such
 * function; empty if there was none.
 */
const char *xdp_agg_last_error(void);

/**
 * The ranks that this thread's last error is about, in ascending order: whose contribution was
 * missing at a deadline, or who is gone.
 *
 * `ranks`: room for `capacity` of them; may be NULL if that is 0.
 * `count`: how many there are, also if that is more than there is room for. 0: nobody in
 * particular.
 */
xdp_agg_result_t xdp_agg_missing_ranks(int *ranks, size_t capacity, size_t *count);

/**
 * The report of this thread's last call that ended well, made or waited for, as JSON: who
 * contributed (`report.contributors`, a bit for each rank), `precision` ("exact" or "gradient";
 * null: nothing was rounded), and how many elements were summed again beside an infinity or a NaN
 * (`redone`).
 *
 * `text`: is set to the text, to be freed with xdp_agg_string_free; "null" if there was no such
 * call.
 */
xdp_agg_result_t xdp_agg_last_report(char **text);

/**
 * Frees a text that a function of this library gave. NULL: nothing happens.
 */
void xdp_agg_string_free(char *text);

/**
 * Makes settings, of which none is given yet: a communicator that is made with them takes all from
 * the environment.
 *
 * `config`: is set to the settings, to be freed with xdp_agg_config_destroy.
 */
xdp_agg_result_t xdp_agg_config_create(xdp_agg_config_t *config);

/**
 * Gives a setting, which goes before the environment. Values are checked when a communicator is
 * made.
 *
 * Where RANK or WORLD_SIZE is given, what a launcher says of this process's place on its host does
 * not count any more: give LOCAL_RANK and LOCAL_WORLD_SIZE, too, where several processes of a host
 * shall sum among themselves first.
 *
 * `name`: of the environment variable, such as "XDP_AGG_ADDR", "XDP_AGG_JOB", "RANK"; one that is
 * no setting is XDP_AGG_ERROR_ARGUMENT, and the text lists all.
 * `value`: its value; NULL: as if the variable were not set.
 */
xdp_agg_result_t xdp_agg_config_set(xdp_agg_config_t config, const char *name, const char *value);

/**
 * Frees settings; communicators that were made with them keep what they need. NULL: nothing
 * happens.
 */
xdp_agg_result_t xdp_agg_config_destroy(xdp_agg_config_t config);

/**
 * Joins a job and waits until all its ranks are there, at most for XDP_AGG_JOIN_DEADLINE.
 *
 * `comm`: is set to the communicator, to be given to xdp_agg_comm_destroy; to NULL after an error.
 * `config`: settings that go before the environment; NULL: the environment alone.
 */
xdp_agg_result_t xdp_agg_comm_init(xdp_agg_comm_t *comm, const struct xdp_agg_config *config);

/**
 * This process's number in the job, from 0.
 */
xdp_agg_result_t xdp_agg_comm_rank(const struct xdp_agg_comm *comm, int *rank);

/**
 * Number of processes in the job.
 */
xdp_agg_result_t xdp_agg_comm_size(const struct xdp_agg_comm *comm, int *size);

/**
 * Changes a setting for calls that are made from now on; the same at all ranks, between the same
 * calls.
 *
 * `name`: "XDP_AGG_PRECISION" ("exact", "gradient"), the same at all ranks; or "XDP_AGG_DEADLINE"
 * (seconds from a call's beginning to its end).
 * `value`: its value; NULL: again as when the communicator was made.
 */
xdp_agg_result_t xdp_agg_comm_set(xdp_agg_comm_t comm, const char *name, const char *value);

/**
 * Has a function asked, about twenty times a second, while a thread waits in a call that it made:
 * to look for a signal, or to keep something else going. It is called on that thread; not by
 * xdp_agg_wait and not for calls in flight. It must return soon, and must not throw or jump out.
 *
 * `waiting`: the function; NULL: nobody is asked. If it returns anything but 0, the call returns
 * XDP_AGG_ERROR_ABORTED, and the communicator is of no more use.
 * `argument`: is given to it.
 */
xdp_agg_result_t xdp_agg_comm_on_wait(xdp_agg_comm_t comm,
                                      xdp_agg_waiting_t waiting,
                                      void *argument);

/**
 * What was done so far, as JSON: `rank`, `world_size`, `engine`, calls, packets sent and lost,
 * calls of each precision, and so on.
 *
 * `text`: is set to the text, to be freed with xdp_agg_string_free.
 */
xdp_agg_result_t xdp_agg_comm_stats(const struct xdp_agg_comm *comm, char **text);

/**
 * Gives the membership up, from any thread: calls that wait in other threads, and those in flight,
 * end at once with XDP_AGG_ERROR_ABORTED, and the other ranks' with them. The communicator has to
 * be destroyed all the same.
 *
 * `reason`: is shown to the other ranks; may be NULL.
 */
xdp_agg_result_t xdp_agg_comm_abort(xdp_agg_comm_t comm, const char *reason);

/**
 * Leaves the job in good order and frees the communicator; calls in flight end with
 * XDP_AGG_ERROR_CLOSED, and their requests have still to be freed. No other thread may be in a
 * function on it: abort it before, where one may. NULL: nothing happens.
 */
xdp_agg_result_t xdp_agg_comm_destroy(xdp_agg_comm_t comm);

/**
 * Makes room for `bytes` bytes, which are 0 at first, in the memory that the processes of this
 * host share. XDP_AGG_BUFFERS says how many bytes there are; XDP_AGG_ERROR_CONFIG, and no harm to
 * the communicator: they are not enough. Where each rank is a worker of its own, it is memory of
 * this process.
 *
 * Any call may be given the memory, or a part of it. It must not be touched in a forked child.
 *
 * `memory`: is set to where it is, aligned for elements of every type.
 * `buffer`: is set to what has to be given to xdp_agg_buffer_destroy; both to NULL after an error.
 */
xdp_agg_result_t xdp_agg_buffer_create(const struct xdp_agg_comm *comm,
                                       size_t bytes,
                                       void **memory,
                                       xdp_agg_buffer_t *buffer);

/**
 * Frees the memory, before or after its communicator. All calls that it was given to have ended.
 * NULL: nothing happens.
 */
xdp_agg_result_t xdp_agg_buffer_destroy(xdp_agg_buffer_t buffer);

/**
 * Reduces the ranks' vectors, element by element, and leaves them as they are.
 *
 * Sums and averages of floats in the precision of gradients are in memory that the processes of
 * this host share, once for all of them: with `send` in an xdp_agg_buffer_t nothing is copied
 * inside the host. Any other result is in memory of this process. All processes of a host make
 * this call; those of other hosts may call xdp_agg_all_reduce.
 *
 * A process may have 8 results at a time, in the room of XDP_AGG_BUFFERS. A lack of either is
 * XDP_AGG_ERROR_CONFIG before the call has begun, and does no harm to the communicator. Where
 * other processes of the host have results in all of the room, it waits for them.
 *
 * `send`: `count` elements; they are only read.
 * `result`: is set to where the `count` elements of the result are, which must not be written, and
 * not be touched in a forked child.
 * `view`: is set to what has to be given to xdp_agg_view_destroy; both to NULL after an error.
 */
xdp_agg_result_t xdp_agg_all_reduce_view(const void *send,
                                         size_t count,
                                         xdp_agg_datatype_t datatype,
                                         xdp_agg_op_t op,
                                         xdp_agg_comm_t comm,
                                         const void **result,
                                         xdp_agg_view_t *view);

/**
 * The result of a call that xdp_agg_start_all_reduce_view started and that has ended well. May be
 * called again: each view keeps the result, and so does the request. Returns XDP_AGG_IN_PROGRESS
 * if the call has not ended, and the call's error if it has ended with one.
 *
 * `result`, `view`: as of xdp_agg_all_reduce_view.
 */
xdp_agg_result_t xdp_agg_request_view(xdp_agg_request_t request,
                                      const void **result,
                                      xdp_agg_view_t *view);

/**
 * Frees a result, before or after its communicator. NULL: nothing happens.
 */
xdp_agg_result_t xdp_agg_view_destroy(xdp_agg_view_t view);

/**
 * Reduces the ranks' vectors, element by element; all ranks get the result, the same bits.
 *
 * `send`: `count` elements; NULL or `recv`: in place. Apart from that the two must not overlap.
 * `recv`: `count` elements.
 */
xdp_agg_result_t xdp_agg_all_reduce(const void *send,
                                    void *recv,
                                    size_t count,
                                    xdp_agg_datatype_t datatype,
                                    xdp_agg_op_t op,
                                    xdp_agg_comm_t comm);

/**
 * Does what xdp_agg_all_reduce does, for a call that the caller calls `name`.
 *
 * All ranks must give the same name. Calls of one shape that another rank makes in another order
 * are XDP_AGG_ERROR_CALL_MISMATCH then; without names they are reduced with each other. So calls
 * that are made from several threads should have names.
 *
 * `name`: a string of 1 to 128 bytes in UTF-8; NULL: none.
 */
xdp_agg_result_t xdp_agg_all_reduce_named(const char *name,
                                          const void *send,
                                          void *recv,
                                          size_t count,
                                          xdp_agg_datatype_t datatype,
                                          xdp_agg_op_t op,
                                          xdp_agg_comm_t comm);

/**
 * Gives the root's vector to all ranks, bit for bit.
 *
 * `data`: `count` elements; read at the root, written elsewhere.
 */
xdp_agg_result_t xdp_agg_broadcast(void *data,
                                   size_t count,
                                   xdp_agg_datatype_t datatype,
                                   int root,
                                   xdp_agg_comm_t comm);

/**
 * Reduces the ranks' vectors, element by element; the root gets the result.
 *
 * `send`: `count` elements; NULL or `recv`: in place, and then the contents are unspecified at the
 * other ranks.
 * `recv`: `count` elements at the root; elsewhere, unless in place, it is not touched and may be
 * NULL.
 */
xdp_agg_result_t xdp_agg_reduce(const void *send,
                                void *recv,
                                size_t count,
                                xdp_agg_datatype_t datatype,
                                xdp_agg_op_t op,
                                int root,
                                xdp_agg_comm_t comm);

/**
 * Reduces the ranks' vectors, element by element; each rank gets its part of the result, the
 * elements from rank * `count` on.
 *
 * `send`: size * `count` elements; NULL: in place in `recv`.
 * `recv`: `count` elements. In place: size * `count` elements, of which the rank's part has the
 * result then, in its place, and the rest is unspecified; no copy is made.
 */
xdp_agg_result_t xdp_agg_reduce_scatter(const void *send,
                                        void *recv,
                                        size_t count,
                                        xdp_agg_datatype_t datatype,
                                        xdp_agg_op_t op,
                                        xdp_agg_comm_t comm);

/**
 * Gives each rank's vector to all ranks, bit for bit: rank r's is at r * `count` then.
 *
 * `send`: `count` elements; NULL, or the rank's place in `recv`: in place.
 * `recv`: size * `count` elements.
 */
xdp_agg_result_t xdp_agg_all_gather(const void *send,
                                    void *recv,
                                    size_t count,
                                    xdp_agg_datatype_t datatype,
                                    xdp_agg_comm_t comm);

/**
 * Returns when all ranks have called it.
 */
xdp_agg_result_t xdp_agg_barrier(xdp_agg_comm_t comm);

/**
 * Whether a call has ended. Returns the call's error if it has ended with one.
 *
 * `done`: is set to 1 if it has ended, with a result or an error, and to 0 if it has not.
 */
xdp_agg_result_t xdp_agg_test(xdp_agg_request_t request, int *done);

/**
 * Waits for the end of a call. May be called again, and by several threads.
 *
 * `timeout_ms`: XDP_AGG_IN_PROGRESS is returned after so many milliseconds, and the call goes on;
 * below 0: as long as the call takes, which its deadline ends.
 */
xdp_agg_result_t xdp_agg_wait(xdp_agg_request_t request, int64_t timeout_ms);

/**
 * Gives a call up, and with it the communicator: the other ranks wait for this one's part. As
 * xdp_agg_comm_abort; nothing happens if the call has ended. The call ends with an error soon, and
 * is to be waited for and freed.
 */
xdp_agg_result_t xdp_agg_cancel(xdp_agg_request_t request);

/**
 * Frees the request of a call that has ended. Returns XDP_AGG_IN_PROGRESS, and frees nothing, if
 * it has not. NULL: nothing happens.
 */
xdp_agg_result_t xdp_agg_request_free(xdp_agg_request_t request);

/**
 * Starts what xdp_agg_all_reduce does, and returns at once.
 *
 * `request`: is set to the call in flight; to NULL after an error. Until xdp_agg_test or
 * xdp_agg_wait has said that the call has ended, the vectors are the call's: `send` must not
 * change, and `recv` must be left alone.
 */
xdp_agg_result_t xdp_agg_start_all_reduce(const void *send,
                                          void *recv,
                                          size_t count,
                                          xdp_agg_datatype_t datatype,
                                          xdp_agg_op_t op,
                                          xdp_agg_comm_t comm,
                                          xdp_agg_request_t *request);

/**
 * Starts what xdp_agg_all_reduce_view does; `request` as in xdp_agg_start_all_reduce. When the
 * call has ended, xdp_agg_request_view gives its result. That counts among the process's 8 from
 * the start on, and until the request and all views of it are freed.
 */
xdp_agg_result_t xdp_agg_start_all_reduce_view(const void *send,
                                               size_t count,
                                               xdp_agg_datatype_t datatype,
                                               xdp_agg_op_t op,
                                               xdp_agg_comm_t comm,
                                               xdp_agg_request_t *request);

/**
 * Starts what xdp_agg_all_reduce_named does; `request` as in xdp_agg_start_all_reduce.
 */
xdp_agg_result_t xdp_agg_start_all_reduce_named(const char *name,
                                                const void *send,
                                                void *recv,
                                                size_t count,
                                                xdp_agg_datatype_t datatype,
                                                xdp_agg_op_t op,
                                                xdp_agg_comm_t comm,
                                                xdp_agg_request_t *request);

/**
 * Starts what xdp_agg_broadcast does; `request` as in xdp_agg_start_all_reduce.
 */
xdp_agg_result_t xdp_agg_start_broadcast(void *data,
                                         size_t count,
                                         xdp_agg_datatype_t datatype,
                                         int root,
                                         xdp_agg_comm_t comm,
                                         xdp_agg_request_t *request);

/**
 * Starts what xdp_agg_reduce does; `request` as in xdp_agg_start_all_reduce.
 */
xdp_agg_result_t xdp_agg_start_reduce(const void *send,
                                      void *recv,
                                      size_t count,
                                      xdp_agg_datatype_t datatype,
                                      xdp_agg_op_t op,
                                      int root,
                                      xdp_agg_comm_t comm,
                                      xdp_agg_request_t *request);

/**
 * Starts what xdp_agg_reduce_scatter does; `request` as in xdp_agg_start_all_reduce.
 */
xdp_agg_result_t xdp_agg_start_reduce_scatter(const void *send,
                                              void *recv,
                                              size_t count,
                                              xdp_agg_datatype_t datatype,
                                              xdp_agg_op_t op,
                                              xdp_agg_comm_t comm,
                                              xdp_agg_request_t *request);

/**
 * Starts what xdp_agg_all_gather does; `request` as in xdp_agg_start_all_reduce.
 */
xdp_agg_result_t xdp_agg_start_all_gather(const void *send,
                                          void *recv,
                                          size_t count,
                                          xdp_agg_datatype_t datatype,
                                          xdp_agg_comm_t comm,
                                          xdp_agg_request_t *request);

/**
 * Starts a barrier: the call ends when all ranks have started it; `request` as in
 * xdp_agg_start_all_reduce.
 */
xdp_agg_result_t xdp_agg_start_barrier(xdp_agg_comm_t comm, xdp_agg_request_t *request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* XDP_AGG_H */
