//! Topology files: TOML in, [`Topology`] out, and back.
//!
//! `docs/topology.md` describes the format. Whatever is wrong is said with its line, the reason
//! and what to do; the first fault found ends the reading.

mod checks;
mod lines;
mod print;
mod raw;
mod source;

use std::collections::HashMap;
use std::net::SocketAddrV4;

use toml::Spanned;
use xdp_agg_common::control::CONTROL_PORT;

use crate::agents::Lack;
use crate::model::{Aggregator, Host, KnownCosts, Measured, NotOfJobs, Region, Strategy, Topology};

use lines::Lines;
pub use source::{TopologyFile, bounded, interfaces};

/// Most regions of a file.
pub const MAX_REGIONS: usize = 256;
/// Most bytes of a file.
pub const MAX_BYTES: usize = 1 << 20;

/// A fault of a topology file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct FileError {
    /// Line of the file, from 1 on.
    pub line: usize,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong with a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is not TOML, or a key is unknown, missing or of another type.
    #[error("{0}; see docs/topology.md for the format")]
    Format(String),
    /// A value that cannot be read.
    #[error("{key} = {value:?}: expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Two of a kind with one name, address or rank.
    #[error("{what} {value} is used twice, first in line {first}; give each its own")]
    Twice {
        /// What is used twice.
        what: &'static str,
        /// Its value.
        value: String,
        /// Line of its first use.
        first: usize,
    },
    /// A region is inside itself.
    #[error("region {0:?} is inside itself: {1}; the `parent`s must lead to a region without one")]
    Cycle(String, String),
    /// A region that does not exist.
    #[error(
        "{what} {name:?} cannot be reached: there is no region {region:?}; \
         add a [[region]] of that name, or correct `{key}`"
    )]
    Unreachable {
        /// `host` or `region`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The region that it names.
        region: String,
        /// The key that names it.
        key: &'static str,
    },
    /// The strategy is one that no job has.
    #[error(transparent)]
    NotOfJobs(#[from] NotOfJobs),
    /// The strategy lacks aggregators.
    #[error(transparent)]
    Lack(#[from] Lack),
    /// A rate without hosts to compare it with, or an over-subscription that cannot be.
    #[error(
        "region {region:?} is over-subscribed {given}, which cannot be: {reason}; \
         give `uplink`, or an `oversubscription` of at least 1"
    )]
    Oversubscription {
        /// The region.
        region: String,
        /// What the file says.
        given: String,
        /// Why it cannot be.
        reason: String,
    },
    /// Ranks that are not 0, 1, 2, ….
    #[error(
        "rank {rank} of host {host:?} leaves a gap: no host has rank {missing}; \
         {count} hosts have the ranks 0 to {last}"
    )]
    Gap {
        /// The rank.
        rank: u16,
        /// Its host.
        host: String,
        /// The lowest rank that is missing.
        missing: u16,
        /// Number of hosts.
        count: usize,
        /// Highest rank of `count` hosts.
        last: usize,
    },
    /// More than a job can have.
    #[error("{count} {what}, but a job has at most {most}; leave some out")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// More than [`MAX_BYTES`].
    #[error(
        "the file has more than {MAX_BYTES} bytes; one of 64 hosts has some kilobytes, so give \
         another file, or leave out what is no topology"
    )]
    TooLong,
    /// No hosts.
    #[error("there is no [[host]]; a job needs at least one")]
    NoHosts,
    /// A host has no interface of this name.
    #[error(
        "interface {interface:?} of host {host:?} does not exist here; there are {known}; correct \
         `interface` in the file, or run this on {host}"
    )]
    NoInterface {
        /// Its name in the file.
        interface: String,
        /// The host that it is to be on.
        host: String,
        /// Those that there are.
        known: String,
    },
    /// The measured rates do not fit the hosts.
    #[error("[measured] {0}; let the probe write it again")]
    Measured(String),
}

impl Topology {
    /// Reads a topology file for a job: at most 64 workers.
    ///
    /// # Errors
    /// [`FileError`]: the line, what is wrong with it, and what to do.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        TopologyFile::parse(text).map(TopologyFile::into_topology)
    }

    /// Likewise for a network on which no job is to run: it may have more hosts than a job, up to
    /// [`MAX_WORLD`](crate::model::MAX_WORLD).
    ///
    /// # Errors
    /// [`FileError`], as from [`Topology::parse`].
    pub fn parse_large(text: &str) -> Result<Self, FileError> {
        TopologyFile::parse_large(text).map(TopologyFile::into_topology)
    }
}

impl raw::File {
    /// TOML of the right shape; what it says is not looked at.
    fn parse(text: &str) -> Result<Self, FileError> {
        let lines = Lines(text);
        if text.len() > MAX_BYTES {
            return Err(FileError { line: 1, fault: Fault::TooLong });
        }
        toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| lines.line(&span));
            FileError { line, fault: Fault::Format(error.message().trim().replace('\n', ", ")) }
        })
    }
}

struct Reader<'a> {
    lines: Lines<'a>,
    raw: &'a raw::File,
}

impl Reader<'_> {
    fn topology(&self, most_hosts: usize) -> Result<Topology, FileError> {
        let Self { lines, raw } = self;
        for (count, what, most) in
            [(raw.host.len(), "hosts", most_hosts), (raw.region.len(), "regions", MAX_REGIONS)]
        {
            if count > most {
                let first = if what == "hosts" {
                    raw.host[most].name.span()
                } else {
                    raw.region[most].name.span()
                };
                return Err(lines.error(&first, Fault::TooMany { what, count, most }));
            }
        }
        if raw.host.is_empty() {
            return Err(lines.error(&(lines.0.len()..lines.0.len()), Fault::NoHosts));
        }
        let strategy = self.strategy()?;
        let names = self.region_names()?;
        let order = self.region_order(&names)?;
        let mut regions = self.regions(&names, &order)?;
        let placed: HashMap<_, _> = regions.iter().map(|r| r.name.clone()).zip(0..).collect();
        let hosts = self.hosts(&placed)?;
        self.uplinks(&mut regions, &hosts, &order)?;
        let measured = raw.measured.as_ref().map(|measured| Measured {
            hosts: measured.get_ref().hosts.clone(),
            mbit: measured.get_ref().mbit.clone(),
        });
        let name = raw.name.clone();
        let costs = self.costs()?;
        let topology = Topology { name, strategy, regions, hosts, measured, costs };
        self.check(&topology, &order)?;
        Ok(topology)
    }

    fn costs(&self) -> Result<KnownCosts, FileError> {
        let raw::Costs { message, tcp_message, daemon_byte, tcp_byte } = &self.raw.costs;
        let cost = |cost: &Option<Spanned<f64>>, key| match cost {
            Some(cost) if !(f64::MIN_POSITIVE..=1.0).contains(cost.get_ref()) => {
                let expected = "seconds above 0 and at most 1, such as 2.5e-5";
                let value = cost.get_ref().to_string();
                Err(self.lines.error(&cost.span(), Fault::Value { key, value, expected }))
            }
            Some(cost) => Ok(Some(*cost.get_ref())),
            None => Ok(None),
        };
        Ok(KnownCosts {
            message: cost(message, "message")?,
            tcp_message: cost(tcp_message, "tcp_message")?,
            daemon_byte: cost(daemon_byte, "daemon_byte")?,
            tcp_byte: cost(tcp_byte, "tcp_byte")?,
        })
    }

    fn strategy(&self) -> Result<Strategy, FileError> {
        let Some(strategy) = self.raw.job.as_ref().and_then(|job| job.strategy.as_ref()) else {
            return Ok(Strategy::Auto);
        };
        let expected = "auto, colocated, rat, rina, passing, atp, h-ar, ring or ps";
        self.lines.read(strategy, "strategy", expected)
    }

    fn region_names(&self) -> Result<HashMap<&str, usize>, FileError> {
        let mut names = HashMap::new();
        for (index, region) in self.raw.region.iter().enumerate() {
            self.not_empty(&region.name)?;
            if let Some(first) = names.insert(region.name.get_ref().as_str(), index) {
                let first = &self.raw.region[first].name;
                return Err(self.twice("region name", &region.name, first));
            }
        }
        Ok(names)
    }

    fn not_empty(&self, name: &Spanned<String>) -> Result<(), FileError> {
        let text = name.get_ref();
        if text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let expected = "a name without spaces";
            let fault = Fault::Value { key: "name", value: text.clone(), expected };
            return Err(self.lines.error(&name.span(), fault));
        }
        Ok(())
    }

    fn twice<T: std::fmt::Display>(
        &self,
        what: &'static str,
        second: &Spanned<T>,
        first: &Spanned<T>,
    ) -> FileError {
        let value = second.get_ref().to_string();
        let first = self.lines.line(&first.span());
        self.lines.error(&second.span(), Fault::Twice { what, value, first })
    }

    /// Indices into the file's regions, parents before their children.
    fn region_order(&self, names: &HashMap<&str, usize>) -> Result<Vec<usize>, FileError> {
        let regions = &self.raw.region;
        let mut depth = Vec::with_capacity(regions.len());
        for (index, region) in regions.iter().enumerate() {
            let mut path = vec![index];
            let mut at = region;
            while let Some(parent) = &at.parent {
                let Some(&above) = names.get(parent.get_ref().as_str()) else {
                    let fault = Fault::Unreachable {
                        what: "region",
                        name: at.name.get_ref().clone(),
                        region: parent.get_ref().clone(),
                        key: "parent",
                    };
                    return Err(self.lines.error(&parent.span(), fault));
                };
                path.push(above);
                if path.len() > regions.len() || above == index {
                    let way = path.iter().map(|&step| regions[step].name.get_ref().as_str());
                    let way = way.collect::<Vec<_>>().join(" -> ");
                    if above == index {
                        let fault = Fault::Cycle(region.name.get_ref().clone(), way);
                        return Err(self.lines.error(&parent.span(), fault));
                    }
                    // The cycle is further up; it is found where it starts.
                    break;
                }
                at = &regions[above];
            }
            depth.push(path.len());
        }
        let mut order: Vec<_> = (0..regions.len()).collect();
        order.sort_by_key(|&index| depth[index]);
        Ok(order)
    }

    fn regions(
        &self,
        names: &HashMap<&str, usize>,
        order: &[usize],
    ) -> Result<Vec<Region>, FileError> {
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let region = |&old: &usize| {
            let raw = &self.raw.region[old];
            let parent = raw.parent.as_ref().map(|parent| place[names[parent.get_ref().as_str()]]);
            let rate = raw.aggregator_rate.as_ref();
            let rate = rate.map(|rate| self.lines.rate(rate, "aggregator_rate")).transpose()?;
            let control = raw.aggregator.as_ref().map(|at| self.lines.control(at)).transpose()?;
            let slots = self.slots(raw.aggregator_slots.as_ref(), "aggregator_slots")?;
            let aggregator = control.map(|control| Aggregator { control, slots, rate });
            Ok(Region { name: raw.name.get_ref().clone(), parent, uplink: None, aggregator })
        };
        order.iter().map(region).collect()
    }

    fn slots(
        &self,
        slots: Option<&Spanned<u32>>,
        key: &'static str,
    ) -> Result<Option<u32>, FileError> {
        if let Some(zero) = slots.filter(|slots| *slots.get_ref() == 0) {
            let fault = Fault::Value { key, value: "0".into(), expected: "at least 1" };
            return Err(self.lines.error(&zero.span(), fault));
        }
        Ok(slots.map(|slots| *slots.get_ref()))
    }

    fn hosts(&self, regions: &HashMap<String, usize>) -> Result<Vec<Host>, FileError> {
        let mut hosts = self
            .raw
            .host
            .iter()
            .map(|host| self.host(host, regions))
            .collect::<Result<Vec<_>, _>>()?;
        self.check_hosts(&hosts)?;
        hosts.sort_by_key(|host| host.rank);
        Ok(hosts)
    }

    fn host(&self, raw: &raw::Host, regions: &HashMap<String, usize>) -> Result<Host, FileError> {
        let lines = self.lines;
        self.not_empty(&raw.name)?;
        let region = raw.region.as_ref().map(|name| {
            regions.get(name.get_ref()).copied().ok_or_else(|| {
                let fault = Fault::Unreachable {
                    what: "host",
                    name: raw.name.get_ref().clone(),
                    region: name.get_ref().clone(),
                    key: "region",
                };
                lines.error(&name.span(), fault)
            })
        });
        let defaults = self.raw.defaults.as_ref();
        let rate = raw.rate.as_ref().or_else(|| defaults?.rate.as_ref());
        let Some(rate) = rate else {
            let fault = Fault::Format("`rate` is missing here and in [defaults]".into());
            return Err(lines.error(&raw.name.span(), fault));
        };
        let address = lines.address(&raw.address)?;
        let daemon = raw.daemon.or_else(|| defaults?.daemon).unwrap_or(true);
        let control = match &raw.aggregator {
            Some(given) if !daemon => {
                let fault = Fault::Value {
                    key: "aggregator",
                    value: given.get_ref().clone(),
                    expected: "no address beside `daemon = false`; leave one of them out",
                };
                return Err(lines.error(&given.span(), fault));
            }
            Some(given) => lines.control(given)?,
            None => SocketAddrV4::new(address, CONTROL_PORT),
        };
        let slots = raw.slots.as_ref().or_else(|| defaults?.slots.as_ref());
        let interface = raw.interface.as_ref().or_else(|| defaults?.interface.as_ref());
        Ok(Host {
            name: raw.name.get_ref().clone(),
            rank: *raw.rank.get_ref(),
            address,
            region: region.transpose()?,
            rate: lines.rate(rate, "rate")?,
            daemon: daemon.then_some(control),
            slots: self.slots(slots, "slots")?,
            interface: interface.map(|name| lines.interface(name)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;
