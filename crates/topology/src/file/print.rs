//! The canonical form of a topology file.

use std::fmt::{self, Write};

use crate::model::{Host, Region, Topology};

impl Topology {
    /// The topology as a file: parents before children, hosts by rank, every value said, uplinks
    /// as rates. Reading it gives the same topology.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> fmt::Result {
        writeln!(to, "name = {}", quoted(&self.name))?;
        writeln!(to, "\n[job]\nstrategy = \"{}\"", self.strategy)?;
        for region in &self.regions {
            self.write_region(to, region)?;
        }
        for host in &self.hosts {
            self.write_host(to, host)?;
        }
        let known = self.costs.named().into_iter().filter_map(|(name, cost)| Some((name, cost?)));
        for (index, (name, cost)) in known.enumerate() {
            let head = if index == 0 { "\n[costs]\n" } else { "" };
            writeln!(to, "{head}{name} = {cost:?}")?;
        }
        let Some(measured) = &self.measured else { return Ok(()) };
        let names: Vec<_> = measured.hosts.iter().map(|name| quoted(name)).collect();
        writeln!(to, "\n[measured]\nhosts = [{}]\nmbit = [", names.join(", "))?;
        for row in &measured.mbit {
            let row: Vec<_> = row.iter().map(|rate| format!("{rate:?}")).collect();
            writeln!(to, "    [{}],", row.join(", "))?;
        }
        writeln!(to, "]")
    }

    fn write_region(&self, to: &mut String, region: &Region) -> fmt::Result {
        let Region { name, parent, uplink, aggregator } = region;
        writeln!(to, "\n[[region]]\nname = {}", quoted(name))?;
        if let Some(parent) = parent {
            writeln!(to, "parent = {}", quoted(&self.regions[*parent].name))?;
        }
        if let Some(uplink) = uplink {
            writeln!(to, "uplink = \"{uplink}\"")?;
        }
        let Some(aggregator) = aggregator else { return Ok(()) };
        writeln!(to, "aggregator = \"{}\"", aggregator.control)?;
        if let Some(slots) = aggregator.slots {
            writeln!(to, "aggregator_slots = {slots}")?;
        }
        if let Some(rate) = aggregator.rate {
            writeln!(to, "aggregator_rate = \"{rate}\"")?;
        }
        Ok(())
    }

    fn write_host(&self, to: &mut String, host: &Host) -> fmt::Result {
        let Host { name, rank, address, region, rate, daemon, slots, interface } = host;
        writeln!(to, "\n[[host]]\nname = {}\nrank = {rank}", quoted(name))?;
        writeln!(to, "address = \"{address}\"")?;
        if let Some(region) = region {
            writeln!(to, "region = {}", quoted(&self.regions[*region].name))?;
        }
        writeln!(to, "rate = \"{rate}\"")?;
        match daemon {
            Some(control) => writeln!(to, "aggregator = \"{control}\"")?,
            None => writeln!(to, "daemon = false")?,
        }
        if let Some(slots) = slots {
            writeln!(to, "slots = {slots}")?;
        }
        if let Some(interface) = interface {
            writeln!(to, "interface = {}", quoted(interface))?;
        }
        Ok(())
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
