//! Packets there and back: what a network and its sockets cost where nobody sums in between, by
//! each way to use sockets.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags, recvmsg, send};

use crate::error::Error;
use crate::sys;
use crate::topology::Topology;
use crate::traffic::{send_trains, udp_socket};
use crate::uring::Inbox;

/// Packets under way: fewer than the places of a virtual link's queue.
const UNDER_WAY: u64 = 128;
/// What is missing after this time is lost.
const LOST: Duration = Duration::from_millis(100);
const PORT: u16 = 4000;
/// Most bytes of one send.
const LONGEST_SEND: usize = 60_000;
/// Longest message that comes in.
const MESSAGE: usize = 1 << 16;

/// When it ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Over(Duration),
    /// When that many packets have come back.
    Back(u64),
}

/// How messages come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// Many in one system call (`recvmmsg`).
    Batch,
    /// Each by a system call.
    Single,
    /// By io_uring: one request that stays, and provided buffers.
    Uring,
}

/// How sockets are used.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Packets of a train, where no more than 60 kB.
    pub train: u16,
    /// Packets that come together come in one message (`UDP_GRO`).
    pub merged: bool,
    /// How messages come in.
    pub receive: Receive,
    /// The kernel takes what is sent from this process' memory (`MSG_ZEROCOPY`).
    pub zero_copy: bool,
    /// Sockets that share the packets.
    pub sockets: u16,
    /// How long a wait asks the interface itself, in microseconds (`SO_BUSY_POLL`).
    pub busy_poll: u16,
}

impl Way {
    /// That of xdp-agg's workers.
    pub const OURS: Self = Self {
        train: 32,
        merged: true,
        receive: Receive::Batch,
        zero_copy: false,
        sockets: 1,
        busy_poll: 0,
    };
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echoed {
    /// Packets that came back.
    pub back: u64,
    /// Packets that did not, and were sent again.
    pub lost: u64,
}

/// Sends packets with a payload of zeros of this length from a worker to an aggregator that sends
/// them back (a [`crate::Probe::Mirror`] or [`crate::Probe::Reflect`] on its interfaces), 128 at a
/// time.
///
/// # Errors
/// The operating system's: also that it does not have what a way needs.
pub fn echo(
    net: &Topology,
    worker: usize,
    payload: u16,
    way: Way,
    until: Until,
) -> Result<Echoed, Error> {
    let to = SocketAddrV4::new(net.aggregator_addr(), PORT);
    let lines = (0..way.sockets).map(|_| {
        // A port of the system's choice: a ring's socket is open for a while after its end.
        let own = SocketAddrV4::new(net.worker_addr(worker), 0);
        let socket = udp_socket(net.worker(worker), own, LOST)?;
        let opened = Line::open(socket, to, payload, way);
        let line = opened.map_err(Error::os("opening a socket for packets"))?;
        // Opening has tried trains, and turned them off again.
        if way.train > 1 {
            send_trains(&line.socket, payload)?;
        }
        Ok(line)
    });
    let mut lines = lines.collect::<Result<Vec<_>, Error>>()?;
    turn(&mut lines, way, until).map_err(Error::os("sending packets there and back"))
}

/// A socket, and what is under way by it.
struct Line {
    socket: UdpSocket,
    state: UdpSocketState,
    inbox: Option<Inbox>,
    way: Way,
    payload: usize,
    train: Vec<u8>,
    sent: u64,
    back: u64,
}

impl Line {
    fn open(socket: UdpSocket, to: SocketAddrV4, payload: u16, way: Way) -> io::Result<Self> {
        socket.connect(to)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let set = |level, name, value| sys::set_option(socket.as_fd(), level, name, value);
        set(libc::SOL_UDP, libc::UDP_GRO, way.merged.into())?;
        if way.zero_copy {
            set(libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
        }
        if way.busy_poll > 0 {
            set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, way.busy_poll.into())?;
        }
        let inbox = (way.receive == Receive::Uring).then(Inbox::new).transpose()?;
        let payload = usize::from(payload);
        let way = Way { train: way.train.min((LONGEST_SEND / payload) as u16).max(1), ..way };
        let train = vec![0; payload * usize::from(way.train)];
        Ok(Self { socket, state, inbox, way, payload, train, sent: 0, back: 0 })
    }

    /// Sends up to that many packets, as far as there is room.
    fn send(&mut self, most: u64) -> io::Result<()> {
        while self.sent < self.back + most {
            let count = u64::from(self.way.train).min(self.back + most - self.sent);
            let bytes = &self.train[..self.payload * count as usize];
            let flags = if self.way.zero_copy { libc::MSG_ZEROCOPY as u32 } else { 0 };
            match send(&self.socket, bytes, SendFlags::from_bits_retain(flags)) {
                Err(rustix::io::Errno::AGAIN) => break,
                // The kernel has too many notes for us that it is done with memory.
                Err(rustix::io::Errno::NOBUFS) if self.way.zero_copy => break,
                done => done?,
            };
            self.sent += count;
        }
        Ok(())
    }

    /// Takes in what is there, or comes within this time.
    fn receive(&mut self, buffers: &mut [Vec<u8>], wait: Duration) -> io::Result<u64> {
        let (payload, mut come) = (self.payload, 0);
        let mut count = |len: usize| come += len.div_ceil(payload) as u64;
        if self.way.zero_copy {
            forget_notes(&self.socket)?;
        }
        if let Some(inbox) = &mut self.inbox {
            inbox.receive(self.socket.as_fd(), wait, count)?;
            self.back += come;
            return Ok(come);
        }
        match self.way.receive {
            Receive::Single => loop {
                match self.socket.recv(&mut buffers[0]) {
                    Ok(len) => count(len),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            },
            _ => {
                let mut metas = [RecvMeta::default(); BATCH_SIZE];
                let slices = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut slices: Vec<_> = slices.collect();
                match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut metas) {
                    Ok(messages) => metas[..messages].iter().for_each(|meta| count(meta.len)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.back += come;
        Ok(come)
    }
}

fn turn(lines: &mut [Line], way: Way, until: Until) -> io::Result<Echoed> {
    let mut buffers = vec![vec![0; MESSAGE]; BATCH_SIZE];
    let (start, mut heard, mut lost) = (Instant::now(), Instant::now(), 0);
    let (share, by_ring) = (lines.len() as u64, way.receive == Receive::Uring);
    loop {
        let back = lines.iter().map(|line| line.back).sum();
        let left = match until {
            Until::Over(time) if start.elapsed() >= time => 0,
            Until::Over(_) => u64::MAX,
            Until::Back(packets) => packets.saturating_sub(back),
        };
        if left == 0 {
            return Ok(Echoed { back, lost });
        }
        let most = UNDER_WAY.min(left).div_ceil(share);
        let mut come = 0;
        for line in &mut *lines {
            line.send(most)?;
            let wait = if by_ring && share == 1 { LOST } else { Duration::ZERO };
            come += line.receive(&mut buffers, wait)?;
        }
        if come > 0 {
            heard = Instant::now();
        } else if heard.elapsed() > LOST {
            for line in &mut *lines {
                lost += line.sent - line.back;
                line.sent = line.back;
            }
            heard = Instant::now();
        } else if !by_ring {
            sleep(lines)?;
        }
    }
}

/// Until something is there, or long enough that it must be lost.
fn sleep(lines: &[Line]) -> io::Result<()> {
    let time = Timespec { tv_sec: 0, tv_nsec: LOST.subsec_nanos().into() };
    let sockets = lines.iter().map(|line| line.socket.as_fd());
    let mut fds: Vec<_> = sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads the notes of the kernel that it is done with memory: nothing is written there again.
fn forget_notes(socket: &UdpSocket) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); 256];
    loop {
        let mut notes = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [], &mut notes, RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
