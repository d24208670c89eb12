//! Jobs that went over to a ring because their daemon died come back to it when it is there again.
//! Every sum of every worker is checked.

mod support;

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use support::watched::{RING, all_said, call_over, check_none_failed, work};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_common::control::{CONTROL_VERSION, ErrorCode, Reply, Request, encode, read_message};
use xdp_agg_testbed::steady::Steady;

/// Workers of the job.
const WORKERS: u16 = 3;
/// In what time they are back: the longest pause between two attempts, and some.
const BACK: Duration = Duration::from_secs(12);

/// All have a call over the ring.
fn there(workers: &[Steady], since: Instant) {
    workers.iter().for_each(|worker| _ = call_over(worker, since, "ring"));
}

/// And in time one over the aggregator.
fn back(workers: &[Steady], since: Instant) {
    for worker in workers {
        let after = call_over(worker, since, "aggregator") - since;
        assert!(after < BACK, "{after:?}");
    }
}

/// The daemon is killed, the job goes over to a ring, the daemon is started again, the job comes
/// back.
fn there_and_back(lab: &mut Lab, job: &str, times: u32) {
    let workers = lab.steady_job(job, WORKERS, &RING, &work());
    let mut epoch = lab.job_stats(job).info.epoch;
    for _ in 0..times {
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        there(&workers, Instant::now());
        lab.start_daemon();
        back(&workers, Instant::now());
        let info = lab.job_stats(job).info;
        assert_eq!((&*info.phase, &info.joined[..]), ("running", &[0, 1, 2][..]));
        assert!(info.epoch > epoch, "epoch {} after {epoch}", info.epoch);
        epoch = info.epoch;
    }
    check_none_failed(&all_said(&workers));
}

/// A daemon without memory takes the job up, and the next one again.
#[test]
fn a_job_on_a_ring_comes_back() {
    need_root!();
    for engine in support::ENGINES {
        let mut lab = Lab::start(network(WORKERS, "ports"), engine);
        there_and_back(&mut lab, "back", 2);
    }
}

/// A daemon that has kept its data path has the epoch from before the ring, which no worker is in
/// any more: it begins another one.
#[test]
fn a_kept_epoch_is_not_gone_on_with() {
    need_root!();
    let Some((_bpffs, mut lab)) = Lab::start_pinned(network(WORKERS, "ports")) else { return };
    there_and_back(&mut lab, "kept", 2);
}

/// A daemon that is started again with another token, or of another release, counts as none: the
/// job goes on over the ring, and comes back to a daemon that takes it.
#[test]
fn a_daemon_that_takes_nobody_counts_as_none() {
    need_root!();
    let file = |token: &str| {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(token.as_bytes()).expect("it is written");
        file
    };
    let files = [file("first"), file("second")];
    let options = |which: usize| {
        let path = files[which].path().to_str().expect("text").to_owned();
        vec!["--token-file".to_owned(), path]
    };
    let mut lab =
        Lab { topology: network(WORKERS, "ports"), daemon: None, engine: "xdp", extra: options(0) };
    lab.start_daemon();
    let settings = [&RING[..], &[("XDP_AGG_TOKEN", "first")]].concat();
    let workers = lab.steady_job("token", WORKERS, &settings, &work());
    let all_over = |path: &str, since: Instant| {
        for worker in &workers {
            call_over(worker, since, path);
        }
    };
    // As an operator restarts it, and as a crash does.
    for kill in [false, true] {
        lab.extra = options(1);
        let daemon = lab.daemon.take().expect("it runs");
        let ended = if kill { daemon.kill() } else { daemon.terminate() };
        ended.expect("it was running");
        lab.start_daemon();
        all_over("ring", Instant::now());
        lab.extra = options(0);
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        lab.start_daemon();
        all_over("aggregator", Instant::now());
    }
    for fake in [Fake::Older, Fake::Newer, Fake::Unlike] {
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        let answering = fake.start(&lab);
        all_over("ring", Instant::now());
        drop(answering);
        lab.start_daemon();
        all_over("aggregator", Instant::now());
    }
    check_none_failed(&all_said(&workers));
}

/// What answers where the daemon was.
#[derive(Clone, Copy)]
enum Fake {
    /// It refuses this release's version, in words.
    Older,
    /// It names its own version.
    Newer,
    /// It speaks another protocol.
    Unlike,
}

impl Fake {
    /// It answers until what is returned is dropped.
    fn start(self, lab: &Lab) -> Answering {
        let control = lab.control();
        let listen = move || TcpListener::bind(control);
        let listener = lab.topology.aggregator().run(listen).expect("a thread").expect("free");
        listener.set_nonblocking(true).expect("a socket option");
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let answer = move || {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(self.answer(stream)),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        };
        Answering { over, thread: Some(thread::spawn(answer)) }
    }

    fn answer(self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let _ = read_message::<Request>(&mut stream);
        let version = CONTROL_VERSION + 1;
        let said = match self {
            Self::Older => {
                let message = "use the same release on all hosts".into();
                encode(&Reply::Error { code: ErrorCode::Version, message })
            }
            Self::Newer => {
                let (agent, engine) = ("another".into(), String::new());
                encode(&Reply::Welcome { version, agent, engine })
            }
            Self::Unlike => Ok(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        };
        stream.write_all(&said.expect("it is short"))
    }
}

struct Answering {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A daemon that is cut off until it has lost all members, and never dies.
#[test]
fn a_daemon_that_was_cut_off_is_found_again() {
    need_root!();
    let lab = Lab::start(network(WORKERS, "multicast"), "xdp");
    let settings = [&RING[..], &[("XDP_AGG_DEAD_AFTER", "1")]].concat();
    let workers = lab.steady_job("cut", WORKERS, &settings, &work());
    let link = lab.topology.aggregator_link().expect("it has one");
    let since = Instant::now();
    lab.topology.set_link_up(link, false).expect("the cable is cut");
    there(&workers, since);
    let since = Instant::now();
    lab.topology.set_link_up(link, true).expect("it is mended");
    back(&workers, since);
    check_none_failed(&all_said(&workers));
}
