//! A tool's connection to the daemon.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use xdp_agg::config::Partial;
use xdp_agg_common::control::{
    CONTROL_VERSION, FrameError, Reply, Request, Token, read_message, write_message,
};
use xdp_agg_tls::{ClientFiles, ClientTls, ControlStream, OpenError, read_token};

use crate::exit::WrongConfig;

const CONNECT_TIME: Duration = Duration::from_secs(3);
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Where a daemon is that says nothing else.
const DEFAULT: &str = "127.0.0.1:9870";

/// Where the daemon is, and what it has to be shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// Control address of the daemon, host and port [default: 127.0.0.1:9870]
    #[arg(long, global = true, env = "XDP_AGG_CONTROL", value_name = "ADDR:PORT")]
    control: Option<String>,
    /// File with the token that the daemon asks for (the token itself may be in XDP_AGG_TOKEN)
    #[arg(long, global = true, env = "XDP_AGG_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Connect over TLS; the certificate of the daemon must be signed by this authority (PEM)
    #[arg(long, global = true, env = "XDP_AGG_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Certificate to show to a daemon that asks for one (PEM)
    #[arg(long, global = true, env = "XDP_AGG_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long, global = true, env = "XDP_AGG_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Name in the daemon's certificate [default: the host of --control]
    #[arg(long, global = true, env = "XDP_AGG_TLS_NAME", value_name = "NAME")]
    tls_name: Option<String>,
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
    stream: ControlStream,
    addr: String,
}

impl Target {
    /// The daemon of this host that has these settings. What is given besides counts more.
    pub(crate) fn of_daemon(self, settings: &Partial) -> Result<Self> {
        let control = settings.control.map(|addr| {
            let loopback = match addr {
                SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            let ip = if addr.ip().is_unspecified() { loopback } else { addr.ip() };
            SocketAddr::new(ip, addr.port()).to_string()
        });
        let (clients, branches) = (&settings.tls_client_ca, &settings.tls_branch_ca);
        let known = branches.as_ref().or(clients.as_ref());
        let speaks_tls = settings.tls_cert.is_some();
        let ca = self.tls_ca.or_else(|| known.filter(|_| speaks_tls).cloned());
        if speaks_tls && ca.is_none() {
            let why = "the daemon speaks TLS: name the authority of its certificate with --tls-ca";
            return Err(WrongConfig(why.into()).into());
        }
        // The daemon takes its own certificate for a client's, where it was made for both.
        let own = clients.is_some();
        let (cert, key) = (settings.tls_cert.clone(), settings.tls_key.clone());
        Ok(Self {
            control: self.control.or(control),
            token_file: self.token_file.or_else(|| settings.token_file.clone()),
            tls_ca: ca,
            tls_cert: self.tls_cert.or(cert.filter(|_| own)),
            tls_key: self.tls_key.or(key.filter(|_| own)),
            tls_name: self.tls_name,
        })
    }

    fn addr(&self) -> &str {
        self.control.as_deref().unwrap_or(DEFAULT)
    }

    /// Connects and says hello.
    pub(crate) fn connect(&self) -> Result<Client> {
        let addr = self.addr().to_owned();
        let tls = self.tls()?;
        let token = self.token()?;
        let stream = match self.open() {
            Ok(stream) => stream,
            Err(source) => return Err(NoDaemon { addr, source }.into()),
        };
        stream.set_nodelay(true)?;
        let stream = match ControlStream::open(stream, tls.as_ref(), ANSWER_TIME) {
            Ok(stream) => stream,
            Err(OpenError::Refused(why)) => bail!("TLS with {addr} failed: {why}"),
            Err(OpenError::Io(error)) => return Err(error).context(format!("TLS with {addr}")),
        };
        stream.set_timeout(Some(ANSWER_TIME))?;
        let mut client = Client { stream, addr };
        let agent = format!("xdp-agg {}", env!("CARGO_PKG_VERSION"));
        match client.ask(&Request::Hello { version: CONTROL_VERSION, agent, token })? {
            Reply::Welcome { .. } => Ok(client),
            other => bail!("{}: an unexpected answer to Hello: {other:?}", client.addr),
        }
    }

    fn open(&self) -> io::Result<TcpStream> {
        let mut last = None;
        for addr in self.addr().to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, CONNECT_TIME) {
                Ok(stream) if talks_to_itself(&stream) => {}
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()))
    }

    fn tls(&self) -> Result<Option<ClientTls>> {
        let Self { tls_ca, tls_cert, tls_key, tls_name, .. } = self.clone();
        let files = ClientFiles { ca: tls_ca, certificate: tls_cert, key: tls_key, name: tls_name };
        let host = self.addr().rsplit_once(':').map_or(self.addr(), |(host, _)| host);
        Ok(files.load(host.trim_start_matches('[').trim_end_matches(']'))?)
    }

    /// The file's token, else that of the environment.
    fn token(&self) -> Result<Option<Token>> {
        match &self.token_file {
            Some(path) => Ok(Some(read_token(path)?)),
            None => Ok(xdp_agg_client::variable("XDP_AGG_TOKEN")?.map(Token)),
        }
    }
}

/// Whether the socket is connected to itself: on an ephemeral port without a listener it may be.
fn talks_to_itself(stream: &TcpStream) -> bool {
    let ends: (io::Result<SocketAddr>, io::Result<SocketAddr>) =
        (stream.local_addr(), stream.peer_addr());
    matches!(ends, (Ok(local), Ok(peer)) if local == peer)
}

impl Client {
    /// Asks, and turns a refusal into an error.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply> {
        let sent = write_message(&mut self.stream, request);
        // A daemon that refuses a connection says why before it hangs up. That says more than the
        // error that nothing more could be sent.
        let reply = match (sent, read_message(&mut self.stream)) {
            (_, Ok(reply)) => reply,
            (Ok(()), Err(error)) | (Err(error), Err(_)) => return Err(self.explain(error)),
        };
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
                io::ErrorKind::InvalidData => format!("TLS with {} failed", self.addr),
                _ => format!("the daemon at {} ended the connection", self.addr),
            },
            _ => format!("{} does not answer as an xdp-agg daemon does", self.addr),
        };
        anyhow::Error::new(error).context(what)
    }
}
