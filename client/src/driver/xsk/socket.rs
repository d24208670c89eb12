//! An `AF_XDP` socket that only receives.
#![expect(unsafe_code, reason = "memory is registered with the kernel by its address")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use xdp_agg_common::frame::{PAYLOAD_OFFSET, frame_len};
use xdp_agg_common::lanes::MAX_PAYLOAD;
use xdp_agg_forks::own;

use super::ring::{Free, Incoming, Memory};

/// Packets that the socket holds. A worker's UDP socket holds fewer, and its window is no larger.
const PIECES: u32 = 2048;
/// Bytes for a packet, the least and the most that the kernel takes.
const PIECE: (usize, usize) = (2048, 4096);
/// What the kernel keeps free in front of a packet.
const HEADROOM: usize = 256;

// The largest packet of ours fits one piece.
const _: () = assert!(HEADROOM + PAYLOAD_OFFSET + MAX_PAYLOAD <= PIECE.1);

pub(super) struct Socket {
    // First: the rings and the socket end before the memory.
    incoming: Incoming,
    free: Free,
    fd: OwnedFd,
    memory: Memory,
}

/// A socket that is on no queue yet. It is of the network namespace of the thread that opens it,
/// where the interface has to be: the same number is another interface elsewhere.
///
/// # Errors
/// The system's: `EPERM` without `CAP_NET_RAW`.
pub(super) fn create() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    own(|| {
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None);
        fd.map_err(io::Error::from)
    })
}

impl Socket {
    /// Puts what [`create`] gave on this receive queue of an interface, for packets of up to
    /// `chunks` chunks.
    ///
    /// # Errors
    /// The system's: `EBUSY` if another socket has the queue.
    pub(super) fn on(fd: OwnedFd, ifindex: u32, queue: u32, chunks: u16) -> io::Result<Self> {
        // What is read again soon stays near the processor: no more memory than is needed.
        let piece = (HEADROOM + frame_len(chunks)).next_power_of_two().clamp(PIECE.0, PIECE.1);
        let memory = Memory::new(PIECES, piece)?;
        let registered = XdpUmemReg {
            addr: memory.address(),
            len: memory.len() as u64,
            chunk_size: piece as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, registered)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, PIECES)?;
        // Nothing is sent; the kernel wants the ring all the same.
        sockopt::set_xdp_umem_completion_ring_size(&fd, 1)?;
        sockopt::set_xdp_rx_ring_size(&fd, PIECES)?;
        let marks = sockopt::xdp_mmap_offsets(&fd)?;
        let incoming = Incoming::map(fd.as_fd(), marks.rx, PIECES)?;
        let mut free = Free::map(fd.as_fd(), marks.fr, PIECES)?;
        for number in 0..PIECES {
            free.push(u64::from(number) * piece as u64);
        }
        free.submit();
        // Without copies where the driver can do that, otherwise with one.
        let place = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, ifindex, queue);
        rustix::net::bind(&fd, &place)?;
        Ok(Self { incoming, free, fd, memory })
    }

    /// The driver writes packets where we read them.
    pub(super) fn is_zero_copy(&self) -> bool {
        let told = sockopt::xdp_options(&self.fd);
        told.is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Hands over the frames that are there, at most `most`; how many.
    pub(super) fn receive(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> usize {
        let count = self.incoming.ready(u32::try_from(most).unwrap_or(u32::MAX));
        for index in 0..count {
            let entry = self.incoming.get(index);
            // SAFETY: the kernel has handed it over, and gets its piece back below.
            if let Some(frame) = unsafe { self.memory.packet(&entry) } {
                each(frame);
            }
            self.free.push(self.memory.piece_of(entry.addr));
        }
        if count > 0 {
            self.incoming.release(count);
            self.free.submit();
        }
        if self.free.wants_wakeup() {
            // An error says that the interface is down: nothing comes then.
            let _ = rustix::net::recv(&self.fd, &mut [0_u8; 0][..], RecvFlags::DONTWAIT);
        }
        count as usize
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
