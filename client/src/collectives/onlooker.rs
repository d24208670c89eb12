//! What the daemon knows of a worker that a call among the workers waits for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use xdp_agg_common::control::Standing;
use xdp_agg_mesh::Onlooker;
use xdp_agg_protocol::worker::{Limit, rank_bit, standing_aside};

use crate::driver::Stripe;
use crate::settings::Place;

/// Looks on while a call among the workers waits.
#[derive(Debug)]
pub(super) struct Watcher {
    /// The communicator may go first.
    stripes: Weak<[Stripe]>,
    place: Place,
    warn_after: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The call, in words.
    what: String,
    /// How long a wait was when it was told of last.
    warned: Duration,
    /// The daemon's last word on a host.
    standing: Option<Standing>,
}

impl Watcher {
    pub(super) fn new(stripes: &Arc<[Stripe]>, place: Place, warn_after: Duration) -> Arc<Self> {
        let (stripes, state) = (Arc::downgrade(stripes), Mutex::default());
        Arc::new(Self { stripes, place, warn_after, state })
    }

    /// Carries out a call among the workers, which others are told of that wait for this one.
    pub(super) fn during<T>(
        watcher: &Option<Arc<Self>>,
        what: &str,
        call: impl FnOnce() -> T,
    ) -> T {
        let Some(watcher) = watcher else { return call() };
        watcher.turn(Some(what));
        let done = call();
        watcher.turn(None);
        done
    }

    fn turn(&self, what: Option<&str>) {
        let what = what.map(str::to_owned);
        *self.state.lock() = State { what: what.clone().unwrap_or_default(), ..State::default() };
        for stripe in self.stripes.upgrade().iter().flat_map(|stripes| stripes.iter()) {
            stripe.shared.lock().machine.turn_aside(what.clone());
        }
    }

    /// Takes the daemon's last answer, and asks again.
    fn ask(&self, stripes: &[Stripe], host: u16) {
        let Some(stripe) = stripes.first() else { return };
        let mut engine = stripe.shared.lock();
        if let Some(all) = engine.machine.poll_standing() {
            self.state.lock().standing = all.into_iter().find(|standing| standing.rank == host);
        }
        engine.machine.ask_for_standing(rank_bit(host));
        drop(engine);
        stripe.shared.nudge.ring();
    }
}

impl Onlooker for Watcher {
    fn waits(&self, rank: u16, waited: Duration) -> Result<(), String> {
        let Some(stripes) = self.stripes.upgrade() else { return Ok(()) };
        for stripe in &*stripes {
            if let Some(error) = stripe.shared.lock().machine.failure() {
                return Err(error.to_string());
            }
        }
        self.ask(&stripes, rank / self.place.local_size);
        let known = self.known(rank);
        let mut state = self.state.lock();
        let pause = self.warn_after.max(state.warned);
        if waited >= state.warned + pause {
            state.warned = waited;
            let known = known.unwrap_or_else(|| format!("rank {rank}"));
            let (what, seconds) = (&state.what, waited.as_secs());
            tracing::warn!(
                rank = self.place.rank,
                "{what} has waited {seconds} s: {known}; {} says how long it may",
                Limit::Call
            );
        }
        Ok(())
    }

    fn known(&self, rank: u16) -> Option<String> {
        let state = self.state.lock();
        let mut standing = state.standing.clone()?;
        let host = rank / self.place.local_size;
        // Of another process of its host the daemon knows only what that one says.
        let same = standing.rank == host && rank % self.place.local_size == self.place.local_rank;
        standing.rank = rank;
        same.then(|| standing_aside(&standing, &state.what))
    }
}
