//! What has to hold of a network as a whole.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::ops::Range;

use toml::Spanned;

use crate::agents::Lack;
use crate::model::{Host, Region, Strategy, Topology};
use crate::units::Rate;

use super::{Fault, FileError, Reader, raw};

/// How far `uplink` and `oversubscription` of a region may be apart, as a share.
const TOLERANCE: f64 = 0.01;

impl Reader<'_> {
    /// Names, ranks and addresses are unique, and the ranks leave no gap. The hosts are in the
    /// file's order.
    pub(super) fn check_hosts(&self, hosts: &[Host]) -> Result<(), FileError> {
        let raw = &self.raw.host;
        self.unique("host name", raw.iter().map(|host| &host.name))?;
        self.unique("rank", raw.iter().map(|host| &host.rank))?;
        self.unique("address", raw.iter().map(|host| &host.address))?;
        let taken: Vec<_> = hosts.iter().map(|host| usize::from(host.rank)).collect();
        let missing = (0..hosts.len()).find(|rank| !taken.contains(rank));
        let beyond = taken.iter().position(|rank| *rank >= hosts.len());
        if let (Some(missing), Some(host)) = (missing, beyond) {
            let fault = Fault::Gap {
                rank: hosts[host].rank,
                host: hosts[host].name.clone(),
                missing: u16::try_from(missing).unwrap_or(u16::MAX),
                count: hosts.len(),
                last: hosts.len() - 1,
            };
            return Err(self.lines.error(&raw[host].rank.span(), fault));
        }
        Ok(())
    }

    fn unique<'r, T: Display + Eq + Hash + 'r>(
        &self,
        what: &'static str,
        values: impl Iterator<Item = &'r Spanned<T>>,
    ) -> Result<(), FileError> {
        let mut seen = HashMap::new();
        for value in values {
            if let Some(first) = seen.insert(value.get_ref(), value) {
                return Err(self.twice(what, value, first));
            }
        }
        Ok(())
    }

    /// Turns `oversubscription` into rates, innermost regions first: what a region can send is
    /// what its hosts' links and its inner regions' uplinks carry.
    pub(super) fn uplinks(
        &self,
        regions: &mut [Region],
        hosts: &[Host],
        order: &[usize],
    ) -> Result<(), FileError> {
        let mut offered = vec![0_u64; regions.len()];
        for host in hosts {
            if let Some(region) = host.region {
                offered[region] += host.rate.bits();
            }
        }
        for index in (0..regions.len()).rev() {
            let raw = &self.raw.region[order[index]];
            let uplink = self.uplink(raw, offered[index])?;
            regions[index].uplink = uplink;
            if let Some(parent) = regions[index].parent {
                let sent = uplink.map_or(offered[index], |up| up.bits().min(offered[index]));
                offered[parent] += sent;
            }
        }
        Ok(())
    }

    fn uplink(&self, raw: &raw::Region, offered: u64) -> Result<Option<Rate>, FileError> {
        let given = raw.uplink.as_ref();
        let given = given.map(|rate| self.lines.rate(rate, "uplink")).transpose()?;
        let Some(ratio) = &raw.oversubscription else { return Ok(given) };
        let wrong = |reason: String| {
            let region = raw.name.get_ref().clone();
            let given = format!("{}:1", ratio.get_ref());
            self.lines.error(&ratio.span(), Fault::Oversubscription { region, given, reason })
        };
        let factor = *ratio.get_ref();
        if !factor.is_finite() {
            return Err(wrong("it is no finite number, so its uplink would carry nothing".into()));
        }
        if factor < 1.0 {
            return Err(wrong("hosts cannot send less than they send".into()));
        }
        if offered == 0 {
            return Err(wrong("no host is in it that could fill its uplink".into()));
        }
        let computed = offered as f64 / factor;
        if computed < 1.0 {
            return Err(wrong("its uplink would carry nothing".into()));
        }
        let Some(uplink) = given else { return Ok(Some(Rate::nearest(computed))) };
        if (uplink.bits() as f64 / computed - 1.0).abs() > TOLERANCE {
            return Err(wrong(format!(
                "`uplink` = {uplink} beside it makes {:.2}:1",
                offered as f64 / uplink.bits() as f64
            )));
        }
        Ok(Some(uplink))
    }

    /// Everything else, on the complete network.
    pub(super) fn check(&self, topology: &Topology, order: &[usize]) -> Result<(), FileError> {
        self.check_aggregators(topology, order)?;
        self.check_agents(topology)?;
        self.check_measured(topology)
    }

    /// An aggregator's keys want an aggregator, and no two daemons have one control address.
    fn check_aggregators(&self, topology: &Topology, order: &[usize]) -> Result<(), FileError> {
        let mut seen: HashMap<_, Range<usize>> = HashMap::new();
        let mut daemons = Vec::new();
        for (index, region) in topology.regions.iter().enumerate() {
            let raw = &self.raw.region[order[index]];
            let slots = raw.aggregator_slots.as_ref().map(Spanned::span);
            let lonely = slots.or_else(|| raw.aggregator_rate.as_ref().map(Spanned::span));
            match (&region.aggregator, &raw.aggregator) {
                (Some(aggregator), Some(raw)) => daemons.push((aggregator.control, raw.span())),
                _ => {
                    if let Some(span) = lonely {
                        let text = "`aggregator_slots` and `aggregator_rate` want an `aggregator`";
                        return Err(self.lines.error(&span, Fault::Format(text.into())));
                    }
                }
            }
        }
        for raw in &self.raw.host {
            let host = &topology.hosts[usize::from(*raw.rank.get_ref())];
            let span = raw.aggregator.as_ref().unwrap_or(&raw.address).span();
            daemons.extend(host.daemon.map(|control| (control, span)));
        }
        for (control, span) in daemons {
            if let Some(first) = seen.insert(control, span.clone()) {
                let first = self.lines.line(&first);
                let what = "control address";
                let fault = Fault::Twice { what, value: control.to_string(), first };
                return Err(self.lines.error(&span, fault));
            }
        }
        Ok(())
    }

    /// The strategy that the file asks for has the aggregators that it needs.
    fn check_agents(&self, topology: &Topology) -> Result<(), FileError> {
        let checked = topology.check_agents(topology.strategy);
        checked.map_err(|lack| self.lacks(lack, topology.strategy))
    }

    /// What a strategy lacks, with the line where it can be given; a strategy that finds nothing at
    /// all is wrong itself, if it is the file's.
    pub(super) fn lacks(&self, lack: Lack, of_file: Strategy) -> FileError {
        let raw = self.raw;
        let region = raw.region.first();
        let asked = raw.job.as_ref().and_then(|job| job.strategy.as_ref()).map(Spanned::span);
        let host = || raw.host.first().map(|host| host.name.span());
        // Regions that are not in the file were found in measured rates.
        let found = || raw.measured.as_ref().map(Spanned::span);
        let span = match &lack {
            Lack::Aggregator(strategy) if *strategy == of_file => asked,
            Lack::Aggregator(Strategy::Colocated | Strategy::Atp) => host(),
            _ => region.map(|region| region.name.span()).or_else(found).or_else(host),
        };
        self.lines.error(&span.unwrap_or_default(), lack.into())
    }

    fn check_measured(&self, topology: &Topology) -> Result<(), FileError> {
        let Some(raw) = &self.raw.measured else { return Ok(()) };
        let wrong = |text: String| self.lines.error(&raw.span(), Fault::Measured(text));
        let raw::Measured { hosts, mbit } = raw.get_ref();
        let known = |name: &String| topology.hosts.iter().any(|host| host.name == *name);
        if let Some(stranger) = hosts.iter().find(|name| !known(name)) {
            return Err(wrong(format!("names host {stranger:?}, which the file does not have")));
        }
        if let Some(twice) = (1..hosts.len()).find(|&i| hosts[..i].contains(&hosts[i])) {
            return Err(wrong(format!("names host {:?} twice", hosts[twice])));
        }
        if mbit.len() != hosts.len() || mbit.iter().any(|row| row.len() != hosts.len()) {
            let count = hosts.len();
            return Err(wrong(format!("has {count} hosts, but `mbit` is not {count} x {count}")));
        }
        let bad = |rate: &&f64| !rate.is_finite() || **rate < 0.0;
        if let Some(rate) = mbit.iter().flatten().find(bad) {
            return Err(wrong(format!("has the rate {rate}, which is none")));
        }
        Ok(())
    }
}
