//! One call's data movement: both directions at once, on one thread.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::call::{Call, HEADER_LEN};
use super::element::sealed::Sealed;
use super::error::Error;
use super::links::{Links, Side, State};
use super::plan::{Cursor, Plan};
use super::poll::{Interest, poll};

/// Most bytes of one receive, and so of one reduction: it should still lie in the cache when it is
/// sent on, and leave room for the other direction to be served between two of them.
pub(super) const CHUNK: usize = 256 << 10;
/// Most pieces of memory in one send: the header, and pieces around the end of a step.
const SEND_SLICES: usize = 4;
/// Yields to other threads before sleeping in the kernel, in a short transfer: a neighbour on the
/// same machine often answers within that time, and a sleep costs more than the whole step.
const YIELDS: u32 = 20;
/// Bytes above which a transfer does not yield: looking in vain would cost it a tenth of its time.
const YIELDING_BYTES: usize = 64 << 10;
/// How long, after the end of a connection or of the deadline, another rank may still say why.
const REASON_GRACE: Duration = Duration::from_millis(500);
/// How long nothing may arrive after the next rank was lost. (It may have ended well, with its last
/// call done and ours still arriving.)
const LOST_GRACE: Duration = Duration::from_millis(250);

/// What a transfer needs besides its data.
pub(super) struct Context<'a> {
    pub(super) rank: u16,
    pub(super) world: u16,
    pub(super) links: &'a mut Links,
    /// At least [`CHUNK`] bytes.
    pub(super) scratch: &'a mut [u8],
    pub(super) started: Instant,
    pub(super) deadline: Duration,
}

/// A call under way.
pub(super) struct Transfer<'a, T> {
    context: Context<'a>,
    plan: Plan,
    call: Call,
    region: &'a mut [u8],
    header: [u8; HEADER_LEN],
    header_sent: usize,
    send: Cursor,
    total_sent: usize,
    first_piece: usize,
    their_header: [u8; HEADER_LEN],
    header_received: usize,
    receive: Cursor,
    total_received: usize,
    /// Bytes of an element whose rest has not arrived, at the start of the scratch buffer.
    partial: usize,
    /// The last send did not fit into the socket.
    blocked: bool,
    /// Since when nothing moved.
    idle_since: Option<Instant>,
    element: PhantomData<T>,
}

impl<'a, T: Sealed> Transfer<'a, T> {
    pub(super) fn new(context: Context<'a>, plan: Plan, call: Call, region: &'a mut [u8]) -> Self {
        let sum = |piece: &dyn Fn(usize) -> std::ops::Range<usize>| {
            (0..plan.steps).map(|k| piece(k).len()).sum::<usize>()
        };
        let (total_sent, total_received) = (sum(&|k| plan.sent(k)), sum(&|k| plan.received(k)));
        let (mut send, mut receive) = (Cursor::default(), Cursor::default());
        send.advance(0, plan.steps, |k| plan.sent(k).len());
        receive.advance(0, plan.steps, |k| plan.received(k).len());
        Self {
            context,
            plan,
            call,
            region,
            header: call.encode(),
            header_sent: 0,
            send,
            total_sent,
            first_piece: plan.sent(0).len(),
            their_header: [0; HEADER_LEN],
            header_received: 0,
            receive,
            total_received,
            partial: 0,
            blocked: false,
            idle_since: None,
            element: PhantomData,
        }
    }

    /// Runs to the end, or to an error within the deadline.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        let allowed = if self.total_received <= YIELDING_BYTES { YIELDS } else { 0 };
        let mut yields = 0;
        loop {
            let received = self.receive()?;
            let sent = self.send()?;
            if self.all_sent() && self.all_received() {
                return Ok(());
            }
            if received || sent {
                yields = 0;
                self.idle_since = None;
                if self.context.started.elapsed() > self.context.deadline {
                    return Err(self.too_late());
                }
            } else if yields < allowed {
                yields += 1;
                std::thread::yield_now();
            } else {
                self.wait()?;
            }
        }
    }

    fn all_sent(&self) -> bool {
        self.header_sent == HEADER_LEN && self.send.done == self.total_sent
    }

    fn all_received(&self) -> bool {
        self.header_received == HEADER_LEN && self.receive.done == self.total_received
    }

    /// Payload bytes that may leave now: the first piece, then what has arrived and is reduced.
    fn sendable(&self) -> usize {
        (self.first_piece + self.receive.done).min(self.total_sent) - self.send.done
    }

    /// Sends what may be sent; whether that was anything.
    fn send(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        self.blocked = false;
        while self.header_sent < HEADER_LEN || self.sendable() > 0 {
            match self.send_once() {
                Ok(mut sent) => {
                    moved = true;
                    let header = sent.min(HEADER_LEN - self.header_sent);
                    self.header_sent += header;
                    sent -= header;
                    let plan = self.plan;
                    self.send.advance(sent, plan.steps, |k| plan.sent(k).len());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(e) => return Err(self.lost(Side::Next, &e.to_string())),
            }
        }
        Ok(moved)
    }

    fn send_once(&self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SEND_SLICES];
        slices[0] = IoSlice::new(&self.header[self.header_sent..]);
        let (mut left, mut step, mut offset) = (self.sendable(), self.send.step, self.send.offset);
        for slice in &mut slices[1..] {
            if left == 0 {
                break;
            }
            let piece = self.plan.sent(step);
            let len = (piece.len() - offset).min(left);
            *slice = IoSlice::new(&self.region[piece.start + offset..][..len]);
            left -= len;
            step += 1;
            offset = 0;
        }
        // An empty leading slice is legal, but costs the kernel a walk on every large send.
        let slices = if self.header_sent == HEADER_LEN { &slices[1..] } else { &slices[..] };
        SockRef::from(&self.context.links.next.data)
            .send_vectored_with_flags(slices, libc::MSG_NOSIGNAL)
    }

    /// Receives once, and reduces what came; whether that was anything.
    fn receive(&mut self) -> Result<bool, Error> {
        if self.all_received() {
            return Ok(false);
        }
        let reducing = self.receive.step < self.plan.reducing;
        let piece = self.plan.received(self.receive.step);
        let left = piece.len() - self.receive.offset;
        let place = if self.receive.step == self.plan.steps {
            &mut []
        } else if reducing {
            // The rest of the piece from here on, of which `partial` bytes are in already.
            &mut self.context.scratch[self.partial..left.min(CHUNK)]
        } else {
            &mut self.region[piece.start + self.receive.offset..][..left.min(CHUNK)]
        };
        let result = if self.header_received == HEADER_LEN {
            self.context.links.previous.data.read(place)
        } else {
            let header = &mut self.their_header[self.header_received..];
            let slices = &mut [IoSliceMut::new(header), IoSliceMut::new(place)];
            self.context.links.previous.data.read_vectored(slices)
        };
        match result {
            Ok(0) => Err(self.lost(Side::Previous, "its connection was closed")),
            Ok(bytes) => self.accept(bytes).map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(self.lost(Side::Previous, &e.to_string())),
        }
    }

    /// Takes `bytes` that have just arrived: first the header's rest, then payload.
    fn accept(&mut self, bytes: usize) -> Result<(), Error> {
        let mut payload = bytes;
        if self.header_received < HEADER_LEN {
            let header = bytes.min(HEADER_LEN - self.header_received);
            self.header_received += header;
            payload -= header;
            if self.header_received < HEADER_LEN {
                return Ok(());
            }
            self.check_header()?;
        }
        let plan = self.plan;
        if self.receive.step < plan.reducing {
            payload = self.reduce(payload);
        }
        self.receive.advance(payload, plan.steps, |k| plan.received(k).len());
        Ok(())
    }

    /// Reduces the whole elements among the scratch buffer's `fresh` new bytes; how many bytes that
    /// is.
    fn reduce(&mut self, fresh: usize) -> usize {
        let held = self.partial + fresh;
        let whole = held - held % size_of::<T>();
        let at = self.plan.received(self.receive.step).start + self.receive.offset;
        let into = &mut self.region[at..at + whole];
        T::combine(self.call.what, into, &self.context.scratch[..whole]);
        if self.receive.step + 1 == self.plan.reducing {
            T::finish(self.call.what, into, self.context.world);
        }
        self.context.scratch.copy_within(whole..held, 0);
        self.partial = held - whole;
        whole
    }

    fn check_header(&self) -> Result<(), Error> {
        let Context { rank, links, .. } = &self.context;
        let neighbour = links.previous.rank;
        match Call::decode(&self.their_header) {
            Some(theirs) if theirs == self.call => Ok(()),
            Some(theirs) => {
                Err(Error::Mismatch { rank: *rank, neighbour, theirs, ours: self.call })
            }
            None => Err(Error::PeerLost {
                rank: *rank,
                neighbour,
                call: self.call.sequence,
                reason: "its bytes are no header of a call".into(),
            }),
        }
    }

    /// Sleeps until something can move.
    fn wait(&mut self) -> Result<(), Error> {
        let idle_since = *self.idle_since.get_or_insert_with(Instant::now);
        let read = Interest { read: !self.all_received(), write: false };
        let write = Interest { read: false, write: self.blocked };
        let Context { links, started, deadline, .. } = &mut self.context;
        let mut timeout = deadline.saturating_sub(started.elapsed());
        if timeout.is_zero() {
            return Err(self.too_late());
        }
        if let State::Lost(_) = links.next.state {
            timeout = timeout.min(LOST_GRACE.saturating_sub(idle_since.elapsed()));
        }
        let Links { previous, next } = links;
        let data = [(&previous.data, read), (&next.data, write)];
        let sockets = [data[0], data[1], previous.listening(), next.listening()];
        let [_, _, from_previous, from_next] =
            poll(sockets, timeout).map_err(Error::io("poll the ring's sockets"))?;
        if from_previous.read || from_next.read {
            links.read_notices()?;
        }
        self.check_next(idle_since)
    }

    /// Whether the next rank can still do its part. Of the previous one, payload may be on its way
    /// even when it is gone: the end of its data connection decides.
    fn check_next(&mut self, idle_since: Instant) -> Result<(), Error> {
        match self.context.links.next.state.clone() {
            State::Here => Ok(()),
            State::Left if self.all_sent() => Ok(()),
            State::Left => Err(self.lost(Side::Next, "it left the ring")),
            State::Lost(_) if self.all_sent() && idle_since.elapsed() < LOST_GRACE => Ok(()),
            State::Lost(reason) => Err(self.lost(Side::Next, &reason)),
        }
    }

    /// A neighbour's connection ended: because it died, or because it gave up over something that
    /// it or another rank will tell.
    fn lost(&mut self, side: Side, reason: &str) -> Error {
        let Context { rank, links, started, deadline, .. } = &mut self.context;
        let grace = REASON_GRACE.min(deadline.saturating_sub(started.elapsed()));
        if let Some(stopped) = links.await_reason(Some(side), grace) {
            return stopped;
        }
        let neighbour = links.neighbour(side);
        let reason = if neighbour.state == State::Left { "it left the ring" } else { reason };
        let (neighbour, call) = (neighbour.rank, self.call.sequence);
        Error::PeerLost { rank: *rank, neighbour, call, reason: reason.into() }
    }

    /// The deadline is over. A neighbour that has sent its header waits as well, so another rank
    /// may know more.
    fn too_late(&mut self) -> Error {
        let Context { rank, links, deadline, .. } = &mut self.context;
        let (rank, waited, call) = (*rank, *deadline, self.call.sequence);
        let started = self.header_received == HEADER_LEN;
        if started && let Some(stopped) = links.await_reason(None, REASON_GRACE) {
            return stopped;
        }
        if self.receive.done < self.total_received || !started {
            let state = if started {
                format!("sent {} of {} bytes", self.receive.done, self.total_received)
            } else {
                "has not started this call".into()
            };
            return Error::Deadline { rank, neighbour: links.previous.rank, call, waited, state };
        }
        let state = format!("took {} of {} bytes", self.send.done, self.total_sent);
        Error::Deadline { rank, neighbour: links.next.rank, call, waited, state }
    }
}
