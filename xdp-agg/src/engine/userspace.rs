//! The engine for hosts where XDP is not permitted: one UDP socket, one thread.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tracing::{error, info};
use xdp_agg_common::admission::Source;
use xdp_agg_common::control::LocalMembers;
use xdp_agg_common::frame::{IP_OVERHEAD, chunks_for_mtu};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, Member, ResultMode};
use xdp_agg_common::wire::{EVERYBODY, HEADER_LEN, Header};
use xdp_agg_protocol::sum::{Answer, Job, Sums, since, uplink};

use super::events::report;
use super::mmsg::{Inbox, Outbox, Outgoing, configure};
use super::uplink::send_probe;
use super::watch::{Eye, Watched};
use super::{Engine, EngineConfig, EngineError, JobSetup, Started, Trouble, Watch};
use crate::confined::confine_helper;
use crate::link::{Links, addresses};

/// Room for packets that wait: half of the default pool from eight workers at 1500 bytes.
const RECEIVE_BUFFER: usize = 16 << 20;
/// How long the thread waits for a packet before it looks whether it shall end.
const PATIENCE: Duration = Duration::from_millis(100);
/// Packets that are collected before they are sent.
const FLUSH_AT: usize = 256;

/// Sums in this process. Dropping it ends its thread and closes its socket.
#[derive(Debug)]
pub struct UserspaceEngine {
    sums: Arc<Mutex<Sums>>,
    /// From here the time of the sums is counted.
    opened: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The data path's socket once more: probes of parents leave by it.
    prober: Socket,
    port: u16,
    slots: u32,
    max_chunks: u16,
    config: EngineConfig,
}

impl UserspaceEngine {
    /// Binds the data path's socket and starts the thread that serves it.
    ///
    /// # Errors
    /// The port is taken, the address or an interface is not of this host, or the system refuses.
    pub fn open(config: &EngineConfig) -> Result<Self, EngineError> {
        let mtu = mtu(config)?;
        let max_chunks = chunks_for_mtu(mtu);
        if max_chunks == 0 {
            let least = IP_OVERHEAD + CHUNK_LEN;
            return Err(failed("MTU", format!("{mtu} is too small; at least {least} is needed")));
        }
        let socket = bind(config)?;
        let port = local_port(&socket).map_err(|error| failed("UDP socket", error))?;
        let prober = socket.try_clone().map_err(|error| failed("UDP socket", error))?;
        let sums = Arc::new(Mutex::new(Sums::new(config.slots, max_chunks)));
        let stop = Arc::new(AtomicBool::new(false));
        let opened = Instant::now();
        let server = Server {
            socket,
            sums: Arc::clone(&sums),
            opened,
            stop: Arc::clone(&stop),
            outgoing: Vec::with_capacity(2 * FLUSH_AT),
        };
        let thread = std::thread::Builder::new()
            .name("xdp-agg-data".into())
            .spawn(move || server.run())
            .map_err(|error| failed("starting the data path's thread", error))?;
        let (slots, config) = (config.slots, config.clone());
        let thread = Some(thread);
        Ok(Self { sums, opened, stop, thread, prober, port, slots, max_chunks, config })
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        locked(&self.sums)
    }
}

impl Engine for UserspaceEngine {
    fn describe(&self) -> String {
        "userspace".into()
    }

    fn max_chunks(&self) -> u16 {
        self.max_chunks
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn data_port(&self) -> Option<u16> {
        Some(self.port)
    }

    fn prepare(&mut self, job: &JobSetup) -> Result<Option<LocalMembers>, EngineError> {
        // Sockets also take packets that workers on this host send to the job's address.
        self.sums().prepare(job)?;
        Ok(None)
    }

    fn probe_uplink(&mut self, job_id: u16) -> Result<bool, EngineError> {
        match self.sums().unlearned(job_id)? {
            None => Ok(true),
            Some((conf, up)) => send_probe(&self.prober, &conf, &up).map(|()| false),
        }
    }

    fn start(&mut self, job_id: u16, wanted: Option<ResultMode>) -> Result<Started, EngineError> {
        Ok(self.sums().start(job_id, wanted)?)
    }

    fn stop(&mut self, job_id: u16) -> Result<(), EngineError> {
        self.sums().stop(job_id);
        Ok(())
    }

    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError> {
        Ok(self.sums().counters().to_vec())
    }

    fn missing(&mut self, job_id: u16, block: u64) -> Result<u64, EngineError> {
        Ok(self.sums().missing(job_id, block)?)
    }

    /// The kernel finds the ways; what it cannot mend is an MTU.
    fn tend(&mut self) -> Vec<Trouble> {
        let (what, room) = match mtu(&self.config) {
            Ok(mtu) if chunks_for_mtu(mtu) >= self.max_chunks => return Vec::new(),
            Ok(mtu) => (format!("the MTU towards workers is {mtu} now"), chunks_for_mtu(mtu)),
            Err(error) => (error.to_string(), 0),
        };
        let sums = self.sums();
        let jobs = (0..MAX_JOBS as u16).filter_map(|job_id| Some((job_id, sums.job(job_id)?.conf)));
        let cut_off = jobs.filter(|(_, conf)| conf.max_chunks > room);
        let members = cut_off.map(|(job_id, conf)| (job_id, conf.members)).collect();
        vec![Trouble { what, members }]
    }

    fn watch(&self) -> Result<Box<dyn Watch>, EngineError> {
        Ok(Box::new(UserspaceWatch { sums: Arc::clone(&self.sums), opened: self.opened }))
    }

    fn heard(&mut self, job_id: u16) -> Result<Vec<(u16, Option<Duration>)>, EngineError> {
        // The lock first, then the clock: no member was heard later than that.
        let mut sums = self.sums();
        Ok(sums.heard(job_id, self.opened.elapsed())?)
    }
}

/// The sums, for another thread.
struct UserspaceWatch {
    sums: Arc<Mutex<Sums>>,
    opened: Instant,
}

impl Watch for UserspaceWatch {
    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError> {
        Ok(locked(&self.sums).counters().to_vec())
    }

    fn look(&mut self, job_id: u16, eye: &mut dyn Eye) -> Result<bool, EngineError> {
        let sums = locked(&self.sums);
        let Some(conf) = sums.job(job_id).map(|job| job.conf) else {
            return Ok(false);
        };
        let slot = |index: u32| sums.slot(job_id, index.into()).copied().unwrap_or_default();
        eye.see(&conf, &mut { slot });
        Ok(true)
    }

    fn members(&mut self, job_id: u16) -> Result<Vec<Watched>, EngineError> {
        // The lock first, then the clock: no member was heard later than that.
        let sums = locked(&self.sums);
        let now = self.opened.elapsed();
        let Some(job) = sums.job(job_id) else { return Ok(Vec::new()) };
        let members = (0..).zip(&job.members).filter(|(_, member)| member.addr != 0);
        let watched = members.map(|(rank, member)| Watched {
            rank,
            epoch: job.conf.epoch,
            heard: since(member.heard, now),
            repetitions: member.repetitions,
        });
        Ok(watched.collect())
    }
}

impl Drop for UserspaceEngine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

/// The thread's half.
struct Server {
    socket: Socket,
    sums: Arc<Mutex<Sums>>,
    opened: Instant,
    stop: Arc<AtomicBool>,
    outgoing: Vec<Outgoing>,
}

impl Server {
    fn run(mut self) {
        // Its socket is open.
        confine_helper();
        let mut inbox = Inbox::new();
        let mut outbox = Outbox::new();
        let mut failures = 0_u64;
        while !self.stop.load(Ordering::Relaxed) {
            match inbox.receive(&self.socket) {
                Ok(count) => self.serve(count, &mut inbox, &mut outbox),
                Err(error) if waits(&error) => {}
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        error!(failures, "cannot receive on the data path: {error}");
                    }
                    // Whatever the error is, this thread must not take the whole processor.
                    std::thread::sleep(PATIENCE);
                }
            }
        }
    }

    /// Serves a batch of messages: the lock is taken once, but for very large batches.
    fn serve(&mut self, count: usize, inbox: &mut Inbox, outbox: &mut Outbox) {
        let sums = Arc::clone(&self.sums);
        let mut guard = locked(&sums);
        let now = self.opened.elapsed();
        for index in 0..count {
            let message = inbox.message(index);
            let source = Source { addr: u32::from(*message.from.ip()), port: message.from.port() };
            let from = message.from;
            let mut offset = message.offset;
            // An empty datagram has no segments, but is a packet all the same.
            if message.bytes.is_empty() {
                guard.handle_packet(source, &mut [], now);
            }
            for packet in message.bytes.chunks_mut(message.segment) {
                let answer = guard.handle_packet(source, packet, now);
                self.queue(&guard, answer, from, offset);
                offset += packet.len();
            }
            if self.outgoing.len() >= FLUSH_AT {
                drop(guard);
                outbox.send(&self.socket, &self.outgoing, inbox);
                self.outgoing.clear();
                guard = locked(&sums);
            }
        }
        let events = guard.take_events();
        drop(guard);
        outbox.send(&self.socket, &self.outgoing, inbox);
        self.outgoing.clear();
        events.iter().for_each(report);
    }

    /// Queues an answer to the packet at `offset` of the inbox.
    fn queue(&mut self, sums: &Sums, answer: Answer, sender: SocketAddrV4, offset: usize) {
        let (job_id, header, len, to) = match answer {
            Answer::Nothing => return,
            Answer::Sender { header, len } => (header.job, header, len, To::One(sender)),
            Answer::Members { header, len } => (header.job, header, len, To::All),
            Answer::Member { header, len } => (header.job, header, len, To::Rank),
            Answer::Parent { job_id, header, len } => (job_id, header, len, To::Parent),
        };
        let Some(Job { conf, members: all, uplink, .. }) = sums.job(job_id) else {
            return;
        };
        let address = |member: &Member| SocketAddrV4::new(member.addr.into(), member.port);
        let mut push = |to: SocketAddrV4, rank: u16| {
            let mut bytes = [0; HEADER_LEN];
            Header { rank, ..header }.emit(&mut bytes);
            self.outgoing.push(Outgoing {
                to,
                from: Ipv4Addr::from(conf.addr),
                header: bytes,
                offset: (offset + HEADER_LEN) as u32,
                len: len as u32,
            });
        };
        match to {
            To::One(sender) => push(sender, header.rank),
            To::Parent => push(uplink::address(uplink), header.rank),
            To::Rank => {
                if let Some(member) = all.get(usize::from(header.rank)) {
                    push(address(member), header.rank);
                }
            }
            To::All if conf.mode == ResultMode::Multicast as u16 => {
                push(SocketAddrV4::new(conf.group.into(), conf.group_port), EVERYBODY);
            }
            To::All => {
                for (rank, member) in (0..).zip(all).filter(|(_, member)| member.addr != 0) {
                    push(address(member), rank);
                }
            }
        }
    }
}

/// Where an answer goes.
enum To {
    One(SocketAddrV4),
    /// The member whose rank the header has.
    Rank,
    Parent,
    All,
}

/// A panic under the lock leaves counters or a slot of one job behind; others go on.
fn locked(sums: &Mutex<Sums>) -> MutexGuard<'_, Sums> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn bind(config: &EngineConfig) -> Result<Socket, EngineError> {
    let addr =
        SocketAddrV4::new(config.data_addr.unwrap_or(Ipv4Addr::UNSPECIFIED), config.data_port);
    let open = || -> io::Result<(Socket, usize)> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        let room = configure(&socket, RECEIVE_BUFFER)?;
        socket.set_send_buffer_size(RECEIVE_BUFFER / 4)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        // Its own results must not come back: other processes of this host may be in the group.
        socket.set_multicast_all_v4(false)?;
        socket.set_multicast_ttl_v4(1)?;
        socket.bind(&addr.into())?;
        Ok((socket, room))
    };
    let (socket, room) = open().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => EngineError::PortInUse(addr),
        io::ErrorKind::AddrNotAvailable => failed(
            "--data-addr",
            format!("{} is no address of this host; `ip -4 addr` lists them", addr.ip()),
        ),
        _ => failed("UDP socket of the data path", error),
    })?;
    if room < RECEIVE_BUFFER {
        info!(
            "the data path's receive buffer is {room} bytes instead of {RECEIVE_BUFFER}; for less \
             loss with many workers: sysctl -w net.core.rmem_max={RECEIVE_BUFFER}"
        );
    }
    Ok(socket)
}

fn local_port(socket: &Socket) -> io::Result<u16> {
    let addr = socket.local_addr()?.as_socket_ipv4();
    addr.map(|addr| addr.port()).ok_or_else(|| io::Error::other("not bound to IPv4"))
}

/// The MTU that bounds the blocks: the configured one, the interfaces', or the data address's.
fn mtu(config: &EngineConfig) -> Result<u32, EngineError> {
    let links = Links::open().map_err(|error| failed("asking for MTUs", error))?;
    let all = addresses().map_err(|error| failed("asking for addresses", error))?;
    let mut names = config.interfaces.clone();
    if let Some(addr) = config.data_addr {
        names.extend(all.iter().filter(|a| a.addr == addr).map(|a| a.interface.clone()));
    }
    if names.is_empty() {
        let up = |loopback| all.iter().filter(move |a| a.up && a.loopback == loopback);
        names.extend(up(false).map(|a| a.interface.clone()));
        if names.is_empty() {
            names.extend(up(true).map(|a| a.interface.clone()));
        }
    }
    let mut smallest = config.mtu;
    for name in names {
        let mtu = links.mtu(&name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => EngineError::NoInterface(name),
            _ => failed("asking for an MTU", error),
        })?;
        smallest = Some(smallest.map_or(mtu, |least| least.min(mtu)));
    }
    smallest.ok_or_else(|| failed("MTU", "no interface is up; name one or give --mtu"))
}

fn failed(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EngineError {
    EngineError::Other { what: what.into(), source: source.into() }
}
