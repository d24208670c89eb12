//! Numbers of blocks. A block has one in the epoch, by which it travels, and one in the job, by
//! which calls go. A new epoch begins at 0 again. A call's data blocks are numbered once more: they
//! hold its elements.

use std::ops::{Add, Sub};

macro_rules! number {
    ($(#[$text:meta])* $name:ident) => {
        $(#[$text])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u64);

        impl Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, blocks: u64) -> Self {
                Self(self.0 + blocks)
            }
        }

        impl Sub for $name {
            type Output = u64;

            #[inline]
            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A block by its number in the epoch: on the wire, in the flow, in the pool of slots.
    EpochBlock
}

number! {
    /// A block by its number in the job's life.
    JobBlock
}

number! {
    /// A block of data by its number among those that a flow has of a call.
    DataBlock
}
