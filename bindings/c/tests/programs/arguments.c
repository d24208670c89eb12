/* What cannot be is refused by name, and a communicator is as good as before after that. */
#include <limits.h>

#include "check.h"

static void without_communicator(void)
{
    xdp_agg_config_t config;
    xdp_agg_comm_t comm = NULL;
    float x = 1;
    int number;
    size_t count;

    EXPECT(strcmp(xdp_agg_last_error(), "") == 0);
    EXPECT(xdp_agg_version() == XDP_AGG_VERSION);
    EXPECT(strcmp(xdp_agg_error_string(XDP_AGG_ERROR_FORKED), "") != 0);
    EXPECT(strstr(xdp_agg_error_string(12345), "no result") != NULL);
    REFUSES("comm", xdp_agg_comm_init(NULL, NULL));
    REFUSES("comm", xdp_agg_all_reduce(NULL, &x, 1, XDP_AGG_FLOAT32, XDP_AGG_SUM, NULL));
    REFUSES("comm", xdp_agg_barrier(NULL));
    REFUSES("comm", xdp_agg_comm_rank(NULL, &number));
    REFUSES("comm", xdp_agg_comm_abort(NULL, "why"));
    REFUSES("request", xdp_agg_wait(NULL, 1));
    REFUSES("request", xdp_agg_cancel(NULL));
    REFUSES("config", xdp_agg_config_create(NULL));
    REFUSES("config", xdp_agg_config_set(NULL, "RANK", "0"));
    REFUSES("text", xdp_agg_last_report(NULL));
    REFUSES("count", xdp_agg_missing_ranks(NULL, 0, NULL));
    REFUSES("ranks", xdp_agg_missing_ranks(NULL, 1, &count));
    OK(xdp_agg_comm_destroy(NULL));
    OK(xdp_agg_config_destroy(NULL));
    OK(xdp_agg_request_free(NULL));
    xdp_agg_string_free(NULL);

    OK(xdp_agg_config_create(&config));
    REFUSES("XDP_AGG_ADRESS", xdp_agg_config_set(config, "XDP_AGG_ADRESS", "localhost"));
    EXPECT(strstr(xdp_agg_last_error(), "XDP_AGG_ADDR") != NULL);
    REFUSES("name", xdp_agg_config_set(config, NULL, "0"));
    REFUSES("value", xdp_agg_config_set(config, "XDP_AGG_JOB", "\xff"));
    OK(xdp_agg_config_set(config, "RANK", "9"));
    GIVES(XDP_AGG_ERROR_CONFIG, xdp_agg_comm_init(&comm, config));
    EXPECT(comm == NULL && strstr(xdp_agg_last_error(), "rank 9") != NULL);
    OK(xdp_agg_config_set(config, "RANK", NULL));
    GIVES(XDP_AGG_ERROR_CONFIG, xdp_agg_comm_init(&comm, config));
    EXPECT(strstr(xdp_agg_last_error(), "RANK") != NULL);
    OK(xdp_agg_config_set(config, "RANK", "0"));
    OK(xdp_agg_config_set(config, "XDP_AGG_PRECISION", "perfect"));
    GIVES(XDP_AGG_ERROR_CONFIG, xdp_agg_comm_init(&comm, config));
    EXPECT(strstr(xdp_agg_last_error(), "perfect") != NULL);
    OK(xdp_agg_missing_ranks(NULL, 0, &count));
    EXPECT(count == 0);
    OK(xdp_agg_config_destroy(config));
}

static void of_calls(xdp_agg_comm_t comm, int size)
{
    static float a[8], b[8 * 8];
    static unsigned char bools[2] = {1, 0};
    xdp_agg_request_t request = (xdp_agg_request_t)a;
    char *bytes = (char *)b;
    size_t many = (size_t)-1;

    REFUSES("datatype", xdp_agg_all_reduce(NULL, a, 8, (xdp_agg_datatype_t)99, XDP_AGG_SUM, comm));
    REFUSES("op", xdp_agg_all_reduce(NULL, a, 8, XDP_AGG_FLOAT32, (xdp_agg_op_t)-1, comm));
    REFUSES("recv", xdp_agg_all_reduce(a, NULL, 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    REFUSES("recv", xdp_agg_all_reduce(NULL, bytes + 1, 2, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    REFUSES("send", xdp_agg_all_reduce(bytes + 1, a, 2, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    REFUSES("overlaps", xdp_agg_all_reduce(b + 1, b, 4, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    REFUSES("overlaps", xdp_agg_all_gather(b + 1, b, 2, XDP_AGG_FLOAT32, comm));
    REFUSES("count", xdp_agg_all_reduce(NULL, a, many, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    REFUSES("count", xdp_agg_all_gather(NULL, a, many / 8, XDP_AGG_FLOAT32, comm));
    REFUSES("root", xdp_agg_broadcast(a, 8, XDP_AGG_FLOAT32, size, comm));
    REFUSES("root", xdp_agg_broadcast(a, 8, XDP_AGG_FLOAT32, INT_MIN, comm));
    REFUSES("root", xdp_agg_reduce(NULL, a, 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, 70000, comm));
    REFUSES("data", xdp_agg_broadcast(NULL, 8, XDP_AGG_FLOAT32, 0, comm));
    REFUSES("op", xdp_agg_all_reduce(NULL, a, 8, XDP_AGG_FLOAT32, XDP_AGG_AND, comm));
    REFUSES("op", xdp_agg_all_reduce(NULL, bools, 2, XDP_AGG_BOOL, XDP_AGG_AVERAGE, comm));
    REFUSES("request", xdp_agg_start_barrier(comm, NULL));
    REFUSES("datatype", xdp_agg_start_broadcast(a, 8, (xdp_agg_datatype_t)-1, 0, comm, &request));
    EXPECT(request == NULL);
    REFUSES("rank", xdp_agg_comm_rank(comm, NULL));
    REFUSES("size", xdp_agg_comm_size(comm, NULL));
    REFUSES("text", xdp_agg_comm_stats(comm, NULL));

    memset(b, 'x', sizeof b);
    bytes[129] = 0;
    REFUSES("name", xdp_agg_all_reduce_named(bytes, NULL, a, 8, XDP_AGG_FLOAT32, XDP_AGG_SUM,
                                             comm));
    REFUSES("name", xdp_agg_start_all_reduce_named("", NULL, a, 8, XDP_AGG_FLOAT32, XDP_AGG_SUM,
                                                   comm, &request));
    bytes[128] = 0;
    OK(xdp_agg_all_reduce_named(bytes, NULL, a, 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    OK(xdp_agg_all_reduce_named(NULL, NULL, a, 8, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));

    a[0] = 1;
    OK(xdp_agg_all_reduce(NULL, a, 1, XDP_AGG_FLOAT32, XDP_AGG_SUM, comm));
    EXPECT(a[0] == (float)size);
}

int main(void)
{
    xdp_agg_comm_t comm;
    int size;

    without_communicator();
    OK(xdp_agg_comm_init(&comm, NULL));
    OK(xdp_agg_comm_size(comm, &size));
    of_calls(comm, size);
    OK(xdp_agg_barrier(comm));
    OK(xdp_agg_comm_destroy(comm));
    printf("done\n");
    return 0;
}
