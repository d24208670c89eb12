//! One connection: bytes to messages, frames to bytes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{self, Instant, timeout};
use xdp_agg_common::control::{FrameError, Request, decode};

use crate::jobs::ConnId;

/// How long the first message may take, and any message from its first byte to its last.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// How long a frame may take to leave.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// How long a peer that we close is read from, so that it gets our last frame instead of a reset.
const LINGER: Duration = Duration::from_millis(500);
/// Longest frame of a request: all are short, and many peers may send one at a time.
const REQUEST_MAX: usize = 1 << 16;
/// Bytes of one read.
const READ_LEN: usize = 4096;

/// What a connection reports.
#[derive(Debug)]
pub(super) enum Event {
    /// A message.
    Said(ConnId, Request),
    /// Bytes that are no message, or none in time. No further event but `Closed` follows.
    Garbled(ConnId, String),
    /// The peer has gone.
    Closed(ConnId),
}

/// Serves a connection until one side ends it: the peer by closing, the loop by dropping the
/// sender of `replies`.
pub(super) async fn serve_connection(
    stream: TcpStream,
    conn: ConnId,
    events: mpsc::Sender<Event>,
    replies: mpsc::Receiver<Vec<u8>>,
) {
    let (mut read, write) = stream.into_split();
    let mut writing = std::pin::pin!(write_replies(write, replies));
    tokio::select! {
        // Closed by the loop, or the peer cannot be written to.
        sent = &mut writing => {
            if sent.is_ok() {
                drain(&mut read).await;
            }
        }
        end = read_requests(&mut read, conn, &events) => {
            // If the loop has gone, nobody needs to know.
            let garbled = matches!(end, Event::Garbled(..));
            let told = events.send(end).await.is_ok();
            if garbled && told && writing.await.is_ok() {
                drain(&mut read).await;
            }
        }
    }
    drop(events.send(Event::Closed(conn)).await);
}

/// Reads messages until there are no more; says why.
async fn read_requests(
    read: &mut OwnedReadHalf,
    conn: ConnId,
    events: &mpsc::Sender<Event>,
) -> Event {
    let mut buffer = Vec::new();
    let mut deadline = Some(Instant::now() + MESSAGE_TIME);
    loop {
        match decode::<Request>(&mut buffer) {
            Ok(Some(request)) => {
                // What follows in the buffer is a message of its own time.
                deadline = None;
                if events.send(Event::Said(conn, request)).await.is_err() {
                    return Event::Closed(conn);
                }
                continue;
            }
            Ok(None) => {}
            Err(error) => return Event::Garbled(conn, error.to_string()),
        }
        if let Some(prefix) = buffer.first_chunk::<4>()
            && u32::from_be_bytes(*prefix) as usize > REQUEST_MAX
        {
            let why = FrameError::TooLong(u32::from_be_bytes(*prefix) as usize).to_string();
            return Event::Garbled(conn, why);
        }
        if !buffer.is_empty() && deadline.is_none() {
            deadline = Some(Instant::now() + MESSAGE_TIME);
        }
        let reading = read_some(read, &mut buffer);
        let result = match deadline {
            Some(deadline) => time::timeout_at(deadline, reading).await,
            None => Ok(reading.await),
        };
        match result {
            Ok(Ok(0) | Err(_)) => return Event::Closed(conn),
            Ok(Ok(_)) => {}
            Err(_) => {
                let why = format!("no complete message in {} s", MESSAGE_TIME.as_secs());
                return Event::Garbled(conn, why);
            }
        }
    }
}

async fn read_some(read: &mut OwnedReadHalf, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; READ_LEN];
    let len = read.read(&mut chunk).await?;
    buffer.extend_from_slice(&chunk[..len]);
    Ok(len)
}

/// Writes frames until the loop drops its sender, then says that no more will come.
async fn write_replies(
    mut write: OwnedWriteHalf,
    mut replies: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(frame) = replies.recv().await {
        timeout(WRITE_TIME, write.write_all(&frame)).await??;
    }
    write.shutdown().await
}

/// Takes what the peer still sends, for a while.
async fn drain(read: &mut OwnedReadHalf) {
    let mut chunk = [0; READ_LEN];
    let reading = async { while matches!(read.read(&mut chunk).await, Ok(1..)) {} };
    // A peer that goes on sending gets its reset.
    drop(timeout(LINGER, reading).await);
}
