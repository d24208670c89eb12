//! What the processes of a host tell each other over their sockets, and the descriptors that go
//! with it. One message is one packet (`SOCK_SEQPACKET`) of JSON.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use xdp_agg_forks::hold;

use crate::options::MAX_PROCESSES;
use crate::{Error, Options};

/// Version of messages and segment.
pub(crate) const VERSION: u32 = 5;

/// Bytes of a message at most: two texts that are [`cut`], all of whose characters are escaped.
const LIMIT: usize = 16 << 10;
/// Descriptors with a message at most: the segment, and a bell for each process.
const DESCRIPTORS: usize = MAX_PROCESSES + 1;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    Refused(#[serde(with = "refusal")] Error),
}

/// Which process comes, and what has to be the same in all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) local_rank: u32,
    pub(crate) job: String,
    pub(crate) run: String,
    local_size: u64,
    segment: u64,
    buffers: u64,
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
            job: cut(&options.job),
            run: cut(&options.run),
            local_size: options.local_size as u64,
            segment: options.segment as u64,
            buffers: options.buffers as u64,
            depth: options.depth as u64,
            slice_blocks: options.slice_blocks as u64,
            scan_ahead: options.scan_ahead as u64,
            digest: options.digest,
        }
    }

    fn common(&self) -> [(&'static str, u64); 8] {
        [
            ("version", self.version.into()),
            ("local_size (LOCAL_WORLD_SIZE)", self.local_size),
            ("segment", self.segment),
            ("buffers (XDP_AGG_BUFFERS)", self.buffers),
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
    serde_json::to_vec(message).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Option<Message> {
    serde_json::from_slice(bytes).ok()
}

/// The first kibibyte of a text.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(1024)].to_owned()
}

/// An error in a message: those that others tell apart, and the words of all others.
mod refusal {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::cut;
    use crate::Error;
    use crate::error::MEETING;

    #[derive(Serialize, Deserialize)]
    enum Refusal {
        Mismatch { ours: String, theirs: String },
        NameInUse { job: String, pid: i32 },
        PeerLost { local_rank: usize, pid: i32 },
        Deadline { after: Duration, waiting_for: Vec<usize> },
        Other { text: String },
    }

    pub(super) fn serialize<S: Serializer>(error: &Error, to: S) -> Result<S::Ok, S::Error> {
        let refusal = match error {
            Error::Mismatch { ours, theirs } => {
                Refusal::Mismatch { ours: cut(ours), theirs: cut(theirs) }
            }
            Error::NameInUse { job, pid } => Refusal::NameInUse { job: cut(job), pid: *pid },
            Error::PeerLost { local_rank, pid, .. } => {
                Refusal::PeerLost { local_rank: *local_rank, pid: *pid }
            }
            Error::Deadline { after, waiting_for, .. } => {
                Refusal::Deadline { after: *after, waiting_for: waiting_for.clone() }
            }
            Error::Elsewhere { text, .. } => Refusal::Other { text: cut(text) },
            other => Refusal::Other { text: cut(&other.to_string()) },
        };
        refusal.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Error, D::Error> {
        Ok(match Refusal::deserialize(from)? {
            Refusal::Mismatch { ours, theirs } => Error::Mismatch { ours, theirs },
            Refusal::NameInUse { job, pid } => Error::NameInUse { job, pid },
            Refusal::PeerLost { local_rank, pid } => {
                let how = "its process ended while the group was being made";
                Error::PeerLost { local_rank, pid, how }
            }
            Refusal::Deadline { after, waiting_for } => {
                Error::Deadline { what: MEETING, after, waiting_for, known: String::new() }
            }
            Refusal::Other { text } => Error::Elsewhere { local_rank: 0, code: 0, text },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::MEETING;
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
            bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_usize..9, at: u8,
        ) {
            let _ = decode(&bytes);
            let mut honest = encode(&messages()[kind]);
            let at = usize::from(at) % honest.len();
            honest.splice(at..(at + bytes.len()).min(honest.len()), bytes);
            let _ = decode(&honest);
        }
    }

    #[test]
    fn the_longest_texts_fit_a_message() {
        let mut options = Options::new("\u{1}".repeat(5000), 1, 3);
        options.run = "ä".repeat(5000);
        for message in [
            Message::Hello(Hello::new(&options)),
            Message::Refused(Error::Mismatch { ours: options.job.clone(), theirs: options.run }),
        ] {
            let bytes = encode(&message);
            assert!((6 * 1024..LIMIT).contains(&bytes.len()), "{}", bytes.len());
            assert!(decode(&bytes).is_some());
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
