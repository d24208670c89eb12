//! What a data path may do with a packet.

use xdp_agg_common::admission::Source;
use xdp_agg_common::lanes::{CHUNK_LEN, Chunk};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, Reject};
use xdp_agg_common::slot::SlotState;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, MAX_WORKERS, Reduction, flags};
use xdp_agg_protocol::engine::JobSetup;
use xdp_agg_protocol::sum::{Answer, Sums};

use super::tree::Part;
use super::{Checker, Completion, NONE};

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A member or a parent sent it, just so; how long ago, and how many copies came since, is
    /// open.
    Member,
    /// A stranger changed it; it may still be a member's, by chance.
    Stranger,
    /// It must not count, whatever it says of itself.
    Foreign,
}

/// The parties that may send such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Nobodys,
    Members,
    Parents,
}

/// A job as a daemon registered it with its data path.
#[derive(Debug)]
pub(super) struct Registered {
    setup: JobSetup,
    running: bool,
}

/// A data path before a packet.
#[derive(Debug)]
pub(crate) struct Before {
    daemon: usize,
    header: Option<Header>,
    /// Its job, as this aggregator numbers it.
    job: usize,
    counters: JobCounters,
    /// The slot that the packet falls into, if its job is there.
    slot: Option<SlotState>,
    /// Everything, where nothing may change.
    all: Option<(Vec<SlotState>, Vec<Chunk>)>,
    lanes: Vec<u8>,
    /// May this packet change anything?
    whose: Whose,
}

impl Before {
    /// It is a parent's.
    pub(crate) fn is_from_above(&self) -> bool {
        self.whose == Whose::Parents
    }
}

impl Checker {
    /// A daemon registered a job with its data path.
    pub(crate) fn prepared(&mut self, daemon: usize, setup: &JobSetup) {
        self.plant(daemon, setup);
        let registered = Registered { setup: setup.clone(), running: false };
        self.path.insert((daemon, setup.job_id), registered);
    }

    /// A daemon started a job on its data path. The epoch begins with the root.
    pub(crate) fn started(&mut self, daemon: usize, job_id: u16) {
        let Some(job) = self.path.get_mut(&(daemon, job_id)) else { return };
        job.running = true;
        let cookie = job.setup.conf.cookie;
        if job.setup.uplink.is_some() {
            return;
        }
        match self.by_cookie.get(&cookie).copied() {
            Some(epoch) => {
                self.count_return(epoch);
                self.begins(epoch);
            }
            None => self.fail(|| "an epoch begins, and nobody knows of it".into()),
        }
    }

    /// A daemon ended a job on its data path, or all where the data path is gone.
    pub(crate) fn stopped(&mut self, daemon: usize, job_id: Option<u16>) {
        self.path.retain(|(at, job), _| *at != daemon || job_id.is_some_and(|id| id != *job));
    }

    /// A packet is about to come in.
    pub(crate) fn before(
        &self,
        daemon: usize,
        sums: &Sums,
        source: Source,
        packet: &[u8],
        origin: Origin,
    ) -> Before {
        let header = packet.first_chunk::<HEADER_LEN>().and_then(|b| Header::parse(b).ok());
        let payload = &packet[HEADER_LEN.min(packet.len())..];
        let (job, whose) = match &header {
            Some(header) => self.whose(daemon, header, source, payload.len()),
            None => (MAX_JOBS, Whose::Nobodys),
        };
        let whose = if origin == Origin::Foreign { Whose::Nobodys } else { whose };
        let ours = whose != Whose::Nobodys;
        let everything = || (sums.slots().to_vec(), sums.all_lanes().to_vec());
        Before {
            daemon,
            header,
            job,
            counters: sums.counters()[job],
            slot: header.and_then(|header| sums.slot(job as u16, header.block)).copied(),
            all: (!ours).then(everything),
            lanes: if ours { payload.to_vec() } else { Vec::new() },
            whose,
        }
    }

    /// Whose packet the rules allow this to be, and of which job.
    fn whose(&self, daemon: usize, header: &Header, source: Source, len: usize) -> (usize, Whose) {
        let from = |at: &std::net::SocketAddrV4| {
            u32::from(*at.ip()) == source.addr && at.port() == source.port
        };
        let nobodys = (usize::from(header.job).min(MAX_JOBS), Whose::Nobodys);
        let is_answer =
            matches!(header.kind, Kind::Result | Kind::Pending | Kind::Mismatch | Kind::ProbeReply);
        // What comes down is known by the cookie: the number in it is the parent's.
        let found = if is_answer {
            let mut here = self.path.iter().filter(|((at, _), _)| *at == daemon);
            let below = |job: &Registered| {
                job.setup.uplink.is_some() && job.setup.conf.cookie == header.cookie
            };
            here.find(|(_, job)| below(job)).map(|((_, id), job)| (*id, job))
        } else {
            self.path.get(&(daemon, header.job)).map(|job| (header.job, job))
        };
        let Some((job_id, Registered { setup, running })) = found else { return nobodys };
        let conf = &setup.conf;
        let fits = header.cookie == conf.cookie
            && header.epoch == conf.epoch
            && usize::from(header.rank) < MAX_WORKERS
            && len > 0
            && len.is_multiple_of(CHUNK_LEN)
            && len <= usize::from(conf.max_chunks) * CHUNK_LEN;
        let whose = match (header.kind, &setup.uplink) {
            _ if !fits => Whose::Nobodys,
            (Kind::Contribution | Kind::Ask, _) if !running => Whose::Nobodys,
            // Copies alone are asked for, and no forwarder has any.
            (Kind::Ask, _) if header.reduction != Reduction::Copy => Whose::Nobodys,
            (Kind::Contribution | Kind::Ask, Some(_)) if header.reduction == Reduction::Copy => {
                Whose::Nobodys
            }
            (Kind::Contribution | Kind::Ask | Kind::Probe, _) => {
                let known = setup.members.get(&header.rank).is_some_and(from);
                if known { Whose::Members } else { Whose::Nobodys }
            }
            (kind, Some(up)) if *running || kind == Kind::ProbeReply => {
                let known = from(&up.addr) && (up.job, up.rank) == (header.job, header.rank);
                if known { Whose::Parents } else { Whose::Nobodys }
            }
            _ => Whose::Nobodys,
        };
        (job_id.into(), whose)
    }

    /// The packet has come in.
    pub(crate) fn after(
        &mut self,
        before: &Before,
        sums: &Sums,
        answer: &Answer,
        packet: &[u8],
        origin: Origin,
    ) {
        let Some(header) = before.header else {
            return self.check_unchanged(before, sums, answer, origin);
        };
        if before.whose == Whose::Nobodys {
            return self.check_unchanged(before, sums, answer, origin);
        }
        let (old, new) = (&before.counters, &sums.counters()[before.job]);
        let refused = Reject::ALL
            .into_iter()
            .find(|reason| new.rejects[*reason as usize] != old.rejects[*reason as usize]);
        match refused {
            Some(Reject::Quota) | None => {}
            Some(reason) if origin == Origin::Member => {
                return self.fail(|| {
                    format!("a member's packet is refused ({}): {header:?}", reason.name())
                });
            }
            Some(_) => return,
        }
        if matches!(header.kind, Kind::Probe | Kind::ProbeReply) {
            return;
        }
        if before.whose == Whose::Members && refused.is_none() {
            self.hears(header.cookie, before.daemon, header.rank);
        }
        let Some(epoch) = self.by_cookie.get(&header.cookie).copied() else {
            return self.fail(|| format!("a packet of an epoch without members: {header:?}"));
        };
        if new.contributions != old.contributions {
            self.check_counted(epoch, before, &header);
        }
        self.check_takeover(epoch, before, sums, &header);
        self.check_answer(epoch, before, answer, packet);
        self.check_slot(epoch, before, sums, &header);
    }

    /// A packet that is not allowed to count has changed nothing and got no answer; a member may be
    /// told that it does not go with the others.
    fn check_unchanged(&mut self, before: &Before, sums: &Sums, answer: &Answer, origin: Origin) {
        let Some((slots, lanes)) = &before.all else { return };
        let header = before.header;
        if sums.slots() != slots || sums.all_lanes() != lanes {
            return self
                .fail(|| format!("a packet that must not count changes a slot: {header:?}"));
        }
        let told = |header: &Header| origin == Origin::Foreign && header.kind == Kind::Mismatch;
        let is_told = matches!(answer, Answer::Sender { header, .. } if told(header));
        if *answer != Answer::Nothing && !is_told {
            self.fail(|| format!("a packet that must not count is answered: {header:?}"));
        }
    }

    /// A contribution was counted: it is the first of its rank, and what this rank has to give, or
    /// all that are below it.
    fn check_counted(&mut self, epoch: usize, before: &Before, header: &Header) {
        let Header { rank, block, cookie, .. } = *header;
        let bit = 1_u64 << rank;
        let ranks = self.ranks_of(cookie, before.daemon, rank);
        let is_complete = self.epochs[epoch].block(block).completion != NONE;
        let Some(part) = self.part(cookie, before.daemon, block) else {
            return self.fail(|| format!("an aggregator sums that is of no epoch: {header:?}"));
        };
        if part.seen & bit != 0 {
            return self.fail(|| format!("rank {rank} counts twice in block {block}"));
        }
        part.seen |= bit;
        if is_complete {
            return self.fail(|| format!("block {block} is complete, and counts rank {rank}"));
        }
        let root = self.place(epoch, block).ok().and_then(|place| place.root());
        if header.kind == Kind::Ask || root.is_some_and(|root| root != rank) {
            return self.fail(|| format!("rank {rank} counts in block {block} of {root:?}"));
        }
        match self.sum_of(epoch, block, ranks) {
            Ok(due) => {
                let marked = header.flags & flags::NON_FINITE != 0;
                if due.odd != marked {
                    self.fail(|| format!("rank {rank} marks block {block} wrongly: {marked}"));
                } else if !due.odd && due.payload != before.lanes {
                    self.fail(|| format!("rank {rank} contributes wrong lanes to block {block}"));
                }
            }
            Err(problem) => self.fail(|| problem),
        }
    }

    /// A slot that changed hands was one whose result all members have.
    fn check_takeover(&mut self, epoch: usize, before: &Before, sums: &Sums, header: &Header) {
        let new = sums.slot(before.job as u16, header.block);
        let (Some(old), Some(new)) = (before.slot, new) else { return };
        if old.epoch != header.epoch || old.block == new.block {
            return;
        }
        let members = self.epochs[epoch].admitted.members;
        let state = *self.epochs[epoch].block(old.block);
        if state.completion == NONE || state.taken & members != members {
            self.fail(|| {
                format!(
                    "block {} takes the slot of block {}, whose result only {:#b} of {members:#b} \
                     have",
                    new.block, old.block, state.taken
                )
            });
        }
    }

    /// What goes out is the exact sum, and the same as ever.
    fn check_answer(&mut self, epoch: usize, before: &Before, answer: &Answer, packet: &[u8]) {
        let (header, len) = match answer {
            Answer::Nothing => return,
            Answer::Sender { header, len }
            | Answer::Members { header, len }
            | Answer::Member { header, len }
            | Answer::Parent { header, len, .. } => (header, *len),
        };
        let payload = &packet[HEADER_LEN..HEADER_LEN + len];
        let checked = match (answer, header.kind) {
            (Answer::Parent { .. }, _) => self.check_sum(epoch, before, header, payload),
            (Answer::Member { .. }, _) => self.check_relay(before, header),
            (_, Kind::Result) => self.check_result(epoch, before, header, payload),
            (_, Kind::Pending) => self.check_pending(epoch, before, header, payload),
            (_, Kind::Mismatch) => Err(format!("block {} is answered MISMATCH", header.block)),
            _ => Ok(()),
        };
        if let Err(problem) = checked {
            let daemon = before.daemon;
            self.fail(|| format!("daemon {daemon}: {problem}"));
        }
    }

    /// The members whose contributions make a block's result.
    fn wanted(&mut self, epoch: usize, block: u64, members: u64) -> u64 {
        let root = self.place(epoch, block).ok().and_then(|place| place.root());
        root.map_or(members, |root| 1 << root)
    }

    /// What an aggregator knows of a block, its members, and whether it has a parent.
    fn known(&mut self, before: &Before, header: &Header) -> Result<(Part, u64, bool), String> {
        let Some(node) = self.node(header.cookie, before.daemon) else {
            return Err(format!("it answers for an epoch that it is not in: {header:?}"));
        };
        let (members, forwards) = (node.setup.conf.members, !node.is_root());
        let part = self.part(header.cookie, before.daemon, header.block).cloned();
        Ok((part.unwrap_or_default(), members, forwards))
    }

    /// A result goes out: of all members, and the parent's where there is one.
    fn check_result(
        &mut self,
        epoch: usize,
        before: &Before,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), String> {
        let Header { block, cookie, .. } = *header;
        let (part, members, forwards) = self.known(before, header)?;
        let wanted = self.wanted(epoch, block, members);
        if part.seen != wanted {
            return Err(format!("block {block} is answered with {:#b} of {wanted:#b}", part.seen));
        }
        let number = self.epochs[epoch].block(block).completion;
        if forwards {
            if part.settled == before.is_from_above() {
                let was = if part.settled { "again" } else { "before it came down" };
                return Err(format!("the result of block {block} goes out {was}"));
            }
            if let Some(part) = self.part(cookie, before.daemon, block) {
                part.settled = true;
            }
        } else if number == NONE {
            self.complete(epoch, block, header.flags, payload);
            return Ok(());
        }
        let Some(Completion { lanes, flags, .. }) = self.completions.get(number as usize) else {
            return Err(format!("block {block} has a result before its sum is complete"));
        };
        if lanes != payload || *flags != header.flags {
            return Err(format!("the result of block {block} has changed"));
        }
        Ok(())
    }

    /// A sum goes up: of all that are below, as one contribution.
    fn check_sum(
        &mut self,
        epoch: usize,
        before: &Before,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), String> {
        let Header { block, cookie, .. } = *header;
        let (part, members, _) = self.known(before, header)?;
        let up = self.node(cookie, before.daemon).and_then(|node| node.setup.uplink);
        if up.map(|up| (up.job, up.rank)) != Some((header.job, header.rank)) {
            return Err(format!("a sum goes up as another's: {header:?}"));
        }
        if part.seen != members || part.settled || header.kind != Kind::Contribution {
            return Err(format!("{header:?} goes up with {:#b} of {members:#b}", part.seen));
        }
        let (odd, sum) = match part.sum.clone() {
            Some(sum) => sum,
            None => {
                let due = self.sum_of(epoch, block, self.below(cookie, before.daemon))?;
                // Of what is not of numbers, only the mark is known before.
                (due.odd, if due.odd { payload.to_vec() } else { due.payload })
            }
        };
        let marked = header.flags & flags::NON_FINITE != 0;
        if marked != odd || sum != payload {
            return Err(format!("the sum of block {block} that goes up is wrong"));
        }
        let again = part.sum.is_some();
        let asker = before.header.map(|header| header.rank);
        if let Some(part) = self.part(cookie, before.daemon, block) {
            part.sum = Some((odd, sum));
            part.asker = asker.filter(|_| again);
        }
        Ok(())
    }

    /// The parent's `PENDING` is handed on to the member that asked last, and to no other.
    fn check_relay(&mut self, before: &Before, header: &Header) -> Result<(), String> {
        let (part, members, _) = self.known(before, header)?;
        let awaited = part.seen == members && !part.settled;
        let fits = header.kind == Kind::Pending && awaited && part.asker == Some(header.rank);
        let asker = part.asker;
        if fits { Ok(()) } else { Err(format!("{header:?} is handed on, {asker:?} asked")) }
    }

    /// A member is told that others are awaited.
    fn check_pending(
        &mut self,
        epoch: usize,
        before: &Before,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), String> {
        let (part, members, forwards) = self.known(before, header)?;
        let held = payload.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        let wanted = self.wanted(epoch, header.block, members);
        let is_done = if forwards { part.settled } else { part.seen == wanted };
        if held != part.seen || is_done {
            return Err(format!("block {} is answered PENDING {held:#b}", header.block));
        }
        Ok(())
    }

    /// What a slot holds of a finished block is its sum.
    fn check_slot(&mut self, epoch: usize, before: &Before, sums: &Sums, header: &Header) {
        let job_id = before.job as u16;
        let Some(slot) = sums.slot(job_id, header.block) else { return };
        if slot.epoch != header.epoch {
            return;
        }
        let block = slot.block;
        let number = self.epochs[epoch].block(block).completion;
        let Ok((part, _, forwards)) = self.known(before, &Header { block, ..*header }) else {
            return;
        };
        if (slot.seen, slot.settled != 0) != (part.seen, part.settled) {
            let (seen, settled) = (slot.seen, slot.settled);
            return self.fail(|| format!("the slot of block {block} says {seen:#b}, {settled}"));
        }
        let sum = match self.completions.get(number as usize) {
            Some(completion) if !forwards || part.settled => Some(&completion.lanes),
            _ => part.sum.as_ref().map(|(_, sum)| sum),
        };
        let held = sums.lanes(job_id, header.block);
        if let (Some(held), Some(sum)) = (held, sum)
            && !holds(held, sum)
        {
            self.fail(|| format!("the sum of block {block} has changed in its slot"));
        }
    }
}

/// Whether a slot holds these bytes.
fn holds(slot: &[Chunk], bytes: &[u8]) -> bool {
    let lanes = slot.iter().flatten().map(|lane| lane.bits().to_le_bytes());
    bytes.as_chunks::<8>().0.iter().zip(lanes).all(|(bytes, lane)| *bytes == lane)
}
