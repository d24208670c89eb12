//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use xdp_agg_fuzz::{bounded_tests, targets};

bounded_tests! { targets::ALL;
    packets: "packet", 20;
    packets_of_members_and_of_the_parent: "forwarder", 20;
    // A file is wrong as a whole if any line is.
    networks: "topology", 60;
    control_messages: "control", 20;
    sequences_of_requests: "jobs", 20;
    jobs_with_trees: "trees", 20;
    plans_for_a_new_epoch: "reform", 20;
}
