//! The daemon's settings: flags over environment over file over defaults.
//!
//! Flags and environment are the command line's to read; here a [`Partial`] of each source is
//! laid over the next, and the whole is checked once.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::DATA_PORT;

use crate::engine::{EngineConfig, EngineKind, XdpMode};
use crate::server::ServerConfig;

/// Default size of the whole pool: 8 jobs of [`JOB_SLOTS`].
pub const SLOTS: u32 = 8192;
/// Default size of a job's pool: a window of 256 blocks.
pub const JOB_SLOTS: u32 = 1024;
/// Most slots of the whole pool: 3.5 GiB.
const SLOTS_MAX: u32 = 1 << 20;
/// Default time for all ranks to join, in seconds.
pub const JOIN_TIMEOUT_S: u64 = 60;
/// Default time for all paths to be tried, in seconds.
pub const PROBE_TIMEOUT_S: u64 = 20;
/// Most seconds of a timeout: a day.
const TIMEOUT_MAX_S: u64 = 86_400;

/// The settings of one source; None where it says nothing. In a file the names are those of the
/// flags: `data-port = 48864`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
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
    /// Seconds for all paths to be tried.
    pub probe_timeout: Option<u64>,
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
}

impl Partial {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or has an unknown key or a value of a wrong type: the error
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
            data_port: self.data_port.or(below.data_port),
            slots: self.slots.or(below.slots),
            job_slots: self.job_slots.or(below.job_slots),
            mtu: self.mtu.or(below.mtu),
            join_timeout: self.join_timeout.or(below.join_timeout),
            probe_timeout: self.probe_timeout.or(below.probe_timeout),
            log: self.log.or(below.log),
        }
    }

    /// Fills in the defaults and checks everything.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn complete(self) -> Result<Settings, ConfigError> {
        let slots = self.slots.unwrap_or(SLOTS);
        if !(2..=SLOTS_MAX).contains(&slots) {
            return wrong("slots", slots, format!("2 to {SLOTS_MAX} are expected"));
        }
        let job_slots = self.job_slots.unwrap_or(JOB_SLOTS.min(1 << slots.ilog2()));
        if Pool::new(job_slots).is_none() || job_slots > slots {
            let expected = format!("a power of two from 2 to {slots} (slots) is expected");
            return wrong("job-slots", job_slots, expected);
        }
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
                return wrong("data-addr", addr, expected.into());
            }
            _ => {}
        }
        let data_port = self.data_port.unwrap_or(DATA_PORT);
        let kind = self.engine.unwrap_or_default();
        if data_port == 0 && kind != EngineKind::Userspace {
            let expected = "only the user-space engine can choose a free port: name one, or use \
                            --engine userspace";
            return wrong("data-port", 0, expected.into());
        }
        let join_timeout = seconds("join-timeout", self.join_timeout.unwrap_or(JOIN_TIMEOUT_S))?;
        let probe_timeout =
            seconds("probe-timeout", self.probe_timeout.unwrap_or(PROBE_TIMEOUT_S))?;
        let any_address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CONTROL_PORT));
        Ok(Settings {
            control: self.control.unwrap_or(any_address),
            engine: EngineConfig {
                kind,
                xdp_mode: self.xdp_mode.unwrap_or_default(),
                interfaces: self.interface.unwrap_or_default(),
                data_addr: self.data_addr,
                data_port,
                slots,
                mtu: self.mtu,
            },
            server: ServerConfig {
                data_addr: self.data_addr,
                data_port,
                job_slots,
                join_timeout,
                probe_timeout,
                resume_timeout: Duration::from_secs(10),
                dead_after: Duration::from_secs(2),
                straggler_timeout: None,
                token: None,
                job_slots_max: None,
                job_packet_rate: None,
            },
        })
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
                   log = 'debug'\n";
        let settings = file(all).and_then(Partial::complete).expect("all of it is right");
        assert_eq!(settings.control.to_string(), "10.0.0.254:9000");
        assert_eq!(settings.engine.interfaces, ["p0", "p1"]);
        assert_eq!((settings.engine.slots, settings.server.job_slots), (64, 8));
        assert_eq!(settings.engine.xdp_mode, XdpMode::Generic);
        assert_eq!(settings.server.probe_timeout, Duration::from_secs(6));
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
            ("data-port = 0", "--engine userspace"),
            ("join-timeout = 0", "join-timeout = 0: 1 to"),
            ("probe-timeout = 90000", "probe-timeout = 90000: 1 to"),
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
