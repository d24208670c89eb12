//! Connections to the branches of this daemon's jobs.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tracing::debug;
use xdp_agg_common::control::{Reply, Request, decode, encode};
use xdp_agg_tls::{ClientFiles, ClientTls, Side, explain, set_liveness};

use crate::jobs::{LinkEffect, LinkId};

/// Longest time for one attempt to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(2);
/// Attempts: the daemons of a tree may be started in any order, and at the same time.
const ATTEMPTS: u32 = 5;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// How long a message may take to leave.
const WRITE: Duration = Duration::from_secs(5);
/// Messages that may wait.
const WAITING_MAX: usize = 256;
/// Bytes of one read.
const READ_LEN: usize = 4096;

/// What a connection reports. `Lost` is its last event.
#[derive(Debug)]
pub(super) enum LinkEvent {
    Up(LinkId),
    Said(LinkId, Box<Reply>),
    Lost(LinkId, String),
}

/// All connections to branches.
pub(super) struct Links {
    dead_after: Duration,
    tls: ClientFiles,
    open: BTreeMap<LinkId, mpsc::Sender<Request>>,
    events: (mpsc::Sender<LinkEvent>, mpsc::Receiver<LinkEvent>),
}

impl Links {
    pub(super) fn new(dead_after: Duration, tls: ClientFiles) -> Self {
        Self { dead_after, tls, open: BTreeMap::new(), events: mpsc::channel(WAITING_MAX) }
    }

    /// The next event.
    pub(super) async fn next(&mut self) -> LinkEvent {
        match self.events.1.recv().await {
            Some(event) => event,
            // Never: a sender is kept here.
            None => std::future::pending().await,
        }
    }

    /// Does what the jobs ask for.
    pub(super) fn act(&mut self, effect: LinkEffect) {
        match effect {
            LinkEffect::Dial(link, daemon) => {
                let (requests, waiting) = mpsc::channel(WAITING_MAX);
                self.open.insert(link, requests);
                let (events, dead_after) = (self.events.0.clone(), self.dead_after);
                let tls = self.tls.load(&daemon.ip().to_string()).map_err(|e| e.to_string());
                tokio::spawn(async move {
                    let why = match tls {
                        Ok(tls) => serve(link, daemon, tls, dead_after, &events, waiting).await,
                        Err(why) => why,
                    };
                    debug!(%daemon, "the connection to a branch has ended: {why}");
                    // If the loop has gone, nobody needs to know.
                    drop(events.send(LinkEvent::Lost(link, why)).await);
                });
            }
            LinkEffect::Say(link, request) => {
                // A branch that does not read is lost by its time to write.
                if let Some(open) = self.open.get(&link) {
                    drop(open.try_send(request));
                }
            }
            LinkEffect::HangUp(link) => self.forget(link),
        }
    }

    /// The connection ends when all is sent.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.open.remove(&link);
    }
}

/// Speaks with a branch until one side ends it; why it ended.
async fn serve(
    link: LinkId,
    daemon: SocketAddrV4,
    tls: Option<ClientTls>,
    dead_after: Duration,
    events: &mpsc::Sender<LinkEvent>,
    waiting: mpsc::Receiver<Request>,
) -> String {
    let stream = match connect(daemon, dead_after).await {
        Ok(stream) => stream,
        Err(error) => {
            return format!(
                "its daemon cannot be reached ({error}); is `xdp-agg serve` running there?"
            );
        }
    };
    let Some(tls) = tls else {
        let (read, write) = stream.into_split();
        return converse(link, read, write, events, waiting).await;
    };
    let (config, name) = tls.connector();
    match timeout(CONNECT, TlsConnector::from(config).connect(name, stream)).await {
        Ok(Ok(stream)) => {
            let (read, write) = tokio::io::split(stream);
            converse(link, read, write, events, waiting).await
        }
        Ok(Err(error)) => explain(&error, Side::Client),
        Err(_) => format!("no TLS handshake in {} s", CONNECT.as_secs()),
    }
}

async fn connect(daemon: SocketAddrV4, dead_after: Duration) -> io::Result<TcpStream> {
    let mut attempt = 1;
    loop {
        let stream = match timeout(CONNECT, TcpStream::connect(daemon)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match stream {
            Ok(stream) => {
                set_liveness(&stream, dead_after)?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
        attempt += 1;
    }
}

async fn converse(
    link: LinkId,
    mut read: impl AsyncRead + Unpin,
    write: impl AsyncWrite + Unpin,
    events: &mpsc::Sender<LinkEvent>,
    waiting: mpsc::Receiver<Request>,
) -> String {
    if events.send(LinkEvent::Up(link)).await.is_err() {
        return "this daemon is going".into();
    }
    tokio::select! {
        why = write_requests(write, waiting) => why,
        why = read_replies(link, &mut read, events) => why,
    }
}

async fn write_requests(
    mut write: impl AsyncWrite + Unpin,
    mut waiting: mpsc::Receiver<Request>,
) -> String {
    while let Some(request) = waiting.recv().await {
        let frame = match encode(&request) {
            Ok(frame) => frame,
            Err(error) => return error.to_string(),
        };
        let sent = async {
            write.write_all(&frame).await?;
            // TLS gathers what it encrypts.
            write.flush().await
        };
        match timeout(WRITE, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "it reads nothing any more".into(),
        }
    }
    drop(timeout(WRITE, write.shutdown()).await);
    "it is needed no more".into()
}

async fn read_replies(
    link: LinkId,
    read: &mut (impl AsyncRead + Unpin),
    events: &mpsc::Sender<LinkEvent>,
) -> String {
    let mut buffer = Vec::new();
    loop {
        match decode(&mut buffer) {
            Ok(Some(reply)) => {
                if events.send(LinkEvent::Said(link, Box::new(reply))).await.is_err() {
                    return "this daemon is going".into();
                }
            }
            Ok(None) => {
                let mut chunk = [0; READ_LEN];
                match read.read(&mut chunk).await {
                    Ok(0) => return "its connection ended".into(),
                    Ok(len) => buffer.extend_from_slice(&chunk[..len]),
                    Err(error) => return format!("its connection failed ({error})"),
                }
            }
            Err(error) => return error.to_string(),
        }
    }
}
