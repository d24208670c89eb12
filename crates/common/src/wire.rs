//! The wire format, version 2: a 22-byte header behind UDP, then the payload.
//!
//! 22 bytes put the payload 64 bytes into an untagged Ethernet/IPv4 frame (14 + 20 + 8 + 22).
//! Header fields are big-endian (network order). The payload is little-endian lanes, because the
//! machines that combine it are little-endian and do so once per packet (see [`crate::lanes`]).
//!
//! | bytes  | field   | meaning |
//! |--------|---------|---------|
//! | 0      | version, kind | high nibble [`VERSION`], low nibble [`Kind`] |
//! | 1      | flags   | bit 0: see [`flags`]; bits 1 to 3: a [`Reduction`]; the others are 0 |
//! | 2      | job     | index of the job on this aggregator |
//! | 3      | rank    | sender of a contribution, recipient of an answer; [`EVERYBODY`] in a multicast |
//! | 4..12  | cookie  | random number of the job's epoch, told only to its members |
//! | 12..14 | epoch   | membership of the job; never 0 |
//! | 14..20 | block   | block number within the epoch, 48 bits, never reused |
//! | 20..22 | tag     | 16 bits of the digest of the call: a mismatch is an error |
//!
//! Version 1 had a 32-bit cookie: too short for a secret that a flood may guess at.

/// Version of the wire format. A packet of another version changes nothing.
pub const VERSION: u8 = 2;
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 22;
/// Default UDP port of the aggregator's data path, the one SwitchML used (0xBEE0).
pub const DATA_PORT: u16 = 0xBEE0;
/// Most workers of one job: one bit each in a 64-bit map.
pub const MAX_WORKERS: usize = 64;
/// The rank of a result that goes to all members in one packet.
pub const EVERYBODY: u16 = 0xff;
/// Block numbers are 48 bits wide: at 100 Gbit/s and 1408 bytes a block they last a year.
pub const BLOCK_MASK: u64 = (1 << 48) - 1;

/// Flags of a block: bits of the header's `flags` byte, whose bits 1 to 3 are a [`Reduction`].
pub mod flags {
    /// The block holds a NaN or an infinity at some worker: every worker must see it as non-finite.
    pub const NON_FINITE: u8 = 1;
    /// All flags that version 2 defines.
    pub const KNOWN: u8 = NON_FINITE;
}

/// The lowest bit of the [`Reduction`] in the header's `flags` byte.
const REDUCTION_SHIFT: u32 = 1;

/// How the contributions to a block are combined, lane by lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reduction {
    /// Sums. The lanes' width is the senders' affair: no lane carries into the next one (see
    /// [`crate::lanes::Bias`]).
    #[default]
    Add = 0,
    /// The smallest of unsigned 16-bit lanes.
    Min16 = 1,
    /// The smallest of unsigned 32-bit lanes.
    Min32 = 2,
    /// The smallest of unsigned 64-bit lanes.
    Min64 = 3,
    /// The largest of unsigned 16-bit lanes.
    Max16 = 4,
    /// The largest of unsigned 32-bit lanes.
    Max32 = 5,
    /// The largest of unsigned 64-bit lanes.
    Max64 = 6,
    /// The lanes of one member, the root: its contribution alone is the result ([`crate::copies`]).
    Copy = 7,
}

impl Reduction {
    /// All reductions, by their numbers.
    pub const ALL: [Self; 8] = [
        Self::Add,
        Self::Min16,
        Self::Min32,
        Self::Min64,
        Self::Max16,
        Self::Max32,
        Self::Max64,
        Self::Copy,
    ];

    /// The reduction with this number, if version 2 defines it.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Add,
            1 => Self::Min16,
            2 => Self::Min32,
            3 => Self::Min64,
            4 => Self::Max16,
            5 => Self::Max32,
            6 => Self::Max64,
            7 => Self::Copy,
            _ => return None,
        })
    }

    /// The name in logs and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Min16 => "min16",
            Self::Min32 => "min32",
            Self::Min64 => "min64",
            Self::Max16 => "max16",
            Self::Max32 => "max32",
            Self::Max64 => "max64",
            Self::Copy => "copy",
        }
    }
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
    /// Aggregator to worker: another worker contributed to this block under another tag, length or
    /// reduction. The first payload word is the tag that the slot holds (little-endian, 64 bits).
    Mismatch = 6,
    /// Worker to aggregator: the result of this block, which is another member's to contribute. It
    /// is as long as the answer, so that the answer fits into its frame.
    Ask = 7,
}

impl Kind {
    /// Whether only aggregators send such packets.
    #[inline(always)]
    #[must_use]
    pub const fn is_answer(self) -> bool {
        matches!(self, Self::Result | Self::Pending | Self::ProbeReply | Self::Mismatch)
    }

    /// The kind with this number, if version 2 defines it.
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
            7 => Self::Ask,
            _ => return None,
        })
    }
}

/// The header as values in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is.
    pub kind: Kind,
    /// See [`flags`]. The byte's other bits are not flags: see `reduction`.
    pub flags: u8,
    /// How the block is combined. A result has that of its contributions; a packet without lanes
    /// has [`Reduction::Add`], or that of the packet that it answers.
    pub reduction: Reduction,
    /// Index of the job on the aggregator, below 256.
    pub job: u16,
    /// Sender of a contribution or probe, recipient of anything else; below 256.
    pub rank: u16,
    /// Random number of the job's epoch.
    pub cookie: u64,
    /// Membership of the job, never 0.
    pub epoch: u16,
    /// Block number in the epoch, below 2^48.
    pub block: u64,
    /// Bits of the digest of the call that the block belongs to.
    pub tag: u16,
}

/// Why bytes are not a header of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The version nibble is not [`VERSION`].
    Version(u8),
    /// The kind, a flag or the reduction has a value that version 2 does not define.
    Malformed,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Another version, or a value that version 2 does not define.
    #[inline(always)]
    pub const fn parse(b: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        if b[0] >> 4 != VERSION {
            return Err(HeaderError::Version(b[0] >> 4));
        }
        let Some(kind) = Kind::from_nibble(b[0] & 0x0f) else {
            return Err(HeaderError::Malformed);
        };
        let Some(reduction) = Reduction::from_number(b[1] >> REDUCTION_SHIFT) else {
            return Err(HeaderError::Malformed);
        };
        Ok(Self {
            kind,
            flags: b[1] & flags::KNOWN,
            reduction,
            job: b[2] as u16,
            rank: b[3] as u16,
            cookie: u64::from_be_bytes([b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11]]),
            epoch: u16::from_be_bytes([b[12], b[13]]),
            block: u64::from_be_bytes([0, 0, b[14], b[15], b[16], b[17], b[18], b[19]]),
            tag: u16::from_be_bytes([b[20], b[21]]),
        })
    }

    /// Writes the header. Bits beyond a field's width are cut off.
    #[inline(always)]
    pub const fn emit(&self, b: &mut [u8; HEADER_LEN]) {
        let cookie = self.cookie.to_be_bytes();
        let epoch = self.epoch.to_be_bytes();
        let block = self.block.to_be_bytes();
        let tag = self.tag.to_be_bytes();
        *b = [
            VERSION << 4 | self.kind as u8,
            self.flags & flags::KNOWN | (self.reduction as u8) << REDUCTION_SHIFT,
            self.job as u8,
            self.rank as u8,
            cookie[0],
            cookie[1],
            cookie[2],
            cookie[3],
            cookie[4],
            cookie[5],
            cookie[6],
            cookie[7],
            epoch[0],
            epoch[1],
            block[2],
            block[3],
            block[4],
            block[5],
            block[6],
            block[7],
            tag[0],
            tag[1],
        ];
    }

    /// The sum of the 16-bit words that [`Self::emit`] writes, were the rank 0: see
    /// [`crate::checksum`]. It is below 2^20.
    #[inline(always)]
    pub(crate) const fn words_without_rank(&self) -> u32 {
        let kind = (VERSION << 4 | self.kind as u8) as u32;
        let flags = (self.flags & flags::KNOWN | (self.reduction as u8) << REDUCTION_SHIFT) as u32;
        let job = self.job as u8 as u32;
        let tail = self.epoch as u32 + self.tag as u32;
        (kind << 8 | flags)
            + (job << 8)
            + tail
            + words(self.cookie)
            + words(self.block & BLOCK_MASK)
    }
}

/// The sum of a number's four 16-bit words.
#[inline(always)]
const fn words(number: u64) -> u32 {
    let lower = (number & 0xffff_ffff) as u32;
    let upper = (number >> 32) as u32;
    (lower & 0xffff) + (lower >> 16) + (upper & 0xffff) + (upper >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: Header = Header {
        kind: Kind::Contribution,
        flags: flags::NON_FINITE,
        reduction: Reduction::Add,
        job: 0x02,
        rank: 0x03,
        cookie: 0x0405_0607_0809_0a0b,
        epoch: 0x0c0d,
        block: 0x0e0f_1011_1213,
        tag: 0x1415,
    };

    /// The golden bytes of ARCHITECTURE.md. They change only with [`VERSION`].
    #[test]
    fn golden_header() {
        let mut bytes = [0xff; HEADER_LEN];
        SAMPLE.emit(&mut bytes);
        assert_eq!(
            bytes,
            [
                0x21, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d,
                0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15
            ]
        );
        assert_eq!(Header::parse(&bytes), Ok(SAMPLE));
    }

    /// The second byte of every reduction, with and without the flag.
    #[test]
    fn golden_reductions() {
        let bytes = [0x00, 0x02, 0x04, 0x06, 0x08, 0x0a, 0x0c, 0x0e];
        for (reduction, byte) in Reduction::ALL.into_iter().zip(bytes) {
            for flags in [0, flags::NON_FINITE] {
                let header = Header { reduction, flags, ..SAMPLE };
                let mut bytes = [0xff; HEADER_LEN];
                header.emit(&mut bytes);
                assert_eq!(bytes[1], byte | flags, "{}", reduction.name());
                assert_eq!(Header::parse(&bytes), Ok(header));
            }
        }
    }

    #[test]
    fn another_version_is_refused_before_anything_else() {
        let mut bytes = [0xff; HEADER_LEN];
        SAMPLE.emit(&mut bytes);
        bytes[0] = 0x3f; // version 3, and a kind that does not exist
        assert_eq!(Header::parse(&bytes), Err(HeaderError::Version(3)));
    }

    #[test]
    fn undefined_values_are_refused() {
        for (at, value) in [(0, 0x20), (0, 0x28), (1, 0x10), (1, 0x1e), (1, 0x80)] {
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
            bytes[1] &= 0x0f;
            if let Ok(header) = Header::parse(&bytes) {
                let mut again = [0; HEADER_LEN];
                header.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
