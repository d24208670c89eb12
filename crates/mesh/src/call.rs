//! What a call is: the arguments that must agree between the ranks.

use std::fmt;

use crate::element::{Datum, Op};
use crate::schedule::Algorithm;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Collective {
    /// The root's data to all.
    Broadcast = 1,
    /// All data to one, reduced.
    Reduce = 2,
    /// Each rank a part of the reduced data.
    ReduceScatter = 3,
    /// Each rank's part to all.
    AllGather = 4,
    /// Nobody leaves before all have come.
    Barrier = 5,
    /// All ranks the reduced data, by rings inside and across groups.
    HierarchicalAllReduce = 6,
}

impl Collective {
    const ALL: [Self; 6] = [
        Self::Broadcast,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Barrier,
        Self::HierarchicalAllReduce,
    ];

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| *collective as u8 == code)
    }

    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Barrier => "barrier",
            Self::HierarchicalAllReduce => "hierarchical all-reduce",
        }
    }
}

/// One call of a mesh, as its ranks must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the call in the mesh's life, from 0.
    pub sequence: u64,
    /// Which collective.
    pub collective: Collective,
    /// Elements of the whole vector.
    pub count: u64,
    /// [`Datum::CODE`] of the elements.
    pub(crate) element: u8,
    /// Code of the operation; 0 where nothing is reduced.
    pub(crate) op: u8,
    /// The root; 0 where there is none.
    pub root: u16,
    /// The algorithm, as a number and its parameter.
    pub(crate) algorithm: (u8, u32),
}

impl Call {
    pub(crate) fn new<T: Datum>(collective: Collective, count: usize) -> Self {
        let (sequence, op, root, algorithm) = (0, 0, 0, (0, 0));
        Self { sequence, collective, count: count as u64, element: T::CODE, op, root, algorithm }
    }

    pub(crate) const fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm.code();
        self
    }

    pub(crate) const fn at(mut self, root: u16) -> Self {
        self.root = root;
        self
    }

    pub(crate) const fn with(mut self, op: Op) -> Self {
        self.op = op.code();
        self
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, collective, count, element, op, root, algorithm } = self;
        write!(f, "call {sequence}: {} of {count} elements", collective.name())?;
        write!(f, " (type {element}, operation {op}), root {root}")?;
        write!(f, ", algorithm {} with {}", algorithm.0, algorithm.1)
    }
}
