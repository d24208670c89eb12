//! One release's daemon and workers after another's: what goes on, and what ends with its reason.
//!
//! `cargo xtask upgrade-test REVISION` runs this with the programs of another revision. Without
//! `XDP_AGG_OLD_PROGRAMS` the old release is this one, and all has to go on.

mod support;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use support::watched::{self, Said, all_begin, all_said, calls_of, check_none_failed, work};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg::state;
use xdp_agg_common::control::CONTROL_VERSION;
use xdp_agg_common::maps::{LAYOUT, Reject};
use xdp_agg_common::wire;
use xdp_agg_testbed::flood::Rude;
use xdp_agg_testbed::steady::{Line, Steady};
use xdp_agg_testbed::{BpfFs, Process, program};

const RESUME: [(&str, &str); 1] = [("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];
/// What a daemon says of a data path that it cannot take over.
const MISFIT: &str = "of another version of xdp-agg";

/// What workers say that have not the same settings.
const UNLIKE: &str = "give it to all ranks alike";

/// The row of docs/upgrade.md for this release. Whoever changes a number says there what it means.
#[test]
fn what_releases_have_to_agree_on_is_written_down() {
    let row = format!(
        "| {} | {CONTROL_VERSION} | {} | `{LAYOUT:#018x}` | {} |",
        env!("CARGO_PKG_VERSION"),
        wire::VERSION,
        state::VERSION
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/upgrade.md");
    let text = fs::read_to_string(path).expect("it is there");
    assert!(text.contains(&row), "docs/upgrade.md has no such row:\n{row}");
}

/// The programs of a release.
#[derive(Clone, Copy)]
struct Release<'a>(&'a Path);

impl Release<'_> {
    fn daemon(self, lab: &Lab, bpffs: &BpfFs, fresh: bool) -> Process {
        let mut command = lab.topology.aggregator().command(self.0.join("xdp-agg"));
        command.args(["serve", "--engine", "xdp", "--control", &lab.control().to_string()]);
        command.args(["--data-addr", &lab.topology.aggregator_addr().to_string()]);
        for interface in lab.topology.aggregator_interfaces() {
            command.args(["--interface", &interface]);
        }
        command.args(bpffs.arguments()).args(fresh.then_some("--fresh"));
        Process::spawn("xdp-agg serve", command).expect("it starts")
    }

    /// A daemon that serves.
    fn serve(self, lab: &Lab, bpffs: &BpfFs, fresh: bool) -> Process {
        let daemon = self.daemon(lab, bpffs, fresh);
        daemon.wait_line("it is ready", LIMIT, |line| line.starts_with("ready ")).expect("ready");
        daemon
    }

    fn worker(self, lab: &Lab, job: &str, rank: u16, world_size: u16) -> Steady {
        let host = lab.topology.worker(rank.into());
        let mut command: Command = host.command(self.0.join("steady_worker"));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
        command.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", "1");
        command.env("XDP_AGG_ADDR", lab.control().to_string()).env("XDP_AGG_JOB", job);
        command.envs(RESUME);
        watched::start(rank, command, &work())
    }
}

fn go_on(workers: &[Steady]) {
    calls_of(workers, Instant::now(), 0b11, LIMIT);
}

/// Whether a daemon takes a data path over; if not, it says why and touches nothing.
fn takes_over(daemon: &mut Process) -> bool {
    let start = Instant::now();
    loop {
        if daemon.stdout().contains("ready ") {
            return true;
        }
        if daemon.try_wait().expect("it was started").is_some() {
            let said = daemon.stderr();
            assert!(said.contains(MISFIT) && said.contains("--fresh"), "{said}");
            return false;
        }
        assert!(start.elapsed() < LIMIT, "{}", daemon.last_words());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Why these workers are no job. None: they are, and each has done a call.
fn refusal(workers: &[Steady]) -> Option<String> {
    let is_either = |line: &Line| matches!(line, Line::Call { .. } | Line::Failed { .. });
    let start = |worker: &Steady| worker.wait("how it begins", LIMIT, |_, line| is_either(line));
    workers.iter().find_map(|worker| match start(worker).expect("it begins, or is refused").1 {
        Line::Failed { text, .. } => Some(text),
        _ => None,
    })
}

/// A job in the data path that is in no state file: nobody could ever end it, and its members would
/// add to slots that others are given. The next daemon ends it.
#[test]
fn a_job_that_the_next_daemon_does_not_know_is_ended() {
    need_root!();
    let Some((bpffs, mut lab)) = Lab::start_pinned(network(2, "ports")) else { return };
    let join = |rank: u16| {
        let host = (lab.topology.worker(rank.into()), lab.topology.worker_addr(rank.into()));
        Rude::join(host, lab.control(), "forgotten", rank, 2).expect("it joins")
    };
    let mut members = [join(0), join(1)];
    members.iter_mut().for_each(|worker| worker.get_ready().expect("it is ready"));
    members.iter_mut().for_each(|worker| worker.wait_go().expect("it runs"));
    let flood = members[0].repeat(None).expect("it begins");
    let start = Instant::now();
    while lab.job_stats("forgotten").counters.duplicates < 100 {
        assert!(start.elapsed() < LIMIT, "it is a member's: {:?}", lab.stats());
    }
    lab.daemon.take().expect("it runs").kill().expect("it was running");
    let arguments = bpffs.arguments();
    let state = Path::new(arguments.last().expect("the directory of its state"));
    for file in fs::read_dir(state).expect("it is there").flatten() {
        fs::remove_file(file.path()).expect("it is ours");
    }
    lab.start_daemon();
    assert!(lab.stats().jobs.is_empty());
    let refused = || lab.stats().unattributed.rejects[Reject::Job as usize];
    let (before, start) = (refused(), Instant::now());
    while refused() < before + 100 {
        assert!(start.elapsed() < LIMIT, "it is nobody's: {:?}", lab.stats());
    }
    flood.stop();
}

/// The epoch of which a job's workers were members first.
fn epoch_joined(said: &Said) -> u16 {
    let epoch = |line: &Line| match line {
        Line::Joined { epoch, .. } => Some(*epoch),
        _ => None,
    };
    said.iter().flatten().find_map(|(_, line)| epoch(line)).expect("they joined")
}

#[test]
fn a_running_job_goes_on_under_another_release() {
    need_root!();
    let own = program("xdp-agg").expect("the tests' programs are built");
    let own = own.parent().expect("a directory").to_owned();
    let other = env::var_os("XDP_AGG_OLD_PROGRAMS").map(PathBuf::from);
    let same = other.is_none();
    let other = other.unwrap_or_else(|| own.clone());
    let (old, new) = (Release(&other), Release(&own));
    let bpffs = match BpfFs::mount() {
        Ok(bpffs) => bpffs,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let topology = network(2, "ports");
    let mut lab = Lab { topology, daemon: None, engine: "xdp", extra: Vec::new() };
    let daemon = old.serve(&lab, &bpffs, false);
    let workers = all_begin((0..2).map(|rank| old.worker(&lab, "running", rank, 2)));
    println!("a job of the old release runs on its daemon");
    daemon.kill().expect("it was running");
    go_on(&workers);
    println!("without a daemon: its calls go on over the pinned data path");

    let mut daemon = new.daemon(&lab, &bpffs, false);
    let adopted = takes_over(&mut daemon);
    assert!(adopted || !same, "its own data path fits");
    if !adopted {
        println!("the new daemon refuses the data path, which goes on: {MISFIT}");
        go_on(&workers);
        daemon = new.serve(&lab, &bpffs, true);
    }
    go_on(&workers);
    let said = all_said(&workers);
    // Whether a call was under way when the epoch changed is chance: the daemon knows the epoch.
    let first = epoch_joined(&said);
    let now = lab.job_stats("running").info.epoch;
    assert_eq!(now == first, adopted, "epoch {first}, then {now}");
    let anew = |line: &Line| matches!(line, Line::Call { reforms: 1.., .. });
    let reformed = said.iter().flatten().any(|(_, line)| anew(line));
    assert!(!reformed || !adopted, "its epoch goes on where its data path does");
    check_none_failed(&said);
    let how = if adopted { "in the same epoch" } else { "in another epoch (--fresh)" };
    println!("new daemon: the old release's workers go on {how}");

    let mixed = [old.worker(&lab, "mixed", 0, 2), new.worker(&lab, "mixed", 1, 2)];
    match refusal(&mixed) {
        None => {
            go_on(&mixed);
            println!("a job with a worker of each release runs on the new daemon");
            check_none_failed(&all_said(&mixed));
        }
        Some(why) => {
            assert!(!same && why.contains(UNLIKE), "{why}");
            println!("a job with a worker of each release is refused: {why}");
        }
    }
    drop(mixed);

    // And back.
    daemon.kill().expect("it was running");
    let mut daemon = old.daemon(&lab, &bpffs, false);
    let back = takes_over(&mut daemon);
    assert_eq!(back, adopted, "what fits in one direction fits in the other");
    if !back {
        daemon = old.serve(&lab, &bpffs, true);
    }
    go_on(&workers);
    check_none_failed(&all_said(&workers));
    let how = if back { "over the same data path" } else { "with --fresh" };
    println!("the old daemon again, {how}: its workers go on");
    lab.daemon = Some(daemon);
}
