//! Years in minutes: jobs come and go, links flap, the daemon dies and comes back, and neither
//! memory nor descriptors grow, of the daemon or of its workers.
//!
//! A short run is a test. `cargo xtask soak` runs it for longer and prints a table.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use support::watched::{all_begin, all_said, call_of, check_none_failed};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_client::{Error, Op};
use xdp_agg_common::control::{FrameError, Join, Reply, Request, read_message, write_message};
use xdp_agg_testbed::steady::{Line, Steady, Work};
use xdp_agg_testbed::{BpfFs, Process};

/// Workers of the job that runs all the while. On the next host are whole jobs that come and go, on
/// the others workers that join and die at once.
const STEADY: u16 = 3;
const HOSTS: u16 = 10;
/// Workers of the jobs that die before they run, one size after another. A job costs the daemon two
/// changes of its data path, each of which waits for programs that run, however many join it.
const SIZES: [u16; 4] = [1, 4, 8, 12];
/// A daemon takes 100 new connections a second from one address.
const BETWEEN_JOINS: Duration = Duration::from_micros(10_500);
/// Slots of a job that comes and goes. The next daemon keeps those of jobs that a kill cut off, for
/// as long as their workers may come back.
const FEW: u32 = 16;
/// Elements of the longest calls: six blocks. Making and checking them takes most of a call.
const LONGEST: usize = 2000;
/// How long a worker whose daemon is away waits before it tries again.
const DAEMON_AWAY: Duration = Duration::from_millis(20);
const RESUME: [(&str, &str); 1] = [("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];
/// Memory that the allocator may keep between two readings of a process that does the same.
const SLACK_KIB: u64 = 4096;
/// Interfaces that are being looked at have some open files.
const SLACK_FILES: usize = 24;
/// And so have the connections of jobs that come and go, while they do.
const COMING: usize = 12 * (HOSTS - STEADY) as usize;
/// How long a link is away: less than a third of the time after which it counts as dead.
const AWAY: Duration = Duration::from_millis(700);
/// Readings while one daemon lives, and while others take its place.
const READINGS: u32 = 4;

/// How long a run takes.
struct Plan {
    churn: Duration,
    restarts: u64,
    joins: u64,
    calls: u64,
}

impl Plan {
    fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        Self {
            churn: Duration::from_secs(number("XDP_AGG_SOAK_SECONDS").unwrap_or(8)),
            restarts: number("XDP_AGG_SOAK_RESTARTS").unwrap_or(2),
            joins: number("XDP_AGG_SOAK_JOINS").unwrap_or(0),
            calls: number("XDP_AGG_SOAK_CALLS").unwrap_or(0),
        }
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Uses {
    /// Resident memory.
    kib: u64,
    files: usize,
    /// Of the files: programs, maps and links of the kernel.
    bpf: usize,
    threads: u64,
}

impl Uses {
    fn of(process: &Process) -> Self {
        let proc = format!("/proc/{}", process.pid());
        let status = fs::read_to_string(format!("{proc}/status")).expect("it runs");
        let number = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
            line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
        };
        let files = fs::read_dir(format!("{proc}/fd")).expect("it runs").flatten();
        // One that is closed meanwhile leads nowhere.
        let kinds: Vec<_> = files.map(|file| fs::read_link(file.path()).ok()).collect();
        let is_bpf = |kind: &&Option<std::path::PathBuf>| {
            kind.as_ref().is_some_and(|kind| kind.to_string_lossy().contains("bpf"))
        };
        let bpf = kinds.iter().filter(is_bpf).count();
        let (kib, threads) = (number("VmRSS:"), number("Threads:"));
        Self { kib, files: kinds.len(), bpf, threads }
    }

    /// A process that does what it did holds what it held.
    fn check_flat(self, first: Self, what: &str) {
        let both = format!("{what}: {first:?}, then {self:?}");
        assert!(self.kib <= first.kib + SLACK_KIB, "memory grows: {both}");
        assert!(self.files <= first.files + SLACK_FILES + COMING, "open files grow: {both}");
        assert!(self.bpf <= first.bpf, "programs, maps or links grow: {both}");
        assert!(self.threads <= first.threads + 1, "threads grow: {both}");
    }
}

/// What is counted by all that come and go.
#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    attempts: AtomicU64,
    joins: AtomicU64,
    calls: AtomicU64,
    /// How often the daemon went or came: odd while none is there.
    turns: AtomicU64,
}

impl Counts {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Daemons that were killed.
    fn kills(&self) -> u64 {
        load(&self.turns).div_ceil(2)
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Workers of a whole job join, hear that they are in, and die. Each job of a host has the name of
/// the one before, whose end the daemon may not have read.
fn knock(lab: &Lab, host: u16, world_size: u16) -> Result<(), FrameError> {
    let enter = |rank| {
        let mut stream = lab.try_control_from(lab.topology.worker(host.into()))?;
        let join = Join {
            job: format!("knock-{host}"),
            rank,
            world_size,
            data_port: 4000 + rank,
            max_chunks: 22,
            slots: Some(FEW),
            ..Join::default()
        };
        write_message(&mut stream, &Request::Join(join))?;
        Ok(stream)
    };
    let workers = (0..world_size).map(enter).collect::<Result<Vec<_>, FrameError>>()?;
    for mut stream in workers.iter() {
        loop {
            match read_message(&mut stream)? {
                // The data path may take its time, as others change it, too.
                Reply::Heartbeat => {}
                Reply::Admitted(_) => break,
                other => panic!("it is not admitted: {other:?}"),
            }
        }
    }
    Ok(())
}

/// A whole job of one worker, with a call now and then.
fn short_job(lab: &Lab, host: u16, (number, counts): (u64, &Counts)) -> Result<(), Error> {
    let settings = lab.worker(&format!("short-{host}"), 0, 1).slots(FEW);
    let worker = lab.connect_one(host, settings)?;
    if number.is_multiple_of(10) {
        let mut values = [1_i32; 600];
        worker.all_reduce(&mut values, Op::Sum)?;
        assert_eq!(values, [1; 600]);
        counts.calls.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Comes and goes, again and again. Nothing fails but what a daemon that was killed has cut off.
fn come_and_go(lab: &Lab, host: u16, counts: &Counts) {
    while counts.goes_on() {
        let (began, turns) = (Instant::now(), load(&counts.turns));
        let number = counts.attempts.fetch_add(1, Ordering::Relaxed);
        let (joins, done) = if host == STEADY {
            let done = short_job(lab, host, (number, counts));
            (1, done.map_err(|error| error.to_string()))
        } else {
            let size = SIZES[number as usize % SIZES.len()];
            (size, knock(lab, host, size).map_err(|error| error.to_string()))
        };
        match done {
            Ok(()) => {
                counts.joins.fetch_add(joins.into(), Ordering::Relaxed);
                sleep((BETWEEN_JOINS * joins.into()).saturating_sub(began.elapsed()));
            }
            Err(error) => {
                let was_away = turns % 2 == 1 || load(&counts.turns) > turns;
                assert!(was_away, "host {host}, join {number}: {error}");
                sleep(DAEMON_AWAY);
            }
        }
    }
}

/// Takes the cables of the steady workers away, one after another, for a moment every so often.
fn flap(lab: &Lab, counts: &Counts, every: Duration) -> u64 {
    let mut flaps = 0;
    while counts.goes_on() {
        let link = (flaps % u64::from(STEADY)) as usize;
        lab.topology.set_link_up(link, false).expect("it has a plug");
        sleep(AWAY);
        lab.topology.set_link_up(link, true).expect("it has a plug");
        flaps += 1;
        sleep(every);
    }
    flaps
}

/// The run: the network, what changes in it, and what is read of it.
struct Soak<'a> {
    lab: &'a Lab,
    bpffs: &'a BpfFs,
    counts: &'a Counts,
    workers: &'a [Steady],
    begin: Instant,
    /// Of the daemon, and the most that one of the workers has.
    readings: Vec<(Uses, Uses)>,
}

impl Soak<'_> {
    /// Reads the daemon, and all that the workers hold together, and prints it.
    fn read(&mut self, daemon: &Process) {
        let uses = Uses::of(daemon);
        let all: Vec<_> = self.workers.iter().map(|worker| Uses::of(&worker.process)).collect();
        let largest = Uses {
            kib: all.iter().map(|uses| uses.kib).max().unwrap_or(0),
            files: all.iter().map(|uses| uses.files).max().unwrap_or(0),
            bpf: 0,
            threads: all.iter().map(|uses| uses.threads).max().unwrap_or(0),
        };
        let (at, counts) = (self.begin.elapsed().as_secs(), self.counts);
        let (joins, kills) = (load(&counts.joins), counts.kills());
        let pins = fs::read_dir(self.bpffs.pins()).expect("the data path is pinned").count();
        let Uses { kib, files, bpf, threads } = uses;
        println!(
            "| {at} | {joins} | {} | {kills} | {kib} | {files} | {bpf} | {threads} | {pins} | {} \
             | {} |",
            self.calls(),
            largest.kib,
            largest.files
        );
        self.readings.push((uses, largest));
    }

    /// Calls of the job that runs all the while.
    fn calls(&self) -> usize {
        self.workers[0].count(|line| matches!(line, Line::Call { .. }))
    }

    /// From the first of these readings on nothing has grown.
    fn check_flat(&self, from: usize, what: &str) {
        let Some(((daemon, workers), rest)) = self.readings[from..].split_first() else { return };
        for (daemon_later, workers_later) in rest {
            daemon_later.check_flat(*daemon, &format!("the daemon, {what}"));
            workers_later.check_flat(*workers, &format!("a worker, {what}"));
        }
    }

    /// One daemon, for as long as the plan says, and until all that it wants has come.
    fn stay(&mut self, plan: &Plan, daemon: &Process) {
        let mut next = 1;
        loop {
            sleep(Duration::from_millis(200));
            let wanted = load(&self.counts.joins) >= plan.joins
                && self.calls() as u64 >= plan.calls
                && next > READINGS;
            if self.begin.elapsed() >= plan.churn * next / READINGS {
                self.read(daemon);
                next += 1;
            }
            if wanted {
                return;
            }
        }
    }

    /// Daemons that are killed, while all goes on; the last one, and its first reading.
    fn restart(&mut self, plan: &Plan, mut daemon: Process) -> (Process, usize) {
        let first = self.readings.len();
        let every = (plan.restarts / u64::from(READINGS)).max(1);
        for number in 1..=plan.restarts {
            // Counted first: what fails from here on may have been cut off.
            self.counts.turns.fetch_add(1, Ordering::Relaxed);
            daemon.kill().expect("it was running");
            let extra: Vec<&str> = self.lab.extra.iter().map(String::as_str).collect();
            daemon = self.lab.spawn_daemon(&extra);
            let is_ready = |line: &str| line.starts_with("ready ");
            daemon.wait_line("its readiness", LIMIT, is_ready).expect("the next daemon gets ready");
            self.counts.turns.fetch_add(1, Ordering::Relaxed);
            let since = Instant::now();
            for worker in self.workers {
                call_of(worker, since, 0b111);
            }
            if number % every == 0 {
                self.read(&daemon);
            }
        }
        (daemon, first)
    }
}

#[test]
fn memory_and_descriptors_stay_flat() {
    need_root!();
    let plan = Plan::from_env();
    let Some((bpffs, mut lab)) = Lab::start_pinned(network(HOSTS, "ports")) else { return };
    let work = Work { longest: LONGEST, ..Work::default() };
    let start = |rank| lab.steady("steady", rank, STEADY, &RESUME, &work);
    let workers = all_begin((0..STEADY).map(start));
    let daemon = lab.daemon.take().expect("it runs");
    let (counts, lab) = (Counts::default(), &lab);
    let calm = Uses::of(&daemon);
    println!(
        "| second | joins | calls | daemons killed | daemon: KiB | files | of them BPF | threads \
         | pins | largest worker: KiB | files |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let mut soak = Soak {
        lab,
        bpffs: &bpffs,
        counts: &counts,
        workers: &workers,
        begin: Instant::now(),
        readings: Vec::new(),
    };
    let (flaps, (daemon, first)) = thread::scope(|scope| {
        for host in STEADY..HOSTS {
            let counts = &counts;
            scope.spawn(move || come_and_go(lab, host, counts));
        }
        let flaps = scope.spawn(|| flap(lab, &counts, (plan.churn / 200).clamp(AWAY, 10 * AWAY)));
        // What is wrong ends the others, too, and with them the scope.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            soak.stay(&plan, &daemon);
            soak.check_flat(0, "under one daemon");
            soak.restart(&plan, daemon)
        }));
        counts.stop.store(true, Ordering::Relaxed);
        let last = ended.unwrap_or_else(|why| std::panic::resume_unwind(why));
        (flaps.join().expect("the cables are there"), last)
    });
    soak.check_flat(first, "under one daemon after another");

    // What came has gone, in the daemon and in what it has written.
    let gone = Instant::now();
    while lab.stats().jobs.len() > 1 {
        assert!(gone.elapsed() < LIMIT, "what came has not gone: {:?}", lab.stats().jobs);
        sleep(AWAY);
    }
    soak.read(&daemon);
    soak.check_flat(first, "after all that came has gone");
    let last = Uses::of(&daemon);
    let is_calm = last.files <= calm.files + SLACK_FILES && last.bpf <= calm.bpf;
    assert!(is_calm, "what came has left files: {calm:?} before, {last:?} after");
    let said = all_said(&workers);
    check_none_failed(&said);
    let anew = |line: &Line| matches!(line, Line::Call { reforms: 1.., .. });
    assert!(!said.iter().flatten().any(|(_, line)| anew(line)), "its epoch goes on");
    println!(
        "{} s, {} joins, {flaps} flaps, {} restarts, {} calls of the job that ran all the while \
         and {} of jobs that came and went, none failed",
        soak.begin.elapsed().as_secs(),
        load(&counts.joins),
        plan.restarts,
        soak.calls(),
        load(&counts.calls),
    );
}
