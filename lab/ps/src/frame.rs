//! Frames: a header of 32 bytes, then a payload. Everything is little-endian.
//!
//! | bytes  | field    | meaning |
//! |--------|----------|---------|
//! | 0      | magic    | `P` |
//! | 1      | version  | [`VERSION`] |
//! | 2      | kind     | [`Kind`] |
//! | 3      | element  | an [`ElementType`] in pushes and results, else 0 |
//! | 4..8   | len      | bytes of the payload, [`MAX_PIECE`] at most |
//! | 8..16  | sequence | number of the call |
//! | 16..24 | piece    | number of the piece in the call |
//! | 24..32 | call     | what all workers must say alike of the call: its length and operation |

use std::io;

use crate::element::{self, ElementType};
use crate::socket::{self, Stream};

/// Version of the frames. Another one is refused in words.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 32;
/// Most bytes of a piece.
pub const MAX_PIECE: usize = 1 << 20;
/// Most workers of a job.
pub const MAX_WORLD: u16 = 256;
/// Most bytes of a job's name.
pub(crate) const MAX_NAME: usize = 200;
const MAGIC: u8 = b'P';

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A worker introduces itself: [`Hello`].
    Hello = 1,
    /// All workers of the job are here.
    Welcome = 2,
    /// A worker's part of a piece.
    Push = 3,
    /// The sum of a piece.
    Result = 4,
    /// The job, or the attempt to join it, has failed: [`Failure`].
    Failed = 5,
    /// A worker leaves; it pushes no more.
    Bye = 6,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) element: Option<ElementType>,
    pub(crate) len: u32,
    pub(crate) sequence: u64,
    pub(crate) piece: u64,
    pub(crate) call: u64,
}

impl Header {
    /// A frame that is about no piece.
    pub(crate) const fn plain(kind: Kind, len: usize) -> Self {
        Self { kind, element: None, len: len as u32, sequence: 0, piece: 0, call: 0 }
    }

    pub(crate) fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let element = element::number(self.element);
        bytes[..4].copy_from_slice(&[MAGIC, VERSION, self.kind as u8, element]);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.piece.to_le_bytes());
        bytes[24..].copy_from_slice(&self.call.to_le_bytes());
        bytes
    }

    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, String> {
        if bytes[0] != MAGIC {
            return Err("it is not a frame of the parameter server's protocol".into());
        }
        if bytes[1] != VERSION {
            return Err(format!("its protocol version is {}, expected {VERSION}", bytes[1]));
        }
        let kind = Kind::from_repr(bytes[2])
            .ok_or_else(|| format!("there is no frame of kind {}", bytes[2]))?;
        let element = element::of_number(bytes[3]);
        let is_piece = matches!(kind, Kind::Push | Kind::Result);
        if element.is_some() != is_piece || (bytes[3] != 0 && !is_piece) {
            return Err(format!("element type {} does not go with a {kind:?}", bytes[3]));
        }
        let (words, _) = bytes[8..].as_chunks();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if len as usize > MAX_PIECE {
            return Err(format!("{len} bytes in a frame, at most {MAX_PIECE} are expected"));
        }
        if element.is_some_and(|element| !(len as usize).is_multiple_of(element.size())) {
            return Err(format!("{len} bytes are not whole elements"));
        }
        let [sequence, piece, call] = [word(0), word(1), word(2)];
        Ok(Self { kind, element, len, sequence, piece, call })
    }

    /// What a push says of its call, for messages.
    pub(crate) fn describe(&self) -> String {
        let element = self.element.map_or("?", ElementType::name);
        let operation = crate::client::operation_name(self.call);
        format!(
            "call {} ({operation} of {} {element}), piece {} of {} bytes",
            self.sequence,
            self.call >> 8,
            self.piece,
            self.len
        )
    }
}

/// A worker introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u16,
    pub(crate) world: u16,
    /// How long the others may keep this worker waiting.
    pub(crate) deadline_ms: u32,
    pub(crate) job: String,
}

impl Hello {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.job.len());
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.world.to_le_bytes());
        bytes.extend(self.deadline_ms.to_le_bytes());
        bytes.extend(self.job.as_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Some(([a, b, c, d, ms @ ..], job)) = bytes.split_first_chunk::<8>() else {
            return Err("a Hello of less than 8 bytes".into());
        };
        let (rank, world) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
        let job = std::str::from_utf8(job).map_err(|_| "a job's name is not UTF-8")?;
        if job.is_empty() || job.len() > MAX_NAME {
            return Err(format!("a job's name has {} bytes, expected 1 to {MAX_NAME}", job.len()));
        }
        if world == 0 || world > MAX_WORLD || rank >= world {
            return Err(format!(
                "rank {rank} in a world of {world}: ranks go from 0 to the world size less one, \
                 and the world has at least 1 and at most {MAX_WORLD} workers"
            ));
        }
        Ok(Self { rank, world, deadline_ms: u32::from_le_bytes(*ms), job: job.into() })
    }
}

/// Why a job has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub(crate) enum Cause {
    /// The attempt to join.
    Refused = 1,
    /// A worker's connection ended: the rank.
    Lost = 2,
    /// Workers push different things: the rank that came second.
    Mismatch = 3,
    /// Parts of a piece are missing for too long: the ranks.
    Deadline = 4,
    /// The server is being stopped.
    Stopped = 5,
    /// A sum of integers does not fit.
    Overflow = 6,
}

/// A failure as all workers of the job are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) ranks: Vec<u16>,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(cause: Cause, ranks: &[u16], text: impl Into<String>) -> Self {
        Self { cause, ranks: ranks.into(), text: text.into() }
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![self.cause as u8, 0];
        bytes.extend((self.ranks.len() as u16).to_le_bytes());
        bytes.extend(self.ranks.iter().flat_map(|rank| rank.to_le_bytes()));
        bytes.extend(self.text.as_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let ([cause, _, low, high], rest) = bytes.split_first_chunk::<4>()?;
        let cause = Cause::from_repr(*cause)?;
        let (ranks, text) =
            rest.split_at_checked(2 * usize::from(u16::from_le_bytes([*low, *high])))?;
        let ranks = ranks.as_chunks().0.iter().map(|rank| u16::from_le_bytes(*rank)).collect();
        Some(Self { cause, ranks, text: String::from_utf8_lossy(text).into_owned() })
    }
}

/// What reading has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A header is here; its payload is what is read next.
    Header(Header),
    /// The payload of this header is whole.
    Payload(Header),
    /// Something was read.
    Partial,
    /// Nothing is there to be read.
    Blocked,
    /// The other side has ended the connection.
    Closed,
}

/// The reading end of a connection, between two calls of read.
#[derive(Debug)]
pub(crate) struct Inbox {
    header: [u8; HEADER_LEN],
    have: usize,
    current: Option<Header>,
    got: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { header: [0; HEADER_LEN], have: 0, current: None, got: 0 }
    }
}

impl Inbox {
    /// The header whose payload is being read.
    pub(crate) const fn current(&self) -> Option<Header> {
        self.current
    }

    /// Whether nothing of a further frame has come.
    pub(crate) const fn is_between_frames(&self) -> bool {
        self.current.is_none() && self.have == 0
    }

    /// Reads once. `payload` is where the payload of [`Self::current`] belongs, all of it, the same
    /// memory until it is whole. The next header comes in with the end of a payload.
    ///
    /// # Errors
    /// `InvalidData`, in words, for bytes that are not a frame; else the system's.
    pub(crate) fn step(&mut self, stream: &Stream, payload: &mut [u8]) -> io::Result<Step> {
        let Some(header) = self.current else {
            if self.have < HEADER_LEN {
                match socket::read(stream, &mut [], &mut self.header[self.have..])? {
                    None => return Ok(Step::Blocked),
                    Some(0) => return Ok(Step::Closed),
                    Some(read) => self.have += read,
                }
            }
            if self.have < HEADER_LEN {
                return Ok(Step::Partial);
            }
            let header = Header::parse(&self.header);
            let header = header.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
            (self.current, self.have, self.got) = (Some(header), 0, 0);
            return Ok(Step::Header(header));
        };
        let len = header.len as usize;
        if self.got < len {
            let rest = &mut payload[self.got..len];
            match socket::read(stream, rest, &mut self.header)? {
                None => return Ok(Step::Blocked),
                Some(0) => return Ok(Step::Closed),
                Some(read) => {
                    let of_payload = read.min(len - self.got);
                    self.got += of_payload;
                    self.have = read - of_payload;
                }
            }
        }
        if self.got < len {
            return Ok(Step::Partial);
        }
        self.current = None;
        Ok(Step::Payload(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = (Kind, Option<ElementType>)> {
        prop_oneof![
            Just((Kind::Push, Some(ElementType::F32))),
            Just((Kind::Result, Some(ElementType::I32))),
            Just((Kind::Push, Some(ElementType::F64))),
            Just((Kind::Hello, None)),
            Just((Kind::Bye, None)),
        ]
    }

    proptest! {
        #[test]
        fn headers_survive(
            (kind, element) in kinds(), len in 0_u32..100, sequence: u64, piece: u64, call: u64,
        ) {
            let header = Header { kind, element, len: len * 8, sequence, piece, call };
            prop_assert_eq!(Header::parse(&header.emit()), Ok(header));
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: [u8; HEADER_LEN], payload: Vec<u8>) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(header.emit(), bytes);
                prop_assert!(header.len as usize <= MAX_PIECE);
            }
            if let Ok(hello) = Hello::parse(&payload) {
                prop_assert_eq!(hello.emit(), payload.clone());
            }
            let _ = Failure::parse(&payload);
        }

        #[test]
        fn failures_survive(ranks: Vec<u16>, text in "[a-z ]{0,40}") {
            let failure = Failure { cause: Cause::Deadline, ranks, text };
            prop_assert_eq!(Failure::parse(&failure.emit()), Some(failure));
        }

        /// Frames come out as they went in, however the stream cuts them.
        #[test]
        fn a_stream_of_frames_is_read_as_it_was_written(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
            cuts in prop::collection::vec(1_usize..200, 1..20),
        ) {
            let (ours, theirs) = socket::pair();
            let mut bytes = Vec::new();
            for (i, payload) in payloads.iter().enumerate() {
                let plain = Header::plain(Kind::Hello, payload.len());
                let header = Header { piece: i as u64, ..plain };
                bytes.extend(header.emit());
                bytes.extend(payload);
            }
            let (mut inbox, mut payload, mut seen) = (Inbox::default(), vec![0; 300], Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !bytes.is_empty() {
                let cut = cuts.next().unwrap_or(1).min(bytes.len());
                socket::write(&theirs, &[io::IoSlice::new(&bytes[..cut])]).expect("it takes it");
                bytes.drain(..cut);
                loop {
                    match inbox.step(&ours, &mut payload).expect("frames") {
                        Step::Payload(header) => {
                            prop_assert_eq!(header.piece, seen.len() as u64);
                            seen.push(payload[..header.len as usize].to_vec());
                        }
                        Step::Blocked => break,
                        Step::Header(_) | Step::Partial => {}
                        Step::Closed => panic!("nobody closed it"),
                    }
                }
            }
            prop_assert!(inbox.is_between_frames());
            prop_assert_eq!(seen, payloads);
        }
    }
}
