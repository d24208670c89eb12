//! The latest look, and what is made of it: once for all that ask.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use xdp_agg_common::control::Stats;

use super::api::State;
use super::events::Journal;
use super::metrics;

/// The control loop answers within a round. If it has not for this long, something is wrong.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// What one look has shown.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// All counters.
    pub(super) stats: Stats,
    /// All that is shown to people.
    pub(super) state: State,
    /// When it was taken.
    pub(super) taken: Instant,
    /// When the control loop last answered; None: it has not yet.
    pub(super) answered: Option<Instant>,
    /// How long it took.
    pub(super) cost: Duration,
    /// Why the user-space engine was taken in place of XDP.
    pub(super) fallback: Option<String>,
}

/// A look and its renderings.
#[derive(Debug)]
struct Shown {
    look: Look,
    jobs: OnceLock<Bytes>,
    plain: OnceLock<Bytes>,
    open: OnceLock<Bytes>,
}

/// What the HTTP server shows.
#[derive(Debug, Default)]
pub(super) struct Pages {
    shown: Mutex<Option<Arc<Shown>>>,
    pub(super) journal: Mutex<Journal>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    /// Shows another look from now on.
    pub(super) fn show(&self, look: Look) {
        let (jobs, plain, open) = Default::default();
        *locked(&self.shown) = Some(Arc::new(Shown { look, jobs, plain, open }));
    }

    fn shown(&self) -> Option<Arc<Shown>> {
        locked(&self.shown).clone()
    }

    /// All metrics, in OpenMetrics if `open`.
    pub(super) fn metrics(&self, open: bool) -> Bytes {
        let Some(shown) = self.shown() else {
            return Bytes::from_static(if open { b"# EOF\n" } else { b"" });
        };
        let cell = if open { &shown.open } else { &shown.plain };
        let render = || metrics::render(&shown.look, &locked(&self.journal), open).into();
        cell.get_or_init(render).clone()
    }

    /// Answer to `/api/v1/jobs`.
    pub(super) fn jobs(&self) -> Bytes {
        let Some(shown) = self.shown() else {
            return json(&State::default());
        };
        shown.jobs.get_or_init(|| json(&shown.look.state)).clone()
    }

    /// Answer to `/api/v1/events`.
    pub(super) fn events(&self, since: u64) -> Bytes {
        json(&locked(&self.journal).since(since))
    }

    /// Why the daemon is not well.
    pub(super) fn unhealthy(&self) -> Option<String> {
        let Some(shown) = self.shown() else {
            return Some("the daemon has only begun".into());
        };
        let Look { taken, answered, .. } = &shown.look;
        let silence = answered.map(|at| at.elapsed()).filter(|silence| *silence < SILENCE_MAX);
        if taken.elapsed() >= SILENCE_MAX {
            let seconds = taken.elapsed().as_secs();
            return Some(format!("nobody has looked at the data path for {seconds} s"));
        }
        silence.is_none().then(|| match answered {
            Some(at) => {
                format!("the control loop has not answered for {} s", at.elapsed().as_secs())
            }
            None => "the control loop has not answered yet".into(),
        })
    }

    /// Why it cannot serve workers.
    pub(super) fn unready(&self) -> Option<String> {
        let missing = || {
            let shown = self.shown()?;
            let missing = &shown.look.state.daemon.not_ready;
            (!missing.is_empty()).then(|| missing.join("; "))
        };
        self.unhealthy().or_else(missing)
    }
}

fn json(value: &impl serde::Serialize) -> Bytes {
    // Of strings, numbers and lists: it cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}
