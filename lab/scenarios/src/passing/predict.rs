//! How long a run will take, computed from the models instead of tried.

use xdp_agg_workloads::model::{self, Setting, System};
use xdp_agg_workloads::{Network, claims};

/// Seconds in which a network, its services and its processes start and end.
const START_S: f64 = 2.5;
/// What systems take over the least that links allow, TCP's many-to-one included.
const SLOWER: f64 = 1.3;
/// How often all buckets are summed besides the phases: to verify them before and after.
const VERIFICATIONS: f64 = 2.0;
/// Copies of the gradient that a process holds at a time, in flight and in buffers.
const COPIES: f64 = 6.0;

/// Computation of an iteration, as a person asks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Compute {
    /// This number of seconds.
    Seconds(f64),
    /// The paper's ([`claims::compute_seconds`]), as it compares with links of this number of
    /// Gbit/s. For a scaled gradient over links of another rate it is scaled alike.
    Paper(u16),
}

impl std::str::FromStr for Compute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is no time; expected paper, paper@1 (the paper's links of 1 Gbit/s), or \
                 seconds such as 0.5"
            )
        };
        if let Some(rate) = text.strip_prefix("paper") {
            let rate = if rate.is_empty() {
                Some(claims::EFFICIENCY_GBITS)
            } else {
                rate.strip_prefix('@').and_then(|gbits| gbits.parse().ok())
            };
            return rate.filter(|gbits| *gbits > 0).map(Self::Paper).ok_or_else(expected);
        }
        let seconds = text.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
        seconds.map(Self::Seconds).ok_or_else(expected)
    }
}

impl Compute {
    /// In seconds, for a gradient of `bytes` over links of `link` bytes a second.
    pub(crate) fn seconds(self, network: Network, bytes: f64, link: f64) -> f64 {
        match self {
            Self::Seconds(seconds) => seconds,
            Self::Paper(gbits) => {
                let paper = f64::from(gbits) * claims::GBIT;
                let share = bytes / network.gradient_bytes() as f64;
                claims::compute_seconds(network) * share * paper / link
            }
        }
    }

    /// The rate of the paper's links that it compares with, in Gbit/s, if it is the paper's.
    pub(crate) const fn paper_gbits(self) -> Option<u16> {
        match self {
            Self::Seconds(_) => None,
            Self::Paper(gbits) => Some(gbits),
        }
    }
}

/// A phase whose computation is not known in seconds yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Phase {
    pub(crate) iters: u32,
    pub(crate) compute: Compute,
    pub(crate) overlap: bool,
}

impl Phase {
    /// As `xdp-agg-bench --phase` reads it.
    pub(crate) fn argument(&self, network: Network, bytes: f64, link: f64) -> String {
        let seconds = self.compute.seconds(network, bytes, link);
        let overlap = if self.overlap { "+overlap" } else { "" };
        format!("{}x{seconds:.6}{overlap}", self.iters)
    }
}

/// What is run for one network.
pub(crate) struct Run<'a> {
    pub(crate) systems: &'a [System],
    pub(crate) settings: &'a [Setting],
    pub(crate) phases: &'a [Phase],
}

impl Run<'_> {
    /// Seconds of one system in one setting.
    pub(crate) fn cell_seconds(
        &self,
        network: Network,
        bytes: f64,
        system: System,
        setting: &Setting,
    ) -> f64 {
        let communication = SLOWER * model::bound_seconds(system, setting, bytes, 1.05);
        let phases = self.phases.iter().map(|phase| {
            let compute = phase.compute.seconds(network, bytes, setting.link);
            f64::from(phase.iters) * (compute + communication)
        });
        START_S + VERIFICATIONS * communication + phases.sum::<f64>()
    }

    /// Whether a system is run in a setting. One without servers has nothing to do with where they
    /// are: it is run once.
    pub(crate) fn is_run(&self, system: System, setting: &Setting) -> bool {
        let like =
            |other: &&Setting| (other.hosts, other.processes) == (setting.hosts, setting.processes);
        let first = self.settings.iter().find(like);
        system.uses_servers() || first.is_none_or(|first| first.servers == setting.servers)
    }

    /// Seconds of all systems in all settings.
    pub(crate) fn seconds(&self, network: Network, bytes: f64) -> f64 {
        let of = |setting: &Setting| -> f64 {
            let systems = self.systems.iter().filter(|system| self.is_run(**system, setting));
            systems.map(|system| self.cell_seconds(network, bytes, *system, setting)).sum()
        };
        self.settings.iter().map(of).sum()
    }

    /// The fraction of a network, rounded down to two digits, with which all of it keeps to
    /// `limit_s` seconds and `memory` bytes; none if no fraction does.
    pub(crate) fn fraction(&self, network: Network, limit_s: f64, memory: f64) -> Option<f64> {
        let whole = network.gradient_bytes() as f64;
        let fixed = self.seconds(network, 0.0);
        // Time grows in proportion to the bytes, apart from what is fixed.
        let a_byte = self.seconds(network, 1.0) - fixed;
        let by_time = if a_byte > 0.0 { (limit_s - fixed) / a_byte } else { f64::INFINITY };
        let bytes = by_time.min(memory / self.memory_bytes(1.0));
        let fraction = (bytes / whole).min(1.0);
        (fraction > 1e-7).then(|| two_digits(fraction))
    }

    /// Bytes of memory of all processes of the largest setting.
    pub(crate) fn memory_bytes(&self, bytes: f64) -> f64 {
        let most = self.settings.iter().map(Setting::world).max().unwrap_or(1);
        f64::from(most) * COPIES * bytes
    }
}

fn two_digits(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    // A little more, so that 0.37 does not become 0.36. Then through text, so that it is exactly
    // the number that its digits say.
    let digits = (value / unit + 1e-6).floor();
    format!("{:.1e}", digits * unit).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use xdp_agg_workloads::model::Servers;

    use super::*;

    const SETTING: Setting =
        Setting { hosts: 4, processes: 4, servers: Servers::Apart(1), link: 1e7, in_host: 1e10 };

    #[test]
    fn a_cell_is_its_start_its_checks_and_its_iterations() {
        let phase =
            |iters, seconds| Phase { iters, compute: Compute::Seconds(seconds), overlap: false };
        let phases = [phase(10, 0.0), phase(2, 3.0)];
        let run = Run { systems: &[System::Ps], settings: &[SETTING], phases: &phases };
        // 16 times 10 MB over 10 MB/s: 16 s, and 5 % of headers, 1.3 times as long: 21.84.
        let seconds = run.seconds(Network::Vgg19, 1e7);
        assert!((seconds - (2.5 + 14.0 * 21.84 + 6.0)).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn a_fraction_uses_the_time_and_no_more() {
        let phases = [Phase { iters: 3, compute: Compute::Paper(10), overlap: true }];
        let run = Run { systems: &System::ALL, settings: &[SETTING], phases: &phases };
        let fraction = run.fraction(Network::Vgg19, 120.0, 1e12).expect("it is long enough");
        let bytes = fraction * Network::Vgg19.gradient_bytes() as f64;
        let seconds = run.seconds(Network::Vgg19, bytes);
        assert!((105.0..=120.0).contains(&seconds), "{seconds}");
        assert_eq!(run.fraction(Network::Vgg19, 10.0, 1e12), None);
        let small = run.fraction(Network::Vgg19, 1e9, 1e6).expect("memory for some");
        let bytes = small * Network::Vgg19.gradient_bytes() as f64;
        assert!(run.memory_bytes(bytes) <= 1e6);
    }

    #[test]
    fn fractions_are_short() {
        for (value, text) in [(0.0123, "0.012"), (0.37, "0.37"), (1.0, "1"), (0.000_999, "0.00099")]
        {
            assert_eq!(two_digits(value).to_string(), text);
        }
    }

    #[test]
    fn computation_is_read() {
        assert_eq!("paper".parse(), Ok(Compute::Paper(10)));
        assert_eq!("paper@1".parse(), Ok(Compute::Paper(1)));
        for text in ["-1", "paper@", "paper@0", "paper1"] {
            assert!(text.parse::<Compute>().is_err(), "{text}");
        }
        assert_eq!("0.5".parse(), Ok(Compute::Seconds(0.5)));
        // The whole gradient over the paper's links; a tenth of both gives the same.
        let bytes = Network::Vgg19.gradient_bytes() as f64;
        let of = |gbits| Compute::Paper(gbits).seconds(Network::Vgg19, bytes, 1e9 / 8.0);
        let whole = claims::compute_seconds(Network::Vgg19);
        assert!((of(1) / whole - 1.0).abs() < 1e-9);
        // As long as it takes ten times as many transfers over links that are ten times as fast.
        assert!((of(10) / whole - 10.0).abs() < 1e-9);
    }
}
