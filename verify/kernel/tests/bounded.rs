//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use xdp_agg_fuzz::bounded;
use xdp_agg_fuzz_kernel::targets;

#[test]
fn settings() {
    bounded::fuzz(&targets::ALL, "config", 20);
}

#[test]
fn tables_of_ways() {
    bounded::fuzz(&targets::ALL, "tuning", 40);
}

#[test]
fn what_ranks_of_a_mesh_read() {
    bounded::fuzz(&targets::ALL, "mesh", 20);
}
