//! Figures of PASSING's text (sections 3.2 and 5.2), and the computation that they imply.
//!
//! `lab/workloads/papers/passing.toml` has the numbers. The computation of an iteration is fitted
//! to figures 18 and 19 alone. So what is compared with it are the savings of figures 14 to 17, and
//! none of them went into it.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::model::{Servers, Setting, System, paper_seconds};
use crate::network::Network;

/// What the paper says one system saves over another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saving {
    /// Trained network.
    pub network: Network,
    /// `s`.
    pub hosts: u16,
    /// `n`.
    pub processes: u16,
    /// Rate of the links in Gbit/s.
    pub gbits: u16,
    /// The faster system.
    pub system: System,
    /// The slower one.
    pub over: System,
    /// Training time saved, in percent of the slower one's.
    pub percent: f64,
    /// Where it stands.
    pub figure: String,
    /// The computation is fitted to it, so it is no evidence.
    #[serde(default)]
    pub fitted: bool,
}

/// What the paper says of scaling efficiency. The computation is fitted to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Efficiency {
    /// Trained network.
    pub network: Network,
    /// `s`.
    pub hosts: u16,
    /// `n`.
    pub processes: u16,
    /// By how much PASSING's scaling efficiency is above the parameter server's, in percent of the
    /// latter; links of [`EFFICIENCY_GBITS`].
    pub percent_over_ps: f64,
    /// Where it stands.
    pub figure: String,
}

/// What the paper says of speed-up over one accelerator, of both networks, with PS and a ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedUp {
    /// Accelerators, here processes.
    pub accelerators: u16,
    /// The largest speed-up of all cases.
    pub at_most: f64,
    /// Where it stands.
    pub figure: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    saving: Vec<Saving>,
    efficiency: Vec<Efficiency>,
    speed_up: Vec<SpeedUp>,
}

static PAPER: LazyLock<Paper> = LazyLock::new(|| {
    // A test reads it; what is built in does not change.
    toml::from_str(include_str!("../papers/passing.toml")).expect("the paper's numbers are read")
});

/// Rate of the links of figures 18 and 19, in Gbit/s.
pub const EFFICIENCY_GBITS: u16 = 10;
/// Bytes a second of one Gbit/s.
pub const GBIT: f64 = 1e9 / 8.0;

/// All savings of the text.
pub fn all_savings() -> &'static [Saving] {
    &PAPER.saving
}

/// All scaling efficiencies of the text.
pub fn all_efficiencies() -> &'static [Efficiency] {
    &PAPER.efficiency
}

/// All speed-ups of the text.
pub fn speed_ups() -> &'static [SpeedUp] {
    &PAPER.speed_up
}

/// Savings that the paper claims of this setting, at any rate.
pub fn savings(
    network: Network,
    hosts: u16,
    processes: u16,
) -> impl Iterator<Item = &'static Saving> {
    let key = (network, hosts, processes);
    all_savings().iter().filter(move |claim| (claim.network, claim.hosts, claim.processes) == key)
}

/// Efficiencies that the paper claims of this setting.
pub fn efficiencies(
    network: Network,
    hosts: u16,
    processes: u16,
) -> impl Iterator<Item = &'static Efficiency> {
    let key = (network, hosts, processes);
    all_efficiencies()
        .iter()
        .filter(move |claim| (claim.network, claim.hosts, claim.processes) == key)
}

/// Seconds that an iteration of the paper's processes computes, whatever the rate of the links.
///
/// The text gives neither times nor shares. What it does give is by how much PASSING's scaling
/// efficiency is above the parameter server's, in two settings of each network (figures 18 and 19).
/// By equations (1) to (4), with communication after computation, that is
/// `(C + T_ps) / (C + T_passing)`. `C` is the one value with the least squares of the logarithms'
/// differences, over the network's settings. No `C` fits both: by the equations the gain grows with
/// the hosts, in the paper it falls. A network that the paper does not train takes VGG-19's, in
/// proportion to its gradient.
pub fn compute_seconds(network: Network) -> f64 {
    let mut claims = all_efficiencies().iter().filter(|claim| claim.network == network).peekable();
    if claims.peek().is_none() {
        let share = network.gradient_bytes() as f64 / Network::Vgg19.gradient_bytes() as f64;
        return compute_seconds(Network::Vgg19) * share;
    }
    let claims: Vec<_> = claims.collect();
    let misfit = |compute: f64| -> f64 {
        let difference = |claim: &&Efficiency| {
            (modelled_gain(claim, compute) / gain(claim.percent_over_ps)).ln().powi(2)
        };
        claims.iter().map(difference).sum()
    };
    least(misfit)
}

/// Efficiency over efficiency, from a percentage.
fn gain(percent: f64) -> f64 {
    1.0 + percent / 100.0
}

/// The same by equations (1) to (4), where an iteration computes for this number of seconds.
fn modelled_gain(claim: &Efficiency, compute: f64) -> f64 {
    let setting = paper_setting(claim.hosts, claim.processes, EFFICIENCY_GBITS);
    let bytes = claim.network.gradient_bytes() as f64;
    let time = |system| compute + paper_seconds(system, &setting, bytes);
    time(System::Ps) / time(System::Passing)
}

/// The paper's testbed: one server; the bus inside a host takes no time beside its links.
pub fn paper_setting(hosts: u16, processes: u16, gbits: u16) -> Setting {
    let link = f64::from(gbits) * GBIT;
    Setting { hosts, processes, servers: Servers::Apart(1), link, in_host: f64::INFINITY }
}

/// What a claim would be by equations (1) to (4), with the fitted computation: percent saved.
pub fn modelled_saving(claim: &Saving) -> f64 {
    let setting = paper_setting(claim.hosts, claim.processes, claim.gbits);
    let bytes = claim.network.gradient_bytes() as f64;
    let compute = compute_seconds(claim.network);
    let time = |system| compute + paper_seconds(system, &setting, bytes);
    100.0 * (1.0 - time(claim.system) / time(claim.over))
}

/// The same of an efficiency: percent over the parameter server's.
pub fn modelled_efficiency(claim: &Efficiency) -> f64 {
    100.0 * (modelled_gain(claim, compute_seconds(claim.network)) - 1.0)
}

/// Where a function of a number of seconds that falls, and then rises, is least: by golden section.
fn least(of: impl Fn(f64) -> f64) -> f64 {
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (1e-3_f64.ln(), 1e4_f64.ln());
    for _ in 0..100 {
        let step = golden * (high - low);
        let (left, right) = (high - step, low + step);
        if of(left.exp()) < of(right.exp()) {
            high = right;
        } else {
            low = left;
        }
    }
    low.midpoint(high).exp()
}

/// How near a result is to the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is ([`is_near`]).
    Reproduced,
    /// The same system is ahead, by more or by less.
    Direction,
    /// The other system is ahead.
    No,
}

/// Whether a result is within a fifth of the paper's.
pub fn is_near(paper: f64, ours: f64) -> bool {
    (ours / paper - 1.0).abs() <= 0.2
}

impl Verdict {
    /// Of two percentages that something is ahead by.
    pub fn of(paper: f64, ours: f64) -> Self {
        if is_near(paper, ours) {
            Self::Reproduced
        } else if ours > 0.0 {
            Self::Direction
        } else {
            Self::No
        }
    }

    /// The word in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, in units of `K / B`: two and four hosts of four take the parameter server 16 and
    /// 32, PASSING 2. At the least, the logarithms are off by about as much, one up and one down.
    #[test]
    fn computation_is_fitted_to_two_settings_that_contradict_each_other() {
        let transfer = Network::Vgg19.gradient_bytes() as f64 / (10.0 * GBIT);
        let compute = compute_seconds(Network::Vgg19) / transfer;
        let misfit = |hosts: f64, percent: f64| {
            ((compute + 8.0 * hosts) / (compute + 2.0) / gain(percent)).ln()
        };
        let (two, four) = (misfit(2.0, 187.80), misfit(4.0, 82.54));
        assert!(two < -0.2 && four > 0.2, "{two} {four}");
        // The slope of each weighs a little differently.
        assert!((two + four).abs() < 0.2, "{two} {four}");
        let better = |factor: f64| {
            let at = compute * factor;
            let of = |hosts: f64, percent: f64| {
                ((at + 8.0 * hosts) / (at + 2.0) / gain(percent)).ln().powi(2)
            };
            of(2.0, 187.80) + of(4.0, 82.54)
        };
        assert!(better(1.0) < better(1.02) && better(1.0) < better(0.98));
    }

    /// A gain that one value of `C` explains gives this value.
    #[test]
    fn the_least_is_found() {
        assert!((least(|x| (x - 7.5).powi(2)) - 7.5).abs() < 1e-6);
        assert!((least(|x| (x / 0.02).ln().abs()) - 0.02).abs() < 1e-9);
    }

    #[test]
    fn the_computation_is_the_same_at_every_rate() {
        let at = |gbits| {
            let all = savings(Network::Vgg19, 4, 4);
            all.filter(move |claim| claim.gbits == gbits && claim.over == System::Switchml)
        };
        let [fast, slow] = [10, 1].map(|gbits| at(gbits).next().expect("it is claimed"));
        // The paper saves the same at both rates; with the same computation the slow links save
        // several times as much.
        assert_eq!(fast.percent, slow.percent);
        assert!(modelled_saving(slow) > 2.0 * modelled_saving(fast));
    }

    #[test]
    fn claims_are_found_by_their_setting() {
        assert_eq!(all_savings().len(), 17);
        assert_eq!(all_efficiencies().len(), 4);
        assert_eq!(speed_ups().len(), 1);
        assert_eq!(savings(Network::Vgg19, 4, 4).count(), 6);
        assert_eq!(savings(Network::Bert, 4, 4).count(), 0);
        assert!(all_savings().iter().all(|claim| (0.0..100.0).contains(&claim.percent)));
    }

    /// The abstract's 65.25 % are figure 18's 187.80 % more efficiency, to four digits.
    #[test]
    fn the_most_that_is_saved_is_of_the_setting_with_the_most_efficiency() {
        let most = all_savings().iter().find(|claim| claim.percent == 65.25).expect("it is there");
        let of = efficiencies(most.network, most.hosts, most.processes).next().expect("figure 18");
        assert!((100.0 * (1.0 - 1.0 / gain(of.percent_over_ps)) - most.percent).abs() < 0.01);
    }

    #[test]
    fn verdicts_are_of_both_numbers() {
        assert_eq!(Verdict::of(10.0, 11.9), Verdict::Reproduced);
        assert_eq!(Verdict::of(10.0, 30.0), Verdict::Direction);
        assert_eq!(Verdict::of(10.0, -0.1), Verdict::No);
        assert_eq!(Verdict::Direction.name(), "direction");
    }
}
