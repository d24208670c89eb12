//! Small pieces of traffic that tests and scenarios need and no program is installed for.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};

use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Type, NetSlice, SlicedPacket, TransportSlice,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::sys;

/// Most bytes of one train (`UDP_SEGMENT`) over IPv4.
pub const MAX_TRAIN: usize = 65_535 - 28;
/// How long a transfer may stand still.
const STALL: Duration = Duration::from_secs(10);

/// Has a socket cut every send into packets of this payload, which cross the stack as one train.
pub fn send_trains(socket: &UdpSocket, payload: u16) -> Result<(), Error> {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, payload.into())
        .map_err(Error::os("turning on UDP_SEGMENT"))
}

/// Has the kernel say what it knows of a socket's packets: also that a queue was full, which a
/// socket is not told otherwise.
pub fn tell_all_errors(socket: &UdpSocket) -> Result<(), Error> {
    sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1)
        .map_err(Error::os("turning on IP_RECVERR"))
}

/// A UDP socket in a namespace, bound to an address of it, with large buffers and a time limit for
/// receiving.
pub fn udp_socket(
    namespace: &Namespace,
    address: SocketAddrV4,
    limit: Duration,
) -> Result<UdpSocket, Error> {
    let open = || -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            // Above the machine's limit where that is allowed; otherwise it stays as it is.
            let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, option, 32 << 20);
        }
        socket.bind(&address.into())?;
        socket.set_read_timeout(Some(limit))?;
        Ok(socket.into())
    };
    let what = format!("opening UDP socket {address} in {}", namespace.label());
    namespace.run(open)?.map_err(Error::os(what))
}

/// Sends this number of bytes through one TCP connection and returns how long it took until all had
/// been read.
///
/// # Errors
/// No connection, or it stood still for ten seconds.
pub fn tcp_transfer(
    from: &Namespace,
    to: (&Namespace, Ipv4Addr),
    bytes: u64,
) -> Result<Duration, Error> {
    let (receiver, address) = to;
    let what = format!("sending {bytes} bytes by TCP from {} to {address}", from.label());
    let listen = || TcpListener::bind(SocketAddrV4::new(address, 0));
    let listener = receiver.run(listen)?.map_err(Error::os(what.clone()))?;
    let target = listener.local_addr().map_err(Error::os(what.clone()))?;
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.connect_timeout(&target.into(), STALL)?;
        socket.set_write_timeout(Some(STALL))?;
        Ok::<_, io::Error>(socket)
    };
    let sender = from.run(connect)?.map_err(Error::os(what.clone()))?;
    let transfer = || -> io::Result<Duration> {
        let (stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(STALL))?;
        let start = Instant::now();
        thread::scope(|scope| {
            let reader = scope.spawn(move || read_all(stream));
            let mut left = bytes;
            let block = vec![0x5a; 256 << 10];
            while left > 0 {
                let part = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                (&sender).write_all(&block[..part])?;
                left -= part as u64;
            }
            drop(sender);
            let read = reader.join().map_err(|_| io::Error::other("the reader panicked"))??;
            if read == bytes { Ok(start.elapsed()) } else { Err(ErrorKind::UnexpectedEof.into()) }
        })
    };
    transfer().map_err(Error::os(what))
}

fn read_all(mut stream: impl Read) -> io::Result<u64> {
    let mut buffer = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(total),
            read => total += read as u64,
        }
    }
}

/// Asks a host for an echo, again every 200 ms, and returns how long the answer took.
///
/// # Errors
/// No privilege in the namespace, or no answer in time.
pub fn ping(from: &Namespace, to: Ipv4Addr, limit: Duration) -> Result<Duration, Error> {
    let label = from.label();
    let answer =
        from.run(|| echo(to, limit))?.map_err(Error::os(format!("pinging {to} from {label}")))?;
    answer.ok_or_else(|| Error::Process(format!("no answer from {to} to {label} in {limit:?}")))
}

/// As [`ping`], from the namespace of this thread. None: no answer in time.
///
/// # Errors
/// No privilege, or no route.
pub fn echo(to: Ipv4Addr, limit: Duration) -> io::Result<Option<Duration>> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    let deadline = Instant::now() + limit;
    let mut request = IcmpEchoHeader { id: socket.as_raw_fd() as u16, seq: 0 };
    while Instant::now() < deadline {
        request.seq += 1;
        let sent = Instant::now();
        socket.send_to(&echo_request(request), &SocketAddrV4::new(to, 0).into())?;
        let again = deadline.min(sent + Duration::from_millis(200));
        loop {
            let left = again.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let mut packet = [0; 64];
            match (&socket).read(&mut packet) {
                Ok(len) if is_reply(&packet[..len], to, request) => {
                    return Ok(Some(sent.elapsed()));
                }
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(None)
}

fn echo_request(echo: IcmpEchoHeader) -> impl Deref<Target = [u8]> {
    Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), &[]).to_bytes()
}

/// The packet comes with its IPv4 header.
fn is_reply(packet: &[u8], from: Ipv4Addr, request: IcmpEchoHeader) -> bool {
    let Ok(SlicedPacket { net, transport, .. }) = SlicedPacket::from_ip(packet) else {
        return false;
    };
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Icmpv4(icmp))) = (net, transport) else {
        return false;
    };
    ip.header().source_addr() == from && icmp.icmp_type() == Icmpv4Type::EchoReply(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_over_an_echo_request_is_right() {
        for (id, seq) in [(0, 0), (0xffff, 0xffff), (0xf7ff, 1), (7, 300)] {
            let words = echo_request(IcmpEchoHeader { id, seq });
            let sum: u32 =
                words.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{id} {seq}");
        }
    }
}
