//! Branches of a tree that come to a step and no further.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use xdp_agg::config::Partial;
use xdp_agg_common::control::{
    AbortReason, Branch, BranchReply, BranchRequest, BranchSetup, CONTROL_VERSION, Join, Reply,
    Request, Tree, read_message, write_message,
};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};

use crate::daemon::{Daemon, PATIENCE, settings};
use crate::worker::{CHUNKS, Joining, wish};

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
                let (job_id, max_chunks, last_epoch) = (0, CHUNKS, 0);
                let serving = BranchReply::Serving { job_id, data: own, max_chunks, last_epoch };
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
    let branch = Branch { daemon: fake.control, parent: None, ranks: vec![0] };
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
