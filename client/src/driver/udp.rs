//! The data path of a worker: one UDP socket towards the aggregator, in batches.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};
use xdp_agg_forks::own;

use crate::driver::sys;

/// What the kernel charges a receive buffer for one packet: a page for the data and the
/// bookkeeping around it.
const RECEIVE_COST: usize = 4096 + 768;
/// Receive buffer that is asked for: a whole window of the largest pool, twice.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// Most bytes of one send with segmentation offload (UDP's own limit, less headers).
const SEND_BYTES: usize = 60_000;
/// Most segments of one send: the kernel takes 128; less keeps bursts below the 256 entries of a
/// veth ring.
const SEND_SEGMENTS: usize = 32;

/// Attempts to send a train that an error stops which says nothing about it. Such an error is
/// reported once, by whichever call comes next: the second attempt mostly goes through.
const ATTEMPTS: u32 = 3;

/// What became of packets that were to be sent.
#[derive(Debug)]
pub(crate) enum Sent {
    /// They are the network's.
    Yes,
    /// The socket's buffer is full, nothing was sent.
    Full,
    /// The system would not take them now: as good as lost on the way.
    Lost(io::Error),
}

/// A socket that sends equal blocks to one peer and receives from it.
#[derive(Debug)]
pub(crate) struct DataSocket {
    socket: UdpSocket,
    group: Option<(SocketAddrV4, UdpSocket)>,
    /// Bytes of a full packet (our header and payload); 0 before [`Self::connect`].
    packet_len: usize,
    segments: usize,
}

impl DataSocket {
    /// A socket on this address, with a port that the system chooses.
    pub(crate) fn bind(local: Ipv4Addr) -> io::Result<Self> {
        let socket = own(|| Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)))?;
        prepare(&socket)?;
        socket.bind(&SocketAddrV4::new(local, 0).into())?;
        Ok(Self { socket: socket.into(), group: None, packet_len: 0, segments: 1 })
    }

    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Binds the socket to its peer and to full packets of `packet_len` bytes, which leave one by
    /// one if they are to be `single`.
    pub(crate) fn connect(
        &mut self,
        peer: SocketAddrV4,
        packet_len: usize,
        single: bool,
    ) -> io::Result<()> {
        self.socket.connect(peer)?;
        self.packet_len = packet_len;
        self.segments = match self.cut_trains(if single { 0 } else { packet_len }) {
            Ok(()) if !single => (SEND_BYTES / packet_len).clamp(1, SEND_SEGMENTS),
            _ => 1,
        };
        Ok(())
    }

    /// Receives results that this aggregator sends to a group, too. What others send there, which
    /// any host may, does not come in.
    pub(crate) fn join(&mut self, group: SocketAddrV4, from: SocketAddrV4) -> io::Result<()> {
        let std::net::SocketAddr::V4(local) = self.socket.local_addr()? else {
            return Err(ErrorKind::AddrNotAvailable.into());
        };
        let socket = own(|| Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)))?;
        prepare(&socket)?;
        // Several workers of a host may be members.
        socket.set_reuse_address(true)?;
        socket.bind(&group.into())?;
        // Not those that come by interfaces where another socket of the host is a member.
        socket.set_multicast_all_v4(false)?;
        socket.join_ssm_v4(from.ip(), group.ip(), local.ip())?;
        // The sender's port, too.
        socket.connect(&from.into())?;
        self.group = Some((group, socket.into()));
        Ok(())
    }

    /// The group that it has joined.
    pub(crate) fn group(&self) -> Option<SocketAddrV4> {
        self.group.as_ref().map(|(group, _)| *group)
    }

    /// Packets that the receive buffer surely holds.
    pub(crate) fn receive_room(&self) -> io::Result<usize> {
        let bytes = sys::option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        Ok(usize::try_from(bytes).unwrap_or(0) / RECEIVE_COST)
    }

    /// Full packets that one [`Self::send`] may carry.
    pub(crate) const fn segments(&self) -> usize {
        self.segments
    }

    /// Sends packets that lie end to end: all full but perhaps the last.
    ///
    /// # Errors
    /// Our own misuse of the socket: see [`is_misuse`].
    pub(crate) fn send(&mut self, packets: &[u8]) -> io::Result<Sent> {
        debug_assert!(packets.len() <= self.packet_len * self.segments);
        let mut sent = self.send_once(packets)?;
        for _ in 1..ATTEMPTS {
            let Sent::Lost(_) = sent else { return Ok(sent) };
            sent = self.send_once(packets)?;
        }
        match sent {
            Sent::Lost(error) if self.segments > 1 && refuses_trains(&error) => {
                self.fall_apart(packets)
            }
            sent => Ok(sent),
        }
    }

    /// The path does not take trains, or it takes nothing for now. If a packet by itself goes
    /// through, it is the former, and packets leave one by one from here on.
    fn fall_apart(&mut self, packets: &[u8]) -> io::Result<Sent> {
        self.cut_trains(0)?;
        let mut all = packets.chunks(self.packet_len);
        let first = self.send_once(all.next().unwrap_or_default())?;
        if !matches!(first, Sent::Yes) {
            self.cut_trains(self.packet_len)?;
            return Ok(first);
        }
        self.segments = 1;
        for packet in all {
            // The rest of a train that finds no room is as good as lost on the way.
            self.send_once(packet)?;
        }
        Ok(Sent::Yes)
    }

    fn send_once(&self, packets: &[u8]) -> io::Result<Sent> {
        match self.socket.send(packets) {
            Ok(_) => Ok(Sent::Yes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Sent::Full),
            Err(error) if is_misuse(&error) => Err(error),
            Err(error) => Ok(Sent::Lost(error)),
        }
    }

    /// Has one large send leave as packets of this size (since Linux 4.18); 0: as it is.
    fn cut_trains(&self, packet_len: usize) -> io::Result<()> {
        let len = packet_len as libc::c_int;
        sys::set_option(self.socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, len)
    }

    /// The sockets to receive from and to sleep on.
    pub(crate) fn sockets(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.socket.as_fd(), self.group.as_ref().map(|(_, socket)| socket.as_fd()))
    }
}

/// What both sockets need: no blocking, a large receive buffer, no fragments.
fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // Beyond net.core.rmem_max only a privileged process may go; the window adapts to the rest.
    let forced =
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER / 2);
    if forced.is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER as usize / 2)?;
    }
    // Results that come together are taken in together (since Linux 5.0).
    let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
    // Packets are never cut on their way, and claims about the way's MTU are not believed. A probe
    // of full size has gone through; a path that has become narrower loses packets.
    let whole = libc::IP_PMTUDISC_PROBE;
    sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, whole)
}

/// Errors that only this program's own mistakes have. All others of a UDP socket say what the
/// network, or a host that forges its ICMP, did to an earlier packet. Or they say what the host
/// does for a while: a queue is full; a route, an address or a firewall changes. None of them ends
/// anything: the probe, the control connection and the deadline decide.
pub(crate) fn is_misuse(error: &io::Error) -> bool {
    let misused = [libc::EBADF, libc::ENOTSOCK, libc::EFAULT, libc::ENOTCONN, libc::EDESTADDRREQ];
    error.raw_os_error().is_some_and(|number| misused.contains(&number))
}

/// Errors that a path without segmentation offload gives, and others may give, too.
fn refuses_trains(error: &io::Error) -> bool {
    let refused = [libc::EINVAL, libc::EIO, libc::EOPNOTSUPP, libc::EMSGSIZE];
    error.raw_os_error().is_some_and(|number| refused.contains(&number))
}
