//! Questions to HTTP servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The body of an answer; None without one, or with another status than 200. `limit` holds for the
/// connection, and for each wait for a part of the answer.
#[must_use]
pub fn get(from: SocketAddr, path: &str, limit: Duration) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&from, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.split(' ').nth(1).is_some_and(|code| code == "200").then(|| body.to_owned())
}
