//! Calls on memory that another language lends: its type is known at run time alone.
//!
//! ```no_run
//! use xdp_agg_client::Builder;
//! use xdp_agg_client::lent::{Caller, DataType, Memory, Options, Reduction, Settings, Task};
//!
//! let caller = Caller::connect(Builder::from_env()?, Settings::from_values(std::env::var_os)?)?;
//! let mut losses = [2.345_678_9_f32, 1.25e6, 0.0017];
//! // SAFETY: the array outlives the call, and nobody else touches it meanwhile.
//! let memory = unsafe { Memory::new(losses.as_mut_ptr().cast(), losses.len(), DataType::F32) };
//! let task = Task::AllReduce(Reduction::Average);
//! // SAFETY: as above.
//! let outcome = unsafe { caller.call(memory, &task, &Options::default(), &mut || false) }?;
//! println!("{:?}", outcome.precision);
//! # Ok::<(), xdp_agg_client::Error>(())
//! ```
//!
//! **Numbers.** What a training loop reduces is more than gradients, so these calls promise more
//! than [`Communicator::all_reduce`]. Sums of floats have a [`Precision`]; integers wrap as they do
//! in memory; minima and maxima are exact, and a NaN goes before all numbers; infinities and NaNs
//! stay with their element. All ranks get the same bits. `docs/numerics.md` has the bounds.
//!
//! **Order.** Calls are carried out in the order in which they were made, by whichever thread.

mod caller;
mod copies;
mod flight;
mod floats;
mod given;
mod guess;
mod inner;
mod integers;
mod memory;
mod order;
mod placed;
mod result;
mod started;
mod types;
mod view;

use std::ffi::OsString;
use std::time::Duration;

use serde::Serialize;
use xdp_agg_launcher::text;
use xdp_agg_protocol::worker::{Counters, Report};

#[cfg(doc)]
use crate::communicator::Communicator;
use crate::error::Error;
use crate::name::Name;
use crate::settings::parse;

pub use caller::Caller;
pub use flight::InFlight;
pub use given::Given;
pub use memory::Memory;
pub use result::LentView;
pub use types::{DataType, Precision, Reduction};
pub use view::ViewInFlight;
pub use xdp_agg_intranode::Placed;
pub use xdp_agg_quantize::UnknownName;

/// Bytes of the longest vector that is summed exactly by default.
pub const EXACT_UP_TO: usize = 64 << 10;
/// The variable that sets another length.
const EXACT_UP_TO_NAME: &str = "XDP_AGG_EXACT_UP_TO";
/// The variable that says how exact sums are.
const PRECISION: &str = "XDP_AGG_PRECISION";

/// What is called, in place on the whole vector. All ranks make the same calls, with vectors of the
/// same length and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// All ranks get the reduced vector.
    AllReduce(Reduction),
    /// All ranks get the root's vector, bit for bit.
    Broadcast {
        /// The rank that has it.
        root: u16,
    },
    /// The root gets the reduced vector; the others' is unspecified then.
    Reduce {
        /// How.
        reduction: Reduction,
        /// The rank that gets it.
        root: u16,
    },
    /// Each rank gets its part of the reduced vector ([`Communicator::part`]) in its place; the
    /// rest is unspecified then.
    ReduceScatter(Reduction),
    /// All ranks get each rank's part of the vector, bit for bit.
    AllGather,
    /// Ends when all ranks have begun it; wants no memory.
    Barrier,
}

/// What a caller may choose for a call.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Of a sum of floats. None: as [`Settings`] say.
    pub precision: Option<Precision>,
    /// From the call's beginning to its end. None: the communicator's.
    pub deadline: Option<Duration>,
    /// The caller's name for the call, of any task.
    pub name: Option<Name>,
}

/// What a caller may choose for all calls; the same at all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of sums of floats. None: exact up to [`Self::exact_up_to`], gradient above.
    pub precision: Option<Precision>,
    /// Bytes of the longest vector that is summed exactly where nothing else was chosen.
    pub exact_up_to: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { precision: None, exact_up_to: EXACT_UP_TO }
    }
}

impl Settings {
    /// From `XDP_AGG_PRECISION` (`exact`, `gradient`) and `XDP_AGG_EXACT_UP_TO` (bytes).
    ///
    /// # Errors
    /// A variable that cannot be understood.
    pub fn from_values(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Error> {
        let mut settings = Self::default();
        if let Some(value) = text(PRECISION, lookup(PRECISION))? {
            settings.precision = Some(Precision::of_setting(&value)?);
        }
        if let Some(value) = text(EXACT_UP_TO_NAME, lookup(EXACT_UP_TO_NAME))? {
            settings.exact_up_to =
                parse(EXACT_UP_TO_NAME, &value, "a number of bytes, such as 65536")?;
        }
        Ok(settings)
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Which ranks contributed, and over what it was summed.
    pub report: Report,
    /// How floats were summed. None: nothing was rounded.
    pub precision: Option<Precision>,
    /// Elements that were summed again, exactly: in their block stood an infinity or a NaN.
    pub redone: u64,
}

/// What a caller has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Of the calls that these calls are made of.
    #[serde(flatten)]
    pub counters: Counters,
    /// Sums of floats that were exact.
    pub exact_calls: u64,
    /// Sums of floats in the precision of gradients.
    pub gradient_calls: u64,
    /// Calls of which blocks were summed again for an infinity or a NaN.
    pub redone_calls: u64,
    /// Elements of these blocks.
    pub redone_elements: u64,
}
