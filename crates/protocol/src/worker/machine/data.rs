//! Packets: what comes in, what goes out.

use std::time::Duration;

use xdp_agg_common::control::{self, Admitted, Request, RunKind};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};

use super::epoch::Epoch;
use super::{Freeze, Machine, PROBE_INTERVAL, PROBES, Phase, packet_len};
use crate::worker::call::Call;
use crate::worker::flow::Role;
use crate::worker::{EpochBlock, Error, rank_bit};

/// Tag of a block that is carried over to a new epoch: its call may be over at some members. The
/// plan, which is the same at all members, says which blocks these are.
const CARRIED_TAG: u16 = 0;

impl Machine {
    /// One UDP payload from the aggregator.
    pub fn handle_packet(&mut self, packet: &[u8], now: Duration) {
        if self.failed.is_some() {
            // No call's memory is touched any more.
            return;
        }
        self.tick(now);
        let header = packet.split_first_chunk::<HEADER_LEN>();
        let understood = header.and_then(|(header, payload)| {
            let header = Header::parse(header).ok()?;
            Some(self.is_early(&header, packet, now) || self.take_in(&header, payload, now))
        });
        self.counters.foreign += u64::from(understood != Some(true));
    }

    /// Keeps a solo block that this worker does not await yet: its root needs nobody else.
    fn is_early(&mut self, header: &Header, packet: &[u8], now: Duration) -> bool {
        let runs = self.phase == Phase::Running && self.freeze == Freeze::No;
        let solo = header.kind == Kind::Result && header.reduction == Reduction::Copy;
        let may = solo && runs && self.solo;
        let ours = |epoch: &&mut Epoch| may && is_of(&epoch.admitted, header);
        let Some(epoch) = self.epoch.as_mut().filter(ours) else { return false };
        epoch.flow.open(now);
        let pool = u64::from(epoch.admitted.slots);
        let (from, until) = (epoch.flow.sent_end(), epoch.flow.base() + pool);
        let block = EpochBlock(header.block);
        if !(from..until).contains(&block) {
            return false;
        }
        self.early.keep(block, packet);
        true
    }

    /// False: it is not for us, now.
    fn take_in(&mut self, header: &Header, payload: &[u8], now: Duration) -> bool {
        let Some(epoch) = &mut self.epoch else { return false };
        let admitted = &epoch.admitted;
        if !is_of(admitted, header) {
            return false;
        }
        if self.phase != Phase::Running || self.freeze != Freeze::No {
            return self.handle_probe_reply(header, payload);
        }
        let number = EpochBlock(header.block);
        let (block, kind) = epoch.locate(number);
        let call = self.calls.iter_mut().find(|call| call.holds(block));
        let members = match kind {
            RunKind::Copy { members, .. } => members,
            _ => epoch.admitted.members,
        };
        let sealed = call.as_deref().filter(|call| call.is_sealed(block));
        let differing = sealed.filter(|call| {
            let is_copy = matches!(kind, RunKind::Copy { .. });
            let tag = if is_copy { CARRIED_TAG } else { call.tag(block) };
            let is_result = header.kind == Kind::Result && header.tag == tag;
            let is_whole = is_result && payload.len() == call.payload_len(block);
            is_whole && !call.is_of_all(block, payload, members)
        });
        if let Some(call) = differing {
            let call = call.describe();
            self.differs(call);
            return true;
        }
        if matches!(kind, RunKind::Copy { .. }) {
            let ours = handle_carried(epoch, call, header, payload, members, now);
            self.release();
            self.after_a_call();
            return ours;
        }
        let Some(call) = call else {
            return true; // a copy of a result whose call is over
        };
        if header.tag != call.tag(block) {
            return false;
        }
        match header.kind {
            Kind::Result if payload.len() == call.payload_len(block) => {
                if epoch.flow.handle_result(number, now) {
                    call.goes_over_aggregator();
                    call.decode(block, header.flags, payload, members);
                    call.times.result(now);
                    call.note_done(now);
                    epoch.history.put(number, members, header.flags, payload);
                    if call.is_reduced() {
                        self.after_a_call();
                    }
                    // It may have been the exponents that others wait for.
                    self.release();
                }
            }
            Kind::Pending => {
                call.times.pendings += 1;
                epoch.flow.handle_pending(number, now);
            }
            Kind::Mismatch => {
                let call = call.describe();
                self.differs(call);
            }
            _ => return false,
        }
        true
    }

    /// Another worker made another call than this one: said once, for the daemon tells all.
    fn differs(&mut self, call: control::Call) {
        if !self.mismatch {
            self.mismatch = true;
            self.say(Request::CallMismatch { call });
        }
    }

    fn after_a_call(&mut self) {
        self.news = true;
        self.drop_abandoned();
        self.end_epoch_if_done();
    }

    fn handle_probe_reply(&mut self, header: &Header, payload: &[u8]) -> bool {
        let full = self.probe().is_some_and(|(expected, len)| {
            *header == Header { kind: Kind::ProbeReply, ..expected }
                && HEADER_LEN + payload.len() == len
        });
        if full && matches!(self.phase, Phase::Probing { .. }) && self.freeze == Freeze::No {
            self.phase = Phase::Ready;
            self.say(Request::Ready);
        }
        // A packet that comes while nothing is taken in is this membership's nevertheless.
        true
    }

    /// The probe of this epoch and its length.
    fn probe(&self) -> Option<(Header, usize)> {
        let admitted = self.admitted()?;
        let header = Header {
            kind: Kind::Probe,
            flags: 0,
            reduction: Reduction::Add,
            job: admitted.job_id,
            cookie: admitted.cookie,
            epoch: admitted.epoch,
            rank: self.config.rank,
            block: 0,
            tag: 0,
        };
        Some((header, packet_len(admitted.chunks)))
    }

    /// Writes the next packet that may be sent now to `out` (at least [`super::Endpoint`]'s
    /// `packet_len` bytes) and returns its length; `None`: nothing now. It counts as sent.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut [u8]) -> Option<usize> {
        if self.freeze != Freeze::No || self.failed.is_some() {
            return None;
        }
        match self.phase {
            Phase::Running => self.next_contribution(now, out),
            Phase::Probing { sent, next } if now >= next && (sent < PROBES || self.has_run) => {
                let (header, len) = self.probe()?;
                let packet = out.get_mut(..len)?;
                packet.fill(0);
                header.emit(packet.first_chunk_mut()?);
                let sent = sent.saturating_add(1);
                self.phase = Phase::Probing { sent, next: now + PROBE_INTERVAL };
                Some(len)
            }
            _ => None,
        }
    }

    fn next_contribution(&mut self, now: Duration, out: &mut [u8]) -> Option<usize> {
        let epoch = self.epoch.as_mut()?;
        let admitted = &epoch.admitted;
        let (header, payload) =
            out.get_mut(..packet_len(admitted.chunks))?.split_first_chunk_mut()?;
        let number = epoch.flow.poll_transmit(now)?;
        let mut fields = Header {
            kind: Kind::Contribution,
            flags: 0,
            reduction: Reduction::Add,
            job: admitted.job_id,
            cookie: admitted.cookie,
            epoch: admitted.epoch,
            rank: self.config.rank,
            block: number.0,
            tag: CARRIED_TAG,
        };
        let (block, kind) = epoch.locate(number);
        let call = self.calls.iter_mut().find(|call| call.holds(block));
        let len = match (kind, call) {
            (RunKind::Copy { source, .. }, call) => {
                let source = source == self.config.rank;
                let carried = carry(epoch, call.as_deref(), number, source, payload);
                carried.map(|(len, flags)| {
                    fields.flags = flags;
                    len
                })
            }
            (_, Some(call)) => {
                fields.tag = call.tag(block);
                let len = call.payload_len(block);
                let role = epoch.flow.role(number);
                let first = epoch.flow.is_first_transmission(number);
                call.times.sent(first, now);
                if role == Role::Listen {
                    (fields.kind, fields.reduction) = (Kind::Ask, Reduction::Copy);
                    payload[..len].fill(0);
                } else {
                    let marks = call.encode(block, first, &mut payload[..len]);
                    (fields.flags, fields.reduction) = (marks.flags, marks.reduction);
                }
                if role == Role::Solo {
                    fields.reduction = Reduction::Copy;
                }
                Some(len)
            }
            (_, None) => None,
        };
        let Some(len) = len else {
            self.fail(Error::Protocol(format!("block {block} belongs to no call")));
            return None;
        };
        fields.emit(header);
        Some(HEADER_LEN + len)
    }

    /// A packet that came before its call, and whose turn it is now: it is to be given to
    /// [`Self::handle_packet`] once more.
    pub fn poll_early(&mut self, now: Duration) -> Option<Box<[u8]>> {
        let epoch = self.epoch.as_mut().filter(|_| !self.early.is_empty())?;
        epoch.flow.open(now);
        self.early.take(epoch.flow.sent_end())
    }

    /// The ranks whose contribution makes this block, where these are not all.
    pub(super) fn waits_for(&self, number: EpochBlock) -> Option<u64> {
        let epoch = self.epoch.as_ref()?;
        let alone = matches!(epoch.flow.role(number), Role::Solo | Role::Listen);
        let block = epoch.locate(number).0;
        let call = self.calls.iter().filter(|_| alone).find(|call| call.holds(block))?;
        call.root().map(rank_bit)
    }
}

/// Whether a packet is of this membership.
fn is_of(admitted: &Admitted, header: &Header) -> bool {
    header.job == admitted.job_id
        && header.cookie == admitted.cookie
        && header.epoch == admitted.epoch
}

/// The payload of a carried-over block: its sum at the source, nothing at the others, so that the
/// sum of all is the source's. Returns length and flags.
pub(super) fn carry(
    epoch: &Epoch,
    call: Option<&Call>,
    number: EpochBlock,
    source: bool,
    payload: &mut [u8],
) -> Option<(usize, u8)> {
    if let Some((entry, lanes)) = epoch.history.get(number) {
        let payload = &mut payload[..lanes.len()];
        if source {
            payload.copy_from_slice(lanes);
            return Some((lanes.len(), entry.flags));
        }
        payload.fill(0);
        return Some((lanes.len(), 0));
    }
    let call = call.filter(|_| !source)?;
    let len = call.payload_len(epoch.locate(number).0);
    payload[..len].fill(0);
    Some((len, 0))
}

/// An answer to a block that is carried over.
fn handle_carried(
    epoch: &mut Epoch,
    call: Option<&mut Call>,
    header: &Header,
    payload: &[u8],
    members: u64,
    now: Duration,
) -> bool {
    let number = EpochBlock(header.block);
    if header.tag != CARRIED_TAG {
        return false;
    }
    let block = epoch.locate(number).0;
    match header.kind {
        Kind::Pending => epoch.flow.handle_pending(number, now),
        Kind::Result if epoch.is_mine(block) => {
            epoch.flow.handle_result(number, now);
        }
        Kind::Result => {
            let fits = call.filter(|call| payload.len() == call.payload_len(block));
            if let Some(call) = fits
                && epoch.flow.handle_result(number, now)
            {
                call.goes_over_aggregator();
                call.decode(block, header.flags, payload, members);
                call.times.result(now);
                call.note_done(now);
                epoch.history.put(number, members, header.flags, payload);
            }
        }
        _ => return false,
    }
    true
}
