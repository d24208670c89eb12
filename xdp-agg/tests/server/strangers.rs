//! Peers that do not keep to the rules: none harms the daemon or a job.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use xdp_agg_common::control::{
    CONTROL_VERSION, ErrorCode, Reply, Request, read_message, write_message,
};

use crate::daemon::Daemon;
use crate::worker::{Client, Worker, connect_from, wish};

fn connect(control: SocketAddr) -> TcpStream {
    connect_from(Ipv4Addr::LOCALHOST, control)
}

/// The daemon's last words to a stranger, and that it hung up.
pub(crate) fn last_words(stream: &mut impl Read) -> (ErrorCode, String) {
    let reply = read_message(stream).expect("the daemon says why");
    let Reply::Error { code, message } = reply else {
        panic!("{reply:?}");
    };
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the daemon hangs up");
    assert!(rest.is_empty());
    (code, message)
}

/// The job still sums.
pub(crate) fn still_sums(workers: &[Worker], block: u64) {
    for worker in workers {
        worker.contribute(block, &[i32::from(worker.rank) + 1]);
    }
    for worker in workers {
        let (got, values) = worker.result();
        assert_eq!((got, values[0]), (block, 3));
    }
}

#[test]
fn foreign_bytes_are_answered_and_cut_off() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let giant = (u32::MAX - 1).to_be_bytes();
    let large = 100_000_u32.to_be_bytes();
    let nonsense = *b"\0\0\0\x04abcd";
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nHost: aggregator\r\n\r\n", "does not speak"),
        (&giant, "bytes"),
        (&large, "100000 bytes"),
        (&nonsense, "one version"),
    ];
    for (block, (bytes, words)) in (0..).zip(cases) {
        let mut stream = connect(daemon.control);
        stream.write_all(bytes).expect("the daemon reads");
        let (code, message) = last_words(&mut stream);
        assert_eq!(code, ErrorCode::Protocol);
        assert!(message.contains(words), "{message}");
        still_sums(&workers, block);
    }
}

#[test]
fn another_version_is_told_both_versions() {
    let daemon = Daemon::start();
    let mut stream = connect(daemon.control);
    let hello =
        Request::Hello { version: CONTROL_VERSION + 1, agent: "newer 9.9".into(), token: None };
    write_message(&mut stream, &hello).expect("the daemon reads");
    let (code, message) = last_words(&mut stream);
    assert_eq!(code, ErrorCode::Version);
    let theirs = format!("version {}", CONTROL_VERSION + 1);
    let ours = format!("version {CONTROL_VERSION}");
    for words in ["newer 9.9", &theirs, &ours, "same release"] {
        assert!(message.contains(words), "{words:?} is missing in {message:?}");
    }
}

#[test]
fn half_a_frame_and_silence_ends_after_a_while() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let mut client = Client::connect(daemon.control);
    client.raw(&[0, 0, 0, 9, b'{']);
    let mut silent = connect(daemon.control);
    still_sums(&workers, 0);
    let start = Instant::now();
    silent.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout is possible");
    let (code, message) = last_words(&mut silent);
    assert_eq!(code, ErrorCode::Limit);
    assert!(message.contains("no complete message in 5 s"), "{message}");
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
    // A client that has said Hello gets more time for its next message.
    client.patience(Duration::from_secs(20));
    assert!(matches!(client.hear(), Reply::Error { code: ErrorCode::Limit, .. }));
    assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
    // Members may be silent as long as they like.
    still_sums(&workers, 1);
}
