//! What all ranks get through to each other while everybody sends to everybody.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::SockRef;

use crate::call::{Call, Collective};
use crate::error::Error;
use crate::link::Link;
use crate::meet::wait;
use crate::mesh::Mesh;
use crate::wire::{HEADER_LEN, Header};

/// Most bytes of a send or a receive: short enough that all connections have their turn.
const PIECE: usize = 64 << 10;
/// How long it goes on after the measurement: other ranks may have begun a little later.
const GRACE: Duration = Duration::from_millis(100);
/// Bytes that all others together may have under way to a rank. If windows and not losses limit the
/// connections, those on a narrow link share it evenly, and at once. Loss-based congestion control
/// takes minutes for that.
const UNDER_WAY: usize = 512 << 10;
/// Least bytes of one connection.
const LEAST_WINDOW: usize = 64 << 10;
/// Longest sleep.
const NAP: Duration = Duration::from_millis(20);

/// A time in which bytes are counted.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: Instant,
    to: Instant,
    /// When nothing is sent any more.
    end: Instant,
}

impl Mesh {
    /// Sends to all other ranks as fast as it goes, while all of them do the same, and counts what
    /// comes from each. During `ramp` the connections find their shares and nothing is counted;
    /// `time` follows. In bytes a second, by rank; 0 for this one.
    ///
    /// The connections are full of bytes then, so the mesh ends with it.
    ///
    /// # Errors
    /// As [`Self::barrier`], with which it begins; a rank whose connection ends meanwhile.
    pub fn flood(mut self, ramp: Duration, time: Duration) -> Result<Vec<f64>, Error> {
        self.bound_windows()?;
        self.barrier()?;
        let from = Instant::now() + ramp;
        let window = Window { from, to: from + time, end: from + time + GRACE };
        let (mut links, sequence) = self.into_parts();
        announce(&links, sequence)?;
        let counted = exchange(&mut links, window, sequence)?;
        for link in links.iter().flatten() {
            // Bytes still queued shall not delay what follows: end with a reset. Where a reset
            // cannot be asked for, they are sent, which takes longer and harms nobody.
            let _ = SockRef::from(&link.stream).set_linger(Some(Duration::ZERO));
        }
        Ok(counted.into_iter().map(|bytes| bytes as f64 / time.as_secs_f64()).collect())
    }
}

impl Mesh {
    /// Before anything is sent: a window that has been offered is not taken back.
    fn bound_windows(&self) -> Result<(), Error> {
        let window = (UNDER_WAY / usize::from(self.world_size())).max(LEAST_WINDOW);
        for socket in self.sockets() {
            let set = socket.set_recv_buffer_size(window);
            set.and_then(|()| socket.set_send_buffer_size(window))
                .map_err(Error::io("bound a connection's window"))?;
        }
        Ok(())
    }
}

/// Says that what follows is a message of a later call: a rank that still is in the barrier leaves
/// it for later.
fn announce(links: &[Option<Link>], sequence: u64) -> Result<(), Error> {
    let call = Call { sequence, ..Call::new(Collective::Broadcast, "u8", 0) };
    let header = Header::Data { call, offset: 0, len: u64::MAX }.encode();
    for link in links.iter().flatten() {
        // Nothing else is under way, so there is room for a header.
        let sent = link.send(&[IoSlice::new(&header)]);
        let lost = |reason| Error::PeerLost { rank: link.rank, call: sequence, reason };
        match sent.map_err(|error| lost(error.to_string()))? {
            HEADER_LEN => {}
            part => return Err(lost(format!("the connection took {part} bytes of a header"))),
        }
    }
    Ok(())
}

/// Sends to and receives from all until the end; the bytes of the window, by rank.
fn exchange(links: &mut [Option<Link>], window: Window, call: u64) -> Result<Vec<u64>, Error> {
    let mut counted = vec![0; links.len()];
    // Not zeros: a network that compresses would be measured by how well it does.
    let mut piece: Vec<u8> =
        (0..PIECE as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let sent = piece.clone();
    loop {
        let now = Instant::now();
        if now >= window.end {
            return Ok(counted);
        }
        let counts = (window.from..window.to).contains(&now);
        for (rank, ready) in ready(links)? {
            let Some(link) = &mut links[rank] else { continue };
            if ready.intersects(PollFlags::OUT) {
                match link.send(&[IoSlice::new(&sent)]) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => link.ended = Some(error.to_string()),
                }
            }
            if !(ready - PollFlags::OUT).is_empty() {
                let bytes = link.read(&mut piece);
                if counts {
                    counted[rank] += bytes as u64;
                }
            }
            if let Some(reason) = link.ended.clone().filter(|_| now < window.to) {
                return Err(Error::PeerLost { rank: link.rank, call, reason });
            }
        }
    }
}

/// The connections that can move bytes, after a short sleep if there is none.
fn ready(links: &[Option<Link>]) -> Result<Vec<(usize, PollFlags)>, Error> {
    let open = || links.iter().flatten().filter(|link| link.ended.is_none());
    let flags = PollFlags::IN | PollFlags::OUT;
    let mut fds: Vec<_> =
        open().map(|link| PollFd::from_borrowed_fd(link.stream.as_fd(), flags)).collect();
    wait(&mut fds, NAP).map_err(Error::io("wait for the mesh's sockets"))?;
    let ready = open().zip(&fds).map(|(link, fd)| (usize::from(link.rank), fd.revents()));
    Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
}
