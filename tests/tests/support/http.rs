//! Questions to HTTP servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use xdp_agg_testbed::Namespace;

use super::LIMIT;

/// The body of an answer.
pub fn get(namespace: &Namespace, from: SocketAddr, path: &str) -> Option<String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&from, LIMIT).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).is_some_and(|code| code == "200").then(|| body.to_owned())
    };
    namespace.run(ask).expect("entering the namespace")
}
