//! What neighbours tell each other.
//!
//! On the data connection, from each rank to the next: per call one [`Call`] header, then the
//! payload. On the control connection, both ways: nothing but a [`Notice`], when a worker leaves
//! or gives up. A worker that hears of one passes it on to its other neighbour, so that all learn
//! the first reason.

use std::fmt;

use xdp_agg_common::wire::Reduction;
use xdp_agg_numbers::{ElementType, Op};

use super::element::What;

/// Bytes of a [`Call`] on the wire.
pub(super) const HEADER_LEN: usize = 24;
const MAGIC: u32 = 0x5244_4158; // "XADR"
/// Longest reason that a [`Notice`] carries, in bytes.
const MAX_REASON: usize = 600;
const NOTICE_HEADER_LEN: usize = 5;
/// The number in an element type's place that stands for words of lanes.
const WORDS: u8 = 0xff;

/// One all-reduce, as every worker must call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of calls on this ring before this one.
    pub sequence: u64,
    /// Number of elements.
    pub count: u64,
    /// Their type, and what is done with them.
    pub what: What,
    /// Whether the vectors go round whole; see
    /// [`Builder::short_bytes`](super::Builder::short_bytes).
    pub whole: bool,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, count, what, .. } = self;
        let whole = if self.whole { " (as a short vector)" } else { "" };
        match what {
            What::Elements(element, op) => {
                write!(f, "number {sequence}: {op} of {count} × {element}{whole}")
            }
            What::Words(reduction) => {
                write!(f, "number {sequence}: {} of {count} words{whole}", reduction.name())
            }
        }
    }
}

impl Call {
    /// The header. Little-endian: magic u32, element u8, op u8, whole u8, 0 u8, sequence u64,
    /// count u64.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        (bytes[4], bytes[5]) = match self.what {
            What::Elements(element, op) => (place(&ElementType::ALL, element), place(&Op::ALL, op)),
            What::Words(reduction) => (WORDS, reduction as u8),
        };
        bytes[6] = u8::from(self.whole);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The call behind a header; `None` if these bytes are none.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        if bytes[0..4] != MAGIC.to_le_bytes() || bytes[6] > 1 || bytes[7] != 0 {
            return None;
        }
        let what = match bytes[4] {
            WORDS => What::Words(Reduction::from_number(bytes[5])?),
            element => What::Elements(
                *ElementType::ALL.get(usize::from(element))?,
                *Op::ALL.get(usize::from(bytes[5]))?,
            ),
        };
        let (sequence, count) = (word(&bytes[8..16]), word(&bytes[16..24]));
        Some(Self { sequence, count, what, whole: bytes[6] == 1 })
    }
}

/// Where a value is among all.
fn place<T: PartialEq>(all: &[T], value: T) -> u8 {
    all.iter().position(|one| *one == value).unwrap_or(all.len()) as u8
}

/// The first eight bytes as a little-endian number.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// What a worker tells its neighbours at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// It dropped its ring between calls.
    Leaving,
    /// It gave up, or heard of one that did.
    Stopped {
        /// The one that gave up first.
        by: u16,
        /// Its error.
        reason: String,
    },
}

impl Notice {
    /// Little-endian: kind u8, rank u16, length u16, then the reason in UTF-8.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, by, reason) = match self {
            Self::Leaving => (0_u8, 0, ""),
            Self::Stopped { by, reason } => (1, *by, reason.as_str()),
        };
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&by.to_le_bytes());
        bytes.extend_from_slice(&(end as u16).to_le_bytes());
        bytes.extend_from_slice(&reason.as_bytes()[..end]);
        bytes
    }

    /// The notice at the start of what was received; `None` while it is incomplete.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(NOTICE_HEADER_LEN)?;
        if header[0] == 0 {
            return Some(Self::Leaving);
        }
        let by = u16::from_le_bytes([header[1], header[2]]);
        let len = usize::from(u16::from_le_bytes([header[3], header[4]])).min(MAX_REASON);
        let reason = String::from_utf8_lossy(rest.get(..len)?).into_owned();
        Some(Self::Stopped { by, reason })
    }

    /// Longest encoding.
    pub(super) const MAX_LEN: usize = NOTICE_HEADER_LEN + MAX_REASON;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_the_wire() {
        let elements = ElementType::ALL
            .into_iter()
            .flat_map(|element| Op::ALL.into_iter().map(move |op| What::Elements(element, op)));
        for what in elements.chain(Reduction::ALL.map(What::Words)) {
            for whole in [false, true] {
                let (sequence, count) = (u64::MAX - 1, 0x0102_0304_0506);
                let call = Call { sequence, count, what, whole };
                assert_eq!(Call::decode(&call.encode()), Some(call));
            }
        }
    }

    #[test]
    fn other_bytes_are_no_call() {
        let what = What::Elements(ElementType::F32, Op::Sum);
        let call = Call { sequence: 1, count: 2, what, whole: false };
        for (at, value) in [(0, 0), (4, 6), (5, 4), (6, 2), (7, 1)] {
            let mut bytes = call.encode();
            bytes[at] = value;
            assert_eq!(Call::decode(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn notices_survive_the_wire_and_long_reasons_are_cut() {
        let stopped = Notice::Stopped { by: 513, reason: "rank 2 is gone".into() };
        for notice in [Notice::Leaving, stopped] {
            let bytes = notice.encode();
            assert_eq!(Notice::decode(&bytes), Some(notice));
            assert_eq!(Notice::decode(&bytes[..4]), None);
        }
        let long = Notice::Stopped { by: 1, reason: "é".repeat(600) }.encode();
        assert!(long.len() <= Notice::MAX_LEN);
        let Some(Notice::Stopped { reason, .. }) = Notice::decode(&long) else { panic!() };
        assert!(reason.chars().all(|c| c == 'é'), "{reason}");
        assert_eq!(Notice::decode(&long[..long.len() - 1]), None);
    }
}
