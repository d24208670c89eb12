//! Questions to several aggregators that not all of them have answered.

use std::collections::BTreeSet;
use std::time::Instant;

use super::effect::{LinkId, Look};

/// A question that several aggregators are to answer.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) job_id: u16,
    /// Of the job, when it was asked.
    pub(super) epoch: u16,
    pub(super) block: u64,
    /// When it was asked: a member that contributes from then on keeps nobody waiting.
    pub(super) asked: Instant,
    /// Links whose answer is awaited.
    pub(super) open: BTreeSet<LinkId>,
    /// This daemon's engine has answered.
    pub(super) answered: bool,
    /// Ranks that it is about; None: all.
    pub(super) of: Option<u64>,
    /// Ranks that are awaited, as far as is known.
    pub(super) bits: u64,
    /// Ranks that had left when it was asked.
    pub(super) left: u64,
}

/// What is known about contributions, while branches are asked.
#[derive(Clone, Debug)]
pub(super) struct OpenLook {
    pub(super) look: Look,
    /// Links whose answer is awaited.
    pub(super) open: BTreeSet<LinkId>,
    /// Jobs and ranks whose contributions are known.
    pub(super) told: BTreeSet<(u16, u16)>,
    /// The time at which it is concluded without the others.
    pub(super) until: Instant,
}
