//! Which hosts stand in for an aggregator that is lost.

use crate::model::{Site, Topology};

use super::Tree;

/// Most hosts that stand in for one aggregator: a job's messages name all of them.
const SPARES_MAX: usize = 3;

/// The trees, with the hosts that take the place of a node that is lost. The trees begin with
/// different ones, so that what a lost aggregator summed is shared out.
pub(super) fn named(topology: &Topology, mut trees: Vec<Tree>) -> Vec<Tree> {
    for (index, tree) in trees.iter_mut().enumerate() {
        let taken: Vec<_> = tree.nodes.iter().map(|node| node.site).collect();
        for node in tree.nodes.iter_mut().skip(1) {
            let mut hosts = beside(topology, node.site);
            hosts.retain(|site| !taken.contains(site));
            if !hosts.is_empty() {
                let first = index % hosts.len();
                hosts.rotate_left(first);
            }
            hosts.truncate(SPARES_MAX);
            node.spares = hosts;
        }
    }
    trees
}

/// The hosts of an aggregator's region that have daemons, by rank.
fn beside(topology: &Topology, site: Site) -> Vec<Site> {
    let region = match site {
        Site::Region(region) => Some(region),
        Site::Host(host) => topology.hosts[host].region,
    };
    let Some(region) = region else { return Vec::new() };
    let hosts = 0..topology.hosts.len();
    let fits =
        |host: &usize| topology.hosts[*host].daemon.is_some() && topology.is_within(*host, region);
    hosts.filter(fits).map(Site::Host).collect()
}
