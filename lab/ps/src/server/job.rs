//! A job: takes parts in, adds them when all are there, and sends the sums to everybody.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::peer::{Event, Peer, State};
use super::{Member, ServeOptions};
use crate::element::add_all;
use crate::frame::{Cause, Failure, Header, Kind};
use crate::outbox::Outgoing;
use crate::socket::{self, Ready, awaited};

/// How long workers may take to read why their job has failed.
const FAREWELL: Duration = Duration::from_secs(2);
/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 256;

/// A piece whose parts are coming in.
#[derive(Debug)]
struct Piece {
    /// What its first part said of it, and whose that was.
    header: Header,
    first: usize,
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
    since: Instant,
}

/// A job's state: all of it belongs to its thread.
#[derive(Debug)]
pub(super) struct Job<'a> {
    name: &'a str,
    options: &'a ServeOptions,
    members: Receiver<Member>,
    woken: UnixStream,
    peers: Vec<Option<Peer>>,
    /// The pieces from the oldest that is not complete. Every worker pushes the same ones in the
    /// same order, so a worker's `n`-th part belongs to the `n`-th piece.
    pieces: VecDeque<Piece>,
    /// Pieces that are complete.
    done: u64,
    spare: Vec<Vec<u8>>,
    welcome: bool,
    since: Instant,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        name: &'a str,
        world: u16,
        options: &'a ServeOptions,
        members: Receiver<Member>,
        woken: UnixStream,
    ) -> Self {
        Self {
            name,
            options,
            members,
            woken,
            peers: (0..world).map(|_| None).collect(),
            pieces: VecDeque::new(),
            done: 0,
            spare: Vec::new(),
            welcome: false,
            since: Instant::now(),
        }
    }

    /// Serves the job until its workers have left or it has failed; then `leave` is called, so
    /// that another one of this name may begin, and the workers are told.
    pub(super) fn run(mut self, leave: impl FnOnce()) {
        let failure = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => {
                    info!(job = self.name, pieces = self.done, "a job has ended");
                    leave();
                    return;
                }
                Err(failure) => break failure,
            }
        };
        warn!(job = self.name, reason = failure.text, "a job has failed");
        leave();
        self.farewell(&failure);
    }

    /// Waits for something and deals with it. False: all workers have left.
    fn turn(&mut self) -> Result<bool, Failure> {
        let ready = self.wait()?;
        if ready[self.peers.len()].read {
            self.take_in_members()?;
        }
        for (rank, ready) in ready[..self.peers.len()].iter().enumerate() {
            if ready.read {
                self.read(rank)?;
            }
        }
        for rank in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[rank] else { continue };
            if let Err(error) = peer.write(&mut self.spare) {
                self.lost(rank, &error.to_string())?;
            }
        }
        self.spare.truncate(SPARE_MAX);
        self.check_deadlines()?;
        let here = |peer: &Option<Peer>| peer.as_ref().is_none_or(|p| p.state != State::Gone);
        Ok(self.peers.iter().any(here))
    }

    fn wait(&self) -> Result<Vec<Ready>, Failure> {
        let waker = awaited(&self.woken, true, false);
        let mut fds = Vec::with_capacity(self.peers.len() + 1);
        let window = self.options.window;
        for peer in &self.peers {
            fds.push(match peer {
                Some(peer) if peer.state != State::Gone => {
                    awaited(&peer.stream, peer.wants_read(window), peer.wants_write())
                }
                // A place in the list; what is ready there is the waker's.
                _ => awaited(&self.woken, false, false),
            });
        }
        fds.push(waker);
        let wait = match self.pieces.front() {
            Some(_) => Duration::from_millis(50),
            None => Duration::from_millis(500),
        };
        socket::wait(&mut fds, wait)
            .map_err(|error| Failure::new(Cause::Stopped, &[], error.to_string()))?;
        let mut ready: Vec<Ready> = fds.iter().map(|(_, ready)| *ready).collect();
        for (peer, ready) in self.peers.iter().zip(&mut ready) {
            ready.read &= peer.as_ref().is_some_and(|peer| peer.state != State::Gone);
        }
        Ok(ready)
    }

    /// Workers that come, and the server's end.
    fn take_in_members(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; 64];
        if matches!((&self.woken).read(&mut bytes), Ok(0)) {
            return Err(Failure::new(Cause::Stopped, &[], "the server is being stopped"));
        }
        while let Ok(Member { rank, stream, deadline }) = self.members.try_recv() {
            self.peers[usize::from(rank)] = Some(Peer::new(stream, deadline));
        }
        if !self.welcome && self.peers.iter().all(Option::is_some) {
            self.welcome = true;
            let frame = Outgoing::new(&Header::plain(Kind::Welcome, 0), Arc::default());
            self.peers.iter_mut().flatten().for_each(|peer| peer.send(frame.clone()));
        }
        Ok(())
    }

    fn read(&mut self, rank: usize) -> Result<(), Failure> {
        let Some(peer) = &mut self.peers[rank] else { return Ok(()) };
        let mut events = Vec::new();
        peer.read(self.options.window, &mut self.spare, |event| events.push(event));
        for event in events {
            match event {
                Event::Part(header, bytes) => self.part(rank, header, bytes)?,
                Event::Bye => self.left(rank)?,
                Event::Lost(reason) => self.lost(rank, &reason)?,
            }
        }
        Ok(())
    }

    /// A worker's part of the next piece that it has not pushed.
    fn part(&mut self, rank: usize, header: Header, bytes: Vec<u8>) -> Result<(), Failure> {
        let Some(peer) = &self.peers[rank] else { return Ok(()) };
        if !self.welcome {
            return self.lost(rank, "it pushed before it was welcome");
        }
        // Several parts may have been read at once; each comes here in its turn.
        let ours = |piece: &&Piece| piece.parts[rank].is_some();
        let index = self.pieces.iter().take_while(ours).count();
        debug_assert!(self.done + index as u64 <= peer.pushed);
        if index == self.pieces.len() {
            let parts = vec![None; self.peers.len()];
            let (missing, since) = (self.peers.len(), Instant::now());
            self.pieces.push_back(Piece { header, first: rank, parts, missing, since });
            self.check_left()?;
        }
        let piece = &mut self.pieces[index];
        if header != piece.header {
            let text = format!(
                "rank {rank} pushes {}, where rank {} pushed {}",
                header.describe(),
                piece.first,
                piece.header.describe()
            );
            return Err(Failure::new(Cause::Mismatch, &[rank as u16], text));
        }
        piece.parts[rank] = Some(bytes);
        piece.missing -= 1;
        if piece.missing == 0 { self.complete() } else { Ok(()) }
    }

    /// The oldest piece has all of its parts.
    fn complete(&mut self) -> Result<(), Failure> {
        let Some(piece) = self.pieces.pop_front() else { return Ok(()) };
        self.done += 1;
        let mut parts = piece.parts.into_iter().flatten();
        let (Some(mut sum), Some(element)) = (parts.next(), piece.header.element) else {
            return Ok(());
        };
        let others: Vec<_> = parts.collect();
        if add_all(element, &mut sum, &others).is_err() {
            let text =
                format!("a sum does not fit {} in {}", element.name(), { piece.header.describe() });
            return Err(Failure::new(Cause::Overflow, &[], text));
        }
        self.spare.extend(others);
        let header = Header { kind: Kind::Result, ..piece.header };
        let frame = Outgoing::new(&header, Arc::new(sum));
        self.peers.iter_mut().flatten().for_each(|peer| peer.send(frame.clone()));
        Ok(())
    }

    /// A worker says that it pushes no more.
    fn left(&mut self, rank: usize) -> Result<(), Failure> {
        if let Some(peer) = &mut self.peers[rank] {
            peer.end(State::Leaving);
        }
        self.check_left()
    }

    /// Whether a piece waits for a worker that has left.
    fn check_left(&self) -> Result<(), Failure> {
        let Some(piece) = self.pieces.back() else { return Ok(()) };
        let left = |rank: &usize| {
            let gone = self.peers[*rank].as_ref().is_some_and(|p| p.state != State::Here);
            gone && piece.parts[*rank].is_none()
        };
        match (0..self.peers.len()).find(left) {
            None => Ok(()),
            Some(rank) => {
                let text = format!("rank {rank} has left before {}", piece.header.describe());
                Err(Failure::new(Cause::Lost, &[rank as u16], text))
            }
        }
    }

    /// A worker's connection has ended.
    fn lost(&mut self, rank: usize, reason: &str) -> Result<(), Failure> {
        let Some(peer) = &mut self.peers[rank] else { return Ok(()) };
        let has_left = peer.state == State::Leaving;
        peer.end(State::Gone);
        if has_left {
            return Ok(());
        }
        let text = format!("rank {rank} is lost: {reason}");
        Err(Failure::new(Cause::Lost, &[rank as u16], text))
    }

    fn check_deadlines(&self) -> Result<(), Failure> {
        if !self.welcome {
            let within = self.options.join_within;
            if self.since.elapsed() <= within {
                return Ok(());
            }
            let missing = |rank: &u16| self.peers[usize::from(*rank)].is_none();
            let ranks: Vec<u16> = (0..self.peers.len() as u16).filter(missing).collect();
            let text = format!("ranks {ranks:?} did not join within {} s", within.as_secs_f32());
            return Err(Failure::new(Cause::Deadline, &ranks, text));
        }
        let Some(piece) = self.pieces.front() else { return Ok(()) };
        let waited = piece.since.elapsed();
        let waits = |rank: &usize| piece.parts[*rank].is_some();
        let deadlines = (0..self.peers.len()).filter(waits);
        let deadlines = deadlines.filter_map(|rank| Some(self.peers[rank].as_ref()?.deadline));
        let Some(deadline) = deadlines.min().filter(|deadline| waited > *deadline) else {
            return Ok(());
        };
        let missing = |rank: &u16| piece.parts[usize::from(*rank)].is_none();
        let ranks: Vec<u16> = (0..self.peers.len() as u16).filter(missing).collect();
        let text = format!(
            "ranks {ranks:?} did not push {} within {} s",
            piece.header.describe(),
            deadline.as_secs_f32()
        );
        Err(Failure::new(Cause::Deadline, &ranks, text))
    }

    /// Tells the workers why the job has failed, behind the sums that are theirs already. Each is
    /// read from until it ends its connection: one that is closed while something is unread takes
    /// the words back.
    fn farewell(mut self, failure: &Failure) {
        self.take_in_members().ok();
        let payload = Arc::new(failure.emit());
        let frame = Outgoing::new(&Header::plain(Kind::Failed, payload.len()), payload);
        let told = Instant::now();
        let mut scratch = vec![0; 1 << 16];
        for peer in self.peers.iter_mut().flatten() {
            peer.send(frame.clone());
        }
        while told.elapsed() < FAREWELL {
            let mut open: Vec<&mut Peer> = self.peers.iter_mut().flatten().collect();
            open.retain(|peer| peer.state != State::Gone);
            if open.is_empty() {
                return;
            }
            let mut fds: Vec<_> =
                open.iter().map(|p| awaited(&p.stream, true, p.wants_write())).collect();
            if socket::wait(&mut fds, Duration::from_millis(100)).is_err() {
                return;
            }
            let ready: Vec<Ready> = fds.iter().map(|(_, ready)| *ready).collect();
            for (peer, ready) in open.into_iter().zip(ready) {
                let ended = ready.read && !peer.discard(&mut scratch);
                if ended || peer.write(&mut self.spare).is_err() {
                    peer.end(State::Gone);
                }
            }
        }
    }
}
