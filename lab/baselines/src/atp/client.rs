//! A worker with a socket, in a thread of its own.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use xdp_agg_client::Builder;
use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_common::lanes::CHUNK_LEN;

use super::SLOTS;
use super::port::{Inbox, Port};
use super::worker::{Worker, WorkerOptions};
use crate::error::Error;

/// Packets that are sent before what came in is looked at.
const SENT_AT_ONCE: usize = 64;

/// Settings of a worker with a socket.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The switch's port for this host.
    pub switch: SocketAddr,
    /// Largest IP packet: blocks are as long as it allows, as xdp-agg's are.
    pub mtu: u32,
    /// What elements are multiplied by before they are rounded.
    pub scale: f64,
    /// Most blocks under way, where that is less than the switch's slots allow.
    pub window: Option<u32>,
}

/// A worker of ATP. Vectors are summed in the order in which they are started.
#[derive(Debug)]
pub struct Client {
    rank: u16,
    world: u16,
    deadline: Duration,
    wake: Arc<OwnedFd>,
    /// None when no more shall come.
    start: Option<Sender<Vec<f32>>>,
    done: Receiver<Result<Vec<f32>, Error>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// A worker of the job of these settings. Nothing is sent yet.
    ///
    /// # Errors
    /// Settings that are missing or make no sense; no socket.
    pub fn open(settings: &Builder, options: Options) -> Result<Self, Error> {
        let place = settings.each_for_itself()?;
        let block = usize::from(chunks_for_mtu(options.mtu)) * CHUNK_LEN / size_of::<u32>();
        let worker = Worker::new(WorkerOptions {
            rank: place.rank,
            world: place.world_size,
            job: job_number(settings.get_job()),
            block: block.max(1),
            slots: settings.get_slots().unwrap_or(SLOTS),
            window: options.window,
            scale: options.scale,
        })?;
        let port = Port::bind(SocketAddr::from(([0; 4], 0))).map_err(Error::Socket)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(|error| Error::Socket(error.into()))?);
        let (start, started) = channel();
        let (told, done) = channel();
        let driver = Driver {
            worker,
            port,
            switch: options.switch,
            wake: Arc::clone(&wake),
            started,
            clock: Instant::now(),
        };
        let run = move || {
            if let Err(error) = driver.run(&told) {
                // Nobody waits any more where the client is gone.
                let _ = told.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name("atp".into()).spawn(run).map_err(Error::Socket)?;
        let (deadline, _) = settings.get_deadlines();
        let (rank, world) = (place.rank, place.world_size);
        Ok(Self { rank, world, deadline, wake, start: Some(start), done, thread: Some(thread) })
    }

    /// This worker's number.
    #[must_use]
    pub const fn rank(&self) -> u16 {
        self.rank
    }

    /// Workers of the job.
    #[must_use]
    pub const fn world(&self) -> u16 {
        self.world
    }

    /// Starts to sum a vector, and does not wait for it.
    ///
    /// # Errors
    /// The thread has ended; [`Self::wait`] says why.
    pub fn start(&mut self, data: Vec<f32>) -> Result<(), Error> {
        let start = self.start.as_ref().ok_or(Error::Ended)?;
        start.send(data).map_err(|_| Error::Ended)?;
        self.wake();
        Ok(())
    }

    /// Waits for the oldest vector that was not waited for, and gives it back, summed.
    ///
    /// # Errors
    /// It took longer than the deadline, or the socket failed.
    pub fn wait(&mut self) -> Result<Vec<f32>, Error> {
        self.done.recv_timeout(self.deadline).map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::Deadline(self.deadline),
            RecvTimeoutError::Disconnected => Error::Ended,
        })?
    }

    fn wake(&self) {
        // A counter that is full has woken the thread already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.start.take());
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was reported by itself.
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Driver {
    worker: Worker,
    port: Port,
    switch: SocketAddr,
    wake: Arc<OwnedFd>,
    started: Receiver<Vec<f32>>,
    clock: Instant,
}

impl Driver {
    /// Runs until the client is gone.
    fn run(mut self, told: &Sender<Result<Vec<f32>, Error>>) -> Result<(), Error> {
        let (mut inbox, mut packet) = (Inbox::new(), vec![0; self.worker.packet_len()]);
        loop {
            loop {
                match self.started.try_recv() {
                    Ok(data) => self.worker.start(data),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
                }
            }
            self.worker.handle_timeout(self.clock.elapsed());
            let now = self.clock.elapsed();
            let mut sent = 0;
            // What waits for the socket waits there: the window counts it already.
            while sent < SENT_AT_ONCE && !self.port.is_waiting() {
                let Some(len) = self.worker.poll_transmit(now, &mut packet)? else { break };
                self.port.queue(self.switch, len, |to| to.copy_from_slice(&packet[..len]));
                sent += 1;
            }
            self.port.flush().map_err(Error::Socket)?;
            while let Some(sum) = self.worker.poll_done() {
                let _ = told.send(Ok(sum));
            }
            let more = sent == SENT_AT_ONCE && !self.port.is_waiting();
            if !self.sleep(more)? {
                continue;
            }
            let (worker, clock) = (&mut self.worker, &self.clock);
            let mut handle = |_, bytes: &[u8]| {
                worker.handle_packet(bytes, clock.elapsed());
            };
            while self.port.receive(&mut inbox, &mut handle).map_err(Error::Socket)? {}
        }
    }

    /// Sleeps until something comes, there is room, or time matters. True: packets have come.
    fn sleep(&self, only_look: bool) -> Result<bool, Error> {
        let until = self.worker.poll_timeout();
        let left = until.map(|until| until.saturating_sub(self.clock.elapsed()));
        let left = if only_look { Some(Duration::ZERO) } else { left };
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let room = if self.port.is_waiting() { PollFlags::OUT } else { PollFlags::empty() };
        let mut interests = [
            PollFd::from_borrowed_fd(self.port.fd(), PollFlags::IN | room),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        match poll(&mut interests, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::Socket(error.into())),
        }
        let [packets, woken] = interests.map(|interest| interest.revents());
        if !woken.is_empty() {
            // The counter is back to zero.
            let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8][..]);
        }
        Ok(packets.intersects(PollFlags::IN | PollFlags::ERR))
    }
}

/// A job's number on the wire, from its name (FNV-1a).
fn job_number(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By FNV-1a's definition, of the empty name and of "a".
    #[test]
    fn jobs_have_numbers_by_their_names() {
        assert_eq!([job_number(""), job_number("a")], [0x811c_9dc5, 0xe40c_292c]);
    }
}
