//! The daemon's settings: flags over environment over file over defaults.
//!
//! A [`Partial`] of each source is laid over the next, and the whole is checked once.

mod changes;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use xdp_agg_common::control::{CONTROL_PORT, IPV4_ONLY, ipv6};
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::DATA_PORT;

use crate::engine::{EngineConfig, EngineKind, LocalAddr, XdpMode};
use crate::server::ServerConfig;
use crate::state::StateFile;
use xdp_agg_protocol::daemon::Patience;
use xdp_agg_tls::{ClientFiles, SecretError, ServerFiles, ServerTls, TlsError, read_tokens};

/// Default size of the whole pool: 8 jobs of [`JOB_SLOTS`].
pub const SLOTS: u32 = 8192;
/// Default size of a job's pool: a window of 256 blocks.
pub const JOB_SLOTS: u32 = 1024;
/// Most slots of the whole pool: 3.5 GiB.
const SLOTS_MAX: u32 = 1 << 20;
/// Default time for all ranks to join, in seconds.
pub const JOIN_TIMEOUT_S: u64 = 60;
/// Default for the most that a job's workers may ask for, in seconds.
pub const JOIN_TIMEOUT_MAX_S: u64 = 3600;
/// Default time for all paths to be tried, and for each step of a tree's branches, in seconds.
pub const PROBE_TIMEOUT_S: u64 = 20;
/// Default time for the members of another daemon's job to come back, in seconds.
pub const RESUME_TIMEOUT_S: u64 = 10;
/// Default directory of state files.
pub const STATE_DIR: &str = "/run/xdp-agg";
/// Least and most seconds until a dead host or a straggler is given up.
const LOSS_S: RangeInclusive<f64> = 0.1..=3600.0;
/// Most packets a second of a quota: one a nanosecond.
const PACKET_RATE_MAX: u64 = 1_000_000_000;
/// Most seconds of a timeout: a day.
const TIMEOUT_MAX_S: u64 = 86_400;

/// The settings of one source; None where it says nothing. In a file the names are those of the
/// flags: `data-port = 48864`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Partial {
    /// Interface that workers are behind; repeat it for several
    #[arg(short, long, env = "XDP_AGG_INTERFACE", value_name = "IF", value_delimiter = ',')]
    pub interface: Option<Vec<String>>,
    /// What sums: XDP in the kernel, or plain UDP sockets without privileges [default: auto]
    #[arg(long, env = "XDP_AGG_ENGINE", value_name = "ENGINE")]
    pub engine: Option<EngineKind>,
    /// How the XDP program is attached [default: auto]
    #[arg(long, env = "XDP_AGG_XDP_MODE", value_name = "MODE")]
    pub xdp_mode: Option<XdpMode>,
    /// Where workers and tools connect (TCP) [default: 0.0.0.0:9870]
    #[arg(long, env = "XDP_AGG_CONTROL", value_name = "ADDR:PORT")]
    pub control: Option<SocketAddr>,
    /// IPv4 address of this host that workers send data to [default: the one that each worker is
    /// connected to]
    #[arg(long, env = "XDP_AGG_DATA_ADDR", value_name = "IP", value_parser = ipv4)]
    #[serde(deserialize_with = "some_ipv4")]
    pub data_addr: Option<Ipv4Addr>,
    /// Address that workers on this host send data to, with the XDP engine: one of nobody, to which
    /// a veth pair is made; `auto` takes one of 169.254.109.0/24, `off` serves no such workers
    /// [default: auto]
    #[arg(long, env = "XDP_AGG_LOCAL_ADDR", value_name = "IP|auto|off")]
    pub local_addr: Option<LocalAddr>,
    /// UDP port that workers send data to; 0 takes a free one (user-space engine only) [default:
    /// 48864]
    #[arg(long, env = "XDP_AGG_DATA_PORT", value_name = "PORT")]
    pub data_port: Option<u16>,
    /// Slots of all jobs together [default: 8192]
    #[arg(long, env = "XDP_AGG_SLOTS", value_name = "N")]
    pub slots: Option<u32>,
    /// Slots of a job that asks for none in particular, a power of two [default: 1024]
    #[arg(long, env = "XDP_AGG_JOB_SLOTS", value_name = "N")]
    pub job_slots: Option<u32>,
    /// MTU that bounds the blocks, in bytes [default: the smallest of the interfaces']
    #[arg(long, env = "XDP_AGG_MTU", value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Number of the VLAN that workers send in, where no interface of that VLAN is named: XDP takes
    /// its packets from the --interface that carries them [default: that of the interface, if it is
    /// a VLAN's]
    #[arg(long, env = "XDP_AGG_VLAN", value_name = "ID")]
    pub vlan: Option<u16>,
    /// How long ranks may take to join a job, from the first one, where its workers ask for no time
    /// of their own [default: 60]
    #[arg(long, env = "XDP_AGG_JOIN_TIMEOUT", value_name = "SECS")]
    pub join_timeout: Option<u64>,
    /// The most that a job's workers may ask for, by their XDP_AGG_JOIN_DEADLINE [default: 3600]
    #[arg(long, env = "XDP_AGG_JOIN_TIMEOUT_MAX", value_name = "SECS")]
    pub join_timeout_max: Option<u64>,
    /// How long the members of a job may take to try their paths, and the branches of its tree for
    /// each step until it runs: connect, serve, prepare, find their parent, start [default: 20]
    #[arg(long, env = "XDP_AGG_PROBE_TIMEOUT", value_name = "SECS")]
    pub probe_timeout: Option<u64>,
    /// Certificate of this daemon in PEM, for control connections over TLS (then all are)
    #[arg(long, env = "XDP_AGG_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(long, env = "XDP_AGG_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Authority that must have signed the certificate of every worker and tool [default: none is
    /// asked for]
    #[arg(long, env = "XDP_AGG_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// The daemons below this one in a job's tree are reached over TLS: their certificates must be
    /// signed by this authority (PEM). This daemon shows its own certificate. Without it these
    /// connections are plain; a daemon that speaks TLS itself makes none then.
    #[arg(long, value_name = "FILE", env = "XDP_AGG_TLS_BRANCH_CA")]
    pub tls_branch_ca: Option<PathBuf>,
    /// How long the members of a job may take to come back after the daemon's restart [default: 10]
    #[arg(long, env = "XDP_AGG_RESUME_TIMEOUT", value_name = "SECS")]
    pub resume_timeout: Option<u64>,
    /// In what time a dead host or link is noticed; a process that is only stopped is not dead. A
    /// link that is away for up to a third of that time costs time only [default: 30 where
    /// the loss of a worker ends its job, 10 where the others go on]
    #[arg(long, env = "XDP_AGG_DEAD_AFTER", value_name = "SECS")]
    pub dead_after: Option<f64>,
    /// How long the others wait for a worker that contributes nothing until it counts as lost; 0:
    /// until their calls' deadlines [default: 0]
    #[arg(long, env = "XDP_AGG_STRAGGLER_TIMEOUT", value_name = "SECS")]
    pub straggler_timeout: Option<f64>,
    /// How long the others wait for a worker that is silent besides: its process answers no
    /// heartbeat, as one that is stopped; 0: until their calls' deadlines [default: 0]
    #[arg(long, env = "XDP_AGG_SILENT_TIMEOUT", value_name = "SECS")]
    pub silent_timeout: Option<f64>,
    /// File with the token that workers and tools have to know, in its first line; tokens in
    /// further lines are accepted too, while it is replaced. Only its owner may read it [default:
    /// none is needed]
    #[arg(long, env = "XDP_AGG_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Most slots that a job may ask for [default: all]
    #[arg(long, env = "XDP_AGG_JOB_SLOTS_MAX", value_name = "N")]
    pub job_slots_max: Option<u32>,
    /// Packets a second that a job may send; a packet with copies for all members counts as many;
    /// what is more is dropped and counted; 0: no limit [default: 0]
    #[arg(long, env = "XDP_AGG_JOB_PACKET_RATE", value_name = "N")]
    pub job_packet_rate: Option<u64>,
    /// Directory in a BPF file system where the data path is pinned: it goes on while the daemon is
    /// replaced, also after SIGKILL [default: it ends with the daemon]
    #[arg(long, env = "XDP_AGG_PIN", value_name = "DIR")]
    pub pin: Option<PathBuf>,
    /// With --pin: remove the data path that an earlier daemon left there, with its jobs, instead
    /// of taking it over
    // Not for files: every restart would end the jobs.
    #[arg(long, requires = "pin")]
    #[serde(skip)]
    pub fresh: bool,
    /// With --pin: directory of the file that tells the next daemon of the running jobs, and is
    /// named after the directory of the pins [default: /run/xdp-agg]
    #[arg(long, env = "XDP_AGG_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// With --pin: leave data path and jobs to the next daemon also when interrupted; without it
    /// they end then (keep-on-exit in the file)
    #[arg(long = "keep")]
    pub keep_on_exit: bool,
    /// What is logged, for example `debug` or `warn,xdp_agg_protocol=debug`; RUST_LOG does the same
    /// [default: info]
    #[arg(long, env = "XDP_AGG_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// Complete settings that passed all checks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where workers and tools connect.
    pub control: SocketAddr,
    /// The engine's part.
    pub engine: EngineConfig,
    /// The control server's part.
    pub server: ServerConfig,
}

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}", path = path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what was expected.
    #[error(
        "the configuration file {path} is wrong: {source}\
         (keys are named like the flags of `xdp-agg serve`, for example data-port = 48864)",
        path = path.display()
    )]
    Toml {
        /// Its path.
        path: PathBuf,
        /// Where, and what.
        source: Box<toml::de::Error>,
    },
    /// A value out of its range.
    #[error("{name} = {value}: {expected}")]
    Value {
        /// Name of the setting.
        name: &'static str,
        /// What it was.
        value: String,
        /// What was expected, and what to do.
        expected: String,
    },
    /// TLS cannot be used as it is set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] SecretError),
}

impl Settings {
    /// Directories that the daemon writes to while it runs.
    #[must_use]
    pub fn writable(&self) -> Vec<PathBuf> {
        let state = self.server.state.as_ref().map(|state| state.directory().to_owned());
        self.engine.pin.clone().into_iter().chain(state).collect()
    }

    /// A sentence, if every host that reaches the control port may use it.
    #[must_use]
    pub fn openness(&self) -> Option<String> {
        let server = &self.server;
        let shown = server.tls.as_ref().is_some_and(ServerTls::asks_for_certificates);
        let closed = shown || !server.tokens.is_empty() || self.control.ip().is_loopback();
        (!closed).then(|| {
            format!(
                "CONTROL IS OPEN: every host that reaches {} may join, list and end jobs; \
                 `xdp-agg init` writes settings with a token; or set --token-file or \
                 --tls-client-ca, or bind --control to a loopback address",
                self.control
            )
        })
    }
}

impl Partial {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// It cannot be read, is not TOML, or has an unknown key or a value of a wrong type: the error
    /// names the line and the key.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::File { path: path.into(), source })?;
        toml::from_str(&text)
            .map_err(|source| ConfigError::Toml { path: path.into(), source: Box::new(source) })
    }

    /// These settings, and those of `below` where these say nothing.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            interface: self.interface.or(below.interface),
            engine: self.engine.or(below.engine),
            xdp_mode: self.xdp_mode.or(below.xdp_mode),
            control: self.control.or(below.control),
            data_addr: self.data_addr.or(below.data_addr),
            local_addr: self.local_addr.or(below.local_addr),
            data_port: self.data_port.or(below.data_port),
            slots: self.slots.or(below.slots),
            job_slots: self.job_slots.or(below.job_slots),
            mtu: self.mtu.or(below.mtu),
            vlan: self.vlan.or(below.vlan),
            join_timeout: self.join_timeout.or(below.join_timeout),
            join_timeout_max: self.join_timeout_max.or(below.join_timeout_max),
            probe_timeout: self.probe_timeout.or(below.probe_timeout),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_client_ca: self.tls_client_ca.or(below.tls_client_ca),
            tls_branch_ca: self.tls_branch_ca.or(below.tls_branch_ca),
            resume_timeout: self.resume_timeout.or(below.resume_timeout),
            dead_after: self.dead_after.or(below.dead_after),
            straggler_timeout: self.straggler_timeout.or(below.straggler_timeout),
            silent_timeout: self.silent_timeout.or(below.silent_timeout),
            token_file: self.token_file.or(below.token_file),
            job_slots_max: self.job_slots_max.or(below.job_slots_max),
            job_packet_rate: self.job_packet_rate.or(below.job_packet_rate),
            pin: self.pin.or(below.pin),
            fresh: self.fresh || below.fresh,
            state_dir: self.state_dir.or(below.state_dir),
            keep_on_exit: self.keep_on_exit || below.keep_on_exit,
            log: self.log.or(below.log),
        }
    }

    /// Fills in the defaults and checks everything. Reads the token's file, and makes the
    /// directory of the state file.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn complete(self) -> Result<Settings, ConfigError> {
        let (slots, job_slots) = self.slots()?;
        self.check_addresses()?;
        let data_port = self.data_port.unwrap_or(DATA_PORT);
        let kind = self.engine.unwrap_or_default();
        if data_port == 0 && kind != EngineKind::Userspace {
            let expected = "only the user-space engine can choose a free port: name one, or use \
                            --engine userspace";
            return wrong("data-port", 0, expected.into());
        }
        let any_address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CONTROL_PORT));
        let server = self.server(job_slots, data_port, kind)?;
        Ok(Settings {
            control: self.control.unwrap_or(any_address),
            engine: EngineConfig {
                kind,
                xdp_mode: self.xdp_mode.unwrap_or_default(),
                interfaces: self.interface.unwrap_or_default(),
                data_addr: self.data_addr,
                local_addr: self.local_addr.unwrap_or_default(),
                data_port,
                slots,
                mtu: self.mtu,
                vlan: self.vlan,
                pin: self.pin,
                fresh: self.fresh,
            },
            server,
        })
    }

    /// Slots of the whole pool, and of a job that asks for none in particular.
    fn slots(&self) -> Result<(u32, u32), ConfigError> {
        let slots = self.slots.unwrap_or(SLOTS);
        if !(2..=SLOTS_MAX).contains(&slots) {
            return wrong("slots", slots, format!("2 to {SLOTS_MAX} are expected"));
        }
        let most = self.job_slots_max.unwrap_or(slots);
        if !(2..=slots).contains(&most) {
            return wrong("job-slots-max", most, format!("2 to {slots} (slots) are expected"));
        }
        let job_slots = self.job_slots.unwrap_or(JOB_SLOTS.min(1 << most.ilog2()));
        if Pool::new(job_slots).is_none() || job_slots > most {
            let what = if self.job_slots_max.is_some() { "job-slots-max" } else { "slots" };
            let expected = format!("a power of two from 2 to {most} ({what}) is expected");
            return wrong("job-slots", job_slots, expected);
        }
        Ok((slots, job_slots))
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        let least = (IP_OVERHEAD + CHUNK_LEN) as u32;
        match self.mtu {
            Some(mtu) if mtu < least || mtu > 65_535 => {
                return wrong("mtu", mtu, format!("{least} to 65535 bytes are expected"));
            }
            _ => {}
        }
        if let Some(vlan) = self.vlan.filter(|vlan| !(1..=4094).contains(vlan)) {
            return wrong("vlan", vlan, "1 to 4094 are expected".into());
        }
        match self.data_addr {
            Some(addr) if addr.is_unspecified() || addr.is_multicast() || addr.is_broadcast() => {
                let expected = "one address of this host is expected; leave it out to use the \
                                address that each worker is connected to";
                wrong("data-addr", addr, expected.into())
            }
            _ => Ok(()),
        }?;
        match self.local_addr {
            Some(LocalAddr::At(addr))
                if addr.is_unspecified()
                    || addr.is_multicast()
                    || addr.is_broadcast()
                    || addr.is_loopback()
                    || self.data_addr == Some(addr) =>
            {
                let expected = "an address that nobody has is expected: workers on this host send \
                                to it instead of to the data address";
                wrong("local-addr", addr, expected.into())
            }
            _ => Ok(()),
        }
    }

    /// The control server's part.
    fn server(
        &self,
        job_slots: u32,
        data_port: u16,
        kind: EngineKind,
    ) -> Result<ServerConfig, ConfigError> {
        let rate = self.job_packet_rate.filter(|rate| *rate > 0);
        if let Some(rate) = rate.filter(|rate| *rate > PACKET_RATE_MAX) {
            let expected =
                format!("0 (no limit) to {PACKET_RATE_MAX} packets a second are expected");
            return wrong("job-packet-rate", rate, expected);
        }
        let tls = ServerFiles {
            certificate: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca: self.tls_client_ca.clone(),
        };
        let identity =
            self.tls_branch_ca.as_ref().and(tls.certificate.clone().zip(tls.key.clone()));
        let (certificate, key) = identity.unzip();
        let branch_tls =
            ClientFiles { ca: self.tls_branch_ca.clone(), certificate, key, name: None };
        // Files that cannot be loaded are refused now, and not when the first tree is formed.
        branch_tls.load("localhost")?;
        let straggler = self.straggler_timeout.filter(|seconds| *seconds != 0.0);
        let silent = self.silent_timeout.filter(|seconds| *seconds != 0.0);
        if self.keep_on_exit && self.pin.is_none() {
            let expected =
                "without --pin nothing outlives this process: name a directory to pin to";
            return wrong("keep-on-exit", true, expected.into());
        }
        Ok(ServerConfig {
            data_addr: self.data_addr,
            data_port,
            job_slots,
            join_timeout: seconds("join-timeout", self.join_timeout.unwrap_or(JOIN_TIMEOUT_S))?,
            join_timeout_max: seconds(
                "join-timeout-max",
                self.join_timeout_max.unwrap_or(JOIN_TIMEOUT_MAX_S),
            )?,
            probe_timeout: seconds("probe-timeout", self.probe_timeout.unwrap_or(PROBE_TIMEOUT_S))?,
            resume_timeout: seconds(
                "resume-timeout",
                self.resume_timeout.unwrap_or(RESUME_TIMEOUT_S),
            )?,
            patience: Patience(self.dead_after.map(|s| loss("dead-after", s)).transpose()?),
            straggler_timeout: straggler.map(|s| loss("straggler-timeout", s)).transpose()?,
            silent_timeout: silent.map(|s| loss("silent-timeout", s)).transpose()?,
            tokens: self.token_file.as_deref().map_or(Ok(Vec::new()), read_tokens)?,
            job_slots_max: self.job_slots_max,
            job_packet_rate: rate,
            state: self.state(kind)?,
            keep_on_exit: self.keep_on_exit,
            tls: tls.load()?,
            branch_tls,
        })
    }

    /// The state file, where the data path outlives the daemon.
    fn state(&self, kind: EngineKind) -> Result<Option<StateFile>, ConfigError> {
        let Some(pin) = &self.pin else {
            return Ok(None);
        };
        if kind == EngineKind::Userspace {
            let expected = "the user-space engine has nothing to pin; leave it out, or use XDP";
            return wrong("pin", pin.display(), expected.into());
        }
        if !pin.is_absolute() {
            let expected = "an absolute path in a BPF file system is expected, for example \
                            /sys/fs/bpf/xdp-agg";
            return wrong("pin", pin.display(), expected.into());
        }
        let dir = self.state_dir.as_deref().unwrap_or(Path::new(STATE_DIR));
        match StateFile::in_dir(dir, pin) {
            Ok(state) => Ok(Some(state)),
            Err(error) => wrong("state-dir", dir.display(), error.to_string()),
        }
    }
}

/// An IPv4 address. Errors say what to do with an IPv6 one.
pub(crate) fn ipv4(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|error: std::net::AddrParseError| match ipv6(text) {
        Some(_) => format!("this is an IPv6 address; expected {IPV4_ONLY}"),
        None => error.to_string(),
    })
}

fn some_ipv4<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Ipv4Addr>, D::Error> {
    ipv4(&String::deserialize(text)?).map(Some).map_err(D::Error::custom)
}

/// A time after which a dead host or a straggler is given up.
fn loss(name: &'static str, value: f64) -> Result<Duration, ConfigError> {
    if LOSS_S.contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        let (least, most) = (LOSS_S.start(), LOSS_S.end());
        wrong(name, value, format!("{least} to {most} seconds are expected"))
    }
}

fn seconds(name: &'static str, value: u64) -> Result<Duration, ConfigError> {
    if (1..=TIMEOUT_MAX_S).contains(&value) {
        Ok(Duration::from_secs(value))
    } else {
        wrong(name, value, format!("1 to {TIMEOUT_MAX_S} seconds are expected"))
    }
}

fn wrong<T>(name: &'static str, value: impl ToString, expected: String) -> Result<T, ConfigError> {
    Err(ConfigError::Value { name, value: value.to_string(), expected })
}

#[cfg(test)]
mod tests;
