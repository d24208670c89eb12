//! Settings from the environment.

use std::cell::Cell;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use xdp_agg_common::control::{
    AggregatorLoss, CONTROL_PORT, IPV4_ONLY, Token, WorkerLoss, first_ipv4, ipv6,
};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_launcher::{Launch, Number, text};
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_protocol::worker::flow::Congestion;
use xdp_agg_quantize::Scaling;
use xdp_agg_tls::{ClientFiles, SecretError, read_token};

use super::{Builder, Target, Transport};
use crate::collectives::Tuning;
use crate::error::Error;
use crate::trace::Tracing;

/// The value of an environment variable; None if it is not set.
///
/// # Errors
/// [`Error::Config`]: it is not UTF-8. Taken for a variable that is not set, it could turn off a
/// protection that its user has asked for.
pub fn variable(name: &'static str) -> Result<Option<String>, Error> {
    Ok(text(name, std::env::var_os(name))?)
}

/// The longest that a call may take, as `XDP_AGG_DEADLINE` says; None if it is not set.
///
/// # Errors
/// [`Error::Config`]: it is not a time above 0 in seconds.
pub fn deadline_from_env() -> Result<Option<Duration>, Error> {
    const NAME: &str = "XDP_AGG_DEADLINE";
    variable(NAME)?.map(|value| some_seconds(NAME, &value)).transpose()
}

impl Builder {
    /// Settings from the environment: the place in the world as launchers such as `torchrun`,
    /// `mpirun` and `srun` set it, and all else by `XDP_AGG_*`. Settings are listed in
    /// `docs/guide.md`, under "Settings of a worker".
    ///
    /// # Errors
    /// A variable that cannot be understood. Missing ones are reported by [`Self::connect`].
    pub fn from_env() -> Result<Self, Error> {
        Self::from_values(std::env::var_os)
    }

    /// The same from any source of names and values that need not be text.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn from_values(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Error> {
        let wrong = Cell::new(None);
        let built = Self::from_lookup(|name| {
            text(name, lookup(name)).unwrap_or_else(|error| {
                wrong.set(Some(error));
                None
            })
        });
        wrong.take().map_or(built, |error| Err(error.into()))
    }

    /// The same from any source of names and values.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self, Error> {
        let read = |name: &'static str| lookup(name).map(|value| (name, value));
        let value = |found: Option<Number>| found.map(|number| number.value);
        let mut builder = Self::default();
        let launch = Launch::read(|name| lookup(name).map(OsString::from))?;
        builder.rank = value(launch.rank);
        builder.world_size = value(launch.world_size);
        builder.local_rank = value(launch.local_rank);
        builder.local_size = value(launch.local_size);
        builder.group_rank = value(launch.group_rank);
        if let Some((name, value)) = read("XDP_AGG_ADDR") {
            builder.aggregators = targets(name, &value)?;
        }
        builder.slots = number(&lookup, "XDP_AGG_JOB_SLOTS", "a power of two, such as 1024")?;
        let strategy = lookup("XDP_AGG_STRATEGY");
        if let Some((name, path)) = read("XDP_AGG_TOPOLOGY") {
            if !builder.aggregators.is_empty() {
                let problem = "set together with XDP_AGG_ADDR: a topology names all daemons that \
                               take part; unset one of the two";
                return Err(Error::Config { name, problem: problem.into() });
            }
            builder = builder.read_topology(&path, strategy.as_deref())?;
        }
        if let (Some(strategy), None) = (strategy, &builder.source) {
            let problem = format!(
                "{strategy}, but no topology to follow it on; set XDP_AGG_TOPOLOGY to a topology \
                 file, or unset it"
            );
            return Err(Error::Config { name: "XDP_AGG_STRATEGY", problem });
        }
        if builder.aggregators.is_empty() {
            let meeting = launch.meeting()?;
            if let Some(place) = &meeting {
                refuse_ipv6(place.name, &place.host)?;
            }
            builder.meeting = meeting.map(Into::into);
        }
        builder.run = launch.run;
        if let Some((_, value)) = read("XDP_AGG_JOB") {
            builder.job = value;
        }
        if let Some((name, value)) = read("XDP_AGG_DEADLINE") {
            builder.deadline = some_seconds(name, &value)?;
        }
        if let Some((name, value)) = read("XDP_AGG_JOIN_DEADLINE") {
            builder.join_deadline = some_seconds(name, &value)?;
        }
        if let Some((name, value)) = read("XDP_AGG_STALL_DEADLINE") {
            builder.stall_deadline = some_seconds(name, &value)?;
        }
        if let Some((name, value)) = read("XDP_AGG_WARN_AFTER") {
            builder.warn_after = some_seconds(name, &value)?;
        }
        builder.mtu = number(&lookup, "XDP_AGG_MTU", "bytes, such as 1500")?;
        builder.rate = number(&lookup, "XDP_AGG_RATE", "bits per second, such as 1000000000")?;
        if let Some((name, value)) = read("XDP_AGG_CONGESTION") {
            let all = Congestion::ALL.map(|congestion| (congestion.name(), congestion));
            builder.congestion = one_of(name, value.trim(), &all)?;
        }
        if let Some((name, value)) = read("XDP_AGG_RESULT_MODE") {
            builder.result_mode = result_mode(name, &value)?;
        }
        if let Some((name, value)) = read("XDP_AGG_TRANSPORT") {
            let all = Transport::ALL.map(|transport| (transport.name(), transport));
            builder.transport = one_of(name, value.trim(), &all)?;
        }
        builder.read_local(&lookup)?;
        builder.read_numbers(&lookup)?;
        builder.read_policy(&lookup)?;
        builder.tracing = Tracing::read(&lookup)?;
        if let Some(value) = lookup("XDP_AGG_TUNING") {
            builder.tuning = Tuning::named("XDP_AGG_TUNING", &value)?;
        }
        Ok(builder)
    }

    /// The processes of this host.
    fn read_local(
        &mut self,
        lookup: &impl Fn(&'static str) -> Option<String>,
    ) -> Result<(), Error> {
        if let Some(value) = lookup("XDP_AGG_IN_HOST") {
            self.in_host = one_of("XDP_AGG_IN_HOST", &value, &[("on", true), ("off", false)])?;
        }
        if let Some(value) = lookup("XDP_AGG_HOST_COLLECTIVES") {
            let all = [("on", true), ("off", false)];
            self.host_collectives = one_of("XDP_AGG_HOST_COLLECTIVES", &value, &all)?;
        }
        self.segment = number(lookup, "XDP_AGG_SEGMENT", "bytes, such as 33554432")?;
        self.buffers = number(lookup, "XDP_AGG_BUFFERS", "bytes, such as 268435456")?.unwrap_or(0);
        self.segment_dir = lookup("XDP_AGG_SEGMENT_DIR").map(PathBuf::from);
        Ok(())
    }

    /// How numbers travel.
    fn read_numbers(
        &mut self,
        lookup: &impl Fn(&'static str) -> Option<String>,
    ) -> Result<(), Error> {
        if let Some(value) = lookup("XDP_AGG_SCALE") {
            let scale = parse("XDP_AGG_SCALE", &value, "a number above 0, such as 1e7")?;
            self.scaling = Scaling::Fixed(scale);
        }
        if let Some(value) = lookup("XDP_AGG_SCALING") {
            self.scaling = parse("XDP_AGG_SCALING", &value, "block or fixed:SCALE")?;
        }
        self.lanes = number(lookup, "XDP_AGG_LANES", "16, 32 or 64")?;
        Ok(())
    }

    /// What shall happen when somebody is lost, the token, and files for TLS.
    fn read_policy(
        &mut self,
        lookup: &impl Fn(&'static str) -> Option<String>,
    ) -> Result<(), Error> {
        let read = |name: &'static str| lookup(name).map(|value| (name, value));
        if let Some((name, value)) = read("XDP_AGG_ON_WORKER_LOSS") {
            let all = [WorkerLoss::Fail, WorkerLoss::Shrink].map(|loss| (loss.name(), loss));
            self.policy.worker_loss = one_of(name, &value, &all)?;
        }
        if let Some((name, value)) = read("XDP_AGG_ON_AGGREGATOR_LOSS") {
            let all = [AggregatorLoss::Fail, AggregatorLoss::Resume, AggregatorLoss::Ring];
            self.policy.aggregator_loss = one_of(name, &value, &all.map(|l| (l.name(), l)))?;
        }
        if let Some((name, value)) = read("XDP_AGG_FALLBACK_AFTER") {
            self.fallback_after = seconds(name, &value)?;
        }
        if let Some((name, value)) = read("XDP_AGG_DEAD_AFTER") {
            self.dead_after = Some(some_seconds(name, &value)?);
        }
        if let Some((_, value)) = read("XDP_AGG_TOKEN") {
            self.token = Some(Token(value));
        } else if let Some((name, path)) = read("XDP_AGG_TOKEN_FILE") {
            let token = read_token(Path::new(&path));
            let wrong = |error: SecretError| Error::Config { name, problem: error.to_string() };
            self.token = Some(token.map_err(wrong)?);
        }
        let file = |name| read(name).map(|(_, path)| PathBuf::from(path));
        self.tls = ClientFiles {
            ca: file("XDP_AGG_TLS_CA"),
            certificate: file("XDP_AGG_TLS_CERT"),
            key: file("XDP_AGG_TLS_KEY"),
            name: lookup("XDP_AGG_TLS_NAME"),
        };
        Ok(())
    }
}

/// `expected` says what is wrong with the value.
pub(crate) fn parse<T: FromStr>(
    name: &'static str,
    value: &str,
    expected: &str,
) -> Result<T, Error> {
    value
        .trim()
        .parse()
        .map_err(|_| Error::Config { name, problem: format!("{value:?} is not {expected}") })
}

/// A value to be parsed, if there is one.
fn number<T: FromStr>(
    lookup: &impl Fn(&'static str) -> Option<String>,
    name: &'static str,
    expected: &str,
) -> Result<Option<T>, Error> {
    lookup(name).map(|value| parse(name, &value, expected)).transpose()
}

fn seconds(name: &'static str, value: &str) -> Result<Duration, Error> {
    let expected = "seconds, such as 30 or 0.5";
    let number: f64 = parse(name, value, expected)?;
    let wrong = |_| Error::Config { name, problem: format!("{value:?} is not {expected}") };
    Ok(Duration::try_from_secs_f64(number).map_err(wrong)?.min(MAX_DEADLINE))
}

/// The same of a time in which something has to happen.
fn some_seconds(name: &'static str, value: &str) -> Result<Duration, Error> {
    let time = seconds(name, value)?;
    if time.is_zero() {
        let problem = format!("{value:?} is no time at all; expected seconds above 0, such as 30");
        return Err(Error::Config { name, problem });
    }
    Ok(time)
}

fn result_mode(name: &'static str, value: &str) -> Result<Option<ResultMode>, Error> {
    let modes = [ResultMode::Ports, ResultMode::Fanout, ResultMode::Multicast];
    match modes.into_iter().find(|mode| mode.name() == value) {
        Some(mode) => Ok(Some(mode)),
        None if value == "auto" => Ok(None),
        None => Err(Error::Config {
            name,
            problem: format!("{value:?} is not one of auto, ports, fanout, multicast"),
        }),
    }
}

fn one_of<T: Copy>(name: &'static str, value: &str, all: &[(&str, T)]) -> Result<T, Error> {
    let found = all.iter().find(|(known, _)| *known == value);
    found.map(|(_, found)| *found).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|(known, _)| *known).collect();
        Error::Config { name, problem: format!("{value:?} is not one of {}", known.join(", ")) }
    })
}

/// Daemons, separated by commas.
fn targets(name: &'static str, value: &str) -> Result<Vec<Target>, Error> {
    let all = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    all.map(|part| {
        let host = part.rsplit_once(':').map_or(part, |(host, _)| host).to_owned();
        let port = part[host.len()..].strip_prefix(':').map(str::parse);
        let port: Result<u16, _> = port.unwrap_or(Ok(CONTROL_PORT));
        // A name may not be known yet: it is looked up when the worker connects.
        let may_be = |c: char| c.is_alphanumeric() || "-._".contains(c);
        let is_name = host.chars().any(char::is_alphabetic) && host.chars().all(may_be);
        let (name, address) = match port {
            Ok(port) if is_name => {
                (Some(format!("{host}:{port}")), (Ipv4Addr::UNSPECIFIED, port).into())
            }
            _ => (None, resolve(name, part, CONTROL_PORT)?),
        };
        Ok(Target { host: Some(host), name, ..Target::new(address) })
    })
    .collect()
}

/// IPv4 addresses, separated by commas: `host` or `host:port`; `port` where none is given, and
/// `name` is the variable that errors name.
///
/// # Errors
/// [`Error::Config`]: a name that cannot be resolved, or has no IPv4 address.
pub fn addresses(name: &'static str, value: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    let all = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    all.map(|part| resolve(name, part, port)).collect()
}

fn refuse_ipv6(name: &'static str, value: &str) -> Result<(), Error> {
    if ipv6(value).is_none() {
        return Ok(());
    }
    let problem = format!("{value:?} is an IPv6 address; expected {IPV4_ONLY}");
    Err(Error::Config { name, problem })
}

/// `host`, `host:port` or an address: the first IPv4 address it stands for.
fn resolve(name: &'static str, value: &str, port: u16) -> Result<SocketAddr, Error> {
    refuse_ipv6(name, value)?;
    let with_port = if value.contains(':') { value.to_owned() } else { format!("{value}:{port}") };
    let problem = |detail: String| Error::Config {
        name,
        problem: format!("{value:?} {detail}; expected host or host:port, such as 10.0.0.1:9870"),
    };
    let addresses = with_port
        .to_socket_addrs()
        .map_err(|error| problem(format!("cannot be resolved ({error})")))?;
    first_ipv4(addresses)
        .map_err(|detail| Error::Config { name, problem: format!("{value:?} {detail}") })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_variable_that_is_no_text_is_an_error_and_not_shown() {
        for broken in ["XDP_AGG_TLS_CA", "XDP_AGG_TOKEN", "RANK"] {
            let value = |name| (name == broken).then(|| OsString::from_vec(b"/secret/\xff".into()));
            let error = Builder::from_values(value).expect_err(broken).to_string();
            assert!(error.contains(broken) && error.contains("UTF-8"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(Builder::from_values(|_| None).is_ok());
    }

    #[test]
    fn an_ipv6_address_is_told_that_vectors_travel_over_ipv4() {
        for value in ["::1", "[::1]", "[::1]:9870", "fe80::1%eth0", "10.0.0.1,2001:db8::1"] {
            let error = Builder::from_lookup(|name| (name == "XDP_AGG_ADDR").then(|| value.into()));
            let error = error.expect_err(value).to_string();
            assert!(error.contains("XDP_AGG_ADDR") && error.contains("over IPv4 only"), "{error}");
        }
        for value in ["::1", "fe80::1%eth0"] {
            let master = |name| match name {
                "MASTER_ADDR" => Some(value.to_owned()),
                "MASTER_PORT" => Some("29500".to_owned()),
                _ => None,
            };
            let error = Builder::from_lookup(master).expect_err(value).to_string();
            assert!(error.contains("MASTER_ADDR") && error.contains("over IPv4 only"), "{error}");
        }
        let six: SocketAddr = "[2001:db8::1]:9870".parse().expect("an address");
        let four: SocketAddr = "10.0.0.1:9870".parse().expect("an address");
        assert_eq!(first_ipv4([six, four].into_iter()), Ok(four));
        let error = first_ipv4([six].into_iter()).expect_err("a name with AAAA alone");
        assert!(error.contains("2001:db8::1") && error.contains("over IPv4 only"), "{error}");
    }

    #[test]
    fn times_are_above_nothing_and_below_a_year() {
        for name in [
            "XDP_AGG_DEADLINE",
            "XDP_AGG_JOIN_DEADLINE",
            "XDP_AGG_STALL_DEADLINE",
            "XDP_AGG_WARN_AFTER",
            "XDP_AGG_DEAD_AFTER",
        ] {
            let error = Builder::from_lookup(|asked| (asked == name).then(|| "0".into()));
            let error = error.expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("above 0"), "{error}");
        }
        let long = |asked| (asked == "XDP_AGG_DEADLINE").then(|| "1e19".into());
        assert_eq!(Builder::from_lookup(long).expect("long").deadline, MAX_DEADLINE);
        let at_once = |asked| (asked == "XDP_AGG_FALLBACK_AFTER").then(|| "0".into());
        assert!(Builder::from_lookup(at_once).expect("at once").fallback_after.is_zero());
    }
}
