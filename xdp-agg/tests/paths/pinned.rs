//! The data path outlives its daemon: it goes on after SIGKILL, and the next daemon takes it over
//! while packets flow.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, EngineConfig, EngineError, XdpMode};
use xdp_agg_common::maps::Reject;
use xdp_agg_common::wire::Kind;

use xdp_agg_testbed::BpfFs;

use crate::config;
use crate::network::{Mode, Network};
use crate::workers::{JOB, Worker, setup, sum};

const WORKERS: u16 = 3;
const SLOTS: u32 = 32;
const DEADLINE: Duration = Duration::from_secs(60);
/// Tells this program, started again, where to pin.
const HOLDER: &str = "XDP_AGG_TEST_PIN";

/// A BPF file system of this test; None, with a message, where none can be mounted.
fn mount() -> Option<BpfFs> {
    BpfFs::mount().inspect_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Ends an engine whose data path goes on.
fn leave(mut engine: XdpEngine) {
    engine.keep();
}

fn pinned(network: &Network, pins: &Path) -> EngineConfig {
    EngineConfig { pin: Some(pins.to_owned()), ..config(network, XdpMode::Native) }
}

/// A daemon in a process of its own. It is killed when this is dropped.
struct Daemon {
    child: Child,
    orders: ChildStdin,
    told: BufReader<std::process::ChildStdout>,
}

impl Daemon {
    fn spawn(network: &Network, pins: &Path) -> Self {
        let exe = std::env::current_exe().expect("this program");
        let mut command = Command::new(exe);
        command.args(["--exact", "pinned::a_daemon_that_is_to_be_killed", "--nocapture"]);
        command.env(HOLDER, pins).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = network.inside(|| command.spawn()).expect("it starts");
        let orders = child.stdin.take().expect("it is piped");
        let told = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, orders, told }
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            let len = self.told.read_line(&mut line).expect("it can be read");
            assert!(len > 0, "the daemon ended before it was {word}");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // SIGKILL
        let _ = self.child.wait();
    }
}

/// Not a test of its own: what [`Daemon`] runs.
#[test]
fn a_daemon_that_is_to_be_killed() {
    let Some(pins) = std::env::var_os(HOLDER) else { return };
    let interfaces = (0..WORKERS).map(|worker| format!("p{worker}")).collect();
    let config =
        EngineConfig { interfaces, pin: Some(pins.into()), ..crate::config_of(XdpMode::Native) };
    let mut engine = XdpEngine::open(&config).expect("it opens");
    assert!(!engine.adopted());
    engine.prepare(&setup(WORKERS, SLOTS)).expect("it fits");
    println!("\nprepared");
    let mut order = String::new();
    std::io::stdin().read_line(&mut order).expect("an order");
    engine.start(JOB, None).expect("all paths are open");
    println!("\nstarted");
    // The end comes from outside. If it does not, this ends with the process that spawned it.
    let _ = std::io::stdin().read_line(&mut order);
}

/// What the workers have done, and when they shall end.
struct Flow {
    done: [AtomicU64; WORKERS as usize],
    end: AtomicU64,
}

impl Flow {
    fn new() -> Self {
        Self { done: Default::default(), end: AtomicU64::new(u64::MAX) }
    }

    fn slowest(&self) -> u64 {
        self.done.iter().map(|done| done.load(Ordering::Relaxed)).min().unwrap_or(0)
    }

    fn wait_for_more(&self, blocks: u64) {
        let (to, end) = (self.slowest() + blocks, Instant::now() + DEADLINE);
        while self.slowest() < to {
            assert!(Instant::now() < end, "nothing flows at block {}", self.slowest());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// One worker: block after block, each until its sum is here, which must be exact.
    fn work(&self, network: &Network, worker: &Worker) {
        let mut block = 0;
        let mut since = Instant::now();
        while block < self.end.load(Ordering::Relaxed) {
            assert!(since.elapsed() < DEADLINE, "no result of block {block}");
            worker.send(Kind::Contribution, block);
            while let Some((header, payload)) = worker.answer() {
                if header.kind == Kind::Result && header.block == block {
                    assert_eq!(payload, sum(network, block), "block {block}");
                    block += 1;
                    self.done[usize::from(worker.rank)].store(block, Ordering::Relaxed);
                    since = Instant::now();
                    break;
                }
            }
        }
    }

    /// Lets all workers end at the same block, which none has reached.
    fn end(&self) {
        let furthest = self.done.iter().map(|done| done.load(Ordering::Relaxed)).max();
        self.end.store(furthest.unwrap_or(0) + 1000, Ordering::Relaxed);
    }
}

#[test]
fn a_killed_daemon_is_replaced_while_packets_flow() {
    let Some(bpffs) = mount() else { return };
    let Some(network) = Network::new(Mode::Ports, WORKERS) else { return };
    let config = pinned(&network, &bpffs.pins());
    let open = |config: &EngineConfig| network.inside(|| XdpEngine::open(config));
    let mut daemon = Daemon::spawn(&network, &bpffs.pins());
    daemon.wait_for("prepared");
    let workers = Worker::all(&network);
    workers.iter().for_each(Worker::probe);
    daemon.orders.write_all(b"start\n").expect("it is told");
    daemon.wait_for("started");
    let error = open(&config).err().expect("one at a time");
    assert!(matches!(error, EngineError::PinsInUse { .. }), "{error}");
    let flow = Flow::new();
    let engine = thread::scope(|scope| {
        for worker in &workers {
            scope.spawn(|| flow.work(&network, worker));
        }
        // Whatever fails below: the workers end.
        let _stop = Stop(&flow);
        flow.wait_for_more(300);
        drop(daemon); // SIGKILL
        flow.wait_for_more(300);
        let mut engine = open(&config).expect("it takes over");
        assert!(engine.adopted());
        let jobs = engine.adopted_jobs();
        let setup = setup(WORKERS, SLOTS);
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        assert_eq!(
            (jobs[0].0, jobs[0].1.cookie, jobs[0].1.members),
            (JOB, setup.conf.cookie, 0b111)
        );
        flow.wait_for_more(300);
        let heard = engine.heard(JOB).expect("it knows the job");
        assert!(heard.iter().all(|(_, since)| since.is_some_and(|s| s < DEADLINE)), "{heard:?}");
        // Once more, without a death: a daemon that leaves all to the next one.
        engine.keep();
        drop(engine);
        flow.wait_for_more(300);
        let engine = open(&config).expect("it takes over");
        flow.wait_for_more(300);
        flow.end();
        engine
    });
    let mut engine = engine;
    let blocks = flow.end.load(Ordering::Relaxed);
    let counters = engine.counters().expect("they can be read")[usize::from(JOB)];
    assert_eq!(counters.contributions, blocks * u64::from(WORKERS), "nothing lost, nothing twice");
    assert_eq!((counters.blocks, counters.rejects), (blocks, [0; Reject::COUNT]));
    assert_eq!(engine.missing(JOB, blocks - 1).expect("it knows the job"), 0);
    engine.stop(JOB).expect("it stops");
    drop(engine);
    assert!(!bpffs.pins().exists(), "an ordinary end leaves nothing");
    drop(open(&crate::config(&network, XdpMode::Native)).expect("the interfaces are free"));
}

struct Stop<'a>(&'a Flow);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end.store(0, Ordering::Relaxed);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_until_it_is_removed() {
    let Some(bpffs) = mount() else { return };
    let Some(network) = Network::new(Mode::Ports, WORKERS) else { return };
    let open = |config: &EngineConfig| network.inside(|| XdpEngine::open(config));
    let config = pinned(&network, &bpffs.pins());
    let nowhere = EngineConfig { pin: Some(std::env::temp_dir().join("no-bpf")), ..config.clone() };
    let error = open(&nowhere).err().expect("not a BPF file system").to_string();
    assert!(error.contains("mount -t bpf"), "{error}");
    assert!(!nowhere.pin.as_ref().is_some_and(|at| at.exists()), "nothing was made");

    leave(open(&config).expect("it opens"));
    let other = |change: fn(&mut EngineConfig)| {
        let mut other = config.clone();
        change(&mut other);
        other
    };
    for (what, other) in [
        ("slots: 64, wanted 128", other(|c| c.slots = 128)),
        ("data port", other(|c| c.data_port += 1)),
        ("any address", other(|c| c.data_addr = None)),
        ("generic", other(|c| c.xdp_mode = XdpMode::Generic)),
        ("interfaces", other(|c| _ = c.interfaces.pop())),
    ] {
        let error = open(&other).err().expect("it does not fit");
        assert!(matches!(error, EngineError::PinsMisfit { .. }), "{error}");
        let words = error.to_string();
        assert!(words.contains(what) && words.contains("--fresh"), "{words}");
    }
    // The refusals changed nothing; removing it does.
    let fits = open(&config).expect("it fits");
    assert!(fits.adopted() && fits.adopted_jobs().is_empty());
    drop(fits);
    assert!(!bpffs.pins().exists());
    leave(open(&config).expect("it opens"));
    let wider = EngineConfig { slots: 128, fresh: true, ..config.clone() };
    let fresh = open(&wider).expect("what was there is removed");
    assert!(!fresh.adopted());
    drop(fresh);

    // Somebody else's pins are not touched.
    fs::create_dir_all(bpffs.pins().join("somebodys")).expect("a directory");
    for fresh in [false, true] {
        let error = open(&EngineConfig { fresh, ..config.clone() }).err().expect("not ours");
        assert!(error.to_string().contains("somebodys"), "{error}");
    }
    fs::remove_dir(bpffs.pins().join("somebodys")).expect("it is there");
    // Half a data path, without its stamp, is cleared away.
    leave(open(&config).expect("it opens"));
    fs::remove_file(bpffs.pins().join("stamp")).expect("it is there");
    let second = open(&config).expect("it opens");
    assert!(!second.adopted());
}

/// An interface that was deleted cannot be taken over, and says so.
#[test]
fn an_interface_that_is_gone_is_named() {
    let Some(bpffs) = mount() else { return };
    let Some(network) = Network::new(Mode::Ports, WORKERS) else { return };
    let open = |config: &EngineConfig| network.inside(|| XdpEngine::open(config));
    let config = pinned(&network, &bpffs.pins());
    leave(open(&config).expect("it opens"));
    fs::remove_file(bpffs.pins().join("link_1")).expect("it is there");
    let error = open(&config).err().expect("p1 is not attached");
    assert!(error.to_string().contains("p1 is not attached any more"), "{error}");
    let fresh = open(&EngineConfig { fresh: true, ..config }).expect("it starts anew");
    assert!(!fresh.adopted());
}
