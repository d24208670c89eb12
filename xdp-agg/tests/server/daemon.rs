//! A daemon with the user-space engine on loopback, in a thread of the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::Dispatch;
use tracing::dispatcher::with_default;
use xdp_agg::config::Partial;
use xdp_agg::engine::{self, EngineError, EngineKind};
use xdp_agg::server::{ConnId, Listener, Reread, Rereads, Server, ServerError};

/// A running daemon; dropping it shuts it down and waits.
pub(crate) struct Daemon {
    pub(crate) control: SocketAddr,
    pub(crate) data_port: u16,
    configs: mpsc::Sender<Reread>,
    _asked: mpsc::Receiver<ConnId>,
    shutdown: Option<oneshot::Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a daemon did not start.
#[derive(Debug)]
pub(crate) enum Refused {
    Control(ServerError),
    Engine(EngineError),
}

/// Free ports, the user-space engine, few slots, short waits.
pub(crate) fn settings() -> Partial {
    Partial {
        engine: Some(EngineKind::Userspace),
        control: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        data_port: Some(0),
        slots: Some(64),
        job_slots: Some(8),
        join_timeout: Some(5),
        probe_timeout: Some(2),
        ..Partial::default()
    }
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::with(settings()).expect("free ports are always free")
    }

    pub(crate) fn with(settings: Partial) -> Result<Self, Refused> {
        Self::logging(settings, Dispatch::none())
    }

    /// Its lines go to `log`.
    pub(crate) fn logging(settings: Partial, log: Dispatch) -> Result<Self, Refused> {
        let settings = settings.complete().expect("the settings are right");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = {
            let _inside = runtime.enter();
            Listener::bind(settings.control).map_err(Refused::Control)?
        };
        let engine = engine::open(&settings.engine).map_err(Refused::Engine)?;
        let (configs, done) = mpsc::channel(1);
        let (wishes, asked) = mpsc::channel(1);
        let server =
            Server::new(listener, engine, &settings.server).with_rereads(Rereads { wishes, done });
        let (control, data_port) = (server.control_addr(), server.data_port());
        let (shutdown, wait) = oneshot::channel();
        let end = async { wait.await.unwrap_or_else(|_| "the test is over".into()) };
        let run = move || with_default(&log, || runtime.block_on(server.run(end)));
        let thread = std::thread::spawn(run);
        let (shutdown, thread) = (Some(shutdown), Some(thread));
        Ok(Self { control, data_port, configs, _asked: asked, shutdown, thread })
    }

    /// Has it take these settings over, as at SIGHUP. It does so soon, and not at once.
    pub(crate) fn reread(&self, settings: Partial) {
        let settings = settings.complete().expect("the settings are right");
        let outcome = Ok((settings.server, Vec::new()));
        let reread = Reread { outcome, asked_by: None };
        self.configs.blocking_send(reread).expect("it runs");
    }

    /// Shuts it down; returns when it has gone.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.shutdown.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // A second panic while the test unwinds would hide the first.
            assert!(std::thread::panicking(), "the daemon's thread panicked");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// Longest wait for anything in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
