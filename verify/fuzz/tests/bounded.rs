//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use xdp_agg_fuzz::{bounded, targets};

fn fuzz(name: &str, one_in: u64) {
    let target = targets::ALL.into_iter().find(|target| target.name == name);
    bounded::fuzz(&target.expect("there is such a target"), one_in);
}

#[test]
fn packets() {
    fuzz("packet", 20);
}

#[test]
fn packets_of_members_and_of_the_parent() {
    fuzz("forwarder", 20);
}

#[test]
fn networks() {
    // A file is wrong as a whole if any line is.
    fuzz("topology", 60);
}

#[test]
fn control_messages() {
    fuzz("control", 20);
}

#[test]
fn sequences_of_requests() {
    fuzz("jobs", 20);
}

#[test]
fn jobs_with_trees() {
    fuzz("trees", 20);
}

#[test]
fn plans_for_a_new_epoch() {
    fuzz("reform", 20);
}
