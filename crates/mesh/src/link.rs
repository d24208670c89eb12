//! One rank's connection, and what is half read from it.

use std::io::{self, IoSlice, Read};
use std::net::TcpStream;

use socket2::SockRef;

use crate::error::Error;
use crate::wire::{HEADER_LEN, Header};

/// A connection with another rank.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) rank: u16,
    pub(crate) stream: TcpStream,
    header: [u8; HEADER_LEN],
    have: usize,
    /// The header whose message is not done.
    pub(crate) current: Option<Header>,
    notice: Vec<u8>,
    /// How it ended.
    pub(crate) ended: Option<String>,
    /// A message to it is sent in part.
    pub(crate) in_message: bool,
}

impl Link {
    /// Takes over a connected socket.
    pub(crate) fn new(rank: u16, stream: TcpStream) -> Result<Self, Error> {
        stream.set_nodelay(true).map_err(Error::io("set TCP_NODELAY"))?;
        stream.set_nonblocking(true).map_err(Error::io("make a socket non-blocking"))?;
        Ok(Self {
            rank,
            stream,
            header: [0; HEADER_LEN],
            have: 0,
            current: None,
            notice: Vec::new(),
            ended: None,
            in_message: false,
        })
    }

    /// Reads once; 0: nothing is there, or never will be ([`Self::ended`]).
    pub(crate) fn read(&mut self, place: &mut [u8]) -> usize {
        read(&mut self.stream, place, &mut self.ended)
    }

    /// The header of the next message, if it is here; `current` has it until the message is done.
    ///
    /// # Errors
    /// What is no header, and a notice: the other rank gave up.
    pub(crate) fn next_header(&mut self, call: u64) -> Result<Option<Header>, Error> {
        if self.current.is_none() {
            while self.have < HEADER_LEN {
                match read(&mut self.stream, &mut self.header[self.have..], &mut self.ended) {
                    0 => return Ok(None),
                    bytes => self.have += bytes,
                }
            }
            self.current = Header::decode(&self.header);
            if self.current.is_none() {
                let reason = "its bytes are no header of a mesh".into();
                return Err(Error::PeerLost { rank: self.rank, call, reason });
            }
        }
        if let Some(Header::Stop { by, culprit, len }) = self.current {
            let mut place = [0; crate::wire::MAX_NOTICE];
            while self.notice.len() < len {
                let missing = len - self.notice.len();
                match read(&mut self.stream, &mut place[..missing], &mut self.ended) {
                    0 => return Ok(None),
                    bytes => self.notice.extend_from_slice(&place[..bytes]),
                }
            }
            let reason = String::from_utf8_lossy(&self.notice).into_owned();
            return Err(Error::Stopped { by, culprit, reason });
        }
        Ok(self.current)
    }

    /// The message whose header this was is done.
    pub(crate) const fn message_ends(&mut self) {
        self.current = None;
        self.have = 0;
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

    /// Says why this rank gives up, as far as that is possible, and that nothing follows.
    pub(crate) fn give_up(&mut self, notice: &Header, text: &str) {
        if !self.in_message {
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

/// Reads once; 0: nothing is there, or never will be: then `ended` says why.
fn read(stream: &mut TcpStream, place: &mut [u8], ended: &mut Option<String>) -> usize {
    if ended.is_some() {
        return 0;
    }
    loop {
        match stream.read(place) {
            Ok(0) => *ended = Some("its connection was closed".into()),
            Ok(bytes) => return bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => *ended = Some(error.to_string()),
        }
        return 0;
    }
}
