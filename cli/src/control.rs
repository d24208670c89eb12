//! A tool's connection to the daemon.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Result, bail};
use xdp_agg_common::control::{
    CONTROL_VERSION, FrameError, Reply, Request, read_message, write_message,
};

const CONNECT_TIME: Duration = Duration::from_secs(3);
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Where the daemon is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// Control address of the daemon, host and port
    #[arg(
        long,
        global = true,
        env = "XDP_AGG_CONTROL",
        value_name = "ADDR:PORT",
        default_value = "127.0.0.1:9870"
    )]
    control: String,
}

/// Nobody answers there.
#[derive(Debug, thiserror::Error)]
#[error(
    "no daemon at {addr} ({source}): start `xdp-agg serve` there, or name the daemon's address \
     with --control or XDP_AGG_CONTROL"
)]
pub(crate) struct NoDaemon {
    addr: String,
    source: io::Error,
}

/// A connection that has been welcomed.
pub(crate) struct Client {
    stream: TcpStream,
    addr: String,
}

impl Target {
    /// Connects and says hello.
    pub(crate) fn connect(&self) -> Result<Client> {
        let addr = self.control.clone();
        let stream = match self.open() {
            Ok(stream) => stream,
            Err(source) => return Err(NoDaemon { addr, source }.into()),
        };
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream, addr };
        let agent = format!("xdp-agg {}", env!("CARGO_PKG_VERSION"));
        match client.ask(&Request::Hello { version: CONTROL_VERSION, agent, token: None })? {
            Reply::Welcome { .. } => Ok(client),
            other => bail!("{}: an unexpected answer to Hello: {other:?}", client.addr),
        }
    }

    fn open(&self) -> io::Result<TcpStream> {
        let mut last = None;
        for addr in self.control.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, CONNECT_TIME) {
                Ok(stream) if talks_to_itself(&stream) => {}
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()))
    }
}

/// A port of the ephemeral range that nobody listens on may connect to itself.
fn talks_to_itself(stream: &TcpStream) -> bool {
    let ends: (io::Result<SocketAddr>, io::Result<SocketAddr>) =
        (stream.local_addr(), stream.peer_addr());
    matches!(ends, (Ok(local), Ok(peer)) if local == peer)
}

impl Client {
    /// Asks, and turns a refusal into an error.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply> {
        let reply = write_message(&mut self.stream, request)
            .and_then(|()| read_message(&mut self.stream))
            .map_err(|error| self.explain(error))?;
        match reply {
            Reply::Error { message, .. } => bail!("{message}"),
            reply => Ok(reply),
        }
    }

    fn explain(&self, error: FrameError) -> anyhow::Error {
        let what = match &error {
            FrameError::Io(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
                    "no answer from {} in {} s: is it an xdp-agg daemon?",
                    self.addr,
                    ANSWER_TIME.as_secs()
                ),
                _ => format!("the daemon at {} ended the connection", self.addr),
            },
            _ => format!("{} does not answer as an xdp-agg daemon does", self.addr),
        };
        anyhow::Error::new(error).context(what)
    }
}
