//! A file and what it says, for checks that depend on more than the file.

use std::io::{self, Read as _};

use toml::Spanned;
use xdp_agg_common::wire::MAX_WORKERS;

use crate::model::MAX_WORLD;
use crate::model::{Strategy, Topology};

use super::{Fault, FileError, Lines, MAX_BYTES, Reader, raw};

/// A topology file that was read, with the lines of what it says.
#[derive(Clone, Debug)]
pub struct TopologyFile {
    text: String,
    raw: raw::File,
    topology: Topology,
}

impl TopologyFile {
    /// Reads a file as [`Topology::parse`] does.
    ///
    /// # Errors
    /// [`FileError`]: the line, what is wrong with it, and what to do.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        Self::parse_within(text, MAX_WORKERS)
    }

    /// Reads a file as [`Topology::parse_large`] does.
    ///
    /// # Errors
    /// [`FileError`], as from [`Self::parse`].
    pub fn parse_large(text: &str) -> Result<Self, FileError> {
        Self::parse_within(text, MAX_WORLD)
    }

    fn parse_within(text: &str, most_hosts: usize) -> Result<Self, FileError> {
        let raw = raw::File::parse(text)?;
        let topology = Reader { lines: Lines(text), raw: &raw }.topology(most_hosts)?;
        Ok(Self { text: text.into(), raw, topology })
    }

    /// What it says.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What it says, without the file.
    #[must_use]
    pub fn into_topology(self) -> Topology {
        self.topology
    }

    /// Checks that a job can have the file's strategy.
    ///
    /// # Errors
    /// [`Fault::NotOfJobs`] with the line of the strategy.
    pub fn check_job(&self) -> Result<(), FileError> {
        let job = self.raw.job.as_ref().and_then(|job| job.strategy.as_ref());
        let span = job.map(Spanned::span).unwrap_or_default();
        let checked = self.topology.strategy.of_job();
        checked.map(drop).map_err(|fault| Lines(&self.text).error(&span, fault.into()))
    }

    /// Checks that a strategy has the aggregators that it needs ([`Topology::check_agents`]), also
    /// in regions that were found in measured rates. For the file's own the reader has done it as
    /// far as the regions are in the file.
    ///
    /// # Errors
    /// [`Fault::Lack`] with the line where it can be given.
    pub fn check_agents(&self, strategy: Strategy) -> Result<(), FileError> {
        let Self { text, raw, topology } = self;
        let checked = topology.clone().inferred().check_agents(strategy);
        checked.map_err(|lack| Reader { lines: Lines(text), raw }.lacks(lack, topology.strategy))
    }

    /// Checks the interface of the host with this rank, of which `known` are the interfaces. Says
    /// nothing if the file gives it none.
    ///
    /// # Errors
    /// [`Fault::NoInterface`] with the line that names it.
    pub fn check_interface(&self, rank: u16, known: &[String]) -> Result<(), FileError> {
        let Some(fault) = self.topology.missing_interface(rank, known) else { return Ok(()) };
        let host = self.raw.host.iter().find(|host| *host.rank.get_ref() == rank);
        let own = host.and_then(|host| host.interface.as_ref());
        let all = self.raw.defaults.as_ref().and_then(|defaults| defaults.interface.as_ref());
        let span = own.or(all).map_or(0..0, Spanned::span);
        Err(Lines(&self.text).error(&span, fault))
    }
}

impl Topology {
    /// [`Fault::NoInterface`] if the interface of the host with this rank is not in `known`, the
    /// interfaces that it has.
    #[must_use]
    pub fn missing_interface(&self, rank: u16, known: &[String]) -> Option<Fault> {
        let host = self.hosts.get(usize::from(rank))?;
        let interface = host.interface.as_ref().filter(|name| !known.contains(name))?;
        Some(Fault::NoInterface {
            interface: interface.clone(),
            host: host.name.clone(),
            known: known.join(", "),
        })
    }
}

/// The text of a file as far as it may be one: at most a byte more than [`MAX_BYTES`], which the
/// reader refuses then.
///
/// # Errors
/// The system's; or the bytes are not text.
pub fn bounded(from: impl io::Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_BYTES {
        // A character may be cut: the text is refused as too long, whatever it holds.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no text (UTF-8)");
    String::from_utf8(bytes).map_err(not_text)
}

/// Names of interfaces from the text of `/proc/net/dev`, which has those of the reader's network
/// namespace; sorted.
#[must_use]
pub fn interfaces(proc_net_dev: &str) -> Vec<String> {
    // Names have no colon; the two lines of the heading have none either.
    let rows = proc_net_dev.lines().filter_map(|line| line.split_once(':'));
    let mut names: Vec<_> = rows.map(|(name, _)| name.trim().to_owned()).collect();
    names.sort();
    names
}
