//! Traffic of others beside what is measured: TCP flows without end, and a probe of the queues.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::traffic::udp_socket;

/// How long a connection may take to open.
const OPENING: Duration = Duration::from_secs(10);
/// How soon a thread notices that it is to end.
const TICK: Duration = Duration::from_millis(100);

/// A TCP connection whose sender always has something to send. It ends with this value.
#[derive(Debug)]
pub struct TcpFlow {
    received: Arc<AtomicU64>,
    ends: [TcpStream; 2],
    threads: Vec<JoinHandle<()>>,
}

impl TcpFlow {
    /// Starts one from a host to another one, under this congestion control of the kernel, such as
    /// `cubic`.
    ///
    /// # Errors
    /// The kernel has no such congestion control, or the connection does not open.
    pub fn start(
        from: &Namespace,
        to: (&Namespace, Ipv4Addr),
        congestion: &str,
    ) -> Result<Self, Error> {
        let (receiver, address) = to;
        let what = format!("a TCP flow ({congestion}) from {} to {address}", from.label());
        let wrong = || Error::os(what.clone());
        let listen = || TcpListener::bind(SocketAddrV4::new(address, 0));
        let listener = receiver.run(listen)?.map_err(wrong())?;
        let target = listener.local_addr().map_err(wrong())?;
        let connect = || -> io::Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_tcp_congestion(congestion.as_bytes())?;
            socket.connect_timeout(&target.into(), OPENING)?;
            Ok(socket.into())
        };
        let sender = from.run(connect)?.map_err(wrong())?;
        let (reader, _) = listener.accept().map_err(wrong())?;
        let mut writer = sender.try_clone().map_err(wrong())?;
        let ends = [sender, reader.try_clone().map_err(wrong())?];
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        let read = move || {
            let mut reader = reader;
            let mut buffer = vec![0; 256 << 10];
            while let Ok(bytes @ 1..) = reader.read(&mut buffer) {
                count.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        };
        // It ends when the connection does.
        let write = move || {
            let block = vec![0x5a; 64 << 10];
            while writer.write_all(&block).is_ok() {}
        };
        let threads = vec![
            Builder::new().name("tcp reader".into()).spawn(read).map_err(wrong())?,
            Builder::new().name("tcp writer".into()).spawn(write).map_err(wrong())?,
        ];
        Ok(Self { received, ends, threads })
    }

    /// Bytes that the receiver has read so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether both ends are still at it.
    pub fn is_open(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        // What waits in the sender's buffer is given up: nobody counts it any more.
        for end in &self.ends {
            let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
            let _ = end.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// One answer to a [`RttProbe`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrip {
    /// When the question was sent, since the probe's start.
    pub sent: Duration,
    /// How long the answer took.
    pub time: Duration,
}

/// Small UDP packets from one host to another and back, evenly spaced: how long they take is how
/// long the queues on the way are. It ends with this value.
#[derive(Debug)]
pub struct RttProbe {
    stop: Arc<AtomicBool>,
    start: Instant,
    asking: Option<JoinHandle<Vec<RoundTrip>>>,
    answering: Option<JoinHandle<()>>,
}

impl RttProbe {
    /// Starts to send one every `interval`.
    ///
    /// # Errors
    /// Sockets or threads cannot be had.
    pub fn start(
        (from, own): (&Namespace, Ipv4Addr),
        (to, other): (&Namespace, Ipv4Addr),
        interval: Duration,
    ) -> Result<Self, Error> {
        let answers = udp_socket(to, SocketAddrV4::new(other, 0), TICK)?;
        let asks = udp_socket(from, SocketAddrV4::new(own, 0), interval)?;
        let target = answers.local_addr().map_err(Error::os("asking for a port"))?;
        asks.connect(target).map_err(Error::os("connecting a UDP socket"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, stopped) = (Arc::clone(&stop), Arc::clone(&stop));
        let start = Instant::now();
        let spawned = Error::os("starting a thread");
        let answering = Builder::new().name("probe's answers".into());
        let answering = answering.spawn(move || answer(&answers, &ends)).map_err(spawned)?;
        let asking = Builder::new().name("probe".into());
        let asking = asking.spawn(move || ask(&asks, interval, start, &stopped));
        let asking = asking.map_err(Error::os("starting a thread"))?;
        Ok(Self { stop, start, asking: Some(asking), answering: Some(answering) })
    }

    /// When it started, which times of answers count from.
    pub fn began(&self) -> Instant {
        self.start
    }

    /// Ends it; all answers, in the order of their coming.
    pub fn finish(mut self) -> Vec<RoundTrip> {
        self.end()
    }

    fn end(&mut self) -> Vec<RoundTrip> {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of a thread was reported when it happened.
        let _ = self.answering.take().map(JoinHandle::join);
        self.asking.take().and_then(|asking| asking.join().ok()).unwrap_or_default()
    }
}

impl Drop for RttProbe {
    fn drop(&mut self) {
        self.end();
    }
}

fn answer(socket: &UdpSocket, stop: &AtomicBool) {
    let mut packet = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut packet) {
            // A queue that is full on the way back is what the probe is to find.
            let _ = socket.send_to(&packet[..length], from);
        }
    }
}

fn ask(
    socket: &UdpSocket,
    interval: Duration,
    start: Instant,
    stop: &AtomicBool,
) -> Vec<RoundTrip> {
    let mut trips = Vec::new();
    let mut next = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let sent = start.elapsed();
        if sent >= next {
            next = sent.max(next + interval);
            // As above.
            let _ = socket.send(&(sent.as_nanos() as u64).to_be_bytes());
        }
        let left = next.saturating_sub(start.elapsed()).max(Duration::from_micros(50));
        if socket.set_read_timeout(Some(left)).is_err() {
            return trips;
        }
        let mut packet = [0; 8];
        match socket.recv(&mut packet) {
            Ok(8) => {
                let sent = Duration::from_nanos(u64::from_be_bytes(packet));
                trips.push(RoundTrip { sent, time: start.elapsed().saturating_sub(sent) });
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // An answer that no socket waited for; the next one may be.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    trips
}
