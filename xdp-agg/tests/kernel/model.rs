//! What the kernel program should do, by the functions of `xdp-agg-common` on plain memory.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use xdp_agg::engine::JobSetup;
use xdp_agg_common::admission::{Request, Source, check_job, check_member};
use xdp_agg_common::lanes::{self, Chunk, Lane};
use xdp_agg_common::maps::{JobConf, JobCounters, Member, Phase, Reject};
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict};
use xdp_agg_common::wire::{Header, Kind, Reduction};

/// What goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing; the packet is gone.
    Nothing,
    /// Nothing; the packet was counted, and has this payload now, which is not sent. Where lanes
    /// are compared, the packet's lanes change, whether it goes out or not.
    Counted(Vec<u8>),
    /// Header and payload, back to the sender.
    ToSender(Header, Vec<u8>),
    /// Header (without a rank) and payload, to all members.
    ToAll(Header, Vec<u8>),
}

/// One running job.
pub(crate) struct Model {
    job: u16,
    conf: JobConf,
    members: Vec<Member>,
    pool: Pool,
    slots: HashMap<u32, (SlotState, Vec<Chunk>)>,
    pub(crate) counters: JobCounters,
    pub(crate) unattributed: JobCounters,
}

impl Model {
    pub(crate) fn new(job: &JobSetup) -> Self {
        let member = |at: &SocketAddrV4| Member {
            addr: u32::from(*at.ip()),
            port: at.port(),
            ..Member::default()
        };
        Self {
            job: job.job_id,
            conf: JobConf { phase: Phase::Running as u16, ..job.conf },
            members: job.members.values().map(member).collect(),
            pool: Pool::new(job.conf.slots).expect("a power of two"),
            slots: HashMap::new(),
            counters: JobCounters::default(),
            unattributed: JobCounters::default(),
        }
    }

    /// State and lanes of the slot that a block falls into.
    pub(crate) fn slot(&self, block: u64) -> (SlotState, Vec<Chunk>) {
        let index = self.pool.slot_of(block);
        self.slots.get(&index).cloned().unwrap_or_else(|| (SlotState::default(), Vec::new()))
    }

    /// A packet to the data port, already read.
    pub(crate) fn receive(
        &mut self,
        from: SocketAddrV4,
        header: &Header,
        payload: &[u8],
    ) -> Reaction {
        let source = Source { addr: u32::from(*from.ip()), port: from.port() };
        if header.job != self.job {
            self.unattributed.rejects[Reject::Job as usize] += 1;
            return Reaction::Nothing;
        }
        let admitted = check_job(&self.conf, header).and_then(|()| {
            let member = &self.members[usize::from(header.rank)];
            check_member(&self.conf, member, header, source, payload.len() as u16)
        });
        match admitted {
            Err(reason) => {
                self.counters.rejects[reason as usize] += 1;
                Reaction::Nothing
            }
            Ok(Request::Probe) => {
                self.counters.probes += 1;
                Reaction::ToSender(
                    Header { kind: Kind::ProbeReply, flags: 0, ..*header },
                    payload.into(),
                )
            }
            Ok(Request::Contribute(c)) => self.contribute(header, &c, payload),
        }
    }

    fn contribute(&mut self, header: &Header, c: &Contribution, payload: &[u8]) -> Reaction {
        let (state, slot) = self.slots.entry(self.pool.slot_of(c.block)).or_default();
        let verdict = state.contribute(self.pool, self.conf.members, c);
        let mut packet = chunks_of(payload);
        slot.resize(slot.len().max(packet.len()), Chunk::default());
        let counters = &mut self.counters;
        let complete = match verdict {
            Verdict::Store { complete } => {
                slot.iter_mut().zip(&packet).for_each(|(s, p)| lanes::store(s, p));
                complete
            }
            Verdict::Add { complete } => {
                for (slot, packet) in slot.iter_mut().zip(&mut packet) {
                    *slot = combined(c.reduction, slot, packet);
                    if complete || c.reduction != Reduction::Add {
                        *packet = *slot;
                    }
                }
                complete
            }
            Verdict::Resend => {
                counters.duplicates += u64::from(!c.asks);
                counters.resends += 1;
                counters.copies += 1;
                let header = Header { kind: Kind::Result, flags: state.flags, ..*header };
                return Reaction::ToSender(header, bytes_of(&slot[..packet.len()]));
            }
            Verdict::Pending => {
                counters.duplicates += u64::from(!c.asks);
                counters.pendings += 1;
                let header = Header { kind: Kind::Pending, flags: 0, ..*header };
                let seen = if c.asks { 0 } else { state.seen };
                return Reaction::ToSender(header, word(seen));
            }
            Verdict::Forward => panic!("a root has no parent"),
            Verdict::Stale => {
                counters.stale += 1;
                return Reaction::Nothing;
            }
            Verdict::Reject(reason) => {
                counters.rejects[reason as usize] += 1;
                if reason != Reject::Mismatch {
                    return Reaction::Nothing;
                }
                let header = Header { kind: Kind::Mismatch, flags: 0, ..*header };
                return Reaction::ToSender(header, word(state.tag.into()));
            }
        };
        counters.contributions += 1;
        if !complete {
            return Reaction::Counted(bytes_of(&packet));
        }
        counters.blocks += 1;
        Reaction::ToAll(
            Header { kind: Kind::Result, flags: state.flags, rank: 0, ..*header },
            bytes_of(&packet),
        )
    }
}

/// Lane by lane, not as the program does it.
fn combined(reduction: Reduction, slot: &Chunk, packet: &Chunk) -> Chunk {
    let (bits, pick): (u32, fn(u64, u64) -> u64) = match reduction {
        Reduction::Add => (64, u64::wrapping_add),
        Reduction::Min16 => (16, u64::min),
        Reduction::Min32 => (32, u64::min),
        Reduction::Min64 => (64, u64::min),
        Reduction::Max16 => (16, u64::max),
        Reduction::Max32 => (32, u64::max),
        Reduction::Max64 => (64, u64::max),
        Reduction::Copy => panic!("a copy is combined with nothing"),
    };
    std::array::from_fn(|i| {
        let lane = |word: Lane, at: u32| word.bits() >> (at * bits) & u64::MAX >> (64 - bits);
        let lanes = (0..64 / bits).map(|at| (at, pick(lane(slot[i], at), lane(packet[i], at))));
        Lane::new(lanes.fold(0, |word, (at, lane)| word | lane << (at * bits)))
    })
}

pub(crate) fn chunks_of(bytes: &[u8]) -> Vec<Chunk> {
    let lane = |bytes: &[u8; 8]| Lane::new(u64::from_le_bytes(*bytes));
    bytes
        .as_chunks::<64>()
        .0
        .iter()
        .map(|chunk| {
            let mut lanes = chunk.as_chunks::<8>().0.iter().map(lane);
            std::array::from_fn(|_| lanes.next().expect("64 bytes are eight lanes"))
        })
        .collect()
}

pub(crate) fn bytes_of(chunks: &[Chunk]) -> Vec<u8> {
    chunks.iter().flatten().flat_map(|lane| lane.bits().to_le_bytes()).collect()
}

fn word(word: u64) -> Vec<u8> {
    let mut chunk = vec![0; 64];
    chunk[..8].copy_from_slice(&word.to_le_bytes());
    chunk
}
