//! Control frames: what a daemon reads from any connection, and a worker from its daemon.
//!
//! An input is the bytes of a connection. Where its first byte is `=`, the rest is the body of one
//! frame, whose length is put in front here: otherwise no change of length would get any further.

use std::fmt::Debug;

use serde_json::Value;
use xdp_agg_common::control::{
    AbortReason, FrameError, MAX_FRAME, Reply, Request, decode, encode, read_message,
};

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "control",
    about: "control frames: decode, encode, decode again; requests and replies",
    run,
    text: true,
    tokens: include_str!("../../dictionaries/control.txt"),
    features: &FEATURES,
};

const FEATURES: [&str; 10] = [
    "a request",
    "a reply",
    "several messages",
    "a part of a frame",
    "refused: too long",
    "refused: no json",
    "refused: other json",
    "join",
    "progress",
    "a plan",
];

fn run(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let bytes = match input.split_first() {
        Some((b'=', body)) => {
            let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
            bytes.extend_from_slice(body);
            bytes
        }
        _ => input.to_vec(),
    };
    for request in messages::<Request>(&bytes, &mut outcome) {
        outcome.note(0);
        outcome.accepted = true;
        match request {
            Request::Join(_) => outcome.note(7),
            Request::Progress(_) => outcome.note(8),
            _ => {}
        }
        // What goes into a log must not break it.
        assert!(!format!("{request:?}").is_empty());
    }
    for reply in messages::<Reply>(&bytes, &mut outcome) {
        outcome.note(1);
        outcome.accepted = true;
        match reply {
            Reply::Admitted(admitted) if admitted.plan.is_some() => outcome.note(9),
            Reply::Aborted(reason) => drop(AbortReason::to_string(&reason)),
            _ => {}
        }
    }
    outcome
}

/// All messages of a connection's bytes; each survives being written and read again.
fn messages<M>(bytes: &[u8], outcome: &mut Outcome) -> Vec<M>
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug,
{
    let mut buffer = bytes.to_vec();
    let mut all = Vec::new();
    loop {
        let before = buffer.len();
        match decode::<M>(&mut buffer) {
            Ok(Some(message)) => {
                assert!(buffer.len() + 4 < before, "a frame of no bytes");
                all.push(message);
            }
            Ok(None) => {
                assert!(buffer.len() < 4 + MAX_FRAME, "a whole frame, and no message");
                if !buffer.is_empty() {
                    outcome.note(3);
                }
                break;
            }
            Err(FrameError::TooLong(len)) => {
                assert!(len > MAX_FRAME);
                outcome.note(4);
                break;
            }
            Err(FrameError::Json(_)) => {
                let body = buffer.get(4..).unwrap_or_default();
                let is_json = serde_json::from_slice::<Value>(body).is_ok();
                outcome.note(if is_json { 6 } else { 5 });
                break;
            }
            Err(FrameError::Io(error)) => panic!("no stream, and its error: {error}"),
        }
    }
    for message in &all {
        let mut frame = encode(message).expect("what was short enough is short enough");
        let again: Option<M> = decode(&mut frame).expect("what was written can be read");
        assert_eq!(again.as_ref(), Some(message));
        assert!(frame.is_empty());
    }
    // The blocking side reads the same.
    let mut stream = bytes;
    for message in &all {
        let read: M = read_message(&mut stream).expect("it can be read");
        assert_eq!(read, *message);
    }
    if all.len() > 1 {
        outcome.note(2);
    }
    all
}
