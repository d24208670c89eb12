//! What the control loop tells those that only watch.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use xdp_agg_common::control::ControlCounters;
use xdp_agg_protocol::daemon::News;
use xdp_agg_protocol::daemon::overview::Overview;

use super::Server;

/// Jobs, connections, and what has happened since the last view was taken.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The jobs.
    pub overview: Overview,
    /// Events since the last view.
    pub news: Vec<News>,
    /// What became of control connections.
    pub control: ControlCounters,
    /// Control connections that are open.
    pub connections: usize,
}

/// Where a view is to go.
pub type Ask = oneshot::Sender<View>;

impl Server {
    /// Answers those that want to see what it does. One such channel, and one question at a time:
    /// what is asked more often costs the control loop more.
    #[must_use]
    pub fn with_views(self, asks: mpsc::Receiver<Ask>) -> Self {
        Self { asks: Some(asks), ..self }
    }

    pub(super) fn show(&mut self, ask: Ask) {
        let view = View {
            overview: self.jobs.overview(Instant::now()),
            news: self.jobs.take_news(),
            control: self.guard.counters,
            connections: self.connections.len(),
        };
        // Whoever asked may have gone.
        drop(ask.send(view));
    }
}
