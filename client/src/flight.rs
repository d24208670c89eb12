//! Flight recordings of a communicator: of a failed call, at a signal, or when asked for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use xdp_agg_trace::Call;

use crate::driver::Stripe;
use crate::error::{Error, JobError};
use crate::trace::signal::Flies;
use crate::trace::{Tracer, Written};

/// How long a recording waits for a thread that is in an engine.
const PATIENCE: Duration = Duration::from_secs(1);

/// The latest calls, as a text in the format of a trace.
pub(crate) fn recording(stripes: &[Stripe], tracer: &Tracer, reason: &str) -> String {
    tracer.flight(calls(stripes), reason)
}

fn calls(stripes: &[Stripe]) -> Vec<Call> {
    let of = |stripe: &Stripe| stripe.shared.recorded(PATIENCE);
    stripes.iter().flat_map(of).collect()
}

/// A call has failed: writes what was before, once for a communicator.
pub(crate) fn call_failed(stripes: &[Stripe], error: &Error) {
    let in_good_order = matches!(error, Error::Job(JobError::Closed) | Error::Forked);
    let Some(stripe) = stripes.first().filter(|_| !in_good_order) else { return };
    let tracer = stripe.shared.tracer();
    if stripe.is_forked() || !tracer.is_first_failure() {
        return;
    }
    let text = recording(stripes, tracer, &error.to_string());
    match tracer.write_of_failure(&text) {
        Ok(Written::To(path)) => {
            let path = path.display();
            tracing::info!(
                "a call failed; the calls before it are in {path}: xdp-agg trace diagnose"
            );
        }
        Ok(Written::Not) => {}
        Err(error) => tracing::warn!("no flight recording of a failed call: {error}"),
    }
}

/// A communicator that writes a recording at a signal.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) stripes: Weak<[Stripe]>,
    pub(crate) tracer: Arc<Tracer>,
}

impl Flies for Flight {
    fn record(&self, reason: &str) {
        let Some(stripes) = self.stripes.upgrade() else { return };
        if stripes.iter().any(Stripe::is_forked) {
            return;
        }
        match self.tracer.write(&recording(&stripes, &self.tracer, reason)) {
            Ok(path) => tracing::info!("the latest calls are in {}", path.display()),
            Err(error) => tracing::warn!("no flight recording at a signal: {error}"),
        }
    }
}
