//! Links that take their time.
//!
//! Kernels without `netem` have nothing that holds a packet back for a while, so it waits in user
//! space. The kernel program of the links sends what comes in on one end into a TAP device. A
//! thread reads it there, keeps it, and writes it back. The same program, at that device, hands it
//! to the queue at the other end. Super-packets and trains stay whole. Checksums that are not
//! worked out yet stay so (the header of virtio goes with each packet).
//!
//! The thread runs on the processors that everything else runs on, so a packet may be late. How
//! late they were is counted, as what the links carry is.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;
use serde::Serialize;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::sys;

/// Longest delay of a link.
pub const MAX_DELAY: Duration = Duration::from_secs(1);

/// Packets that wait in a device until the thread reads them. More are lost, and counted by the
/// device alone, so this is more than a queue of 4 MiB has of full size.
const DEVICE_QUEUE: u32 = 16_384;
/// Bytes of one direction that wait for their time; more are lost.
const MOST_BYTES: usize = 256 << 20;
/// Longest frame: a super-packet, its Ethernet header, and virtio's header before it.
const LONGEST: usize = 128 << 10;
/// Frames that are read from one device before the others have their turn.
const TURN: usize = 64;

/// How well delays were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DelayReport {
    /// Packets that were sent on; a super-packet or a train is one.
    pub packets: u64,
    /// How much longer than asked for they were kept, on average, in nanoseconds.
    pub late_ns: u64,
    /// The worst of that, in nanoseconds.
    pub worst_ns: u64,
    /// Packets that the thread lost: no room for them, or the device did not take them back.
    pub lost: u64,
}

impl std::fmt::Display for DelayReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { packets, late_ns, worst_ns, lost } = self;
        let us = |ns: u64| ns as f64 / 1e3;
        write!(
            f,
            "{packets} packets kept {:.0} µs longer than asked for on average ({:.0} at most), \
             {lost} lost",
            us(*late_ns),
            us(*worst_ns)
        )
    }
}

/// Both directions of all links of a network, each with its device. Ends when dropped.
#[derive(Debug)]
pub(crate) struct DelayLine {
    /// Names of the devices, in the namespace of the links, in the order of construction.
    devices: Vec<String>,
    counters: Arc<Counters>,
    /// Why the thread has ended before it should have.
    failure: Arc<Mutex<Option<String>>>,
    /// Closed to end the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counters {
    packets: AtomicU64,
    late_ns: AtomicU64,
    worst_ns: AtomicU64,
    lost: AtomicU64,
}

impl DelayLine {
    /// Makes this number of devices in a namespace, up. Each gives back what is sent into it after
    /// this time.
    pub(crate) fn start(
        namespace: &Namespace,
        count: usize,
        mtu: u32,
        delay: Duration,
    ) -> Result<Self, Error> {
        let names: Vec<String> = (0..count).map(|i| format!("d{i}")).collect();
        let open = || names.iter().map(|name| open(name)).collect::<Result<Vec<File>, _>>();
        let files = namespace.run(open)??;
        for name in &names {
            let mut netlink = namespace.netlink();
            netlink.set_mtu(name, mtu)?;
            netlink.set_queue_length(name, DEVICE_QUEUE)?;
            netlink.set_up(name)?;
        }
        let (stopped, stop) = io::pipe().map_err(Error::os("making a pipe"))?;
        let counters = Arc::new(Counters::default());
        let failure = Arc::<Mutex<Option<String>>>::default();
        let mut keeper = Keeper {
            lines: files.into_iter().map(Line::new).collect(),
            delay,
            counters: Arc::clone(&counters),
            scratch: vec![0; LONGEST].into_boxed_slice(),
        };
        let told = Arc::clone(&failure);
        let work = move || {
            if let Err(error) = keeper.run(&stopped.into()) {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        };
        let thread = thread::Builder::new()
            .name("delay".into())
            .spawn(work)
            .map_err(Error::os("starting a thread"))?;
        Ok(Self { devices: names, counters, failure, stop: Some(stop), thread: Some(thread) })
    }

    /// Names of the devices.
    pub(crate) fn devices(&self) -> &[String] {
        &self.devices
    }

    /// How well it went so far.
    ///
    /// # Errors
    /// The thread has ended: the links are broken since.
    pub(crate) fn report(&self) -> Result<DelayReport, Error> {
        if let Some(why) = &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            let text = format!("what delays packets of the links has failed: {why}");
            return Err(Error::Config(text));
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { packets, late_ns, worst_ns, lost } = &*self.counters;
        let packets = read(packets);
        Ok(DelayReport {
            packets,
            late_ns: read(late_ns).checked_div(packets).unwrap_or(0),
            worst_ns: read(worst_ns),
            lost: read(lost),
        })
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A caller that drops the line has no use for what the thread said.
            let _ = thread.join();
        }
    }
}

fn open(name: &str) -> Result<File, Error> {
    let path = "/dev/net/tun";
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(Error::os(format!(
        "opening {path}, which links with a delay need (kernel module `tun`)"
    )))?;
    sys::become_tap(file.as_fd(), name).map_err(Error::os(format!("making TAP device {name}")))?;
    Ok(file)
}

/// What the thread works on.
struct Keeper {
    lines: Vec<Line>,
    delay: Duration,
    counters: Arc<Counters>,
    scratch: Box<[u8]>,
}

/// One direction of one link.
struct Line {
    device: File,
    /// What waits, with its time to go: all wait equally long, so the first to come is the first
    /// to go.
    waiting: VecDeque<(Instant, Box<[u8]>)>,
    bytes: usize,
}

impl Line {
    fn new(device: File) -> Self {
        Self { device, waiting: VecDeque::new(), bytes: 0 }
    }
}

impl Keeper {
    /// Keeps and sends on until `stop` is closed at its other end.
    fn run(&mut self, stop: &OwnedFd) -> io::Result<()> {
        // It shall wake up when it asked to, and not up to 50 µs later.
        set_current_timer_slack(NonZeroU64::new(1))?;
        loop {
            self.send_due();
            let due = self.lines.iter().filter_map(|line| line.waiting.front()).map(|(due, _)| due);
            let rest = due.min().map(|due| due.saturating_duration_since(Instant::now()));
            let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
            let devices = self.lines.iter().map(|line| line.device.as_fd());
            let fds = std::iter::once(stop.as_fd()).chain(devices);
            let mut fds: Vec<_> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut fds, rest.as_ref()) {
                // Nothing is ready where a signal came.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            for (line, _) in ready[1..].iter().enumerate().filter(|(_, ready)| **ready) {
                self.take_in(line)?;
            }
        }
    }

    fn take_in(&mut self, line: usize) -> io::Result<()> {
        let line = &mut self.lines[line];
        let due = Instant::now() + self.delay;
        for _ in 0..TURN {
            let len = match line.device.read(&mut self.scratch) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if line.bytes + len > MOST_BYTES {
                self.counters.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            line.bytes += len;
            line.waiting.push_back((due, self.scratch[..len].into()));
        }
        Ok(())
    }

    fn send_due(&mut self) {
        let counters = &*self.counters;
        for line in &mut self.lines {
            while let Some((due, frame)) = line.waiting.front() {
                let Some(late) = Instant::now().checked_duration_since(*due) else { break };
                // A link that is down takes nothing, as a cable that is pulled.
                let sent = matches!((&line.device).write(frame), Ok(len) if len == frame.len());
                line.bytes -= frame.len();
                line.waiting.pop_front();
                if !sent {
                    counters.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                counters.packets.fetch_add(1, Ordering::Relaxed);
                counters.late_ns.fetch_add(late, Ordering::Relaxed);
                counters.worst_ns.fetch_max(late, Ordering::Relaxed);
            }
        }
    }
}
