//! What the data path may do with a packet.

use xdp_agg::engine::JobSetup;
use xdp_agg::engine::sum::{Answer, Sums};
use xdp_agg_common::admission::Source;
use xdp_agg_common::lanes::{CHUNK_LEN, Chunk};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, Reject};
use xdp_agg_common::slot::SlotState;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, MAX_WORKERS, flags};

use super::{Checker, Completion, NONE};

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A member sent it, just so; how long ago, and how many copies came since, is open.
    Member,
    /// Somebody changed it; it may still be a member's, by chance.
    Stranger,
    /// It must not count, whatever it says of itself.
    Foreign,
}

/// A job as the daemon registered it with the data path.
#[derive(Debug)]
pub(super) struct Registered {
    setup: JobSetup,
    running: bool,
}

/// The data path before a packet.
#[derive(Debug)]
pub(crate) struct Before {
    header: Option<Header>,
    counters: JobCounters,
    /// The slot that the packet falls into, if its job is there.
    slot: Option<SlotState>,
    /// Everything, where nothing may change.
    all: Option<(Vec<SlotState>, Vec<Chunk>)>,
    lanes: Vec<u8>,
    /// May this packet change anything?
    ours: bool,
}

impl Checker {
    /// The daemon registered a job with the data path.
    pub(crate) fn prepared(&mut self, setup: &JobSetup) {
        let place = &mut self.path[usize::from(setup.job_id)];
        *place = Some(Registered { setup: setup.clone(), running: false });
    }

    /// The daemon started a job on the data path.
    pub(crate) fn started(&mut self, job_id: u16) {
        let Some(job) = &mut self.path[usize::from(job_id)] else { return };
        job.running = true;
        let cookie = job.setup.conf.cookie;
        match self.by_cookie.get(&cookie).copied() {
            Some(epoch) => self.begins(epoch),
            None => self.fail(|| "an epoch begins, and nobody knows of it".into()),
        }
    }

    /// The daemon ended a job on the data path, or all where the data path is gone.
    pub(crate) fn stopped(&mut self, job_id: Option<u16>) {
        match job_id {
            Some(job_id) => self.path[usize::from(job_id)] = None,
            None => self.path = [const { None }; MAX_JOBS],
        }
    }

    /// A packet is about to come in.
    pub(crate) fn before(
        &self,
        sums: &Sums,
        source: Source,
        packet: &[u8],
        origin: Origin,
    ) -> Before {
        let header = packet.first_chunk::<HEADER_LEN>().and_then(|b| Header::parse(b).ok());
        let payload = &packet[HEADER_LEN.min(packet.len())..];
        let ours = origin != Origin::Foreign
            && header.is_some_and(|header| self.is_ours(&header, source, payload.len()));
        let job = header.map_or(MAX_JOBS, |header| usize::from(header.job).min(MAX_JOBS));
        let everything = || (sums.slots().to_vec(), sums.all_lanes().to_vec());
        Before {
            header,
            counters: sums.counters()[job],
            slot: header.and_then(|header| sums.slot(header.job, header.block)).copied(),
            all: (!ours).then(everything),
            lanes: if ours { payload.to_vec() } else { Vec::new() },
            ours,
        }
    }

    /// Whether the rules allow this packet to count.
    fn is_ours(&self, header: &Header, source: Source, len: usize) -> bool {
        let Some(Some(job)) = self.path.get(usize::from(header.job)) else { return false };
        let conf = &job.setup.conf;
        let at = job.setup.members.get(&header.rank);
        let from_there =
            at.is_some_and(|at| u32::from(*at.ip()) == source.addr && at.port() == source.port);
        let kind = match header.kind {
            Kind::Contribution => job.running,
            Kind::Probe => true,
            _ => false,
        };
        let whole = len > 0 && len.is_multiple_of(CHUNK_LEN);
        from_there
            && kind
            && whole
            && len <= usize::from(conf.max_chunks) * CHUNK_LEN
            && header.cookie == conf.cookie
            && header.epoch == conf.epoch
            && usize::from(header.rank) < MAX_WORKERS
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
        if !before.ours {
            return self.check_unchanged(before, sums, answer, origin);
        }
        let job = usize::from(header.job);
        let (old, new) = (&before.counters, &sums.counters()[job]);
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
        if header.kind == Kind::Probe {
            return;
        }
        let Some(epoch) = self.by_cookie.get(&header.cookie).copied() else {
            return self.fail(|| format!("a packet of an epoch without members: {header:?}"));
        };
        if new.contributions != old.contributions {
            self.check_counted(epoch, before, &header);
        }
        self.check_takeover(epoch, before, sums, &header);
        self.check_answer(epoch, answer, packet);
        self.check_slot(epoch, sums, &header);
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

    /// A contribution was counted: it is the first of its rank, and what this rank has to give.
    fn check_counted(&mut self, epoch: usize, before: &Before, header: &Header) {
        let Header { rank, block, .. } = *header;
        let bit = 1_u64 << rank;
        let state = self.epochs[epoch].block(block);
        if state.seen & bit != 0 {
            return self.fail(|| format!("rank {rank} counts twice in block {block}"));
        }
        if state.completion != NONE {
            return self.fail(|| format!("block {block} is complete, and counts rank {rank}"));
        }
        state.seen |= bit;
        match self.due(epoch, block, rank) {
            Ok(due) => {
                if due.odd && header.flags & flags::NON_FINITE == 0 {
                    self.fail(|| format!("rank {rank} does not mark block {block} as non-finite"));
                } else if !due.odd && due.payload != before.lanes {
                    self.fail(|| format!("rank {rank} contributes wrong lanes to block {block}"));
                }
            }
            Err(problem) => self.fail(|| problem),
        }
    }

    /// A slot that changed hands was one whose result all members have.
    fn check_takeover(&mut self, epoch: usize, before: &Before, sums: &Sums, header: &Header) {
        let (Some(old), Some(new)) = (before.slot, sums.slot(header.job, header.block)) else {
            return;
        };
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

    /// A result that goes out is the exact sum, and the same as ever.
    fn check_answer(&mut self, epoch: usize, answer: &Answer, packet: &[u8]) {
        let (Answer::Sender { header, len } | Answer::Members { header, len }) = answer else {
            return;
        };
        let payload = &packet[HEADER_LEN..HEADER_LEN + len];
        let members = self.epochs[epoch].admitted.members;
        let Header { block, .. } = *header;
        let state = *self.epochs[epoch].block(block);
        match header.kind {
            Kind::Result => {
                if state.seen != members {
                    return self.fail(|| {
                        format!("block {block} is answered with {:#b} of {members:#b}", state.seen)
                    });
                }
                if state.completion == NONE {
                    return self.complete(epoch, block, header.flags, payload);
                }
                let Completion { lanes, flags, .. } = &self.completions[state.completion as usize];
                if lanes != payload || *flags != header.flags {
                    self.fail(|| format!("the result of block {block} has changed"));
                }
            }
            Kind::Pending => {
                let held = payload.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
                if held != state.seen || state.seen == members {
                    self.fail(|| format!("block {block} is answered PENDING {held:#b}"));
                }
            }
            Kind::Mismatch => self.fail(|| format!("block {block} is answered MISMATCH")),
            _ => {}
        }
    }

    /// What a slot holds of a finished block is its sum.
    fn check_slot(&mut self, epoch: usize, sums: &Sums, header: &Header) {
        let Some(slot) = sums.slot(header.job, header.block) else { return };
        if slot.epoch != header.epoch {
            return;
        }
        let state = *self.epochs[epoch].block(slot.block);
        if slot.seen != state.seen {
            let block = slot.block;
            return self.fail(|| format!("the slot of block {block} says {:#b}", slot.seen));
        }
        if state.completion != NONE {
            let Completion { lanes, .. } = &self.completions[state.completion as usize];
            let held = sums.lanes(header.job, header.block);
            if held.is_some_and(|held| !holds(held, lanes)) {
                let block = slot.block;
                self.fail(|| format!("the sum of block {block} has changed in its slot"));
            }
        }
    }
}

/// Whether a slot holds these bytes.
fn holds(slot: &[Chunk], bytes: &[u8]) -> bool {
    let lanes = slot.iter().flatten().map(|lane| lane.bits().to_le_bytes());
    bytes.as_chunks::<8>().0.iter().zip(lanes).all(|(bytes, lane)| *bytes == lane)
}
