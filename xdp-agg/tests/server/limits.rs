//! Floods and dawdlers: each is told, counted and ended, and nobody else notices.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg::process::raise_file_limit;
use xdp_agg_common::control::{
    ErrorCode, Reply, Request, Token, encode, read_message, write_message,
};

use crate::daemon::{Daemon, PATIENCE};
use crate::strangers::{last_words, still_sums};
use crate::worker::{Client, Door, Worker, connect_from, wish};

/// Where the attacks come from.
const FLOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn door(from: Ipv4Addr, daemon: &Daemon) -> Door {
    Door { from, ..daemon.control.into() }
}

/// Runs `attack` in threads of its own, again and again, while `work` is done; how often it ran.
fn under_attack(threads: usize, attack: impl Fn() + Sync, work: impl FnOnce()) -> u64 {
    let (end, count) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    attack();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Also when the work panics, the attack must end.
        let stop = Stop(&end);
        work();
        drop(stop);
    });
    count.into_inner()
}

/// Ends an attack when it goes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn idle_connections_of_one_address_leave_room_for_its_workers() {
    let daemon = Daemon::start();
    let before = Worker::all(daemon.control, &wish("before", 0, 2));
    let idle = || connect_from(Ipv4Addr::LOCALHOST, daemon.control);
    let mut idle: Vec<_> = (0..200).map(|_| idle()).collect();
    let after = Worker::all(daemon.control, &wish("after", 0, 2));
    still_sums(&before, 0);
    still_sums(&after, 0);
    // The oldest had to make room.
    let (code, message) = last_words(&mut idle[0]);
    assert_eq!(code, ErrorCode::Limit);
    assert!(message.contains("too many connections"), "{message}");
    let counters = Client::connect(daemon.control).stats().control;
    assert!(counters.crowded >= 72 && counters.rate == 0, "{counters:?}");
}

/// During a flood a job goes on, and others begin and end, each in time.
fn others_are_served(control: SocketAddr, before: &[Worker]) {
    // The flood has to have begun.
    thread::sleep(Duration::from_millis(500));
    for block in 0..5 {
        let start = Instant::now();
        let after = Worker::all(control, &wish("after", 0, 2));
        still_sums(&after, 0);
        still_sums(before, block);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[test]
fn a_flood_of_connections_from_one_address_keeps_nobody_else_out() {
    let limit = raise_file_limit().expect("a limit can be read");
    assert!(limit >= 2500, "{limit} open files are too few for this test");
    let daemon = Daemon::start();
    let control = daemon.control;
    let before = Worker::all(control, &wish("before", 0, 2));
    // As fast as they come, and held open as long as the daemon lets them.
    let held = std::sync::Mutex::new(std::collections::VecDeque::new());
    let attack = || {
        let stream = connect_from(FLOOD, control);
        let mut held = held.lock().expect("no thread panics");
        held.push_back(stream);
        if held.len() > 1000 {
            held.pop_front();
        }
    };
    let attacks = under_attack(2, attack, || others_are_served(control, &before));
    let counters = Client::connect(control).stats().control;
    assert!(attacks > 300, "{attacks} connections are no flood");
    assert!(counters.rate > 0 && counters.crowded > 0, "{counters:?}");
    // Refused ones were told why.
    let told = held.into_inner().expect("no thread panics").into_iter().any(|mut stream| {
        stream.set_nonblocking(true).expect("it is possible");
        matches!(read_message(&mut stream), Ok(Reply::Error { code: ErrorCode::Limit, message })
            if message.contains("from your address in a short time"))
    });
    assert!(told);
}

#[test]
fn a_flood_of_requests_is_ended_and_slows_nobody_else_down() {
    let daemon = Daemon::start();
    let control = daemon.control;
    let before = Worker::all(control, &wish("before", 0, 2));
    let flooding = door(FLOOD, &daemon);
    let attack = || {
        let mut stream = connect_from(FLOOD, control);
        // What is refused may be a write or the answer to it.
        drop(write_message(&mut stream, &flooding.hello()));
        while write_message(&mut stream, &Request::Stats).is_ok() && !hung_up(&mut stream) {}
    };
    under_attack(2, attack, || others_are_served(control, &before));
    let counters = Client::connect(control).stats().control;
    assert!(counters.requests + counters.deaf > 0, "{counters:?}");
    // One at a time, with its answer read: told why.
    let mut client = Client::connect(door(Ipv4Addr::new(127, 0, 0, 3), &daemon));
    let asking = (0..2000).map(|_| client.try_ask(&Request::Jobs).expect("the daemon answers"));
    match asking.into_iter().find(|reply| !matches!(reply, Reply::Jobs(_))) {
        Some(Reply::Error { code: ErrorCode::Limit, message }) => {
            assert!(message.contains("too many requests"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert!(client.is_cut_off());
}

/// Whether the other side has ended the connection; does not wait.
fn hung_up(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("it is possible");
    let mut rest = [0; 1 << 16];
    let end = matches!(stream.read(&mut rest), Ok(0));
    stream.set_nonblocking(false).expect("it is possible");
    end
}

#[test]
fn a_member_keeps_its_place_however_many_strangers_come_from_its_address() {
    let daemon = Daemon::start();
    let control = daemon.control;
    let workers = Worker::all(door(FLOOD, &daemon), &wish("train", 0, 2));
    let attack = || {
        let mut stream = connect_from(FLOOD, control);
        drop(stream.write_all(b"nonsense"));
        drop(stream.read_to_end(&mut Vec::new()));
    };
    let work = || {
        for block in 0..20 {
            still_sums(&workers, block);
            thread::sleep(Duration::from_millis(20));
        }
    };
    under_attack(2, attack, work);
    still_sums(&workers, 20);
}

#[test]
fn a_hello_byte_by_byte_is_not_waited_for() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let start = Instant::now();
    let mut stream = connect_from(FLOOD, daemon.control);
    let token = Some(Token("x".repeat(40)));
    let hello = encode(&Door { token, ..door(FLOOD, &daemon) }.hello()).expect("it is short");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout is possible");
    // A byte every 100 ms would take longer than Hello may, though no pause is long.
    assert!(hello.len() > 70, "{} bytes", hello.len());
    let mut answer = Vec::new();
    for byte in &hello {
        if stream.write_all(std::slice::from_ref(byte)).is_err() {
            break;
        }
        let mut part = [0; 4096];
        if let Ok(len @ 1..) = stream.read(&mut part) {
            answer.extend_from_slice(&part[..len]);
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the daemon still waits");
    }
    match read_message(&mut &answer[..]).expect("the daemon says why") {
        Reply::Error { code: ErrorCode::Limit, message } => {
            assert!(message.contains("no complete message in 5 s"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
    still_sums(&workers, 0);
    assert_eq!(Client::connect(daemon.control).stats().control.slow, 1);
}

#[test]
fn a_first_frame_is_short_and_later_ones_may_be_long() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let mut stream = connect_from(FLOOD, daemon.control);
    stream.write_all(&5000_u32.to_be_bytes()).expect("the daemon reads");
    let (code, message) = last_words(&mut stream);
    assert_eq!(code, ErrorCode::Protocol);
    assert!(message.contains("5000 bytes (Hello has at most 4096)"), "{message}");
    // Before the answer to Hello nothing longer is taken in, behind it much more is.
    let mut client = Client::connect(door(FLOOD, &daemon));
    let long = Request::Delete { job: "x".repeat(900_000) };
    match client.ask(&long) {
        // The answer is not as long as the question.
        Reply::Error { code: ErrorCode::NoJob, message } => assert!(message.len() < 200),
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.ask(&Request::Jobs), Reply::Jobs(_)));
    client.raw(&(1_u32 << 21).to_be_bytes());
    assert!(matches!(client.hear(), Reply::Error { code: ErrorCode::Protocol, .. }));
    still_sums(&workers, 0);
}

#[test]
fn long_frames_that_never_end_hold_up_nobody_else() {
    let daemon = Daemon::start();
    let control: SocketAddr = daemon.control;
    // More than are taken in at a time.
    let dawdlers: Vec<_> = (0..40)
        .map(|_| {
            let mut client = Client::connect(door(FLOOD, &daemon));
            client.raw(&1_000_000_u32.to_be_bytes());
            client.raw(&[b' '; 5000]);
            client
        })
        .collect();
    let workers = Worker::all(control, &wish("train", 0, 2));
    still_sums(&workers, 0);
    let mut client = Client::connect(control);
    client.patience(Duration::from_secs(3));
    let long = Request::Delete { job: "x".repeat(900_000) };
    assert!(matches!(client.ask(&long), Reply::Error { code: ErrorCode::NoJob, .. }));
    drop(dawdlers);
}

#[test]
fn who_asks_and_never_listens_is_cut_off() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let mut client = Client::connect(door(FLOOD, &daemon));
    client.patience(Duration::from_secs(1));
    let end = Instant::now() + PATIENCE;
    let cut_off = std::iter::repeat_with(|| write_message(&mut client.stream, &Request::Stats))
        .take_while(|_| Instant::now() < end)
        .any(|sent| sent.is_err());
    assert!(cut_off, "it could ask for {PATIENCE:?} without reading an answer");
    still_sums(&workers, 0);
    let counters = Client::connect(daemon.control).stats().control;
    assert!(counters.deaf + counters.requests > 0, "{counters:?}");
}
