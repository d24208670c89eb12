//! How the elements of a vector become integer lanes that an aggregator can add or compare, and
//! back (PASSING, section 3.2).
//!
//! * [`Format`]: what travels in a job's call: element type, operation, scaling, lane width. It
//!   encodes blocks (fused with the sum over the processes of a host) and decodes results.
//! * [`Element`]: f32, f16, bf16, f64, i32, i64.
//! * [`exact`]: sums of floats that are rounded once, at their end.
//! * [`encode_keys`], [`decode_keys`]: the exponents that are agreed ahead of the data.
//! * [`simd`]: which instructions are used. All of them give the same bits.
//!
//! No input or output, no state. `docs/numerics.md` derives the error of every mode.
#![deny(unsafe_code)]

mod bound;
mod convert;
mod element;
pub mod exact;
mod format;
mod kernels;
mod keys;
mod range;
mod scale;
#[expect(unsafe_code, reason = "calls of functions that the CPU was asked about")]
pub mod simd;
pub mod throughput;
mod types;

pub use element::{Element, Encoded};
pub use format::{Format, FormatError};
pub use half::{bf16, f16};
pub use keys::{KEY_REDUCTION, KEYS_PER_CHUNK, decode_keys, encode_keys, keys_payload};
pub use range::OutOfRange;
pub use types::{ElementType, LaneWidth, Op, Scaling, UnknownName};
pub use xdp_agg_common::wire::Reduction;
