//! Control connections of xdp-agg: plain, or over TLS 1.3, and how a dead peer of one is noticed.
//!
//! [`ServerFiles`] and [`ClientFiles`] name PEM files; what they make is checked when it is loaded,
//! with errors that name the file and say what to do. [`ControlStream`] is the connecting side of
//! workers and tools; the daemon does its own input and output with [`ServerTls::config`]. Whether
//! TLS is used is decided by settings at both ends, never by what the other side offers.

mod explain;
mod files;
mod info;
mod liveness;
mod load;
mod secret;
mod stream;
mod subject;
#[cfg(feature = "testing")]
pub mod testing;

pub use explain::{Side, explain};
pub use files::{ClientFiles, ClientTls, ServerFiles, ServerTls};
pub use liveness::Liveness;
pub use load::TlsError;
pub use secret::{SecretError, exposure, read_token, read_tokens};
pub use stream::{ControlStream, OpenError};
pub use subject::subject;

/// The first byte of a TLS connection: a handshake record. No frame of ours starts with it, as
/// that would be one of 352 MiB.
pub const TLS_HANDSHAKE: u8 = 0x16;
