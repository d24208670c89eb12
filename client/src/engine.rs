//! One worker's side of a running job: calls, flow and sockets, driven one step at a time by
//! whichever thread waits.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde::Serialize;
use xdp_agg_common::control::{AbortReason, Admitted, Reply, Request};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

use crate::call::{Call, Elements, Report};
use crate::collective::Op;
use crate::error::Error;
use crate::flow::{self, Flow};
use crate::session::{Session, refusal};
use crate::sys::{self, BATCH, Interest, Receiver};
use crate::udp::{self, DataSocket};

/// Most blocks under way that are waited for without sleeping at once: 90 KiB at MTU 1500.
const YIELD_BLOCKS: u32 = 64;
/// Longest wait of this kind: a sleep and a wake-up cost about as much.
const YIELD_TIME: Duration = Duration::from_micros(30);

/// What a communicator did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Transmissions, results, losses.
    #[serde(flatten)]
    pub flow: flow::Counters,
    /// Calls that ended with a result.
    pub calls: u64,
    /// Elements that were clamped, over all calls.
    pub saturated: u64,
    /// Blocks that came back as NaN because some worker had a NaN or an infinity in them.
    pub non_finite_blocks: u64,
    /// Packets that were not for this job, epoch or call, and were dropped.
    pub foreign: u64,
    /// Current window in blocks.
    pub window: u32,
    /// Smoothed round-trip time in nanoseconds; 0 before the first measurement.
    pub round_trip_ns: u64,
}

/// Everything behind a communicator.
pub(crate) struct Engine {
    rank: u16,
    world_size: u16,
    scale: f64,
    admitted: Admitted,
    session: Session,
    socket: DataSocket,
    flow: Flow,
    calls: VecDeque<Call>,
    next_sequence: u64,
    started: Instant,
    receiver: Receiver,
    batch: Vec<u8>,
    /// Bytes of the batch that the socket would not take yet.
    unsent: usize,
    /// A call of ours differs from the others'; the daemon has been told.
    mismatch: Option<u64>,
    failed: Option<Error>,
    counters: Counters,
}

/// What the members agreed on when the job was formed.
pub(crate) struct Membership {
    pub(crate) rank: u16,
    pub(crate) world_size: u16,
    pub(crate) scale: f64,
    pub(crate) admitted: Admitted,
}

impl Engine {
    pub(crate) fn new(
        membership: Membership,
        session: Session,
        socket: DataSocket,
        flow: flow::Config,
    ) -> Self {
        let Membership { rank, world_size, scale, admitted } = membership;
        let packet_len = packet_len(admitted.chunks);
        Self {
            rank,
            world_size,
            scale,
            batch: vec![0; packet_len * socket.segments()],
            receiver: Receiver::new(packet_len),
            flow: Flow::new(flow),
            admitted,
            session,
            socket,
            calls: VecDeque::new(),
            next_sequence: 0,
            started: Instant::now(),
            unsent: 0,
            mismatch: None,
            failed: None,
            counters: Counters::default(),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            flow: *self.flow.counters(),
            window: self.flow.window(),
            round_trip_ns: self
                .flow
                .round_trip()
                .map_or(0, |trip| u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX)),
            ..self.counters
        }
    }

    pub(crate) fn engine(&self) -> &str {
        self.session.engine()
    }

    pub(crate) const fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Adds a call; its blocks go out at the next step. Returns its number.
    pub(crate) fn start(&mut self, elements: Elements, op: Op) -> Result<u64, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let sequence = self.next_sequence;
        let chunks = self.admitted.chunks;
        let mut call = Call::new(sequence, elements, op, self.world_size, self.scale, chunks);
        call.first_block = self.flow.extend(call.report.blocks);
        self.next_sequence += 1;
        self.calls.push_back(call);
        Ok(sequence)
    }

    /// A call's end, once: its elements and report, or why there will be none.
    pub(crate) fn take(&mut self, sequence: u64) -> Option<Result<Call, Error>> {
        let index = self.calls.iter().position(|call| call.sequence == sequence)?;
        if self.calls[index].is_done() {
            let call = self.calls.remove(index)?;
            self.count(call.report);
            return Some(Ok(call));
        }
        let error = self.failed.clone()?;
        self.calls.remove(index);
        Some(Err(error))
    }

    /// Takes a call out, whatever its state: its memory is no longer there.
    pub(crate) fn remove(&mut self, sequence: u64) {
        if let Some(index) = self.calls.iter().position(|call| call.sequence == sequence) {
            self.calls.remove(index);
            // Its blocks can be sent no more, so the job cannot go on.
            self.fail(Error::Closed);
        }
    }

    /// Nobody will ask for this call any more. It goes on, for the other workers' sake.
    pub(crate) fn abandon(&mut self, sequence: u64) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.sequence == sequence) {
            call.abandoned = true;
        }
        self.drop_abandoned();
    }

    /// The caller of this call does not wait any longer: asks who is missing, and ends the job.
    pub(crate) fn give_up(&mut self, sequence: u64, waited: Duration) -> Error {
        if let Some(error) = &self.failed {
            return error.clone();
        }
        let ranks = self.ask_for_missing().unwrap_or_default();
        if let Some(error) = &self.failed {
            return error.clone();
        }
        let error = Error::Deadline { sequence: Some(sequence), waited, ranks };
        self.fail(error.clone());
        error
    }

    /// Ends the job for this worker, and tells the others why.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.failed.is_none() {
            let reason = error.to_string();
            // Best effort: where the daemon is gone, the others know already.
            let _ = self.session.send(&Request::Abort { reason });
            self.failed = Some(error);
        }
        self.drop_abandoned();
    }

    /// Leaves the job in good order, so that the others do not take this worker for dead.
    pub(crate) fn leave(&mut self) {
        if self.failed.is_none() {
            let _ = self.session.send(&Request::Leave);
            self.failed = Some(Error::Closed);
        }
    }

    /// True while blocks wait for results.
    pub(crate) fn has_work(&self) -> bool {
        self.failed.is_none() && !self.flow.is_idle()
    }

    /// Takes in what has arrived, sends what may be sent, and sleeps at most `patience` if there
    /// was neither; `wake` ends the sleep early.
    pub(crate) fn step(&mut self, patience: Duration, wake: BorrowedFd<'_>) {
        if let Err(error) = self.try_step(patience, wake) {
            self.fail(error);
        }
    }

    fn try_step(&mut self, patience: Duration, wake: BorrowedFd<'_>) -> Result<(), Error> {
        let arrived = self.receive()?;
        self.flow.on_timeout(self.now());
        self.transmit()?;
        self.drop_abandoned();
        // A full batch means that more is waiting; a finished call means that somebody is.
        if arrived >= BATCH || self.calls.iter().any(Call::is_done) || self.failed.is_some() {
            return Ok(());
        }
        if self.receive_soon()? {
            return Ok(());
        }
        let timer = self.flow.poll_timeout().map(|at| at.saturating_sub(self.now()));
        let patience = timer.map_or(patience, |timer| timer.min(patience));
        let (first, second) = self.socket.sockets();
        let mut interests = [
            Interest::read(wake),
            Interest::read(self.session.fd()),
            Interest::read(first).also_write(self.unsent > 0),
            Interest::read(second.unwrap_or(first)),
        ];
        sys::wait(&mut interests, patience).map_err(Error::io("waiting for packets"))?;
        if interests[1].ready {
            self.listen()?;
        }
        Ok(())
    }

    /// While little is under way, its results are a round trip away: gives the processor to whoever
    /// brings them, and looks again, before it goes to sleep. True if something came.
    fn receive_soon(&mut self) -> Result<bool, Error> {
        if !(1..=YIELD_BLOCKS).contains(&self.flow.under_way()) {
            return Ok(false);
        }
        let start = Instant::now();
        while start.elapsed() < YIELD_TIME {
            std::thread::yield_now();
            if self.receive()? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes in all packets that are there, up to a few batches; returns how many.
    fn receive(&mut self) -> Result<usize, Error> {
        let mut arrived = 0;
        for second in [false, true] {
            let mut lens = [0; BATCH];
            let (first, group) = self.socket.sockets();
            let Some(socket) = (if second { group } else { Some(first) }) else { continue };
            let count = match self.receiver.receive(socket, &mut lens) {
                Ok(count) => count,
                Err(error) if udp::nothing_received(&error) => 0,
                Err(error) => return Err(Error::io("receiving results")(error)),
            };
            let now = self.now();
            for (index, len) in lens[..count].iter().enumerate() {
                if !self.on_packet(index, *len, now)? {
                    self.counters.foreign += 1;
                }
            }
            arrived += count;
        }
        Ok(arrived)
    }

    /// One packet. False: it is not for us, now.
    fn on_packet(&mut self, index: usize, len: usize, now: Duration) -> Result<bool, Error> {
        let packet = self.receiver.packet(index, len);
        let Some((header, payload)) = packet.split_first_chunk::<HEADER_LEN>() else {
            return Ok(false);
        };
        let Ok(header) = Header::parse(header) else { return Ok(false) };
        let ours = header.job == self.admitted.job_id
            && header.cookie == self.admitted.cookie
            && header.epoch == self.admitted.epoch;
        let Some(call) = self.calls.iter_mut().find(|call| call.holds(header.block)) else {
            // A copy of a result whose call is over.
            return Ok(ours);
        };
        if !ours || header.tag != call.tag {
            return Ok(false);
        }
        match header.kind {
            Kind::Result if payload.len() == call.payload_len(header.block) => {
                if self.flow.on_result(header.block, now) {
                    call.decode(header.block, header.flags, payload);
                }
            }
            Kind::Pending => self.flow.on_pending(header.block, now),
            Kind::Mismatch => {
                let sequence = call.sequence;
                if self.mismatch.is_none() {
                    self.mismatch = Some(sequence);
                    let call = call.describe();
                    self.session.send(&Request::CallMismatch { call })?;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sends what the flow allows, in batches of equal packets.
    fn transmit(&mut self) -> Result<(), Error> {
        let full = packet_len(self.admitted.chunks);
        loop {
            let now = self.now();
            // What the socket refused the last time goes first.
            let room = if self.unsent == 0 { self.socket.segments() } else { 0 };
            let mut len = self.unsent;
            for _ in 0..room {
                let Some(block) = self.flow.poll_transmit(now) else { break };
                let packet = self.encode(block, len)?;
                len += packet;
                if packet < full {
                    break; // a shorter packet must be the last of its batch
                }
            }
            if len == 0 {
                return Ok(());
            }
            let batch = &self.batch[..len];
            let taken = self.socket.send(batch).map_err(Error::io("sending a block"))?;
            self.unsent = if taken { 0 } else { len };
            if !taken {
                return Ok(());
            }
        }
    }

    /// Writes a block's packet into the batch; returns its length.
    fn encode(&mut self, block: u64, at: usize) -> Result<usize, Error> {
        let Some(call) = self.calls.iter_mut().find(|call| call.holds(block)) else {
            return Err(Error::Protocol(format!("block {block} belongs to no call")));
        };
        let len = HEADER_LEN + call.payload_len(block);
        let packet = &mut self.batch[at..at + len];
        let (header, payload) = packet.split_at_mut(HEADER_LEN);
        let flags = call.encode(block, self.flow.is_first_transmission(block), payload);
        let fields = Header {
            kind: Kind::Contribution,
            flags,
            job: self.admitted.job_id,
            cookie: self.admitted.cookie,
            epoch: self.admitted.epoch,
            rank: self.rank,
            block,
            tag: call.tag,
        };
        if let Some(header) = header.first_chunk_mut::<HEADER_LEN>() {
            fields.emit(header);
        }
        Ok(len)
    }

    /// Takes in what the daemon says.
    fn listen(&mut self) -> Result<(), Error> {
        while let Some(reply) = self.session.poll()? {
            match reply {
                Reply::Aborted(reason) => {
                    self.failed.get_or_insert(self.explain(reason));
                }
                Reply::Missing { .. } | Reply::Done => {} // an answer that came too late
                other => return Err(refusal(other)),
            }
        }
        Ok(())
    }

    fn explain(&self, reason: AbortReason) -> Error {
        let AbortReason::CallMismatch { rank, call } = &reason else {
            return Error::Aborted(reason);
        };
        let ours = self.calls.iter().find(|ours| ours.sequence == call.sequence);
        let ours = ours.map_or_else(|| "none".into(), |ours| ours.describe().to_string());
        let theirs = if *rank == self.rank {
            "at least one other worker made another one".into()
        } else {
            format!("rank {rank} made {call}")
        };
        Error::CallMismatch { ours, theirs }
    }

    /// The ranks that the oldest block waits for, as the daemon knows them.
    fn ask_for_missing(&mut self) -> Result<Vec<u16>, Error> {
        let block = self.flow.base();
        self.session.send(&Request::Missing { block })?;
        let deadline = Instant::now() + Duration::from_secs(1);
        while let Some(reply) = self.session.next(deadline)? {
            match reply {
                Reply::Missing { ranks, .. } => return Ok(ranks),
                Reply::Aborted(reason) => {
                    self.failed.get_or_insert(self.explain(reason));
                    break;
                }
                _ => {}
            }
        }
        Ok(Vec::new())
    }

    fn drop_abandoned(&mut self) {
        let failed = self.failed.is_some();
        while let Some(index) =
            self.calls.iter().position(|call| call.abandoned && (failed || call.is_done()))
        {
            if let Some(call) = self.calls.remove(index)
                && call.is_done()
            {
                self.count(call.report);
            }
        }
    }

    const fn count(&mut self, report: Report) {
        self.counters.calls += 1;
        self.counters.saturated += report.saturated;
        self.counters.non_finite_blocks += report.non_finite_blocks;
    }
}

/// Bytes of a packet with this many chunks: our header and the payload.
pub(crate) const fn packet_len(chunks: u16) -> usize {
    HEADER_LEN + chunks as usize * CHUNK_LEN
}
