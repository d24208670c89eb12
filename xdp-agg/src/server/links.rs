//! Connections to the branches of this daemon's jobs.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::debug;
use xdp_agg_common::control::{Reply, Request, decode, encode};
use xdp_agg_tls::{ClientFiles, ClientTls, Liveness, Side, explain};

use super::limits::Source;
use xdp_agg_protocol::daemon::{LinkEffect, LinkId, Patience};

/// Longest time for one attempt to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(2);
/// Attempts: the daemons of a tree may be started in any order, and at the same time.
const ATTEMPTS: u32 = 5;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// How long a message may take to leave.
const WRITE: Duration = Duration::from_secs(5);
/// How long the last message may take to leave when a connection is needed no more. Its end tells
/// a branch the same.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most connections, those that are being opened or ended among them: file descriptors are shared
/// with workers.
const LINKS_MAX: usize = 1024;
/// Most of them that one address asked for: eight jobs with the largest tree there can be.
const SOURCE_LINKS_MAX: usize = 512;
/// Messages that may wait.
const WAITING_MAX: usize = 256;
/// Bytes of one read.
const READ_LEN: usize = 4096;
/// Longest reply of a branch: a sentence, or what it has heard of each of its members.
const REPLY_MAX: usize = 1 << 14;
/// How long one may take, from its first byte to its last.
const REPLY: Duration = Duration::from_secs(5);

/// What a connection reports. `Lost` is its last event.
#[derive(Debug)]
pub(super) enum LinkEvent {
    Up(LinkId),
    Said(LinkId, Box<Reply>),
    Lost(LinkId, String),
}

/// All connections to branches.
pub(super) struct Links {
    patience: Patience,
    tls: ClientFiles,
    /// This daemon's own connections run over TLS.
    speaks_tls: bool,
    /// Each is kept until its last event.
    all: BTreeMap<LinkId, Link>,
    events: (mpsc::Sender<LinkEvent>, mpsc::Receiver<LinkEvent>),
}

/// The loop's view of a connection.
struct Link {
    /// The address whose request needs this connection.
    by: Option<Source>,
    /// None: it is needed no more.
    open: Option<Open>,
}

struct Open {
    requests: mpsc::Sender<Request>,
    /// Dropped when it is needed no more.
    _needed: oneshot::Sender<()>,
}

impl Links {
    pub(super) fn new(patience: Patience, tls: ClientFiles, speaks_tls: bool) -> Self {
        Self { patience, tls, speaks_tls, all: BTreeMap::new(), events: mpsc::channel(WAITING_MAX) }
    }

    /// Connections that are opened from now on use these files; `speaks_tls` as in [`Self::new`].
    pub(super) fn set_tls(&mut self, tls: ClientFiles, speaks_tls: bool) {
        (self.tls, self.speaks_tls) = (tls, speaks_tls);
    }

    /// The next event.
    pub(super) async fn next(&mut self) -> LinkEvent {
        let event = match self.events.1.recv().await {
            Some(event) => event,
            // Never: a sender is kept here.
            None => std::future::pending().await,
        };
        if let LinkEvent::Lost(link, _) = &event {
            self.all.remove(link);
        }
        event
    }

    /// Does what the jobs ask for on a request from `by`. `may_dial` tells
    /// whether that address may have one more connection opened now.
    pub(super) fn act(
        &mut self,
        effect: LinkEffect,
        by: Option<Source>,
        may_dial: impl FnOnce() -> bool,
    ) {
        match effect {
            // The token, and the cookies of jobs, are for those that TLS knows.
            LinkEffect::Dial(link, ..) if self.speaks_tls && self.tls.ca.is_none() => {
                self.refuse(link, PLAIN.into());
            }
            LinkEffect::Dial(link, daemon, policy) => match self.no_room(by) {
                Some(why) => self.refuse(link, why),
                None if !may_dial() => self.refuse(
                    link,
                    "too many connections to branches were asked for in a short time from the \
                     address that asked for this one; slow down"
                        .into(),
                ),
                None => {
                    let dead_after = self.patience.with_branches(policy);
                    self.dial(link, daemon, by, dead_after);
                }
            },
            LinkEffect::Say(link, request) => {
                // A branch that does not read is lost by its time to write.
                if let Some(Link { open: Some(open), .. }) = self.all.get(&link) {
                    drop(open.requests.try_send(request));
                }
            }
            LinkEffect::HangUp(link) => {
                if let Some(link) = self.all.get_mut(&link) {
                    link.open = None;
                }
            }
        }
    }

    /// Why there can be no further connection for this address.
    fn no_room(&self, by: Option<Source>) -> Option<String> {
        let same = self.all.values().filter(|link| by.is_some() && link.by == by).count();
        let (count, whose) = match (self.all.len(), same) {
            (LINKS_MAX.., _) => (LINKS_MAX, "all jobs of this daemon"),
            (_, SOURCE_LINKS_MAX..) => (SOURCE_LINKS_MAX, "jobs formed from one address"),
            _ => return None,
        };
        Some(format!(
            "{whose} together can have {count} connections to branches, and have them: wait until \
             others end, or use trees of fewer aggregators"
        ))
    }

    fn refuse(&self, link: LinkId, why: String) {
        let events = self.events.0.clone();
        // If the loop has gone, nobody needs to know.
        tokio::spawn(async move { drop(events.send(LinkEvent::Lost(link, why)).await) });
    }

    fn dial(
        &mut self,
        link: LinkId,
        daemon: SocketAddrV4,
        by: Option<Source>,
        dead_after: Duration,
    ) {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        let (needed, mut needless) = oneshot::channel();
        let open = Some(Open { requests, _needed: needed });
        self.all.insert(link, Link { by, open });
        let events = self.events.0.clone();
        let tls = self.tls.load(&daemon.ip().to_string()).map_err(|e| e.to_string());
        tokio::spawn(async move {
            let opened = async { open_stream(daemon, tls?).await };
            let opened = tokio::select! {
                opened = opened => opened,
                // Neither an attempt nor a handshake outlives the job.
                _ = &mut needless => Err(NEEDED_NO_MORE.into()),
            };
            let why = match opened {
                Ok(stream) => serve(link, stream, &events, (waiting, needless), dead_after).await,
                Err(why) => why,
            };
            debug!(%daemon, "the connection to a branch has ended: {why}");
            // If the loop has gone, nobody needs to know.
            drop(events.send(LinkEvent::Lost(link, why)).await);
        });
    }
}

/// Why a daemon that speaks TLS has no connections to branches.
const PLAIN: &str = "the daemon of the job's root speaks TLS (--tls-cert) and was not told how to \
                     know its branches, and it says its token to nobody in plain: start it with \
                     --tls-branch-ca (XDP_AGG_TLS_BRANCH_CA), the authority of their certificates";
const NEEDED_NO_MORE: &str = "it is needed no more";

/// A connection to a branch.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

async fn open_stream(daemon: SocketAddrV4, tls: Option<ClientTls>) -> Result<Stream, String> {
    let stream = connect(daemon).await.map_err(|error| {
        format!("its daemon cannot be reached ({error}); is `xdp-agg serve` running there?")
    })?;
    let Some(tls) = tls else {
        return Ok(Stream::Plain(stream));
    };
    let (config, name) = tls.connector();
    match timeout(CONNECT, TlsConnector::from(config).connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(Stream::Tls(Box::new(stream))),
        Ok(Err(error)) => Err(explain(&error, Side::Client)),
        Err(_) => Err(format!("no TLS handshake in {} s", CONNECT.as_secs())),
    }
}

/// Speaks with a branch until one side ends it; why it ended.
async fn serve(
    link: LinkId,
    stream: Stream,
    events: &mpsc::Sender<LinkEvent>,
    (waiting, needless): (mpsc::Receiver<Request>, oneshot::Receiver<()>),
    dead_after: Duration,
) -> String {
    let socket = match &stream {
        Stream::Plain(stream) => stream.as_fd(),
        Stream::Tls(stream) => stream.get_ref().0.as_fd(),
    };
    let watched = socket.try_clone_to_owned().and_then(|socket| {
        let liveness = Liveness::of(&socket, dead_after)?;
        Ok((socket, liveness))
    });
    let (socket, mut liveness) = match watched {
        Ok(watched) => watched,
        Err(error) => return error.to_string(),
    };
    let dead = async {
        loop {
            sleep(Patience(Some(dead_after)).tick()).await;
            if let Some(silent) = liveness.is_dead(&socket) {
                return format!("its host has acknowledged nothing for {silent:.1?}");
            }
        }
    };
    let talk = async {
        match stream {
            Stream::Plain(stream) => {
                let (read, write) = stream.into_split();
                converse(link, read, write, events, waiting).await
            }
            Stream::Tls(stream) => {
                let (read, write) = tokio::io::split(stream);
                converse(link, read, write, events, waiting).await
            }
        }
    };
    let farewell = async {
        drop(needless.await);
        sleep(FAREWELL).await;
    };
    tokio::select! {
        why = talk => why,
        why = dead => why,
        () = farewell => "it did not take what was said last".into(),
    }
}

async fn connect(daemon: SocketAddrV4) -> io::Result<TcpStream> {
    let mut attempt = 1;
    loop {
        let stream = match timeout(CONNECT, TcpStream::connect(daemon)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match stream {
            Ok(stream) => {
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
    NEEDED_NO_MORE.into()
}

async fn read_replies(
    link: LinkId,
    read: &mut (impl AsyncRead + Unpin),
    events: &mpsc::Sender<LinkEvent>,
) -> String {
    let mut buffer = Vec::new();
    // Of the reply that has begun.
    let mut end = None;
    loop {
        let announced = buffer.first_chunk().map_or(0, |prefix| u32::from_be_bytes(*prefix));
        if announced as usize > REPLY_MAX {
            return format!(
                "it says {announced} bytes at once, and a branch has {REPLY_MAX} to say at most: \
                 is `xdp-agg serve` running there, of the same release?"
            );
        }
        match decode(&mut buffer) {
            Ok(Some(reply)) => {
                end = None;
                if events.send(LinkEvent::Said(link, Box::new(reply))).await.is_err() {
                    return "this daemon is going".into();
                }
            }
            Ok(None) => {
                if end.is_none() && !buffer.is_empty() {
                    end = Some(Instant::now() + REPLY);
                }
                let mut chunk = [0; READ_LEN];
                let reading = read.read(&mut chunk);
                let read = match end {
                    Some(end) => timeout_at(end, reading).await,
                    None => Ok(reading.await),
                };
                let Ok(read) = read else {
                    return format!("it took over {} s for one reply", REPLY.as_secs());
                };
                match read {
                    Ok(0) => return "its connection ended".into(),
                    Ok(len) => buffer.extend_from_slice(&chunk[..len]),
                    Err(error) => return format!("its connection failed ({error})"),
                }
            }
            Err(error) => return error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(said: Vec<u8>) -> (String, usize) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            // The other end stays open.
            let (mut branch, mut root) = tokio::io::duplex(2 * REPLY_MAX);
            branch.write_all(&said).await.expect("there is room");
            let (events, mut heard) = mpsc::channel(WAITING_MAX);
            let why = read_replies(LinkId(0), &mut root, &events).await;
            let mut count = 0;
            while heard.try_recv().is_ok() {
                count += 1;
            }
            (why, count)
        })
    }

    /// A branch costs the root no more memory than its longest reply, and for no longer than that
    /// may take.
    #[test]
    fn half_a_reply_is_not_kept_for_long() {
        let heartbeat = encode(&Reply::Heartbeat).expect("it is short");
        let long = (REPLY_MAX as u32 + 1).to_be_bytes().to_vec();
        let (why, count) = read_all([&heartbeat[..], &long].concat());
        assert!(why.contains("16385 bytes") && count == 1, "{why}");
        let mut half = (REPLY_MAX as u32).to_be_bytes().to_vec();
        half.resize(100, b' ');
        let (why, count) = read_all([&heartbeat[..], &heartbeat, &half].concat());
        assert!(why.contains("over 5 s for one reply") && count == 2, "{why}");
    }

    /// The longest that a branch has to say: all members that one can have, and a sentence.
    #[test]
    fn an_honest_reply_has_room() {
        use xdp_agg_common::control::words::SENTENCE_MAX;
        use xdp_agg_common::control::{BranchReply, ErrorCode};

        let ranks = (0..64).map(|rank| (rank, Some(u64::MAX))).collect();
        let heard = BranchReply::Heard { number: u64::MAX, epoch: u16::MAX, ranks };
        let reason = "\"".repeat(4 * SENTENCE_MAX);
        let message = reason.clone();
        let failed = BranchReply::Failed { epoch: u16::MAX, reason };
        let error = Reply::Error { code: ErrorCode::Unauthorised, message };
        for reply in [Reply::Branch(heard), Reply::Branch(failed), error] {
            assert!(encode(&reply).expect("it fits").len() <= REPLY_MAX);
        }
    }
}
