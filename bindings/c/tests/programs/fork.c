/* A forked child gets an error from every function, and changes nothing of its parent's. */
#define _POSIX_C_SOURCE 200809L
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define COUNT 4096

static float vector[COUNT], other[COUNT];

static void in_child(xdp_agg_comm_t comm, xdp_agg_request_t request)
{
    xdp_agg_request_t more;
    char *text;
    int number;

    GIVES(XDP_AGG_ERROR_FORKED,
          xdp_agg_all_reduce(NULL, other, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    EXPECT(strstr(xdp_agg_last_error(), "forked") != NULL);
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_barrier(comm));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_start_barrier(comm, &more));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_comm_rank(comm, &number));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_comm_size(comm, &number));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_comm_set(comm, "XDP_AGG_DEADLINE", "1"));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_comm_stats(comm, &text));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_comm_abort(comm, "no"));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_wait(request, 1));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_test(request, &number));
    GIVES(XDP_AGG_ERROR_FORKED, xdp_agg_cancel(request));
    OK(xdp_agg_request_free(request));
    OK(xdp_agg_comm_destroy(comm));
}

int main(void)
{
    xdp_agg_comm_t comm;
    xdp_agg_request_t request;
    int size, i, status;
    pid_t child;

    OK(xdp_agg_comm_init(&comm, NULL));
    OK(xdp_agg_comm_size(comm, &size));
    for (i = 0; i < COUNT; i++)
        vector[i] = 1;
    OK(xdp_agg_start_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &request));
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        in_child(comm, request);
        exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(status == 0);
    OK(xdp_agg_wait(request, -1));
    OK(xdp_agg_request_free(request));
    for (i = 0; i < COUNT; i++)
        EXPECT(vector[i] == (float)size);
    OK(xdp_agg_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    EXPECT(vector[0] == (float)(size * size));
    OK(xdp_agg_comm_destroy(comm));
    printf("done\n");
    return 0;
}
