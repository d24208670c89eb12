//! Words that peers choose reach the others and the log clipped, in lines that the daemon makes.

use std::thread;
use std::time::{Duration, Instant};

use tracing::Dispatch;
use xdp_agg_common::control::words::SENTENCE_MAX;
use xdp_agg_common::control::{AbortReason, Call, ErrorCode, MAX_FRAME, Reply, Request};

use crate::daemon::{Daemon, PATIENCE, settings};
use crate::worker::{Client, Worker, wish};

/// A line that a daemon could have written, behind what ends the line before it.
const FORGED: &str =
    "x\r\n\u{1b}[2J2026-01-01T00:00:00.000000Z  INFO xdp_agg::server: shutting down: SIGTERM";
/// Longest line: a sentence of characters of four bytes, and what stands around it.
const LINE_MAX: usize = 4 * SENTENCE_MAX + 500;

/// What a daemon logged.
#[derive(Default)]
struct Log(xdp_agg_testbed::Log);

impl Log {
    fn daemon(&self) -> Daemon {
        let subscriber =
            tracing_subscriber::fmt().with_writer(self.0.clone()).with_ansi(false).finish();
        Daemon::logging(settings(), Dispatch::new(subscriber)).expect("free ports are always free")
    }

    /// The lines that have these words, once there are any.
    fn lines(&self, words: &str) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.0.text();
            let found: Vec<_> =
                text.lines().filter(|line| line.contains(words)).map(String::from).collect();
            if !found.is_empty() || Instant::now() > end {
                return found;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_the_daemons(&self) {
        let text = self.0.text();
        for line in text.lines() {
            assert!(line.len() < LINE_MAX, "{} bytes: {}", line.len(), &line[..300]);
            let forged = line.starts_with("2026-01-01") || line.contains('\u{1b}');
            assert!(!forged, "{line}");
        }
    }
}

/// As much of it as a frame has room for.
fn long() -> String {
    FORGED.repeat((MAX_FRAME - 500) / (FORGED.len() + 20))
}

fn aborted(worker: &mut Worker) -> AbortReason {
    match worker.client.hear() {
        Reply::Aborted(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_reason_of_a_member_is_one_line_and_no_longer_than_is_read() {
    let log = Log::default();
    let daemon = log.daemon();
    let mut workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let abort = Request::Abort { reason: long(), cause: None };
    assert_eq!(workers[0].client.ask(&abort), Reply::Done);
    let AbortReason::Member { rank: 0, reason, .. } = aborted(&mut workers[1]) else {
        panic!("another reason")
    };
    assert_eq!(reason.chars().count(), SENTENCE_MAX);
    assert!(reason.starts_with("x   [2J2026") && !reason.contains(char::is_control), "{reason}");
    let told = log.lines("aborted: ");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("rank 0 gave up: x   [2J2026"), "{}", told[0]);
    log.is_the_daemons();
}

#[test]
fn a_mismatch_of_any_length_reaches_the_others_as_an_error() {
    let log = Log::default();
    let daemon = log.daemon();
    let mut workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let call = Call {
        sequence: 3,
        count: 1,
        element: "f32".into(),
        operation: "sum".into(),
        numbers: long(),
    };
    workers[0].client.say(&Request::CallMismatch { call });
    for worker in &mut workers {
        let reason = aborted(worker);
        let AbortReason::CallMismatch { rank: 0, ref call } = reason else { panic!("{reason:?}") };
        assert_eq!((call.sequence, &*call.element), (3, "f32"));
        assert!(reason.to_string().len() < 1000 && !reason.to_string().contains('\n'));
    }
    assert_eq!(log.lines("made another call").len(), 1);
    log.is_the_daemons();
}

#[test]
fn what_is_refused_is_not_quoted_at_length() {
    let log = Log::default();
    let daemon = log.daemon();
    let mut client = Client::connect(daemon.control);
    let body = serde_json::json!({ "type": long() }).to_string();
    client.raw(&(body.len() as u32).to_be_bytes());
    client.raw(body.as_bytes());
    let Reply::Error { code: ErrorCode::Protocol, message } = client.hear() else {
        panic!("it is no message")
    };
    assert!(message.len() < 1000 && !message.contains(char::is_control), "{message}");
    assert_eq!(log.lines("refused: ").len(), 1);
    log.is_the_daemons();
}

/// Members that come and go as fast as they may fill no disk, and what is left out is told.
#[test]
fn a_flood_of_members_is_summed_up() {
    let log = Log::default();
    let daemon = log.daemon();
    let start = Instant::now();
    for flood in 0..4 {
        let mut client = Client::connect(daemon.control);
        for _ in 0..150 {
            client.say(&Request::Join(wish(&format!("flood {flood}"), 0, 1)));
            assert!(matches!(client.hear(), Reply::Admitted(_)));
            client.say(&Request::Leave);
            // It left before its path was open: told as the job's end, or as done.
            while client.hear() != Reply::Done {}
        }
    }
    assert!(!log.lines("more lines about jobs and their members").is_empty());
    let about = |line: &&str| line.contains("job=\"flood");
    let told = log.0.text().lines().filter(about).count();
    let most = 600 + 10 * (start.elapsed().as_secs() as usize + 2);
    assert!(told <= most && told >= 500, "{told} lines of 2400, and {most} at most");
}
