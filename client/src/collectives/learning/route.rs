//! The ways that an all-reduce can learn to go.

use std::fmt;

use serde::Serialize;
use xdp_agg_mesh::Pattern;

/// A way that an all-reduce can learn to go. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// Through the aggregators.
    Aggregator,
    /// Each worker sends its vector to all others, and sums all: one step.
    Exchange,
    /// Whole vectors between pairs of workers, in `log2(N)` steps.
    Doubling,
    /// Halves of halves between pairs of workers, and back (Rabenseifner).
    Halving,
    /// Round a ring of the workers.
    Ring,
}

impl Route {
    /// How lanes go from worker to worker, where they are summed on their way.
    pub(super) const fn pattern(self) -> Option<Pattern> {
        match self {
            Self::Doubling => Some(Pattern::Doubling),
            Self::Halving => Some(Pattern::Halving),
            Self::Ring => Some(Pattern::Ring),
            Self::Exchange | Self::Aggregator => None,
        }
    }

    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregator => "aggregator",
            Self::Exchange => "exchange",
            Self::Doubling => "doubling",
            Self::Halving => "halving",
            Self::Ring => "ring",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
