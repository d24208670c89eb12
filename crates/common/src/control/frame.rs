//! Messages as frames: a length, then JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MAX_FRAME;
use super::words::{NAME_MAX, clean};

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed or ended.
    #[error("control connection: {0}")]
    Io(#[from] io::Error),
    /// The length in front is over [`MAX_FRAME`]: this is not our protocol.
    #[error(
        "a control frame of {0} bytes (at most {MAX_FRAME} are allowed): \
         the peer does not speak the xdp-agg control protocol; check the address and port"
    )]
    TooLong(usize),
    /// Not the JSON that was expected. The error quotes the peer.
    #[error("a control frame that cannot be understood ({0}); are both sides of one version?")]
    Json(String),
}

impl From<serde_json::Error> for FrameError {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(clean(&error.to_string(), NAME_MAX))
    }
}

/// A message as the bytes of a frame.
///
/// # Errors
/// Longer than [`MAX_FRAME`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let len = frame.len() - 4;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    frame[..4].copy_from_slice(&(len as u32).to_be_bytes());
    Ok(frame)
}

/// Takes the next message off the front of `buffer`, if all its bytes are there.
///
/// # Errors
/// A frame that is too long, or not a message.
pub fn decode<M: DeserializeOwned>(buffer: &mut Vec<u8>) -> Result<Option<M>, FrameError> {
    let Some(prefix) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*prefix) as usize;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    let Some(body) = buffer.get(4..4 + len) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(body)?;
    buffer.drain(..4 + len);
    Ok(Some(message))
}

/// Writes one message to a blocking stream.
///
/// # Errors
/// The stream's, or a message that is too long.
pub fn write_message<M: Serialize>(stream: &mut impl Write, message: &M) -> Result<(), FrameError> {
    Ok(stream.write_all(&encode(message)?)?)
}

/// Reads one message from a blocking stream; no byte beyond it.
///
/// # Errors
/// The stream's, a frame that is too long, or not a message.
pub fn read_message<M: DeserializeOwned>(stream: &mut impl Read) -> Result<M, FrameError> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let len = u32::from_be_bytes(prefix) as usize;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::super::{AbortReason, CONTROL_VERSION, Reply, Request};
    use super::*;
    use crate::maps::ResultMode;

    fn hello() -> Request {
        Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token: None }
    }

    #[test]
    fn messages_survive_every_split() {
        let frame = encode(&hello()).expect("it is short");
        for cut in 0..frame.len() {
            let mut buffer = frame[..cut].to_vec();
            assert!(decode::<Request>(&mut buffer).expect("a part is no error").is_none());
            buffer.extend_from_slice(&frame[cut..]);
            buffer.extend_from_slice(&frame);
            assert_eq!(decode(&mut buffer).expect("whole"), Some(hello()));
            assert_eq!(decode(&mut buffer).expect("whole"), Some(hello()));
            assert!(buffer.is_empty());
        }
        assert_eq!(read_message::<Request>(&mut &frame[..]).expect("whole"), hello());
    }

    #[test]
    fn every_shape_of_message_survives() {
        for reply in [
            Reply::Done,
            Reply::Jobs(vec![]),
            Reply::Aborted(AbortReason::Member { rank: 1, reason: "why".into(), cause: None }),
            Reply::Go { mode: ResultMode::Ports, group: None },
        ] {
            let mut frame = encode(&reply).expect("it is short");
            assert_eq!(decode(&mut frame).expect("whole"), Some(reply));
        }
    }

    #[test]
    fn foreign_bytes_are_named_as_such() {
        let mut http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        assert!(matches!(decode::<Request>(&mut http), Err(FrameError::TooLong(_))));
        let mut nonsense = vec![0, 0, 0, 2, b'{', b'x'];
        assert!(matches!(decode::<Request>(&mut nonsense), Err(FrameError::Json(_))));
    }
}
