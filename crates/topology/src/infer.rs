//! Regions and uplinks from measured rates between hosts.
//!
//! The rates are those of all hosts sending to all others *at the same time*. Flows that share a
//! narrow uplink are slow then, and the flows across a border add up to what the uplink carries.
//! One pair alone would show nothing, as it fills no uplink. An over-subscription below
//! `(N - 1) / (N - m)`, for racks of `m` of `N` hosts, does not show. Such an uplink is not full
//! even when every host sends to every other one.

use crate::model::{Measured, Region, Topology};
use crate::units::Rate;

/// How many times faster hosts must reach each other than those outside to be a region.
pub const FACTOR: f64 = 1.25;

/// A region that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The region around it, as an index; None: the core. Parents come before their children.
    pub parent: Option<usize>,
    /// Hosts in it and in no inner one, as indices into [`Measured::hosts`], ascending.
    pub hosts: Vec<usize>,
    /// What its hosts got through to the outside, or from there, in Mbit/s; the larger of both.
    pub uplink_mbit: f64,
}

/// What rates show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inferred {
    /// The regions.
    pub regions: Vec<Found>,
    /// What each host got through to all others, or from them, in Mbit/s; the larger of both.
    pub host_mbit: Vec<f64>,
}

/// A set of hosts while they are being joined.
#[derive(Clone, Debug)]
struct Cluster {
    members: Vec<usize>,
    parts: Vec<Part>,
    /// Sum of the rates between its parts, and number of pairs.
    level: (f64, f64),
}

#[derive(Clone, Debug)]
enum Part {
    Host(usize),
    Region(Cluster),
}

impl Cluster {
    /// The mean rate between its parts; a single host has none.
    fn rate(&self) -> Option<f64> {
        (self.level.1 > 0.0).then(|| self.level.0 / self.level.1)
    }

    /// What it brings into a cluster whose parts reach each other at `rate`: itself as a region if
    /// its own are much faster, else its parts.
    fn brought(self, rate: f64) -> (Vec<Part>, (f64, f64)) {
        if self.rate().is_some_and(|own| own >= FACTOR * rate) {
            (vec![Part::Region(self)], (0.0, 0.0))
        } else {
            (self.parts, self.level)
        }
    }
}

/// Finds regions by hierarchical clustering (average linkage): clusters that reach each other
/// fastest are joined first. A cluster is a region if its hosts reach each other [`FACTOR`] times
/// faster than they reach what it is joined with. Of equals the lower indices come first, so the
/// result is the same everywhere.
///
/// Rates that are missing (a row too short) count as 0.
#[must_use]
pub fn infer(measured: &Measured) -> Inferred {
    let count = measured.hosts.len();
    let rate = |i: usize, j: usize| {
        measured.mbit.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0.0)
    };
    let mut clusters: Vec<_> = (0..count)
        .map(|i| Cluster { members: vec![i], parts: vec![Part::Host(i)], level: (0.0, 0.0) })
        .collect();
    let across = |a: &Cluster, b: &Cluster| {
        let pairs = a.members.iter().flat_map(|&i| b.members.iter().map(move |&j| (i, j)));
        pairs.map(|(i, j)| f64::midpoint(rate(i, j), rate(j, i))).sum::<f64>()
    };
    while clusters.len() > 1 {
        let mut best = (f64::NEG_INFINITY, 0, 1);
        for a in 0..clusters.len() {
            for b in a + 1..clusters.len() {
                let pairs = clusters[a].members.len() * clusters[b].members.len();
                let mean = across(&clusters[a], &clusters[b]) / pairs as f64;
                if mean > best.0 {
                    best = (mean, a, b);
                }
            }
        }
        let (mean, a, b) = best;
        let second = clusters.remove(b);
        let first = clusters.remove(a);
        clusters.insert(a, join(first, second, mean));
    }
    let outgoing = |i: usize| (0..count).filter(|j| *j != i).map(|j| rate(i, j)).sum::<f64>();
    let incoming = |i: usize| (0..count).filter(|j| *j != i).map(|j| rate(j, i)).sum::<f64>();
    let host_mbit = (0..count).map(|i| outgoing(i).max(incoming(i))).collect();
    let mut regions = Vec::new();
    for cluster in clusters {
        let border = |inside: &[usize]| {
            let outside: Vec<_> = (0..count).filter(|j| !inside.contains(j)).collect();
            let pairs = || inside.iter().flat_map(|&i| outside.iter().map(move |&j| (i, j)));
            let out: f64 = pairs().map(|(i, j)| rate(i, j)).sum();
            let into: f64 = pairs().map(|(i, j)| rate(j, i)).sum();
            out.max(into)
        };
        list(cluster, None, &border, &mut regions);
    }
    Inferred { regions, host_mbit }
}

fn join(a: Cluster, b: Cluster, rate: f64) -> Cluster {
    let pairs = (a.members.len() * b.members.len()) as f64;
    let mut members = [a.members.as_slice(), b.members.as_slice()].concat();
    members.sort_unstable();
    let mut level = (rate * pairs, pairs);
    let mut parts = Vec::new();
    for cluster in [a, b] {
        let (brought, own) = cluster.brought(rate);
        parts.extend(brought);
        level = (level.0 + own.0, level.1 + own.1);
    }
    Cluster { members, parts, level }
}

/// Lists the regions of a cluster, the outer ones first.
fn list(
    cluster: Cluster,
    around: Option<usize>,
    border: &impl Fn(&[usize]) -> f64,
    regions: &mut Vec<Found>,
) {
    let mut inner: Vec<_> = Vec::new();
    for part in cluster.parts {
        match part {
            Part::Host(host) => {
                if let Some(around) = around {
                    regions[around].hosts.push(host);
                    regions[around].hosts.sort_unstable();
                }
            }
            Part::Region(region) => inner.push(region),
        }
    }
    inner.sort_by_key(|region| region.members.first().copied());
    for region in inner {
        let uplink_mbit = border(&region.members);
        regions.push(Found { parent: around, hosts: Vec::new(), uplink_mbit });
        let index = regions.len() - 1;
        list(region, Some(index), border, regions);
    }
}

impl Topology {
    /// The network with the regions that `measured` shows, if it has been measured and the file
    /// names no region itself; else as it is. Regions are named `measured0`, `measured1`, …; the
    /// rates of hosts stay as the file gives them.
    #[must_use]
    pub fn inferred(self) -> Self {
        let Some(measured) = self.measured.as_ref().filter(|_| self.regions.is_empty()) else {
            return self;
        };
        let found = infer(measured).regions;
        let mut topology = self.clone();
        for (index, region) in found.iter().enumerate() {
            topology.regions.push(Region {
                name: format!("measured{index}"),
                parent: region.parent,
                uplink: Some(Rate::nearest(region.uplink_mbit * 1e6)),
                aggregator: None,
            });
            for &host in &region.hosts {
                let name = &measured.hosts[host];
                let known = topology.hosts.iter_mut().find(|host| host.name == *name);
                if let Some(host) = known {
                    host.region = Some(index);
                }
            }
        }
        topology
    }
}

#[cfg(test)]
mod tests;
