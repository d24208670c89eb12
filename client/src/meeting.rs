//! Before a job: its processes find out which of them share a host, and that they mean the same.
//!
//! They meet at the first aggregator, or, where none is named, at a host and port that the launcher
//! says ([`xdp_agg_mesh::meeting`]). Each says its host and the settings that must agree. So hosts
//! are learned, not assumed: they may have different numbers of processes, in any order.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use serde::Serialize;
use xdp_agg_common::control::{
    CONTROL_PORT, CONTROL_VERSION, ErrorCode, Meet, Origin, Reply, Request,
};
use xdp_agg_intranode::MAX_PROCESSES;
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_mesh::meet::this_host;
use xdp_agg_mesh::meeting::{Meeting, Secret};
use xdp_agg_tls::OpenError;

use crate::digest::digest;
use crate::driver::reach::Pause;
use crate::driver::session::{Dial, Session};
use crate::driver::sys::{self, Interest};
use crate::error::{Error, JobError};
use crate::settings::{Builder, Place, Target};

/// How often the daemon is asked who is missing.
const ASK: Duration = Duration::from_secs(2);
/// The last life of this run's processes may not have been noticed to be over: a launcher has
/// started them again.
const AGAIN: Duration = Duration::from_secs(10);
/// The same of another run.
const OTHER: Duration = Duration::from_secs(2);

/// What must be the same at all processes: the variable, and its value. No value has a `|`. Other
/// releases tell them by their places: a new one goes last, with a row in [`BEFORE`].
fn settings(of: &Builder) -> [(&'static str, String); 12] {
    let or = |value: Option<String>| value.unwrap_or_else(|| "unset".into());
    let of_tuning = of_all([&of.tuning]);
    let topology = of_all(of.aggregators.iter().map(|target| &target.tree));
    [
        ("XDP_AGG_ON_WORKER_LOSS", of.policy.worker_loss.name().into()),
        ("XDP_AGG_ON_AGGREGATOR_LOSS", of.policy.aggregator_loss.name().into()),
        ("XDP_AGG_IN_HOST", if of.in_host { "on" } else { "off" }.into()),
        ("XDP_AGG_JOB_SLOTS", or(of.slots.map(|slots| slots.to_string()))),
        ("XDP_AGG_SEGMENT", or(of.segment.map(|bytes| bytes.to_string()))),
        ("XDP_AGG_SCALING", of.scaling.to_string()),
        ("XDP_AGG_LANES", or(of.lanes.map(|lanes| lanes.to_string()))),
        ("XDP_AGG_ADDR", format!("{} aggregators", of.aggregators.len())),
        ("XDP_AGG_TOPOLOGY", format!("{} {topology:08x}", of.chosen.strategy)),
        ("XDP_AGG_TUNING", format!("a table with digest {of_tuning:08x}")),
        (ON_ONE_HOST, if of.host_collectives { "on" } else { "off" }.into()),
        (LEARNING, if of.tuning.may_learn() { "on" } else { "off" }.into()),
    ]
}

/// A digest of values in the form that they are written and sent in. That form outlives a release:
/// a new field is not in it where it says nothing.
fn of_all<'a, T: Serialize + 'a>(all: impl IntoIterator<Item = &'a T>) -> u64 {
    let texts = all.into_iter().map(|one| serde_json::to_string(one).unwrap_or_default());
    digest(texts.collect::<String>().bytes())
}

/// What releases do that do not say these settings, for they are older.
const BEFORE: [(&str, &str); 2] = [(ON_ONE_HOST, "off"), (LEARNING, "off")];
/// Of a job whose processes share one host; of any other it decides nothing.
const ON_ONE_HOST: &str = "XDP_AGG_HOST_COLLECTIVES";
/// What all have to want, or none does it: see [`all_learn`].
const LEARNING: &str = "learning";

/// What a process says: its host, how many processes its launcher says are there (0: each is for
/// itself), and its settings.
fn words(of: &Builder) -> String {
    let local_size = of.local_size.filter(|_| of.in_host).unwrap_or(0);
    let settings = settings(of).map(|(_, value)| value).join("|");
    format!("{}|{local_size}|{settings}", this_host())
}

/// Meets the other processes: where this one is among them, and what the job is made of. Finds the
/// aggregators where none is named.
pub(crate) fn meet(
    builder: &mut Builder,
    until: Instant,
) -> Result<(Place, Option<Origin>), Error> {
    let (rank, world_size) = builder.world()?;
    let words = words(builder);
    let (all, number) = match builder.aggregators.is_empty() {
        true => find_hosts(builder, (rank, world_size), &words, until)?,
        false if world_size == 1 => return Ok((builder.place()?, None)),
        false => match at_daemon(builder, (rank, world_size), words, until)? {
            Answer::Met(words, number) => (words, number),
            Answer::Underway(origin) => {
                // The others have learned what this process has not.
                builder.tuning.learns = false;
                let place = Place::of(rank, world_size, origin.local_size)?;
                return Ok((place, Some(origin)));
            }
        },
    };
    let all: Vec<Vec<&str>> = all.iter().map(|words| words.split('|').collect()).collect();
    agree(builder, &all)?;
    if builder.tuning.may_learn() && !all_learn(&all) {
        tracing::info!("all-reduces go a fixed way: not all ranks would learn");
        builder.tuning.learns = false;
    }
    let local_size = group_size(&all);
    let place = Place::of(rank, world_size, local_size)?;
    if builder.local_size.is_some_and(|size| size > local_size) && builder.in_host {
        tracing::info!(
            "{local_size} processes make a worker: as many as divide each host's into groups of \
             successive ranks"
        );
    }
    let origin = Origin {
        name: builder.job.clone(),
        run: builder.run.clone(),
        world_size,
        local_size,
        number,
    };
    Ok((place, Some(origin)))
}

/// The largest number of successive ranks that share a host everywhere.
fn group_size(all: &[Vec<&str>]) -> u16 {
    let sizes = all.iter().map(|said| said.get(1).and_then(|size| size.parse().ok()).unwrap_or(0));
    let most = sizes.min().unwrap_or(0_usize).min(MAX_PROCESSES);
    let fits = |size: &usize| {
        let hosts = |group: &[Vec<&str>]| group.iter().all(|said| said.first() == group[0].first());
        all.len().is_multiple_of(*size) && all.chunks(*size).all(hosts)
    };
    (1..=most).rev().find(fits).unwrap_or(1) as u16
}

/// All said the same settings.
fn agree(builder: &Builder, all: &[Vec<&str>]) -> Result<(), Error> {
    for (at, (name, _)) in settings(builder).into_iter().enumerate() {
        let decides_nothing = name == ON_ONE_HOST && usize::from(group_size(all)) < all.len();
        if decides_nothing || name == LEARNING {
            continue;
        }
        let before = BEFORE.iter().find(|(of, _)| *of == name).map_or("unknown", |(_, does)| does);
        let mut values: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, said) in all.iter().enumerate() {
            values.entry(said.get(at + 2).copied().unwrap_or(before)).or_default().push(rank);
        }
        if values.len() > 1 {
            let all: Vec<_> = values
                .iter()
                .map(|(value, ranks)| format!("{value} at {}", named(ranks)))
                .collect();
            let problem = format!("{}; give it to all ranks alike, or to none", all.join(", but "));
            return Err(Error::Config { name, problem });
        }
    }
    Ok(())
}

/// All want to learn the ways of all-reduces. Workers that would go ways of their own would make
/// calls that differ; an older release does not learn.
fn all_learn(all: &[Vec<&str>]) -> bool {
    let last = settings(&Builder::default()).len() + 1;
    all.iter().all(|said| said.get(last) == Some(&"on"))
}

fn named(ranks: &[usize]) -> String {
    match ranks {
        [one] => format!("rank {one}"),
        [first, .., last] if last - first + 1 == ranks.len() => format!("ranks {first} to {last}"),
        _ => format!("ranks {ranks:?}"),
    }
}

/// Where no aggregator is named: every host's own daemon sums a share of the vector. The processes
/// meet to learn each other's addresses.
fn find_hosts(
    builder: &mut Builder,
    (rank, world_size): (u16, u16),
    words: &str,
    until: Instant,
) -> Result<(Vec<String>, u64), Error> {
    let wrong = |name, problem| Error::Config { name, problem };
    let Some(place) = builder.meeting.clone() else {
        return Err(wrong(
            "XDP_AGG_ADDR",
            "not set; expected host:port of the daemon's control service. Or set XDP_AGG_TOPOLOGY \
             to a topology file, or MASTER_ADDR and MASTER_PORT (or XDP_AGG_PORT), as torchrun \
             does, and every host's own daemon sums a share"
                .into(),
        ));
    };
    let meeting = Meeting {
        rank,
        world_size,
        place,
        occasion: builder.job.clone(),
        run: builder.run.clone(),
        secret: builder.token.as_ref().map_or(Secret::NONE, |token| Secret::token(&token.0)),
        within: until.saturating_duration_since(Instant::now()),
        warn_after: builder.warn_after,
    };
    let minutes = meeting.attend(words)?;
    // The processes of a host have one daemon.
    let mut seen = std::collections::BTreeSet::new();
    let hosts = minutes.addresses.iter().map(|address| match address.ip() {
        IpAddr::V4(host) => Ok(host),
        IpAddr::V6(host) => {
            let problem =
                format!("the hosts reach each other by IPv6 ({host}); give an IPv4 address");
            Err(wrong("MASTER_ADDR", problem))
        }
    });
    let mut hosts: Vec<_> = hosts.collect::<Result<_, _>>()?;
    hosts.retain(|host| seen.insert(*host));
    tracing::debug!(hosts = hosts.len(), "no aggregator is named: every host sums a share");
    let daemon = |host| Target::new(SocketAddrV4::new(host, CONTROL_PORT).into());
    builder.has_named_aggregators = false;
    builder.aggregators = hosts.into_iter().map(daemon).collect();
    Ok((minutes.words, minutes.number))
}

/// What the daemon says in the end.
enum Answer {
    Met(Vec<String>, u64),
    Underway(Origin),
}

/// Why an attempt came to nothing.
enum Failure {
    /// Another one may go better, so long after the first.
    Passing(Duration, Error),
    Final(Error),
}

/// Where aggregators are named, the first one lets the processes meet.
fn at_daemon(
    builder: &Builder,
    (rank, world_size): (u16, u16),
    words: String,
    until: Instant,
) -> Result<Answer, Error> {
    let target = &builder.aggregators[0];
    let dead_after = builder.dead_after_or_default().min(Duration::from_secs(12 * 3600));
    let meet = Meet { job: builder.job.clone(), run: builder.run.clone(), rank, world_size, words };
    let start = Instant::now();
    let patience = until.saturating_duration_since(start);
    let mut pause = Pause::new(builder.warn_after);
    let mut waiting = Waiting { meet, start, patience, missing: None };
    let (name, tls) = (target.name.clone(), builder.load_tls(target)?);
    let dial = Dial { address: target.address, name, dead_after, tls };
    loop {
        let next = pause.next();
        match waiting.attempt(builder, &dial) {
            Ok(answer) => return Ok(answer),
            Err(Failure::Final(error)) => return Err(builder.explain(error)),
            Err(Failure::Passing(limit, error))
                if start.elapsed() + next >= limit.min(patience) =>
            {
                return Err(builder.explain(error));
            }
            Err(Failure::Passing(_, error)) => {
                if pause.is_long().is_some() {
                    waiting.tell(&builder.explain(error));
                }
            }
        }
        std::thread::sleep(next);
    }
}

/// A process that waits for the others.
struct Waiting {
    meet: Meet,
    start: Instant,
    patience: Duration,
    /// The ranks that are missing, and where some of them wait instead.
    missing: Option<(Vec<u16>, Vec<String>)>,
}

impl Waiting {
    fn attempt(&mut self, builder: &Builder, dial: &Dial) -> Result<Answer, Failure> {
        let patience = self.patience;
        let passing = |error: Error| match error {
            Error::Tls(_) => Failure::Final(error),
            error => Failure::Passing(patience, error),
        };
        let mut session = Session::open(dial).map_err(|error| match error {
            OpenError::Refused(reason) => Failure::Final(Error::Tls(reason)),
            OpenError::Io(error) => {
                let (address, reason) = (dial.address, error.to_string());
                passing(Error::Job(JobError::Unreachable { address, reason, of: None }))
            }
        })?;
        let hello = Request::Hello {
            version: CONTROL_VERSION,
            agent: format!("xdp-agg-client {}", env!("CARGO_PKG_VERSION")),
            token: builder.token.clone(),
        };
        session.send(&hello).map_err(passing)?;
        let mut ask_at = Instant::now();
        let warn_after = builder.warn_after.min(MAX_DEADLINE);
        let mut tell_at = ask_at + warn_after;
        loop {
            let now = Instant::now();
            if now.duration_since(self.start) >= patience {
                return Err(Failure::Final(self.absent(dial)));
            }
            if now >= tell_at
                && let Some((missing, elsewhere)) = &self.missing
            {
                let ranks = named(&missing.iter().map(|rank| (*rank).into()).collect::<Vec<_>>());
                let elsewhere: String = elsewhere.iter().map(|it| format!("; {it}")).collect();
                self.tell(&format_args!("waiting for {ranks} to join{elsewhere}"));
                tell_at = now + warn_after;
            }
            if now >= ask_at {
                session.send(&Request::Meet(self.meet.clone())).map_err(passing)?;
                ask_at = now + ASK;
            }
            session.flush().map_err(passing)?;
            session.look().map_err(passing)?;
            match session.poll().map_err(passing)? {
                Some(reply) => {
                    if let Some(answer) = self.hear(reply)? {
                        return Ok(answer);
                    }
                }
                None => {
                    let left = patience.saturating_sub(self.start.elapsed());
                    let time = left.min(ask_at.min(tell_at).saturating_duration_since(now));
                    let interest = Interest::read(session.fd());
                    let mut interest = [interest.also_write(session.has_unsent())];
                    let waited = sys::wait(&mut interest, time.max(Duration::from_millis(1)));
                    waited.map_err(|error| Failure::Final(Error::io("waiting")(error)))?;
                }
            }
        }
    }

    fn hear(&mut self, reply: Reply) -> Result<Option<Answer>, Failure> {
        match reply {
            Reply::Welcome { version, .. } if version != CONTROL_VERSION => {
                let (ours, theirs) = (CONTROL_VERSION, version);
                Err(Failure::Final(Error::Job(JobError::Version { ours, theirs })))
            }
            Reply::Welcome { .. } | Reply::Heartbeat | Reply::Done => Ok(None),
            Reply::Meeting { missing, elsewhere } => {
                self.missing = Some((missing, elsewhere));
                Ok(None)
            }
            Reply::Met { words, number } if words.len() == usize::from(self.meet.world_size) => {
                Ok(Some(Answer::Met(words, number)))
            }
            Reply::Underway(origin) => Ok(Some(Answer::Underway(origin))),
            Reply::Error { code, message } => {
                let error = Error::Job(JobError::Refused { code, message });
                Err(match code {
                    ErrorCode::Limit => Failure::Passing(self.patience, error),
                    ErrorCode::RankTaken | ErrorCode::WorldSize if self.meet.run.is_some() => {
                        Failure::Passing(AGAIN, error)
                    }
                    ErrorCode::Busy => Failure::Passing(OTHER, error),
                    _ => Failure::Final(error),
                })
            }
            other => {
                let error = JobError::Protocol(format!("{other:?}"));
                Err(Failure::Final(Error::Job(error)))
            }
        }
    }

    /// Says in the log what the wait is for.
    fn tell(&self, reason: &dyn std::fmt::Display) {
        let Meet { rank, job, .. } = &self.meet;
        let waited = self.start.elapsed().as_secs_f64().round();
        tracing::warn!(
            rank,
            job,
            "the job has not begun after {waited} s: {reason}; XDP_AGG_JOIN_DEADLINE says how \
             long it may"
        );
    }

    fn absent(&self, dial: &Dial) -> Error {
        // What was left of it when the meeting began.
        let tenths = self.patience.as_secs_f64() * 10.0;
        let waited = Duration::from_secs_f64(tenths.round() / 10.0);
        let job = self.meet.job.clone();
        Error::Job(match &self.missing {
            Some((ranks, elsewhere)) => {
                JobError::Absent { job, ranks: ranks.clone(), waited, elsewhere: elsewhere.clone() }
            }
            None => JobError::Unreachable {
                address: dial.address,
                reason: "it does not answer".into(),
                of: None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use xdp_agg_common::control::WorkerLoss;

    use super::*;
    use crate::collectives::Tuning;

    fn size_of(hosts: &[(&str, u16)]) -> u16 {
        let said: Vec<_> = hosts.iter().map(|(host, size)| format!("{host}|{size}")).collect();
        group_size(&said.iter().map(|words| words.split('|').collect()).collect::<Vec<_>>())
    }

    #[test]
    fn hosts_are_learned() {
        let of = |counts: &[(&'static str, u16)]| {
            let ranks = counts.iter().flat_map(|&(host, n)| (0..n).map(move |_| (host, n)));
            size_of(&Vec::from_iter(ranks))
        };
        assert_eq!(of(&[("a", 4), ("b", 4)]), 4);
        assert_eq!(of(&[("a", 8), ("b", 2)]), 2);
        assert_eq!(of(&[("a", 3), ("b", 1)]), 1);
        assert_eq!(of(&[("a", 6), ("b", 3), ("c", 9)]), 3);
        assert_eq!(of(&[("a", 5), ("b", 7)]), 1);
        // Rank by rank from host to host.
        assert_eq!(size_of(&[("a", 2), ("b", 2), ("a", 2), ("b", 2)]), 1);
        assert_eq!(size_of(&[("a", 4), ("a", 4), ("b", 4), ("b", 4), ("a", 4), ("a", 4)]), 2);
        // Two hosts of a laboratory on one machine; one that does not say.
        assert_eq!(size_of(&[("a", 2), ("a", 2), ("a", 2), ("a", 2)]), 2);
        assert_eq!(size_of(&[("a", 2), ("a", 2), ("a", 0), ("a", 2)]), 1);
    }

    #[test]
    fn settings_that_differ_are_named_with_their_ranks() {
        let plain = Builder::default();
        let odd = Builder::default().on_worker_loss(WorkerLoss::Shrink);
        let said = [&plain, &odd, &plain, &plain].map(words);
        assert!(said.iter().all(|words| words.len() < Meet::MAX_WORDS), "{said:?}");
        let all: Vec<_> = said.iter().map(|words| words.split('|').collect()).collect();
        let error = agree(&plain, &all).expect_err("one differs").to_string();
        assert_eq!(
            error,
            "XDP_AGG_ON_WORKER_LOSS: fail at ranks [0, 2, 3], but shrink at rank 1; give it to all \
             ranks alike, or to none"
        );
        assert!(agree(&plain, &all[2..]).is_ok());
        let count = settings(&plain).len() + 2;
        assert!(all.iter().all(|said: &Vec<&str>| said.len() == count), "{said:?}");
    }

    /// What a table and a tree are told by is the form that they are written in.
    #[test]
    fn a_new_field_that_says_nothing_changes_no_digest() {
        let usual = Tuning::default();
        assert!(format!("{usual:?}").contains("network"));
        let text = serde_json::to_string(&usual).expect("it is written");
        assert!(!text.contains("network"), "{text}");
        assert_eq!(of_all([&usual]), digest(text.bytes()));
        assert_ne!(of_all([&usual]), of_all([&Tuning::aggregator()]));
    }

    /// One that does not learn, or an older release, is enough for a job that does not.
    #[test]
    fn all_learn_or_none_does() {
        let learns = words(&Builder::default().learning(true));
        let fixed = words(&Builder::default().learning(false));
        let older = learns.rsplit_once('|').map(|(older, _)| older.to_owned()).expect("settings");
        let check = |said: [&String; 3]| {
            let all: Vec<Vec<&str>> = said.iter().map(|words| words.split('|').collect()).collect();
            assert!(agree(&Builder::default(), &all).is_ok());
            all_learn(&all)
        };
        assert!(check([&learns, &learns, &learns]));
        assert!(!check([&learns, &fixed, &learns]));
        assert!(!check([&learns, &learns, &older]));
    }

    /// A release of before says the first ten. It goes with this one where both do the same.
    #[test]
    fn an_older_release_says_fewer_settings() {
        let all = settings(&Builder::default());
        let (old, since) = all.split_at(10);
        assert_eq!(old.first().map(|row| row.0), Some("XDP_AGG_ON_WORKER_LOSS"));
        assert_eq!(old.last().map(|row| row.0), Some("XDP_AGG_TUNING"), "a new one goes last");
        assert!(since.iter().all(|row| BEFORE.iter().any(|(name, _)| *name == row.0)));
        let mixed = |hosts: [&str; 2], collectives: bool| {
            let new = Builder::default().host_collectives(collectives);
            let said = [0, 1].map(|rank| {
                let settings = settings(&new).map(|(_, value)| value);
                let known = if rank == 0 { 10 } else { settings.len() };
                format!("{}|2|{}", hosts[rank], settings[..known].join("|"))
            });
            let all: Vec<Vec<&str>> = said.iter().map(|words| words.split('|').collect()).collect();
            agree(&new, &all).map_err(|error| error.to_string())
        };
        assert_eq!(mixed(["a", "b"], true), Ok(()), "it decides nothing there");
        assert_eq!(mixed(["a", "a"], false), Ok(()));
        let error = mixed(["a", "a"], true).expect_err("calls of one host would differ");
        assert!(
            error.contains("XDP_AGG_HOST_COLLECTIVES: off at rank 0, but on at rank 1"),
            "{error}"
        );
    }
}
