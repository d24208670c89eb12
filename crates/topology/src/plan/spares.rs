//! Which hosts stand in for an aggregator that is lost.

use crate::model::{Site, Topology};

/// Most hosts that stand in for one aggregator: a job's messages name all of them.
const SPARES_MAX: usize = 3;

/// The hosts that take the place of the node at `site`, which are not `taken` by its tree. The
/// trees, which have numbers, begin with different ones. So what a lost aggregator summed is shared
/// out.
pub(super) fn of(topology: &Topology, site: Site, taken: &[Site], tree: usize) -> Vec<Site> {
    let mut hosts = beside(topology, site);
    hosts.retain(|site| !taken.contains(site));
    if !hosts.is_empty() {
        let first = tree % hosts.len();
        hosts.rotate_left(first);
    }
    hosts.truncate(SPARES_MAX);
    hosts
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
