//! The daemon of a [`World`], and what it sums.

use rand::Rng;
use xdp_agg_common::control::{AbortReason, Admitted, Join, Plan, Reply, Request};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

use super::world::{CHUNKS, SLOTS, Stage, World};

// The data path.
impl World {
    pub(super) fn sum(&mut self, mut packet: Vec<u8>) {
        if self.dead && !self.pinned {
            return;
        }
        let (header, payload) = packet.split_first_chunk::<HEADER_LEN>().expect("whole");
        let header = Header::parse(header).expect("ours");
        if header.epoch != self.epoch || header.cookie != self.cookie() {
            return;
        }
        if header.kind == Kind::Probe {
            let reply = Header { kind: Kind::ProbeReply, ..header };
            reply.emit(packet.first_chunk_mut().expect("whole"));
            self.packets.push((Some(header.rank), packet));
            return;
        }
        if self.stage != Stage::Running {
            return;
        }
        let pool = Pool::new(SLOTS).expect("a power of two");
        let (state, lanes) = &mut self.slots[pool.slot_of(header.block) as usize];
        let chunks = (payload.len() / 64) as u16;
        let Header { rank, epoch, tag, flags, reduction, block, kind, .. } = header;
        let asks = kind == Kind::Ask;
        let contribution = Contribution { rank, epoch, tag, chunks, flags, reduction, asks, block };
        let to = match state.contribute(pool, self.members, &contribution) {
            Verdict::Store { complete } => {
                *lanes = payload.to_vec();
                if complete { self.members } else { 0 }
            }
            Verdict::Add { complete } => {
                for (sum, lane) in lanes.as_chunks_mut().0.iter_mut().zip(payload.as_chunks().0) {
                    let total = u32::from_le_bytes(*sum).wrapping_add(u32::from_le_bytes(*lane));
                    *sum = total.to_le_bytes();
                }
                if complete { self.members } else { 0 }
            }
            Verdict::Resend => 1 << rank,
            Verdict::Pending => {
                let answer = Header { kind: Kind::Pending, ..header };
                answer.emit(packet.first_chunk_mut().expect("whole"));
                self.packets.push((Some(rank), packet));
                return;
            }
            Verdict::Stale => return,
            Verdict::Forward => panic!("a root has no parent"),
            Verdict::Reject(reason) => panic!("{reason:?}: {header:?}"),
        };
        for rank in (0..64_u16).filter(|rank| to & (1 << rank) != 0) {
            let mut answer = vec![0; HEADER_LEN];
            let fields = Header { kind: Kind::Result, rank, flags: state.flags, ..header };
            fields.emit(answer.first_chunk_mut().expect("whole"));
            answer.extend_from_slice(lanes);
            self.packets.push((Some(rank), answer));
        }
    }

    fn cookie(&self) -> u64 {
        0xabcd_0000 + u64::from(self.epoch)
    }
}

// The daemon.
impl World {
    fn say(&mut self, to: u64, reply: &Reply) {
        for rank in (0..64_u16).filter(|rank| to & self.connected & (1 << rank) != 0) {
            self.replies.push((rank, reply.clone()));
        }
    }

    /// Delivers the first reply of a random rank.
    pub(super) fn say_something(&mut self) -> bool {
        if self.replies.is_empty() {
            return false;
        }
        let rank = self.replies[self.rng.random_range(0..self.replies.len())].0;
        let first = self.replies.iter().position(|(to, _)| *to == rank).expect("there is one");
        let (_, reply) = self.replies.remove(first);
        let now = self.now;
        if let Some(machine) = &mut self.machines[usize::from(rank)] {
            machine.handle_reply(reply, now);
        }
        true
    }

    pub(super) fn on_request(&mut self, rank: u16, request: Request) {
        let bit = 1 << rank;
        if self.dead || self.connected & bit == 0 {
            return;
        }
        match request {
            Request::Join(join) => self.on_join(rank, join),
            Request::Offer(join) => {
                assert!(join.resume.is_some_and(|resume| resume.rings > 0), "it is on a ring");
                self.say(bit, &Reply::Done);
            }
            Request::Ready if self.stage == Stage::Probing => {
                self.ready |= bit;
                if self.ready == self.members {
                    self.stage = Stage::Running;
                    let go = Reply::Go { mode: ResultMode::Ports, group: None };
                    self.say(self.members, &go);
                    self.pause();
                }
            }
            Request::Progress(progress) => {
                if self.stage != Stage::Reforming {
                    assert!(self.joining != 0, "a progress that nobody asked for");
                }
                self.progress.insert(rank, progress);
                self.reform();
            }
            Request::Paused { next_sequence } => {
                self.paused.insert(rank, next_sequence);
                if self.paused.len() == self.members.count_ones() as usize {
                    let sequence = *self.paused.values().max().expect("not empty");
                    self.say(self.members, &Reply::RunTo { sequence });
                }
            }
            Request::Abort { reason, .. } => panic!("rank {rank} gave up: {reason}"),
            _ => {}
        }
    }

    fn on_join(&mut self, rank: u16, join: Join) {
        let bit = 1 << rank;
        let resume = join.resume.clone();
        self.joins.insert(rank, join);
        let Some(resume) = resume else {
            self.joining |= bit;
            match self.stage {
                Stage::Forming if self.joining.count_ones() as usize == self.machines.len() => {
                    self.members = self.joining;
                    self.joining = 0;
                    self.admit(None);
                }
                Stage::Running => self.pause(),
                _ => {}
            }
            return;
        };
        let same = resume.epoch == self.epoch && resume.cookie == self.cookie();
        let same = same && resume.rings == 0;
        if self.stage == Stage::Running && same {
            self.say(bit, &Reply::Resumed);
        } else if self.members & bit == 0 {
            self.say(bit, &Reply::Aborted(AbortReason::Expelled));
        } else {
            self.stage = Stage::Reforming;
            self.progress.insert(rank, resume.progress);
            self.reform();
        }
    }

    fn pause(&mut self) {
        if self.joining != 0 {
            self.paused.clear();
            self.progress.clear();
            self.say(self.members, &Reply::Pause { joining: vec![] });
        }
    }

    /// A new epoch, if all members have said what they have.
    fn reform(&mut self) {
        let all = (0..64_u16).filter(|rank| self.members & (1 << rank) != 0);
        let progress: Option<Vec<_>> =
            all.map(|rank| Some((rank, self.progress.get(&rank)?.clone()))).collect();
        let Some(progress) = progress else { return };
        let plan = Plan::new(&progress).expect("somebody can hand on each block");
        self.progress.clear();
        // Only where all have stopped at the same call may another rank begin with it.
        if self.stage == Stage::Running {
            assert!(plan.runs.is_empty());
            self.members |= std::mem::take(&mut self.joining);
        }
        self.paused.clear();
        self.admit(Some(plan));
    }

    fn admit(&mut self, plan: Option<Plan>) {
        self.epoch += 1;
        self.stage = Stage::Probing;
        self.ready = 0;
        // What an earlier epoch left in the slots must not matter.
        self.slots.resize(SLOTS as usize, (SlotState::default(), vec![]));
        let admitted = Admitted {
            job_id: 1,
            cookie: self.cookie(),
            epoch: self.epoch,
            members: self.members,
            chunks: CHUNKS,
            slots: SLOTS,
            data: "10.0.0.1:48864".parse().expect("an address"),
            single_packets: false,
            plan,
            ring: vec![
                "10.0.0.1:1".parse().expect("an address");
                self.members.count_ones() as usize
            ],
        };
        self.say(self.members, &Reply::Admitted(admitted));
    }

    /// Rank `rank`'s process is gone.
    pub(super) fn kill(&mut self, rank: u16) {
        self.machines[usize::from(rank)] = None;
        self.calls.retain(|(of, _)| *of != rank);
        // Results that only the dead rank had seen no longer count.
        self.outcomes.retain(|(_, of), _| *of != rank);
        self.drop_connection(rank);
        if self.members & (1 << rank) == 0 || self.dead {
            return;
        }
        self.members &= !(1 << rank);
        self.progress.remove(&rank);
        if self.stage == Stage::Reforming {
            self.reform();
        } else {
            self.stage = Stage::Reforming;
            self.progress.clear();
            let reform = Reply::Reform { lost: vec![rank], reason: "killed".into() };
            self.say(self.members, &reform);
        }
    }

    /// A new process of this rank.
    pub(super) fn rejoin(&mut self, rank: u16) {
        let machine = self.machine(rank, self.machines.len() as u16);
        self.machines[usize::from(rank)] = Some(machine);
    }

    pub(super) fn drop_connection(&mut self, rank: u16) {
        self.connected &= !(1 << rank);
        self.replies.retain(|(to, _)| *to != rank);
    }

    /// The control connection of a rank breaks.
    pub(super) fn cut(&mut self, rank: u16) {
        self.drop_connection(rank);
        let now = self.now;
        if let Some(machine) = &mut self.machines[usize::from(rank)] {
            machine.handle_disconnected("cut".into(), now);
        }
    }

    /// The daemon's process is gone; with `pinned`, its data path goes on.
    pub(super) fn kill_daemon(&mut self, pinned: bool) {
        self.dead = true;
        self.pinned = pinned;
        self.progress.clear();
        self.joins.clear();
        (0..self.machines.len() as u16).for_each(|rank| self.cut(rank));
        if !pinned {
            self.slots.clear();
            self.stage = Stage::Reforming;
            // A new daemon draws its own numbers.
            self.epoch += 7;
        }
    }

    pub(super) fn start_daemon(&mut self) {
        self.dead = false;
    }
}
