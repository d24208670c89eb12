//! The one loop that drives calls: of one stripe, or of all of them.
//!
//! Each stripe has a thread of its own, which a long vector wants: two processors carry two
//! stripes. A thread that waits for a long call drives one stripe after the other. A short call is
//! over before the other threads have been woken. So one thread looks after all sockets in turn,
//! and sleeps on all of them at once.
//!
//! Engines are always taken in the order of their stripes. A thread that holds some gives all of
//! them away before it waits for an earlier one. So threads that drive all stripes and threads that
//! drive one cannot wait for each other in a circle.

use std::slice;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use smallvec::{SmallVec, smallvec};

use super::engine::{self, Engine, WATCHED};
use super::shared::{NAP, Shared};
use super::sys::Watch;
use crate::error::Error;
use xdp_agg_protocol::worker::Call;

/// Most bytes of a call whose waiter drives all stripes. For longer ones copying, encoding and
/// decoding take longer than waking threads, and are better shared.
pub(crate) const LONGEST: usize = 64 << 10;
/// Attempts to hand an engine to a thread that wants it, before the next step.
const COURTESY: u32 = 20;
/// Longest wait for the daemon's word on which ranks are missing.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Waits for a call at these aggregators, at most until then, and drives all calls meanwhile. Parts
/// that end come into `calls`. True: all parts have ended.
pub(crate) fn drive<S: AsRef<Shared>>(
    stripes: &[S],
    sequence: u64,
    calls: &mut [Option<Call>],
    until: Instant,
) -> Result<bool, Error> {
    if calls.iter().all(Option::is_some) {
        return Ok(true);
    }
    let mut driver = Driver::enter(stripes);
    while !driver.collect(sequence, calls)? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        driver.step(left.min(NAP));
    }
    Ok(true)
}

/// The `deadline` of this call is over. Lets the daemon, or another process of this host, say which
/// ranks the oldest block waits for, and ends the membership.
pub(crate) fn give_up(shared: &Shared, sequence: u64, deadline: Duration) -> Error {
    let mut driver = Driver::enter(slice::from_ref(shared));
    let until = Instant::now() + LAST_WORD;
    let machine = &mut driver.engines[0].machine;
    let mut waits = machine.ask_for_missing() || machine.depends_on_fellows(sequence);
    while waits && Instant::now() < until {
        driver.step(NAP);
        let machine = &driver.engines[0].machine;
        waits = machine.failure().is_none() && machine.missing().is_none();
    }
    let machine = &mut driver.engines[0].machine;
    let error = machine.give_up(sequence, deadline);
    driver.engines[0].remove(sequence);
    error.into()
}

/// A thread that drives some stripes.
pub(super) struct Driver<'a, S: AsRef<Shared>> {
    stripes: &'a [S],
    /// All of them, in the order of the stripes, or none.
    engines: SmallVec<[MutexGuard<'a, Engine>; 1]>,
    /// It waits for a call, and is not the progress thread.
    foreground: bool,
    watch: Watch,
}

impl<'a> Driver<'a, Shared> {
    /// In the background, with one engine.
    pub(super) fn background(shared: &'a Shared, engine: MutexGuard<'a, Engine>) -> Self {
        let stripes = slice::from_ref(shared);
        Self { stripes, engines: smallvec![engine], foreground: false, watch: Watch::default() }
    }
}

impl<'a, S: AsRef<Shared>> Driver<'a, S> {
    /// In the foreground: the progress threads keep out of its way.
    fn enter(stripes: &'a [S]) -> Self {
        stripes.iter().for_each(|stripe| stripe.as_ref().enter());
        let engines = stripes.iter().map(|stripe| stripe.as_ref().lock()).collect();
        Self { stripes, engines, foreground: true, watch: Watch::default() }
    }

    /// Takes what has ended. True: all parts have.
    fn collect(&mut self, sequence: u64, calls: &mut [Option<Call>]) -> Result<bool, Error> {
        let mut all = true;
        for (call, engine) in calls.iter_mut().zip(&mut self.engines) {
            if call.is_none() {
                *call = engine.poll_call(sequence).transpose()?;
                all &= call.is_some();
            }
        }
        Ok(all)
    }

    /// One step of all engines, then a chance for threads that want one.
    pub(super) fn step(&mut self, mut patience: Duration) {
        let (mut busy, mut wanted) = (false, false);
        for index in in_turn(self.stripes) {
            let (shared, engine) = (self.stripes[index].as_ref(), &mut self.engines[index]);
            // The progress thread may have given way to this one in the middle of a step.
            wanted |= self.foreground && shared.nudge_if_needed(engine);
            patience = shared.keep_abreast(engine, patience);
            busy |= engine.advance();
            shared.publish(engine);
        }
        if !busy && !self.is_wanted() && !self.receive_soon() {
            wanted |= self.rest(patience);
        }
        if wanted || self.is_wanted() {
            self.hand_over();
        }
    }

    fn receive_soon(&mut self) -> bool {
        let stripes = self.stripes;
        engine::receive_soon(&mut self.engines, &|| is_wanted(stripes))
    }

    fn is_wanted(&self) -> bool {
        is_wanted(self.stripes)
    }

    /// Sleeps until something may have happened, if there is nothing to do. True: a thread rang for
    /// an engine.
    fn rest(&mut self, patience: Duration) -> bool {
        let mut busy = false;
        for engine in &mut self.engines {
            busy |= engine.arm();
        }
        let woken = !busy && self.sleep(patience);
        for engine in &self.engines {
            engine.disarm();
        }
        woken
    }

    fn sleep(&mut self, mut patience: Duration) -> bool {
        self.watch.clear();
        for (stripe, engine) in self.stripes.iter().zip(&self.engines) {
            patience = engine.patience(patience);
            self.watch.extend(&engine.watch_for(stripe.as_ref().wake()));
        }
        let slept = self.watch.wait(patience).map_err(Error::io("waiting for packets"));
        let mut woken = false;
        for (index, engine) in self.engines.iter_mut().enumerate() {
            let ready =
                |which: usize| slept.is_ok() && self.watch.is_ready(index * WATCHED + which);
            woken |= ready(0);
            engine.slept(slept.clone(), ready(1));
        }
        woken
    }

    /// Lets other threads at the engines, and takes them again.
    fn hand_over(&mut self) {
        // In reverse order: a thread that waits for the first engine will want the rest, too.
        for shared in self.stripes.iter().map(AsRef::as_ref).rev() {
            if let Some(engine) = self.engines.pop() {
                shared.give_way(engine);
            }
        }
        // A thread that rang for an engine may not have come to the lock yet.
        for _ in (0..COURTESY).take_while(|_| self.is_wanted()) {
            std::thread::yield_now();
        }
        // A thread that holds all engines keeps its turn. One that holds a single engine yields it
        // after a step; otherwise the earlier engines would stall.
        for (index, stripe) in self.stripes.iter().enumerate() {
            let shared = stripe.as_ref();
            self.engines.push(if index == 0 { shared.lock_again() } else { shared.lock() });
        }
    }
}

/// A thread wants an engine of these stripes.
fn is_wanted<S: AsRef<Shared>>(stripes: &[S]) -> bool {
    stripes.iter().any(|stripe| stripe.as_ref().is_wanted())
}

/// The order in which a worker serves these stripes, which are one or all of them.
pub(crate) fn in_turn<S: AsRef<Shared>>(stripes: &[S]) -> impl Iterator<Item = usize> + use<S> {
    let count = stripes.len();
    let first = stripes.first().map_or(0, |stripe| stripe.as_ref().first_served() % count);
    (first..count).chain(0..first)
}

impl<S: AsRef<Shared>> Drop for Driver<'_, S> {
    fn drop(&mut self) {
        if !self.foreground {
            return;
        }
        let mut engines = std::mem::take(&mut self.engines).into_iter();
        for shared in self.stripes.iter().map(AsRef::as_ref) {
            shared.leave(engines.next().unwrap_or_else(|| shared.lock()));
        }
    }
}
