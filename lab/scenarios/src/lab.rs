//! The network of a scenario, with the daemon and the workers in it.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use xdp_agg_common::control::{
    CONTROL_PORT, CONTROL_VERSION, CreateJob, Reply, Request, Stats, read_message, write_message,
};
use xdp_agg_testbed::steady::{Steady, Work};
use xdp_agg_testbed::{
    Faults, LinkMeter, Mode, Namespace, Process, Sink, Topology, enter_user_namespace, is_root,
    program,
};

use super::setting::{Loss, Rate};

/// Port of the ring's rendezvous on worker 0.
pub(crate) const RENDEZVOUS_PORT: u16 = 29_500;

/// How results reach the workers, which decides where the aggregator sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum ResultMode {
    /// The aggregator is the switch: a port per worker.
    Ports,
    /// One interface: a copy per worker.
    Fanout,
    /// One interface: one packet, copied by the switch.
    Multicast,
}

impl ResultMode {
    /// The name that daemon and workers use.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    const fn topology(self) -> Mode {
        match self {
            Self::Ports => Mode::Ports,
            Self::Fanout | Self::Multicast => Mode::OneNic,
        }
    }
}

/// What sums in the aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Engine {
    /// The XDP program.
    Xdp,
    /// Sockets.
    Userspace,
}

impl Engine {
    fn name(self) -> &'static str {
        self.into()
    }
}

/// What this process may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Everything.
    Root,
    /// Networks in a user namespace of its own; no BPF.
    UserNamespace,
}

impl Privilege {
    /// The engine that is asked for, or the best that is allowed.
    pub(crate) fn engine(self, asked: Option<Engine>) -> Engine {
        asked.unwrap_or(match self {
            Self::Root => Engine::Xdp,
            Self::UserNamespace => Engine::Userspace,
        })
    }
}

/// Finds out, and enters a user namespace where this is not root. Before any thread is started.
pub(crate) fn settle_privilege() -> Result<Privilege> {
    if is_root() {
        return Ok(Privilege::Root);
    }
    eprintln!(
        "not root: XDP programs cannot be loaded, so the aggregator sums in user space, in a \
         network in an unprivileged user namespace; run as root for the XDP engine"
    );
    enter_user_namespace()?;
    Ok(Privilege::UserNamespace)
}

/// A network to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Hosts with workers.
    pub(crate) workers: u16,
    /// Workers on each of them, as processes.
    pub(crate) processes: u16,
    pub(crate) rate: Rate,
    pub(crate) mtu: u32,
    pub(crate) loss: Loss,
    pub(crate) mode: ResultMode,
    pub(crate) engine: Engine,
    pub(crate) privilege: Privilege,
    /// Super-packets and trains cross the links whole, as they do between namespaces.
    pub(crate) offloads: bool,
    /// A link is one virtual cable, and no program in its middle counts and loses packets.
    pub(crate) direct: bool,
    /// A daemon on every worker's host sums a share, and the switch is a switch.
    pub(crate) colocated: bool,
}

impl Plan {
    /// Workers in all.
    pub(crate) const fn ranks(&self) -> u16 {
        self.workers * self.processes
    }

    /// Links of this rate and MTU 1500 without loss, the aggregator as the switch.
    pub(crate) fn new(workers: u16, rate: Rate, privilege: Privilege) -> Self {
        let (loss, engine) = (Loss { ppm: 0 }, privilege.engine(None));
        let mode = ResultMode::Ports;
        Self {
            workers,
            processes: 1,
            rate,
            mtu: 1500,
            loss,
            mode,
            engine,
            privilege,
            offloads: true,
            direct: false,
            colocated: false,
        }
    }
}

/// The network, and how its parts are addressed.
pub(crate) struct Lab {
    plan: Plan,
    topology: Topology,
    /// Where workers write traces of their calls, and the file for all of them.
    traces: Option<(PathBuf, PathBuf)>,
    /// Further arguments of every daemon.
    serving: Vec<String>,
}

impl Lab {
    /// Builds the network. Nothing runs in it yet.
    pub(crate) fn build(plan: Plan) -> Result<Self> {
        let root = plan.privilege == Privilege::Root;
        let wire = root && !plan.direct;
        if !wire && plan.loss.ppm > 0 {
            bail!("--loss needs root, and no --direct: the links lose packets in a BPF program");
        }
        if plan.direct && plan.rate.bits.is_some() {
            bail!("--direct needs --rate none: what XDP sends passes no shaper then");
        }
        if !root && plan.engine == Engine::Xdp {
            bail!("--engine xdp needs root; --engine userspace does not");
        }
        let topology = Topology::builder()
            .workers(usize::from(plan.workers))
            .mode(plan.mode.topology())
            .rate(plan.rate.bits)
            .mtu(plan.mtu)
            .wire(wire)
            .offloads(plan.offloads)
            .xdp_on_hosts(plan.colocated)
            .faults(Faults::loss(f64::from(plan.loss.ppm) / 1e6))
            .build()
            .context("building the test network")?;
        Ok(Self { plan, topology, traces: None, serving: Vec::new() })
    }

    /// Has all workers write traces of their calls into a directory, for a file.
    pub(crate) fn traced_into(mut self, traces: Option<(&Path, &Path)>) -> Self {
        self.traces = traces.map(|(directory, file)| (directory.to_owned(), file.to_owned()));
        self
    }

    /// Starts daemons with further arguments.
    pub(crate) fn serving(mut self, arguments: &[&str]) -> Self {
        self.serving = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self
    }

    /// Puts the traces of the workers, which have ended, into one file on one clock.
    pub(crate) fn merge_traces(&self, file: &Path) -> Result<()> {
        let Some((traces, _)) = &self.traces else { return Ok(()) };
        let of = |rank| traces.join(format!("xdp-agg-trace-r{rank}.json"));
        let mut command = Command::new(program("xdp-agg")?);
        let ranks = (0..self.plan.ranks()).map(of);
        let status = command.args(["trace", "merge", "-o"]).arg(file).args(ranks).status();
        if !status.context("running xdp-agg trace merge")?.success() {
            bail!("xdp-agg trace merge failed (see above)");
        }
        Ok(())
    }

    /// See [`Self::traced_into`].
    pub(crate) const fn traces(&self) -> Option<&(PathBuf, PathBuf)> {
        self.traces.as_ref()
    }

    pub(crate) const fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Starts to measure what the links carry, where they have a rate to keep.
    pub(crate) fn meter(&self) -> Result<Option<LinkMeter<'_>>> {
        if self.plan.rate.bits.is_none() {
            return Ok(None);
        }
        Ok(Some(self.topology.meter()?))
    }

    /// Where the daemon's control service is.
    pub(crate) fn control_address(&self) -> String {
        format!("{}:{CONTROL_PORT}", self.topology.aggregator_addr())
    }

    /// Starts the daemon, or that of every host, and waits until it is ready.
    pub(crate) fn start_daemon(&self) -> Result<Daemon<'_>> {
        if !self.plan.colocated {
            return self.start_daemon_with(&[]);
        }
        let hosts = 0..usize::from(self.plan.workers);
        let interface = ["eth0".to_owned()];
        let start = |host| {
            let (at, address) = (self.topology.worker(host), self.topology.worker_addr(host));
            self.start_daemon_at((at, address), &interface, &[])
        };
        let started = hosts.map(start).collect::<Result<Vec<_>>>()?;
        let engine = started.first().map(|(_, engine)| engine.clone()).unwrap_or_default();
        let processes = started.into_iter().map(|(process, _)| process).collect();
        Ok(Daemon { lab: self, engine, processes })
    }

    /// The same with further arguments.
    pub(crate) fn start_daemon_with(&self, extra: &[String]) -> Result<Daemon<'_>> {
        self.start_daemon_on(&self.topology.aggregator_interfaces(), extra)
    }

    /// The same on some of the aggregator's interfaces only.
    pub(crate) fn start_daemon_on(
        &self,
        interfaces: &[String],
        extra: &[String],
    ) -> Result<Daemon<'_>> {
        let place = (self.topology.aggregator(), self.topology.aggregator_addr());
        let (process, engine) = self.start_daemon_at(place, interfaces, extra)?;
        Ok(Daemon { lab: self, engine, processes: vec![process] })
    }

    /// A daemon on a host of this address, and what sums in it.
    fn start_daemon_at(
        &self,
        (host, address): (&Namespace, Ipv4Addr),
        interfaces: &[String],
        extra: &[String],
    ) -> Result<(Process, String)> {
        let mut command = host.command(program("xdp-agg")?);
        command.arg("serve");
        for interface in interfaces {
            command.args(["--interface", interface]);
        }
        let engine = self.plan.engine.name();
        command
            .args(["--engine", engine, "--control", &format!("{address}:{CONTROL_PORT}")])
            .args(["--data-addr", &address.to_string()])
            .args(&self.serving)
            .args(extra)
            .env("NO_COLOR", "1");
        if engine == "xdp" {
            // A fallback to generic mode would be another system than the one that is measured.
            command.args(["--xdp-mode", "native"]);
        }
        let process = Process::spawn("xdp-agg serve", command)?;
        let ready =
            process.wait_line("that it is ready", Duration::from_secs(30), is_ready_line)?;
        let engine = ready.split_once("engine=").map_or("", |(_, rest)| rest).trim();
        Ok((process, engine.to_owned()))
    }

    /// The environment of one worker, in the words of launchers.
    fn environment(&self, rank: u16, processes: u16, job: &str) -> Vec<(&'static str, String)> {
        let traces = self.traces.iter().map(|(to, _)| ("XDP_AGG_TRACE", to.display().to_string()));
        let own = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", (self.plan.workers * processes).to_string()),
            ("LOCAL_RANK", (rank % processes).to_string()),
            ("LOCAL_WORLD_SIZE", processes.to_string()),
            ("MASTER_ADDR", self.topology.worker_addr(0).to_string()),
            ("MASTER_PORT", RENDEZVOUS_PORT.to_string()),
            ("XDP_AGG_JOB", job.to_owned()),
            ("XDP_AGG_RESULT_MODE", self.result_mode_wish()),
            ("NO_COLOR", "1".to_owned()),
        ];
        // Where no aggregator is named, every host's daemon sums a share.
        let named = (!self.plan.colocated).then(|| ("XDP_AGG_ADDR", self.control_address()));
        own.into_iter().chain(named).chain(traces).collect()
    }

    fn result_mode_wish(&self) -> String {
        // The userspace engine has one way only, as hosts have, and chooses it itself.
        match self.plan.engine {
            Engine::Xdp if !self.plan.colocated => self.plan.mode.name().to_owned(),
            Engine::Xdp | Engine::Userspace => "auto".to_owned(),
        }
    }

    /// Starts a worker whose sums are known, with further settings.
    pub(crate) fn start_steady(
        &self,
        job: &str,
        rank: u16,
        settings: &[(&str, String)],
        work: &Work,
    ) -> Result<Steady> {
        let host: &Namespace = self.topology.worker(usize::from(rank));
        let mut command = host.command(xdp_agg_testbed::program("steady_worker")?);
        command.envs(self.environment(rank, 1, job)).envs(settings.iter().map(|(k, v)| (*k, v)));
        Ok(Steady::spawn(&format!("worker {rank}"), command, work)?)
    }

    /// Starts a program as every worker; the arguments are asked per rank.
    pub(crate) fn start_workers(
        &self,
        program: &Program<'_>,
        arguments: impl FnMut(u16) -> Vec<String>,
    ) -> Result<Vec<Process>> {
        self.start_processes(program, self.plan.processes, arguments)
    }

    /// The same with several processes on each host, numbered host by host.
    pub(crate) fn start_processes(
        &self,
        program: &Program<'_>,
        processes: u16,
        mut arguments: impl FnMut(u16) -> Vec<String>,
    ) -> Result<Vec<Process>> {
        let path = xdp_agg_testbed::program(program.name)?;
        (0..self.plan.workers * processes)
            .map(|rank| {
                let host: &Namespace = self.topology.worker(usize::from(rank / processes));
                let mut command: Command = host.command(&path);
                command.args(arguments(rank));
                command.envs(self.environment(rank, processes, program.job));
                command.env("XDP_AGG_DEADLINE", program.deadline.as_secs().to_string());
                let shown = program.shows_rank_0 && rank == 0;
                let stderr = if shown { Sink::Inherit } else { Sink::Capture };
                let name = format!("worker {rank}");
                Ok(Process::spawn_with(name, command, Sink::Capture, stderr)?)
            })
            .collect()
    }
}

/// What runs as every worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    /// One of the workspace's programs.
    pub(crate) name: &'a str,
    /// The job that its workers join.
    pub(crate) job: &'a str,
    /// The longest that one call may take.
    pub(crate) deadline: Duration,
    /// Rank 0 says on our standard error what it is at.
    pub(crate) shows_rank_0: bool,
}

fn is_ready_line(line: &str) -> bool {
    line.starts_with("ready ")
}

/// Starts a parameter server and waits until it is ready.
pub(crate) fn start_server(host: &Namespace, name: String, listen: &str) -> Result<Process> {
    let mut command = host.command(program("xdp-agg-ps")?);
    command.args(["--listen", listen]);
    start_service(name, command)
}

/// Starts a service that says when it is ready, and waits until it is.
pub(crate) fn start_service(name: String, mut command: Command) -> Result<Process> {
    command.env("NO_COLOR", "1");
    let service = Process::spawn(name, command)?;
    service.wait_line("that it is ready", Duration::from_secs(30), is_ready_line)?;
    Ok(service)
}

/// Those of these workers that have not ended; a failure of one that has is reported.
pub(crate) fn reap(workers: Vec<Process>) -> Result<Vec<Process>> {
    let mut running = Vec::new();
    for mut worker in workers {
        match worker.try_wait()? {
            Some(_) => drop(worker.wait(Duration::ZERO)?.success()?),
            None => running.push(worker),
        }
    }
    Ok(running)
}

/// Waits for all workers; the first failure is reported, and ends the others.
pub(crate) fn wait_all(workers: Vec<Process>, limit: Duration) -> Result<()> {
    let start = Instant::now();
    let mut running = workers;
    while !running.is_empty() {
        running = reap(running)?;
        if start.elapsed() > limit {
            let last = running.pop().map(|worker| worker.last_words()).unwrap_or_default();
            bail!("{} workers have not ended in {limit:?}{last}", running.len() + 1);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The running daemon, or those of all hosts; ends with this value.
pub(crate) struct Daemon<'a> {
    lab: &'a Lab,
    engine: String,
    processes: Vec<Process>,
}

impl Daemon<'_> {
    /// What sums, in the daemon's words.
    pub(crate) fn engine(&self) -> &str {
        &self.engine
    }

    /// Reserves a job, so that its counters outlive its workers.
    pub(crate) fn reserve(&self, job: &str) -> Result<()> {
        let Plan { workers: world_size, .. } = self.lab.plan;
        let job = job.to_owned();
        let create = CreateJob { job, world_size, slots: None, result_mode: None, policy: None };
        match self.ask(&Request::Create(create))? {
            Reply::Done => Ok(()),
            other => bail!("the daemon answers {other:?} when asked for a job"),
        }
    }

    /// Everything that the daemon counts, as `xdp-agg stats` shows it.
    pub(crate) fn stats(&self) -> Result<Stats> {
        match self.ask(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            other => bail!("the daemon answers {other:?} when asked for its counters"),
        }
    }

    /// One request over a connection of its own.
    fn ask(&self, request: &Request) -> Result<Reply> {
        let address = self.lab.control_address();
        let ask = || -> Result<Reply> {
            let mut stream =
                TcpStream::connect(&address).with_context(|| format!("connecting to {address}"))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            let agent = concat!("xdp-agg-lab ", env!("CARGO_PKG_VERSION")).to_owned();
            write_message(
                &mut stream,
                &Request::Hello { version: CONTROL_VERSION, agent, token: None },
            )?;
            match read_message(&mut stream)? {
                Reply::Welcome { .. } => {}
                other => bail!("the daemon answers {other:?} to a greeting"),
            }
            write_message(&mut stream, request)?;
            Ok(read_message(&mut stream)?)
        };
        self.lab.topology.aggregator().run(ask)?
    }

    /// Kills it.
    pub(crate) fn kill(self) -> Result<()> {
        for process in self.processes {
            process.kill()?;
        }
        Ok(())
    }

    /// Asks it to end, and checks that it does so without complaint.
    pub(crate) fn stop(self) -> Result<()> {
        for process in self.processes {
            process.terminate()?.success()?;
        }
        Ok(())
    }
}
