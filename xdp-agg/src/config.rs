//! The daemon's settings: flags over environment over file over defaults.
//!
//! The command line reads flags and environment. Here a [`Partial`] of each source is laid over the
//! next one, and the result is checked once.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::DATA_PORT;

use crate::engine::{EngineConfig, EngineKind, LocalAddr, XdpMode};
use crate::server::ServerConfig;
use crate::state::StateFile;
use xdp_agg_tls::{ClientFiles, SecretError, ServerFiles, TlsError, read_token};

/// Default size of the whole pool: 8 jobs of [`JOB_SLOTS`].
pub const SLOTS: u32 = 8192;
/// Default size of a job's pool: a window of 256 blocks.
pub const JOB_SLOTS: u32 = 1024;
/// Most slots of the whole pool: 3.5 GiB.
const SLOTS_MAX: u32 = 1 << 20;
/// Default time for all ranks to join, in seconds.
pub const JOIN_TIMEOUT_S: u64 = 60;
/// Default time for all paths to be tried, and for each step of a tree's branches, in seconds.
pub const PROBE_TIMEOUT_S: u64 = 20;
/// Default time for the members of another daemon's job to come back, in seconds.
pub const RESUME_TIMEOUT_S: u64 = 10;
/// Default time in which a dead host is noticed, in seconds.
pub const DEAD_AFTER_S: f64 = 2.0;
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Partial {
    /// Interfaces that workers are behind.
    pub interface: Option<Vec<String>>,
    /// Which engine.
    pub engine: Option<EngineKind>,
    /// How XDP is attached.
    pub xdp_mode: Option<XdpMode>,
    /// Where workers and tools connect.
    pub control: Option<SocketAddr>,
    /// Address that workers send to.
    pub data_addr: Option<Ipv4Addr>,
    /// Address that workers on the daemon's own host send to.
    pub local_addr: Option<LocalAddr>,
    /// UDP port that workers send to.
    pub data_port: Option<u16>,
    /// Slots of the whole pool.
    pub slots: Option<u32>,
    /// Slots of a job that asks for none in particular.
    pub job_slots: Option<u32>,
    /// MTU that bounds the blocks.
    pub mtu: Option<u32>,
    /// Seconds for all ranks to join.
    pub join_timeout: Option<u64>,
    /// Seconds for all paths to be tried, and for each step of a tree's branches.
    pub probe_timeout: Option<u64>,
    /// Certificate of the daemon, for control connections over TLS.
    pub tls_cert: Option<PathBuf>,
    /// Its key.
    pub tls_key: Option<PathBuf>,
    /// Authority that must have signed the certificates of workers and tools.
    pub tls_client_ca: Option<PathBuf>,
    /// Authority that signed the certificates of the daemons below this one in a job's tree.
    pub tls_branch_ca: Option<PathBuf>,
    /// Seconds for the members of another daemon's job to come back.
    pub resume_timeout: Option<u64>,
    /// Seconds in which a dead host is noticed.
    pub dead_after: Option<f64>,
    /// Seconds that others wait for a member that contributes nothing; 0: for ever.
    pub straggler_timeout: Option<f64>,
    /// File with the token that every connection has to know.
    pub token_file: Option<PathBuf>,
    /// Most slots of a job.
    pub job_slots_max: Option<u32>,
    /// Packets a second that a job may send; 0: no limit.
    pub job_packet_rate: Option<u64>,
    /// Directory in a BPF file system where the data path is pinned.
    pub pin: Option<PathBuf>,
    /// Remove what is pinned there first. Not for files: every restart would end the jobs.
    #[serde(skip)]
    pub fresh: Option<bool>,
    /// Directory of the file in which running jobs are left to the next daemon. The file is named
    /// after `pin`: daemons can share the directory.
    pub state_dir: Option<PathBuf>,
    /// With `pin`: a shutdown leaves the data path and the jobs to the next daemon.
    pub keep_on_exit: Option<bool>,
    /// What is logged, as a filter of `tracing`.
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
            join_timeout: self.join_timeout.or(below.join_timeout),
            probe_timeout: self.probe_timeout.or(below.probe_timeout),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_client_ca: self.tls_client_ca.or(below.tls_client_ca),
            tls_branch_ca: self.tls_branch_ca.or(below.tls_branch_ca),
            resume_timeout: self.resume_timeout.or(below.resume_timeout),
            dead_after: self.dead_after.or(below.dead_after),
            straggler_timeout: self.straggler_timeout.or(below.straggler_timeout),
            token_file: self.token_file.or(below.token_file),
            job_slots_max: self.job_slots_max.or(below.job_slots_max),
            job_packet_rate: self.job_packet_rate.or(below.job_packet_rate),
            pin: self.pin.or(below.pin),
            fresh: self.fresh.or(below.fresh),
            state_dir: self.state_dir.or(below.state_dir),
            keep_on_exit: self.keep_on_exit.or(below.keep_on_exit),
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
                pin: self.pin,
                fresh: self.fresh.unwrap_or(false),
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
        let keep_on_exit = self.keep_on_exit.unwrap_or(false);
        if keep_on_exit && self.pin.is_none() {
            let expected =
                "without --pin nothing outlives this process: name a directory to pin to";
            return wrong("keep-on-exit", true, expected.into());
        }
        Ok(ServerConfig {
            data_addr: self.data_addr,
            data_port,
            job_slots,
            join_timeout: seconds("join-timeout", self.join_timeout.unwrap_or(JOIN_TIMEOUT_S))?,
            probe_timeout: seconds("probe-timeout", self.probe_timeout.unwrap_or(PROBE_TIMEOUT_S))?,
            resume_timeout: seconds(
                "resume-timeout",
                self.resume_timeout.unwrap_or(RESUME_TIMEOUT_S),
            )?,
            dead_after: loss("dead-after", self.dead_after.unwrap_or(DEAD_AFTER_S))?,
            straggler_timeout: straggler.map(|s| loss("straggler-timeout", s)).transpose()?,
            token: self.token_file.as_deref().map(read_token).transpose()?,
            job_slots_max: self.job_slots_max,
            job_packet_rate: rate,
            state: self.state(kind)?,
            keep_on_exit,
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
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Partial, ConfigError> {
        toml::from_str(text).map_err(|source| ConfigError::Toml {
            path: "test.toml".into(),
            source: Box::new(source),
        })
    }

    #[test]
    fn a_file_says_what_the_flags_say() {
        let all = "interface = ['p0', 'p1']\nengine = 'xdp'\nxdp-mode = 'generic'\n\
                   control = '10.0.0.254:9000'\ndata-addr = '10.0.0.254'\ndata-port = 5000\n\
                   slots = 64\njob-slots = 8\nmtu = 1500\njoin-timeout = 5\nprobe-timeout = 6\n\
                   log = 'debug'\nresume-timeout = 7\ndead-after = 1\nstraggler-timeout = 2.5\n\
                   job-slots-max = 16\njob-packet-rate = 1000\n\
                   local-addr = '169.254.7.7'\n";
        let settings = file(all).and_then(Partial::complete).expect("all of it is right");
        assert_eq!(settings.control.to_string(), "10.0.0.254:9000");
        assert_eq!(settings.engine.interfaces, ["p0", "p1"]);
        assert_eq!((settings.engine.slots, settings.server.job_slots), (64, 8));
        assert_eq!(settings.engine.xdp_mode, XdpMode::Generic);
        let local = LocalAddr::At(Ipv4Addr::new(169, 254, 7, 7));
        assert_eq!(settings.engine.local_addr, local);
        let server = settings.server;
        assert_eq!(server.probe_timeout, Duration::from_secs(6));
        assert_eq!(server.resume_timeout, Duration::from_secs(7));
        assert_eq!(server.dead_after, Duration::from_secs(1));
        assert_eq!(server.straggler_timeout, Some(Duration::from_millis(2500)));
        assert_eq!((server.job_slots_max, server.job_packet_rate), (Some(16), Some(1000)));
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = file("slots = 64\ndata_prot = 5000\n").expect_err("there is no such key");
        let text = error.to_string();
        for word in ["data_prot", "line 2", "data-port", "test.toml"] {
            assert!(text.contains(word), "{word:?} is missing in {text}");
        }
    }

    #[test]
    fn what_lies_above_wins() {
        let above = Partial { slots: Some(16), ..Partial::default() };
        let below = Partial { slots: Some(64), job_slots: Some(4), ..Partial::default() };
        let both = above.over(below);
        assert_eq!((both.slots, both.job_slots), (Some(16), Some(4)));
    }

    #[test]
    fn values_out_of_range_are_named_with_what_is_expected() {
        let cases = [
            ("slots = 1", "slots = 1: 2 to"),
            ("job-slots = 12", "job-slots = 12: a power of two"),
            ("slots = 8\njob-slots = 16", "from 2 to 8"),
            ("mtu = 113", "mtu = 113: 114 to"),
            ("data-addr = '0.0.0.0'", "data-addr = 0.0.0.0: one address"),
            ("local-addr = '127.0.0.1'", "local-addr = 127.0.0.1: an address that nobody has"),
            ("data-port = 0", "--engine userspace"),
            ("join-timeout = 0", "join-timeout = 0: 1 to"),
            ("probe-timeout = 90000", "probe-timeout = 90000: 1 to"),
            ("resume-timeout = 0", "resume-timeout = 0: 1 to"),
            ("dead-after = 0", "dead-after = 0: 0.1 to 3600"),
            ("dead-after = nan", "dead-after = NaN: 0.1 to 3600"),
            ("straggler-timeout = -1", "straggler-timeout = -1: 0.1 to 3600"),
            ("job-slots-max = 1", "job-slots-max = 1: 2 to 8192"),
            ("job-slots-max = 16\njob-slots = 32", "from 2 to 16 (job-slots-max)"),
            ("job-packet-rate = 2000000000", "job-packet-rate = 2000000000: 0 (no limit)"),
            ("keep-on-exit = true", "--pin"),
            ("pin = 'here'", "pin = here: an absolute path"),
            ("pin = '/sys/fs/bpf/x'\nengine = 'userspace'", "nothing to pin"),
            ("pin = '/sys/fs/bpf/x'\nstate-dir = '/proc/none'", "state-dir = /proc/none"),
            ("token-file = '/none'", "token-file: cannot read /none (No such file"),
        ];
        for (text, words) in cases {
            let error = file(text).and_then(Partial::complete).expect_err(text);
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_small_pool_shrinks_the_default_of_a_job() {
        let settings = file("slots = 100").and_then(Partial::complete).expect("it is right");
        assert_eq!(settings.server.job_slots, 64);
    }
}
