// The header in C++11: types that are told apart, handles that free themselves, threads.
#include <xdp_agg.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

static_assert(!std::is_convertible<int, xdp_agg_datatype_t>::value, "an enumeration of its own");
static_assert(sizeof(xdp_agg_op_t) == 4, "of 32 bits");

static void check(xdp_agg_result_t result)
{
    if (result != XDP_AGG_SUCCESS)
        throw std::runtime_error(xdp_agg_last_error());
}

struct Leave {
    void operator()(xdp_agg_comm_t comm) const { xdp_agg_comm_destroy(comm); }
};
using Comm = std::unique_ptr<std::remove_pointer<xdp_agg_comm_t>::type, Leave>;

static Comm join(const std::string &job)
{
    xdp_agg_config_t config = nullptr;
    xdp_agg_comm_t comm = nullptr;
    check(xdp_agg_config_create(&config));
    check(xdp_agg_config_set(config, "XDP_AGG_JOB", job.c_str()));
    xdp_agg_result_t result = xdp_agg_comm_init(&comm, config);
    xdp_agg_config_destroy(config);
    check(result);
    return Comm(comm);
}

// Sums on a communicator, on whatever thread; false: it was wrong.
static bool sums(xdp_agg_comm_t comm, int size)
{
    for (int i = 1; i <= 20; i++) {
        std::vector<double> data(100 * i, 0.5);
        check(xdp_agg_all_reduce(nullptr, data.data(), data.size(), XDP_AGG_FLOAT64, XDP_AGG_SUM,
                                 comm));
        for (double x : data)
            if (x != 0.5 * size)
                return false;
    }
    return true;
}

int main()
{
    try {
        Comm one = join("one"), two = join("two");
        int size = 0;
        check(xdp_agg_comm_size(one.get(), &size));
        bool right = false;
        std::thread other([&] { right = sums(two.get(), size); });
        bool as_right = sums(one.get(), size);
        other.join();
        if (!right || !as_right)
            throw std::runtime_error("a sum is wrong");
        // A thread's errors are its own.
        if (xdp_agg_barrier(nullptr) != XDP_AGG_ERROR_ARGUMENT)
            throw std::runtime_error("no error");
        std::thread([&] { right = *xdp_agg_last_error() == '\0'; }).join();
        if (!right || *xdp_agg_last_error() == '\0')
            throw std::runtime_error("errors are not the thread's own");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return EXIT_FAILURE;
    }
    std::printf("done\n");
    return EXIT_SUCCESS;
}
