/* Vectors in the memory that the processes of a host share: at half of the ranks. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "check.h"

#define COUNT 300000

static float copied[COUNT];

static void lacks_room(xdp_agg_comm_t comm)
{
    xdp_agg_buffer_t buffer = (xdp_agg_buffer_t)&comm;
    void *memory = &comm;

    GIVES(XDP_AGG_ERROR_CONFIG, xdp_agg_buffer_create(comm, 1 << 30, &memory, &buffer));
    EXPECT(memory == NULL && buffer == NULL);
    EXPECT(strstr(xdp_agg_last_error(), "XDP_AGG_BUFFERS=107") != NULL);
    REFUSES("comm is a null pointer", xdp_agg_buffer_create(NULL, 8, &memory, &buffer));
    REFUSES("memory is a null pointer", xdp_agg_buffer_create(comm, 8, NULL, &buffer));
    OK(xdp_agg_buffer_destroy(NULL));
}

/* Results that all processes of a host read: they stay when others come, and the vector, too. */
static void reads_results(xdp_agg_comm_t comm, const void *vector, int size)
{
    xdp_agg_view_t views[8], none = (xdp_agg_view_t)&comm;
    const void *results[8], *nothing = &comm;
    const float *first, *last;
    int call, i;

    for (call = 0; call < 8; call++)
        OK(xdp_agg_all_reduce_view(vector, COUNT / 8, XDP_AGG_FLOAT32,
                                   call % 2 ? XDP_AGG_AVERAGE : XDP_AGG_SUM, comm, &results[call],
                                   &views[call]));
    first = results[0], last = results[7];
    for (i = 0; i < COUNT / 8; i++) {
        EXPECT(((const float *)vector)[i] == (float)(i % 9));
        EXPECT(first[i] == (float)(size * (i % 9)) && last[i] == (float)(i % 9));
    }
    GIVES(XDP_AGG_ERROR_CONFIG,
          xdp_agg_all_reduce_view(vector, COUNT / 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &nothing,
                                  &none));
    EXPECT(nothing == NULL && none == NULL);
    REFUSES("result is a null pointer",
            xdp_agg_all_reduce_view(vector, 1, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, NULL, &none));
    REFUSES("send is a null pointer",
            xdp_agg_all_reduce_view(NULL, 1, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &nothing, &none));
    for (call = 0; call < 8; call++)
        OK(xdp_agg_view_destroy(views[call]));
    OK(xdp_agg_view_destroy(NULL));
    /* What is not shared: exact sums, and integers. */
    OK(xdp_agg_all_reduce_view(vector, 100, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &nothing, &none));
    EXPECT(((const float *)nothing)[8] == (float)(size * 8));
    OK(xdp_agg_view_destroy(none));
}

/* The same, started: several at once, freed before and after they were looked at. */
static void starts_views(xdp_agg_comm_t comm, const void *vector, int size)
{
    xdp_agg_request_t requests[8], more = (xdp_agg_request_t)&comm, plain;
    xdp_agg_view_t views[2], none;
    const void *result, *again;
    int call, i;
    float one[3] = {1, 2, 3};

    for (call = 0; call < 8; call++)
        OK(xdp_agg_start_all_reduce_view(vector, COUNT / 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm,
                                         &requests[call]));
    GIVES(XDP_AGG_ERROR_CONFIG,
          xdp_agg_start_all_reduce_view(vector, COUNT / 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm,
                                        &more));
    EXPECT(more == NULL);
    for (call = 7; call >= 0; call--) {
        OK(xdp_agg_wait(requests[call], -1));
        if (call % 2 == 0) {
            OK(xdp_agg_request_view(requests[call], &result, &views[0]));
            OK(xdp_agg_request_view(requests[call], &again, &views[1]));
            OK(xdp_agg_request_free(requests[call]));
            OK(xdp_agg_view_destroy(views[0]));
            EXPECT(result == again);
            for (i = 0; i < COUNT / 8; i++)
                EXPECT(((const float *)again)[i] == (float)(size * (i % 9)));
            OK(xdp_agg_view_destroy(views[1]));
        } else {
            OK(xdp_agg_request_free(requests[call]));
        }
    }
    for (i = 0; i < COUNT / 8; i++)
        EXPECT(((const float *)vector)[i] == (float)(i % 9));
    REFUSES("send is a null pointer",
            xdp_agg_start_all_reduce_view(NULL, 1, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &more));
    REFUSES("request is a null pointer", xdp_agg_request_view(NULL, &result, &none));
    OK(xdp_agg_start_all_reduce(NULL, one, 3, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm, &plain));
    OK(xdp_agg_wait(plain, -1));
    REFUSES("request is of a call that leaves its result in recv",
            xdp_agg_request_view(plain, &result, &none));
    EXPECT(result == NULL && none == NULL);
    OK(xdp_agg_request_free(plain));
}

int main(void)
{
    xdp_agg_comm_t comm;
    xdp_agg_buffer_t buffer;
    xdp_agg_request_t request;
    void *memory;
    float *vector;
    int rank, size, call, i;

    EXPECT(setenv("XDP_AGG_BUFFERS", "16777216", 1) == 0);
    OK(xdp_agg_comm_init(&comm, NULL));
    OK(xdp_agg_comm_rank(comm, &rank));
    OK(xdp_agg_comm_size(comm, &size));
    lacks_room(comm);
    OK(xdp_agg_buffer_create(comm, COUNT * sizeof *vector, &memory, &buffer));
    vector = memory;
    EXPECT(vector[0] == 0 && vector[COUNT - 1] == 0);
    if (rank % 2 == 1)
        vector = copied;
    for (call = 0; call < 6; call++) {
        for (i = 0; i < COUNT; i++)
            vector[i] = (float)(i % 9 + rank + call);
        if (call % 2 == 0) {
            OK(xdp_agg_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
        } else {
            OK(xdp_agg_start_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm,
                                        &request));
            OK(xdp_agg_wait(request, -1));
            OK(xdp_agg_request_free(request));
        }
        for (i = 0; i < COUNT; i++)
            if (vector[i] != (float)(size * (i % 9 + call) + size * (size - 1) / 2))
                FAIL("call %d, element %d: %g", call, i, vector[i]);
    }
    for (i = 0; i < COUNT; i++)
        vector[i] = (float)(i % 9);
    reads_results(comm, vector, size);
    starts_views(comm, vector, size);
    OK(xdp_agg_comm_destroy(comm));
    /* The memory stays when the communicator is gone. */
    ((float *)memory)[COUNT - 1] = 7;
    EXPECT(((float *)memory)[COUNT - 1] == 7);
    OK(xdp_agg_buffer_destroy(buffer));
    puts("done");
    return 0;
}
