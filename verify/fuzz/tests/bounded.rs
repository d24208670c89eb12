//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use xdp_agg_fuzz::{bounded, targets};

#[test]
fn packets() {
    bounded::fuzz(&targets::ALL, "packet", 20);
}

#[test]
fn packets_of_members_and_of_the_parent() {
    bounded::fuzz(&targets::ALL, "forwarder", 20);
}

#[test]
fn networks() {
    // A file is wrong as a whole if any line is.
    bounded::fuzz(&targets::ALL, "topology", 60);
}

#[test]
fn control_messages() {
    bounded::fuzz(&targets::ALL, "control", 20);
}

#[test]
fn sequences_of_requests() {
    bounded::fuzz(&targets::ALL, "jobs", 20);
}

#[test]
fn jobs_with_trees() {
    bounded::fuzz(&targets::ALL, "trees", 20);
}

#[test]
fn plans_for_a_new_epoch() {
    bounded::fuzz(&targets::ALL, "reform", 20);
}
