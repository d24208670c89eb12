//! The network that `simulate` is about: of a file, or made on the spot.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use xdp_agg_flowsim::generate::{Dragonfly, Generated, SpineLeaf, fat_tree};
use xdp_agg_topology::file::{FileError, bounded};
use xdp_agg_topology::graph::{Network, NodeKind};
use xdp_agg_topology::{Rate, Strategy, Topology, TopologyFile};

/// Exactly one of these.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The network (docs/topology.md), of up to 16384 hosts
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "equipped"])]
    topology: Option<PathBuf>,
    /// A fat-tree of switches with K ports, all links of one rate
    #[arg(long, value_name = "K", requires = "rate")]
    fat_tree: Option<usize>,
    /// A dragonfly of G groups of A switches, each with H cables to other groups and H hosts
    #[arg(long, value_name = "A,G,H", requires = "rate")]
    dragonfly: Option<DragonflyShape>,
    /// S spines, L racks of N hosts, over-subscribed RATIO:1 (1 if it is not given)
    #[arg(long, value_name = "SxLxN[:RATIO]", requires = "rate")]
    spine_leaf: Option<SpineLeafShape>,
}

/// What network, and what is in it.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    #[command(flatten)]
    which: Which,
    /// Without a file: rate of each host's link, such as 25gbit
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Without a file: number of racks that have an aggregator in their switch
    #[arg(long, value_name = "RACKS", default_value_t = 0)]
    equipped: usize,
}

/// `4,9,2`
#[derive(Clone, Copy, Debug)]
struct DragonflyShape(Dragonfly);

impl FromStr for DragonflyShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match numbers(text, ',').as_deref() {
            Some(&[a, g, h]) => Ok(Self(Dragonfly { a, g, h, p: h })),
            _ => Err("expected switches of a group, groups, cables, such as 4,9,2".into()),
        }
    }
}

/// `4x64x64:4`
#[derive(Clone, Copy, Debug)]
struct SpineLeafShape((usize, usize, usize), f64);

impl FromStr for SpineLeafShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (shape, ratio) = text.split_once(':').unwrap_or((text, "1"));
        let ratio = ratio.parse().ok().filter(|&ratio: &f64| ratio.is_finite() && ratio >= 1.0);
        match (numbers(shape, 'x').as_deref(), ratio) {
            (Some(&[spines, racks, hosts]), Some(ratio)) => Ok(Self((spines, racks, hosts), ratio)),
            _ => Err("expected spines, racks, hosts of a rack and an over-subscription of 1 or \
                      more, such as 4x64x64:4"
                .into()),
        }
    }
}

fn numbers(text: &str, separator: char) -> Option<Vec<usize>> {
    text.split(separator).map(|number| number.parse().ok()).collect()
}

impl Source {
    /// The network, with the regions that measured rates show. A file's has the aggregators that
    /// the strategy needs.
    pub(crate) fn network(&self, strategy: Option<Strategy>) -> Result<Generated> {
        let Which { topology, fat_tree: ports, dragonfly, spine_leaf } = &self.which;
        if let Some(file) = topology {
            let topology = read(file, strategy)?;
            return Ok(Generated { network: Network::of(&topology), topology });
        }
        let rate = self.rate.context("--rate is missing; give that of the hosts' links")?;
        let made = match (ports, dragonfly, spine_leaf) {
            (Some(ports), ..) => fat_tree(*ports, rate).context("--fat-tree"),
            (_, Some(DragonflyShape(shape)), _) => shape.generate(rate).context("--dragonfly"),
            (.., Some(SpineLeafShape(shape, ratio))) => {
                let network = SpineLeaf::oversubscribed(*shape, rate, *ratio);
                network.generate().context("--spine-leaf")
            }
            _ => bail!("no network; give --topology FILE, or a shape such as --fat-tree 8"),
        };
        self.equip(made?)
    }

    fn equip(&self, mut made: Generated) -> Result<Generated> {
        let mut racks: Vec<_> = made.topology.hosts.iter().filter_map(|host| host.region).collect();
        racks.dedup();
        if self.equipped > racks.len() {
            bail!("--equipped {}: expected at most the {} racks", self.equipped, racks.len());
        }
        racks.into_iter().take(self.equipped).for_each(|rack| made.equip(rack));
        Ok(made)
    }

    /// Names of all nodes.
    pub(crate) fn names(&self, made: &Generated) -> Vec<String> {
        let Generated { network, topology } = made;
        let mut names: Vec<_> = network
            .nodes()
            .iter()
            .enumerate()
            .map(|(number, node)| match node {
                NodeKind::Host(host) => topology.hosts[*host].name.clone(),
                NodeKind::Aggregator(region) => {
                    format!("{}'s aggregator", topology.regions[*region].name)
                }
                // All others of a file are its regions'.
                NodeKind::Switch if self.which.topology.is_some() => "core".to_owned(),
                NodeKind::Switch => format!("switch{number}"),
            })
            .collect();
        for (index, region) in topology.regions.iter().enumerate() {
            names[network.switch_of(index)].clone_from(&region.name);
        }
        names
    }
}

fn read(path: &Path, strategy: Option<Strategy>) -> Result<Topology> {
    let text = File::open(path).and_then(bounded);
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    let checked = || {
        let file = TopologyFile::parse_large(&text)?;
        strategy.map_or(Ok(()), |strategy| file.check_agents(strategy))?;
        Ok::<_, FileError>(file)
    };
    let file = checked().with_context(|| path.display().to_string())?;
    Ok(file.topology().clone().inferred())
}
