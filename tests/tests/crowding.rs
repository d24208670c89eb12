//! Clients that join and leave as fast as they can keep the daemon's engine busy, and nobody else
//! waiting: each address has its turn, and what needs the engine is done together.

mod support;

use std::io::{ErrorKind, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use support::{LIMIT, Lab, check_sums, need_root, network};
use xdp_agg_client::Builder;
use xdp_agg_common::control::{Join, Reply, Request, encode, read_message, write_message};
use xdp_agg_testbed::steady::{Line, Work};

/// Where a hang begins, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(4 * LIMIT.as_secs());
/// Hosts that crowd.
const CROWD: u16 = 6;
/// Connections of each of them.
const CONNECTIONS: u16 = 2;
/// Slots of each of their jobs, and of others by default.
const SLOTS: u32 = 1024;
/// Round trips that are looked at together: the crowd may hear of its jobs late, and many at once.
const TRIPS: u64 = 10;
/// Most jobs of the crowd that begin while somebody else waits for these. An event of each host
/// goes before one in a round, and a round may be under way: 2 to 7 jobs. In one queue for all
/// there are 100 and more.
const JOBS: u64 = 40 * TRIPS;
/// The same for a join, which is several questions and answers, one after the other.
const JOIN: u64 = 300;
/// The same for the word of a loss.
const LOSS: u64 = 80;

/// A job of one worker.
fn join(name: String) -> Request {
    Request::Join(Join {
        job: name,
        world_size: 1,
        data_port: 4000,
        max_chunks: 22,
        slots: Some(SLOTS),
        ..Join::default()
    })
}

/// Joins and leaves until `over`, and counts the jobs. Where it asks too often it is cut off, and
/// begins anew.
fn crowd(lab: &Lab, host: u16, name: &str, over: &AtomicBool, jobs: &AtomicU64) {
    let cycle = [join(name.to_owned()), Request::Leave];
    let cycle: Vec<u8> = cycle.iter().flat_map(|one| encode(one).expect("it fits")).collect();
    while !over.load(Ordering::Relaxed) {
        let mut stream = lab.control_from(lab.topology.worker(host.into()));
        // The daemon takes no more than it deals with.
        stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a socket option");
        let mut answers = stream.try_clone().expect("a descriptor");
        thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok(reply) = read_message::<Reply>(&mut answers) {
                    let admitted = matches!(reply, Reply::Admitted(_));
                    jobs.fetch_add(admitted.into(), Ordering::Relaxed);
                }
                // It was cut off: nothing more is to be written.
                drop(answers.shutdown(Shutdown::Both));
            });
            let mut at = 0;
            while !over.load(Ordering::Relaxed) {
                match stream.write(&cycle[at..]) {
                    Ok(len) => at = (at + len) % cycle.len(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            drop(stream.shutdown(Shutdown::Both));
        });
    }
}

/// Ends the crowd, also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A round trip of `jobs`.
fn round_trip(stream: &mut TcpStream) {
    write_message(stream, &Request::Jobs).expect("sent");
    let reply: Reply = read_message(stream).expect("an answer");
    assert!(matches!(reply, Reply::Jobs(_)), "{reply:?}");
}

#[test]
fn who_joins_and_leaves_without_end_holds_up_nobody_else() {
    need_root!();
    let slots = (SLOTS * (u32::from(CROWD * CONNECTIONS) + 4)).to_string();
    let lab = Lab::start_with(network(CROWD + 2, "ports"), "xdp", &["--slots", &slots]);
    let work = Work { longest: 1000, ..Work::default() };
    let mut running = lab.steady_job("running", 2, &[], &work);
    let mut stream = lab.control_from(lab.topology.worker(0));
    let (over, jobs) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = || jobs.load(Ordering::Relaxed);
    // Jobs are counted, and not seconds: what a round takes is the machine's.
    let within = |what: &str, most: u64, doing: &mut dyn FnMut()| {
        let (start, before) = (Instant::now(), begun());
        doing();
        let (took, meanwhile) = (start.elapsed(), begun() - before);
        eprintln!("{what}: {took:?}, {meanwhile} jobs of the crowd");
        assert!(meanwhile < most, "{what}: {took:?}, {meanwhile} jobs of the crowd went before it");
    };
    thread::scope(|scope| {
        for host in 2..CROWD + 2 {
            for number in 0..CONNECTIONS {
                let (lab, over, jobs) = (&lab, &over, &jobs);
                scope.spawn(move || crowd(lab, host, &format!("{host}-{number}"), over, jobs));
            }
        }
        let _end = Over(&over);
        while begun() < 12 {
            sleep(Duration::from_millis(10));
        }
        within("round trips", JOBS, &mut || (0..TRIPS).for_each(|_| round_trip(&mut stream)));
        within("a join", JOIN, &mut || {
            let patient = |settings: Builder| settings.deadline(PATIENCE).join_deadline(PATIENCE);
            check_sums(&lab.connect("beside", 2, patient), 1000);
        });
        let killed = running.pop().expect("two").process;
        let mut killed = Some(killed);
        within("a loss", LOSS, &mut || {
            killed.take().expect("once").kill().expect("it runs");
            let failed = |_: Instant, line: &Line| matches!(line, Line::Failed { .. });
            running[0].wait("the other's end", PATIENCE, failed).expect("it is told");
        });
    });
}
