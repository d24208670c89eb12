//! The server: one thread that accepts, and one a job that adds.

mod job;
mod peer;

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use self::job::Job;
use crate::error::Error;
use crate::frame::{Cause, Failure, HEADER_LEN, Header, Hello, Inbox, Kind, MAX_PIECE, Step};
use crate::socket::{self, Stream, awaited};

/// Connections that have not introduced themselves yet.
const STRANGERS_MAX: usize = 128;
/// How long they may take.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of a Hello.
const HELLO_MAX: usize = 512;

/// How a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Where workers connect.
    pub listen: SocketAddr,
    /// Most jobs at a time.
    pub jobs_max: usize,
    /// Bytes of each worker that may wait for other workers' parts, or whose sums it has not read.
    /// A worker that is further ahead is not read from: TCP holds it back. A job takes up to this
    /// for each of its workers, and a piece.
    pub window: usize,
    /// How long the ranks of a job may take to come, from the first one.
    pub join_within: Duration,
}

impl ServeOptions {
    /// The defaults: 64 jobs, 4 MiB a worker, 60 s to join.
    pub const fn new(listen: SocketAddr) -> Self {
        Self { listen, jobs_max: 64, window: 4 << 20, join_within: Duration::from_secs(60) }
    }
}

/// Stops a server from another thread or a signal's handler loop.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<UnixStream>);

impl Stopper {
    /// [`Server::run`] returns soon; the workers are told.
    pub fn stop(&self) {
        // A full pipe holds a request already.
        drop((&*self.0).write(&[1]));
    }
}

/// A parameter server that listens.
#[derive(Debug)]
pub struct Server {
    options: ServeOptions,
    listener: TcpListener,
    stopper: Stopper,
    stopped: UnixStream,
    jobs: Arc<Jobs>,
}

impl Server {
    /// Listens; workers are served by [`Self::run`].
    ///
    /// # Errors
    /// A window that holds no piece, or an address that cannot be listened on.
    pub fn bind(options: ServeOptions) -> Result<Self, Error> {
        if options.window < MAX_PIECE {
            return Err(Error::InvalidSetting {
                name: "window",
                value: options.window.to_string(),
                expected: "at least a MiB, the largest piece",
            });
        }
        let address = options.listen;
        let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PortInUse { address },
            _ => Error::Listen { address, source },
        })?;
        let system = |source| Error::System { what: "opening the server's sockets", source };
        listener.set_nonblocking(true).map_err(system)?;
        let (stopped, stop) = UnixStream::pair().map_err(system)?;
        stop.set_nonblocking(true).map_err(system)?;
        let stopper = Stopper(Arc::new(stop));
        Ok(Self { options, listener, stopper, stopped, jobs: Arc::default() })
    }

    /// Where workers connect; with the port that the system chose.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        let what = "asking for the server's address";
        self.listener.local_addr().map_err(|source| Error::System { what, source })
    }

    /// What stops [`Self::run`].
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves workers until it is stopped, and tells those that are connected then.
    ///
    /// # Errors
    /// The system refuses to wait for connections.
    pub fn run(self) -> Result<(), Error> {
        let mut strangers = Vec::new();
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        loop {
            let mut fds = vec![awaited(&self.stopped, true, false)];
            // A connection beyond that number waits in the listener's queue.
            fds.push(awaited(&self.listener, strangers.len() < STRANGERS_MAX, false));
            fds.extend(strangers.iter().map(|s: &Stranger| awaited(&s.stream, true, false)));
            let what = "waiting for connections";
            socket::wait(&mut fds, Duration::from_secs(1))
                .map_err(|source| Error::System { what, source })?;
            let ready: Vec<bool> = fds.iter().map(|(_, ready)| ready.read).collect();
            if ready[0] {
                break;
            }
            let mut waiting = Vec::new();
            for (stranger, ready) in strangers.into_iter().zip(&ready[2..]) {
                match stranger.go_on(*ready) {
                    Greeting::Wait(stranger) => waiting.push(stranger),
                    Greeting::Hello(stream, hello) => {
                        threads.extend(self.jobs.admit(stream, hello, &self.options));
                    }
                    Greeting::Gone => {}
                }
            }
            strangers = waiting;
            while ready[1] && strangers.len() < STRANGERS_MAX {
                let Ok((stream, _)) = self.listener.accept() else { break };
                strangers.extend(Stranger::new(stream));
            }
            threads.retain(|thread| !thread.is_finished());
        }
        self.jobs.stop();
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    }
}

/// A connection that has not introduced itself.
#[derive(Debug)]
struct Stranger {
    stream: Stream,
    inbox: Inbox,
    payload: Vec<u8>,
    since: Instant,
}

enum Greeting {
    Wait(Stranger),
    Hello(Stream, Hello),
    Gone,
}

impl Stranger {
    fn new(stream: Stream) -> Option<Self> {
        socket::prepare(&stream).ok()?;
        let (inbox, payload) = (Inbox::default(), vec![0; HELLO_MAX]);
        Some(Self { stream, inbox, payload, since: Instant::now() })
    }

    fn go_on(mut self, ready: bool) -> Greeting {
        if self.since.elapsed() > HELLO_WITHIN {
            return Greeting::Gone;
        }
        if !ready {
            return Greeting::Wait(self);
        }
        loop {
            let reason = match self.inbox.step(&self.stream, &mut self.payload) {
                Ok(Step::Blocked) => return Greeting::Wait(self),
                Ok(Step::Partial) => continue,
                Ok(Step::Header(header)) => {
                    let fits = header.kind == Kind::Hello && header.len as usize <= HELLO_MAX;
                    if fits {
                        continue;
                    }
                    format!("a connection begins with a Hello, not with a {:?}", header.kind)
                }
                Ok(Step::Payload(header)) if self.inbox.is_between_frames() => {
                    match Hello::parse(&self.payload[..header.len as usize]) {
                        Ok(hello) => return Greeting::Hello(self.stream, hello),
                        Err(reason) => reason,
                    }
                }
                // A worker waits for its welcome.
                Ok(Step::Payload(_)) => "something comes before the welcome".into(),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => error.to_string(),
                Ok(Step::Closed) | Err(_) => return Greeting::Gone,
            };
            warn!(peer = %socket::peer(&self.stream), reason, "refused a connection");
            refuse(&self.stream, &reason);
            return Greeting::Gone;
        }
    }
}

/// Tells a connection that joins no job why. The socket's buffer is empty, so it has room.
fn refuse(stream: &Stream, reason: &str) {
    let payload = Failure::new(Cause::Refused, &[], reason).emit();
    let header = Header::plain(Kind::Failed, payload.len()).emit();
    drop(socket::write(stream, &[io::IoSlice::new(&header), io::IoSlice::new(&payload)]));
}

/// The jobs that take workers in or are complete, by name.
#[derive(Debug, Default)]
struct Jobs(Mutex<HashMap<String, Entry>>);

#[derive(Debug)]
struct Entry {
    world: u16,
    /// Tells this job from a later one of the same name.
    number: u64,
    /// Ranks that have come.
    joined: Vec<bool>,
    members: Sender<Member>,
    waker: UnixStream,
}

/// A worker on its way to its job's thread.
#[derive(Debug)]
struct Member {
    rank: u16,
    stream: Stream,
    deadline: Duration,
}

impl Jobs {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        // What a thread that panicked left behind are whole entries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a worker to its job, which begins with its first worker. Returns a new job's thread.
    fn admit(
        self: &Arc<Self>,
        stream: Stream,
        hello: Hello,
        options: &ServeOptions,
    ) -> Option<JoinHandle<()>> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let mut jobs = self.lock();
        let Hello { rank, world, deadline_ms, job } = hello;
        let deadline = Duration::from_millis(deadline_ms.into());
        let mut thread = None;
        if !jobs.contains_key(&job) {
            if jobs.len() >= options.jobs_max {
                refuse(&stream, &format!("{} jobs are here, no more are taken", jobs.len()));
                return None;
            }
            let (members, receiver) = channel();
            let Ok((waker, woken)) = UnixStream::pair() else {
                refuse(&stream, "the server has no descriptors left");
                return None;
            };
            let ready = waker.set_nonblocking(true).and_then(|()| woken.set_nonblocking(true));
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let joined = vec![false; world.into()];
            let entry = Entry { world, number, joined, members, waker };
            let (name, registry, options) = (job.clone(), Arc::clone(self), options.clone());
            let leave = move |name: &str| {
                let mut jobs = registry.lock();
                if jobs.get(name).is_some_and(|entry| entry.number == number) {
                    jobs.remove(name);
                }
            };
            let run = move || {
                info!(job = name, world, "a job begins");
                Job::new(&name, world, &options, receiver, woken).run(|| leave(&name));
                leave(&name);
            };
            match ready.and_then(|()| thread::Builder::new().name("ps-job".into()).spawn(run)) {
                Ok(handle) => thread = Some(handle),
                Err(error) => {
                    refuse(&stream, &format!("the server has no room for a job: {error}"));
                    return None;
                }
            }
            jobs.insert(job.clone(), entry);
        }
        let entry = jobs.get_mut(&job)?;
        if entry.world != world {
            let reason = format!("job {job} has {} workers, not {world}", entry.world);
            refuse(&stream, &reason);
        } else if std::mem::replace(&mut entry.joined[usize::from(rank)], true) {
            refuse(&stream, &format!("rank {rank} of job {job} is connected already"));
        } else if entry.members.send(Member { rank, stream, deadline }).is_ok() {
            drop((&entry.waker).write(&[1]));
        }
        thread
    }

    /// All jobs end: their wakers close.
    fn stop(&self) {
        self.lock().clear();
    }
}

const _: () = assert!(HELLO_MAX > HEADER_LEN + crate::frame::MAX_NAME);
