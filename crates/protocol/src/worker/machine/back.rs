//! From a ring back to the daemon.
//!
//! On a ring ([`super::ring`]) a worker tries now and then to reach the daemon, and asks whether it
//! would be taken back ([`Request::Offer`]). The connection is kept. With each batch all members
//! tell each other whether the daemon would take them back. If all say yes, all leave the ring
//! after that batch. They have the results of the same blocks, and go the way of members that have
//! just lost their daemon. If that leads nowhere, they meet on a ring again.

use std::time::Duration;

use tracing::{debug, info};
use xdp_agg_common::control::{CONTROL_VERSION, Join, Progress, Reply, Request, Resume};

use super::{EpochBlock, Freeze, Link, Machine, Phase};

/// Longest pause between two attempts to reach the daemon, in [`super::Config::return_pause`]s.
const LONGEST: u32 = 8;
/// Longest pause before the first attempt, where the ring was left in vain before.
const LONGEST_IN_VAIN: u32 = 128;

/// What a worker knows of the way back.
#[derive(Debug, Default)]
pub(super) struct WayBack {
    /// Rings that it was on since a daemon gave it its epoch.
    pub(super) rings: u32,
    /// The daemon has said, over the connection that is open, that it would take this worker back.
    pub(super) open: bool,
    /// Pause before the next attempt.
    pause: Duration,
    /// How often a ring was left and no daemon came to run the job.
    pub(super) vain: u32,
}

impl Machine {
    /// It goes on over a ring: from here on it looks for the daemon.
    pub(super) fn look_back(&mut self, now: Duration) {
        let (back, pause) = (&mut self.back, self.config.return_pause);
        back.rings += 1;
        back.open = false;
        back.pause = pause;
        let times = LONGEST_IN_VAIN.min(1 << back.vain.min(16));
        self.link = Link::Wanted(now + pause.saturating_mul(times));
    }

    /// A control connection is open while this worker is on a ring: it joins nothing yet.
    pub(super) fn connected_on_ring(&mut self) {
        if self.phase == Phase::Ring(None) {
            self.hang_up();
            return;
        }
        self.back.open = false;
        self.say_hello();
        let offer = Request::Offer(self.join_with(Progress::default()));
        self.say(offer);
    }

    /// No daemon, or none that would take this worker back: the ring goes on.
    pub(super) fn not_back_yet(&mut self, reason: &str, now: Duration) {
        debug!(rank = self.config.rank, reason, "still no aggregator");
        self.requests.clear();
        self.back.open = false;
        if self.phase == Phase::Ring(None) {
            self.link = Link::Closed;
            return;
        }
        self.link = Link::Wanted(now + self.back.pause);
        let longest = self.config.return_pause.saturating_mul(LONGEST);
        self.back.pause = self.back.pause.saturating_mul(2).min(longest);
    }

    /// What a daemon says to a worker that is on a ring. None of it can end the membership.
    pub(super) fn handle_reply_on_ring(&mut self, reply: Reply, now: Duration) {
        let refusal = match reply {
            Reply::Welcome { version, engine, .. } if version == CONTROL_VERSION => {
                self.engine = engine;
                return;
            }
            Reply::Heartbeat => return self.answer_heartbeat(),
            Reply::Done => {
                self.back.open = true;
                self.back.pause = self.config.return_pause;
                return;
            }
            Reply::Error { message, .. } => message,
            other => format!("{other:?}"),
        };
        self.hang_up();
        self.not_back_yet(&refusal, now);
    }

    /// All members can reach the daemon, and know it of each other: the ring ends before the block
    /// `next` of its epoch.
    pub(super) fn leave_ring(&mut self, next: EpochBlock, now: Duration) {
        let Some(epoch) = &self.epoch else { return };
        let flow = match self.flow_for(&epoch.admitted) {
            Ok(flow) => flow,
            Err(error) => return self.fail(error),
        };
        info!(
            rank = self.config.rank,
            aggregator = %self.config.aggregator,
            "the aggregator is back: leaving the ring after {next} blocks"
        );
        self.past.merge(epoch.flow.counters());
        self.epoch = Some(epoch.after_ring(next, flow, self.released));
        self.phase = Phase::Running;
        // Nothing of the epoch may be sent or taken in any more: its numbers mean other blocks.
        self.freeze = Freeze::Reform;
        self.lost_since = Some(now);
        self.lost_reason = "the way back from the ring is not finished".into();
        self.back.vain += 1;
        match self.link {
            Link::Up => {
                let join = self.join_with(self.progress());
                self.say(Request::Join(join));
            }
            Link::Connecting => {}
            Link::Wanted(_) | Link::Closed => self.link = Link::Wanted(now),
        }
    }

    /// The first words on a new connection.
    pub(super) fn say_hello(&mut self) {
        self.link = Link::Up;
        self.requests.clear();
        self.told = None;
        let agent = concat!("xdp-agg-client ", env!("CARGO_PKG_VERSION")).to_owned();
        let token = self.config.token.clone();
        self.say(Request::Hello { version: CONTROL_VERSION, agent, token });
    }

    /// The wish to become a member, or to be one again with this progress.
    pub(super) fn join_with(&self, progress: Progress) -> Join {
        let config = &self.config;
        let resume = self.epoch.as_ref().map(|epoch| Resume {
            epoch: epoch.admitted.epoch,
            cookie: epoch.admitted.cookie,
            members: epoch.admitted.members,
            chunks: epoch.admitted.chunks,
            progress,
            rings: self.back.rings,
        });
        Join {
            job: config.job.clone(),
            rank: config.rank,
            world_size: config.world_size,
            data_port: config.data_port,
            data_addr: config.data_addr,
            max_chunks: config.max_chunks,
            slots: config.slots,
            result_mode: config.result_mode,
            policy: config.policy,
            ring_port: config.ring_port,
            resume,
            // A little more: this worker's own limit comes first, which is named by its variable.
            patience_s: Some((config.join_deadline.as_secs_f64().ceil() as u16).saturating_add(1)),
            tree: config.tree.clone(),
            chosen: config.chosen.clone().map(Box::new),
            origin: config.origin.clone(),
        }
    }
}
