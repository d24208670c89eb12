//! C and C++ programs against the header and the library, as ranks of a job on loopback.

mod support;

use std::process::Command;

use support::{Daemon, Installed, is_done};

#[test]
fn every_collective_is_right_in_c() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/collectives.c");
    for size in [2, 3] {
        daemon.all_done(&installed, &program, (&[], size));
    }
}

#[test]
fn a_world_of_one_is_right() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/collectives.c");
    daemon.all_done(&installed, &program, (&[], 1));
}

#[test]
fn arguments_that_cannot_be_are_refused_by_name() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/arguments.c");
    daemon.all_done(&installed, &program, (&[], 2));
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

#[test]
fn a_deadline_inside_a_host_names_the_rank() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/ends.c");
    let ranks = daemon.ranks_of_hosts(&installed, &program, (&["deadline_in_host"], 3), 3);
    ranks.into_iter().for_each(is_done);
}

#[test]
fn a_forked_child_is_refused_and_changes_nothing() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/fork.c");
    daemon.all_done(&installed, &program, (&[], 2));
}

#[test]
fn cplusplus_takes_the_header() {
    let (installed, daemon) = (Installed::new(), Daemon::start());
    let program = installed.compile("tests/programs/plus.cpp");
    daemon.all_done(&installed, &program, (&[], 2));
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
