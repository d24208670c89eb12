//! Settings of a mesh.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xdp_agg_launcher::{Launch, setters};
use xdp_agg_tls::{SecretError, read_token};

use crate::error::Error;
use crate::meet::MAX_WORLD;
use crate::meeting::{MeetingPoint, Secret};
use crate::mesh::Mesh;
use crate::onlooker::{Alone, Onlooker};
use crate::schedule::Groups;

/// Deadline of each call, where none is given: as `torch.distributed` has it.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// Deadline of opening, where none is given.
pub const DEFAULT_JOIN_DEADLINE: Duration = Duration::from_secs(60);
/// After how long a rank that waits for the others says so, where no time is given.
pub const DEFAULT_WARN_AFTER: Duration = Duration::from_secs(10);
/// Longer deadlines count as this one, a year: the clock cannot express every later time.
pub const MAX_DEADLINE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Vectors up to that many bytes are all-reduced whole, where nothing else is said.
///
/// That saves `N - 1` one-way trips and costs `(N - 2) / N` of the vector on the link for each.
/// Above this size the bytes cost more than the trip (some 20 µs) on a link of 500 Mbit/s.
pub const DEFAULT_SHORT_BYTES: usize = 2048;
const TOKEN_FILE: &str = "XDP_AGG_TOKEN_FILE";

/// Settings of a [`Mesh`]; `open` makes it.
#[derive(Debug)]
pub struct Builder {
    pub(crate) rank: u16,
    pub(crate) world_size: u16,
    pub(crate) deadline: Duration,
    /// How long opening may take.
    join_deadline: Option<Duration>,
    pub(crate) warn_after: Duration,
    onlooker: Arc<dyn Onlooker>,
    pub(crate) groups: Option<Groups>,
    /// The processes of a host are a group: this number of them, as its launcher says.
    pub(crate) local_size: Option<u16>,
    pub(crate) rendezvous: Option<MeetingPoint>,
    pub(crate) run: Option<String>,
    pub(crate) secret: Secret,
    pub(crate) addresses: Option<Vec<SocketAddr>>,
    pub(crate) listener: Option<TcpListener>,
    pub(crate) cookie: Option<u64>,
    pub(crate) occasion: String,
    short_bytes: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            deadline: DEFAULT_DEADLINE,
            join_deadline: None,
            warn_after: DEFAULT_WARN_AFTER,
            onlooker: Arc::new(Alone),
            groups: None,
            local_size: None,
            rendezvous: None,
            run: None,
            secret: Secret::NONE,
            addresses: None,
            listener: None,
            cookie: None,
            occasion: String::new(),
            short_bytes: DEFAULT_SHORT_BYTES,
        }
    }
}

setters! {
impl Builder {
    /// This worker's number, from 0.
    pub fn rank(rank: u16) => rank = rank;

    /// The number of ranks, at most [`MAX_WORLD`].
    pub fn world_size(world_size: u16) => world_size = world_size;

    /// How long each call may take; [`DEFAULT_DEADLINE`] by default.
    pub fn deadline(deadline: Duration) => deadline = deadline;

    /// How long opening may take; [`DEFAULT_JOIN_DEADLINE`] by default, or as long as a call if
    /// that is shorter.
    pub fn join_deadline(deadline: Duration) => join_deadline = Some(deadline);

    /// After how long a rank that waits for the others says so, and again; [`DEFAULT_WARN_AFTER`]
    /// by default.
    pub fn warn_after(time: Duration) => warn_after = time;

    /// What looks on while calls wait. Default: nothing but the log.
    pub fn onlooker(onlooker: Arc<dyn Onlooker>) => onlooker = onlooker;

    /// Where rank 0 listens and all others come to, if not all addresses are known.
    pub fn rendezvous(address: SocketAddr) => rendezvous = Some(MeetingPoint::At(address));

    /// Where each rank listens, in order of rank. Wants [`Self::cookie`].
    pub fn addresses(addresses: Vec<SocketAddr>) => addresses = Some(addresses);

    /// This rank's listener, where it is open already; at rank 0 on the rendezvous' address.
    pub fn listener(listener: TcpListener) => listener = Some(listener);

    /// A number that only the job's ranks know; a caller that does not know it is turned away. At a
    /// rendezvous rank 0 makes one where none is given.
    pub fn cookie(cookie: u64) => cookie = Some(cookie);

    /// Which of a job's meshes it is, in a few words; a rank that means another one is turned away.
    pub fn occasion(occasion: String) => occasion = occasion;

    /// Vectors up to this many bytes are all-reduced whole (the same on all ranks);
    /// [`DEFAULT_SHORT_BYTES`] by default. On links of 10 Gbit/s and more a larger value is
    /// faster; 0 means never (but for empty vectors).
    pub fn short_bytes(bytes: usize) => short_bytes = bytes;
}
}

impl Builder {
    /// Settings from the environment, as launchers set it ([`Launch`]). Where there is more than
    /// one rank, they meet where [`Launch::meeting`] says: at `MASTER_ADDR`, a host of any rank,
    /// and a port of their own, which follows from `MASTER_PORT`.
    ///
    /// Optional: `XDP_AGG_DEADLINE`, `XDP_AGG_JOIN_DEADLINE` and `XDP_AGG_WARN_AFTER` in seconds,
    /// [`DEFAULT_DEADLINE`], [`DEFAULT_JOIN_DEADLINE`] and [`DEFAULT_WARN_AFTER`] by default;
    /// `XDP_AGG_RING_SHORT_BYTES`, see [`Self::short_bytes`]; `XDP_AGG_TOKEN` or
    /// `XDP_AGG_TOKEN_FILE`, which all have to know then.
    ///
    /// # Errors
    /// A variable that is missing or cannot be understood.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_values(std::env::var_os)
    }

    fn from_values(value: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Error> {
        let launch = Launch::read(&value)?;
        let (rank, world_size) = launch.world()?;
        let mut builder = Self::default().rank(rank).world_size(world_size);
        builder.local_size = launch.local_size.map(|size| size.value);
        builder.run.clone_from(&launch.run);
        let text = |name| xdp_agg_launcher::text(name, value(name));
        let wrong = |name, value: &str, expected| {
            let problem = format!("{value:?} is not {expected}");
            Error::Setting { name, problem }
        };
        let time = |name| -> Result<Option<Duration>, Error> {
            let Some(seconds) = text(name)? else { return Ok(None) };
            let positive = seconds.trim().parse().ok().filter(|seconds| *seconds > 0.0);
            let time = positive.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            time.ok_or_else(|| wrong(name, &seconds, "a positive number of seconds")).map(Some)
        };
        if let Some(deadline) = time("XDP_AGG_DEADLINE")? {
            builder = builder.deadline(deadline);
        }
        if let Some(deadline) = time("XDP_AGG_JOIN_DEADLINE")? {
            builder = builder.join_deadline(deadline);
        }
        if let Some(time) = time("XDP_AGG_WARN_AFTER")? {
            builder = builder.warn_after(time);
        }
        if let Some(bytes) = text("XDP_AGG_RING_SHORT_BYTES")? {
            let wrong = |_| wrong("XDP_AGG_RING_SHORT_BYTES", &bytes, "a number of bytes");
            builder = builder.short_bytes(bytes.trim().parse().map_err(wrong)?);
        }
        if world_size <= 1 {
            return Ok(builder);
        }
        if let Some(token) = text("XDP_AGG_TOKEN")? {
            builder.secret = Secret::token(&token);
        } else if let Some(path) = text(TOKEN_FILE)? {
            let wrong = |error: SecretError| Error::Setting {
                name: TOKEN_FILE,
                problem: error.to_string(),
            };
            builder.secret = Secret::token(&read_token(Path::new(&path)).map_err(wrong)?.0);
        }
        let meeting = launch.need_meeting()?;
        builder.rendezvous = Some(meeting.into());
        Ok(builder)
    }

    /// How long opening may take.
    pub(crate) fn join_time(&self) -> Duration {
        let default = DEFAULT_JOIN_DEADLINE.min(self.deadline);
        self.join_deadline.unwrap_or(default).min(MAX_DEADLINE)
    }

    /// `size` ranks share a host, numbered host by host. Default: 1.
    #[must_use]
    pub fn group_size(self, size: u16) -> Self {
        let groups = Groups::of_size(self.world_size, size);
        self.groups(groups)
    }

    /// Which ranks share a host.
    #[must_use]
    pub fn groups(mut self, groups: Groups) -> Self {
        self.groups = Some(groups);
        self.local_size = None;
        self
    }

    /// Where this rank listens, if its listener is open already.
    #[must_use]
    pub fn listening_at(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Connects with all other ranks.
    ///
    /// # Errors
    /// Settings that cannot be; a port in use; ranks that are missing at the deadline; this rank
    /// turned away by another one; a rank that cannot be reached.
    pub fn open(mut self) -> Result<Mesh, Error> {
        self.deadline = self.deadline.min(MAX_DEADLINE);
        let Self { rank, world_size, .. } = self;
        let wrong = |name, problem| Err(Error::Setting { name, problem });
        if rank >= world_size || world_size > MAX_WORLD {
            let problem = format!(
                "rank {rank} in a world of {world_size}: ranks go from 0 to the world size less \
                 one, and the world has at least 1 and at most {MAX_WORLD} workers"
            );
            return wrong("RANK", problem);
        }
        let groups = self.groups.clone().unwrap_or_else(|| Groups::single(world_size));
        let grouped: usize = groups.groups().iter().map(Vec::len).sum();
        if grouped != usize::from(world_size) {
            return wrong(
                "groups",
                format!("{grouped} ranks are in them, and the world has {world_size}"),
            );
        }
        let links = if world_size == 1 { vec![None] } else { self.connect()? };
        let groups = self.groups.take().unwrap_or(groups);
        let patience = (self.deadline, self.onlooker);
        Ok(Mesh::new(rank, groups, patience, self.short_bytes, links))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn settings_of_the_environment_are_checked() {
        let with = |pairs: &[(&str, &str)]| {
            let set = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
            Builder::from_values(set)?.open()
        };
        let text = |pairs: &[_]| with(pairs).expect_err("it cannot be").to_string();
        assert!(text(&[]).contains("RANK: not set"));
        assert!(text(&[("RANK", "0")]).contains("WORLD_SIZE: not set"));
        assert!(text(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK: \"x\" is not"));
        assert!(text(&[("PMI_RANK", "x"), ("WORLD_SIZE", "2")]).starts_with("PMI_RANK: \"x\""));
        assert!(text(&[("RANK", "0"), ("WORLD_SIZE", "2")]).contains("MASTER_ADDR: not set"));
        assert!(
            text(&[("RANK", "1"), ("WORLD_SIZE", "1")]).contains("RANK: rank 1, with WORLD_SIZE=1")
        );
        assert!(text(&[("RANK", "0"), ("WORLD_SIZE", "0")]).contains("at least 1"));
        let deadline = [("RANK", "0"), ("WORLD_SIZE", "1"), ("XDP_AGG_DEADLINE", "-1")];
        assert!(text(&deadline).contains("XDP_AGG_DEADLINE: \"-1\""));
        let short = [("RANK", "0"), ("WORLD_SIZE", "1"), ("XDP_AGG_RING_SHORT_BYTES", "4k")];
        assert!(text(&short).contains("XDP_AGG_RING_SHORT_BYTES: \"4k\" is not a number"));
        let set = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        let mut data = [2.5_f32];
        let alone = &mut with(&set).expect("they are right");
        alone.all_reduce(&mut data, xdp_agg_quantize::Op::Average).expect("nobody is waited for");
        assert_eq!(data, [2.5]);
    }

    #[test]
    fn a_variable_that_is_no_text_is_named() {
        let values = |name: &str| match name {
            "RANK" | "WORLD_SIZE" => Some(OsString::from("1")),
            "LOCAL_WORLD_SIZE" => Some(OsString::from_vec(vec![0xff])),
            _ => None,
        };
        let error = Builder::from_values(values).expect_err("it is no text").to_string();
        assert!(error.contains("LOCAL_WORLD_SIZE") && error.contains("UTF-8"), "{error}");
    }
}
