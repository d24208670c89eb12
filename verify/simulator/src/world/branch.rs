//! The connections of a tree's root to its branches, as a server keeps them: it tries to open each
//! a few times, and tells the jobs what comes of that.

use xdp_agg_common::control::Reply;
use xdp_agg_protocol::daemon::{Jobs, LinkEffect, LinkId};

use super::control::{Client, End};
use super::{Event, World};
use crate::scenario::daemon_at;
use crate::time::{MILLI, Nanos};

/// Attempts to connect.
const ATTEMPTS: u32 = 5;
/// Pause between two attempts.
const PAUSE: Nanos = 300 * MILLI;

/// A connection to a branch, as the root's server keeps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The connection that is open or being opened.
    index: usize,
    to: usize,
    attempt: u32,
}

impl World {
    /// Does what a daemon's jobs want of a connection to a branch.
    pub(super) fn link_effect(&mut self, daemon: usize, effect: LinkEffect) {
        match effect {
            LinkEffect::Dial(link, at, _) => match daemon_at((*at.ip()).into()) {
                Some(to) => self.dial(daemon, link, to, 1),
                None => self.checker.fail(|| format!("a branch at {at}, where none is")),
            },
            LinkEffect::Say(link, request) => {
                let line = self.daemons[daemon].lines.get(&link).copied();
                let open = |line: &Line| self.connections[line.index].at_client == End::Open;
                if let Some(line) = line.filter(open) {
                    self.say_up(line.index, &request);
                }
            }
            LinkEffect::HangUp(link) => {
                if let Some(line) = self.daemons[daemon].lines.remove(&link) {
                    self.close_at_client(line.index, false);
                }
            }
        }
    }

    fn dial(&mut self, daemon: usize, link: LinkId, to: usize, attempt: u32) {
        let index = self.connect(Client::Root { daemon, link }, to);
        self.daemons[daemon].lines.insert(link, Line { index, to, attempt });
    }

    /// The pause after an attempt is over.
    pub(super) fn dial_again(&mut self, index: usize) {
        if let Some((daemon, link, line)) = self.line_of(index) {
            self.dial(daemon, link, line.to, line.attempt + 1);
        }
    }

    pub(super) fn branch_connected(&mut self, index: usize) {
        self.tell_root(index, |jobs, link| jobs.handle_link_up(link));
    }

    pub(super) fn branch_refused(&mut self, index: usize) {
        let Some((daemon, _, line)) = self.line_of(index) else { return };
        if line.attempt < ATTEMPTS {
            return self.queue.push(self.now + PAUSE, Event::DialAgain(index));
        }
        self.checker.parted(daemon, line.to);
        self.tell_root(index, |jobs, link| jobs.handle_link_lost(link, "it cannot be reached"));
    }

    pub(super) fn branch_says(&mut self, index: usize, reply: Reply) {
        self.tell_root(index, |jobs, link| jobs.handle_link_reply(link, reply));
    }

    pub(super) fn branch_lost(&mut self, index: usize) {
        let Some((daemon, _, line)) = self.line_of(index) else { return };
        self.checker.parted(daemon, line.to);
        self.tell_root(index, |jobs, link| jobs.handle_link_lost(link, "its connection ended"));
    }

    /// Whose connection it is, if it still is.
    fn line_of(&self, index: usize) -> Option<(usize, LinkId, Line)> {
        let Client::Root { daemon, link } = self.connections[index].client else { return None };
        let line = self.daemons[daemon].lines.get(&link).filter(|line| line.index == index)?;
        Some((daemon, link, *line))
    }

    fn tell_root(&mut self, index: usize, tell: impl FnOnce(&mut Jobs, LinkId)) {
        let Some((daemon, link, _)) = self.line_of(index) else { return };
        if self.connections[index].at_client == End::Closed {
            self.daemons[daemon].lines.remove(&link);
        }
        if let Some(jobs) = &mut self.daemons[daemon].jobs {
            tell(jobs, link);
        }
        self.settle(daemon);
    }

    /// The daemon was killed: its connections to branches end.
    pub(super) fn drop_lines(&mut self, daemon: usize) {
        for line in std::mem::take(&mut self.daemons[daemon].lines).into_values() {
            self.close_at_client(line.index, true);
        }
    }
}
