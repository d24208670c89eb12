/*
 * Sums a vector over all ranks, twice: waiting for it, and while this process does something else.
 *
 *   cc all_reduce.c $(pkg-config --cflags --libs xdp-agg) -o all_reduce
 *   XDP_AGG_ADDR=10.0.0.100 RANK=0 WORLD_SIZE=2 ./all_reduce     # and RANK=1 on another host
 */
#include <stdio.h>
#include <stdlib.h>

#include <xdp_agg.h>

#define LEN 1000000

/* Ends the program where a function did not do what it is for, and says why. */
static void check(xdp_agg_result_t result, const char *what)
{
    if (result != XDP_AGG_SUCCESS) {
        fprintf(stderr, "%s: %s: %s\n", what, xdp_agg_error_string(result), xdp_agg_last_error());
        exit(1);
    }
}

int main(void)
{
    static float gradients[LEN];
    xdp_agg_comm_t comm;
    xdp_agg_request_t request;
    char *report;
    int rank, size, i;

    /* RANK, WORLD_SIZE and XDP_AGG_ADDR are of the environment: launchers set the first two. */
    check(xdp_agg_comm_init(&comm, NULL), "joining");
    check(xdp_agg_comm_rank(comm, &rank), "rank");
    check(xdp_agg_comm_size(comm, &size), "size");
    for (i = 0; i < LEN; i++)
        gradients[i] = (float)(rank + 1);

    /* In place: no send vector. */
    check(xdp_agg_all_reduce(NULL, gradients, LEN, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm), "sum");
    printf("rank %d of %d: the sum is %g\n", rank, size, gradients[LEN - 1]);
    check(xdp_agg_last_report(&report), "report");
    printf("rank %d: %s\n", rank, report);
    xdp_agg_string_free(report);

    check(xdp_agg_start_all_reduce(NULL, gradients, LEN, XDP_AGG_FLOAT32, XDP_AGG_AVERAGE, comm,
                                   &request),
          "start");
    /* The vector is the call's until it has ended; there is time for something else. */
    check(xdp_agg_wait(request, -1), "average");
    check(xdp_agg_request_free(request), "free");
    printf("rank %d: the average of sums is %g\n", rank, gradients[0]);

    check(xdp_agg_comm_destroy(comm), "leaving");
    return 0;
}
