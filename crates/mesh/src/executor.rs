//! Carries out a schedule: sends and receives as far as sockets and schedule let it, on one thread.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::call::Call;
use crate::error::Error;
use crate::link::Link;
use crate::meet::wait;
use crate::onlooker::{ASKED, LOOK, Onlooker, Patience};
use crate::reducer::Reducer;
use crate::schedule::{Effect, Schedule};
use crate::wire::{HEADER_LEN, Header};

/// Most bytes of one receive: a reduced piece should still lie in the cache when it is sent on.
const PIECE: usize = 256 << 10;
/// Yields to other threads before sleeping, in a short call: a rank on the same machine often
/// answers within that time.
const YIELDS: u32 = 20;
/// Received bytes above which a call does not yield: looking in vain would cost it a tenth of its
/// time.
const YIELDING_BYTES: usize = 64 << 10;
/// How long, after the end of a connection or of the deadline, another rank may still say why.
const REASON_GRACE: Duration = Duration::from_millis(500);
/// Bytes that may still wait for the link in one rank's socket when the next rank's turn comes.
/// More would make the streams of a tree's children share the link: all would end late, and with
/// each everything below it. Fewer could leave the link idle.
const UNSENT: usize = 32 << 10;
/// Most messages of one send.
const MESSAGES: usize = 4;

/// What a call works on.
pub(crate) struct Work<'a> {
    pub(crate) call: Call,
    pub(crate) schedule: &'a Schedule,
    /// The vector.
    pub(crate) data: &'a mut [u8],
    /// Bytes of what a schedule counts: an element, or a unit of several. The vector's last one may
    /// be shorter.
    pub(crate) size: usize,
    /// Where something is reduced.
    pub(crate) reducer: Option<&'a mut dyn Reducer>,
    /// How long it may take, and who may end it.
    pub(crate) patience: Patience<'a>,
    /// What looks on meanwhile.
    pub(crate) onlooker: &'a dyn Onlooker,
}

impl Work<'_> {
    /// Where a range of a schedule is in the vector.
    fn bytes(&self, range: &Range<usize>) -> Range<usize> {
        let len = self.data.len();
        (range.start * self.size).min(len)..(range.end * self.size).min(len)
    }
}

/// A call under way.
pub(crate) struct Run<'a> {
    links: &'a mut [Option<Link>],
    scratch: &'a mut Vec<u8>,
    work: Work<'a>,
    started: Instant,
    /// When the onlooker was asked last.
    looked: Instant,
    /// When the caller was asked last.
    asked: Instant,
    /// By rank: the receives from it that have not ended, in order.
    waiting: Vec<VecDeque<usize>>,
    done: Vec<bool>,
    /// Receives that have ended, from the first on.
    prefix: usize,
    /// By rank: bytes of the current message's payload that are in their place.
    placed: Vec<usize>,
    /// By rank: bytes of an element whose rest has not come.
    partial: Vec<Vec<u8>>,
    /// Yields before a sleep.
    yields: u32,
    /// Bytes of the first message that may leave: what is the rank's own is made ready as it goes.
    ready: usize,
    next_send: usize,
    /// Bytes of its message that are sent.
    sent: usize,
    /// The rank whose turn it is to be sent to, and how many bytes it was sent in it.
    turn: Option<(u16, usize)>,
    /// The rank whose socket takes no more, or has not passed on enough for the next one's turn.
    blocked: Option<u16>,
}

impl<'a> Run<'a> {
    /// `links`: by rank, none at this one. `scratch`: of any length.
    pub(crate) fn new(
        links: &'a mut [Option<Link>],
        scratch: &'a mut Vec<u8>,
        work: Work<'a>,
    ) -> Self {
        let world = links.len();
        let mut waiting = vec![VecDeque::new(); world];
        for (index, receive) in work.schedule.receives.iter().enumerate() {
            waiting[usize::from(receive.from)].push_back(index);
        }
        let beside = work.schedule.receives.iter().filter(|receive| {
            // These have come as a whole before they are reduced.
            matches!(receive.effect, Effect::Beside { .. })
        });
        let longest = beside.map(|receive| receive.range.len() * work.size).max();
        if work.reducer.is_some() && scratch.len() < longest.unwrap_or(0).max(PIECE) {
            scratch.resize(longest.unwrap_or(0).max(PIECE), 0);
        }
        let received = work.schedule.receives.iter().map(|receive| receive.range.len());
        let is_short = received.sum::<usize>() * work.size <= YIELDING_BYTES;
        let makes_ready = work.reducer.as_ref().is_some_and(|reducer| reducer.makes_ready());
        let first = work.schedule.sends.first().filter(|first| makes_ready && first.is_own());
        let ready = if first.is_some() { 0 } else { usize::MAX };
        Self {
            links,
            scratch,
            started: Instant::now(),
            looked: Instant::now(),
            asked: Instant::now(),
            waiting,
            done: vec![false; work.schedule.receives.len()],
            prefix: 0,
            placed: vec![0; world],
            partial: vec![Vec::new(); world],
            yields: if is_short { YIELDS } else { 0 },
            ready,
            next_send: 0,
            sent: 0,
            turn: None,
            blocked: None,
            work,
        }
    }

    /// Runs to the end, or to an error within the deadline.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut yields = 0;
        loop {
            let received = self.receive()?;
            let sent = self.send()?;
            if self.is_over() {
                return Ok(());
            }
            if sent || received {
                yields = 0;
                if self.started.elapsed() > self.work.patience.deadline {
                    return Err(self.too_late());
                }
                self.ask()?;
            } else if yields < self.yields {
                yields += 1;
                std::thread::yield_now();
            } else {
                self.wait()?;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.next_send == self.work.schedule.sends.len()
            && self.prefix == self.work.schedule.receives.len()
    }

    /// Sends what may be sent; whether that was anything.
    fn send(&mut self) -> Result<bool, Error> {
        self.blocked = None;
        let mut moved = false;
        let mut budget = 4 * PIECE;
        while budget > 0
            && let Some(next) = self.work.schedule.sends.get(self.next_send)
            && self.may_leave(self.next_send) > self.sent
            && self.takes_turn(next.to)?
        {
            self.make_ready();
            match self.send_to(next.to)? {
                Some(bytes) => budget = budget.saturating_sub(bytes),
                None => break,
            }
            moved = true;
        }
        if moved {
            self.advance();
        }
        Ok(moved)
    }

    /// Whether a rank may be sent to: ranks are served one after the other, as the models (1) to
    /// (4) say. The kernel takes megabytes at once, so that a rank's turn ends when its socket has
    /// passed them on, and not when it has taken them.
    fn takes_turn(&mut self, to: u16) -> Result<bool, Error> {
        let Some((last, bytes)) = self.turn.filter(|(last, _)| *last != to) else {
            return Ok(true);
        };
        if bytes > UNSENT
            && let Some(link) = &mut self.links[usize::from(last)]
            && !link.has_passed_on(UNSENT).map_err(Error::io("look at what a socket holds"))?
        {
            self.blocked = Some(last);
            return Ok(false);
        }
        self.turn = None;
        Ok(true)
    }

    /// Makes the next piece of the first message ready, once what was has left.
    fn make_ready(&mut self) {
        let Work { schedule, size, .. } = self.work;
        let Some(first) = schedule.sends.first().filter(|_| self.next_send == 0) else { return };
        let range = self.work.bytes(&first.range);
        if self.ready >= range.len() || self.sent < HEADER_LEN + self.ready && self.ready > 0 {
            return;
        }
        let piece = (PIECE / size).max(1) * size;
        let from = range.start + self.ready;
        let to = range.end.min(from + piece);
        if let Some(reducer) = &mut self.work.reducer {
            reducer.make_ready(from, &mut self.work.data[from..to]);
        }
        self.ready = to - range.start;
    }

    /// Bytes of a message that may leave now, header and all.
    fn may_leave(&self, index: usize) -> usize {
        let Some(send) = self.work.schedule.sends.get(index) else { return 0 };
        if send.after <= self.prefix {
            return HEADER_LEN + self.work.bytes(&send.range).len();
        }
        match self.work.schedule.receives.get(self.prefix) {
            Some(coming) if send.streams && send.after == self.prefix + 1 => {
                match self.placed[usize::from(coming.from)] {
                    0 => 0,
                    come => HEADER_LEN + come,
                }
            }
            _ => 0,
        }
    }

    /// Sends, at once, what comes next and is a rank's; how many bytes, or none if its socket takes
    /// no more.
    fn send_to(&mut self, to: u16) -> Result<Option<usize>, Error> {
        let Work { call, schedule, .. } = self.work;
        let next = schedule.sends.iter().enumerate().skip(self.next_send);
        let next = next.take_while(|(_, send)| send.to == to);
        let mut headers = [[0; HEADER_LEN]; MESSAGES];
        let mut slices = [IoSlice::new(&[]); 2 * MESSAGES];
        let mut count = 0;
        for (header, (index, send)) in headers.iter_mut().zip(next) {
            let Some(payload) = self.may_leave(index).checked_sub(HEADER_LEN) else { break };
            let payload = if index == 0 { payload.min(self.ready) } else { payload };
            let range = self.work.bytes(&send.range);
            let (offset, len) = (range.start as u64, range.len() as u64);
            *header = Header::Data { call, offset, len }.encode();
            slices[count] = IoSlice::new(header);
            slices[count + 1] = IoSlice::new(&self.work.data[range][..payload]);
            count += 2;
            if (payload as u64) < len {
                // The rest of it comes before any other message.
                break;
            }
        }
        let Some(link) = &self.links[usize::from(to)] else {
            return Err(lost(to, call, "there is no connection with it"));
        };
        let mut rest = &mut slices[..count];
        IoSlice::advance_slices(&mut rest, self.sent);
        match link.send(rest) {
            Ok(taken) => {
                self.sent += taken;
                self.turn = Some((to, self.turn.map_or(0, |(_, bytes)| bytes) + taken));
                while let Some(send) = schedule.sends.get(self.next_send)
                    && let total = HEADER_LEN + self.work.bytes(&send.range).len()
                    && total <= self.sent
                {
                    (self.sent, self.next_send) = (self.sent - total, self.next_send + 1);
                }
                if let Some(link) = &mut self.links[usize::from(to)] {
                    link.in_message = self.sent > 0;
                }
                Ok(Some(taken))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = Some(to);
                Ok(None)
            }
            Err(error) => Err(self.is_lost(to, &error.to_string())),
        }
    }

    /// Receives from all ranks that owe something; whether anything came.
    fn receive(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for rank in 0..self.links.len() {
            if self.expects(rank) {
                moved |= self.receive_from(rank)?;
            }
        }
        Ok(moved)
    }

    /// The next message of this rank may be taken now.
    fn expects(&self, rank: usize) -> bool {
        let next = self.waiting[rank].front();
        next.is_some_and(|index| self.work.schedule.receives[*index].after <= self.prefix)
    }

    /// Takes what has come from a rank, up to a piece; whether that was anything.
    fn receive_from(&mut self, rank: usize) -> Result<bool, Error> {
        let call = self.work.call;
        let expected =
            self.waiting[rank].front().map(|index| (*index, &self.work.schedule.receives[*index]));
        let Some(link) = &mut self.links[rank] else { return Ok(false) };
        // The beginning of the message that is expected goes where it belongs.
        let place = match expected.filter(|(_, receive)| receive.after <= self.prefix) {
            None => &mut [],
            Some((_, receive)) => {
                let range = self.work.bytes(&receive.range);
                let place = match receive.effect {
                    Effect::Replace => &mut self.work.data[range],
                    Effect::Beside { .. } => &mut self.scratch[..range.len()],
                    _ => &mut self.scratch[..range.len().min(PIECE)],
                };
                let len = place.len().min(PIECE);
                &mut place[..len]
            }
        };
        let (theirs, offset, len, fresh) = match link.next_header(call.sequence, place)? {
            Some((Header::Data { call, offset, len }, fresh)) => (call, offset, len, fresh),
            _ => return self.nothing_came(rank).map(|()| false),
        };
        if theirs.sequence > call.sequence {
            // It has done its part of this call and is at the next one.
            return if self.waiting[rank].is_empty() {
                Ok(false)
            } else {
                Err(self.mismatch(rank as u16, theirs))
            };
        }
        let Some((index, receive)) = expected.filter(|(_, receive)| {
            let range = self.work.bytes(&receive.range);
            theirs == call && offset == range.start as u64 && len == range.len() as u64
        }) else {
            return Err(self.mismatch(rank as u16, theirs));
        };
        if receive.after > self.prefix {
            return Ok(false);
        }
        let range = self.work.bytes(&receive.range);
        let moved = match receive.effect {
            Effect::Replace | Effect::Beside { .. } => {
                self.place(rank, &range, receive.effect, fresh)
            }
            effect => self.reduce(rank, &range, effect, fresh),
        };
        if self.placed[rank] == range.len() {
            self.ends(rank, index);
            return Ok(true);
        }
        if !moved {
            self.nothing_came(rank)?;
        }
        Ok(moved)
    }

    fn mismatch(&self, rank: u16, theirs: Call) -> Error {
        Error::Mismatch { rank, ours: Box::new(self.work.call), theirs: Box::new(theirs) }
    }

    /// A message is whole.
    fn ends(&mut self, rank: usize, index: usize) {
        self.waiting[rank].pop_front();
        self.done[index] = true;
        self.placed[rank] = 0;
        if let Some(link) = &mut self.links[rank] {
            link.message_ends();
        }
        self.advance();
    }

    /// Counts the receives that have ended, and reduces what was kept beside the vector.
    fn advance(&mut self) {
        while self.done.get(self.prefix) == Some(&true) {
            let receive = &self.work.schedule.receives[self.prefix];
            if let Effect::Beside { sent } = receive.effect {
                if self.next_send < sent {
                    return;
                }
                let range = self.work.bytes(&receive.range);
                if let Some(reducer) = &mut self.work.reducer {
                    let into = &mut self.work.data[range.clone()];
                    reducer.join(range.start, into, &self.scratch[..range.len()]);
                }
            }
            self.prefix += 1;
        }
    }

    /// Reads into the vector or beside it, unless `fresh` bytes came with the header.
    fn place(&mut self, rank: usize, range: &Range<usize>, effect: Effect, fresh: usize) -> bool {
        let Some(link) = &mut self.links[rank] else { return false };
        let whole = match effect {
            Effect::Beside { .. } => &mut self.scratch[..range.len()],
            _ => &mut self.work.data[range.clone()],
        };
        let place = &mut whole[self.placed[rank]..];
        let bytes = match place.len() {
            _ if fresh > 0 => fresh,
            0..=PIECE => link.read_last(place),
            _ => link.read(&mut place[..PIECE]),
        };
        let at = range.start + self.placed[rank];
        if let (Effect::Replace, Some(reducer)) = (effect, &mut self.work.reducer) {
            reducer.came(at..at + bytes, self.work.data);
        }
        self.placed[rank] += bytes;
        bytes > 0
    }

    /// Reads beside the vector, unless `fresh` bytes came with the header, and reduces what whole
    /// elements there are.
    fn reduce(&mut self, rank: usize, range: &Range<usize>, effect: Effect, fresh: usize) -> bool {
        let Some(reducer) = &mut self.work.reducer else { return false };
        let Some(link) = &mut self.links[rank] else { return false };
        let partial = &mut self.partial[rank];
        let held = partial.len();
        let left = range.len() - self.placed[rank];
        let bytes = if fresh > 0 {
            fresh
        } else {
            self.scratch[..held].copy_from_slice(partial);
            match left {
                0..=PIECE => link.read_last(&mut self.scratch[held..left]),
                _ => link.read(&mut self.scratch[held..PIECE]),
            }
        };
        if bytes == 0 {
            return false;
        }
        let have = held + bytes;
        // The vector's last unit may be shorter.
        let whole = if have == left { have } else { have - have % self.work.size };
        let at = range.start + self.placed[rank];
        let into = &mut self.work.data[at..at + whole];
        reducer.join(at, into, &self.scratch[..whole]);
        if effect == Effect::Complete {
            reducer.finish(at, into);
        }
        self.placed[rank] += whole;
        partial.clear();
        partial.extend_from_slice(&self.scratch[whole..have]);
        true
    }

    /// Nothing has come from a rank: it may be gone, which matters if it is needed.
    fn nothing_came(&mut self, rank: usize) -> Result<(), Error> {
        let ended = self.links[rank].as_ref().and_then(|link| link.ended.clone());
        let Some(reason) = ended else { return Ok(()) };
        let rank = rank as u16;
        let unsent = &self.work.schedule.sends[self.next_send..];
        let needed = !self.waiting[usize::from(rank)].is_empty()
            || unsent.iter().any(|send| send.to == rank);
        if needed { Err(self.is_lost(rank, &reason)) } else { Ok(()) }
    }

    /// Asks the caller now and then whether it still waits.
    fn ask(&mut self) -> Result<(), Error> {
        if self.asked.elapsed() >= ASKED {
            self.asked = Instant::now();
            if (self.work.patience.interrupted)() {
                return Err(Error::Interrupted("its caller was interrupted".into()));
            }
        }
        Ok(())
    }

    /// Sleeps until something can move.
    fn wait(&mut self) -> Result<(), Error> {
        let left = self.work.patience.deadline.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            return Err(self.too_late());
        }
        self.ask()?;
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let waited = self.started.elapsed();
            self.work.onlooker.waits(self.awaited(), waited).map_err(Error::Interrupted)?;
        }
        let is_ahead = |link: &&Link| link.is_ahead() && !self.expects(link.rank.into());
        if let Some(rank) = self.links.iter().flatten().find(is_ahead).map(|link| link.rank) {
            // poll() knows nothing of what has been read.
            return self.receive_from(rank.into()).map(drop);
        }
        for rank in self.look(left.min(ASKED), true)? {
            // The others are looked at in any case.
            if !self.expects(rank) {
                self.receive_from(rank)?;
            }
        }
        Ok(())
    }

    /// Waits for sockets; the ranks from which something came, or whose connection ended.
    fn look(&self, timeout: Duration, also_write: bool) -> Result<Vec<usize>, Error> {
        let mut ranks = Vec::with_capacity(self.links.len());
        let mut fds = Vec::with_capacity(self.links.len());
        for link in self.links.iter().flatten() {
            let writes = also_write && self.blocked == Some(link.rank);
            let mut flags = PollFlags::empty();
            if link.ended.is_none() && !self.is_held(link) {
                flags |= PollFlags::IN;
            }
            if writes {
                flags |= PollFlags::OUT;
            }
            // poll() would report an end without being asked, again and again.
            if !flags.is_empty() {
                ranks.push(usize::from(link.rank));
                fds.push(PollFd::from_borrowed_fd(link.stream.as_fd(), flags));
            }
        }
        wait(&mut fds, timeout).map_err(Error::io("wait for the mesh's sockets"))?;
        let come = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let ready = ranks.into_iter().zip(&fds).filter(|(_, fd)| fd.revents().intersects(come));
        Ok(ready.map(|(rank, _)| rank).collect())
    }

    /// The next message is here and cannot be taken yet.
    fn is_held(&self, link: &Link) -> bool {
        match link.current {
            Some(Header::Data { call, .. }) => {
                call.sequence > self.work.call.sequence || !self.expects(link.rank.into())
            }
            _ => false,
        }
    }

    /// A rank's connection ended: because it died, or because it gave up over something that
    /// another rank may tell.
    fn is_lost(&mut self, rank: u16, reason: &str) -> Error {
        self.await_reason().unwrap_or_else(|| lost(rank, self.work.call, reason))
    }

    /// Waits for what another rank says of its own giving up, as long as one can.
    fn await_reason(&mut self) -> Option<Error> {
        let end = Instant::now() + REASON_GRACE;
        loop {
            let mut can_speak = false;
            for link in self.links.iter_mut().flatten() {
                let in_payload = matches!(link.current, Some(Header::Data { .. }));
                if !in_payload
                    && let Err(stopped) = link.next_header(self.work.call.sequence, &mut [])
                {
                    return Some(stopped);
                }
                can_speak |= link.ended.is_none();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !can_speak || self.look(left, false).is_err() {
                return None;
            }
            // Bytes that can be read but are not a notice would be seen again at once.
            std::thread::sleep(Duration::from_millis(5).min(left));
        }
    }

    /// The deadline is over. A rank that has begun this call waits as well, so another one may know
    /// more.
    fn too_late(&mut self) -> Error {
        if self.absent().is_none()
            && let Some(stopped) = self.await_reason()
        {
            return stopped;
        }
        let rank = self.awaited();
        let state = match self.came_from(rank) {
            (0, total) if total > 0 => "has sent nothing of this call".into(),
            (come, total) if come < total => format!("has sent {come} of {total} bytes"),
            _ => "does not take what is sent to it".into(),
        };
        let waited = self.work.patience.deadline;
        let state = match self.work.onlooker.known(rank) {
            Some(known) => format!("{state}: {known}"),
            None => state,
        };
        Error::Deadline { rank, call: self.work.call.sequence, waited, state }
    }

    /// A rank that has sent nothing of this call.
    fn absent(&self) -> Option<u16> {
        let mut ranks = 0..self.links.len() as u16;
        ranks.find(|rank| self.expects(usize::from(*rank)) && self.came_from(*rank).0 == 0)
    }

    /// The rank that is waited for; of several, one that has not begun.
    fn awaited(&self) -> u16 {
        let schedule = self.work.schedule;
        let unfinished = schedule.receives.get(self.prefix).map(|receive| receive.from);
        let send = schedule.sends.get(self.next_send).map(|send| send.to);
        self.absent().or(self.blocked).or(unfinished).or(send).unwrap_or_default()
    }

    /// Bytes that have come from a rank, and those that are to come in all.
    fn came_from(&self, rank: u16) -> (usize, usize) {
        let receives = self.work.schedule.receives.iter().zip(&self.done);
        let (mut come, mut total) = (self.placed[usize::from(rank)], 0);
        for (receive, done) in receives.filter(|(receive, _)| receive.from == rank) {
            let len = self.work.bytes(&receive.range).len();
            total += len;
            come += if *done { len } else { 0 };
        }
        (come, total)
    }
}

fn lost(rank: u16, call: Call, reason: &str) -> Error {
    Error::PeerLost { rank, call: call.sequence, reason: reason.into() }
}
