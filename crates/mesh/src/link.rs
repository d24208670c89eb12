//! One rank's connection, and what is half read from it.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use socket2::{SockRef, TcpKeepalive};
use xdp_agg_common::control::words::clean;

use crate::error::Error;
use crate::meet::wait;
use crate::wire::{HEADER_LEN, Header, MAX_NOTICE};

/// Bytes that are read ahead of their use, at most: a short message with its header, or a notice.
const BUFFER: usize = 16 << 10;

/// How often the kernel asks a silent rank's host whether it is there; thrice in vain, it is not.
const ALIVE: Duration = Duration::from_secs(10);

/// A connection with another rank.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) rank: u16,
    pub(crate) stream: TcpStream,
    /// Where bytes come that were not asked for one by one: headers, and short messages.
    buffer: Vec<u8>,
    /// Those in it that nobody has taken.
    ahead: Range<usize>,
    /// The header whose message is not done.
    pub(crate) current: Option<Header>,
    /// How it ended.
    pub(crate) ended: Option<String>,
    /// A message to it is sent in part.
    pub(crate) in_message: bool,
    /// The socket can be written to only once it has passed on what it holds.
    drains: bool,
}

impl Link {
    /// Takes over a connected socket.
    pub(crate) fn new(rank: u16, stream: TcpStream) -> Result<Self, Error> {
        stream.set_nodelay(true).map_err(Error::io("set TCP_NODELAY"))?;
        stream.set_nonblocking(true).map_err(Error::io("make a socket non-blocking"))?;
        // A call may wait long for a rank that is alive; a host that is gone shall show sooner.
        let keepalive = TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE).with_retries(2);
        let set = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        set.map_err(Error::io("ask for TCP's keepalive"))?;
        Ok(Self {
            rank,
            stream,
            buffer: vec![0; BUFFER],
            ahead: 0..0,
            current: None,
            ended: None,
            in_message: false,
            drains: false,
        })
    }

    /// Takes what is here, and reads once if that is not all; 0: nothing is there, or never will be
    /// ([`Self::ended`]).
    pub(crate) fn read(&mut self, place: &mut [u8]) -> usize {
        self.take_or_receive(place, false)
    }

    /// The same, of the current message's last bytes: what there is of the next one comes along.
    pub(crate) fn read_last(&mut self, place: &mut [u8]) -> usize {
        self.take_or_receive(place, true)
    }

    fn take_or_receive(&mut self, place: &mut [u8], ahead: bool) -> usize {
        let taken = self.take(place);
        let rest = &mut place[taken..];
        if rest.is_empty() { taken } else { taken + self.receive(0, rest, ahead) }
    }

    /// A header, at least, waits to be looked at.
    pub(crate) fn is_ahead(&self) -> bool {
        self.current.is_none() && self.ahead.len() >= HEADER_LEN
    }

    fn take(&mut self, place: &mut [u8]) -> usize {
        let bytes = self.ahead.len().min(place.len());
        place[..bytes].copy_from_slice(&self.buffer[self.ahead.start..][..bytes]);
        self.ahead.start += bytes;
        bytes
    }

    /// That many bytes are here.
    fn gather(&mut self, bytes: usize) -> bool {
        while self.ahead.len() < bytes {
            let before = self.ahead.len();
            self.receive(0, &mut [], true);
            if self.ahead.len() == before {
                return false;
            }
        }
        true
    }

    /// Reads once: first what is missing of `front` bytes in the buffer, then into `place`; how
    /// many bytes are in it. With `ahead` what follows them comes along.
    fn receive(&mut self, front: usize, place: &mut [u8], ahead: bool) -> usize {
        self.buffer.copy_within(self.ahead.clone(), 0);
        self.ahead = 0..self.ahead.len();
        let (head, tail) =
            self.buffer[self.ahead.end..].split_at_mut(front.saturating_sub(self.ahead.len()));
        let tail = if ahead { tail } else { &mut [] };
        let (missing, room) = (head.len(), place.len());
        let mut slices = [head, place, tail].map(IoSliceMut::new);
        // An empty piece costs the kernel a walk.
        let first = slices.iter().take_while(|slice| slice.is_empty()).count();
        while self.ended.is_none() {
            match self.stream.read_vectored(&mut slices[first..]) {
                Ok(0) => self.ended = Some("its connection was closed".into()),
                Ok(bytes) => {
                    let placed = bytes.saturating_sub(missing).min(room);
                    self.ahead.end += bytes - placed;
                    return placed;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.ended = Some(error.to_string()),
            }
        }
        0
    }

    /// The header of the next message, if it is here; `current` has it until the message is done.
    /// If it had to be read, what follows it went into `place`: that many bytes.
    ///
    /// # Errors
    /// Bytes that are not a header; a notice that the other rank gave up.
    pub(crate) fn next_header(
        &mut self,
        call: u64,
        place: &mut [u8],
    ) -> Result<Option<(Header, usize)>, Error> {
        let mut placed = 0;
        if self.current.is_none() {
            if self.ahead.len() < HEADER_LEN {
                placed = self.receive(HEADER_LEN, place, true);
            }
            if self.ahead.len() < HEADER_LEN {
                return Ok(None);
            }
            let mut header = [0; HEADER_LEN];
            self.take(&mut header);
            self.current = Header::decode(&header);
            if self.current.is_none() {
                let reason = "its bytes are no header of a mesh".into();
                return Err(Error::PeerLost { rank: self.rank, call, reason });
            }
        }
        if let Some(Header::Stop { by, culprit, len }) = self.current {
            // A notice's text is no payload.
            self.put_back(&place[..placed]);
            if !self.gather(len) {
                return Ok(None);
            }
            let text = &self.buffer[self.ahead.start..][..len];
            let reason = clean(&String::from_utf8_lossy(text), MAX_NOTICE);
            return Err(Error::Stopped { by, culprit, reason });
        }
        Ok(self.current.map(|header| (header, placed)))
    }

    /// Bytes that come before those that nobody has taken; as many as the buffer has room for.
    fn put_back(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(BUFFER - self.ahead.len())];
        self.buffer.copy_within(self.ahead.clone(), bytes.len());
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        self.ahead = 0..bytes.len() + self.ahead.len();
    }

    /// The message whose header this was is done.
    pub(crate) const fn message_ends(&mut self) {
        self.current = None;
    }

    /// Sends once; how many bytes the kernel took, or would block.
    pub(crate) fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let sent =
                SockRef::from(&self.stream).send_vectored_with_flags(pieces, libc::MSG_NOSIGNAL);
            match sent {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Whether the socket has passed on all that it took but `unsent` bytes, or has come to an end.
    /// Until it has, it takes nothing more, and `poll(2)` says when it can be asked again.
    pub(crate) fn has_passed_on(&mut self, unsent: usize) -> io::Result<bool> {
        let socket = SockRef::from(&self.stream);
        if !self.drains {
            // The kernel calls a socket writable that holds less than half of this.
            socket.set_tcp_notsent_lowat(u32::try_from(2 * unsent).unwrap_or(u32::MAX))?;
            self.drains = true;
        }
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::OUT)];
        wait(&mut fds, Duration::ZERO)?;
        if fds[0].revents().is_empty() {
            return Ok(false);
        }
        // Its next message may fill the whole buffer again.
        socket.set_tcp_notsent_lowat(0)?;
        self.drains = false;
        Ok(true)
    }

    /// Says why this rank gives up, as far as that is possible, and that nothing follows.
    pub(crate) fn give_up(&mut self, notice: &Header, text: &str) {
        if !self.in_message {
            if self.drains {
                // A notice is taken whatever waits before it; else the other rank sees the end.
                let _ = SockRef::from(&self.stream).set_tcp_notsent_lowat(0);
            }
            let header = notice.encode();
            // Where it cannot be told, the other rank sees the connection's end.
            let _ = self.send(&[IoSlice::new(&header), IoSlice::new(text.as_bytes())]);
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        // Unread bytes would turn the end into a reset, which may overtake the notice.
        let mut rest = [0; 4096];
        for _ in 0..1024 {
            if matches!(self.stream.read(&mut rest), Ok(0) | Err(_)) {
                break;
            }
        }
    }
}
