//! The least that a worker can be: it joins, probes, contributes, and reads what comes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use xdp_agg_common::control::{
    Admitted, CONTROL_VERSION, FrameError, Join, Reply, Request, Stats, Token, read_message,
    write_message,
};
use xdp_agg_common::lanes::{Bias, CHUNK_LANES};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::{EVERYBODY, HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_tls::{ClientTls, ControlStream};

use crate::daemon::PATIENCE;

/// Chunks of a block in these tests.
pub(crate) const CHUNKS: u16 = 2;

/// How the daemon is reached.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) control: SocketAddr,
    /// Own address.
    pub(crate) from: Ipv4Addr,
    pub(crate) tls: Option<ClientTls>,
    pub(crate) token: Option<Token>,
}

impl From<SocketAddr> for Door {
    fn from(control: SocketAddr) -> Self {
        Self { control, from: Ipv4Addr::LOCALHOST, tls: None, token: None }
    }
}

impl Door {
    /// A connection, over TLS where there is any.
    pub(crate) fn open(&self) -> ControlStream {
        let stream = connect_from(self.from, self.control);
        let stream = ControlStream::open(stream, self.tls.as_ref(), PATIENCE);
        let stream = stream.expect("both sides accept each other");
        stream.set_timeout(Some(PATIENCE)).expect("a timeout is possible");
        stream
    }

    pub(crate) fn hello(&self) -> Request {
        let token = self.token.clone();
        Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token }
    }
}

/// A TCP connection from one of loopback's many addresses.
pub(crate) fn connect_from(from: Ipv4Addr, control: SocketAddr) -> TcpStream {
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of loopback");
    socket.connect_timeout(&control.into(), PATIENCE).expect("the daemon listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout is possible");
    stream
}

/// A control connection that has said hello.
pub(crate) struct Client {
    pub(crate) stream: ControlStream,
}

impl Client {
    pub(crate) fn connect(door: impl Into<Door>) -> Self {
        let door = door.into();
        let mut client = Self { stream: door.open() };
        let welcome = client.ask(&door.hello());
        let welcomed = matches!(&welcome, Reply::Welcome { engine, .. } if engine == "userspace");
        assert!(welcomed, "{welcome:?}");
        client
    }

    /// How long to wait for an answer.
    pub(crate) fn patience(&self, time: Duration) {
        self.stream.set_timeout(Some(time)).expect("a timeout is possible");
    }

    /// Says something and hears the answer, if the daemon lets it.
    pub(crate) fn try_ask(&mut self, request: &Request) -> Result<Reply, FrameError> {
        write_message(&mut self.stream, request)?;
        read_message(&mut self.stream)
    }

    /// Whether the daemon has hung up. What it said before that is passed over.
    pub(crate) fn is_cut_off(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                }
            }
        }
    }

    pub(crate) fn say(&mut self, request: &Request) {
        write_message(&mut self.stream, request).expect("the daemon reads");
    }

    /// The next reply; heartbeats are answered on the way.
    pub(crate) fn hear(&mut self) -> Reply {
        loop {
            match read_message(&mut self.stream).expect("the daemon answers") {
                Reply::Heartbeat => self.say(&Request::Heartbeat),
                reply => return reply,
            }
        }
    }

    /// The next reply, if it comes in time.
    pub(crate) fn try_hear(&mut self) -> Option<Reply> {
        read_message(&mut self.stream).ok()
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Reply {
        self.say(request);
        self.hear()
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the daemon reads");
    }

    pub(crate) fn stats(&mut self) -> Stats {
        match self.ask(&Request::Stats) {
            Reply::Stats(stats) => stats,
            other => panic!("{other:?}"),
        }
    }
}

/// A worker, joined but not yet admitted.
pub(crate) struct Joining {
    pub(crate) client: Client,
    data: UdpSocket,
    join: Join,
}

/// A member.
pub(crate) struct Worker {
    pub(crate) client: Client,
    pub(crate) data: UdpSocket,
    pub(crate) admitted: Admitted,
    pub(crate) rank: u16,
    world_size: u16,
    group: Option<UdpSocket>,
}

pub(crate) fn wish(job: &str, rank: u16, world_size: u16) -> Join {
    Join { job: job.into(), rank, world_size, data_port: 1, max_chunks: CHUNKS, ..Join::default() }
}

impl Joining {
    pub(crate) fn new(door: impl Into<Door>, join: Join) -> Self {
        let door = door.into();
        let from = door.from;
        Self::over(Client::connect(door), from, join)
    }

    /// Over a connection that is there.
    pub(crate) fn over(mut client: Client, from: Ipv4Addr, join: Join) -> Self {
        let data = UdpSocket::bind((from, 0)).expect("a port is free");
        data.set_read_timeout(Some(PATIENCE)).expect("a timeout is possible");
        let join = Join { data_port: data.local_addr().expect("it is bound").port(), ..join };
        client.say(&Request::Join(join.clone()));
        Self { client, data, join }
    }

    /// Waits for all others and tries the path; Ready is said, Go not yet heard.
    pub(crate) fn probe(mut self) -> Worker {
        let admitted = match self.client.hear() {
            Reply::Admitted(admitted) => admitted,
            other => panic!("{other:?}"),
        };
        let Join { rank, world_size, .. } = self.join;
        let mut worker = Worker {
            client: self.client,
            data: self.data,
            admitted,
            rank,
            world_size,
            group: None,
        };
        worker.send(Kind::Probe, 0, &worker.payload(&[]));
        let (header, payload) = worker.receive().expect("a probe is answered");
        assert_eq!((header.kind, header.rank), (Kind::ProbeReply, rank));
        assert_eq!(payload, worker.payload(&[]));
        worker.client.say(&Request::Ready);
        worker
    }
}

impl Worker {
    /// Forms a job with all its workers and starts it.
    pub(crate) fn all(door: impl Into<Door>, join: &Join) -> Vec<Self> {
        let door = door.into();
        let joining = |rank| Joining::new(door.clone(), Join { rank, ..join.clone() });
        let all: Vec<_> = (0..join.world_size).map(joining).collect();
        let mut all: Vec<_> = all.into_iter().map(Joining::probe).collect();
        for worker in &mut all {
            worker.go();
        }
        all
    }

    pub(crate) fn go(&mut self) {
        let (mode, group) = match self.client.hear() {
            Reply::Go { mode, group } => (mode, group),
            other => panic!("{other:?}"),
        };
        assert_eq!(mode == ResultMode::Multicast, group.is_some());
        self.group = group.map(|group| {
            let socket = socket2::Socket::new(
                socket2::Domain::IPV4,
                socket2::Type::DGRAM,
                Some(socket2::Protocol::UDP),
            )
            .expect("a socket");
            socket.set_reuse_address(true).expect("the group is shared");
            socket.bind(&SocketAddr::from(group).into()).expect("a group can be bound");
            socket
                .join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)
                .expect("a group can be joined");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout is possible");
            socket.into()
        });
    }

    /// Enters the next epoch: its path is tried, Ready is said, Go not yet heard.
    pub(crate) fn enter(&mut self) {
        self.admitted = match self.client.hear() {
            Reply::Admitted(admitted) => admitted,
            other => panic!("{other:?}"),
        };
        self.group = None;
        self.send(Kind::Probe, 0, &self.payload(&[]));
        let (header, _) = self.receive().expect("a probe is answered");
        assert_eq!((header.kind, header.rank), (Kind::ProbeReply, self.rank));
        self.client.say(&Request::Ready);
    }

    /// The lanes of these integers, and of zeros up to a whole block.
    pub(crate) fn payload(&self, values: &[i32]) -> Vec<u8> {
        let bias = Bias::for_workers(self.world_size);
        let lanes = usize::from(self.admitted.chunks) * CHUNK_LANES;
        let values = values.iter().copied().chain(std::iter::repeat(0));
        values.take(lanes).flat_map(|q| bias.encode(q).to_le_bytes()).collect()
    }

    pub(crate) fn header(&self, kind: Kind, block: u64) -> Header {
        let Admitted { job_id, cookie, epoch, .. } = self.admitted;
        let (rank, reduction) = (self.rank, Reduction::Add);
        Header { kind, flags: 0, reduction, job: job_id, cookie, epoch, rank, block, tag: 7 }
    }

    pub(crate) fn send(&self, kind: Kind, block: u64, payload: &[u8]) {
        self.send_as(&self.header(kind, block), payload);
    }

    pub(crate) fn send_as(&self, header: &Header, payload: &[u8]) {
        let mut packet = vec![0; HEADER_LEN];
        header.emit(packet.first_chunk_mut().expect("it is that long"));
        packet.extend_from_slice(payload);
        self.send_raw(&packet);
    }

    pub(crate) fn send_raw(&self, packet: &[u8]) {
        self.data.send_to(packet, self.admitted.data).expect("loopback takes it");
    }

    pub(crate) fn contribute(&self, block: u64, values: &[i32]) {
        self.send(Kind::Contribution, block, &self.payload(values));
    }

    /// The next packet on the worker's own socket.
    pub(crate) fn receive(&self) -> Option<(Header, Vec<u8>)> {
        self.receive_on(&self.data)
    }

    fn receive_on(&self, socket: &UdpSocket) -> Option<(Header, Vec<u8>)> {
        let mut buffer = [0; 4096];
        let (len, from) = socket.recv_from(&mut buffer).ok()?;
        assert_eq!(from, SocketAddr::from(self.admitted.data), "answers come from our address");
        let (header, payload) = buffer[..len].split_first_chunk().expect("a whole header");
        Some((Header::parse(header).expect("a header of ours"), payload.to_vec()))
    }

    /// Nothing comes for a while.
    pub(crate) fn hears_nothing(&self) {
        self.data.set_read_timeout(Some(Duration::from_millis(100))).expect("it is possible");
        assert_eq!(self.receive(), None);
        self.data.set_read_timeout(Some(PATIENCE)).expect("it is possible");
    }

    /// The next result, in whatever way results come: its block and integers.
    pub(crate) fn result(&self) -> (u64, Vec<i32>) {
        let socket = self.group.as_ref().unwrap_or(&self.data);
        let (header, payload) = self.receive_on(socket).expect("a result comes");
        assert_eq!((header.kind, header.tag), (Kind::Result, 7));
        let rank = if self.group.is_some() { EVERYBODY } else { self.rank };
        assert_eq!(header.rank, rank);
        (header.block, self.integers(&payload))
    }

    pub(crate) fn integers(&self, payload: &[u8]) -> Vec<i32> {
        let bias = Bias::for_workers(self.world_size);
        let lane = |bytes: &[u8; 4]| bias.decode_sum(u32::from_le_bytes(*bytes));
        payload.as_chunks().0.iter().map(lane).collect()
    }

    /// Waits until the control connection says that the job was aborted.
    pub(crate) fn aborted(&mut self) -> xdp_agg_common::control::AbortReason {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Reply::Aborted(reason) = self.client.hear() {
                return reason;
            }
        }
        panic!("the job was not aborted");
    }
}
