//! Workers that are started as launchers start them: by their variables, at their ports, with the
//! launcher's own server there, on hosts that know each other by several names.

mod support;

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::{Lab, all_join, check_all, check_sums, need_root, network, on_all, second_daemon};
use xdp_agg_client::{Builder, Error, JobError, Op, WorkerLoss};
use xdp_agg_common::control::ErrorCode;
use xdp_agg_testbed::{Fabric, Process, Sink, Spot, Topology, program};

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(90);
/// torchrun's default.
const AGENT_PORT: u16 = 29500;

/// What a rank does: a sum of each kind of a benchmark, which checks every element.
const WORKS: [&[&str]; 2] = [
    &["--bytes", "4K,300K", "--iters", "2", "--warmup", "0"],
    &["--strategy", "ring", "--bytes", "4K", "--phase", "2x0"],
];

/// Hosts with a daemon each.
fn hosts(count: usize) -> Fabric {
    let mut fabric = Fabric::new(Topology::builder().workers(count).build().expect("a network"));
    for worker in 0..count {
        fabric.serve(Spot::Worker(worker), "userspace", &[]).expect("a daemon");
    }
    fabric
}

/// A command that runs the benchmark on a host.
fn bench(fabric: &Fabric, host: usize, work: &[&str]) -> Command {
    let program = program("xdp-agg-bench").expect("the tests' programs are built");
    let mut command = fabric.topology.worker(host).command(program);
    command.args(work).env("XDP_AGG_JOIN_DEADLINE", "60").env("XDP_AGG_DEADLINE", "60");
    command
}

/// All of them end well.
fn all_succeed(commands: Vec<Command>) {
    let start = |(rank, command)| {
        Process::spawn_with(format!("process {rank}"), command, Sink::Capture, Sink::Capture)
    };
    let all: Vec<_> = commands.into_iter().enumerate().map(start).collect();
    let ends = all.into_iter().map(|process| process.expect("it starts").wait(LIMIT));
    let ends: Vec<_> = ends.map(|end| end.expect("it ends")).collect();
    let said =
        || ends.iter().map(|end| format!("{}{}", end.stdout, end.stderr)).collect::<String>();
    assert!(ends.iter().all(|end| end.status.success()), "{}", said());
}

/// What a launcher's agent has at its port: it takes callers, and answers none.
struct Agent {
    callers: AtomicUsize,
    done: AtomicBool,
}

/// Does something while an agent listens on a host; nobody may call it.
fn beside_an_agent(fabric: &Fabric, host: usize, work: impl FnOnce()) {
    let listen = || TcpListener::bind(("0.0.0.0", AGENT_PORT)).expect("the port is free");
    let listener = fabric.topology.worker(host).run(listen).expect("entering the namespace");
    listener.set_nonblocking(true).expect("it is open");
    let agent = Agent { callers: AtomicUsize::new(0), done: AtomicBool::new(false) };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !agent.done.load(Ordering::Relaxed) {
                if listener.accept().is_ok() {
                    agent.callers.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        work();
        agent.done.store(true, Ordering::Relaxed);
    });
    assert_eq!(agent.callers.into_inner(), 0, "the launcher's store has seen somebody");
}

/// Rank 0 is on another host than `MASTER_ADDR`, where the launcher has `MASTER_PORT`.
#[test]
fn the_launchers_port_is_its_own_and_rank_0_may_be_anywhere() {
    need_root!();
    let fabric = hosts(2);
    let master = fabric.address(Spot::Worker(0)).to_string();
    let port = AGENT_PORT.to_string();
    beside_an_agent(&fabric, 0, || {
        for work in WORKS {
            for names in [["RANK", "WORLD_SIZE"], ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]]
            {
                let rank = |rank: usize| {
                    let mut command = bench(&fabric, 1 - rank, work);
                    command.env(names[0], rank.to_string()).env(names[1], "2");
                    command.env("MASTER_ADDR", &master).env("MASTER_PORT", &port);
                    command
                };
                all_succeed(vec![rank(0), rank(1)]);
            }
        }
    });
}

/// With a token, whoever listens where workers meet has to prove that it knows it. It is not told.
#[test]
fn the_token_is_proved_and_never_said_where_workers_meet() {
    need_root!();
    const TOKEN: &str = "swordfish-swordfish";
    let fabric = hosts(2);
    let master = fabric.address(Spot::Worker(0)).to_string();
    let rank = |rank: usize, token: &str| {
        let mut command = bench(&fabric, rank, WORKS[0]);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("XDP_AGG_TOKEN", token);
        command.env("MASTER_ADDR", &master).env("MASTER_PORT", AGENT_PORT.to_string());
        command.env("XDP_AGG_JOIN_DEADLINE", "3");
        Process::spawn_with(format!("rank {rank}"), command, Sink::Capture, Sink::Capture)
    };
    let run = |tokens: [&str; 2]| {
        let all = [0, 1].map(|at| rank(at, tokens[at]).expect("it starts"));
        all.map(|process| process.wait(LIMIT).expect("it ends"))
    };
    assert!(run([TOKEN; 2]).iter().all(|end| end.status.success()));
    for end in run([TOKEN, "another"]) {
        assert!(!end.status.success());
        assert!(
            end.stderr.contains("XDP_AGG_TOKEN") || end.stderr.contains("rank"),
            "{}",
            end.stderr
        );
    }
    let listen = || TcpListener::bind(("0.0.0.0", 19500)).expect("the port is free");
    let stranger = fabric.topology.worker(0).run(listen).expect("entering the namespace");
    stranger.set_nonblocking(true).expect("it is open");
    let done = AtomicBool::new(false);
    let heard = thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let mut heard = Vec::new();
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                let Ok((mut stream, _)) = stranger.accept() else { continue };
                let greeting = br#"{"version":3,"nonce":1}"#;
                let _ = stream.write_all(&(greeting.len() as u32).to_be_bytes());
                let _ = stream.write_all(greeting);
                let _ = stream.set_read_timeout(Some(Duration::from_millis(300)));
                let mut words = [0; 4096];
                let len = stream.read(&mut words).unwrap_or(0);
                heard.extend_from_slice(&words[..len]);
            }
            heard
        });
        for end in run([TOKEN; 2]) {
            assert!(end.stderr.contains("MASTER_ADDR"), "{}", end.stderr);
        }
        done.store(true, Ordering::Relaxed);
        stranger.join().expect("no panic")
    });
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.contains("proof") && !heard.contains(TOKEN), "{heard}");
}

/// `srun` names no address: its ranks meet at the first host of the step.
#[test]
fn processes_of_srun_find_each_other() {
    need_root!();
    let fabric = hosts(2);
    let nodes = [0, 1].map(|host| fabric.address(Spot::Worker(host)).to_string()).join(",");
    for work in WORKS {
        // Two processes on the first node and one on the second.
        let rank = |(rank, node, local): (usize, usize, usize)| {
            let mut command = bench(&fabric, node, work);
            command.envs([
                ("SLURM_PROCID", rank.to_string()),
                ("SLURM_NTASKS", "3".into()),
                ("SLURM_LOCALID", local.to_string()),
                ("SLURM_NODEID", node.to_string()),
                ("SLURM_STEP_TASKS_PER_NODE", "2,1".into()),
                ("SLURM_STEP_NODELIST", nodes.clone()),
                ("SLURM_JOB_ID", "4711".into()),
                ("SLURM_STEP_ID", "0".into()),
            ]);
            command
        };
        all_succeed([(0, 0, 0), (1, 0, 1), (2, 1, 0)].map(rank).into());
    }
}

/// Debian has a host's own name in /etc/hosts, at 127.0.1.1. The others know its address.
#[test]
fn a_host_may_know_itself_by_a_loopback_address() {
    need_root!();
    let fabric = hosts(2);
    let directory = tempfile::tempdir().expect("a directory");
    let named = |host: usize, address: &str| {
        let file = directory.path().join(format!("hosts{host}"));
        std::fs::write(&file, format!("127.0.0.1 localhost\n{address} node0\n")).expect("written");
        file
    };
    let master = fabric.address(Spot::Worker(0)).to_string();
    let files = [named(0, "127.0.1.1"), named(1, &master)];
    let program = program("xdp-agg-bench").expect("the tests' programs are built");
    for work in WORKS {
        // Rank 0 is the one that knows the address, and then the one that does not.
        for first in [0, 1] {
            let rank = |rank: usize| {
                let host = (first + rank) % 2;
                let mut command = fabric.topology.worker(host).command("unshare");
                let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
                command.args(["--mount", "sh", "-c", script]).arg(&files[host]).arg(&program);
                command.args(work).env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
                command.env("MASTER_ADDR", "node0").env("MASTER_PORT", AGENT_PORT.to_string());
                command
            };
            all_succeed(vec![rank(0), rank(1)]);
        }
    }
}

/// Hosts of 3 and 1, and of 6 and 2 processes, numbered host by host and not, as torchrun's
/// variables say; aggregators named and not.
#[test]
fn hosts_may_have_different_numbers_of_processes() {
    need_root!();
    let fabric = hosts(2);
    let master = fabric.address(Spot::Worker(0)).to_string();
    let daemon = fabric.control(Spot::Worker(1)).to_string();
    for (case, placed) in
        [[0, 0, 0, 1].as_slice(), &[0, 1, 0, 0], &[0, 0, 0, 0, 0, 0, 1, 1]].into_iter().enumerate()
    {
        for (named, work) in [(false, WORKS[0]), (true, WORKS[0]), (false, WORKS[1])] {
            let rank = |rank: usize| {
                let host = placed[rank];
                let count = |ranks: &[usize]| ranks.iter().filter(|other| **other == host).count();
                let mut command = bench(&fabric, host, work);
                command.envs([
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", placed.len().to_string()),
                    ("LOCAL_RANK", count(&placed[..rank]).to_string()),
                    ("LOCAL_WORLD_SIZE", count(placed).to_string()),
                    ("GROUP_RANK", host.to_string()),
                    ("TORCHELASTIC_RUN_ID", format!("run {case}")),
                    ("MASTER_ADDR", master.clone()),
                    ("MASTER_PORT", AGENT_PORT.to_string()),
                ]);
                if named {
                    command.env("XDP_AGG_ADDR", &daemon);
                }
                command
            };
            all_succeed((0..placed.len()).map(rank).collect());
        }
    }
}

/// Eight processes on one host and two on the other.
#[test]
fn eight_and_two_processes_sum() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let placed = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    let workers = lab.try_connect("default", &placed, |settings, rank| match rank {
        8.. => settings.local(rank - 8, 2),
        _ => settings.local(rank, 8),
    });
    let workers = all_join(workers);
    assert!(workers.iter().all(|worker| worker.local_size() == 2));
    check_all(&workers, [1, 1000, 100_000]);
}

/// Two runs of one user on the same hosts, under one name, at two daemons: their processes never
/// share memory.
#[test]
fn two_runs_at_two_daemons_never_mix() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let (_daemon, second) = second_daemon(&lab);
    for _ in 0..5 {
        let run = |number: f32, at| {
            let lab = &lab;
            move || {
                let workers = lab.try_connect("default", &[0, 0, 1, 1], |settings, rank| {
                    settings.aggregator(at).local(rank % 2, 2)
                });
                on_all(&all_join(workers), |worker| {
                    let mut data = vec![number; 10_000];
                    worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                    assert!(data.iter().all(|sum| *sum == 4.0 * number), "{number}");
                });
            }
        };
        thread::scope(|scope| {
            scope.spawn(run(1.0, lab.control()));
            scope.spawn(run(1000.0, second));
        });
    }
}

/// Two runs under one name at one daemon: the second is told which run holds the name. The first
/// one's own processes, started again, come back.
#[test]
fn another_run_under_the_same_name_is_refused_by_name() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let first = lab.try_connect("default", &[0, 1], |settings, _| settings.run("morning"));
    let first = all_join(first);
    let refused = |other: Option<&str>, code: ErrorCode, words: &[&str]| {
        let all = lab.try_connect("default", &[2, 3], |settings, _| match other {
            Some(other) => settings.run(other),
            None => settings,
        });
        for error in all.into_iter().map(|worker| worker.expect_err("the name is held")) {
            let Error::Job(JobError::Refused { code: said, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!(*said, code, "{error}");
            for word in words {
                assert!(error.to_string().contains(word), "{error}");
            }
        }
    };
    let advice = ["XDP_AGG_JOB", "XDP_AGG_RUN"];
    refused(
        Some("evening"),
        ErrorCode::Busy,
        &[&["run \"morning\"", "\"evening\""][..], &advice].concat(),
    );
    refused(None, ErrorCode::Busy, &[&["run \"morning\"", "without a name"][..], &advice].concat());
    check_sums(&first, 1000);
    // An elastic restart: the new processes are there before the old ones are gone.
    thread::scope(|scope| {
        let again = scope
            .spawn(|| lab.try_connect("default", &[0, 1], |settings, _| settings.run("morning")));
        thread::sleep(Duration::from_secs(1));
        drop(first);
        check_sums(&all_join(again.join().expect("no panic")), 1000);
    });
}

/// A variable that reached some ranks only.
#[test]
fn settings_of_some_ranks_only_are_named() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "userspace");
    type Tune = fn(Builder) -> Builder;
    let cases: [(&str, Tune); 5] = [
        ("XDP_AGG_ON_WORKER_LOSS: fail at ranks 0 to 1, but shrink at rank 2", |settings| {
            settings.on_worker_loss(WorkerLoss::Shrink)
        }),
        ("XDP_AGG_JOB_SLOTS: 64 at rank 2, but unset at ranks 0 to 1", |settings| {
            settings.slots(64)
        }),
        ("XDP_AGG_IN_HOST: off at rank 2, but on at", |settings| settings.in_host(false)),
        ("XDP_AGG_SCALING: ", |settings| settings.scale(1e7)),
        ("XDP_AGG_SEGMENT: ", |settings| settings.segment(1 << 25)),
    ];
    for (expected, tune) in cases {
        let all = lab.try_connect("default", &[0, 1, 2], |settings, rank| match rank {
            2 => tune(settings),
            _ => settings,
        });
        for error in all.into_iter().map(|worker| worker.expect_err(expected).to_string()) {
            assert!(error.contains(expected), "{error}");
        }
    }
    // The MTU is each rank's own, and so are times.
    let all = lab.try_connect("default", &[0, 1, 2], |settings, rank| match rank {
        2 => settings.mtu(1000).deadline(Duration::from_secs(7)),
        _ => settings,
    });
    check_sums(&all_join(all), 1000);
    // A job's name that only one has: it is told where the others wait.
    let all = lab.try_connect("default", &[0, 1, 2], |settings, rank| {
        let settings = settings.join_deadline(Duration::from_secs(3));
        if rank == 2 { settings.job("mine") } else { settings }
    });
    for (rank, worker) in all.into_iter().enumerate() {
        let error = worker.expect_err("two halves").to_string();
        assert!(
            error.contains("XDP_AGG_JOB") && error.contains("XDP_AGG_JOIN_DEADLINE"),
            "{error}"
        );
        let other = if rank == 2 { "\"default\"" } else { "ranks [2] wait in job \"mine\"" };
        assert!(rank == 2 || error.contains(other), "rank {rank}: {error}");
    }
}

/// The environment of Python that `cargo xtask setup --python` makes, if it is there.
fn python() -> Option<PathBuf> {
    let program = program("xdp-agg").expect("the tests' programs are built");
    let target = program.parent()?.parent()?.join("python");
    let mut found: Vec<_> = std::fs::read_dir(target)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("torchrun").exists())
        .collect();
    found.sort();
    found.pop()
}

/// Real torchrun, with its store on the port: two nodes of two, a static rendezvous and c10d's.
/// With c10d's, rank 0 is on the node that does not have the store.
#[test]
fn torchrun_starts_it() {
    need_root!();
    let Some(bin) = python() else {
        eprintln!("skipped: no torchrun; `cargo xtask setup --python` installs it");
        return;
    };
    let fabric = hosts(2);
    let address = |host| fabric.address(Spot::Worker(host)).to_string();
    let program = program("xdp-agg-bench").expect("the tests' programs are built");
    for work in WORKS {
        for rendezvous in ["static", "c10d"] {
            let node = |host: usize| {
                let mut command = fabric.topology.worker(host).command(bin.join("torchrun"));
                command.args(["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "0"]);
                match rendezvous {
                    "static" => command.args([
                        "--node-rank",
                        &host.to_string(),
                        "--master-addr",
                        &address(0),
                        "--master-port",
                        &AGENT_PORT.to_string(),
                    ]),
                    // Nodes are sorted by their address: the second one has the store.
                    _ => command.args([
                        "--rdzv-backend",
                        "c10d",
                        "--rdzv-id",
                        "run",
                        "--rdzv-endpoint",
                        &format!("{}:{AGENT_PORT}", address(1)),
                        "--rdzv-conf",
                        &format!("is_host={}", u8::from(host == 1)),
                        "--local-addr",
                        &address(host),
                    ]),
                };
                command.arg("--no-python").arg(&program).args(work);
                command.env("XDP_AGG_JOIN_DEADLINE", "60").env("XDP_AGG_DEADLINE", "60");
                command.env("OMP_NUM_THREADS", "1");
                command
            };
            all_succeed(vec![node(0), node(1)]);
        }
    }
}

/// Real mpirun: all ranks on one host, which it says, and where they meet, which it does not.
#[test]
fn mpirun_starts_it() {
    need_root!();
    let Some(bin) = python().filter(|bin| bin.join("mpirun").exists()) else {
        eprintln!("skipped: no mpirun; `cargo xtask setup --python` installs it");
        return;
    };
    let fabric = hosts(1);
    let program = program("xdp-agg-bench").expect("the tests' programs are built");
    for work in WORKS {
        let mut command = fabric.topology.worker(0).command(bin.join("mpirun"));
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", "3"]);
        let master = format!("MASTER_ADDR={}", fabric.address(Spot::Worker(0)));
        command.args(["-x", &master, "-x", &format!("MASTER_PORT={AGENT_PORT}")]);
        command.arg(&program).args(work);
        all_succeed(vec![command]);
    }
    let mut command = fabric.topology.worker(0).command(bin.join("mpirun"));
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]).arg(&program);
    let end = Process::spawn_with("mpirun", command, Sink::Capture, Sink::Capture);
    let end = end.expect("it starts").wait(LIMIT).expect("it ends");
    assert!(!end.status.success());
    assert!(end.stderr.contains("MASTER_ADDR"), "{}", end.stderr);
}

/// Real mpirun over two hosts, two ranks on the first and one on the second.
#[test]
fn mpirun_starts_it_on_two_hosts() {
    need_root!();
    let Some(bin) = python().filter(|bin| bin.join("mpirun").exists()) else {
        eprintln!("skipped: no mpirun; `cargo xtask setup --python` installs it");
        return;
    };
    let fabric = hosts(2);
    let program = program("xdp-agg-bench").expect("the tests' programs are built");
    let directory = tempfile::tempdir().expect("a directory");
    // In the place of ssh. Hosts have names of their own: mpirun tells them apart by these.
    let address = |host: usize| fabric.address(Spot::Worker(host)).to_string();
    let place = |host: usize| {
        let enter = fabric.topology.worker(host).nsenter();
        format!("{}) name=node{host} enter=\"{enter}\" ;;\n", address(host))
    };
    let agent = directory.path().join("agent");
    let script = format!(
        "#!/bin/sh\nwhile case \"$1\" in -*) true ;; *) false ;; esac; do shift; done\n\
         host=$1\nshift\ncase $host in\n{}{}*) echo \"no host $host\" >&2; exit 1 ;;\nesac\n\
         exec $enter unshare --uts sh -c \"hostname $name; $*\"\n",
        place(0),
        place(1)
    );
    std::fs::write(&agent, script).expect("written");
    std::fs::set_permissions(&agent, Permissions::from_mode(0o755)).expect("it is ours");
    for work in WORKS {
        let mut command = fabric.topology.worker(0).command("unshare");
        command.args(["--uts", "sh", "-c", "hostname node0 && exec \"$@\"", "sh"]);
        command.arg(bin.join("mpirun")).args(["--allow-run-as-root", "--bind-to", "none"]);
        command.args(["-np", "3", "--host", &format!("{}:2,{}:1", address(0), address(1))]);
        command.args(["--prtemca", "plm_ssh_agent"]).arg(&agent);
        // As `mpirun` names its variables; its servers find each other by this interface.
        command.args(["--prtemca", "plm_ssh_no_tree_spawn", "1"]);
        command.args(["--prtemca", "prte_if_include", "eth0"]);
        command.args(["-x", &format!("MASTER_ADDR={}", address(0))]);
        command.args(["-x", &format!("MASTER_PORT={AGENT_PORT}")]);
        command.arg(&program).args(work);
        command.env("XDP_AGG_JOIN_DEADLINE", "60").env("XDP_AGG_DEADLINE", "60");
        all_succeed(vec![command]);
    }
}
