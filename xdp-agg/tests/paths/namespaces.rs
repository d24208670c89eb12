//! Hosts and cables of a test, in network namespaces that end with it.
#![expect(unsafe_code, reason = "setns is a system call")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// The aggregator's address.
pub(crate) const AGGREGATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 254);

/// How the workers are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The aggregator's host is the switch: a port a worker, bridged.
    Ports,
    /// The aggregator has one interface on a switch.
    OneInterface,
}

/// The hosts. Dropping it removes them.
pub(crate) struct Network {
    names: Vec<String>,
    shape: Shape,
    pub(crate) workers: u16,
}

impl Network {
    /// Builds it; None, with a message, where this process may not.
    pub(crate) fn new(shape: Shape, workers: u16) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("xpath{}-{number}", std::process::id());
        let hosts = ["agg", "switch"].map(String::from).into_iter();
        let hosts = hosts.chain((0..workers).map(|w| format!("w{w}")));
        let mut network = Self { names: Vec::new(), shape, workers };
        for host in hosts {
            let name = format!("{prefix}-{host}");
            let made = Command::new("ip").args(["netns", "add", &name]).output();
            match made {
                Ok(output) if output.status.success() => network.names.push(name),
                Ok(output) => {
                    eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
                    return None;
                }
                Err(error) => {
                    eprintln!("skipped: `ip` does not run: {error}");
                    return None;
                }
            }
        }
        network.connect();
        Some(network)
    }

    fn connect(&self) {
        let bridged = if self.shape == Shape::Ports { "agg" } else { "switch" };
        self.ip(bridged, "link add br0 type bridge");
        self.ip(bridged, "link set br0 up");
        for worker in 0..self.workers {
            let host = format!("w{worker}");
            self.cable((&host, "eth0"), (bridged, &format!("p{worker}")));
            self.ip(bridged, &format!("link set p{worker} master br0"));
            self.ip(&host, &format!("addr add {}/24 dev eth0", address(worker)));
        }
        let ours = if self.shape == Shape::Ports {
            "br0"
        } else {
            self.cable(("agg", "nic"), ("switch", "trunk"));
            self.ip("switch", "link set trunk master br0");
            "nic"
        };
        self.ip("agg", &format!("addr add {AGGREGATOR}/24 dev {ours}"));
    }

    /// A veth pair whose ends poll (GRO), as XDP redirects want it, and do not hand on more than
    /// one packet at a time, as generic XDP wants it.
    fn cable(&self, (a, a_name): (&str, &str), (b, b_name): (&str, &str)) {
        let (a_space, b_space) = (self.name(a), self.name(b));
        self.ip(a, &format!("link add {a_name} type veth peer name {b_name} netns {b_space}"));
        for (host, space, name) in [(a, &a_space, a_name), (b, &b_space, b_name)] {
            self.ip(host, &format!("link set {name} up"));
            run("ip", &format!("netns exec {space} ethtool -K {name} gro on gso off tso off"));
        }
    }

    /// Interfaces that the aggregator serves.
    pub(crate) fn served(&self) -> Vec<String> {
        match self.shape {
            Shape::Ports => (0..self.workers).map(|w| format!("p{w}")).collect(),
            Shape::OneInterface => vec!["nic".into()],
        }
    }

    pub(crate) fn set_worker_mtu(&self, worker: u16, mtu: u32) {
        self.ip(&format!("w{worker}"), &format!("link set eth0 mtu {mtu}"));
    }

    /// Runs `work` on the aggregator's host.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.on("agg", work)
    }

    /// Runs `work` on a worker's host.
    pub(crate) fn on_worker<T: Send>(&self, worker: u16, work: impl FnOnce() -> T + Send) -> T {
        self.on(&format!("w{worker}"), work)
    }

    /// TCP between a worker and the aggregator's host, and between two workers.
    pub(crate) fn check_plain_traffic(&self) {
        let from = 0;
        self.check_tcp(from, "agg", AGGREGATOR);
        if self.workers > 1 {
            self.check_tcp(from, "w1", address(1));
        }
    }

    fn check_tcp(&self, from: u16, to: &str, addr: Ipv4Addr) {
        let listener = self.on(to, || TcpListener::bind((addr, 0))).expect("it binds");
        let at: SocketAddr = listener.local_addr().expect("it has an address");
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("somebody connects");
                stream.write_all(&[7; 100_000]).expect("it goes out");
            });
            let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(10));
            let mut stream = self.on_worker(from, connect).expect("it connects");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).expect("it arrives");
            assert_eq!(bytes.len(), 100_000);
        });
    }

    fn on<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let space = File::open(format!("/run/netns/{}", self.name(host))).expect("it is there");
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: moves this thread, which ends with `work`, to a namespace by its
                // descriptor.
                let moved = unsafe { libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(moved, 0, "setns: {}", std::io::Error::last_os_error());
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn name(&self, host: &str) -> String {
        let suffix = format!("-{host}");
        self.names.iter().find(|name| name.ends_with(&suffix)).expect("a host").clone()
    }

    fn ip(&self, host: &str, arguments: &str) {
        run("ip", &format!("-n {} {arguments}", self.name(host)));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A worker's address.
pub(crate) fn address(worker: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, 1 + worker as u8)
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
}
