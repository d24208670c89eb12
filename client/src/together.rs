//! Short calls over several aggregators: who waits for one drives all stripes itself.
//!
//! Each stripe has a thread of its own, which a long vector wants: two processors carry two
//! stripes. A short one is over before these threads have been woken, so here one thread looks
//! after all sockets in turn, and sleeps on all of them at once.
//!
//! Engines are taken in the order of their stripes, always, and whoever has some gives all of them
//! away before it waits for one in front: threads that drive all stripes and threads that drive one
//! cannot wait for each other in a circle.

use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use xdp_agg_protocol::worker::Call;

use crate::engine::{self, Engine, WATCHED};
use crate::error::Error;
use crate::shared::{self, NAP};
use crate::stripe::{Stripe, in_turn};
use crate::sys::Watch;

/// Most bytes of a call that is carried like this: of longer ones copying, encoding and decoding
/// take longer than waking threads, and are better shared.
pub(crate) const LONGEST: usize = 64 << 10;

/// Waits for a call at all aggregators, at most until then, and drives all calls meanwhile; what
/// ends comes into `calls`. True: all parts have.
pub(crate) fn drive(
    stripes: &[Stripe],
    sequence: u64,
    calls: &mut [Option<Call>],
    until: Instant,
) -> Result<bool, Error> {
    let mut all = Together::enter(stripes, calls);
    while !all.collect(sequence)? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        all.step(left.min(NAP));
    }
    Ok(true)
}

/// A thread in the foreground of all stripes.
struct Together<'a> {
    stripes: &'a [Stripe],
    /// All of them, in the order of the stripes, or none.
    engines: Vec<MutexGuard<'a, Engine>>,
    /// What has ended.
    calls: &'a mut [Option<Call>],
    watch: Watch,
}

impl<'a> Together<'a> {
    fn enter(stripes: &'a [Stripe], calls: &'a mut [Option<Call>]) -> Self {
        for stripe in stripes {
            stripe.shared.enter();
        }
        let mut engines = Vec::with_capacity(stripes.len());
        engines.extend(stripes.iter().map(|stripe| stripe.shared.lock()));
        Self { stripes, engines, calls, watch: Watch::default() }
    }

    /// Takes what has ended. True: all parts have.
    fn collect(&mut self, sequence: u64) -> Result<bool, Error> {
        let mut all = true;
        for (call, engine) in self.calls.iter_mut().zip(&mut self.engines) {
            if call.is_none() {
                *call = engine.machine.poll_call(sequence).transpose()?;
                all &= call.is_some();
            }
        }
        Ok(all)
    }

    /// One step of all engines, then a chance for those who want one.
    fn step(&mut self, mut patience: Duration) {
        let (mut busy, mut wanted) = (false, false);
        for index in in_turn(self.stripes) {
            let (stripe, engine) = (&self.stripes[index], &mut self.engines[index]);
            // The progress thread may have given way to this one in the middle of a step.
            wanted |= stripe.shared.nudge_if_needed(engine);
            patience = stripe.shared.keep_abreast(engine, patience);
            busy |= engine.advance();
            stripe.shared.publish(engine);
        }
        if !busy && !self.is_wanted() && !engine::receive_soon(&mut self.engines) {
            wanted |= self.rest(patience);
        }
        if wanted || self.is_wanted() {
            self.hand_over();
        }
    }

    fn is_wanted(&self) -> bool {
        self.stripes.iter().any(|stripe| stripe.shared.is_wanted())
    }

    /// Sleeps until something may have happened, if there is nothing to do. True: somebody rang for
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
            self.watch.extend(&engine.watch_for(stripe.shared.wake()));
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

    /// Lets others at the engines, and takes them again.
    fn hand_over(&mut self) {
        // The last one first: who waits for the first one wants the others, too.
        for stripe in self.stripes.iter().rev() {
            if let Some(engine) = self.engines.pop() {
                stripe.shared.give_way(engine);
            }
        }
        shared::wait_for_takers(|| self.is_wanted());
        // Who has all of them has its turn; who has one gives it away after a step, else the
        // engines in front would stand still meanwhile.
        for (index, stripe) in self.stripes.iter().enumerate() {
            let shared = &stripe.shared;
            self.engines.push(if index == 0 { shared.lock_again() } else { shared.lock() });
        }
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        let mut engines = std::mem::take(&mut self.engines).into_iter();
        for stripe in self.stripes {
            stripe.shared.leave(engines.next().unwrap_or_else(|| stripe.shared.lock()));
        }
    }
}
