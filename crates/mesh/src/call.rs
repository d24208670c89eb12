//! What a call is: the arguments that must agree between the ranks.

use std::fmt;

use xdp_agg_common::wire::Reduction;
use xdp_agg_quantize::Op;

use crate::element::{WORDS, code, name};
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
    /// All ranks the reduced data, round one ring.
    AllReduce = 7,
    /// The same of vectors so short that they go round whole.
    ShortAllReduce = 8,
    /// The root's data to one rank of each other host.
    HostBroadcast = 9,
    /// All ranks' data to all, in one step.
    Exchange = 10,
    /// All ranks the reduced data, whole vectors between pairs.
    DoublingAllReduce = 11,
    /// All ranks the reduced data, halves of halves between pairs.
    HalvingAllReduce = 12,
}

impl Collective {
    const ALL: [Self; 12] = [
        Self::Broadcast,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Barrier,
        Self::HierarchicalAllReduce,
        Self::AllReduce,
        Self::ShortAllReduce,
        Self::HostBroadcast,
        Self::Exchange,
        Self::DoublingAllReduce,
        Self::HalvingAllReduce,
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
            Self::AllReduce => "all-reduce",
            Self::ShortAllReduce => "all-reduce as a short vector",
            Self::HostBroadcast => "broadcast between hosts",
            Self::Exchange => "exchange",
            Self::DoublingAllReduce => "all-reduce by doubling",
            Self::HalvingAllReduce => "all-reduce by halving",
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
    /// The number of the elements' name.
    pub(crate) element: u8,
    /// The operation, or the reduction of words; 0 where nothing is reduced.
    pub(crate) op: u8,
    /// The root; 0 for a call without one.
    pub root: u16,
    /// The algorithm, as a number and its parameter.
    pub(crate) algorithm: (u8, u32),
}

xdp_agg_launcher::setters! {
impl Call {
    pub(crate) fn by(algorithm: Algorithm) => algorithm = algorithm.code();
    pub(crate) fn at(root: u16) => root = root;
    pub(crate) fn with(op: Op) => op = op as u8 + 1;
    pub(crate) fn with_words(reduction: Reduction) => op = reduction as u8;
}
}

impl Call {
    /// `element`: the name of its elements.
    pub(crate) fn new(collective: Collective, element: &str, count: usize) -> Self {
        let (sequence, op, root, algorithm) = (0, 0, 0, (0, 0));
        Self {
            sequence,
            collective,
            count: count as u64,
            element: code(element),
            op,
            root,
            algorithm,
        }
    }

    /// The same of a purpose: ranks with another tag make another call. 48 bits of it count.
    pub(crate) const fn tagged(self, tag: u64) -> Self {
        Self { root: tag as u16, algorithm: (0, (tag >> 16) as u32), ..self }
    }

    /// What its elements are reduced by, in words.
    fn operation(&self) -> Option<&'static str> {
        use Collective::{AllGather, Barrier, Broadcast, Exchange, HostBroadcast};
        let moves = [Broadcast, AllGather, Barrier, HostBroadcast, Exchange];
        if moves.contains(&self.collective) {
            return None;
        }
        if self.element == WORDS {
            return Some(Reduction::from_number(self.op).map_or("unknown", Reduction::name));
        }
        let op = usize::from(self.op).checked_sub(1).and_then(|at| Op::ALL.get(at));
        Some(op.map_or("unknown operation", |op| op.name()))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, collective, count, element, root, algorithm, .. } = self;
        write!(f, "call {sequence}: {}", collective.name())?;
        if let Some(operation) = self.operation() {
            write!(f, ", {operation}")?;
        }
        write!(f, " of {count} × {}", name(*element))?;
        use Collective::{Broadcast, HostBroadcast, Reduce};
        if matches!(collective, Broadcast | HostBroadcast | Reduce) {
            write!(f, ", root {root}, algorithm {} with {}", algorithm.0, algorithm.1)?;
        }
        Ok(())
    }
}
