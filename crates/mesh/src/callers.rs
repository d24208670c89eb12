//! Callers that have connected to a listener and not yet said their first words: all are heard at
//! once.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use xdp_agg_forks::own;

use crate::meet::wait;

/// How long a caller may take for all of its first words: a caller speaks as soon as it connects.
pub const FIRST_WORDS: Duration = Duration::from_secs(2);
/// Longest first words, in bytes.
pub const MAX_WORDS: usize = 8192;
/// Most callers that are heard at a time; the one that came first makes room for another.
const MAX_CALLERS: usize = 256;
/// Pause where the system does not let a caller in or cannot wait.
const PAUSE: Duration = Duration::from_millis(5);

/// The callers of a listener. One that says nothing, or a byte now and then, keeps nobody waiting
/// and is gone after [`FIRST_WORDS`].
#[derive(Debug)]
pub struct Callers<'a> {
    listener: &'a TcpListener,
    /// Bytes of a message that begins like this, as far as that is known from it.
    length: fn(&[u8]) -> usize,
    /// What each is told before it speaks; short.
    greeting: Vec<u8>,
    waiting: VecDeque<Caller>,
}

#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    until: Instant,
    words: Vec<u8>,
}

/// What a caller has said.
enum Heard {
    All,
    NotYet,
    /// It is gone, or what it says is too long.
    Nothing,
}

impl<'a> Callers<'a> {
    /// Of a listener that does not block. `length`: how long a message is that begins with these
    /// bytes, or how many of it are needed to know.
    #[must_use]
    pub const fn new(listener: &'a TcpListener, length: fn(&[u8]) -> usize) -> Self {
        Self { listener, length, greeting: Vec::new(), waiting: VecDeque::new() }
    }

    /// The same, and each is told this before it speaks.
    #[must_use]
    pub fn greeted(self, greeting: Vec<u8>) -> Self {
        Self { greeting, ..self }
    }

    /// The next caller that has said its first words, and these; what follows them is not read.
    /// None: no such caller came until `end`.
    pub fn next(&mut self, end: Instant) -> Option<(TcpStream, Vec<u8>)> {
        loop {
            let trouble = self.let_in();
            if let Some((stream, words)) = self.hear() {
                if stream.set_nonblocking(false).is_ok() {
                    return Some((stream, words));
                }
                continue;
            }
            let now = Instant::now();
            if now >= end {
                return None;
            }
            let first = self.waiting.front().map_or(end, |caller| caller.until.min(end));
            if trouble || self.sleep(first.saturating_duration_since(now)).is_err() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// True: the system does not let them in.
    fn let_in(&mut self) -> bool {
        // A bounded number at a time, so that callers already let in are heard, too.
        for _ in 0..MAX_CALLERS {
            match own(|| self.listener.accept().map(|(stream, _)| stream)) {
                Ok(mut stream) if stream.set_nonblocking(true).is_ok() => {
                    // A new connection has room for it; who is gone needs none.
                    let _ = stream.write_all(&self.greeting);
                    let until = Instant::now() + FIRST_WORDS;
                    self.waiting.push_back(Caller { stream, until, words: Vec::new() });
                }
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    /// The first one that has said all.
    fn hear(&mut self) -> Option<(TcpStream, Vec<u8>)> {
        let now = Instant::now();
        let mut at = 0;
        while let Some(caller) = self.waiting.get_mut(at) {
            match caller.hear(self.length) {
                Heard::NotYet if now < caller.until => at += 1,
                Heard::NotYet | Heard::Nothing => drop(self.waiting.remove(at)),
                Heard::All => {
                    return self.waiting.remove(at).map(|caller| (caller.stream, caller.words));
                }
            }
        }
        // All of them had their chance to speak.
        let crowd = self.waiting.len().saturating_sub(MAX_CALLERS);
        self.waiting.drain(..crowd);
        None
    }

    /// Until a caller comes or speaks.
    fn sleep(&self, time: Duration) -> io::Result<()> {
        let streams = self.waiting.iter().map(|caller| caller.stream.as_fd());
        let fds = std::iter::once(self.listener.as_fd()).chain(streams);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        wait(&mut fds, time)
    }
}

impl Caller {
    fn hear(&mut self, length: fn(&[u8]) -> usize) -> Heard {
        let mut place = [0; MAX_WORDS];
        loop {
            let missing = match length(&self.words) {
                all if all > MAX_WORDS => return Heard::Nothing,
                all if all <= self.words.len() => return Heard::All,
                all => all - self.words.len(),
            };
            match self.stream.read(&mut place[..missing]) {
                Ok(0) => return Heard::Nothing,
                Ok(bytes) => self.words.extend_from_slice(&place[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::NotYet,
                Err(_) => return Heard::Nothing,
            }
        }
    }
}

/// Reads from a blocking connection until a moment, however many reads it takes.
#[derive(Debug)]
pub struct Until<'a> {
    /// The connection.
    pub stream: &'a TcpStream,
    /// The moment.
    pub end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, place: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let late = "it did not say all within the deadline";
            return Err(io::Error::new(io::ErrorKind::TimedOut, late));
        }
        self.stream.set_read_timeout(Some(left))?;
        (&mut &*self.stream).read(place)
    }
}

/// Why a caller of another version is turned away, if it is one.
pub(crate) fn other_version(theirs: u32, ours: u32) -> Option<String> {
    (theirs != ours).then(|| {
        format!("it speaks version {theirs}, this one version {ours}; use one release on all hosts")
    })
}

/// Why a caller of another world is turned away, if it is one: rank and world size, theirs and
/// ours.
pub(crate) fn other_world(theirs: (u16, u16), ours: (u16, u16)) -> Option<String> {
    let ((rank, size), (own, world_size)) = (theirs, ours);
    (size != world_size || rank >= world_size).then(|| {
        format!(
            "it is rank {rank} and its WORLD_SIZE is {size}, that of rank {own} is {world_size}; \
             give all the same"
        )
    })
}

/// Bytes of a message that begins like this; of its length, as long as that is not there.
pub(crate) fn length(words: &[u8]) -> usize {
    words.first_chunk().map_or(4, |len| (u32::from_be_bytes(*len) as usize).saturating_add(4))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    /// A byte that says how many follow.
    fn length(words: &[u8]) -> usize {
        words.first().map_or(1, |len| 1 + usize::from(*len))
    }

    fn listener() -> TcpListener {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("it is open");
        listener
    }

    #[test]
    fn who_speaks_is_heard_before_who_does_not() {
        let listener = listener();
        let address = listener.local_addr().expect("bound");
        let _silent: Vec<_> =
            (0..20).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        drop(TcpStream::connect(address).expect("it listens"));
        let mut caller = TcpStream::connect(address).expect("it listens");
        caller.write_all(b"\x02hi, and more").expect("sent");
        let start = Instant::now();
        let mut callers = Callers::new(&listener, length);
        let (mut stream, words) = callers.next(start + FIRST_WORDS).expect("one spoke");
        assert_eq!(words, b"\x02hi");
        let mut rest = [0; 10];
        stream.read_exact(&mut rest).expect("the rest is left");
        assert_eq!(&rest, b", and more");
        assert!(start.elapsed() < FIRST_WORDS / 2, "{:?}", start.elapsed());
        assert!(callers.next(start + FIRST_WORDS / 4).is_none());
        assert!(start.elapsed() < FIRST_WORDS, "{:?}", start.elapsed());
    }

    /// Neither a caller nor an answer takes longer because it comes byte by byte.
    #[test]
    fn who_says_a_byte_now_and_then_keeps_nobody_longer() {
        let listener = listener();
        let address = listener.local_addr().expect("bound");
        let trickle = move || {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&[200]).expect("sent");
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(40));
            }
        };
        let threads = [thread::spawn(trickle), thread::spawn(trickle)];
        let start = Instant::now();
        let mut callers = Callers::new(&listener, length);
        let end = start + FIRST_WORDS + Duration::from_millis(500);
        while callers.waiting.len() < 2 {
            assert!(callers.next(Instant::now() + PAUSE).is_none());
        }
        let stream = callers.waiting[0].stream.try_clone().expect("it is open");
        stream.set_nonblocking(false).expect("it is open");
        let mut late = Until { stream: &stream, end: start + Duration::from_millis(300) };
        assert!(late.read_exact(&mut [0; 100]).is_err());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        stream.set_nonblocking(true).expect("it is open");
        drop(stream);
        assert!(callers.next(end).is_none());
        assert!(callers.waiting.is_empty(), "they had their time");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
