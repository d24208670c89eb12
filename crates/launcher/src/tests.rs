//! Tests of the launchers' variables.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;

use super::*;

fn read(set: &[(&str, &str)]) -> Result<Launch, Error> {
    Launch::read(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
}

/// Rank, world size, local rank, local size.
fn place(set: &[(&str, &str)]) -> [Option<u16>; 4] {
    let found = read(set).expect("it is well");
    [found.rank, found.world_size, found.local_rank, found.local_size].map(|n| n.map(|n| n.value))
}

#[test]
fn every_launcher_is_understood() {
    for launcher in &LAUNCHERS {
        let [rank, size, local, locals, _] = launcher.numbers;
        if size.is_empty() {
            continue;
        }
        let set = [(rank, "5"), (size, "8"), (local, "1"), (locals, "4")];
        assert_eq!(place(&set), [Some(5), Some(8), Some(1), Some(4)], "{}", launcher.name);
        assert_eq!(place(&set[..2]), [Some(5), Some(8), None, None], "{}", launcher.name);
    }
    assert_eq!(place(&[]), [None; 4]);
}

#[test]
fn launchers_of_the_same_world_complete_each_other() {
    let slurm = [("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")];
    // `srun --mpi=pmix`.
    let both = [&[("PMIX_RANK", "2")], &slurm[..]].concat();
    assert_eq!(place(&both), [Some(2), Some(4), Some(0), None]);
    // By hand, of what `mpirun` says.
    let by_hand = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    assert_eq!(place(&by_hand), [Some(3), Some(4), Some(1), Some(2)]);
    let with_size = [("OMPI_COMM_WORLD_RANK", "3"), ("WORLD_SIZE", "4")];
    assert_eq!(place(&with_size), [Some(3), Some(4), None, None]);
}

#[test]
fn the_outer_run_does_not_count() {
    let node = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NTASKS_PER_NODE", "1"),
        ("SLURM_JOB_ID", "77"),
    ];
    let torchrun = [&[("RANK", "5"), ("WORLD_SIZE", "8")], &node[..]].concat();
    assert_eq!(place(&torchrun), [Some(5), Some(8), None, None]);
    assert_eq!(read(&torchrun).expect("it is well").run.as_deref(), Some("77"));
    assert_eq!(read(&torchrun).expect("it is well").meeting(), Ok(None), "the step is the outer");
    // A shell in an allocation is not a process of a run.
    assert_eq!(place(&node[1..]), [None; 4]);
}

#[test]
fn runs_have_names() {
    let run = |set: &[_]| read(set).expect("it is well").run;
    let of = |set: &[_]| run(&[&[("RANK", "0"), ("WORLD_SIZE", "2")], set].concat());
    let master = [("MASTER_ADDR", "n1"), ("MASTER_PORT", "29500")];
    let torch =
        |name| [&[("TORCHELASTIC_RUN_ID", name), ("SLURM_JOB_ID", "7")], &master[..]].concat();
    assert_eq!(of(&torch("a")).as_deref(), Some("a"));
    // torchrun's name of a run without one: its address tells it from others of the allocation.
    assert_eq!(of(&torch("none")).as_deref(), Some("7 at n1:29500"));
    assert_eq!(of(&master).as_deref(), Some(":29500"), "by hand hosts have several names");
    assert_eq!(of(&[]), None);
    assert_eq!(
        of(&[&torch("a")[..], &[("XDP_AGG_RUN", "mine")]].concat()).as_deref(),
        Some("mine")
    );
    let slurm = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "3"),
    ];
    assert_eq!(run(&slurm).as_deref(), Some("7.3"));
    // By hand, each rank may have been started by a step of its own.
    assert_eq!(of(&slurm[2..]).as_deref(), Some("7"));
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let open_mpi = [&open_mpi[..], &[("PMIX_NAMESPACE", "prte-1@1")], &slurm[2..]].concat();
    assert_eq!(run(&open_mpi).as_deref(), Some("prte-1@1"));
}

#[test]
fn numbers_of_processes_may_differ_from_node_to_node() {
    let of = |node, tasks: &[(&'static str, &'static str)]| {
        let set = [("SLURM_PROCID", "9"), ("SLURM_NTASKS", "10"), ("SLURM_LOCALID", "1")];
        place(&[&set[..], &[("SLURM_NODEID", node)], tasks].concat())[3]
    };
    // What was asked for may be more than there is on a node.
    let both = [("SLURM_STEP_TASKS_PER_NODE", "8,2"), ("SLURM_NTASKS_PER_NODE", "8")];
    assert_eq!([of("0", &both), of("1", &both)], [Some(8), Some(2)]);
    assert_eq!([of("0", &both[1..]), of("1", &both[1..])], [Some(8), Some(8)]);
    assert_eq!(of("3", &[("SLURM_NTASKS_PER_NODE", "2(x3),4")]), Some(4));
    let error = read(&[("SLURM_PROCID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "two")]);
    assert_eq!(error.expect_err("no number").name, "SLURM_STEP_TASKS_PER_NODE");
}

#[test]
fn contradictions_are_named() {
    for (set, words) in [
        (&[("RANK", "first")][..], "RANK: \"first\" is not a number"),
        (&[("PMI_RANK", "-1")], "PMI_RANK: \"-1\" is not a number"),
        (
            &[("SLURM_PROCID", "2"), ("SLURM_NTASKS", "2")],
            "SLURM_PROCID: rank 2, with SLURM_NTASKS=2",
        ),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "WORLD_SIZE: 0 processes"),
        (
            &[("PMI_RANK", "0"), ("MPI_LOCALRANKID", "4"), ("MPI_LOCALNRANKS", "4")],
            "MPI_LOCALRANKID: rank 4, with MPI_LOCALNRANKS=4",
        ),
        (
            &[("RANK", "1"), ("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")],
            "RANK: 1, with OMPI_COMM_WORLD_RANK=2 of another run",
        ),
        (
            &[("PMIX_RANK", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")],
            "PMIX_RANK: 1, with SLURM_PROCID=0 of another run",
        ),
    ] {
        let error = read(set).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let half = read(&[("RANK", "1")]).expect("the size may be known otherwise");
    assert_eq!(half.world().expect_err("no size").name, "WORLD_SIZE");
    let broken = |name| (name == "RANK").then(|| OsString::from_vec(b"\xff".into()));
    let error = Launch::read(broken).expect_err("it is no text").to_string();
    assert!(error.starts_with("RANK: ") && error.contains("UTF-8"), "{error}");
}

/// Never at `MASTER_PORT`, which is the launcher's.
#[test]
fn the_processes_meet_at_a_port_of_their_own() {
    let need = |set: &[_]| read(set).expect("it is well").need_meeting();
    let at = |set: &[_]| need(set).map(|found| (found.host, found.port));
    let master = [("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
    assert_eq!(at(&master), Ok(("a".into(), 19_500)));
    assert_eq!(at(&[&master[..], &[("XDP_AGG_PORT", "777")]].concat()), Ok(("a".into(), 777)));
    assert_eq!(at(&[master[0], ("XDP_AGG_PORT", "777")]), Ok(("a".into(), 777)));
    for port in 1..=u16::MAX {
        assert!(own_port(port) != port && (10_000..32_768).contains(&own_port(port)), "{port}");
    }
    assert_eq!(need(&master[..1]).expect_err("no port").name, "MASTER_PORT");
    assert_eq!(need(&master[1..]).expect_err("no host").name, "MASTER_ADDR");
    let zero = [master[0], ("XDP_AGG_PORT", "0")];
    assert_eq!(need(&zero).expect_err("no port").name, "XDP_AGG_PORT");
    // As Kubernetes sets it for a service of that name: wrong only where it is needed.
    let service = [("MASTER_ADDR", "a"), ("MASTER_PORT", "tcp://10.0.0.1:80")];
    assert_eq!(need(&service).expect_err("no port").name, "MASTER_PORT");
    assert!(read(&service[1..]).expect("it is well").meeting().expect("not asked").is_none());
}

#[test]
fn srun_says_where_its_processes_meet() {
    let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "77")];
    let with = |more: &[_]| read(&[&slurm[..], more].concat()).expect("it is well").meeting();
    let found = with(&[
        ("SLURM_JOB_NODELIST", "n[1-9]"),
        ("SLURM_STEP_NODELIST", "n[3,5]"),
        ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"),
    ]);
    let found = found.expect("it is well").expect("there is one");
    assert_eq!((found.host.as_str(), found.name), ("n3", "SLURM_STEP_NODELIST"));
    assert!((10_000..20_000).contains(&found.port));
    let launch = with(&[("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"), ("XDP_AGG_PORT", "5")]);
    let launch = launch.expect("it is well").expect("there is one");
    assert_eq!((launch.host.as_str(), launch.port), ("10.0.0.9", 5));
    assert_eq!(with(&[]), Ok(None));
    let both = with(&[("MASTER_ADDR", "a"), ("SLURM_STEP_NODELIST", "n3"), ("MASTER_PORT", "1")]);
    assert_eq!(both.expect("it is well").expect("there is one").name, "MASTER_ADDR");
}

/// The table of the guide has each variable, and no other.
#[test]
fn the_guide_lists_the_variables() {
    let guide = include_str!("../../../docs/guide.md");
    let (_, section) = guide.split_once("\n### What launchers say\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a section after it");
    let table = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let in_guide: BTreeSet<&str> =
        table.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    assert_eq!(in_guide, variables().collect());
}
