//! How far each member of a job is, and for whom the others wait.
//!
//! Blocks are begun in the order of their numbers, and block `b` lies in slot `b mod P`. So along
//! the slots, generations go down at one place: there is the newest block that anybody has. Each
//! member contributes in that order too: among the blocks in flight it has the first ones, up to
//! one that a search finds. Loss makes holes for the time of a repetition. A look may then be off
//! by the blocks behind a hole; the next one is not.
//!
//! Others wait for those members alone that lack the oldest unfinished block. A member that is
//! further on, and behind others all the same, may itself wait for that block: its window is full.
//!
//! A job that completes nothing is read as a whole instead of searched, so that nothing in it is
//! missed. Such a job has no other work for its locks. Where nothing at all has come since then,
//! nothing is read: slots change with contributions and deliveries alone, which are counted.

use std::collections::VecDeque;
use std::time::Duration;

use xdp_agg_common::maps::{JobConf, Phase};
use xdp_agg_common::slot::{Pool, SlotState};
use xdp_agg_common::wire::Reduction;

/// From when on a member is called late.
pub const LATE: Duration = Duration::from_millis(500);
/// Looks whose newest block is remembered: at five a second more than 13 minutes.
const MARKS_MAX: usize = 4096;
/// Slots of a job that are read as a whole at most.
const WHOLE_MAX: u32 = 4096;

/// How far a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The block that it has to contribute next.
    pub next: u64,
    /// Blocks behind the foremost member.
    pub behind: u64,
    /// How long others have been waiting for that block of it, the oldest unfinished one. Zero:
    /// nobody does.
    pub wait: Duration,
}

impl Standing {
    /// Whether others have waited for too long.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.wait >= LATE
    }
}

/// What a look at a job's slots has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Epoch of all that follows.
    pub epoch: u16,
    /// By rank; members of the data path alone.
    pub members: Vec<(u16, Standing)>,
    /// The parent in its tree, where there is one: as a member that has to deliver results.
    pub parent: Option<Standing>,
    /// Blocks that somebody has begun and that are not finished.
    pub in_use: u32,
}

/// What a job has done since the last look, by its counters. They are read before the slots, and
/// counted after those have changed. So a look never misses what its counters tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It has completed blocks.
    Busy,
    /// It has completed none.
    Quiet,
    /// Neither a contribution nor a result of a parent has been taken in.
    Still,
}

/// What is remembered of a job from one look to the next.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    epoch: u16,
    cookie: u64,
    /// When a block was first seen begun, and the newest one at that time: rising.
    marks: VecDeque<(Duration, u64)>,
    /// What the slots have said, if they were looked at while nothing was completed.
    found: Option<Found>,
}

/// What the slots of a job say.
#[derive(Clone, Debug, Default)]
struct Found {
    /// The block after the newest one.
    end: u64,
    /// The block that each member has to contribute next.
    nexts: Vec<(u16, u64)>,
    /// The block whose result the parent has to deliver next.
    settled: Option<u64>,
}

impl Lag {
    /// Looks at a job's slots at the time `now`, of a clock that does not go back.
    pub fn look(
        &mut self,
        now: Duration,
        conf: &JobConf,
        pace: Pace,
        slot: &mut dyn FnMut(u32) -> SlotState,
    ) -> Sight {
        if (self.epoch, self.cookie) != (conf.epoch, conf.cookie) {
            *self = Self { epoch: conf.epoch, cookie: conf.cookie, ..Self::default() };
        }
        let mut sight = Sight { epoch: conf.epoch, ..Sight::default() };
        let (Some(pool), true) = (Pool::of(conf), conf.phase == Phase::Running as u16) else {
            self.found = None;
            return sight;
        };
        let known = self.found.take().filter(|_| pace == Pace::Still);
        let found = known.unwrap_or_else(|| {
            let read = vec![None; conf.slots as usize];
            Slots { conf, pool, slot, read }.find(pace != Pace::Busy)
        });
        let Found { end, nexts, settled } = &found;
        let end = *end;
        if self.marks.back().is_none_or(|(_, newest)| *newest < end) {
            self.marks.push_back((now, end));
        }
        let complete = nexts.iter().map(|(_, next)| *next).min().unwrap_or(end);
        // What some member lacks is not the parent's to deliver.
        let parent = settled.map(|settled| settled.min(complete));
        let oldest = parent.unwrap_or(complete);
        let since = || self.marks.iter().find(|(_, end)| *end > oldest).map(|(at, _)| *at);
        let age = (oldest < end).then(since).flatten();
        let age = age.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let standing = |next: u64, foremost: u64, owes: bool| {
            let wait = if owes && next == oldest { age } else { Duration::ZERO };
            Standing { next, behind: foremost - next, wait }
        };
        sight.members =
            nexts.iter().map(|(rank, next)| (*rank, standing(*next, end, *next < end))).collect();
        sight.parent = parent.map(|next| standing(next, complete, next < complete));
        if parent.is_some_and(|next| next < complete) {
            // Whatever members lack, their results come from the parent in order.
            sight.members.iter_mut().for_each(|(_, member)| member.wait = Duration::ZERO);
        }
        sight.in_use = u32::try_from(end - oldest).unwrap_or(u32::MAX);
        self.forget(oldest);
        // A search while contributions come in may have been misled by a hole.
        self.found = (pace != Pace::Busy).then_some(found);
        sight
    }

    /// Marks that no wait can need any more, and every second one if there are too many: waits then
    /// seem shorter than they are, by one look.
    fn forget(&mut self, oldest: u64) {
        while self.marks.len() > 1 && self.marks.front().is_some_and(|(_, end)| *end <= oldest) {
            self.marks.pop_front();
        }
        if self.marks.len() > MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                !keep
            });
        }
    }
}

/// A job's slots, each of which is read once a look.
struct Slots<'a> {
    conf: &'a JobConf,
    pool: Pool,
    slot: &'a mut dyn FnMut(u32) -> SlotState,
    read: Vec<Option<SlotState>>,
}

impl Slots<'_> {
    /// All that they say. `quiet`: nothing is being completed.
    fn find(&mut self, quiet: bool) -> Found {
        let (conf, pool) = (self.conf, self.pool);
        let whole = quiet && conf.slots <= WHOLE_MAX;
        let end = if whole { self.end_of_all() } else { self.end_by_search() };
        // Blocks before this one are finished: see the pool's rule.
        let first = end.saturating_sub(u64::from(pool.window()));
        let mut next_of = |has: &dyn Fn(&SlotState) -> bool| {
            if whole { self.first_without(first..end, has) } else { self.search(first..end, has) }
        };
        let members = (0..conf.workers).filter(|rank| conf.members >> rank & 1 == 1);
        let has = |state: &SlotState, rank: u16| {
            state.reduction == Reduction::Copy as u8 || state.seen >> rank & 1 == 1
        };
        let nexts = members.map(|rank| (rank, next_of(&|state| has(state, rank)))).collect();
        let settled = pool.forwards().then(|| next_of(&|state| state.settled != 0));
        Found { end, nexts, settled }
    }

    fn at(&mut self, index: u32) -> SlotState {
        let place = &mut self.read[index as usize];
        *place.get_or_insert_with(|| (self.slot)(index))
    }

    /// The block of a slot in this epoch.
    fn block_at(&mut self, index: u32) -> Option<u64> {
        let state = self.at(index);
        (state.epoch == self.conf.epoch).then_some(state.block)
    }

    /// The block after the newest one.
    fn end_of_all(&mut self) -> u64 {
        let blocks = (0..self.pool.slots()).filter_map(|index| self.block_at(index));
        blocks.max().map_or(0, |newest| newest + 1)
    }

    /// The same, by halving: slots up to the newest block are of the first slot's generation.
    fn end_by_search(&mut self) -> u64 {
        let Some(first) = self.block_at(0) else {
            return 0;
        };
        let (mut least, mut most) = (0, self.pool.slots());
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            let same = self.block_at(middle).is_some_and(|block| block > first);
            if same { least = middle } else { most = middle }
        }
        first + u64::from(least) + 1
    }

    /// Whether a block of this epoch is done with as `has` says, or gone from its slot.
    fn has(&mut self, block: u64, has: &dyn Fn(&SlotState) -> bool) -> bool {
        let state = self.at(self.pool.slot_of(block));
        state.epoch == self.conf.epoch
            && (state.block > block || state.block == block && has(&state))
    }

    fn first_without(
        &mut self,
        mut blocks: std::ops::Range<u64>,
        has: &dyn Fn(&SlotState) -> bool,
    ) -> u64 {
        let end = blocks.end;
        blocks.find(|block| !self.has(*block, has)).unwrap_or(end)
    }

    fn search(&mut self, blocks: std::ops::Range<u64>, has: &dyn Fn(&SlotState) -> bool) -> u64 {
        let (mut least, mut most) = (blocks.start, blocks.end);
        while least < most {
            let middle = least + (most - least) / 2;
            if self.has(middle, has) { least = middle + 1 } else { most = middle }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 16;

    fn conf() -> JobConf {
        let phase = Phase::Running as u16;
        JobConf { members: 0b1011, workers: 4, slots: SLOTS, epoch: 3, phase, ..JobConf::default() }
    }

    /// Slots as they are when rank 0, 1, 3 have contributed to all blocks below these.
    fn slots(ends: [u64; 3]) -> Vec<SlotState> {
        let newest = ends.into_iter().max().expect("there are three");
        let mut slots = vec![SlotState::default(); SLOTS as usize];
        for block in 0..newest {
            let bits = [(0, ends[0]), (1, ends[1]), (3, ends[2])];
            let seen = bits.iter().filter(|(_, end)| block < *end).fold(0, |b, (r, _)| b | 1 << r);
            slots[(block % u64::from(SLOTS)) as usize] =
                SlotState { block, seen, epoch: 3, ..SlotState::default() };
        }
        slots
    }

    fn look(lag: &mut Lag, ms: u64, pace: Pace, ends: [u64; 3]) -> (Sight, usize) {
        let (slots, mut reads) = (slots(ends), 0);
        let sight = lag.look(Duration::from_millis(ms), &conf(), pace, &mut |index| {
            reads += 1;
            slots[index as usize]
        });
        (sight, reads)
    }

    fn waits(sight: &Sight) -> Vec<(u16, u64, u64, u64)> {
        let one =
            |(rank, s): &(u16, Standing)| (*rank, s.next, s.behind, s.wait.as_millis() as u64);
        sight.members.iter().map(one).collect()
    }

    #[test]
    fn a_search_sees_what_a_whole_look_sees() {
        for newest in 1..70_u64 {
            for behind in 0..=newest.min(u64::from(SLOTS / 2)) {
                let ends = [newest, newest - behind, newest - behind / 2];
                let (searched, _) = look(&mut Lag::default(), 0, Pace::Busy, ends);
                let (whole, _) = look(&mut Lag::default(), 0, Pace::Quiet, ends);
                assert_eq!(searched, whole, "{ends:?}");
                let nexts = whole.members.iter().map(|(_, standing)| standing.next);
                assert_eq!(nexts.collect::<Vec<_>>(), ends);
                assert_eq!(u64::from(whole.in_use), behind);
            }
        }
    }

    #[test]
    fn a_search_reads_few_slots() {
        let conf = JobConf { slots: 4096, members: 3, workers: 2, ..conf() };
        let mut reads = 0;
        let sight = Lag::default().look(Duration::ZERO, &conf, Pace::Busy, &mut |index| {
            reads += 1;
            let block = if index < 1000 { 4096 + u64::from(index) } else { index.into() };
            let seen = if block < 4500 { 3 } else { 1 };
            SlotState { block, seen, epoch: 3, ..SlotState::default() }
        });
        let nexts: Vec<_> = sight.members.iter().map(|(_, standing)| standing.next).collect();
        assert_eq!((nexts, sight.in_use), (vec![5096, 4500], 596));
        assert!(reads < 40, "{reads}");
    }

    #[test]
    fn who_lacks_a_block_that_others_have_keeps_them_waiting() {
        let mut lag = Lag::default();
        assert_eq!(
            waits(&look(&mut lag, 0, Pace::Quiet, [0; 3]).0),
            [(0, 0, 0, 0), (1, 0, 0, 0), (3, 0, 0, 0)]
        );
        // Rank 3 stops after two blocks, the others go on to the end of their window.
        look(&mut lag, 200, Pace::Busy, [4, 3, 2]);
        let (sight, _) = look(&mut lag, 400, Pace::Quiet, [10, 9, 2]);
        assert_eq!(waits(&sight), [(0, 10, 0, 0), (1, 9, 1, 0), (3, 2, 8, 200)]);
        // One of the others has a smaller window: it waits, as the other one does.
        let (sight, _) = look(&mut lag, 800, Pace::Quiet, [10, 6, 2]);
        assert_eq!(waits(&sight), [(0, 10, 0, 0), (1, 6, 4, 0), (3, 2, 8, 600)]);
        let late: Vec<_> = sight.members.iter().filter(|(_, s)| s.is_late()).collect();
        assert_eq!(late.len(), 1);
        // It goes on: slow, and later blocks have waited for less time.
        let (sight, _) = look(&mut lag, 1000, Pace::Busy, [12, 12, 5]);
        assert_eq!(waits(&sight)[2], (3, 5, 7, 600));
        let (sight, _) = look(&mut lag, 1200, Pace::Busy, [12, 12, 12]);
        assert_eq!(waits(&sight)[2], (3, 12, 0, 0));
        assert_eq!(sight.in_use, 0);
    }

    #[test]
    fn where_nothing_has_come_nothing_is_read_and_waits_grow() {
        let mut lag = Lag::default();
        let (_, reads) = look(&mut lag, 0, Pace::Still, [6, 6, 2]);
        assert_eq!(reads, SLOTS as usize, "nothing is known yet");
        for ms in [200, 400, 600] {
            let (sight, reads) = look(&mut lag, ms, Pace::Still, [6, 6, 2]);
            assert_eq!((waits(&sight)[2], sight.in_use, reads), ((3, 2, 4, ms), 4, 0));
        }
        let (sight, reads) = look(&mut lag, 800, Pace::Quiet, [7, 6, 2]);
        assert_eq!((waits(&sight)[0], reads), ((0, 7, 0, 0), SLOTS as usize));
        // What a search has found is not relied on.
        look(&mut lag, 1000, Pace::Busy, [7, 7, 7]);
        assert_eq!(look(&mut lag, 1200, Pace::Still, [7, 7, 7]).1, SLOTS as usize);
        // Another epoch's slots are other ones.
        let next = JobConf { epoch: 4, ..conf() };
        let mut reads = 0;
        let mut count = |_| {
            reads += 1;
            SlotState::default()
        };
        let sight = lag.look(Duration::from_secs(2), &next, Pace::Still, &mut count);
        assert_eq!((sight.in_use, reads), (0, SLOTS as usize));
    }

    #[test]
    fn an_idle_job_has_nobody_late() {
        let mut lag = Lag::default();
        for ms in (0..60_000).step_by(200) {
            let (sight, _) = look(&mut lag, ms, Pace::Quiet, [37; 3]);
            assert!(sight.members.iter().all(|(_, standing)| standing.wait.is_zero()));
        }
        assert!(lag.marks.len() <= 2);
    }

    #[test]
    fn another_epoch_begins_anew() {
        let mut lag = Lag::default();
        look(&mut lag, 0, Pace::Quiet, [5, 5, 2]);
        let (sight, _) = look(&mut lag, 900, Pace::Quiet, [5, 5, 2]);
        assert!(sight.members[2].1.is_late());
        let next = JobConf { epoch: 4, ..conf() };
        let old = slots([5, 5, 2]);
        let sight =
            lag.look(Duration::from_secs(1), &next, Pace::Quiet, &mut |index| old[index as usize]);
        assert!(sight.members.iter().all(|(_, standing)| *standing == Standing::default()));
        assert_eq!((sight.epoch, sight.in_use), (4, 0));
    }

    #[test]
    fn a_copy_is_owed_by_nobody() {
        let mut slots = slots([6, 6, 6]);
        slots[6] = SlotState {
            block: 6,
            seen: 1,
            epoch: 3,
            reduction: Reduction::Copy as u8,
            ..SlotState::default()
        };
        for pace in [Pace::Busy, Pace::Quiet, Pace::Still] {
            let sight = Lag::default()
                .look(Duration::ZERO, &conf(), pace, &mut |index| slots[index as usize]);
            assert!(sight.members.iter().all(|(_, standing)| standing.next == 7), "{sight:?}");
        }
    }

    #[test]
    fn a_parent_owes_what_is_complete_here_and_not_settled() {
        let conf = JobConf { forwards: 1, ..conf() };
        let mut slots = slots([8, 8, 6]);
        for slot in &mut slots[..4] {
            slot.settled = 1;
        }
        let mut lag = Lag::default();
        for (ms, wait) in [(0, 0), (700, 700)] {
            let sight = lag.look(Duration::from_millis(ms), &conf, Pace::Quiet, &mut |index| {
                slots[index as usize]
            });
            let parent = sight.parent.expect("it forwards");
            let wait = Duration::from_millis(wait);
            assert_eq!(parent, Standing { next: 4, behind: 2, wait });
            assert_eq!((sight.members[2].1.next, sight.in_use), (6, 4));
        }
    }

    #[test]
    fn a_job_that_does_not_run_shows_nothing() {
        let conf = JobConf { phase: Phase::Probing as u16, ..conf() };
        let sight = Lag::default()
            .look(Duration::ZERO, &conf, Pace::Quiet, &mut |_| panic!("nothing is to be read"));
        assert_eq!(sight, Sight { epoch: 3, ..Sight::default() });
    }
}
