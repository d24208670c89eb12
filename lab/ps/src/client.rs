//! A worker of a job: pushes its vector to `p` servers, and takes the sums in.

mod link;
mod stream;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use self::link::Link;
use self::stream::Expected;
pub use self::stream::Piece;
use crate::element::{Element, average};
use crate::error::Error;
use crate::frame::{HEADER_LEN, Header, Hello, Kind, MAX_NAME, MAX_PIECE, MAX_WORLD, Step};
use crate::socket::{self, awaited};

/// Elements of a block, where nothing else is said: 64 KiB of `f32`.
pub const DEFAULT_BLOCK: usize = 16 * 1024;
/// How much longer than its deadline a call waits for a server to name the missing workers.
const GRACE: Duration = Duration::from_millis(500);
/// How long a worker stays connected to all servers after an error.
const LINGER: Duration = Duration::from_millis(300);
/// How long a rank that is still taken is asked for: an earlier run may be about to end.
const TAKEN: Duration = Duration::from_secs(2);
/// Reads of one server before the next is looked at.
const STEPS: usize = 32;

/// What becomes of the workers' elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Their sum.
    Sum = 0,
    /// The sum divided by the number of workers; integers towards zero.
    Average = 1,
}

/// The name of the operation in a header's `call`.
pub(crate) const fn operation_name(call: u64) -> &'static str {
    match call as u8 {
        0 => "sum",
        1 => "average",
        _ => "pieces",
    }
}

/// A worker's place in its job, and how it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of the job, the same at all workers and servers.
    pub job: String,
    /// This worker, below `world`.
    pub rank: u16,
    /// Number of workers.
    pub world: u16,
    /// How long joining, and each call, may take.
    pub deadline: Duration,
    /// Elements of a block. Block `j` goes to server `j mod p`; all workers must choose the same.
    pub block: usize,
    /// Bytes that may wait in this process for a server to take them, for pieces that are pushed
    /// one by one.
    pub queue: usize,
    /// Bytes that may have been pushed to a server and whose sums have not come; at least one block
    /// or piece is. It keeps workers abreast: a sum leaves when the slowest of them has pushed.
    pub window: usize,
}

impl Options {
    /// A worker with a deadline of 30 s, blocks of [`DEFAULT_BLOCK`], and a queue and a window of
    /// 1 MiB a server.
    pub fn new(job: impl Into<String>, rank: u16, world: u16) -> Self {
        let (job, deadline) = (job.into(), Duration::from_secs(30));
        Self { job, rank, world, deadline, block: DEFAULT_BLOCK, queue: 1 << 20, window: 1 << 20 }
    }

    fn check(&self, servers: usize) -> Result<(), Error> {
        let wrong =
            |name, value: String, expected| Err(Error::InvalidSetting { name, value, expected });
        if self.job.is_empty() || self.job.len() > MAX_NAME {
            return wrong("the job's name", format!("{:?}", self.job), "1 to 200 bytes");
        }
        if self.world == 0 || self.world > MAX_WORLD {
            return wrong("the world size", self.world.to_string(), "1 to 256 workers");
        }
        if self.rank >= self.world {
            return wrong("the rank", self.rank.to_string(), "a number below the world size");
        }
        if self.block == 0 || self.block > MAX_PIECE / 8 {
            return wrong("the block", self.block.to_string(), "1 to 131072 elements");
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_secs(1 << 22) {
            return wrong("the deadline", format!("{:?}", self.deadline), "up to 48 days, not 0");
        }
        if servers == 0 {
            return wrong("the list of servers", "empty".into(), "at least one address");
        }
        Ok(())
    }
}

/// One worker of a job at `p` parameter servers.
///
/// Calls block, and all workers make the same ones in the same order. After an error the workers
/// are out of step, so all further calls fail with [`Error::Broken`].
#[derive(Debug)]
pub struct PsClient {
    links: Vec<Link>,
    options: Options,
    sequence: u64,
    broken: Option<String>,
    /// Pieces that were pushed one by one and whose sums have not come, in order, by server.
    expected: Vec<Expected>,
    /// Number of pieces of the call that was begun last.
    pieces: u64,
}

impl PsClient {
    /// Joins a job: waits until all workers have, and returns then.
    ///
    /// # Errors
    /// No server at one of the addresses, its refusal, or the others do not come in time.
    pub fn connect(
        servers: &[SocketAddr],
        job: &str,
        rank: u16,
        world: u16,
        deadline: Duration,
    ) -> Result<Self, Error> {
        Self::connect_with(servers, Options { deadline, ..Options::new(job, rank, world) })
    }

    /// As [`Self::connect`], with all settings.
    ///
    /// # Errors
    /// As there, and settings out of their range.
    pub fn connect_with(servers: &[SocketAddr], options: Options) -> Result<Self, Error> {
        options.check(servers.len())?;
        let end = Instant::now() + options.deadline;
        let mut links = Vec::with_capacity(servers.len());
        for server in servers {
            links.push(Link::connect(*server, &options.hello(), options.deadline, end)?);
        }
        let knocked = Instant::now();
        for link in &mut links {
            while let Err(error) = await_welcome(link, end, options.deadline) {
                let taken = matches!(&error, Error::Refused { reason, .. }
                    if reason.ends_with("connected already"));
                if !taken || knocked.elapsed() > TAKEN {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(50));
                *link = Link::connect(link.server, &options.hello(), options.deadline, end)?;
            }
        }
        let expected = links.iter().map(|_| Expected::default()).collect();
        Ok(Self { links, options, sequence: 0, broken: None, expected, pieces: 0 })
    }

    /// This worker's rank.
    pub const fn rank(&self) -> u16 {
        self.options.rank
    }

    /// Number of workers.
    pub const fn world(&self) -> u16 {
        self.options.world
    }

    /// How long each call may take from now on.
    pub const fn set_deadline(&mut self, deadline: Duration) {
        self.options.deadline = deadline;
    }

    /// Replaces the elements by the workers' sums or averages: the same bits at all of them, those
    /// of additions in order of rank.
    ///
    /// # Errors
    /// Another worker is lost or late or calls differently, or a server is lost: all workers get
    /// an error. What `data` holds then is not defined.
    pub fn all_reduce<T: Element>(&mut self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.check_usable()?;
        if self.expected.iter().any(|expected| !expected.is_empty()) {
            let what = "take the sums of all pushed pieces in before another call".into();
            return Err(Error::OutOfTurn { what });
        }
        self.sequence += 1;
        let header = Header {
            kind: Kind::Push,
            element: Some(T::TYPE),
            len: 0,
            sequence: self.sequence,
            piece: 0,
            call: (data.len() as u64) << 8 | op as u64,
        };
        let block = self.options.block * size_of::<T>();
        let ahead = (self.options.window / block).max(1) * self.links.len();
        let mut call = Call { header, block, links: self.links.len(), ahead, flows: Vec::new() };
        call.flows.extend((0..self.links.len()).map(Flow::new));
        let done = self.run(&mut call, bytemuck::cast_slice_mut(data));
        self.keep(done)?;
        if op == Op::Average {
            average(data, self.options.world);
        }
        Ok(())
    }

    fn check_usable(&self) -> Result<(), Error> {
        match &self.broken {
            Some(reason) => Err(Error::Broken { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Remembers an error: the workers are out of step. A worker that one server tells of it keeps
    /// its connections for a while. So the others hear the error from that server before they lose
    /// this worker at another.
    fn keep<R>(&mut self, result: Result<R, Error>) -> Result<R, Error> {
        if let Err(error) = &result {
            self.broken = Some(error.to_string());
            if self.links.len() > 1 {
                std::thread::sleep(LINGER);
            }
        }
        result
    }

    fn run(&mut self, call: &mut Call, data: &mut [u8]) -> Result<(), Error> {
        let end = Instant::now() + self.options.deadline + GRACE;
        loop {
            let mut moved = false;
            for (link, flow) in self.links.iter_mut().zip(0..) {
                moved |= call.write(link, flow, data);
                moved |= call.read(link, flow, data)?;
            }
            if call.is_done(data.len()) {
                return Ok(());
            }
            if moved {
                continue;
            }
            let now = Instant::now();
            if now >= end {
                let outstanding = call.outstanding(data.len());
                return Err(Error::Deadline { waited: self.options.deadline, outstanding });
            }
            let mut fds: Vec<_> = (self.links.iter().zip(&call.flows))
                .map(|(link, flow)| {
                    let read = call.at(flow.received) < data.len();
                    let write = call.may_send(flow, data.len()) && link.listens();
                    awaited(&link.stream, read, write)
                })
                .collect();
            let what = "waiting for the servers";
            socket::wait(&mut fds, end - now).map_err(|source| Error::System { what, source })?;
        }
    }

    /// The sockets, for the caller's own poll; the flag: whether there is something to write, too.
    pub fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.links.iter().map(|link| (link.stream.as_fd(), link.wants_write()))
    }
}

impl Drop for PsClient {
    fn drop(&mut self) {
        if self.broken.is_none() && self.expected.iter().all(Expected::is_empty) {
            self.links.iter_mut().for_each(Link::bye);
        }
    }
}

impl Options {
    fn hello(&self) -> Hello {
        let deadline_ms = u32::try_from(self.deadline.as_millis()).unwrap_or(u32::MAX);
        Hello { rank: self.rank, world: self.world, deadline_ms, job: self.job.clone() }
    }
}

fn await_welcome(link: &mut Link, end: Instant, deadline: Duration) -> Result<(), Error> {
    loop {
        match link.step()? {
            Step::Payload(header) if header.kind == Kind::Welcome => return Ok(()),
            Step::Payload(header) => return Err(link.notice(&header)),
            Step::Blocked => {}
            _ => continue,
        }
        let now = Instant::now();
        if now >= end {
            let reason = format!("not all workers joined within {} s", deadline.as_secs_f32());
            return Err(Error::Missing { ranks: Vec::new(), server: link.server, reason });
        }
        let what = "waiting for the other workers";
        socket::wait(&mut [awaited(&link.stream, true, false)], end - now)
            .map_err(|source| Error::System { what, source })?;
    }
}

/// A call under way: the vector's blocks, dealt out to the servers.
struct Call {
    header: Header,
    /// Bytes of a block.
    block: usize,
    links: usize,
    /// A block leaves when its number is less than this above that of the next sum.
    ahead: usize,
    flows: Vec<Flow>,
}

/// How far a call is with one server.
struct Flow {
    /// The next block that has not left as a whole.
    sent: usize,
    /// Bytes of its frame that have left.
    sent_at: usize,
    /// The next block whose sum is awaited.
    received: usize,
}

impl Flow {
    const fn new(first: usize) -> Self {
        Self { sent: first, sent_at: 0, received: first }
    }
}

impl Call {
    /// Where a block begins.
    const fn at(&self, block: usize) -> usize {
        block.saturating_mul(self.block)
    }

    /// Whether a block may leave now.
    fn may_send(&self, flow: &Flow, len: usize) -> bool {
        self.at(flow.sent) < len && flow.sent - flow.received < self.ahead
    }

    fn header(&self, block: usize, len: usize) -> Header {
        let size = self.block.min(len.saturating_sub(self.at(block)));
        Header { piece: block as u64, len: size as u32, ..self.header }
    }

    fn is_done(&self, len: usize) -> bool {
        self.flows.iter().all(|flow| self.at(flow.received) >= len)
    }

    fn outstanding(&self, len: usize) -> u64 {
        let all = len.div_ceil(self.block);
        let left = |flow: &Flow| all.saturating_sub(flow.received).div_ceil(self.links);
        self.flows.iter().map(left).sum::<usize>() as u64
    }

    /// Pushes to one server what it takes now.
    fn write(&mut self, link: &mut Link, flow: usize, data: &[u8]) -> bool {
        let mut moved = false;
        loop {
            let Flow { sent, sent_at, received } = self.flows[flow];
            if !self.may_send(&self.flows[flow], data.len()) {
                return moved;
            }
            let end = data.len().div_ceil(self.block).min(received + self.ahead);
            let blocks = (sent..end).step_by(self.links);
            let frames = blocks.map(|block| {
                let header = self.header(block, data.len());
                (header, &data[self.at(block)..][..header.len as usize])
            });
            let Some(written) = link.write_frames(frames, sent_at) else { return moved };
            moved = true;
            let mut at = sent_at + written;
            let mut block = sent;
            while block < end {
                let frame = HEADER_LEN + self.header(block, data.len()).len as usize;
                if at < frame {
                    break;
                }
                at -= frame;
                block += self.links;
            }
            (self.flows[flow].sent, self.flows[flow].sent_at) = (block, at);
        }
    }

    /// Takes in what one server has sent. A sum overwrites what was pushed for it, which has left.
    fn read(&mut self, link: &mut Link, flow: usize, data: &mut [u8]) -> Result<bool, Error> {
        let mut moved = false;
        for _ in 0..STEPS {
            let Flow { sent, received, .. } = self.flows[flow];
            // What comes behind the last sum is about the next call.
            if self.at(received) >= data.len() {
                break;
            }
            let expected = Header { kind: Kind::Result, ..self.header(received, data.len()) };
            let is_sum = link.inbox.current().is_some_and(|header| header.kind == Kind::Result);
            let step = if is_sum {
                let at = self.at(received);
                link.step_into(&mut data[at..][..expected.len as usize])?
            } else {
                link.step()?
            };
            match step {
                Step::Header(header) if header.kind != Kind::Result => {}
                Step::Header(header) => {
                    let is_due = received < sent;
                    if !is_due || header != expected {
                        let what = format!("it sends {}", header.describe());
                        return Err(Error::Protocol { server: link.server, what });
                    }
                }
                Step::Payload(_) if is_sum => self.flows[flow].received += self.links,
                Step::Payload(header) => return Err(link.notice(&header)),
                Step::Partial => {}
                Step::Blocked | Step::Closed => return Ok(moved),
            }
            moved = true;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that welcomes a worker and adds nothing: the bytes that come within `wait`.
    fn bytes_taken(listener: &TcpListener, wait: Duration) -> usize {
        let (mut stream, _) = listener.accept().expect("a worker connects");
        let mut hello = [0; HEADER_LEN];
        stream.read_exact(&mut hello).expect("a header");
        let len = Header::parse(&hello).expect("a Hello").len as usize;
        stream.read_exact(&mut vec![0; len]).expect("a Hello");
        stream.write_all(&Header::plain(Kind::Welcome, 0).emit()).expect("it is welcomed");
        stream.set_read_timeout(Some(wait)).expect("a limit");
        let mut taken = 0;
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
            taken += bytes;
        }
        taken
    }

    fn options(window: usize) -> Options {
        let deadline = Duration::from_millis(100);
        Options { block: 256, window, deadline, ..Options::new("window", 0, 2) }
    }

    /// Blocks of a KiB: whole ones within the window, and one where it holds none.
    #[test]
    fn a_call_pushes_no_more_than_its_window() {
        for (window, blocks) in [(1, 1), (1024, 1), (3 << 10, 3), (4095, 3), (1 << 20, 40)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("it is bound");
            let work = move || {
                let mut client =
                    PsClient::connect_with(&[address], options(window)).expect("it joins");
                client.all_reduce(&mut vec![1.0_f32; 40 * 256], Op::Sum).expect_err("no sum comes")
            };
            let worker = std::thread::spawn(work);
            let taken = bytes_taken(&listener, Duration::from_secs(3));
            assert_eq!(taken, blocks * (HEADER_LEN + 1024), "a window of {window}");
            let error = worker.join().expect("it ends");
            assert!(matches!(error, Error::Deadline { .. } | Error::ServerLost { .. }), "{error}");
        }
    }

    #[test]
    fn pieces_beyond_the_window_are_refused() {
        for (window, pieces) in [(1, 1), (2 << 10, 2), (4095, 3)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("it is bound");
            let work = move || {
                let mut client =
                    PsClient::connect_with(&[address], options(window)).expect("it joins");
                client.start(40).expect("a call");
                let push = |piece| client.push(piece, &[1.0_f32; 256]).expect("nothing is lost");
                (0..40).map(push).take_while(|taken| *taken).count()
            };
            let worker = std::thread::spawn(work);
            let taken = bytes_taken(&listener, Duration::from_secs(3));
            assert_eq!(worker.join().expect("it ends"), pieces, "a window of {window}");
            assert_eq!(taken, pieces * (HEADER_LEN + 1024), "a window of {window}");
        }
    }
}
