//! What a communicator needs to know, from the builder or from the environment.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use xdp_agg_common::control::{AggregatorLoss, CONTROL_PORT, Policy, Token, WorkerLoss};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::MAX_WORKERS;
use xdp_agg_tls::{ClientFiles, ClientTls, SecretError, read_token};

use crate::communicator::Communicator;
use crate::error::Error;

/// Scale of the fixed-point numbers unless set otherwise: seven decimal digits behind the point,
/// and room for sums up to 214.
pub const DEFAULT_SCALE: f64 = 1e7;

/// Settings of a [`Communicator`]; `connect` makes it.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) aggregator: Option<SocketAddr>,
    pub(crate) job: String,
    pub(crate) rank: Option<u16>,
    pub(crate) world_size: Option<u16>,
    pub(crate) scale: f64,
    pub(crate) deadline: Duration,
    pub(crate) join_deadline: Duration,
    pub(crate) mtu: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) result_mode: Option<ResultMode>,
    pub(crate) rate: Option<u64>,
    pub(crate) rto_min: Duration,
    pub(crate) policy: Policy,
    pub(crate) fallback_after: Duration,
    pub(crate) dead_after: Option<Duration>,
    pub(crate) token: Option<Token>,
    pub(crate) tls: ClientFiles,
    /// The daemon's host as it was named.
    pub(crate) host: Option<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            aggregator: None,
            job: "default".into(),
            rank: None,
            world_size: None,
            scale: DEFAULT_SCALE,
            deadline: Duration::from_secs(30),
            join_deadline: Duration::from_secs(60),
            mtu: None,
            slots: None,
            result_mode: None,
            rate: None,
            rto_min: Duration::from_millis(4),
            policy: Policy::default(),
            fallback_after: Duration::from_secs(2),
            dead_after: None,
            token: None,
            tls: ClientFiles::default(),
            host: None,
        }
    }
}

impl Builder {
    /// Settings from the environment, as `torchrun` and MPI launchers set it: `RANK` (or
    /// `OMPI_COMM_WORLD_RANK`, `PMI_RANK`), `WORLD_SIZE` (or `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE`);
    /// and ours: `XDP_AGG_ADDR` (host or host:port of the daemon), `XDP_AGG_JOB`, `XDP_AGG_SCALE`,
    /// `XDP_AGG_DEADLINE` and `XDP_AGG_JOIN_DEADLINE` (seconds), `XDP_AGG_MTU` (bytes),
    /// `XDP_AGG_JOB_SLOTS`, `XDP_AGG_RESULT_MODE` (`ports`, `fanout`, `multicast`), `XDP_AGG_RATE`
    /// (bit/s), `XDP_AGG_ON_WORKER_LOSS` (`fail`, `shrink`), `XDP_AGG_ON_AGGREGATOR_LOSS` (`fail`,
    /// `resume`, `ring`), `XDP_AGG_FALLBACK_AFTER` and `XDP_AGG_DEAD_AFTER` (seconds),
    /// `XDP_AGG_TOKEN` or `XDP_AGG_TOKEN_FILE`, and for TLS the files `XDP_AGG_TLS_CA`,
    /// `XDP_AGG_TLS_CERT` and `XDP_AGG_TLS_KEY`, and `XDP_AGG_TLS_NAME`.
    ///
    /// # Errors
    /// A variable that cannot be understood. Missing ones are reported by [`Self::connect`].
    pub fn from_env() -> Result<Self, Error> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The same from any source of names and values.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self, Error> {
        let first = |names: &[&'static str]| {
            names.iter().find_map(|name| lookup(name).map(|value| (*name, value)))
        };
        let mut builder = Self::default();
        if let Some((name, value)) = first(&["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]) {
            builder.rank = Some(parse(name, &value, "a number from 0")?);
        }
        if let Some((name, value)) = first(&["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]) {
            builder.world_size = Some(parse(name, &value, "a number from 1")?);
        }
        if let Some((name, value)) = first(&["XDP_AGG_ADDR"]) {
            builder.aggregator = Some(resolve(name, &value)?);
            let host = value.rsplit_once(':').map_or(&*value, |(host, _)| host);
            builder.host = Some(host.to_owned());
        }
        if let Some((_, value)) = first(&["XDP_AGG_JOB"]) {
            builder.job = value;
        }
        if let Some((name, value)) = first(&["XDP_AGG_SCALE"]) {
            builder.scale = parse(name, &value, "a number above 0, such as 1e7")?;
        }
        if let Some((name, value)) = first(&["XDP_AGG_DEADLINE"]) {
            builder.deadline = seconds(name, &value)?;
        }
        if let Some((name, value)) = first(&["XDP_AGG_JOIN_DEADLINE"]) {
            builder.join_deadline = seconds(name, &value)?;
        }
        if let Some((name, value)) = first(&["XDP_AGG_MTU"]) {
            builder.mtu = Some(parse(name, &value, "bytes, such as 1500")?);
        }
        if let Some((name, value)) = first(&["XDP_AGG_JOB_SLOTS"]) {
            builder.slots = Some(parse(name, &value, "a power of two, such as 1024")?);
        }
        if let Some((name, value)) = first(&["XDP_AGG_RATE"]) {
            builder.rate = Some(parse(name, &value, "bits per second, such as 1000000000")?);
        }
        if let Some((name, value)) = first(&["XDP_AGG_RESULT_MODE"]) {
            builder.result_mode = result_mode(name, &value)?;
        }
        builder.read_policy(&lookup)?;
        Ok(builder)
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
            self.dead_after = Some(seconds(name, &value)?);
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

    /// Control address of the daemon.
    #[must_use]
    pub fn aggregator(mut self, address: SocketAddr) -> Self {
        self.aggregator = Some(address);
        self.host = None;
        self
    }

    /// Name of the job; workers of one name sum together. Default `default`.
    #[must_use]
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// This worker's number, below the world size.
    #[must_use]
    pub const fn rank(mut self, rank: u16) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Number of workers, at most 64.
    #[must_use]
    pub const fn world_size(mut self, world_size: u16) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Scale of the fixed-point numbers: `round(x * scale)` is summed, so the resolution is
    /// `1 / scale` and every `|x|` must stay below `2^31 / (N * scale)`. As large as possible
    /// without overflow (PASSING uses 1e8 for VGG19 and ResNet50); [`DEFAULT_SCALE`] otherwise.
    #[must_use]
    pub const fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Longest time for one call. Default 30 s.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Longest time to wait for the daemon and for the other workers. Default 60 s.
    #[must_use]
    pub const fn join_deadline(mut self, deadline: Duration) -> Self {
        self.join_deadline = deadline;
        self
    }

    /// Largest IP packet in bytes, if smaller than what the path allows.
    #[must_use]
    pub const fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Slots of the job's pool, a power of two; half of them is the largest window.
    #[must_use]
    pub const fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// How results shall come, if not as the daemon chooses.
    #[must_use]
    pub const fn result_mode(mut self, mode: ResultMode) -> Self {
        self.result_mode = Some(mode);
        self
    }

    /// Pace in bits per second on the wire. Default: as fast as results come back.
    #[must_use]
    pub const fn rate(mut self, bits_per_second: u64) -> Self {
        self.rate = Some(bits_per_second);
        self
    }

    /// Shortest retransmission timeout. Default 4 ms: above the scheduling delays of a busy host.
    #[must_use]
    pub const fn rto_min(mut self, timeout: Duration) -> Self {
        self.rto_min = timeout;
        self
    }

    /// What shall happen when a worker is lost; the same at all workers. Default: calls fail.
    #[must_use]
    pub const fn on_worker_loss(mut self, action: WorkerLoss) -> Self {
        self.policy.worker_loss = action;
        self
    }

    /// What shall happen when the daemon is lost; the same at all workers. Default: calls fail.
    #[must_use]
    pub const fn on_aggregator_loss(mut self, action: AggregatorLoss) -> Self {
        self.policy.aggregator_loss = action;
        self
    }

    /// How long no daemon could be reached before the workers go on over a TCP ring, with
    /// [`AggregatorLoss::Ring`]. Default 2 s.
    #[must_use]
    pub const fn fallback_after(mut self, time: Duration) -> Self {
        self.fallback_after = time;
        self
    }

    /// After how long without a sign of life the daemon's host counts as dead. Default 2 s, and 8 s
    /// where every loss ends the job.
    #[must_use]
    pub const fn dead_after(mut self, time: Duration) -> Self {
        self.dead_after = Some(time);
        self
    }

    /// The secret that the daemon's operator gave out.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// Connects to the daemon over TLS: its certificate must be signed by the authority in this
    /// file (PEM). Without it the connection is plain.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(file.into());
        self
    }

    /// A certificate and its key (PEM), to be shown to a daemon that asks for one.
    #[must_use]
    pub fn tls_identity(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.certificate = Some(certificate.into());
        self.tls.key = Some(key.into());
        self
    }

    /// The name in the daemon's certificate, if it is not the host of `XDP_AGG_ADDR`, or the IP
    /// address of [`Self::aggregator`].
    #[must_use]
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.tls.name = Some(name.into());
        self
    }

    /// Joins the job and waits until all its workers are there.
    ///
    /// # Errors
    /// A missing or impossible setting; no daemon; the daemon's refusal; no way through the data
    /// path; another worker that does not come.
    pub fn connect(self) -> Result<Communicator, Error> {
        Communicator::connect(self)
    }

    /// TLS, if it is wanted.
    pub(crate) fn load_tls(&self, aggregator: SocketAddr) -> Result<Option<ClientTls>, Error> {
        let host = self.host.clone().unwrap_or_else(|| aggregator.ip().to_string());
        self.tls
            .load(&host)
            .map_err(|error| Error::Config { name: "XDP_AGG_TLS_*", problem: error.to_string() })
    }

    /// See [`Self::dead_after`].
    pub(crate) fn dead_after_or_default(&self) -> Duration {
        let patient = self.policy == Policy::default();
        self.dead_after.unwrap_or(Duration::from_secs(if patient { 8 } else { 2 }))
    }

    /// Rank and world size, checked.
    pub(crate) fn place(&self) -> Result<(u16, u16), Error> {
        let missing = |name, method| Error::Config {
            name,
            problem: format!("not set; launchers such as torchrun set it, or use {method}"),
        };
        let rank = self.rank.ok_or_else(|| missing("RANK", "Builder::rank"))?;
        let world_size =
            self.world_size.ok_or_else(|| missing("WORLD_SIZE", "Builder::world_size"))?;
        if world_size == 0 || usize::from(world_size) > MAX_WORKERS {
            return Err(Error::Config {
                name: "WORLD_SIZE",
                problem: format!("{world_size} workers; a job has 1 to {MAX_WORKERS}"),
            });
        }
        if rank >= world_size {
            return Err(Error::Config {
                name: "RANK",
                problem: format!("rank {rank} of {world_size} workers; ranks count from 0"),
            });
        }
        Ok((rank, world_size))
    }

    /// The scale, checked.
    pub(crate) fn checked_scale(&self) -> Result<f64, Error> {
        if self.scale.is_finite() && self.scale > 0.0 {
            return Ok(self.scale);
        }
        Err(Error::Config {
            name: "XDP_AGG_SCALE",
            problem: format!("{}; a positive finite number is needed, such as 1e7", self.scale),
        })
    }
}

fn parse<T: FromStr>(name: &'static str, value: &str, expected: &str) -> Result<T, Error> {
    value
        .trim()
        .parse()
        .map_err(|_| Error::Config { name, problem: format!("{value:?} is not {expected}") })
}

fn seconds(name: &'static str, value: &str) -> Result<Duration, Error> {
    let expected = "seconds, such as 30 or 0.5";
    let number: f64 = parse(name, value, expected)?;
    Duration::try_from_secs_f64(number)
        .map_err(|_| Error::Config { name, problem: format!("{value:?} is not {expected}") })
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

/// `host`, `host:port` or an address: the first IPv4 address it stands for.
fn resolve(name: &'static str, value: &str) -> Result<SocketAddr, Error> {
    let with_port =
        if value.contains(':') { value.to_owned() } else { format!("{value}:{CONTROL_PORT}") };
    let problem = |detail: String| Error::Config {
        name,
        problem: format!("{value:?} {detail}; expected host or host:port, such as 10.0.0.1:9870"),
    };
    let mut addresses = with_port
        .to_socket_addrs()
        .map_err(|error| problem(format!("cannot be resolved ({error})")))?;
    addresses.find(SocketAddr::is_ipv4).ok_or_else(|| problem("has no IPv4 address".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> Result<Builder, Error> {
        Builder::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_understood() {
        let builder = with(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("XDP_AGG_ADDR", "127.0.0.1"),
            ("XDP_AGG_DEADLINE", "0.5"),
            ("XDP_AGG_RESULT_MODE", "fanout"),
        ])
        .expect("all is well");
        assert_eq!(builder.place().expect("set"), (3, 4));
        assert_eq!(builder.aggregator, Some(([127, 0, 0, 1], CONTROL_PORT).into()));
        assert_eq!(builder.deadline, Duration::from_millis(500));
        assert_eq!(builder.result_mode, Some(ResultMode::Fanout));
    }

    #[test]
    fn what_follows_a_loss_is_understood() {
        let builder = with(&[
            ("XDP_AGG_ON_WORKER_LOSS", "shrink"),
            ("XDP_AGG_ON_AGGREGATOR_LOSS", "ring"),
            ("XDP_AGG_FALLBACK_AFTER", "0.5"),
            ("XDP_AGG_TOKEN", "secret"),
        ])
        .expect("all is well");
        assert_eq!(builder.policy.worker_loss, WorkerLoss::Shrink);
        assert_eq!(builder.policy.aggregator_loss, AggregatorLoss::Ring);
        assert_eq!(builder.fallback_after, Duration::from_millis(500));
        assert_eq!(builder.dead_after_or_default(), Duration::from_secs(2));
        assert_eq!(builder.token, Some(Token("secret".into())));
        assert!(!format!("{builder:?}").contains("secret"));
        assert_eq!(Builder::default().dead_after_or_default(), Duration::from_secs(8));
    }

    #[test]
    fn nonsense_is_named() {
        for (pairs, words) in [
            (&[("RANK", "first")][..], "RANK: \"first\""),
            (&[("XDP_AGG_DEADLINE", "-1")][..], "XDP_AGG_DEADLINE"),
            (&[("XDP_AGG_RESULT_MODE", "carrier pigeon")][..], "ports, fanout, multicast"),
            (&[("XDP_AGG_ADDR", "10.0.0.1:port")][..], "host:port"),
            (&[("XDP_AGG_ON_WORKER_LOSS", "panic")][..], "fail, shrink"),
            (&[("XDP_AGG_ON_AGGREGATOR_LOSS", "panic")][..], "fail, resume, ring"),
            (&[("XDP_AGG_TOKEN_FILE", "/does/not/exist")][..], "cannot read"),
        ] {
            let error = with(pairs).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn places_and_scales_are_checked() {
        let place = |rank, size| Builder::default().rank(rank).world_size(size).place();
        assert!(place(0, 0).is_err());
        assert!(place(0, 65).is_err());
        assert!(place(4, 4).is_err());
        assert!(place(63, 64).is_ok());
        assert!(Builder::default().rank(0).place().is_err());
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Builder::default().scale(scale).checked_scale().is_err());
        }
    }
}
