//! What members know of each other while they wait.

use serde::{Deserialize, Serialize};

use super::words::{NAME_MAX, clean, maybe_name};

/// What a member is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Doing {
    /// The epoch in which it sends, and the first of its blocks that the member has not sent.
    pub epoch: u16,
    /// See `epoch`.
    pub sent: u64,
    /// Number of the next call through the aggregator that it would make.
    pub next_sequence: u64,
    /// How many calls it has made, through the aggregator or not.
    pub made: u64,
    /// The oldest call that it is in, in words. None: it is in none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_name")]
    pub call: Option<String>,
    /// That call does not go through the aggregator.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
    /// Processes of its host that it waits for, by local rank.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fellows: Vec<u16>,
}

impl Doing {
    /// Most characters of a call's words that a daemon keeps.
    pub const MAX_CALL: usize = NAME_MAX;
    /// Most fellows that a daemon keeps.
    const MAX_FELLOWS: usize = 64;

    /// The same, no longer than a daemon keeps, and without characters that steer terminals.
    #[must_use]
    pub fn clipped(mut self) -> Self {
        self.call = self.call.map(|call| clean(&call, Self::MAX_CALL));
        self.fellows.truncate(Self::MAX_FELLOWS);
        self
    }
}

/// Whether a rank is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Its process answers.
    Alive,
    /// Its host is there, and its process does not answer: it is stopped, or starved.
    Silent,
    /// It left in good order.
    Left,
    /// It was lost, or it has not come (back) yet.
    Absent,
}

/// One rank of a job, for another one that waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its rank.
    pub rank: u16,
    /// Whether it is there.
    pub presence: Presence,
    /// Milliseconds since its process last answered a heartbeat. None: it has not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
    /// What it has last said that it does. None: nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doing: Option<Doing>,
}
