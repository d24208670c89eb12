//! How the trees of each strategy grow.

use crate::model::{Site, Strategy};

use super::scope::Scopes;
use super::{Node, Tree};

/// One tree of one node for each aggregator: `colocated` and `passing`.
pub(super) fn flat(scopes: &Scopes<'_>, strategy: Strategy) -> Vec<Tree> {
    let regions = 0..scopes.topology.regions.len();
    let sites: Vec<_> = if strategy == Strategy::Passing {
        regions.filter(|&region| scopes.has_aggregator(region)).map(Site::Region).collect()
    } else {
        scopes.core().sites.clone()
    };
    let leaves = |site| Node::new(site, None, scopes.workers().to_vec());
    sites.into_iter().map(|site| Tree { nodes: vec![leaves(site)] }).collect()
}

/// One tree for each site, rooted there, with one aggregator in every other region (paper 2,
/// section 3.2). Beside hosts a region's aggregator is the root of as many trees as the region has
/// workers, so that the other regions' hosts have even shares to sum.
pub(super) fn rat(scopes: &Scopes<'_>) -> Vec<Tree> {
    let mut load = Load {
        hosts: vec![0; scopes.topology.hosts.len()],
        regions: vec![0; scopes.topology.regions.len()],
    };
    let sites = &scopes.core().sites;
    let mixed = sites.iter().any(|site| matches!(site, Site::Host(_)));
    let roots = sites.iter().flat_map(|&site| {
        let trees = match site {
            Site::Region(region) if mixed => scopes.workers_within(region),
            _ => 1,
        };
        std::iter::repeat_n(site, trees)
    });
    let trees = roots.map(|root| {
        let mut tree = Tree::default();
        let node = push(&mut tree, root, None);
        grow(scopes, 0, &mut tree, node, &load);
        load.add(&tree);
        tree
    });
    trees.collect()
}

/// One tree for each host's daemon, its server. An equipped region's aggregator sums what is in it
/// and sends that to the server, or to the next aggregator around; every other worker sends to the
/// server itself.
pub(super) fn atp(scopes: &Scopes<'_>) -> Vec<Tree> {
    let load = Load { hosts: Vec::new(), regions: Vec::new() };
    let servers = scopes.workers().iter().filter(|&&rank| scopes.has_daemon(rank));
    let trees = servers.map(|&rank| {
        let mut tree = Tree::default();
        let server = push(&mut tree, Site::Host(usize::from(rank)), None);
        grow(scopes, 0, &mut tree, server, &load);
        tree
    });
    trees.collect()
}

/// One tree for each group: a path of the groups' aggregators along the ring of groups. The sums
/// of tree `g` start at group `g`, and are complete at the group before it (paper 3, section IV-B).
pub(super) fn rina(scopes: &Scopes<'_>) -> Vec<Tree> {
    let Some(groups) = groups(scopes) else { return Vec::new() };
    let count = groups.len();
    let path = |first: usize| {
        let mut tree = Tree::default();
        let mut parent = None;
        for step in 1..=count {
            let group = &groups[(first + count - step) % count];
            let offset = tree.nodes.len();
            tree.nodes.extend(group.nodes.iter().map(|node| Node {
                parent: node.parent.map(|inner| inner + offset).or(parent),
                ..node.clone()
            }));
            parent = Some(offset);
        }
        tree
    };
    (0..count).map(path).collect()
}

/// The groups of `rina` in the order of the ring, each as a tree of its own: an abstracted worker
/// for every equipped region, and an autonomous one for every other daemon. A worker without a
/// daemon joins the nearest aggregator, a rack without any the group before it. None if there is no
/// aggregator at all.
fn groups(scopes: &Scopes<'_>) -> Option<Vec<Tree>> {
    let load = Load { hosts: Vec::new(), regions: Vec::new() };
    let mut groups: Vec<Tree> = Vec::new();
    for &child in &scopes.core().children {
        let mut tree = Tree::default();
        let node = push(&mut tree, *scopes.get(child).sites.first()?, None);
        grow(scopes, child, &mut tree, node, &load);
        groups.push(tree);
    }
    for &rank in &scopes.core().ranks {
        let site = nearest(scopes, rank)?;
        let held = groups.iter_mut().flat_map(|group| &mut group.nodes);
        if let Some(node) = held.into_iter().find(|node| node.site == site) {
            node.ranks.push(rank);
            node.ranks.sort_unstable();
        } else {
            groups.push(Tree { nodes: vec![Node::new(site, None, vec![rank])] });
        }
    }
    // A group that only others' workers joined has no worker of its own region: it counts by those
    // that it has.
    let order = super::ring_order(scopes.topology);
    let mut place = vec![usize::MAX; scopes.topology.hosts.len()];
    for (index, rank) in order.into_iter().enumerate() {
        place[usize::from(rank)] = index;
    }
    let first = |group: &Tree| {
        let ranks = group.nodes.iter().flat_map(|node| &node.ranks);
        ranks.map(|&rank| place[usize::from(rank)]).min()
    };
    groups.sort_by_key(first);
    Some(groups)
}

/// The worker's own daemon, or the nearest other aggregator, the lowest rank first; where none is
/// in a region around it, that of the group before it in the ring.
fn nearest(scopes: &Scopes<'_>, rank: u16) -> Option<Site> {
    let topology = scopes.topology;
    if scopes.has_daemon(rank) {
        return Some(Site::Host(usize::from(rank)));
    }
    for region in topology.around(topology.hosts[usize::from(rank)].region) {
        if scopes.has_aggregator(region) {
            return Some(Site::Region(region));
        }
        let near = |&&other: &&u16| {
            scopes.has_daemon(other) && topology.is_within(usize::from(other), region)
        };
        if let Some(&other) = scopes.workers().iter().find(near) {
            return Some(Site::Host(usize::from(other)));
        }
    }
    before(scopes, rank).or_else(|| scopes.core().sites.first().copied())
}

/// The aggregator of the last worker before this one in the ring that has one.
fn before(scopes: &Scopes<'_>, rank: u16) -> Option<Site> {
    let topology = scopes.topology;
    let order = super::ring_order(topology);
    let place = order.iter().position(|other| *other == rank)?;
    let (behind, ahead) = order.split_at(place);
    let mut others = behind.iter().rev().chain(ahead.iter().rev());
    others.find_map(|&other| {
        let host = usize::from(other);
        let mut around = topology.around(topology.hosts[host].region);
        let equipped =
            |region: &usize| scopes.has_aggregator(*region) && scopes.workers_within(*region) > 1;
        let own = || scopes.has_daemon(other).then_some(Site::Host(host));
        around.find(equipped).map(Site::Region).or_else(own)
    })
}

/// Adds the scope's workers and inner regions below a node that aggregates it.
fn grow(scopes: &Scopes<'_>, scope: usize, tree: &mut Tree, node: usize, load: &Load) {
    let scope = scopes.get(scope);
    tree.nodes[node].ranks.extend_from_slice(&scope.ranks);
    tree.nodes[node].ranks.sort_unstable();
    for &child in &scope.children {
        let sites = &scopes.get(child).sites;
        let here = sites.contains(&tree.nodes[node].site);
        // A region that a node of a higher level is in is aggregated by that node.
        let inner = match load.least(sites) {
            Some(site) if !here => push(tree, site, Some(node)),
            _ => node,
        };
        grow(scopes, child, tree, inner, load);
    }
}

fn push(tree: &mut Tree, site: Site, parent: Option<usize>) -> usize {
    tree.nodes.push(Node::new(site, parent, Vec::new()));
    tree.nodes.len() - 1
}

/// Contributions that each site takes, of all trees so far.
struct Load {
    hosts: Vec<usize>,
    regions: Vec<usize>,
}

impl Load {
    fn least(&self, sites: &[Site]) -> Option<Site> {
        let load = |site: &Site| match *site {
            Site::Host(host) => self.hosts.get(host).copied(),
            Site::Region(region) => self.regions.get(region).copied(),
        };
        sites.iter().copied().min_by_key(load)
    }

    fn add(&mut self, tree: &Tree) {
        let mut take = |site, count| match site {
            Site::Host(host) => self.hosts[host] += count,
            Site::Region(region) => self.regions[region] += count,
        };
        for node in &tree.nodes {
            take(node.site, node.ranks.len());
            if let Some(parent) = node.parent {
                take(tree.nodes[parent].site, 1);
            }
        }
    }
}
