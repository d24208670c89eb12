//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use xdp_agg_fuzz::bounded;
use xdp_agg_fuzz_kernel::targets;

fn fuzz(name: &str, one_in: u64) {
    let target = targets::ALL.into_iter().find(|target| target.name == name);
    bounded::fuzz(&target.expect("there is such a target"), one_in);
}

#[test]
fn settings() {
    fuzz("config", 20);
}

#[test]
fn tables_of_ways() {
    fuzz("tuning", 40);
}

#[test]
fn what_ranks_of_a_mesh_read() {
    fuzz("mesh", 20);
}
