//! What the end-to-end tests share: a network, a daemon in it, and workers around both.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test program uses a part of it"
)]

pub mod browser;
pub mod http;
pub mod lent;
pub mod log;
pub mod packages;
pub mod prometheus;
pub mod tool;
pub mod watched;

pub use xdp_agg_testbed::{at_once as on_all, need_root};

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::ops::Range;
use std::process::Command;
use std::time::Duration;

use xdp_agg_client::{Builder, Communicator, Error};
use xdp_agg_common::control::{CONTROL_PORT, CONTROL_VERSION, JobStats, Reply, Request, Stats};
use xdp_agg_common::control::{FrameError, read_message, write_message};
use xdp_agg_testbed::steady::{Steady, Work};
use xdp_agg_testbed::{BpfFs, Mode, Namespace, Process, Topology, at_once, program};

/// Longest time that anything here may take: beyond it is a hang, which is a failure.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The engines that every collective is tested on.
pub const ENGINES: [&str; 2] = ["xdp", "userspace"];

/// A network with a daemon in it.
pub struct Lab {
    pub topology: Topology,
    pub daemon: Option<Process>,
    pub engine: &'static str,
    /// Further arguments of the daemon.
    pub extra: Vec<String>,
}

impl Lab {
    /// A daemon in this network.
    pub fn start(topology: Topology, engine: &'static str) -> Self {
        Self::start_with(topology, engine, &[])
    }

    /// A daemon with further arguments in this network.
    pub fn start_with(topology: Topology, engine: &'static str, extra: &[&str]) -> Self {
        let extra = extra.iter().map(ToString::to_string).collect();
        let mut lab = Self { topology, daemon: None, engine, extra };
        lab.start_daemon();
        lab
    }

    /// A daemon whose data path outlives it, and the file system that keeps it; None, with a
    /// message, where none can be mounted.
    pub fn start_pinned(topology: Topology) -> Option<(BpfFs, Self)> {
        let bpffs = match BpfFs::mount() {
            Ok(bpffs) => bpffs,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let extra = bpffs.arguments();
        let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
        let lab = Self::start_with(topology, "xdp", &extra);
        Some((bpffs, lab))
    }

    /// Starts the daemon (again).
    pub fn start_daemon(&mut self) {
        let extra: Vec<&str> = self.extra.iter().map(String::as_str).collect();
        let daemon = Process::serve("xdp-agg serve", self.command(&extra));
        self.daemon = Some(daemon.expect("the daemon gets ready"));
    }

    /// A daemon process with further arguments.
    pub fn spawn_daemon(&self, extra: &[&str]) -> Process {
        Process::spawn("xdp-agg serve", self.command(extra)).expect("the daemon starts")
    }

    fn command(&self, extra: &[&str]) -> Command {
        let mut command = serve(&self.topology);
        command.args(["--engine", self.engine]);
        command.args(["--control", &self.control().to_string()]);
        command.args(["--data-addr", &self.topology.aggregator_addr().to_string()]);
        if self.engine == "xdp" {
            for interface in self.topology.aggregator_interfaces() {
                command.args(["--interface", &interface]);
            }
        }
        command.args(extra);
        command
    }

    /// Where the daemon listens.
    pub fn control(&self) -> SocketAddr {
        SocketAddrV4::new(self.topology.aggregator_addr(), CONTROL_PORT).into()
    }

    /// Settings of one worker.
    pub fn worker(&self, job: &str, rank: u16, world_size: u16) -> Builder {
        Communicator::builder()
            .aggregator(self.control())
            .job(job)
            .rank(rank)
            .world_size(world_size)
            .scale(1024.0)
            // Tests of packets and losses mean calls that go through the aggregator.
            .learning(false)
            .deadline(LIMIT)
            .join_deadline(LIMIT)
    }

    /// Connects from a worker's host.
    pub fn connect_one(&self, host: u16, settings: Builder) -> Result<Communicator, Error> {
        let host = self.topology.worker(host.into());
        host.run(move || settings.connect()).expect("entering the worker's namespace")
    }

    /// A whole job, rank `r` on host `r`.
    pub fn connect(
        &self,
        job: &str,
        world_size: u16,
        tune: impl Fn(Builder) -> Builder + Sync,
    ) -> Vec<Communicator> {
        self.connect_ranks(job, 0..world_size, world_size, tune)
    }

    /// Some ranks of a job.
    pub fn connect_ranks(
        &self,
        job: &str,
        ranks: Range<u16>,
        world_size: u16,
        tune: impl Fn(Builder) -> Builder + Sync,
    ) -> Vec<Communicator> {
        at_once(ranks, |rank| {
            let settings = tune(self.worker(job, rank, world_size));
            self.connect_one(rank, settings)
                .unwrap_or_else(|error| panic!("rank {rank} of {world_size}: {error}"))
        })
    }

    /// A whole job, if it comes to be: `hosts` has the host of each rank; settings may depend on
    /// the rank.
    pub fn try_connect(
        &self,
        job: &str,
        hosts: &[u16],
        tune: impl Fn(Builder, u16) -> Builder + Sync,
    ) -> Vec<Result<Communicator, Error>> {
        at_once((0..).zip(hosts), |(rank, host)| {
            self.connect_one(*host, tune(self.worker(job, rank, hosts.len() as u16), rank))
        })
    }

    /// A whole job of `hosts` hosts with `size` processes each, in order of rank; settings may
    /// depend on the host.
    pub fn connect_hosts(
        &self,
        job: &str,
        (hosts, size): (u16, u16),
        tune: impl Fn(Builder, u16) -> Builder + Sync,
    ) -> Vec<Communicator> {
        let hosts: Vec<u16> = (0..hosts * size).map(|rank| rank / size).collect();
        let tune = |settings: Builder, rank| tune(settings.local(rank % size, size), rank / size);
        all_join(self.try_connect(job, &hosts, tune))
    }

    /// A worker process whose every sum is checked. `settings` are further variables.
    pub fn steady(
        &self,
        job: &str,
        rank: u16,
        world_size: u16,
        settings: &[(&str, &str)],
        work: &Work,
    ) -> Steady {
        self.steady_of(job, (rank, world_size), (0, 1), settings, work)
    }

    /// The same, one of a host's processes: its rank of the world's, and of the host's.
    pub fn steady_of(
        &self,
        job: &str,
        (rank, world_size): (u16, u16),
        (local_rank, local_size): (u16, u16),
        settings: &[(&str, &str)],
        work: &Work,
    ) -> Steady {
        let program = program("steady_worker").expect("the tests' programs are built");
        let mut command = self.topology.worker((rank / local_size).into()).command(program);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world_size.to_string())
            .env("LOCAL_RANK", local_rank.to_string())
            .env("LOCAL_WORLD_SIZE", local_size.to_string())
            .env("XDP_AGG_ADDR", self.control().to_string())
            .env("XDP_AGG_JOB", job)
            .envs(settings.iter().copied());
        watched::start(rank, command, work)
    }

    /// A whole job of such workers, each of which has done a call.
    pub fn steady_job(
        &self,
        job: &str,
        world_size: u16,
        settings: &[(&str, &str)],
        work: &Work,
    ) -> Vec<Steady> {
        let start = |rank| self.steady(job, rank, world_size, settings, work);
        watched::all_begin((0..world_size).map(start))
    }

    /// Everything that the daemon counts, as `xdp-agg stats` asks for it.
    pub fn stats(&self) -> Stats {
        let mut stream = self.control_from(self.topology.aggregator());
        write_message(&mut stream, &Request::Stats).expect("sent");
        match read_message(&mut stream).expect("an answer") {
            Reply::Stats(stats) => stats,
            other => panic!("{other:?}"),
        }
    }

    /// A connection to the daemon from this host, on which nothing has been said.
    pub fn dial_from(&self, host: &Namespace) -> TcpStream {
        self.try_dial_from(host).expect("the daemon listens")
    }

    fn try_dial_from(&self, host: &Namespace) -> io::Result<TcpStream> {
        let control = self.control();
        let stream = host.run(move || TcpStream::connect(control)).expect("entering the host")?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    }

    /// A connection to the daemon from this host, which is welcome.
    pub fn control_from(&self, host: &Namespace) -> TcpStream {
        self.try_control_from(host).expect("the daemon answers")
    }

    /// The same, if there is a daemon.
    pub fn try_control_from(&self, host: &Namespace) -> Result<TcpStream, FrameError> {
        let mut stream = self.try_dial_from(host)?;
        let hello = Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token: None };
        write_message(&mut stream, &hello)?;
        let welcome: Reply = read_message(&mut stream)?;
        assert!(matches!(welcome, Reply::Welcome { .. }), "{welcome:?}");
        Ok(stream)
    }

    /// One job's part of it.
    pub fn job_stats(&self, job: &str) -> JobStats {
        let stats = self.stats();
        let found = stats.jobs.iter().find(|stats| stats.info.job == job).cloned();
        found.unwrap_or_else(|| panic!("no job {job} in {stats:?}"))
    }
}

/// All of them have joined.
pub fn all_join(workers: Vec<Result<Communicator, Error>>) -> Vec<Communicator> {
    let joined = |(rank, worker): (usize, Result<_, Error>)| {
        worker.unwrap_or_else(|error| panic!("rank {rank}: {error}"))
    };
    workers.into_iter().enumerate().map(joined).collect()
}

/// The command of a daemon on the aggregator's host.
pub fn serve(topology: &Topology) -> Command {
    let program = program("xdp-agg").expect("the tests' programs are built");
    let mut command = topology.aggregator().command(program);
    command.arg("serve");
    command
}

/// A second daemon in the aggregator's namespace, of the user-space engine.
pub fn second_daemon(lab: &Lab) -> (Process, SocketAddr) {
    let control = SocketAddr::new(lab.topology.aggregator_addr().into(), 9871);
    let mut command = serve(&lab.topology);
    command.args(["--engine", "userspace", "--data-port", "48900"]);
    command.args(["--control", &control.to_string()]);
    command.args(["--data-addr", &lab.topology.aggregator_addr().to_string()]);
    (Process::serve("second xdp-agg serve", command).expect("it gets ready"), control)
}

/// The network that fits a result mode.
pub fn network(workers: u16, mode: &str) -> Topology {
    let place = if mode == "ports" { Mode::Ports } else { Mode::OneNic };
    Topology::builder().workers(workers.into()).mode(place).build().expect("a network")
}

/// Whether an ICMP echo from the namespace of this thread is answered.
pub fn ping(to: Ipv4Addr) -> bool {
    let answer = xdp_agg_testbed::traffic::echo(to, Duration::from_secs(2));
    answer.expect("a raw socket, and a route").is_some()
}

/// Does the same at all workers, each on its own host: a mesh opens sockets in a call.
pub fn at_all<T: Send>(
    topology: &Topology,
    workers: &[Communicator],
    work: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    at_once(workers, |worker| {
        let host = topology.worker((worker.rank() / worker.local_size()).into());
        host.run(|| work(worker)).expect("entering the namespace")
    })
}

/// Element `i` of rank `rank`: whole numbers, so that sums are exact in fixed point and in floats.
pub fn element(rank: u16, i: usize) -> i32 {
    (i32::from(rank) + 1) * (i % 1021) as i32 - 500
}

/// A worker's input.
pub fn input(rank: u16, len: usize) -> Vec<i32> {
    (0..len).map(|i| element(rank, i)).collect()
}

/// The sum that every worker must get.
pub fn expected(world_size: u16, len: usize) -> Vec<i32> {
    (0..len).map(|i| (0..world_size).map(|rank| element(rank, i)).sum()).collect()
}

/// [`check_sums`] of all these lengths.
pub fn check_all(workers: &[Communicator], lengths: impl IntoIterator<Item = usize>) {
    lengths.into_iter().for_each(|len| check_sums(workers, len));
}

/// All-reduces `len` elements of both types on all workers and checks every bit of the results.
pub fn check_sums(workers: &[Communicator], len: usize) {
    let world_size = workers[0].world_size();
    let sums = expected(world_size, len);
    on_all(workers, |worker| {
        let mut integers = input(worker.rank(), len);
        worker
            .all_reduce(&mut integers, xdp_agg_client::Op::Sum)
            .unwrap_or_else(|error| panic!("rank {}: {error}", worker.rank()));
        assert!(integers == sums, "rank {} of {world_size}, {len} integers", worker.rank());
        let mut floats: Vec<f32> = input(worker.rank(), len).iter().map(|x| *x as f32).collect();
        let report = worker
            .all_reduce(&mut floats, xdp_agg_client::Op::Average)
            .unwrap_or_else(|error| panic!("rank {}: {error}", worker.rank()));
        assert_eq!(report.saturated, 0);
        let averages: Vec<f32> =
            sums.iter().map(|x| (f64::from(*x) / f64::from(world_size)) as f32).collect();
        assert!(floats == averages, "rank {} of {world_size}, {len} floats", worker.rank());
    });
}
