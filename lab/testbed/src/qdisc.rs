//! Rates: the token bucket of Linux, and what queueing disciplines count.

use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::tc::{
    TcAttribute, TcHandle, TcMessage, TcOption, TcStats2, TcStatsBasic, TcStatsQueue,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::error::Error;
use crate::netlink::Netlink;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// A rate and how it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits a second, counted from the Ethernet header to the end of the packet: without preamble,
    /// checksum and gap (24 bytes a packet on a cable), as everything in Linux counts.
    pub rate: u64,
    /// Most bytes that may pass at once after a pause.
    pub burst: u32,
    /// Most bytes that may wait; more are dropped.
    pub queue: u32,
}

impl Shape {
    /// Bytes that may wait where nothing else is said.
    pub const QUEUE: u32 = 4 << 20;

    /// A rate with 2.1 ms of burst (and never less than what keeps super-packets of 64 KiB whole)
    /// and a queue of 4 MiB.
    pub fn new(rate: u64) -> Self {
        let two_ms = (rate / 8).saturating_mul(2_100) / 1_000_000;
        let burst = u32::try_from(two_ms).unwrap_or(u32::MAX).max(MIN_BURST);
        Self { rate, burst, queue: Self::QUEUE }
    }
}

/// Reads a rate as people write it: `500mbit`, `1gbit`, `100kbit`, `9600`, or `none`. Bits a
/// second.
///
/// # Errors
/// Anything else, and 0.
pub fn parse_rate(text: &str) -> Result<Option<u64>, Error> {
    if text == "none" {
        return Ok(None);
    }
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "bit" => Some(1),
        "kbit" => Some(1_000),
        "mbit" => Some(1_000_000),
        "gbit" => Some(1_000_000_000),
        _ => None,
    };
    let rate = digits.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
    rate.filter(|&rate| rate >= 8).map(Some).ok_or_else(|| {
        Error::Config(format!("{text:?} is not a rate: expected `500mbit`, `1gbit`, … or `none`"))
    })
}

/// Room for one super-packet with the headers of its segments. A bucket that cannot take one has
/// it cut up before the queue, which costs more than anything else on the way.
const MIN_BURST: u32 = 72 << 10;

/// What a queueing discipline has sent and dropped. Each segment of a super-packet counts as a
/// packet with headers of its own, as on a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Bytes sent, from the Ethernet header on.
    pub bytes: u64,
    /// Packets sent. The kernel counts in 32 bits.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub drops: u64,
    /// Bytes that wait.
    pub backlog: u64,
}

impl Netlink {
    /// Puts a token bucket on what an interface sends, in place of what was there. What waits in
    /// one that is there goes on waiting, and its counters go on.
    pub(crate) fn set_shape(&mut self, index: u32, shape: &Shape) -> Result<(), Error> {
        self.set_bucket(index, shape, 0)
    }

    /// Makes a bucket that is there let nothing through: a byte takes a second. What is sent
    /// meanwhile waits, up to `queue` bytes, and is dropped beyond them. A bucket that is changed
    /// is full. With the longest overhead counted for every packet, that is enough for two at most.
    pub(crate) fn hold(&mut self, index: u32, queue: u32) -> Result<(), Error> {
        let held = Shape { rate: 8, burst: MIN_BURST, queue };
        self.set_bucket(index, &held, u16::MAX)
    }

    /// `overhead`: bytes that every packet counts besides its own.
    fn set_bucket(&mut self, index: u32, shape: &Shape, overhead: u16) -> Result<(), Error> {
        let bytes_a_second = shape.rate / 8;
        if bytes_a_second == 0 {
            return Err(Error::Config("a rate must be at least 8 bits a second".into()));
        }
        let rate = u32::try_from(bytes_a_second).unwrap_or(u32::MAX);
        // struct tc_tbf_qopt: rate and peak rate (struct tc_ratespec), limit, buffer, mtu. With the
        // link layer named the kernel wants no table of transmission times.
        let mut parameters = vec![0, TC_LINKLAYER_ETHERNET];
        parameters.extend(overhead.to_ne_bytes());
        parameters.extend([0; 4]);
        parameters.extend(rate.to_ne_bytes());
        parameters.extend([0; 12]);
        parameters.extend(shape.queue.to_ne_bytes());
        parameters.extend([0; 8]);
        let option = |kind, value| TcOption::Other(DefaultNla::new(kind, value));
        let mut options = vec![
            option(TCA_TBF_PARMS, parameters),
            option(TCA_TBF_BURST, shape.burst.to_ne_bytes().to_vec()),
        ];
        if bytes_a_second > u64::from(u32::MAX) {
            options.push(option(TCA_TBF_RATE64, bytes_a_second.to_ne_bytes().to_vec()));
        }
        let mut message = TcMessage::default();
        message.header.family = AddressFamily::Unspec;
        message.header.index = index.cast_signed();
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major: 1, minor: 0 };
        message.attributes = vec![TcAttribute::Kind("tbf".into()), TcAttribute::Options(options)];
        let what = || format!("setting a rate of {} bit/s (qdisc tbf)", shape.rate);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(what, Message::NewQueueDiscipline(message), flags).map(drop)
    }

    /// Counters of the root queueing disciplines, by interface index. Interfaces that have none do
    /// not appear.
    pub(crate) fn queue_counters(&mut self) -> Result<Vec<(u32, QueueCounters)>, Error> {
        let what = || "reading the queues' counters".to_owned();
        let request = Message::GetQueueDiscipline(TcMessage::default());
        let answers = self.request(what, request, NLM_F_DUMP)?;
        let read = answers.into_iter().filter_map(|answer| {
            let Message::NewQueueDiscipline(message) = answer else { return None };
            if message.header.parent != TcHandle::ROOT {
                return None;
            }
            let stats = message.attributes.iter().find_map(|attribute| match attribute {
                TcAttribute::Stats2(stats) => Some(sum(stats)),
                _ => None,
            });
            Some((message.header.index.cast_unsigned(), stats?))
        });
        Ok(read.collect())
    }
}

fn sum(stats: &[TcStats2]) -> QueueCounters {
    let mut counters = QueueCounters::default();
    for part in stats {
        match part {
            TcStats2::Basic(TcStatsBasic { bytes, packets, .. }) => {
                counters.bytes = *bytes;
                counters.packets = u64::from(*packets);
            }
            TcStats2::Queue(TcStatsQueue { backlog, drops, .. }) => {
                counters.backlog = u64::from(*backlog);
                counters.drops = u64::from(*drops);
            }
            _ => {}
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_people_write_them() {
        let rate = |text| parse_rate(text).expect("it is a rate");
        assert_eq!(rate("none"), None);
        assert_eq!(rate("500mbit"), Some(500_000_000));
        assert_eq!(rate("10gbit"), Some(10_000_000_000));
        assert_eq!(rate("9600"), Some(9600));
        for wrong in ["", "mbit", "0", "5mb", "-1gbit", "1.5gbit", "99999999999999gbit"] {
            parse_rate(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_burst_is_two_milliseconds_but_takes_a_super_packet() {
        assert_eq!(Shape::new(1_000_000_000).burst, 262_500);
        assert!(Shape::new(10_000_000).burst > 65_536);
    }
}
