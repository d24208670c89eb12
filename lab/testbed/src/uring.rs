//! Receiving by io_uring: one request that stays, and buffers that the kernel takes from a ring
//! (`IORING_RECV_MULTISHOT`, Linux 6.0). Measured beside `recvmmsg`; xdp-agg does not use it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Buffers, each for the longest message.
const COUNT: u16 = 64;
const LONGEST: usize = 1 << 16;
const GROUP: u16 = 0;

/// Takes in what comes to a socket.
pub(crate) struct Inbox {
    // Dropped first: the kernel uses neither of the others then.
    ring: IoUring,
    entries: Entries,
    buffers: Vec<u8>,
    is_armed: bool,
}

/// The ring of buffers that the kernel may take.
struct Entries {
    start: NonNull<BufRingEntry>,
    tail: u16,
}

impl Entries {
    const BYTES: usize = COUNT as usize * size_of::<BufRingEntry>();

    fn new() -> io::Result<Self> {
        let (may, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, wherever the system has room.
        let start = unsafe { mmap_anonymous(null_mut(), Self::BYTES, may, how) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, tail: 0 })
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, number: u16, buffer: &mut [u8]) {
        let index = usize::from(self.tail % COUNT);
        // SAFETY: the index is below the number of entries. The kernel reads an entry only when the
        // tail has passed it, and its fields overlap with the tail nowhere.
        let entry = unsafe { self.start.add(index).as_mut() };
        entry.set_addr(buffer.as_mut_ptr() as u64);
        entry.set_len(buffer.len() as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: this is the ring's start.
        let tail = unsafe { BufRingEntry::tail(self.start.as_ptr()) }.cast_mut();
        // SAFETY: the tail lies in the ring, aligned, and only this thread writes it.
        let tail = unsafe { AtomicU16::from_ptr(tail) };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: this memory was mapped by `new`, and nobody has a reference to it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), Self::BYTES) };
    }
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let (ring, mut entries) = (IoUring::new(u32::from(COUNT))?, Entries::new()?);
        let mut buffers = vec![0; usize::from(COUNT) * LONGEST];
        // SAFETY: the entries live longer than the ring, whose end ends their use.
        unsafe {
            let start = entries.start.as_ptr() as u64;
            ring.submitter().register_buf_ring_with_flags(start, COUNT, GROUP, 0)?;
        }
        for (number, buffer) in (0..).zip(buffers.chunks_exact_mut(LONGEST)) {
            entries.give(number, buffer);
        }
        Ok(Self { ring, entries, buffers, is_armed: false })
    }

    /// Waits for messages, and gives the length of each to `each`.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        wait: Duration,
        mut each: impl FnMut(usize),
    ) -> io::Result<()> {
        if !self.is_armed {
            let request = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
            // SAFETY: the request has no pointers; its buffers live as long as the ring.
            let pushed = unsafe { self.ring.submission().push(&request) };
            pushed.map_err(|_| io::ErrorKind::WouldBlock)?;
            self.is_armed = true;
        }
        let time = Timespec::from(wait);
        let args = SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &args) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => drop(done?),
        }
        for done in self.ring.completion() {
            self.is_armed &= cqueue::more(done.flags());
            match done.result() {
                // All buffers were taken; the next request finds some.
                error if error == -libc::ENOBUFS => {}
                error if error < 0 => return Err(io::Error::from_raw_os_error(-error)),
                len => each(len as usize),
            }
            if let Some(number) = cqueue::buffer_select(done.flags()) {
                let buffer = &mut self.buffers[usize::from(number) * LONGEST..][..LONGEST];
                self.entries.give(number, buffer);
            }
        }
        Ok(())
    }
}
