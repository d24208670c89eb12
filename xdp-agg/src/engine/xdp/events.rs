//! The thread that logs what the kernel program reports.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use aya::maps::{MapData, RingBuf};
use tracing::warn;
use xdp_agg_common::maps::Event;

use super::object::other;
use super::sys;
use crate::confined::confine_helper;
use crate::engine::{EngineError, events};

/// A thread that logs events until this is dropped.
pub(super) struct EventLog {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl EventLog {
    /// Starts the thread.
    pub(super) fn start(ring: RingBuf<MapData>) -> Result<Self, EngineError> {
        let (stopped, stop) = pipe().map_err(|error| other("a pipe", error))?;
        let thread = thread::Builder::new()
            .name("xdp-events".into())
            .spawn(move || log(ring, &stopped))
            .map_err(|error| other("the thread that logs events", error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.stop = None; // the thread sees the closed pipe
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn log(mut ring: RingBuf<MapData>, stopped: &PipeReader) {
    // It reads memory that is mapped already.
    confine_helper();
    loop {
        while let Some(item) = ring.next() {
            match event_of(&item) {
                Some(event) => events::report(&event),
                None => warn!(bytes = item.len(), "an event of unknown form"),
            }
        }
        match sys::wait_readable(ring.as_fd(), stopped.as_fd()) {
            Ok([_, false]) => {}
            Ok([_, true]) => return,
            Err(error) => {
                warn!(%error, "events of the kernel program are no longer logged");
                return;
            }
        }
    }
}

/// The fields of [`Event`] at their offsets.
fn event_of(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; size_of::<Event>()] = bytes.try_into().ok()?;
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
    Some(Event {
        block: u64::from(word(0)) | u64::from(word(4)) << 32,
        addr: word(8),
        count: word(12),
        port: half(16),
        job: half(18),
        rank: half(20),
        reason: bytes[22],
        version: bytes[23],
    })
}
