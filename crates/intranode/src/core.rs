//! What all of a process's handles share: the segment, its lock, its barrier, the bells, and the
//! knowledge of which process is lost.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::arena::Arena;
use crate::held::{Alias, Reading};
use crate::layout::{self, Slot};
use crate::options::PAGES;
use crate::pages::PAGE;
use crate::protocol::{self, FUTEX, POLLS};
use crate::segment::Segment;
use crate::{Error, Options};

/// No sleep is longer: whatever a ring may miss (a process that died between advancing a counter
/// and ringing) is seen after this.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// Turns of spinning before a sleep where each process has a CPU to itself: some microseconds.
const SPINS: u32 = 4_000;

/// How a loss showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum How {
    /// Its connection ended.
    Closed = 1,
    /// Its process ended.
    Ended = 2,
}

impl How {
    fn text(code: u64) -> &'static str {
        match code {
            code if code == Self::Ended as u64 => "its process ended without leaving",
            _ => "its connection ended without leaving",
        }
    }
}

/// What all of a process's handles share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) segment: Segment,
    pub(crate) arena: Arena,
    /// Room apart for buffers, if there is any.
    apart: Option<Arena>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) options: Options,
    /// Bytes that this process is cut off from: see [`Segment::detach`].
    detached: Mutex<Vec<Range<usize>>>,
    /// The results that this process reads in place.
    pub(crate) reading: Mutex<Reading>,
    /// Memory of this process under which pages of the segment lie.
    aliases: Mutex<Vec<Alias>>,
    /// Each process's eventfd, by local rank.
    pub(crate) bells: Vec<OwnedFd>,
    spins: u32,
}

/// The segment's lock, held.
#[derive(Debug)]
pub(crate) struct Locked<'a>(&'a Core);

/// In the word of the lock: others sleep on it. Below it: local rank of the holder + 1.
const CONTENDED: u32 = 1 << 31;

impl Core {
    pub(crate) fn new(segment: Segment, options: Options, bells: Vec<OwnedFd>) -> Self {
        let (rank, size) = (options.local_rank, options.local_size);
        let calls = if options.buffers == 0 { segment.len() } else { options.segment };
        let arena = Arena::new(layout::ARENA, calls);
        let apart = calls.next_multiple_of(PAGES)..segment.len();
        let apart = (options.buffers > 0).then(|| Arena::new(apart.start, apart.end));
        let cpus = available_parallelism().map_or(1, |cpus| cpus.get());
        // With fewer CPUs than processes, a spinning process keeps the awaited one from running.
        let spins = if size <= cpus { SPINS } else { 0 };
        let (detached, reading, aliases) = Default::default();
        Self {
            segment,
            arena,
            apart,
            rank,
            size,
            options,
            detached,
            reading,
            aliases,
            bells,
            spins,
        }
    }

    /// Where buffers, and results that are read in place, have room.
    pub(crate) fn buffers(&self) -> &Arena {
        self.apart.as_ref().unwrap_or(&self.arena)
    }

    /// Bytes for buffers that are in use. The lock is held.
    pub(crate) fn used_by_buffers(&self) -> usize {
        let arena = self.buffers();
        arena.capacity() - arena.free_bytes(&self.segment)
    }

    /// There is no room for a buffer of `wanted` bytes, beside `used` ones.
    pub(crate) fn no_room(&self, wanted: usize, used: usize) -> Error {
        let room = if self.apart.is_some() { self.buffers().capacity() } else { 0 };
        let used = if self.apart.is_some() { used } else { 0 };
        let advised = (wanted.next_multiple_of(PAGE) + used).max(room + PAGE);
        Error::BufferRoom { wanted, room, used, advised: advised.next_multiple_of(1 << 20) }
    }

    /// Gives back what one of the two allocators gave. The lock is held.
    pub(crate) fn free(&self, offset: usize) {
        let apart = self.apart.as_ref().filter(|apart| apart.holds(offset));
        apart.unwrap_or(&self.arena).free(&self.segment, offset);
    }

    /// Bytes that this process is cut off from. No process may get them for something else, as the
    /// others may still look there for what this one had in them.
    pub(crate) fn detached(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process is cut off from some of these bytes.
    pub(crate) fn is_detached(&self, bytes: &Range<usize>) -> bool {
        self.detached().iter().any(|cut| cut.start < bytes.end && bytes.start < cut.end)
    }

    pub(crate) fn aliases(&self) -> MutexGuard<'_, Vec<Alias>> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where memory under which pages of the segment lie is in it.
    pub(crate) fn alias(&self, memory: *const u8, len: usize) -> Option<usize> {
        self.aliases().iter().find_map(|alias| alias.find(memory, len))
    }

    /// Says that `rank` is lost. Only the first loss counts.
    pub(crate) fn lose(&self, rank: usize, how: How) {
        let failure = (rank as u64 + 1) | (how as u64) << 32;
        let word = self.segment.counter(layout::FAILED);
        if word.compare_exchange(0, failure, AcqRel, Acquire).is_ok() {
            tracing::warn!(local_rank = rank, ?how, "a process of this host is lost");
        }
        self.ring_everyone();
        let round = self.segment.word(layout::BARRIER_ROUND);
        // Fails only on addresses that are not a futex.
        let _ = futex::wake(round, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Whether anybody is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        match self.segment.counter(layout::FAILED).load(Acquire) {
            0 => Ok(()),
            failure => {
                let local_rank = (failure as u32 - 1) as usize;
                let pid = self.pid(local_rank);
                Err(Error::PeerLost { local_rank, pid, how: How::text(failure >> 32) })
            }
        }
    }

    pub(crate) fn pid(&self, rank: usize) -> i32 {
        self.segment.word(Slot::of(rank).pid()).load(Relaxed).cast_signed()
    }

    /// This process was forked from the one whose handles these are.
    pub(crate) fn is_forked(&self) -> bool {
        self.segment.is_elsewhere()
    }

    /// How these processes do, as far as the system tells.
    pub(crate) fn describe(&self, ranks: &[usize]) -> String {
        let all: Vec<_> = ranks.iter().map(|rank| how_is(self.pid(*rank))).collect();
        all.join("; ")
    }

    /// Says that this process leaves in good order.
    pub(crate) fn leave(&self) {
        if self.is_forked() {
            return;
        }
        self.segment.counter(layout::LEFT).fetch_or(1 << self.rank, AcqRel);
        self.ring_everyone();
    }

    /// Bit set of the processes that left. Read before the counters of awaited processes: what they
    /// did before they left is seen then.
    pub(crate) fn left(&self) -> u64 {
        self.segment.counter(layout::LEFT).load(Acquire)
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.left() & 1 << rank != 0
    }

    /// After a counter was advanced: wakes all sleepers, in all processes.
    pub(crate) fn ring_sleepers(&self) {
        protocol::advanced::<AtomicU32>();
        for rank in 0..self.size {
            let asleep = self.segment.word(Slot::of(rank).asleep());
            self.ring(rank, protocol::sleepers(asleep));
        }
    }

    /// Wakes all, whatever they say: for what happens once.
    fn ring_everyone(&self) {
        protocol::advanced::<AtomicU32>();
        for rank in 0..self.size {
            self.ring(rank, POLLS | FUTEX);
        }
    }

    fn ring(&self, rank: usize, how: u32) {
        if how & FUTEX != 0 {
            let bell = self.segment.word(Slot::of(rank).bell());
            bell.fetch_add(1, Release);
            let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
        }
        if how & POLLS != 0
            && let Some(bell) = self.bells.get(rank)
        {
            // Fails when the count is full: then it has rung often enough.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    /// Sleeps until a ring, `timeout` or a nap is over, unless `ready` by then.
    pub(crate) fn sleep(&self, timeout: Duration, ready: impl FnOnce() -> bool) {
        let slot = Slot::of(self.rank);
        let bell = self.segment.word(slot.bell());
        let rung = bell.load(Acquire);
        protocol::fall_asleep(self.segment.word(slot.asleep()), FUTEX);
        if !ready() {
            nap(bell, rung, timeout);
        }
    }

    /// Waits on a word that others change with a futex wake of their own, until `ready`.
    pub(crate) fn wait_word(
        &self,
        what: &'static str,
        word: &AtomicU32,
        sleepers: &AtomicU32,
        ready: impl Fn(u32) -> bool,
        missing: impl Fn() -> Vec<usize>,
    ) -> Result<(), Error> {
        if self.spin(|| ready(word.load(Acquire))) {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            // Counted before the look: a process that changes the word looks afterwards whether to
            // wake. SeqCst on both sides, so that at least one sees what the other did.
            sleepers.fetch_add(1, SeqCst);
            let now = word.load(SeqCst);
            if !ready(now) {
                nap(word, now, NAP);
            }
            sleepers.fetch_sub(1, Relaxed);
            if ready(word.load(Acquire)) {
                return Ok(());
            }
            self.check_wait(what, start, &missing)?;
        }
    }

    fn check_wait(
        &self,
        what: &'static str,
        start: Instant,
        missing: impl Fn() -> Vec<usize>,
    ) -> Result<(), Error> {
        self.check()?;
        let left = self.left();
        let waiting_for = missing();
        if let Some(&local_rank) = waiting_for.iter().find(|&&rank| left & 1 << rank != 0) {
            return Err(Error::PeerLeft { local_rank });
        }
        let after = self.options.wait_within;
        if start.elapsed() > after {
            let known = self.describe(&waiting_for);
            return Err(Error::Deadline { what, after, waiting_for, known });
        }
        Ok(())
    }

    /// Wakes all that wait on a word with [`Self::wait_word`]. The word was stored with SeqCst
    /// before.
    pub(crate) fn wake_word(&self, word: &AtomicU32, sleepers: &AtomicU32) {
        if sleepers.load(SeqCst) != 0 {
            // Fails only on addresses that are not a futex.
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    fn spin(&self, ready: impl Fn() -> bool) -> bool {
        for _ in 0..self.spins {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        ready()
    }

    /// The round of the barrier to which this process comes next.
    pub(crate) fn next_round(&self) -> u32 {
        self.segment.word(Slot::of(self.rank).round()).load(Relaxed).wrapping_add(1)
    }

    /// Comes to the barrier; returns the round to wait for.
    pub(crate) fn arrive(&self) -> u32 {
        let round = self.next_round();
        self.segment.word(Slot::of(self.rank).round()).store(round, Release);
        let arrived = self.segment.word(layout::BARRIER_ARRIVED);
        // AcqRel: the last one has seen what all did before they came, and passes it on.
        if arrived.fetch_add(1, AcqRel) + 1 == self.size as u32 {
            arrived.store(0, Relaxed);
            let rounds = self.segment.word(layout::BARRIER_ROUND);
            rounds.store(round, SeqCst);
            self.wake_word(rounds, self.segment.word(layout::BARRIER_SLEEPERS));
        }
        round
    }

    /// Waits until all have come to the barrier's `round`.
    pub(crate) fn pass(&self, round: u32) -> Result<(), Error> {
        let reached = |at: u32| at.wrapping_sub(round).cast_signed() >= 0;
        let missing = || {
            let at = |rank: usize| self.segment.word(Slot::of(rank).round()).load(Acquire);
            (0..self.size).filter(|&rank| !reached(at(rank))).collect()
        };
        let rounds = self.segment.word(layout::BARRIER_ROUND);
        let sleepers = self.segment.word(layout::BARRIER_SLEEPERS);
        self.wait_word("a barrier", rounds, sleepers, reached, missing)
    }

    /// Takes the lock of allocator and records. A process that dies with it is a loss, and all give
    /// up.
    pub(crate) fn lock(&self) -> Result<Locked<'_>, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let word = self.segment.word(layout::LOCK);
        let own = self.rank as u32 + 1;
        if word.compare_exchange(0, own, Acquire, Relaxed).is_ok() {
            return Ok(Locked(self));
        }
        let start = Instant::now();
        loop {
            let held = word.load(Relaxed);
            // Marked as contended even if nobody else waits, because that cannot be told.
            if held == 0 {
                if word.compare_exchange(0, own | CONTENDED, Acquire, Relaxed).is_ok() {
                    return Ok(Locked(self));
                }
                continue;
            }
            let contended = held | CONTENDED;
            if held != contended
                && word.compare_exchange(held, contended, Relaxed, Relaxed).is_err()
            {
                continue;
            }
            nap(word, contended, NAP);
            let holder = || vec![((held & !CONTENDED) - 1) as usize];
            self.check_wait("the segment's lock", start, holder)?;
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let word = self.0.segment.word(layout::LOCK);
        if word.swap(0, Release) & CONTENDED != 0 {
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
    }
}

/// How a process does, in words.
fn how_is(pid: i32) -> String {
    // Its name, in parentheses, may be anything; the letter of its state follows.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    match state {
        None => format!("process {pid}"),
        Some('T' | 't') => format!("process {pid} is stopped (SIGSTOP, or a debugger)"),
        Some('Z' | 'X') => format!("process {pid} has ended"),
        Some(_) => format!("process {pid} is alive and has not come to it"),
    }
}

/// Sleeps until `word` is not `seen` any more or woken, at most a [`NAP`].
pub(crate) fn nap(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = timeout.min(NAP);
    let timeout = rustix::time::Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Whatever it returns (woken, changed before, timed out, interrupted): the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Two or more cores on memory of this process, as if each thread were a process.
    fn cores(size: usize) -> Vec<Arc<Core>> {
        let file = crate::segment::create(&crate::Backing::Memory, 1 << 20).expect("memory");
        (0..size)
            .map(|rank| {
                let segment = Segment::map(&file, 1 << 20).expect("a mapping");
                let mut options = Options::new("unit", rank, size);
                options.wait_within = Duration::from_millis(400);
                Arc::new(Core::new(segment, options, Vec::new()))
            })
            .collect()
    }

    #[test]
    fn the_lock_excludes() {
        let cores = cores(3);
        let threads: Vec<_> = cores
            .iter()
            .cloned()
            .map(|core| {
                std::thread::spawn(move || {
                    for _ in 0..2_000 {
                        let held = core.lock().expect("the lock");
                        let counter = core.segment.counter(layout::RECORDS);
                        // Not atomic as a whole: lost increments show a broken lock.
                        let seen = counter.load(Relaxed);
                        std::hint::spin_loop();
                        counter.store(seen + 1, Relaxed);
                        drop(held);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
        assert_eq!(cores[0].segment.counter(layout::RECORDS).load(Relaxed), 6_000);
    }

    #[test]
    fn a_barrier_ends_at_its_deadline_and_says_who_is_missing() {
        let cores = cores(3);
        let round = cores[1].arrive();
        let error = cores[1].pass(round).expect_err("nobody else comes");
        let Error::Deadline { waiting_for, .. } = error else { panic!("{error}") };
        assert_eq!(waiting_for, [0, 2]);
    }

    #[test]
    fn a_stopped_process_is_told_from_a_late_one() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let id = rustix::process::Pid::from_child(&child);
        let pid = id.as_raw_nonzero().get();
        assert!(how_is(pid).contains("is alive"), "{}", how_is(pid));
        rustix::process::kill_process(id, rustix::process::Signal::STOP).expect("it is there");
        let stopped = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            how_is(pid).contains("is stopped")
        });
        assert!(stopped, "{}", how_is(pid));
        child.kill().expect("it is there");
        child.wait().expect("it was killed");
        assert_eq!(how_is(pid), format!("process {pid}"));
    }

    #[test]
    fn a_loss_ends_waiting_for_lock_and_barrier() {
        let cores = cores(2);
        let held = cores[1].lock().expect("the lock");
        cores[0].lose(1, How::Ended);
        let error = cores[0].lock().expect_err("its holder is lost");
        assert!(matches!(error, Error::PeerLost { local_rank: 1, .. }), "{error}");
        let round = cores[0].arrive();
        let error = cores[0].pass(round).expect_err("one is lost");
        assert!(matches!(error, Error::PeerLost { local_rank: 1, .. }), "{error}");
        drop(held);
    }

    #[test]
    fn one_who_left_is_not_waited_for() {
        let cores = cores(2);
        cores[1].leave();
        let round = cores[0].arrive();
        assert_eq!(cores[0].pass(round), Err(Error::PeerLeft { local_rank: 1 }));
    }
}
