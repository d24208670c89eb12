/* What the test programs share. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xdp_agg.h>

#define FAIL(...)                                      \
    do {                                               \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                  \
        fprintf(stderr, "\n");                         \
        exit(1);                                       \
    } while (0)

#define EXPECT(condition)                  \
    do {                                   \
        if (!(condition))                  \
            FAIL("not so: %s", #condition); \
    } while (0)

/* A function's result is this one. */
#define GIVES(wanted, call)                                                           \
    do {                                                                              \
        xdp_agg_result_t result_ = (call);                                            \
        if (result_ != (wanted))                                                      \
            FAIL("%s: %s instead of %s: %s", #call, xdp_agg_error_string(result_),     \
                 xdp_agg_error_string(wanted), xdp_agg_last_error());                 \
    } while (0)

#define OK(call) GIVES(XDP_AGG_SUCCESS, call)

/* An argument is refused, with a text that has these words. */
#define REFUSES(words, call)                                                       \
    do {                                                                           \
        GIVES(XDP_AGG_ERROR_ARGUMENT, call);                                       \
        if (strstr(xdp_agg_last_error(), words) == NULL)                           \
            FAIL("%s: no \"%s\" in: %s", #call, words, xdp_agg_last_error());       \
    } while (0)

#endif
