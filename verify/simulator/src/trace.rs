//! What happened, in order: as a number that two runs of one seed share, and as text for people.

use std::fmt;

use xdp_agg_common::wire::Header;

use crate::reference::mix;
use crate::time::{MICRO, Nanos};

/// A party that sends or is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A daemon and its data path.
    Daemon(usize),
    /// A worker, counted through all jobs.
    Worker(usize),
    /// A stranger that sends what is not its own.
    Stranger,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon(0) => f.write_str("daemon"),
            Self::Daemon(number) => write!(f, "daemon {number}"),
            Self::Worker(number) => write!(f, "worker {number}"),
            Self::Stranger => f.write_str("stranger"),
        }
    }
}

/// The record of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(text: bool) -> Self {
        Self { hash: 0, lines: text.then(Vec::new) }
    }

    /// Adds numbers that stand for an event.
    pub(crate) fn add(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = mix(self.hash ^ number);
        }
    }

    /// Adds a line, if anybody will read it.
    pub(crate) fn say(&mut self, now: Nanos, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let micros = now as f64 / MICRO as f64;
            lines.push(format!("{micros:>14.3} µs  {}", line()));
        }
    }

    /// A number that differs where runs differ.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines, if they were asked for.
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or(&[])
    }
}

/// A data packet as a reader wants it.
pub(crate) fn describe(header: &Header) -> String {
    let Header { kind, flags, reduction, job, rank, cookie, epoch, block, tag } = header;
    let odd = if *flags == 0 { "" } else { " non-finite" };
    format!(
        "{:<12} job {job} epoch {epoch} block {block} rank {rank} {} tag {tag:04x} \
         cookie {:04x}{odd}",
        format!("{kind:?}"),
        reduction.name(),
        cookie >> 48
    )
}
