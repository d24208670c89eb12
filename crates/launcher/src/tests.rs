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
    // A shell in an allocation is not a process of a run.
    assert_eq!(place(&node[1..]), [None; 4]);
}

#[test]
fn runs_have_names() {
    let run = |name| read(&[("TORCHELASTIC_RUN_ID", name), ("PMIX_NAMESPACE", "b")]);
    assert_eq!(run("a").expect("it is well").run.as_deref(), Some("a"));
    assert_eq!(run("none").expect("it is well").run.as_deref(), Some("b"));
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

#[test]
fn rank_0_is_found() {
    let master = |set: &[_]| read(set).expect("it is well").need_master().map(|(_, port)| port);
    assert_eq!(master(&[("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]), Ok(1));
    assert_eq!(master(&[("MASTER_ADDR", "a")]).expect_err("no port").name, "MASTER_PORT");
    assert_eq!(master(&[("MASTER_PORT", "1")]).expect_err("no host").name, "MASTER_ADDR");
    // As Kubernetes sets it for a service of that name: wrong only where it is needed.
    let service = [("MASTER_ADDR", "a"), ("MASTER_PORT", "tcp://10.0.0.1:80")];
    assert_eq!(master(&service).expect_err("no port").name, "MASTER_PORT");
    assert!(read(&service[1..]).expect("it is well").master().expect("not asked").is_none());
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
    let in_code: BTreeSet<&str> =
        LAUNCHERS.iter().flat_map(Launcher::variables).chain(MASTER).collect();
    assert_eq!(in_guide, in_code);
}
