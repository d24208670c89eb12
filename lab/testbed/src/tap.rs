//! What crosses a link, packet by packet: blocks of a job, with the time of each.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use socket2::Socket;
use xdp_agg_common::frame::{ETH_LEN, ETHERTYPE_IPV4, HEADER_OFFSET, IP_OFFSET, PROTOCOL_UDP};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

use crate::error::Error;
use crate::sys;
use crate::topology::{Direction, Topology};

/// How soon the thread notices that it is to end.
const TICK: Duration = Duration::from_millis(20);
/// Room for half a second of full packets at 400 Mbit/s.
const ROOM: usize = 32 << 20;

/// A block's packet on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passage {
    /// When it was seen.
    pub at: Instant,
    /// Which way it went.
    pub direction: Direction,
    /// Its kind: a sum on its way up its tree, a result, ….
    pub kind: Kind,
    /// Bytes of the frame.
    pub bytes: u32,
}

/// Looks at what leaves a link's shapers, until it is finished.
#[derive(Debug)]
pub struct Tap {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Passage>>>,
}

impl Tap {
    /// Starts to look at a rack's link to the middle.
    ///
    /// # Errors
    /// A network without the kernel program of its links, or no privilege.
    pub fn on_uplink(topology: &Topology, rack: usize) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for direction in Direction::BOTH {
            let end = topology.links()[topology.rack_link(rack)].shaper(direction).clone();
            let open = || sys::frame_tap(end.index);
            let what = format!("looking at interface {}", end.name);
            let socket = Socket::from(end.namespace.run(open)?.map_err(Error::os(&*what))?);
            // More than the machine's limit, as root may.
            sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, ROOM as i32)
                .and_then(|()| socket.set_read_timeout(Some(TICK)))
                .map_err(Error::os(&*what))?;
            let workers = topology.rack_workers(rack);
            let inside: Vec<[u8; 4]> = workers
                .map(|worker| topology.worker_addr(worker))
                .chain([topology.rack_addr(rack)])
                .map(|address| address.octets())
                .collect();
            let ends = Arc::clone(&stop);
            let look = move || {
                let mut seen = Vec::new();
                let mut frame = [0; HEADER_OFFSET + HEADER_LEN];
                while !ends.load(Ordering::Relaxed) {
                    let Ok(length) = (&socket).read(&mut frame) else { continue };
                    let at = Instant::now();
                    // A shaper's interface shows the other direction as well, before its shaper.
                    let goes = |source: [u8; 4]| match inside.contains(&source) {
                        true => Direction::Up,
                        false => Direction::Down,
                    };
                    if let Some((source, kind, bytes)) = block(&frame[..length])
                        && goes(source) == direction
                    {
                        seen.push(Passage { at, direction, kind, bytes });
                    }
                }
                seen
            };
            let thread = Builder::new().name("tap".into()).spawn(look);
            threads.push(thread.map_err(Error::os("starting a thread"))?);
        }
        Ok(Self { stop, threads })
    }

    /// Ends it; what was seen, in the order of time.
    pub fn finish(mut self) -> Vec<Passage> {
        let mut all = self.end();
        all.sort_by_key(|passage| passage.at);
        all
    }

    fn end(&mut self) -> Vec<Passage> {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of a thread was reported when it happened.
        self.threads.drain(..).flat_map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.end();
    }
}

/// Source, kind and length of a frame that carries a block without a VLAN's tag.
fn block(frame: &[u8]) -> Option<([u8; 4], Kind, u32)> {
    let is_udp = frame.get(12..ETH_LEN)? == ETHERTYPE_IPV4.to_be_bytes()
        && *frame.get(IP_OFFSET + 9)? == PROTOCOL_UDP;
    let header = frame.get(HEADER_OFFSET..)?.first_chunk().filter(|_| is_udp)?;
    let header = Header::parse(header).ok()?;
    let length = u16::from_be_bytes([frame[IP_OFFSET + 2], frame[IP_OFFSET + 3]]);
    let source = [12, 13, 14, 15].map(|at| frame[IP_OFFSET + at]);
    Some((source, header.kind, u32::from(length) + ETH_LEN as u32))
}
