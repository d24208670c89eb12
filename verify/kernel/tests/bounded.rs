//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use xdp_agg_fuzz::bounded_tests;
use xdp_agg_fuzz_kernel::targets;

bounded_tests! { targets::ALL;
    settings: "config", 20;
    tables_of_ways: "tuning", 40;
    what_ranks_of_a_mesh_read: "mesh", 20;
}
