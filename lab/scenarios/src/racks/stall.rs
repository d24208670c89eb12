//! A worker that stands still for a fifth of the time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use xdp_agg_testbed::{Error, Process, Topology};

use super::super::lab::wait_all;

/// How long it does so in each second.
const STALL: Duration = Duration::from_millis(200);

/// What stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Stall {
    /// The worker's process (SIGSTOP). Its kernel goes on: TCP sends megabytes that were queued.
    Process,
    /// The process and its host's link, in both directions: nothing leaves the host, and what is
    /// sent there waits in the network. Nothing is lost for that.
    Host,
    /// The process, and its host's link loses all that is sent, in both directions: nothing waits
    /// anywhere for the host to go on.
    Link,
}

impl Stall {
    /// It needs links with a rate: their shapers hold them.
    pub(super) fn needs_rate(self) -> bool {
        self != Self::Process
    }

    /// Stops a worker's link, or lets it go on, as far as this stall has it.
    pub(super) fn hold(self, topology: &Topology, link: usize, held: bool) -> Result<(), Error> {
        match self {
            Self::Process => Ok(()),
            Self::Host => topology.hold(link, held),
            Self::Link => topology.cut(link, held),
        }
    }
}

/// Stops the last worker for a fifth of every second until all have ended.
pub(super) fn last(
    stall: Stall,
    topology: &Topology,
    mut workers: Vec<Process>,
    limit: Duration,
) -> Result<()> {
    let mut last = workers.pop().context("no worker")?;
    let link = workers.len();
    let hold = |held| stall.hold(topology, link, held);
    let start = Instant::now();
    while last.try_wait()?.is_none() {
        if start.elapsed() > limit {
            bail!("the workers have not ended in {limit:?}{}", last.last_words());
        }
        last.signal(libc::SIGSTOP)?;
        hold(true)?;
        std::thread::sleep(STALL);
        hold(false)?;
        last.signal(libc::SIGCONT)?;
        std::thread::sleep(Duration::from_secs(1) - STALL);
    }
    workers.push(last);
    wait_all(workers, limit)
}
