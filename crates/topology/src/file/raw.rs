//! The file as it is written, with the place of each value.

use serde::Deserialize;
use toml::Spanned;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default = "unnamed")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) job: Option<Job>,
    #[serde(default)]
    pub(super) defaults: Option<Defaults>,
    #[serde(default)]
    pub(super) region: Vec<Region>,
    #[serde(default)]
    pub(super) host: Vec<Host>,
    #[serde(default)]
    pub(super) measured: Option<Spanned<Measured>>,
    #[serde(default)]
    pub(super) costs: Costs,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Costs {
    pub(super) message: Option<Spanned<f64>>,
    pub(super) tcp_message: Option<Spanned<f64>>,
    pub(super) daemon_byte: Option<Spanned<f64>>,
    pub(super) tcp_byte: Option<Spanned<f64>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    pub(super) strategy: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Defaults {
    pub(super) rate: Option<Spanned<String>>,
    pub(super) daemon: Option<bool>,
    pub(super) slots: Option<Spanned<u32>>,
    pub(super) interface: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Region {
    pub(super) name: Spanned<String>,
    pub(super) parent: Option<Spanned<String>>,
    pub(super) uplink: Option<Spanned<String>>,
    pub(super) oversubscription: Option<Spanned<f64>>,
    pub(super) aggregator: Option<Spanned<String>>,
    pub(super) aggregator_slots: Option<Spanned<u32>>,
    pub(super) aggregator_rate: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Host {
    pub(super) name: Spanned<String>,
    pub(super) rank: Spanned<u16>,
    pub(super) address: Spanned<String>,
    pub(super) region: Option<Spanned<String>>,
    pub(super) rate: Option<Spanned<String>>,
    pub(super) aggregator: Option<Spanned<String>>,
    pub(super) daemon: Option<bool>,
    pub(super) slots: Option<Spanned<u32>>,
    pub(super) interface: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measured {
    pub(super) hosts: Vec<String>,
    pub(super) mbit: Vec<Vec<f64>>,
}

fn unnamed() -> String {
    "unnamed".into()
}
