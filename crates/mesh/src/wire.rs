//! What stands before every message between two ranks.

use crate::call::{Call, Collective};

/// Bytes of a header.
pub const HEADER_LEN: usize = 48;
/// First bytes of a header; the last of them is the version.
const MAGIC: [u8; 4] = *b"xam\x01";
/// Longest text of a notice in bytes.
pub(crate) const MAX_NOTICE: usize = 2048;
const NOBODY: u16 = u16::MAX;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// `len` bytes of a call, from this offset of the vector on.
    Data { call: Call, offset: u64, len: u64 },
    /// The sender gives up; a text of this length follows.
    Stop { by: u16, culprit: Option<u16>, len: usize },
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        match self {
            Self::Data { call, offset, len } => {
                let Call { sequence, collective, count, element, op, root, algorithm } = call;
                put(4, &[1, *collective as u8, *element, *op]);
                put(8, &root.to_le_bytes());
                put(10, &[algorithm.0, 0]);
                put(12, &algorithm.1.to_le_bytes());
                put(16, &sequence.to_le_bytes());
                put(24, &count.to_le_bytes());
                put(32, &offset.to_le_bytes());
                put(40, &len.to_le_bytes());
            }
            Self::Stop { by, culprit, len } => {
                put(4, &[2]);
                put(8, &by.to_le_bytes());
                put(10, &culprit.unwrap_or(NOBODY).to_le_bytes());
                put(40, &(*len as u64).to_le_bytes());
            }
        }
        bytes
    }

    /// None: these bytes are not a header.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u64_at = |at: usize| {
            bytes[at..].first_chunk().map_or(0, |chunk: &[u8; 8]| u64::from_le_bytes(*chunk))
        };
        if bytes[..4] != MAGIC {
            return None;
        }
        let len = u64_at(40);
        match bytes[4] {
            1 => {
                let parameter = u32::from(u16_at(12)) | u32::from(u16_at(14)) << 16;
                let call = Call {
                    sequence: u64_at(16),
                    collective: Collective::of_code(bytes[5])?,
                    count: u64_at(24),
                    element: bytes[6],
                    op: bytes[7],
                    root: u16_at(8),
                    algorithm: (bytes[10], parameter),
                };
                Some(Self::Data { call, offset: u64_at(32), len })
            }
            2 if len <= MAX_NOTICE as u64 => {
                let culprit = Some(u16_at(10)).filter(|rank| *rank != NOBODY);
                Some(Self::Stop { by: u16_at(8), culprit, len: len as usize })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Algorithm;
    use proptest::prelude::*;
    use xdp_agg_quantize::Op;

    #[test]
    fn headers_survive_the_wire() {
        let call = Call::new(Collective::Reduce, "f32", 1 << 40)
            .at(513)
            .with(Op::Max)
            .by(Algorithm::PipelinedChain { chunk: 1 << 20 });
        let call = Call { sequence: u64::MAX - 3, ..call };
        let data = Header::Data { call, offset: 1 << 33, len: 77 };
        assert_eq!(Header::decode(&data.encode()), Some(data));
        for culprit in [None, Some(0), Some(9)] {
            let stop = Header::Stop { by: 4, culprit, len: 100 };
            assert_eq!(Header::decode(&stop.encode()), Some(stop));
        }
        let long = Header::Stop { by: 4, culprit: None, len: MAX_NOTICE + 1 };
        assert_eq!(Header::decode(&long.encode()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in prop::array::uniform32(any::<u8>()),
            known in any::<bool>(),
        ) {
            let mut header = [0; HEADER_LEN];
            header[..32].copy_from_slice(&bytes);
            if known {
                header[..4].copy_from_slice(&MAGIC);
            }
            if let Some(read) = Header::decode(&header) {
                prop_assert_eq!(Header::decode(&read.encode()), Some(read));
            }
        }
    }
}
