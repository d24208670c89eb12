//! What the processes of a host tell each other over their sockets, and the descriptors that go
//! with it. One message is one packet (`SOCK_SEQPACKET`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use xdp_agg_forks::hold;

use crate::error::MEETING;
use crate::options::MAX_PROCESSES;
use crate::{Error, Options};

/// Version of messages and segment.
pub(crate) const VERSION: u32 = 3;
const MAGIC: u32 = u32::from_le_bytes(*b"xaH\x01");

/// Bytes of a message at most.
const LIMIT: usize = 4096;
/// Descriptors with a message at most: the segment, and a bell for each process.
const DESCRIPTORS: usize = MAX_PROCESSES + 1;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// To local rank 0, with the sender's bell.
    Hello(Hello),
    /// To all, with the segment and all bells.
    Welcome { segment: u64 },
    /// To local rank 0: mapped and ready.
    Ready,
    /// To all: all are ready.
    Go,
    /// It will not be: why.
    Refused(Error),
}

/// Which process comes, and what has to be the same in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) local_rank: u32,
    pub(crate) job: String,
    pub(crate) run: String,
    local_size: u64,
    segment: u64,
    depth: u64,
    slice_blocks: u64,
    scan_ahead: u64,
    digest: u64,
}

impl Hello {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            version: VERSION,
            local_rank: options.local_rank as u32,
            job: options.job.clone(),
            run: options.run.clone(),
            local_size: options.local_size as u64,
            segment: options.segment as u64,
            depth: options.depth as u64,
            slice_blocks: options.slice_blocks as u64,
            scan_ahead: options.scan_ahead as u64,
            digest: options.digest,
        }
    }

    fn common(&self) -> [(&'static str, u64); 7] {
        [
            ("version", self.version.into()),
            ("local_size (LOCAL_WORLD_SIZE)", self.local_size),
            ("segment", self.segment),
            ("depth", self.depth),
            ("slice_blocks", self.slice_blocks),
            ("scan_ahead", self.scan_ahead),
            ("digest of the settings", self.digest),
        ]
    }

    /// What differs from `other`, in words about each, or `None`.
    pub(crate) fn differs(&self, other: &Self) -> Option<(String, String)> {
        let pairs = self.common().into_iter().zip(other.common());
        let differing: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
        let words =
            |rank: u32, parts: Vec<String>| format!("local rank {rank} has {}", parts.join(", "));
        let part = |(name, value): (&str, u64)| format!("{name} {value}");
        (!differing.is_empty()).then(|| {
            (
                words(self.local_rank, differing.iter().map(|(ours, _)| part(*ours)).collect()),
                words(
                    other.local_rank,
                    differing.iter().map(|(_, theirs)| part(*theirs)).collect(),
                ),
            )
        })
    }
}

/// Sends a message with descriptors.
pub(crate) fn send(
    socket: impl AsFd,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let bytes = encode(message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "room for all");
    }
    let parts = [IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives a message with its descriptors; `None` at the end of the connection.
pub(crate) fn receive(socket: impl AsFd) -> rustix::io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut bytes = [0; LIMIT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // The caller has seen that something is there.
    let hold = hold();
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights.map(|right| hold.own(right)));
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    match decode(&bytes[..received.bytes]) {
        Some(message) => Ok(Some((message, descriptors))),
        None => Err(rustix::io::Errno::PROTO),
    }
}

fn encode(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = |value: u64| out.extend(value.to_le_bytes());
    number(MAGIC.into());
    match message {
        Message::Hello(hello) => {
            number(1);
            number(hello.local_rank.into());
            for (_, value) in hello.common() {
                number(value);
            }
            text(&mut out, &hello.job);
            text(&mut out, &hello.run);
        }
        Message::Welcome { segment } => {
            number(2);
            number(*segment);
        }
        Message::Ready => number(3),
        Message::Go => number(4),
        Message::Refused(error) => {
            number(5);
            encode_error(&mut out, error);
        }
    }
    out
}

fn encode_error(out: &mut Vec<u8>, error: &Error) {
    let number = |out: &mut Vec<u8>, value: u64| out.extend(value.to_le_bytes());
    match error {
        Error::Mismatch { ours, theirs } => {
            number(out, 1);
            text(out, ours);
            text(out, theirs);
        }
        Error::NameInUse { job, pid } => {
            number(out, 2);
            number(out, u64::from(pid.cast_unsigned()));
            text(out, job);
        }
        Error::PeerLost { local_rank, pid, .. } => {
            number(out, 3);
            number(out, *local_rank as u64);
            number(out, u64::from(pid.cast_unsigned()));
        }
        Error::Deadline { after, waiting_for, .. } => {
            number(out, 4);
            number(out, after.as_millis() as u64);
            number(out, waiting_for.len() as u64);
            for rank in waiting_for {
                number(out, *rank as u64);
            }
        }
        Error::Elsewhere { text: words, .. } => {
            number(out, 5);
            text(out, words);
        }
        other => {
            number(out, 5);
            text(out, &other.to_string());
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(1024)];
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Reads what `encode` wrote, and nothing else.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn error(&mut self) -> Option<Error> {
        Some(match self.number()? {
            1 => Error::Mismatch { ours: self.text()?, theirs: self.text()? },
            2 => {
                let pid = self.small()?.cast_signed();
                Error::NameInUse { job: self.text()?, pid }
            }
            3 => Error::PeerLost {
                local_rank: self.small()? as usize,
                pid: self.small()?.cast_signed(),
                how: "its process ended while the group was being made",
            },
            4 => {
                let after = Duration::from_millis(self.number()?);
                let count = self.number()?.min(MAX_PROCESSES as u64);
                let waiting_for: Option<_> =
                    (0..count).map(|_| Some(self.small()? as usize)).collect();
                Error::Deadline {
                    what: MEETING,
                    after,
                    waiting_for: waiting_for?,
                    known: String::new(),
                }
            }
            5 => Error::Elsewhere { local_rank: 0, code: 0, text: self.text()? },
            _ => return None,
        })
    }
}

fn decode(bytes: &[u8]) -> Option<Message> {
    let mut from = Reader(bytes);
    if from.number()? != MAGIC.into() {
        return None;
    }
    let message = match from.number()? {
        1 => Message::Hello(Hello {
            local_rank: from.small()?,
            version: from.small()?,
            local_size: from.number()?,
            segment: from.number()?,
            depth: from.number()?,
            slice_blocks: from.number()?,
            scan_ahead: from.number()?,
            digest: from.number()?,
            job: from.text()?,
            run: from.text()?,
        }),
        2 => Message::Welcome { segment: from.number()? },
        3 => Message::Ready,
        4 => Message::Go,
        5 => Message::Refused(from.error()?),
        _ => return None,
    };
    from.0.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let mut options = Options::new("jöb", 1, 3);
        options.digest = u64::MAX;
        options.run = "77.1".into();
        vec![
            Message::Hello(Hello::new(&options)),
            Message::Welcome { segment: 7 << 30 },
            Message::Ready,
            Message::Go,
            Message::Refused(Error::Mismatch { ours: "a".into(), theirs: "b".into() }),
            Message::Refused(Error::NameInUse { job: "j".into(), pid: 77 }),
            Message::Refused(Error::PeerLost {
                local_rank: 2,
                pid: 5,
                how: "its process ended while the group was being made",
            }),
            Message::Refused(Error::Deadline {
                what: MEETING,
                after: Duration::from_millis(1500),
                waiting_for: vec![1, 4],
                known: String::new(),
            }),
            Message::Refused(Error::Elsewhere { local_rank: 0, code: 0, text: "w".into() }),
        ]
    }

    #[test]
    fn what_is_sent_is_received() {
        for message in messages() {
            let bytes = encode(&message);
            assert_eq!(decode(&bytes).as_ref(), Some(&message));
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut]), None, "{message:?} cut at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(
            bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u64..7,
        ) {
            let _ = decode(&bytes);
            let mut framed = u64::from(MAGIC).to_le_bytes().to_vec();
            framed.extend(kind.to_le_bytes());
            framed.extend(bytes);
            let _ = decode(&framed);
        }
    }

    #[test]
    fn a_difference_is_named_on_both_sides() {
        let ours = Hello::new(&Options::new("j", 0, 3));
        let theirs = Hello::new(&Options::new("j", 1, 4));
        let (ours, theirs) = ours.differs(&theirs).expect("they differ");
        assert_eq!(ours, "local rank 0 has local_size (LOCAL_WORLD_SIZE) 3");
        assert_eq!(theirs, "local rank 1 has local_size (LOCAL_WORLD_SIZE) 4");
    }
}
