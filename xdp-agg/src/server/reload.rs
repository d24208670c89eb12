//! Settings that are read again while the daemon runs: who may ask for it, and what comes of it.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};
use xdp_agg_common::control::{ErrorCode, Reloaded, Reply};
use xdp_agg_tls::ServerTls;

use super::{Server, ServerConfig};
use xdp_agg_protocol::daemon::{ConnId, Terms};

/// Settings that were read again.
#[derive(Debug)]
pub struct Reread {
    /// The settings, with the names of those that only a restart takes over; or why they cannot be
    /// used.
    pub outcome: Result<(ServerConfig, Vec<String>), String>,
    /// The connection that asked for it. None: a signal did.
    pub asked_by: Option<ConnId>,
}

/// The server's ends of the way to whoever reads the settings.
#[derive(Debug)]
pub struct Rereads {
    /// Connections that ask for it.
    pub wishes: mpsc::Sender<ConnId>,
    /// What was read.
    pub done: mpsc::Receiver<Reread>,
}

impl Rereads {
    /// The next settings; for ever none, if there is nowhere that they could come from.
    pub(super) async fn next_of(rereads: &mut Option<Self>) -> Reread {
        if let Some(some) = rereads
            && let Some(reread) = some.done.recv().await
        {
            return reread;
        }
        *rereads = None;
        std::future::pending().await
    }
}

/// Whether both ends of a connection are this host's: the rule for who may ask.
pub(super) fn is_of_this_host(stream: &TcpStream, from: SocketAddr) -> bool {
    from.ip().to_canonical().is_loopback()
        || stream.local_addr().is_ok_and(|own| own.ip() == from.ip())
}

impl Server {
    /// A connection wants the settings to be read again.
    pub(super) fn wants_reload(&mut self, conn: ConnId) {
        let is_local = self.connections.get(&conn).is_some_and(|connection| connection.is_local);
        let refusal = match &self.rereads {
            _ if !is_local => "settings are read again at the wish of the daemon's own host alone",
            None => "this daemon has nowhere to read its settings from again",
            Some(rereads) => match rereads.wishes.try_send(conn) {
                Ok(()) => return,
                Err(_) => "the settings are being read already: ask again when that is over",
            },
        };
        let (code, message) = (ErrorCode::Invalid, refusal.to_owned());
        self.reply(conn, &Reply::Error { code, message });
    }

    /// Goes on with settings that were read again, or as before.
    pub(super) fn take_over_settings(&mut self, reread: Reread) {
        let reply = match reread.outcome {
            Err(why) => {
                error!("all settings stay as they were: {why}");
                let message = format!("all settings stay as they were: {why}");
                Reply::Error { code: ErrorCode::Invalid, message }
            }
            Ok((config, needs_restart)) => {
                let changed = self.config.changed(&config);
                info!(
                    tokens = config.tokens.len(),
                    tls = config.tls.is_some(),
                    changed = changed.join(" "),
                    "token, certificates and limits were read again: they hold for new \
                     connections and jobs"
                );
                if !needs_restart.is_empty() {
                    warn!(
                        "other settings have changed too; a restart takes these over: {}",
                        needs_restart.join(", ")
                    );
                }
                self.take_config(config);
                Reply::Reloaded(Reloaded { changed, needs_restart })
            }
        };
        self.supervisor.ready();
        if let Some(conn) = reread.asked_by {
            self.reply(conn, &reply);
        }
    }

    fn take_config(&mut self, config: ServerConfig) {
        self.tls = config.tls.as_ref().map(acceptor);
        self.links.set_tls(config.branch_tls.clone(), self.tls.is_some());
        let ServerConfig { tokens, job_slots, job_slots_max, job_packet_rate, .. } = config.clone();
        self.jobs.handle_terms(Terms { tokens, job_slots, job_slots_max, job_packet_rate });
        self.config = config;
    }
}

pub(super) fn acceptor(tls: &ServerTls) -> TlsAcceptor {
    TlsAcceptor::from(tls.config())
}
