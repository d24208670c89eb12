//! Map values may be read and written by aya as plain bytes.
#![expect(unsafe_code, reason = "aya's Pod is an unsafe trait")]

use crate::lanes::Lane;
use crate::maps::{Event, Fan, JobConf, JobCounters, Member, Quota, SlotHead, Uplink};

// SAFETY: repr(C) integers without padding (sizes are asserted beside the types): any bytes are a
// value, and no byte is undefined.
unsafe impl aya::Pod for JobConf {}
// SAFETY: as above.
unsafe impl aya::Pod for Member {}
// SAFETY: as above.
unsafe impl aya::Pod for Uplink {}
// SAFETY: as above.
unsafe impl aya::Pod for JobCounters {}
// SAFETY: as above.
unsafe impl aya::Pod for Event {}
// SAFETY: as above.
unsafe impl aya::Pod for SlotHead {}
// SAFETY: as above.
unsafe impl aya::Pod for Fan {}
// SAFETY: as above.
unsafe impl aya::Pod for Quota {}
// SAFETY: one packed integer.
unsafe impl aya::Pod for Lane {}
