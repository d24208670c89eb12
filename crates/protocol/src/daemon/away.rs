//! What a job knows of the branches that it does without.

use std::time::{Duration, Instant};

use super::effect::LinkId;
use super::trunk::Serving;

/// Losses of one branch after which a job takes it back no more.
pub(super) const LOSSES_MAX: u32 = 8;
/// How long a branch must have been part of the tree for its losses before to be forgiven.
pub(super) const FORGIVEN: Duration = Duration::from_secs(600);

/// A branch that the job does without.
#[derive(Clone, Debug)]
pub(super) struct Away {
    /// When the next attempt is made; of one that is there, when it may be taken back.
    pub(super) due: Instant,
    /// Pause before the attempt after that.
    pub(super) pause: Duration,
    pub(super) watch: Watch,
}

/// Whether it is there again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Watch {
    No,
    /// An attempt is under way.
    Trying(LinkId),
    /// It keeps slots for the job, and sums nothing.
    There(LinkId, Serving),
}

impl Away {
    /// Nobody watches it any more; the connection that is needless now.
    pub(super) fn unwatch(&mut self) -> Option<LinkId> {
        match std::mem::replace(&mut self.watch, Watch::No) {
            Watch::No => None,
            Watch::Trying(link) | Watch::There(link, _) => Some(link),
        }
    }
}

/// What became of a branch so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    /// How often it was lost.
    pub(super) times: u32,
    /// When the tree took it back.
    pub(super) back: Option<Instant>,
}
