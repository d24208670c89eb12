//! One connection: bytes to messages, frames to bytes, plain or over TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::{self, Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::info;
use xdp_agg_common::control::{FrameError, MAX_FRAME, Request, decode};
use xdp_agg_tls::{Side, TLS_HANDSHAKE, explain, subject};

use super::limits::Source;
use super::long::LongFrames;
use xdp_agg_protocol::daemon::ConnId;

/// How long TLS and the first message may take together, from the connection's begin.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long any later message may take, from its first byte to its last; a long one, from when it
/// may be taken in.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// How long a frame may take to leave.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// How long a peer that we close is read from, so that it gets our last frame instead of a reset.
const LINGER: Duration = Duration::from_millis(500);
/// Longest frame until `Hello` was accepted; after that [`MAX_FRAME`].
const HELLO_MAX: usize = 4096;
/// Longer frames are taken in only a few at a time ([`LongFrames`]): a worker's progress may be
/// that long.
const SHORT_MAX: usize = 1 << 16;
/// Bytes of one read.
const READ_LEN: usize = 4096;

/// What a connection reports. No further event but `Closed` follows any but `Said`.
#[derive(Debug)]
pub(super) enum Event {
    /// A message.
    Said(ConnId, Request),
    /// The message is said once more by the loop itself: it has waited at the [`super::door`].
    Waited(ConnId, Request),
    /// Bytes that are not a message.
    Garbled(ConnId, String),
    /// No message in time.
    Slow(ConnId, String),
    /// One side's TLS did not accept the other's. The peer was told, as far as TLS can tell it.
    Untrusted(ConnId, String),
    /// The peer has gone.
    Closed(ConnId),
}

/// What a connection needs to know.
pub(super) struct Line {
    pub(super) conn: ConnId,
    pub(super) from: SocketAddr,
    /// None: plain.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) source: Source,
    pub(super) long: Arc<LongFrames>,
    /// Whether it is a member's.
    pub(super) is_member: Arc<AtomicBool>,
    /// Each connection has at most one message in it, and word of its end.
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// Told when the last message was dealt with.
    pub(super) dealt: Arc<Notify>,
    /// Bytes of replies that wait.
    pub(super) backlog: Arc<AtomicUsize>,
}

/// Why there are no more messages.
enum End {
    Closed,
    Garbled(String),
    Slow(String),
}

/// How a connection over TLS begins.
enum Opening {
    Tls(Box<TlsStream<TcpStream>>),
    /// Its first byte is not TLS's.
    Plain(TcpStream),
    /// TLS failed.
    Failed(io::Error, TcpStream),
    Closed,
}

/// Serves a connection until one side ends it: the peer by closing, the loop by dropping the
/// sender of `replies`.
pub(super) async fn serve_connection(
    stream: TcpStream,
    line: Line,
    replies: mpsc::Receiver<Vec<u8>>,
) {
    let deadline = Instant::now() + HELLO_TIME;
    let conn = line.conn;
    match &line.tls {
        None => {
            let (read, write) = stream.into_split();
            converse(read, write, &line, Ok(deadline), replies).await;
        }
        Some(tls) => match time::timeout_at(deadline, open(stream, tls)).await {
            Ok(Opening::Tls(stream)) => {
                identify(&line, &stream);
                let (read, write) = tokio::io::split(stream);
                converse(read, write, &line, Ok(deadline), replies).await;
            }
            Ok(Opening::Plain(stream)) => {
                let why = "this daemon speaks TLS only: set tls-ca (XDP_AGG_TLS_CA) to the \
                           authority of its certificate";
                let (read, write) = stream.into_split();
                converse(read, write, &line, Err(End::Garbled(why.into())), replies).await;
            }
            Ok(Opening::Failed(error, mut stream)) => {
                let why = explain(&error, Side::Daemon);
                drop(line.events.send(Event::Untrusted(conn, why)));
                drop(stream.shutdown().await);
                drain(&mut stream).await;
            }
            Ok(Opening::Closed) => {}
            Err(_) => {
                let why = format!("no TLS handshake in {} s", HELLO_TIME.as_secs());
                drop(line.events.send(Event::Untrusted(conn, why)));
            }
        },
    }
    drop(line.events.send(Event::Closed(conn)));
}

/// TLS, if the peer begins with it.
async fn open(stream: TcpStream, tls: &TlsAcceptor) -> Opening {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1..) if first == [TLS_HANDSHAKE] => {}
        Ok(1..) => return Opening::Plain(stream),
        Ok(0) | Err(_) => return Opening::Closed,
    }
    match tls.accept(stream).into_fallible().await {
        Ok(stream) => Opening::Tls(Box::new(stream)),
        Err((error, stream)) => Opening::Failed(error, stream),
    }
}

/// Logs the subject of a peer's certificate.
fn identify(line: &Line, stream: &TlsStream<TcpStream>) {
    let certificates = stream.get_ref().1.peer_certificates();
    if let Some(certificate) = certificates.and_then(|all| all.first()) {
        let subject = subject(certificate);
        info!(conn = line.conn.0, from = %line.from, subject, "a client certificate was verified");
    }
}

/// Takes messages until there are no more and writes replies meanwhile; `begin` is the deadline of
/// the first message, or why there can be none.
async fn converse(
    mut read: impl AsyncRead + Unpin,
    write: impl AsyncWrite + Unpin,
    line: &Line,
    begin: Result<Instant, End>,
    replies: mpsc::Receiver<Vec<u8>>,
) {
    let answered = Notify::new();
    let mut writing = std::pin::pin!(write_replies(write, replies, line, &answered));
    let reading = async {
        match begin {
            Ok(deadline) => read_requests(&mut read, line, deadline, &answered).await,
            Err(end) => end,
        }
    };
    tokio::select! {
        // Closed by the loop, or the peer cannot be written to.
        sent = &mut writing => {
            if sent.is_ok() {
                drain(&mut read).await;
            }
        }
        end = reading => {
            let event = match end {
                End::Closed => return,
                End::Garbled(why) => Event::Garbled(line.conn, why),
                End::Slow(why) => Event::Slow(line.conn, why),
            };
            // If the loop has gone, nobody needs to know.
            if line.events.send(event).is_ok() && writing.await.is_ok() {
                drain(&mut read).await;
            }
        }
    }
}

/// Reads messages until there are no more; says why.
async fn read_requests(
    read: &mut (impl AsyncRead + Unpin),
    line: &Line,
    deadline: Instant,
    answered: &Notify,
) -> End {
    let mut buffer = Vec::new();
    let mut first = Some(deadline);
    loop {
        let request = match read_request(read, &mut buffer, first, line).await {
            Ok(request) => request,
            Err(end) => return end,
        };
        if line.events.send(Event::Said(line.conn, request)).is_err() {
            return End::Closed;
        }
        // What is not read waits in the kernel, and with the peer.
        line.dealt.notified().await;
        if first.take().is_some() {
            // A peer that is not welcome gets no memory beyond this.
            answered.notified().await;
        }
    }
}

/// The next message. `hello` is the deadline of the whole message, if it is the connection's first.
async fn read_request(
    read: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    hello: Option<Instant>,
    line: &Line,
) -> Result<Request, End> {
    let mut deadline = hello;
    let mut permit = None;
    loop {
        let announced = check_length(buffer, hello.is_some())?;
        match decode(buffer) {
            Ok(Some(request)) => {
                buffer.shrink_to(READ_LEN);
                return Ok(request);
            }
            Ok(None) => {}
            Err(error) => return Err(End::Garbled(error.to_string())),
        }
        if deadline.is_none() && !buffer.is_empty() {
            deadline = Some(Instant::now() + MESSAGE_TIME);
        }
        if announced > SHORT_MAX && permit.is_none() {
            // Nothing is read meanwhile, and no time counts: others may have taken all of it.
            permit = Some(line.long.enter(line.source, &line.is_member).await);
            deadline = Some(Instant::now() + MESSAGE_TIME);
        }
        let reading = read_some(read, buffer);
        let result = match deadline {
            Some(deadline) => time::timeout_at(deadline, reading).await,
            None => Ok(reading.await),
        };
        match result {
            Ok(Ok(0) | Err(_)) => return Err(End::Closed),
            Ok(Ok(_)) => {}
            Err(_) => {
                let time = if hello.is_some() { HELLO_TIME } else { MESSAGE_TIME };
                return Err(End::Slow(format!("no complete message in {} s", time.as_secs())));
            }
        }
    }
}

/// Length of the frame that begins here; 0 while it is not known.
fn check_length(buffer: &[u8], is_first: bool) -> Result<usize, End> {
    let Some(prefix) = buffer.first_chunk::<4>() else {
        return Ok(0);
    };
    if is_first && prefix.starts_with(&[TLS_HANDSHAKE, 3]) {
        let why = "this daemon does not speak TLS: connect without tls-ca, or start it with \
                   --tls-cert and --tls-key";
        return Err(End::Garbled(why.into()));
    }
    let len = u32::from_be_bytes(*prefix) as usize;
    if len > MAX_FRAME {
        return Err(End::Garbled(FrameError::TooLong(len).to_string()));
    }
    if is_first && len > HELLO_MAX {
        return Err(End::Garbled(format!(
            "a first message of {len} bytes (Hello has at most {HELLO_MAX}): the peer does not \
             speak the xdp-agg control protocol; check the address and port"
        )));
    }
    Ok(len)
}

async fn read_some(read: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; READ_LEN];
    let len = read.read(&mut chunk).await?;
    buffer.extend_from_slice(&chunk[..len]);
    Ok(len)
}

/// Writes frames until the loop drops its sender, then says that no more will come. `answered` is
/// told of the first one.
async fn write_replies(
    mut write: impl AsyncWrite + Unpin,
    mut replies: mpsc::Receiver<Vec<u8>>,
    line: &Line,
    answered: &Notify,
) -> io::Result<()> {
    while let Some(frame) = replies.recv().await {
        timeout(WRITE_TIME, write.write_all(&frame)).await??;
        // TLS gathers what it encrypts.
        timeout(WRITE_TIME, write.flush()).await??;
        line.backlog.fetch_sub(frame.len(), Ordering::Relaxed);
        answered.notify_one();
    }
    timeout(WRITE_TIME, write.shutdown()).await?
}

/// Takes what the peer still sends, for a while.
async fn drain(read: &mut (impl AsyncRead + Unpin)) {
    let mut chunk = [0; READ_LEN];
    let reading = async { while matches!(read.read(&mut chunk).await, Ok(1..)) {} };
    // A peer that goes on sending gets its reset.
    drop(timeout(LINGER, reading).await);
}
