//! Senders of packets that are not theirs to send: floods of forged packets, and a member that
//! repeats itself as fast as it can.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use rustix::thread::{CpuSet, sched_setaffinity};
use socket2::{Domain, Protocol, Socket, Type};
use xdp_agg_common::control::{
    Admitted, CONTROL_VERSION, Join, Reply, Request, read_message, write_message,
};
use xdp_agg_common::frame::HEADER_OFFSET;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::sys;
use crate::traffic::udp_socket;

/// Longest wait for anything here.
const LIMIT: Duration = Duration::from_secs(20);
/// Messages of one system call.
const BURST: usize = 64;
/// Different packets of a flood.
const KINDS: usize = 16 * BURST;

/// Has the calling thread, and those that it starts from now on, run on one processor only.
///
/// # Errors
/// There is no such processor.
pub fn pin_to_cpu(cpu: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(Error::os(format!("keeping to processor {cpu}")))
}

/// What only a job's members know, and an attacker that reads their packets.
#[derive(Clone, Copy, Debug)]
pub struct Secret {
    /// Of a contribution.
    pub header: Header,
    /// The sender.
    pub from: SocketAddrV4,
    /// Where it went.
    pub to: SocketAddrV4,
}

impl Secret {
    /// Listens in a worker's namespace until it sends a contribution: what an attacker on the path
    /// learns, and no other.
    ///
    /// # Errors
    /// It sends none in time.
    pub fn overhear(worker: &Namespace) -> Result<Self, Error> {
        let what = format!("listening in {}", worker.label());
        let open = || {
            let all = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
            Socket::new(Domain::PACKET, Type::RAW, Some(all))
        };
        let mut socket = worker.run(open)?.map_err(Error::os(what.clone()))?;
        let deadline = Instant::now() + LIMIT;
        let mut frame = vec![0; 1 << 16];
        while Instant::now() < deadline {
            let limit = Some(Duration::from_millis(100));
            socket.set_read_timeout(limit).map_err(Error::os(what.clone()))?;
            match std::io::Read::read(&mut socket, &mut frame) {
                Ok(len) => {
                    if let Some(secret) = Self::of(&frame[..len]) {
                        return Ok(secret);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {}
                Err(error) => return Err(Error::os(what)(error)),
            }
        }
        Err(Error::Process(format!("{what}: no contribution in {LIMIT:?}")))
    }

    fn of(frame: &[u8]) -> Option<Self> {
        let SlicedPacket { net, transport, .. } = SlicedPacket::from_ethernet(frame).ok()?;
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (net, transport) else {
            return None;
        };
        let header = Header::parse(udp.payload().first_chunk()?).ok()?;
        (header.kind == Kind::Contribution).then(|| Self {
            header,
            from: SocketAddrV4::new(ip.header().source_addr(), udp.source_port()),
            to: SocketAddrV4::new(ip.header().destination_addr(), udp.destination_port()),
        })
    }

    /// The forged packets of a flood, all kinds mixed. None of them is a member's: at least one of
    /// cookie, epoch, address, port, size and form is wrong.
    fn forgeries(&self, own: Ipv4Addr) -> Vec<Vec<u8>> {
        let mut random = SplitMix64::seed_from_u64(0);
        let mut next = move || random.next_u64();
        let forge = |i: usize| {
            let mut header = Header { block: next() & 0xffff, ..self.header };
            let (mut from, mut len) = (self.from, CHUNK_LEN);
            let mut damage: Option<(usize, u8)> = None;
            match i % 10 {
                0 => header.cookie = next(),
                1 => from.set_ip(own),
                2 => from.set_port(from.port() ^ 1),
                3 => header.epoch = header.epoch.wrapping_add(1 + next() as u16 % 7),
                4 => header.cookie ^= 1 << (next() & 63),
                5 => damage = Some((next() as usize % 2, 0xf0 | next() as u8)),
                6 => len = 0,
                7 => len = 22 * CHUNK_LEN + 1 + next() as usize % 4,
                8 => header.job = 15 - header.job,
                _ => header.rank = 63,
            }
            let mut frame = packet(&header, from, self.to, len);
            if let Some((at, change)) = damage {
                frame[HEADER_OFFSET + at] ^= change;
            }
            if i % 40 == 6 {
                frame.truncate(HEADER_OFFSET + next() as usize % HEADER_LEN);
            }
            frame
        };
        (0..KINDS).map(forge).collect()
    }
}

/// A frame on the attacker's cable, without UDP checksum: whatever is damaged, that is not why it
/// is refused.
fn packet(header: &Header, from: SocketAddrV4, to: SocketAddrV4, payload: usize) -> Vec<u8> {
    let mut data = vec![0x55; HEADER_LEN + payload];
    if let Some(place) = data.first_chunk_mut() {
        header.emit(place);
    }
    // `Namespace::connect` gives the two ends these addresses.
    let builder = PacketBuilder::ethernet2([0x02, 0x88, 1, 0, 0, 0], [0x02, 0x88, 1, 0, 0, 1])
        .ipv4(from.ip().octets(), to.ip().octets(), 64)
        .udp(from.port(), to.port());
    let mut frame = Vec::with_capacity(builder.size(data.len()));
    builder.write(&mut frame, &data).expect("a vector takes it, and it is shorter than 64 KiB");
    frame[HEADER_OFFSET - 2..HEADER_OFFSET].fill(0);
    frame
}

/// An attacker's host with a cable of its own into the aggregator's, without any rate.
#[derive(Debug)]
pub struct Attacker {
    namespace: Namespace,
}

impl Attacker {
    /// The interface that the aggregator has for it.
    pub const INTERFACE: &'static str = "flood";
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

    /// Connects one to an aggregator that is to serve [`Attacker::INTERFACE`], too.
    pub fn connect(aggregator: &Namespace) -> Result<Self, Error> {
        let namespace = Namespace::new("attacker")?;
        let theirs = (Self::INTERFACE, Ipv4Addr::new(10, 99, 0, 2));
        namespace.connect(("eth0", Self::ADDRESS), aggregator, theirs)?;
        Ok(Self { namespace })
    }

    /// Sends forged packets as fast as one processor can, until the flood is stopped.
    pub fn flood(&self, secret: &Secret, cpu: Option<usize>) -> Result<Flood, Error> {
        let index = self.namespace.netlink().index("eth0")?;
        let open = || sys::frame_socket(index, true);
        let socket = self.namespace.run(open)?.map_err(Error::os("opening a socket for frames"))?;
        Flood::start(socket, secret.forgeries(Self::ADDRESS), cpu)
    }
}

/// A thread that sends the same messages again and again. It ends with this value.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
    start: Instant,
}

impl Flood {
    fn start(socket: OwnedFd, messages: Vec<Vec<u8>>, cpu: Option<usize>) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let work = move || {
            // Without such a processor the flood runs where it is.
            let _ = cpu.map(pin_to_cpu);
            let mut sent = 0;
            for burst in messages.chunks(BURST).cycle() {
                if theirs.load(Ordering::Relaxed) {
                    break;
                }
                // A full queue loses the burst, as a real one would.
                sent += sys::send_many(socket.as_fd(), burst).unwrap_or(0) as u64;
            }
            sent
        };
        let thread = std::thread::Builder::new().name("flood".into()).spawn(work);
        let thread = thread.map_err(Error::os("starting a thread"))?;
        Ok(Self { stop, thread: Some(thread), start: Instant::now() })
    }

    /// Ends it; how many messages it sent in what time.
    pub fn stop(mut self) -> (u64, Duration) {
        (self.end(), self.start.elapsed())
    }

    fn end(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.end();
    }
}

/// A member of a job that speaks the protocol by hand, and does what no library would.
#[derive(Debug)]
pub struct Rude {
    control: TcpStream,
    data: UdpSocket,
    rank: u16,
    admitted: Option<Admitted>,
}

impl Rude {
    /// Asks to become a rank of a job; [`Rude::get_ready`] needs all its ranks to have asked.
    ///
    /// # Errors
    /// No daemon, or it refuses.
    pub fn join(
        host: (&Namespace, Ipv4Addr),
        daemon: SocketAddr,
        job: &str,
        rank: u16,
        world_size: u16,
    ) -> Result<Self, Error> {
        let (namespace, address) = host;
        let port = 4_700 + rank;
        let data = udp_socket(namespace, SocketAddrV4::new(address, port), LIMIT / 100)?;
        let connect = || TcpStream::connect_timeout(&daemon, LIMIT);
        let control = namespace.run(connect)?.map_err(Error::os("connecting to the daemon"))?;
        control.set_read_timeout(Some(LIMIT)).map_err(Error::os("setting a time limit"))?;
        let mut rude = Self { control, data, rank, admitted: None };
        let agent = "a rude worker".into();
        rude.say(&Request::Hello { version: CONTROL_VERSION, agent, token: None })?;
        rude.say(&Request::Join(Join {
            job: job.into(),
            rank,
            world_size,
            data_port: port,
            data_addr: Some(address),
            max_chunks: 22,
            ..Join::default()
        }))?;
        Ok(rude)
    }

    fn say(&mut self, request: &Request) -> Result<(), Error> {
        write_message(&mut self.control, request).map_err(|error| Error::Process(error.to_string()))
    }

    /// Reads what the daemon says until `wanted` finds something in it.
    fn hear<T>(&mut self, wanted: impl Fn(&Reply) -> Option<T>) -> Result<T, Error> {
        loop {
            let reply: Reply = read_message(&mut self.control)
                .map_err(|error| Error::Process(format!("rank {}: {error}", self.rank)))?;
            if let Some(wanted) = wanted(&reply) {
                return Ok(wanted);
            }
            if matches!(reply, Reply::Aborted(_) | Reply::Error { .. }) {
                return Err(Error::Process(format!("rank {}: {reply:?}", self.rank)));
            }
        }
    }

    fn packet(&self, kind: Kind, block: u64) -> Vec<u8> {
        let Some(admitted) = &self.admitted else { return Vec::new() };
        let header = Header {
            kind,
            flags: 0,
            reduction: Reduction::Add,
            job: admitted.job_id,
            rank: self.rank,
            cookie: admitted.cookie,
            epoch: admitted.epoch,
            block,
            tag: 1,
        };
        let mut bytes = vec![1; HEADER_LEN + usize::from(admitted.chunks) * CHUNK_LEN];
        if let Some(place) = bytes.first_chunk_mut() {
            header.emit(place);
        }
        bytes
    }

    /// Tries its path, and says so.
    ///
    /// # Errors
    /// The job does not come together, or the path is closed.
    pub fn get_ready(&mut self) -> Result<(), Error> {
        let admitted = self.hear(|reply| match reply {
            Reply::Admitted(admitted) => Some(admitted.clone()),
            _ => None,
        })?;
        self.data.connect(admitted.data).map_err(Error::os("connecting a UDP socket"))?;
        self.admitted = Some(admitted);
        let probe = self.packet(Kind::Probe, 0);
        let mut answer = [0; 2048];
        for _ in 0..50 {
            self.data.send(&probe).map_err(Error::os("sending a probe"))?;
            if self.data.recv(&mut answer).is_ok() {
                return self.say(&Request::Ready);
            }
        }
        Err(Error::Process(format!("rank {}: no answer to its probes", self.rank)))
    }

    /// Waits until the job runs.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn wait_go(&mut self) -> Result<(), Error> {
        self.hear(|reply| matches!(reply, Reply::Go { .. }).then_some(()))
    }

    /// Where it was told to send to.
    pub fn told(&self) -> Option<SocketAddrV4> {
        self.admitted.as_ref().map(|admitted| admitted.data)
    }

    /// Its contribution to a block, as it would send it: lanes full of ones.
    pub fn contribution(&self, block: u64) -> Vec<u8> {
        self.packet(Kind::Contribution, block)
    }

    /// Contributes to a block and waits for its sum.
    ///
    /// # Errors
    /// The operating system's, or none comes.
    pub fn sum(&self, block: u64) -> Result<Vec<u8>, Error> {
        let mut answer = [0; 2048];
        for _ in 0..50 {
            self.data.send(&self.contribution(block)).map_err(Error::os("contributing"))?;
            while let Ok(len) = self.data.recv(&mut answer) {
                let (header, payload) = answer[..len].split_at(HEADER_LEN.min(len));
                let header = header.first_chunk().and_then(|header| Header::parse(header).ok());
                if header.is_some_and(|h| h.kind == Kind::Result && h.block == block) {
                    return Ok(payload.to_vec());
                }
            }
        }
        Err(Error::Process(format!("rank {}: no sum of block {block}", self.rank)))
    }

    /// Sends its contribution to block 0 again and again, as fast as one processor can.
    pub fn repeat(&self, cpu: Option<usize>) -> Result<Flood, Error> {
        let socket = self.data.try_clone().map_err(Error::os("copying a descriptor"))?;
        Flood::start(socket.into(), vec![self.packet(Kind::Contribution, 0); BURST], cpu)
    }
}
