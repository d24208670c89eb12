//! Hosts with several processes each, parameter servers, and the aggregator between them.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use xdp_agg_baselines::window;
use xdp_agg_testbed::{Direction, Namespace, Process, Sink, program};
use xdp_agg_workloads::model::{Servers, System};

use super::super::lab::{Daemon, Lab, Plan, RENDEZVOUS_PORT, reap, start_service};

/// Port of the parameter servers.
const SERVER_PORT: u16 = 29_600;
/// Port of ATP's switch for the first host.
const SWITCH_PORT: u16 = 29_700;

/// The memory of the aggregator, or of ATP's switch, where it is not what a job has by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Slots of the job.
    pub(crate) slots: Option<u32>,
    /// Largest IP packet that goes into a slot.
    pub(crate) mtu: Option<u32>,
    /// Most blocks of a worker of ATP that are under way, where that is less than slots allow.
    pub(crate) window: Option<u32>,
}

impl Pool {
    /// The pool of a system on links of this rate, in bits a second. SwitchML's workers have a
    /// fixed window, and the pool is twice as large, unless another one is asked for. The window of
    /// ATP's is twice SwitchML's, because each block goes on to a server and back.
    pub(crate) fn of(self, system: System, bits: u64, mtu: u32) -> Self {
        let window = window(bits, self.mtu.unwrap_or(mtu));
        match system {
            System::Switchml => Self { slots: self.slots.or(Some(2 * window)), ..self },
            System::Atp => Self { window: Some(2 * window), ..self },
            _ => self,
        }
    }
}

/// Sizes of a network: the paper's `s`, `n` and `p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Hosts with workers.
    pub(crate) hosts: u16,
    /// Worker processes on each.
    pub(crate) processes: u16,
    /// Parameter servers.
    pub(crate) servers: Servers,
}

impl Size {
    /// All worker processes.
    pub(crate) const fn world(self) -> u16 {
        self.hosts * self.processes
    }
}

/// A network with hosts, servers behind links of the same kind or on the hosts, and the aggregator
/// as the switch. Hosts are the first links, servers with hosts of their own the rest.
pub(crate) struct Cluster {
    lab: Lab,
    size: Size,
    pool: Pool,
}

/// What the shapers of all links have sent, in bytes, up and down.
pub(crate) type Carried = Vec<[u64; 2]>;

/// A mark of the workers, and what the links had carried by then.
pub(crate) struct Mark {
    /// A phase begins; otherwise it ends.
    pub(crate) begins: bool,
    pub(crate) carried: Carried,
}

/// What a run needs apart from the workers. All of it ends with this value.
pub(crate) struct Services<'a> {
    daemon: Option<Daemon<'a>>,
    servers: Vec<Process>,
}

impl Cluster {
    /// Builds the network. `plan` is for one of its links; its number of workers is replaced.
    pub(crate) fn build(plan: Plan, size: Size, pool: Pool) -> Result<Self> {
        let lab = Lab::build(Plan { workers: size.hosts + size.servers.apart(), ..plan })?;
        Ok(Self { lab, size, pool })
    }

    pub(crate) const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Starts what this system sums with, and waits until it is ready.
    pub(crate) fn serve(&self, system: System) -> Result<Services<'_>> {
        let mut services = Services { daemon: None, servers: Vec::new() };
        if system.uses_aggregator() {
            let mut interfaces = self.lab.topology().aggregator_interfaces();
            // What goes to and from servers is nothing for the aggregator.
            interfaces.truncate(self.size.hosts.into());
            services.daemon = Some(self.lab.start_daemon_on(&interfaces, &[])?);
        }
        if system.uses_servers() {
            for server in 0..self.size.servers.count(self.size.hosts) {
                services.servers.push(self.start_server(system, server)?);
            }
        }
        if system == System::Atp {
            services.servers.push(self.start_switch()?);
        }
        Ok(services)
    }

    /// ATP's switch, in the place of the aggregator.
    fn start_switch(&self) -> Result<Process> {
        let servers = self.server_addresses();
        let mut command = first(self.lab.topology().aggregator(), "xdp-agg-atp")?;
        command.args(["switch", "--listen", &self.switch_address(0)]);
        command.args(["--hosts", &self.size.hosts.to_string(), "--servers", &servers]);
        if let Some(slots) = self.pool.slots {
            command.args(["--slots", &slots.to_string()]);
        }
        start_service("switch".to_owned(), command)
    }

    /// Where the switch listens for the workers of a host.
    fn switch_address(&self, host: u16) -> String {
        format!("{}:{}", self.lab.topology().aggregator_addr(), SWITCH_PORT + host)
    }

    fn server_addresses(&self) -> String {
        let servers = 0..self.size.servers.count(self.size.hosts);
        servers.map(|server| self.server_address(server)).collect::<Vec<_>>().join(",")
    }

    fn start_server(&self, system: System, server: u16) -> Result<Process> {
        let host = self.lab.topology().worker(self.server_host(server));
        let (name, listen) = (format!("server {server}"), self.server_address(server));
        let mut command = if system == System::Atp {
            let mut command = first(host, "xdp-agg-atp")?;
            command.arg("server");
            command
        } else {
            first(host, "xdp-agg-ps")?
        };
        command.args(["--listen", &listen]);
        start_service(name, command)
    }

    fn server_address(&self, server: u16) -> String {
        format!("{}:{SERVER_PORT}", self.lab.topology().worker_addr(self.server_host(server)))
    }

    /// The number of the host that a server is on.
    fn server_host(&self, server: u16) -> usize {
        let first = if self.size.servers == Servers::Hosts { 0 } else { self.size.hosts };
        (first + server).into()
    }

    /// The environment of one process, in the words of launchers. Ranks go through the hosts one
    /// after the other, so in a ring only one connection of a host leaves it.
    fn environment(&self, rank: u16, job: &str) -> Vec<(&'static str, String)> {
        let processes = self.size.processes;
        let mtu = self.pool.mtu.unwrap_or(self.lab.plan().mtu);
        let mut environment = vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", self.size.world().to_string()),
            ("LOCAL_RANK", (rank % processes).to_string()),
            ("LOCAL_WORLD_SIZE", processes.to_string()),
            ("GROUP_RANK", (rank / processes).to_string()),
            ("MASTER_ADDR", self.lab.topology().worker_addr(0).to_string()),
            ("MASTER_PORT", RENDEZVOUS_PORT.to_string()),
            ("XDP_AGG_ADDR", self.lab.control_address()),
            ("XDP_AGG_JOB", job.to_owned()),
            ("XDP_AGG_PS_ADDRS", self.server_addresses()),
            ("XDP_AGG_ATP_SWITCH", self.switch_address(rank / processes)),
            ("XDP_AGG_MTU", mtu.to_string()),
            ("NO_COLOR", "1".to_owned()),
        ];
        let slots = self.pool.slots.map(|slots| ("XDP_AGG_JOB_SLOTS", slots.to_string()));
        environment.extend(slots);
        let window = self.pool.window.map(|window| ("XDP_AGG_ATP_WINDOW", window.to_string()));
        environment.extend(window);
        environment
    }

    /// Runs a program as every process until all have ended, and reads the links' counters at
    /// each mark of rank 0. `arguments` are those of a rank.
    ///
    /// # Errors
    /// The first failure of a process, which ends the others; or the limit.
    pub(crate) fn run(
        &self,
        job: &str,
        (deadline, limit): (Duration, Duration),
        arguments: impl Fn(u16) -> Vec<String>,
    ) -> Result<Vec<Mark>> {
        let path = program("xdp-agg-bench")?;
        let (told, marks) = channel();
        let mut running = Vec::new();
        for rank in 0..self.size.world() {
            let host = self.lab.topology().worker((rank / self.size.processes).into());
            let mut command: Command = host.command(Path::new(&path));
            command.args(arguments(rank)).envs(self.environment(rank, job));
            command.env("XDP_AGG_DEADLINE", deadline.as_secs().to_string());
            let told = told.clone();
            let hook = move |line: &str| {
                if let Some(mark) = line.strip_prefix("# mark ") {
                    // Nobody listens any more where another process has failed.
                    let _ = told.send(mark.starts_with("begin"));
                }
            };
            let stdout = if rank == 0 { Sink::Lines(Box::new(hook)) } else { Sink::Capture };
            let name = format!("process {rank}");
            running.push(Process::spawn_with(name, command, stdout, Sink::Capture)?);
        }
        drop(told);
        self.collect(running, &marks, limit)
    }

    fn collect(
        &self,
        mut running: Vec<Process>,
        told: &Receiver<bool>,
        limit: Duration,
    ) -> Result<Vec<Mark>> {
        let start = Instant::now();
        let mut marks = Vec::new();
        while !running.is_empty() {
            match told.recv_timeout(Duration::from_millis(10)) {
                Ok(begins) => marks.push(Mark { begins, carried: self.carried()? }),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            running = reap(running)?;
            if let Some(last) = running.last().filter(|_| start.elapsed() > limit) {
                bail!(
                    "{} processes have not ended in {limit:?}{}",
                    running.len(),
                    last.last_words()
                );
            }
        }
        Ok(marks)
    }

    /// What has left the shapers, or the interfaces where no rate is kept.
    fn carried(&self) -> Result<Carried> {
        let topology = self.lab.topology();
        (0..topology.link_count())
            .map(|link| {
                let interface = topology.host_counters(link)?;
                let mut carried = [interface.tx_bytes, interface.rx_bytes];
                for (bytes, direction) in carried.iter_mut().zip(Direction::BOTH) {
                    if let Some(queue) = topology.queue_counters(link, direction)? {
                        *bytes = queue.bytes;
                    }
                }
                Ok(carried)
            })
            .collect()
    }
}

/// A service that goes before workers. Servers and switches have machines of their own, and the
/// XDP program goes before all processes.
fn first(host: &Namespace, name: &str) -> Result<Command> {
    let mut command = host.command("nice");
    // Without a privilege `nice` says so, and runs the program as it would be.
    command.args(["-n", "-20"]).arg(program(name)?);
    Ok(command)
}

impl Services<'_> {
    /// Ends all of it in good order. Returns what ATP's switch and servers have counted.
    pub(crate) fn stop(self) -> Result<Vec<String>> {
        let mut counted = Vec::new();
        for server in self.servers {
            let ended = server.terminate().context("ending a server or the switch")?;
            let lines = ended.stdout.lines().filter(|line| line.starts_with("passed="));
            counted.extend(lines.map(str::to_owned));
        }
        self.daemon.map_or(Ok(()), Daemon::stop)?;
        Ok(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a link carries in a trip, as a power of two, unless a pool is asked for.
    #[test]
    fn baselines_have_the_window_of_their_links() {
        let of = |system, bits, pool: Pool| {
            let Pool { slots, window, .. } = pool.of(system, bits, 1500);
            (slots, window)
        };
        let (slow, fast) = (100_000_000, 1_000_000_000);
        assert_eq!(of(System::Switchml, slow, Pool::default()), (Some(32), None));
        assert_eq!(of(System::Switchml, fast, Pool::default()), (Some(256), None));
        assert_eq!(of(System::Atp, slow, Pool::default()), (None, Some(32)));
        assert_eq!(of(System::Passing, slow, Pool::default()), (None, None));
        // Short packets are more for the same links; a pool that is asked for stays.
        let short = Pool { mtu: Some(306), ..Pool::default() };
        assert_eq!(of(System::Switchml, slow, short), (Some(128), None));
        let asked = Pool { slots: Some(1024), ..Pool::default() };
        assert_eq!(of(System::Switchml, slow, asked), (Some(1024), None));
        assert_eq!(of(System::Atp, slow, asked), (Some(1024), Some(32)));
    }
}
