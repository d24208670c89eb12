//! The wire format, version 1: a 22-byte header behind UDP, then the payload.
//!
//! 22 bytes put the payload 64 bytes into an untagged Ethernet/IPv4 frame (14 + 20 + 8 + 22).
//! Header fields are big-endian (network order). The payload is little-endian 32-bit lanes, because
//! the machines that add it are little-endian and add it once per packet (see [`crate::lanes`]).
//!
//! | bytes  | field   | meaning |
//! |--------|---------|---------|
//! | 0      | version, kind | high nibble [`VERSION`], low nibble [`Kind`] |
//! | 1      | flags   | see [`flags`] |
//! | 2..4   | job     | index of the job on this aggregator |
//! | 4..8   | cookie  | random number of the job's epoch, told only to its members |
//! | 8..10  | epoch   | membership of the job; never 0 |
//! | 10..12 | rank    | sender of a contribution, recipient of an answer |
//! | 12..18 | block   | block number within the epoch, 48 bits, never reused |
//! | 18..20 | tag     | digest of the call (sequence number, length, type): a mismatch is an error |
//! | 20..22 | reserved | zero in version 1 (kept for the block exponent of a later version) |

/// Version of the wire format. A packet of another version changes nothing.
pub const VERSION: u8 = 1;
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 22;
/// Default UDP port of the aggregator's data path, the one SwitchML used (0xBEE0).
pub const DATA_PORT: u16 = 0xBEE0;
/// Most workers of one job: one bit each in a 64-bit map.
pub const MAX_WORKERS: usize = 64;
/// Block numbers are 48 bits wide: at 100 Gbit/s and 1408 bytes a block they last a year.
pub const BLOCK_MASK: u64 = (1 << 48) - 1;

/// Bits of the header's `flags` byte.
pub mod flags {
    /// The block holds a NaN or an infinity at some worker: every worker must see it as non-finite.
    pub const NON_FINITE: u8 = 1;
    /// All bits that version 1 defines.
    pub const KNOWN: u8 = NON_FINITE;
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Worker to aggregator: one block of one worker.
    Contribution = 1,
    /// Aggregator to worker: the sum of one block.
    Result = 2,
    /// Aggregator to worker: your contribution is held, others are missing. The first payload word
    /// is the bitmap of the ranks whose contribution is held (little-endian).
    Pending = 3,
    /// Worker to aggregator: is the path open, at full block size?
    Probe = 4,
    /// Aggregator to worker: it is; the payload comes back as it was sent.
    ProbeReply = 5,
    /// Aggregator to worker: another worker contributed to this block under another tag or length.
    /// The first payload word is the tag that the slot holds (little-endian, 64 bits).
    Mismatch = 6,
}

impl Kind {
    /// The kind with this number, if version 1 defines it.
    #[inline(always)]
    #[must_use]
    pub const fn from_nibble(nibble: u8) -> Option<Self> {
        Some(match nibble {
            1 => Self::Contribution,
            2 => Self::Result,
            3 => Self::Pending,
            4 => Self::Probe,
            5 => Self::ProbeReply,
            6 => Self::Mismatch,
            _ => return None,
        })
    }
}

/// The header as values in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is.
    pub kind: Kind,
    /// See [`flags`].
    pub flags: u8,
    /// Index of the job on the aggregator.
    pub job: u16,
    /// Random number of the job's epoch.
    pub cookie: u32,
    /// Membership of the job, never 0.
    pub epoch: u16,
    /// Sender of a contribution or probe, recipient of anything else.
    pub rank: u16,
    /// Block number in the epoch, below 2^48.
    pub block: u64,
    /// Digest of the call that the block belongs to.
    pub tag: u16,
}

/// Why bytes are not a header of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The version nibble is not [`VERSION`].
    Version(u8),
    /// The kind nibble, a flag or the reserved field has a value that version 1 does not define.
    Malformed,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Another version, or a value that version 1 does not define.
    #[inline(always)]
    pub const fn parse(b: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        if b[0] >> 4 != VERSION {
            return Err(HeaderError::Version(b[0] >> 4));
        }
        let Some(kind) = Kind::from_nibble(b[0] & 0x0f) else {
            return Err(HeaderError::Malformed);
        };
        if b[1] & !flags::KNOWN != 0 || b[20] != 0 || b[21] != 0 {
            return Err(HeaderError::Malformed);
        }
        Ok(Self {
            kind,
            flags: b[1],
            job: u16::from_be_bytes([b[2], b[3]]),
            cookie: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            epoch: u16::from_be_bytes([b[8], b[9]]),
            rank: u16::from_be_bytes([b[10], b[11]]),
            block: u64::from_be_bytes([0, 0, b[12], b[13], b[14], b[15], b[16], b[17]]),
            tag: u16::from_be_bytes([b[18], b[19]]),
        })
    }

    /// Writes the header. The bits of `block` above 48 are cut off.
    #[inline(always)]
    pub const fn emit(&self, b: &mut [u8; HEADER_LEN]) {
        let job = self.job.to_be_bytes();
        let cookie = self.cookie.to_be_bytes();
        let epoch = self.epoch.to_be_bytes();
        let rank = self.rank.to_be_bytes();
        let block = self.block.to_be_bytes();
        let tag = self.tag.to_be_bytes();
        *b = [
            VERSION << 4 | self.kind as u8,
            self.flags,
            job[0],
            job[1],
            cookie[0],
            cookie[1],
            cookie[2],
            cookie[3],
            epoch[0],
            epoch[1],
            rank[0],
            rank[1],
            block[2],
            block[3],
            block[4],
            block[5],
            block[6],
            block[7],
            tag[0],
            tag[1],
            0,
            0,
        ];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: Header = Header {
        kind: Kind::Contribution,
        flags: flags::NON_FINITE,
        job: 0x0102,
        cookie: 0x0304_0506,
        epoch: 0x0708,
        rank: 0x090a,
        block: 0x0b0c_0d0e_0f10,
        tag: 0x1112,
    };

    /// The golden bytes of ARCHITECTURE.md. They change only with [`VERSION`].
    #[test]
    fn golden_header() {
        let mut bytes = [0xff; HEADER_LEN];
        SAMPLE.emit(&mut bytes);
        assert_eq!(
            bytes,
            [
                0x11, 0x01, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c,
                0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x00, 0x00
            ]
        );
        assert_eq!(Header::parse(&bytes), Ok(SAMPLE));
    }

    #[test]
    fn another_version_is_refused_before_anything_else() {
        let mut bytes = [0xff; HEADER_LEN];
        SAMPLE.emit(&mut bytes);
        bytes[0] = 0x2f; // version 2, and a kind that does not exist
        assert_eq!(Header::parse(&bytes), Err(HeaderError::Version(2)));
    }

    #[test]
    fn undefined_values_are_refused() {
        for (at, value) in [(0, 0x10), (0, 0x17), (1, 0x02), (20, 1), (21, 1)] {
            let mut bytes = [0; HEADER_LEN];
            SAMPLE.emit(&mut bytes);
            bytes[at] = value;
            assert_eq!(Header::parse(&bytes), Err(HeaderError::Malformed), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_emits_the_same_bytes(mut bytes: [u8; HEADER_LEN]) {
            bytes[0] = VERSION << 4 | bytes[0] & 7;
            bytes[1] &= flags::KNOWN;
            bytes[20] = 0;
            bytes[21] = 0;
            if let Ok(header) = Header::parse(&bytes) {
                let mut again = [0; HEADER_LEN];
                header.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
