//! The switch and the server, with sockets.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Counters;
use super::port::{Inbox, Port};
use super::server::Server;
use super::switch::{Onward, Switch};
use super::wire::{HEADER_LEN, Kind, Packet, write};

/// How long a service sleeps at most before it looks whether it shall end.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How often a socket is read before the others have their turn.
const TURNS: usize = 4;

/// Ends a service, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends it soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs a server at this address until it is stopped. `ready` is told where it listens.
///
/// # Errors
/// The operating system's.
pub fn serve_sums(
    listen: SocketAddr,
    stop: &Stop,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<Counters> {
    let (mut ports, mut inbox) = ([Port::bind(listen)?], Inbox::new());
    ready(ports[0].local_addr()?);
    let mut server = Server::default();
    let mut answers = Outbox::default();
    let mut ready = Vec::new();
    while !stop.is_set() {
        sleep(&mut ports, &mut ready)?;
        for _ in 0..TURNS {
            let more = ports[0].receive(&mut inbox, |from, packet| {
                let Some((packet, lanes)) = Packet::parse(packet) else { return };
                if let Some((answer, lanes)) = server.handle_fragment(&packet, lanes) {
                    answers.put(from, &answer, |to| write(lanes, to), size_of_val(lanes));
                }
            })?;
            answers.take(&mut ports[0]);
            ports[0].flush()?;
            if !more {
                break;
            }
        }
    }
    Ok(*server.counters())
}

/// Runs the switch until it is stopped: a socket for each host, from this address on (as many ports
/// in a row as there are hosts), and one for each server behind them. Workers of host `h` send to
/// the port of `h`. `ready` is told where the first listens.
///
/// # Errors
/// The operating system's.
pub fn serve_switch(
    listen: SocketAddr,
    hosts: u16,
    servers: &[SocketAddr],
    slots: u32,
    stop: &Stop,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<Counters> {
    let port = |number: u16| {
        let mut address = listen;
        address.set_port(listen.port() + number);
        Port::bind(address)
    };
    let mut ports = (0..hosts + servers.len() as u16).map(port).collect::<io::Result<Vec<_>>>()?;
    ready(ports[0].local_addr()?);
    let mut inbox = Inbox::new();
    let mut forwarder = Forwarder {
        hosts: hosts.into(),
        servers,
        switch: Switch::new(slots),
        workers: HashMap::new(),
        out: ports.iter().map(|_| Outbox::default()).collect(),
    };
    let mut ready = Vec::new();
    while !stop.is_set() {
        sleep(&mut ports, &mut ready)?;
        for turn in 0..ports.len() * TURNS {
            let number = turn % ports.len();
            if !ready[number] {
                continue;
            }
            let handle = |from, bytes: &[u8]| forwarder.handle(number, from, bytes);
            ready[number] = ports[number].receive(&mut inbox, handle)?;
            for (port, out) in ports.iter_mut().zip(&mut forwarder.out) {
                out.take(port);
                port.flush()?;
            }
        }
    }
    Ok(*forwarder.switch.counters())
}

/// The switch, and where everything is.
struct Forwarder<'a> {
    /// Ports of hosts; those of servers are behind them.
    hosts: usize,
    servers: &'a [SocketAddr],
    switch: Switch,
    /// Of each job's ranks: the port that its packets come in by, and its address.
    workers: HashMap<(u32, u8), (usize, SocketAddr)>,
    /// By port.
    out: Vec<Outbox>,
}

impl Forwarder<'_> {
    /// A packet has come in by a port.
    fn handle(&mut self, port: usize, from: SocketAddr, bytes: &[u8]) {
        let Some((packet, lanes)) = Packet::parse(bytes) else { return };
        match (packet.kind, port >= self.hosts) {
            (Kind::Fragment, false) => self.fragment(&packet, lanes, (port, from)),
            (Kind::Result | Kind::Pending, true) => self.answer(&packet, bytes),
            _ => {}
        }
    }

    fn fragment(&mut self, packet: &Packet, lanes: &[u8], from: (usize, SocketAddr)) {
        let Some(rank) = packet.rank() else { return };
        self.workers.insert((packet.job, rank), from);
        let which = (packet.block % self.servers.len().max(1) as u64) as usize;
        let Some(server) = self.servers.get(which) else { return };
        let out = &mut self.out[self.hosts + which];
        let onward = self.switch.handle_fragment(packet, lanes);
        let passed = matches!(onward, Onward::Passed | Onward::SumThenPassed(..));
        if let Onward::Sum(sum, of) | Onward::SumThenPassed(sum, of) = onward {
            out.put(*server, &sum, |to| write(of, to), size_of_val(of));
        }
        if passed {
            out.put(*server, packet, |to| to.copy_from_slice(lanes), lanes.len());
        }
    }

    fn answer(&mut self, packet: &Packet, bytes: &[u8]) {
        if packet.kind == Kind::Result {
            self.switch.handle_result(packet);
        }
        for rank in (0..packet.world).filter(|rank| packet.ranks >> rank & 1 == 1) {
            if let Some((port, to)) = self.workers.get(&(packet.job, rank)) {
                self.out[*port].bytes(*to, bytes);
            }
        }
    }
}

/// Packets that go out when those of a batch have been read.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    packets: Vec<(SocketAddr, usize)>,
}

impl Outbox {
    fn put(
        &mut self,
        to: SocketAddr,
        packet: &Packet,
        write: impl FnOnce(&mut [u8]),
        lanes: usize,
    ) {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER_LEN + lanes, 0);
        let (header, lanes) = self.bytes[start..].split_at_mut(HEADER_LEN);
        if let Some(header) = header.first_chunk_mut() {
            packet.emit(header);
        }
        self.packets.push((to, HEADER_LEN + lanes.len()));
        write(lanes);
    }

    fn bytes(&mut self, to: SocketAddr, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.packets.push((to, packet.len()));
    }

    /// Hands all over to a socket.
    fn take(&mut self, port: &mut Port) {
        let mut rest = &self.bytes[..];
        for (to, len) in self.packets.drain(..) {
            let (packet, behind) = rest.split_at(len);
            port.queue(to, len, |bytes| bytes.copy_from_slice(packet));
            rest = behind;
        }
        self.bytes.clear();
    }
}

/// Sleeps until some socket has packets, or room where packets wait for it. Says which have
/// packets, and sends what there is room for.
fn sleep(ports: &mut [Port], ready: &mut Vec<bool>) -> io::Result<()> {
    let mut interests: Vec<_> = ports
        .iter()
        .map(|port| {
            let write = if port.is_waiting() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(port.fd(), PollFlags::IN | write)
        })
        .collect();
    match poll(&mut interests, Some(&NAP)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    ready.clear();
    let packets = PollFlags::IN | PollFlags::ERR;
    ready.extend(interests.iter().map(|interest| interest.revents().intersects(packets)));
    ports.iter_mut().filter(|port| port.is_waiting()).try_for_each(Port::flush)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atp::wire::bit;

    const HOSTS: [u16; 2] = [501, 502];

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn packet(kind: Kind, block: u64, ranks: u64) -> Vec<u8> {
        let packet = Packet { kind, again: false, world: 3, job: 7, block, ranks };
        let mut bytes = vec![0; HEADER_LEN + 4];
        packet.emit(bytes.first_chunk_mut().expect("it is long enough"));
        bytes[HEADER_LEN] = 5;
        bytes
    }

    /// Where packets of this length wait, by port.
    fn waiting(forwarder: &Forwarder<'_>) -> Vec<Vec<u16>> {
        let ports = |out: &Outbox| out.packets.iter().map(|(to, _)| to.port()).collect();
        forwarder.out.iter().map(ports).collect()
    }

    /// Two hosts, with ranks 0 and 1 behind the first, and two servers.
    #[test]
    fn packets_go_where_they_belong() {
        let servers = [address(601), address(602)];
        let mut forwarder = Forwarder {
            hosts: HOSTS.len(),
            servers: &servers,
            switch: Switch::new(1),
            workers: HashMap::new(),
            out: (0..4).map(|_| Outbox::default()).collect(),
        };
        let fragment = |rank, block| packet(Kind::Fragment, block, bit(rank));
        // Block 0 takes the slot; block 1 passes to its own server.
        forwarder.handle(0, address(701), &fragment(0, 0));
        forwarder.handle(0, address(702), &fragment(1, 1));
        assert_eq!(waiting(&forwarder), [vec![], vec![], vec![], vec![602]]);
        forwarder.handle(0, address(702), &fragment(1, 0));
        forwarder.handle(1, address(703), &fragment(2, 0));
        assert_eq!(waiting(&forwarder), [vec![], vec![], vec![601], vec![602]]);
        // What claims to come from a server, but comes in from a host, frees and tells nothing.
        forwarder.handle(1, address(703), &packet(Kind::Result, 0, 0b111));
        // Nor does a worker speak to a worker by way of a server's port.
        forwarder.handle(2, address(601), &fragment(0, 5));
        // That something is pending frees no slot, and is for who asked.
        forwarder.handle(2, address(601), &packet(Kind::Pending, 0, 0b100));
        assert_eq!(forwarder.switch.taken(), 1);
        assert_eq!(waiting(&forwarder), [vec![], vec![703], vec![601], vec![602]]);
        forwarder.handle(2, address(601), &packet(Kind::Result, 0, 0b111));
        assert_eq!(forwarder.switch.taken(), 0);
        assert_eq!(waiting(&forwarder)[..2], [vec![701, 702], vec![703, 703]]);
    }
}
