/* Every collective, waited for and in flight, with vectors of their own and in place. */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"

#define COUNT 1000
#define RANKS_MAX 8

static int rank, size;
static xdp_agg_comm_t comm;

/* Waits for a call in flight in small steps, and frees it. */
static void finish(xdp_agg_request_t request)
{
    int done = 0;
    xdp_agg_result_t result;

    while ((result = xdp_agg_wait(request, 5)) == XDP_AGG_IN_PROGRESS)
        ;
    if (result != XDP_AGG_SUCCESS)
        FAIL("in flight: %s", xdp_agg_last_error());
    OK(xdp_agg_test(request, &done));
    EXPECT(done == 1);
    OK(xdp_agg_wait(request, 0));
    OK(xdp_agg_request_free(request));
}

static float own(int of, int i)
{
    return (float)(of * 3 + i % 7);
}

static float sum(int i)
{
    float all = 0;
    int r;

    for (r = 0; r < size; r++)
        all += own(r, i);
    return all;
}

static void fill(float *vector, int count)
{
    int i;

    for (i = 0; i < count; i++)
        vector[i] = own(rank, i);
}

static void all_reduce(int in_flight)
{
    static float send[COUNT], recv[COUNT];
    xdp_agg_request_t request = NULL;
    int i;

    fill(send, COUNT);
    memset(recv, 0, sizeof recv);
    if (in_flight) {
        OK(xdp_agg_start_all_reduce(send, recv, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm,
                                    &request));
        finish(request);
    } else {
        OK(xdp_agg_all_reduce(send, recv, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    }
    for (i = 0; i < COUNT; i++)
        EXPECT(recv[i] == sum(i) && send[i] == own(rank, i));
    /* In place, named twice. */
    OK(xdp_agg_all_reduce(recv, recv, COUNT, XDP_AGG_FLOAT32, XDP_AGG_AVERAGE, comm));
    EXPECT(recv[5] == sum(5));
}

static void broadcast(int in_flight)
{
    static double data[COUNT];
    xdp_agg_request_t request = NULL;
    int i, root = size - 1;

    for (i = 0; i < COUNT; i++)
        data[i] = rank == root ? i / 3.0 : -1;
    if (in_flight) {
        OK(xdp_agg_start_broadcast(data, COUNT, XDP_AGG_FLOAT64, root, comm, &request));
        finish(request);
    } else {
        OK(xdp_agg_broadcast(data, COUNT, XDP_AGG_FLOAT64, root, comm));
    }
    for (i = 0; i < COUNT; i++)
        EXPECT(data[i] == i / 3.0);
}

static void reduce(int in_flight)
{
    static float send[COUNT], recv[COUNT];
    xdp_agg_request_t request = NULL;
    int i, root = 1 % size;
    void *place = rank == root ? recv : NULL;

    fill(send, COUNT);
    if (in_flight) {
        OK(xdp_agg_start_reduce(send, place, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, root, comm,
                                &request));
        finish(request);
    } else {
        OK(xdp_agg_reduce(send, place, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, root, comm));
    }
    for (i = 0; i < COUNT; i++) {
        EXPECT(send[i] == own(rank, i));
        EXPECT(rank != root || recv[i] == sum(i));
    }
    OK(xdp_agg_reduce(NULL, send, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, root, comm));
    EXPECT(rank != root || send[9] == sum(9));
}

static void reduce_scatter(int in_flight)
{
    static float send[COUNT * RANKS_MAX], recv[COUNT];
    xdp_agg_request_t request = NULL;
    int i;

    fill(send, COUNT * size);
    if (in_flight) {
        OK(xdp_agg_start_reduce_scatter(send, recv, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm,
                                        &request));
        finish(request);
    } else {
        OK(xdp_agg_reduce_scatter(send, recv, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    }
    for (i = 0; i < COUNT; i++)
        EXPECT(recv[i] == sum(rank * COUNT + i));
    for (i = 0; i < COUNT * size; i++)
        EXPECT(send[i] == own(rank, i));
    OK(xdp_agg_reduce_scatter(NULL, send, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    for (i = 0; i < COUNT; i++)
        EXPECT(send[rank * COUNT + i] == sum(rank * COUNT + i));
}

static void all_gather(int in_flight)
{
    static int64_t send[COUNT], recv[COUNT * RANKS_MAX];
    xdp_agg_request_t request = NULL;
    int i;

    for (i = 0; i < COUNT; i++)
        send[i] = rank * 100000 + i;
    memset(recv, 0, sizeof recv);
    if (in_flight) {
        OK(xdp_agg_start_all_gather(send, recv, COUNT, XDP_AGG_INT64, comm, &request));
        finish(request);
    } else {
        OK(xdp_agg_all_gather(send, recv, COUNT, XDP_AGG_INT64, comm));
    }
    for (i = 0; i < COUNT * size; i++)
        EXPECT(recv[i] == i / COUNT * 100000 + i % COUNT);
    for (i = 0; i < COUNT; i++)
        recv[rank * COUNT + i] = -i;
    OK(xdp_agg_all_gather(recv + rank * COUNT, recv, COUNT, XDP_AGG_INT64, comm));
    for (i = 0; i < COUNT * size; i++)
        EXPECT(recv[i] == -(i % COUNT));
}

static void barrier(int in_flight)
{
    xdp_agg_request_t request = NULL;

    if (in_flight) {
        OK(xdp_agg_start_barrier(comm, &request));
        finish(request);
    } else {
        OK(xdp_agg_barrier(comm));
    }
}

/* Types that are not those above. */
static void types(void)
{
    int32_t wraps[2] = {2000000000, -1};
    int16_t shorts[3] = {(int16_t)(rank + 1), -5, 7};
    int8_t chars[1] = {(int8_t)(100 + rank)};
    uint8_t bytes[1] = {(uint8_t)(200 + rank)};
    bool all[2] = {true, false}, some[2] = {false, false};
    uint16_t halves[1] = {0x3c00};   /* 1.0 */
    uint16_t brains[1] = {0x3f80};   /* 1.0 */
    uint32_t wrapped = 2000000000u * (uint32_t)size;

    all[0] = rank != 0;
    some[0] = rank == 0;
    OK(xdp_agg_all_reduce(NULL, wraps, 2, XDP_AGG_INT32, XDP_AGG_SUM, comm));
    EXPECT((uint32_t)wraps[0] == wrapped && wraps[1] == -size);
    OK(xdp_agg_all_reduce(NULL, shorts, 3, XDP_AGG_INT16, XDP_AGG_MAX, comm));
    EXPECT(shorts[0] == size && shorts[1] == -5 && shorts[2] == 7);
    OK(xdp_agg_all_reduce(NULL, chars, 1, XDP_AGG_INT8, XDP_AGG_MIN, comm));
    EXPECT(chars[0] == 100);
    OK(xdp_agg_all_reduce(NULL, bytes, 1, XDP_AGG_UINT8, XDP_AGG_MAX, comm));
    EXPECT(bytes[0] == 200 + size - 1);
    OK(xdp_agg_all_reduce(NULL, all, 2, XDP_AGG_BOOL, XDP_AGG_AND, comm));
    EXPECT(!all[0] && !all[1]);
    OK(xdp_agg_all_reduce(NULL, some, 2, XDP_AGG_BOOL, XDP_AGG_OR, comm));
    EXPECT(some[0] && !some[1]);
    OK(xdp_agg_all_reduce(NULL, halves, 1, XDP_AGG_FLOAT16, XDP_AGG_AVERAGE, comm));
    EXPECT(halves[0] == 0x3c00);
    OK(xdp_agg_all_reduce(NULL, brains, 1, XDP_AGG_BFLOAT16, XDP_AGG_MIN, comm));
    EXPECT(brains[0] == 0x3f80);
    OK(xdp_agg_all_reduce(NULL, NULL, 0, XDP_AGG_FLOAT64, XDP_AGG_SUM, comm));
}

/* Many at once, which are waited for in another order. */
static void together(void)
{
    enum { CALLS = 16 };
    static float vectors[CALLS][COUNT];
    xdp_agg_request_t requests[CALLS];
    int i;

    for (i = 0; i < CALLS; i++) {
        fill(vectors[i], COUNT);
        OK(xdp_agg_start_all_reduce(NULL, vectors[i], COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm,
                                    &requests[i]));
    }
    for (i = CALLS - 1; i >= 0; i--) {
        finish(requests[i]);
        EXPECT(vectors[i][11] == sum(11));
    }
}

static void settings_and_reports(void)
{
    static float vector[COUNT];
    char *text = NULL;

    fill(vector, COUNT);
    OK(xdp_agg_comm_set(comm, "XDP_AGG_PRECISION", "gradient"));
    OK(xdp_agg_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    OK(xdp_agg_last_report(&text));
    EXPECT(strstr(text, "\"precision\":\"gradient\"") != NULL);
    xdp_agg_string_free(text);
    OK(xdp_agg_comm_set(comm, "XDP_AGG_PRECISION", NULL));
    OK(xdp_agg_all_reduce(NULL, vector, COUNT, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    OK(xdp_agg_last_report(&text));
    EXPECT(strstr(text, "\"precision\":\"exact\"") != NULL);
    xdp_agg_string_free(text);
    OK(xdp_agg_comm_set(comm, "XDP_AGG_DEADLINE", "20"));
    GIVES(XDP_AGG_ERROR_CONFIG, xdp_agg_comm_set(comm, "XDP_AGG_DEADLINE", "soon"));
    GIVES(XDP_AGG_ERROR_CONFIG, xdp_agg_comm_set(comm, "XDP_AGG_PRECISION", "good"));
    REFUSES("cannot be changed", xdp_agg_comm_set(comm, "XDP_AGG_JOB", "other"));
    OK(xdp_agg_comm_stats(comm, &text));
    EXPECT(strstr(text, "\"engine\":\"userspace\"") != NULL);
    EXPECT(strstr(text, "\"gradient_calls\":1") != NULL);
    xdp_agg_string_free(text);
}

int main(void)
{
    int in_flight;

    OK(xdp_agg_comm_init(&comm, NULL));
    OK(xdp_agg_comm_rank(comm, &rank));
    OK(xdp_agg_comm_size(comm, &size));
    EXPECT(size <= RANKS_MAX && rank >= 0 && rank < size);
    for (in_flight = 0; in_flight <= 1; in_flight++) {
        all_reduce(in_flight);
        broadcast(in_flight);
        reduce(in_flight);
        reduce_scatter(in_flight);
        all_gather(in_flight);
        barrier(in_flight);
    }
    types();
    together();
    settings_and_reports();
    OK(xdp_agg_comm_destroy(comm));
    printf("done\n");
    return 0;
}
