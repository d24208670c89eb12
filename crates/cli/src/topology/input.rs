//! A topology file, as it was named on the command line.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use xdp_agg_topology::file::bounded;
use xdp_agg_topology::{Topology, TopologyFile};

pub(crate) fn read(file: &Path) -> Result<Topology> {
    Ok(open(file)?.topology().clone())
}

pub(super) fn open(file: &Path) -> Result<TopologyFile> {
    let text = File::open(file).and_then(bounded).map_err(|error| {
        let name = file.display();
        crate::exit::WrongConfig(format!("cannot read the topology file {name}: {error}"))
    })?;
    TopologyFile::parse(&text).with_context(|| file.display().to_string())
}
