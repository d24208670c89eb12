//! The way of a worker's results around the stack: the program and the socket together.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{BorrowedFd, OwnedFd};

use xdp_agg_common::checksum::Ends;
use xdp_agg_common::frame::HEADER_OFFSET;

use super::program::{Program, Refusal};
use super::socket::{Socket, create};

/// While nothing comes this way, the queue is asked for at looks 1, 2, 4, 8, …, and at each
/// multiple of this: asking is a system call, and results with partial checksums never come.
const RARELY: u32 = 4096;

/// The way of a worker's results around the stack.
pub(crate) struct Results {
    program: Program,
    ifindex: u32,
    local: SocketAddrV4,
    /// Most chunks of a result.
    chunks: u16,
    /// Not there any more once results have come, and their queue is known. It is opened by the
    /// thread that opens this: a thread of another network namespace may be the first to look.
    unbound: Option<OwnedFd>,
    /// There from then on. Neither: no queue could be had, and results come by UDP.
    socket: Option<Socket>,
    /// Looks without a socket.
    looks: u32,
    packets: u64,
}

impl Results {
    /// Puts the program on an interface, for results of up to `chunks` chunks. It lets everything
    /// pass until [`Self::follow`].
    ///
    /// # Errors
    /// What keeps it away.
    pub(super) fn open(ifindex: u32, local: SocketAddrV4, chunks: u16) -> Result<Self, Refusal> {
        let program = Program::attach(ifindex)?;
        let unbound = create().map(Some).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Refusal::NotPermitted(error),
            _ => Refusal::Other("opening an AF_XDP socket".into(), error),
        })?;
        let (socket, looks, packets) = (None, 0, 0);
        Ok(Self { program, ifindex, local, chunks, unbound, socket, looks, packets })
    }

    /// Takes the results of this aggregator from here on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn follow(&mut self, from: SocketAddrV4) -> io::Result<()> {
        let end = |at: SocketAddrV4| (u32::from(*at.ip()), at.port());
        self.program.follow(Ends { from: end(from), to: end(self.local) })
    }

    /// Opens the socket, where results have come and their queue is known. It is tried once. To
    /// be called at each look that finds nothing.
    pub(crate) fn settle(&mut self) {
        if self.unbound.is_none() {
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_power_of_two() && !self.looks.is_multiple_of(RARELY) {
            return;
        }
        let interface = self.ifindex;
        let found = match self.program.queue() {
            Ok(None) => return,
            Ok(Some(queue)) => self.bind(queue).map(|socket| (queue, socket)),
            Err(error) => Err(error),
        };
        match found {
            Ok((queue, socket)) => {
                let zero_copy = socket.is_zero_copy();
                tracing::info!(interface, queue, zero_copy, "results come by AF_XDP");
                self.socket = Some(socket);
            }
            Err(error) => {
                self.unbound = None;
                tracing::warn!(interface, "no AF_XDP socket: {error}; results come by UDP");
            }
        }
    }

    fn bind(&mut self, queue: u32) -> io::Result<Socket> {
        let fd = self.unbound.take().ok_or(io::ErrorKind::NotFound)?;
        let socket = Socket::on(fd, self.ifindex, queue, self.chunks)?;
        self.program.hand_to(queue, socket.fd())?;
        Ok(socket)
    }

    /// Hands over what has come, about `most` packets: each without the headers of the network.
    pub(crate) fn receive(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> usize {
        let Some(socket) = &mut self.socket else { return 0 };
        let count = socket.receive(most, |frame| {
            // The program has looked at the headers, and a frame ends where the packet does.
            if let Some(packet) = frame.get(HEADER_OFFSET..) {
                each(packet);
            }
        });
        self.packets += count as u64;
        count
    }

    /// What is readable when something has come.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(Socket::fd)
    }

    /// Packets that have come this way.
    pub(crate) const fn packets(&self) -> u64 {
        self.packets
    }
}
