//! C and C++ programs against the header and the library, as ranks of a job on loopback.

mod support;

use std::process::Command;

use support::{Daemon, Installed, is_done};

/// A program that says that it is done, as all ranks of worlds of these sizes.
fn is_done_by_all(source: &str, sizes: &[u16]) {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile(source);
    for size in sizes {
        daemon.all_done(&installed, &program, (&[], *size));
    }
}

#[test]
fn every_collective_is_right_in_c() {
    is_done_by_all("tests/programs/collectives.c", &[1, 2, 3]);
}

#[test]
fn arguments_that_cannot_be_are_refused_by_name() {
    is_done_by_all("tests/programs/arguments.c", &[2]);
}

#[test]
fn a_forked_child_is_refused_and_changes_nothing() {
    is_done_by_all("tests/programs/fork.c", &[2]);
}

#[test]
fn cplusplus_takes_the_header() {
    is_done_by_all("tests/programs/plus.cpp", &[2]);
}

#[test]
fn every_bad_end_has_its_code() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/ends.c");
    for end in ["abort", "cancel", "destroy", "question", "deadline", "mismatch", "order"] {
        daemon.all_done(&installed, &program, (&[end], 3));
    }
    let ranks = daemon.ranks(&installed, &program, (&["loss"], 3));
    ranks.into_iter().skip(1).for_each(is_done);
}

/// Two hosts of two processes each.
#[test]
fn vectors_that_a_host_shares_are_summed() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/buffers.c");
    let ranks = daemon.ranks_of_hosts(&installed, &program, (&[], 4), 2);
    ranks.into_iter().for_each(is_done);
}

#[test]
fn a_deadline_inside_a_host_names_the_rank() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/ends.c");
    let ranks = daemon.ranks_of_hosts(&installed, &program, (&["deadline_in_host"], 3), 3);
    ranks.into_iter().for_each(is_done);
}

#[test]
fn the_example_runs() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("examples/all_reduce.c");
    for rank in daemon.ranks(&installed, &program, (&[], 2)) {
        let rank = rank.success().unwrap_or_else(|error| panic!("{error}"));
        assert!(rank.stdout.contains("of 2: the sum is 3\n"), "{rank:?}");
        assert!(rank.stdout.contains("the average of sums is 3\n"), "{rank:?}");
    }
}

#[test]
fn the_shared_library_is_known_by_its_interface() {
    let installed = Installed::new();
    let program = installed.compile("examples/all_reduce.c");
    let answer = Command::new("readelf").arg("-d").arg(program).output();
    let Ok(answer) = answer else {
        eprintln!("skipped: readelf (binutils) is not there");
        return;
    };
    let answer = String::from_utf8_lossy(&answer.stdout);
    assert!(answer.contains("[libxdp_agg.so.0]"), "{answer}");
    let real = installed.libraries().join("libxdp_agg.so").canonicalize().expect("links lead on");
    let name = real.file_name().expect("it has a name").to_string_lossy().into_owned();
    assert_eq!(name, format!("libxdp_agg.so.{}", env!("CARGO_PKG_VERSION")));
}
