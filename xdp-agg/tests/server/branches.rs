//! Branches of a tree that come to a step and no further, or cannot even be connected to.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use xdp_agg::config::Partial;
use xdp_agg_common::control::{
    AbortReason, Branch, BranchReply, BranchRequest, BranchSetup, CONTROL_VERSION, Join,
    MAX_BRANCHES, Reply, Request, Tree, read_message, write_message,
};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};

use crate::daemon::{Daemon, PATIENCE, settings};
use crate::worker::{CHUNKS, Door, Joining, wish};

/// The last thing that a branch says. Then it keeps its connections, and silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Last {
    Nothing,
    Serving,
    Prepared,
    Linked,
}

/// A branch of one job, in a thread that ends when the root hangs up.
struct Fake {
    control: SocketAddrV4,
    thread: JoinHandle<()>,
}

impl Fake {
    fn start(last: Last) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let SocketAddr::V4(control) = listener.local_addr().expect("it is bound") else {
            panic!("it is IPv4");
        };
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("the root connects");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout is possible");
            serve(stream, last);
        });
        Self { control, thread }
    }
}

fn serve(mut stream: TcpStream, last: Last) {
    let data = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    data.set_read_timeout(Some(PATIENCE)).expect("a timeout is possible");
    let Ok(SocketAddr::V4(own)) = data.local_addr() else { panic!("it is IPv4") };
    while let Ok(request) = read_message(&mut stream) {
        let replies = match request {
            Request::Hello { .. } => {
                let (agent, engine) = ("a fake".into(), "none".into());
                vec![(Last::Serving, Reply::Welcome { version: CONTROL_VERSION, agent, engine })]
            }
            Request::Branch(BranchRequest::Serve { .. }) => {
                let serving = BranchReply::Serving {
                    job_id: 0,
                    data: own,
                    max_chunks: CHUNKS,
                    last_epoch: 0,
                    daemon: own.port().into(),
                    single_packets: false,
                };
                vec![(Last::Serving, Reply::Branch(serving))]
            }
            Request::Branch(BranchRequest::Prepare(setup)) => {
                probe(&data, &setup);
                let epoch = setup.epoch;
                let prepared = Reply::Branch(BranchReply::Prepared { epoch, local: None });
                let linked = Reply::Branch(BranchReply::Linked { epoch });
                vec![(Last::Prepared, prepared), (Last::Linked, linked)]
            }
            _ => vec![],
        };
        for (_, reply) in replies.into_iter().filter(|(said, _)| *said <= last) {
            write_message(&mut stream, &reply).expect("the root reads");
        }
    }
}

/// The root starts nothing before it has heard a probe of each member.
fn probe(data: &UdpSocket, setup: &BranchSetup) {
    let (job, rank) = (setup.uplink.job_id, setup.uplink.rank);
    let (kind, reduction) = (Kind::Probe, Reduction::Add);
    let (cookie, epoch) = (setup.cookie, setup.epoch);
    let header = Header { kind, flags: 0, reduction, job, cookie, epoch, rank, block: 0, tag: 0 };
    let mut packet = vec![0; HEADER_LEN + usize::from(setup.chunks) * CHUNK_LEN];
    header.emit(packet.first_chunk_mut().expect("it is that long"));
    data.send_to(&packet, setup.uplink.data).expect("loopback takes it");
    data.recv(&mut packet).expect("a probe is answered");
}

/// Each stuck at another step, all at a time, each with the only worker of a job of its own.
#[test]
fn a_branch_that_falls_silent_is_given_up_step_by_step() {
    let patient = Partial { probe_timeout: Some(2), join_timeout: Some(60), ..settings() };
    let daemon = Daemon::with(patient).expect("free ports are always free");
    let steps = [
        (Last::Nothing, "did not agree to serve the job within 2 s"),
        (Last::Serving, "did not prepare the job's epoch within 2 s"),
        (Last::Prepared, "found no way to its parent within 2 s"),
        (Last::Linked, "did not start the job's epoch within 2 s"),
    ];
    let control = daemon.control;
    thread::scope(|scope| {
        for (last, words) in steps {
            scope.spawn(move || is_given_up(control, last, words));
        }
    });
}

fn is_given_up(control: SocketAddr, last: Last, words: &str) {
    let begin = Instant::now();
    let fake = Fake::start(last);
    let branch = Branch::new(fake.control, None, vec![0]);
    let tree = Tree { branches: vec![branch] };
    let join = Join { tree, ..wish(&format!("{last:?}"), 0, 1) };
    let mut worker = Joining::new(control, join);
    let reason = loop {
        match worker.client.hear() {
            Reply::Admitted(_) => worker.client.say(&Request::Ready),
            Reply::Aborted(reason) => break reason,
            other => panic!("{other:?}"),
        }
    };
    let text = reason.to_string();
    let AbortReason::Branch { daemon: named, .. } = reason else { panic!("{text}") };
    assert_eq!(named, fake.control, "{text}");
    assert!(text.contains(words) && text.contains("--probe-timeout"), "{text}");
    fake.thread.join().expect("the root has hung up");
    // Far less than the workers' deadline.
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

/// Daemons at a port that drops every SYN.
struct Unreachable {
    listener: socket2::Socket,
    port: u16,
    /// Fills the listener's queue.
    _waiting: TcpStream,
}

impl Unreachable {
    fn new() -> Self {
        use socket2::{Domain, Socket, Type};
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        listener.bind(&any.into()).and_then(|()| listener.listen(0)).expect("a port is free");
        let own = listener.local_addr().expect("it is bound");
        let port = own.as_socket_ipv4().expect("it is IPv4").port();
        let waiting = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("one has room");
        Self { listener, port, _waiting: waiting }
    }

    /// A job of one worker, behind as many of them as a tree can have.
    fn join(&self, job: &str) -> Join {
        let branch = |index: u16| Branch {
            daemon: SocketAddrV4::new(Ipv4Addr::new(127, 1, 0, index as u8), self.port),
            parent: index.checked_sub(1),
            ranks: if index + 1 == LONGEST { vec![0] } else { vec![] },
            spares: Vec::new(),
        };
        let tree = Tree { branches: (0..LONGEST).map(branch).collect() };
        Join { tree, ..wish(job, 0, 1) }
    }

    /// Attempts to connect that are under way.
    fn attempts(&self) -> usize {
        let sockets = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux tells them");
        let to = format!(":{:04X}", self.port);
        let sockets = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Remote address, and SYN_SENT.
        sockets.filter(|words| words[2].ends_with(&to) && words[3] == "02").count()
    }

    fn until_there_are(&self, attempts: usize, time: Duration) {
        let begin = Instant::now();
        while self.attempts() != attempts {
            assert!(begin.elapsed() < time, "{} attempts, not {attempts}", self.attempts());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Branches of the longest chain.
const LONGEST: u16 = MAX_BRANCHES as u16;

fn patient() -> Daemon {
    let patient = Partial { probe_timeout: Some(60), slots: Some(256), ..settings() };
    Daemon::with(patient).expect("free ports are always free")
}

/// From this address of loopback.
fn door(last: u8, daemon: &Daemon) -> Door {
    Door { from: Ipv4Addr::new(127, 0, 0, last), ..daemon.control.into() }
}

/// Why a job ends that needs more than there is.
fn refused(mut worker: Joining) -> String {
    match worker.client.hear() {
        Reply::Aborted(reason @ AbortReason::Branch { .. }) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn attempts_to_reach_a_branch_end_with_their_job() {
    let (daemon, nowhere) = (patient(), Unreachable::new());
    for round in 0..3 {
        let worker = Joining::new(daemon.control, nowhere.join(&format!("{round}")));
        nowhere.until_there_are(LONGEST.into(), PATIENCE);
        drop(worker);
        // Left alone they would go on for eleven seconds.
        nowhere.until_there_are(0, Duration::from_secs(3));
    }
    drop(nowhere.listener);
}

#[test]
fn connections_to_branches_are_bounded_for_each_address_and_in_all() {
    let (daemon, nowhere) = (patient(), Unreachable::new());
    let join = |from: u8, number: usize| {
        let job = nowhere.join(&format!("{from}-{number}"));
        Joining::new(door(from, &daemon), job)
    };
    let first: Vec<_> = (0..8).map(|number| join(2, number)).collect();
    let words = refused(join(2, 8));
    assert!(words.contains("from one address") && words.contains("512"), "{words}");
    let second: Vec<_> = (0..8).map(|number| join(3, number)).collect();
    let words = refused(join(4, 0));
    assert!(words.contains("all jobs") && words.contains("1024"), "{words}");
    drop((first, second));
    nowhere.until_there_are(0, Duration::from_secs(3));
    let _again = join(4, 1);
    nowhere.until_there_are(LONGEST.into(), PATIENCE);
}

#[test]
fn nobody_has_branches_connected_without_end() {
    let (daemon, nowhere) = (patient(), Unreachable::new());
    let mut asked = 0;
    let words = loop {
        let mut worker = Joining::new(door(2, &daemon), nowhere.join(&format!("{asked}")));
        asked += 1;
        // Leaves at once, or is told.
        worker.client.patience(Duration::from_millis(50));
        match worker.client.try_hear() {
            Some(Reply::Aborted(reason)) => break reason.to_string(),
            _ if asked < 40 => {}
            other => panic!("{asked} jobs, then {other:?}"),
        }
    };
    assert!(words.contains("slow down"), "{words}");
    assert!(asked > 16, "{asked}");
    let _other = Joining::new(door(3, &daemon), nowhere.join("of another address"));
    nowhere.until_there_are(LONGEST.into(), PATIENCE);
}
