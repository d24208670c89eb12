//! ICMP errors about packets of others: what a host that sees none of the traffic can send.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use etherparse::{Icmpv4Header, Icmpv4Type, PacketBuilder};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;
use crate::namespace::Namespace;

/// Messages between two pauses of a storm.
const BURST: usize = 32;

/// Every code of destination unreachable, time exceeded and parameter problem (RFC 792, 1122,
/// 1191, 1812).
pub fn all_kinds() -> Vec<(u8, u8)> {
    let codes = |kind, last: u8| (0..=last).map(move |code| (kind, code));
    codes(3, 15).chain(codes(11, 1)).chain(codes(12, 2)).collect()
}

/// Which host is lied to, and about what.
#[derive(Clone, Debug)]
pub struct Lie {
    /// The host that gets the messages, which is to have sent the packets that they are about.
    pub victim: Ipv4Addr,
    /// The ports that these packets are to have come from.
    pub ports: RangeInclusive<u16>,
    /// Where they are to have gone.
    pub to: SocketAddrV4,
    /// Types and codes.
    pub kinds: Vec<(u8, u8)>,
}

impl Lie {
    fn messages(&self) -> Vec<(Ipv4Addr, Vec<u8>)> {
        let ports = || self.ports.clone();
        let all = self.kinds.iter().flat_map(|kind| ports().map(move |port| (*kind, port)));
        all.map(|(kind, port)| (self.victim, self.message(kind, port))).collect()
    }

    /// An ICMP message that quotes a full packet's first bytes.
    fn message(&self, (kind, code): (u8, u8), port: u16) -> Vec<u8> {
        const PAYLOAD: usize = 1430;
        let quoted = PacketBuilder::ipv4(self.victim.octets(), self.to.ip().octets(), 64)
            .udp(port, self.to.port());
        let mut packet = Vec::new();
        // A vector takes any bytes.
        let _ = quoted.write(&mut packet, &[0; PAYLOAD]);
        packet.truncate(28);
        let rest = match (kind, code) {
            (3, 4) => [0, 0, 2, 40], // a next hop that takes 552 bytes
            (12, _) => [20, 0, 0, 0],
            _ => [0; 4],
        };
        let icmp = Icmpv4Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest };
        let mut message = Icmpv4Header::with_checksum(icmp, &packet).to_bytes().to_vec();
        message.extend_from_slice(&packet);
        message
    }
}

/// A thread that tells lies again and again. It ends with this value.
#[derive(Debug)]
pub struct IcmpStorm {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl IcmpStorm {
    /// Starts one on this host, with a pause after each burst of 32 messages.
    pub fn start(host: &Namespace, lies: &[Lie], pause: Duration) -> Result<Self, Error> {
        let open = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
        let socket = host.run(open)?.map_err(Error::os("opening a raw socket"))?;
        let messages: Vec<_> = lies.iter().flat_map(Lie::messages).collect();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let work = move || {
            for (number, (to, message)) in messages.iter().cycle().enumerate() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let to = SocketAddrV4::new(*to, 0).into();
                count.fetch_add(socket.send_to(message, &to).is_ok().into(), Ordering::Relaxed);
                if number % BURST == 0 && !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
        };
        let thread = std::thread::Builder::new().name("icmp storm".into()).spawn(work);
        let thread = Some(thread.map_err(Error::os("starting a thread"))?);
        Ok(Self { stop, sent, thread })
    }

    /// How many messages it has sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for IcmpStorm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the thread was reported when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
