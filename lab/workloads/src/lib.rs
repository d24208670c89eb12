//! What data-parallel training sends, and how long it should take.
//!
//! * [`Network`]: the parameter tensors of ResNet-50, ResNet-101, VGG-16, VGG-19, BERT-base and
//!   Inception v3, in order, from their architecture, each with the arithmetic of its layer.
//! * [`Workload`]: their gradients in buckets as PyTorch's `DistributedDataParallel` makes them,
//!   from the last layer to the first, each with the time that its backward pass takes.
//! * [`model`]: equations (1) to (4) of PASSING (Yu et al. 2025) and their like for the systems
//!   that it is compared with.
//! * [`claims`]: the figures of that paper's text, and the share of computation that they imply.
//! * [`broadcast`]: the numbers of the broadcast paper's text.
//! * [`Framing`]: a vector's bytes on the wire.
//!
//! Nothing here does any input or output.

#![forbid(unsafe_code)]

mod bert;
pub mod broadcast;
mod buckets;
pub mod claims;
mod framing;
mod inception;
pub mod model;
mod network;
mod resnet;
mod vgg;

pub use buckets::{Bucket, FIRST_BUCKET_BYTES, OTHER_BUCKET_BYTES, Workload};
pub use framing::Framing;
pub use network::{Network, Tensor, UnknownNetwork};
