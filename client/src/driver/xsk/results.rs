//! The way of a worker's results around the stack: the program and the socket together.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use xdp_agg_common::checksum::Ends;
use xdp_agg_common::frame::HEADER_OFFSET;

use super::program::{Program, Refusal};
use super::socket::Socket;

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
    /// There once results have come, and their queue is known.
    socket: Option<Socket>,
    /// No socket could be opened: not tried again, and results come by UDP.
    refused: bool,
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
        let (socket, refused, looks, packets) = (None, false, 0, 0);
        Ok(Self { program, ifindex, local, chunks, socket, refused, looks, packets })
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
        if self.socket.is_some() || self.refused {
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_power_of_two() && !self.looks.is_multiple_of(RARELY) {
            return;
        }
        let interface = self.ifindex;
        let found = self.program.queue().and_then(|queue| match queue {
            Some(queue) => self.open_socket(queue).map(|socket| Some((queue, socket))),
            None => Ok(None),
        });
        match found {
            Ok(Some((queue, socket))) => {
                let zero_copy = socket.is_zero_copy();
                tracing::info!(interface, queue, zero_copy, "results come by AF_XDP");
                self.socket = Some(socket);
            }
            Ok(None) => {}
            Err(error) => {
                self.refused = true;
                tracing::warn!(interface, "no AF_XDP socket: {error}; results come by UDP");
            }
        }
    }

    fn open_socket(&mut self, queue: u32) -> io::Result<Socket> {
        let socket = Socket::open(self.ifindex, queue, self.chunks)?;
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
