//! What the halves of xdp-agg share, and nothing else.
//!
//! * [`wire`]: the 22-byte header, its byte order and the numbers it holds.
//! * [`frame`]: where that header lies in an Ethernet/IPv4/UDP frame, and the IPv4 checksum.
//! * [`checksum`]: the UDP checksum of what the aggregator sends.
//! * [`lanes`]: the payload: biased 32-bit lanes, added two at a time.
//! * [`slot`]: the slot machine: which packet is new, a repetition, stale or wrong.
//! * [`answer`]: what goes out for a packet, and what is counted.
//! * [`times`]: how long blocks take, as a histogram.
//! * [`copies`]: which blocks of a broadcast the root alone contributes.
//! * [`admission`]: which packets may touch a slot at all.
//! * [`maps`]: the layout of what the kernel program and the daemon share in BPF maps.
//! * [`control`] (feature `control`): the messages between workers, tools and the daemon.
//! * [`reform`] (feature `control`): which block is done, done again or handed on when a job gets a
//!   new epoch.
//!
//! All but the last two are `no_std`, do not allocate, cannot panic and contain no `unsafe`. The
//! same functions run in the kernel program, in the user-space engine and in tests.
#![cfg_attr(not(any(test, feature = "control")), no_std)]
#![deny(unsafe_code)]

pub mod admission;
pub mod answer;
pub mod checksum;
#[cfg(feature = "control")]
pub mod control;
pub mod copies;
pub mod frame;
pub mod lanes;
pub mod maps;
#[cfg(feature = "user")]
mod pod;
#[cfg(feature = "control")]
pub mod reform;
pub mod slot;
pub mod times;
pub mod wire;
