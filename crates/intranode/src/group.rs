//! The processes of a job on this host.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::segment::Segment;
use crate::watch::Watch;
use crate::{Error, Options, layout, rendezvous};

/// The processes of a job on this host, and their shared segment. Dropping it (and what was made of
/// it) is leaving in good order.
#[derive(Debug)]
pub struct Group {
    core: Arc<Core>,
    /// Collectives of one process take turns.
    pub(crate) turn: Mutex<()>,
    /// Areas for collectives that were opened.
    pub(crate) areas: AtomicU64,
    watch: Option<Watch>,
}

impl Group {
    /// Meets the other local processes and shares a segment with them. Blocks until all are there.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NameInUse`], [`Error::Mismatch`], [`Error::NoSpace`],
    /// [`Error::Deadline`], [`Error::PeerLost`], [`Error::System`]. What local rank 0 knows of, all
    /// are told.
    pub fn join(options: &Options) -> Result<Arc<Self>, Error> {
        Self::join_while(options, &|| Ok(()))
    }

    /// Makes another group of the processes of this one. It does not wait for a process that has
    /// ended, or has left this group.
    ///
    /// # Errors
    /// As [`Self::join`], and [`Error::PeerLeft`].
    pub fn join_again(&self, options: &Options) -> Result<Arc<Self>, Error> {
        Self::join_while(options, &|| self.check_all_here())
    }

    fn join_while(
        options: &Options,
        goes_on: &dyn Fn() -> Result<(), Error>,
    ) -> Result<Arc<Self>, Error> {
        options.check()?;
        let start = Instant::now();
        let (core, watch) = if options.local_size == 1 {
            let segment = Segment::anonymous(options.mapped())?;
            let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
            let own = segment.word(layout::Slot::of(0).pid());
            own.store(pid, Ordering::Relaxed);
            let bells = vec![rendezvous::bell()?];
            (Arc::new(Core::new(segment, options.clone(), bells)), None)
        } else {
            let formed = match options.local_rank {
                0 => rendezvous::lead(options, goes_on)?,
                _ => rendezvous::join(options, goes_on)?,
            };
            let core = Arc::new(Core::new(formed.segment, options.clone(), formed.bells));
            let watch = Watch::start(&core, formed.connections, formed.listener)?;
            (core, Some(watch))
        };
        tracing::info!(
            job = options.job,
            local_rank = options.local_rank,
            local_size = options.local_size,
            bytes = core.segment.len(),
            backing = ?options.backing,
            took = ?start.elapsed(),
            "sharing a segment with the processes of this host"
        );
        Ok(Arc::new(Self { core, turn: Mutex::new(()), areas: AtomicU64::new(0), watch }))
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// This process among those of the host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.core.rank
    }

    /// Processes of the group.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.core.size
    }

    /// Bytes of the segment that calls can have.
    #[must_use]
    pub fn room(&self) -> usize {
        self.core.arena.capacity()
    }

    /// Bytes of the segment that are set apart for buffers and results that are read in place. 0:
    /// none are, and they take of the calls'.
    #[must_use]
    pub fn room_for_buffers(&self) -> usize {
        if self.core.options.buffers == 0 { 0 } else { self.core.buffers().capacity() }
    }

    /// Leaves in good order, as the drop does: this process contributes nothing more, and what it
    /// has done stands. A process that still needs more of it gets [`Error::PeerLeft`].
    pub fn leave(&self) {
        self.core.leave();
    }

    /// Whether all processes are there and well.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub fn check(&self) -> Result<(), Error> {
        self.core.check()
    }

    /// That no process has ended or left.
    fn check_all_here(&self) -> Result<(), Error> {
        self.check()?;
        match self.core.left() {
            0 => Ok(()),
            left => Err(Error::PeerLeft { local_rank: left.trailing_zeros() as usize }),
        }
    }

    /// Tries until there is room.
    pub(crate) fn when_there_is_room<R>(
        &self,
        attempt: impl Fn() -> Result<R, Error>,
    ) -> Result<R, Error> {
        let until = crate::options::until(self.core.options.wait_within);
        loop {
            match attempt() {
                Err(Error::Busy { .. }) if Instant::now() < until => {
                    // A process that frees a record rings; it may have been just before.
                    self.core.sleep(Duration::from_millis(10), || false);
                }
                done => return done,
            }
        }
    }

    /// Waits until all processes have come here.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::PeerLeft`], [`Error::Deadline`].
    pub fn barrier(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.core.pass(self.core.arrive())
    }

    /// Waits until all processes have come here; whether all have brought the same number.
    ///
    /// # Errors
    /// As [`Self::barrier`].
    pub fn all_alike(&self, number: u64) -> Result<bool, Error> {
        let Core { segment, rank, size, .. } = &*self.core;
        let of = |rank: usize| segment.counter(layout::Slot::of(rank).compared());
        of(*rank).store(number, Ordering::Release);
        self.barrier()?;
        let alike = (0..*size).all(|rank| of(rank).load(Ordering::Acquire) == number);
        // Nobody brings another number before all have read this one.
        self.barrier()?;
        Ok(alike)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Said before the connections close, so that it is not taken for a death.
        self.core.leave();
        drop(self.watch.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has left is not waited for when a group's processes make another group.
    #[test]
    fn another_group_waits_for_nobody_that_has_left() {
        for waiting in [0, 1] {
            let join = |local_rank, what: &str| {
                let job = format!("{what} {waiting} {:?}", rustix::process::getpid());
                Options { run: what.into(), ..Options::new(job, local_rank, 2) }
            };
            std::thread::scope(|scope| {
                let leaving = scope.spawn(move || Group::join(&join(1 - waiting, "one")));
                let group = Group::join(&join(waiting, "one")).expect("both come");
                drop(leaving.join().expect("no panic").expect("both come"));
                let start = Instant::now();
                let error = group.join_again(&join(waiting, "two")).expect_err("one has left");
                assert!(matches!(error, Error::PeerLeft { local_rank } if local_rank != waiting));
                assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            });
        }
    }

    /// What each of three processes brings, one after the other: all know whether it is the same.
    #[test]
    fn processes_compare_their_numbers() {
        let file = crate::segment::create(&crate::Backing::Memory, 1 << 20).expect("memory");
        let all = [[5, 6, 7, 7, 0], [5, 5, 7, 8, 0], [5, 6, 7, 9, 0]];
        std::thread::scope(|scope| {
            for (rank, numbers) in all.into_iter().enumerate() {
                let segment = Segment::map(&file, 1 << 20).expect("a mapping");
                let options = Options::new("unit", rank, all.len());
                let core = Arc::new(Core::new(segment, options, Vec::new()));
                let (turn, areas) = (Mutex::new(()), AtomicU64::new(0));
                let group = Group { core, turn, areas, watch: None };
                scope.spawn(move || {
                    let alike = numbers.map(|number| group.all_alike(number).expect("all come"));
                    assert_eq!(alike, [true, false, true, false, true], "{rank}");
                });
            }
        });
    }
}
