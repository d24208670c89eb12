//! A socket, with trains of packets that wait for it.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;

/// Bytes that a socket may hold in each direction.
const BUFFER: usize = 8 << 20;
/// Most packets of a train. Trains cross a link whole, so a long one keeps others waiting.
const TRAIN: usize = 16;
/// How many of the latest trains are looked at for one that a packet may join.
const OPEN: usize = 16;
/// Longest train that comes in.
const LONGEST: usize = 1 << 16;

/// Packets of one length to one address; the last may be shorter.
#[derive(Debug)]
struct Train {
    to: SocketAddr,
    packet: usize,
    bytes: Vec<u8>,
}

impl Train {
    fn takes(&self, len: usize) -> bool {
        len <= self.packet
            && self.bytes.len().is_multiple_of(self.packet)
            && self.bytes.len() + len <= (TRAIN * self.packet).min(LONGEST - 1024)
    }
}

/// A UDP socket that does not block.
#[derive(Debug)]
pub(super) struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    waiting: VecDeque<Train>,
    spare: Vec<Vec<u8>>,
}

/// Memory for what comes in.
pub(super) struct Inbox {
    buffers: Vec<Vec<u8>>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { buffers: vec![vec![0; LONGEST]; BATCH_SIZE] }
    }
}

impl Port {
    /// A socket at this address.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // More than the system's limit needs a privilege, and little memory is no error.
        if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
            state.set_recv_buffer_size(UdpSockRef::from(&socket), BUFFER)?;
        }
        state.set_send_buffer_size(UdpSockRef::from(&socket), BUFFER)?;
        Ok(Self { socket, state, waiting: VecDeque::new(), spare: Vec::new() })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether packets wait for room in the socket.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Queues a packet of this length for this address, which `write` fills.
    pub(super) fn queue(&mut self, to: SocketAddr, len: usize, write: impl FnOnce(&mut [u8])) {
        // Packets to one address stay in order: only the latest train to it is looked at.
        let latest = self.waiting.iter_mut().rev().take(OPEN).find(|train| train.to == to);
        if let Some(Train { bytes, .. }) = latest.filter(|train| train.takes(len)) {
            return append(bytes, len, write);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        append(&mut bytes, len, write);
        self.waiting.push_back(Train { to, packet: len, bytes });
    }

    /// Sends what the socket has room for.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(Train { to, packet, bytes }) = self.waiting.front() {
            let segment = (bytes.len() > *packet).then_some(*packet);
            let transmit = Transmit {
                destination: *to,
                ecn: None,
                contents: bytes,
                segment_size: segment,
                src_ip: None,
            };
            match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_loss(&error) => {}
                done => done?,
            }
            self.spare.extend(self.waiting.pop_front().map(|train| train.bytes));
        }
        Ok(())
    }

    /// Hands packets that are there to `each`. False: no more is there now.
    pub(super) fn receive(
        &self,
        inbox: &mut Inbox,
        mut each: impl FnMut(SocketAddr, &[u8]),
    ) -> io::Result<bool> {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut slices = inbox.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut slices: [_; BATCH_SIZE] =
            std::array::from_fn(|_| slices.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let count = match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_loss(&error) => 0,
            Err(error) => return Err(error),
        };
        for (meta, buffer) in metas[..count].iter().zip(&inbox.buffers) {
            for packet in buffer[..meta.len].chunks(meta.stride.max(1)) {
                each(meta.addr, packet);
            }
        }
        Ok(count == BATCH_SIZE)
    }
}

/// Adds a packet of this length, which `write` fills.
fn append(bytes: &mut Vec<u8>, len: usize, write: impl FnOnce(&mut [u8])) {
    let start = bytes.len();
    bytes.resize(start + len, 0);
    write(&mut bytes[start..]);
}

/// A full queue of the link, or that nobody listens there any more: as if the packet was lost.
fn is_loss(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
        || error.kind() == io::ErrorKind::ConnectionRefused
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Packets to one address come in their order, each with its length, however they share trains.
    #[test]
    fn packets_come_as_they_were_queued() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut from = Port::bind(any).expect("a socket");
        let targets = [(); 2].map(|()| Port::bind(any).expect("a socket"));
        let addresses = targets.each_ref().map(|port| port.local_addr().expect("it has one"));
        // Some of one length, a shorter one between them, a longer one, and more than a train.
        let first = [700; 3].into_iter().chain([1400; 3]).chain([700; 3]);
        let lens = [700, 700, 300, 700, 1400, 1400, 26, 1400].into_iter().cycle().take(200);
        let lens = first.chain(lens).chain([64; 90]).chain([1400; 201]);
        let mut sent = [const { Vec::new() }; 2];
        for (number, len) in lens.enumerate() {
            let which = usize::from(number % 3 == 0);
            let packet: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
            from.queue(addresses[which], len, |to| to.copy_from_slice(&packet));
            sent[which].push(packet);
        }
        let (mut inbox, start) = (Inbox::new(), Instant::now());
        let mut come = [const { Vec::new() }; 2];
        while come.iter().map(Vec::len).sum::<usize>() < 500 {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", come.map(|all| all.len()));
            from.flush().expect("it is sent");
            for (port, come) in targets.iter().zip(&mut come) {
                port.receive(&mut inbox, |_, packet| come.push(packet.to_vec())).expect("read");
            }
        }
        assert!(!from.is_waiting());
        for which in 0..2 {
            assert!(come[which] == sent[which], "to {which}: other packets, or another order");
        }
    }
}
