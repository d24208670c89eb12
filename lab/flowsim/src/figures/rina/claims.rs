//! What paper 3 says of its figures, beside what came out.

use crate::figures::atp::ARRANGEMENTS;
use crate::figures::{Claim, Verdict, spread};

/// The systems of figure 10.
pub(super) const SYSTEMS: [&str; 12] = [
    "PS, one",
    "PS, all",
    "RAR",
    "H-AR",
    "ATP 50%, one",
    "ATP 50%, one, racks first",
    "ATP 50%, all",
    "ATP 50%, all, racks first",
    "Rina 50%",
    "ATP 100%, one",
    "ATP 100%, all",
    "Rina 100%",
];
/// Places in [`SYSTEMS`].
pub(super) const PS: [usize; 2] = [0, 1];
pub(super) const RAR: usize = 2;
pub(super) const H_AR: usize = 3;
pub(super) const HALF_ATP: [usize; 4] = [4, 5, 6, 7];
pub(super) const HALF_RINA: usize = 8;
pub(super) const FULL_ATP: [usize; 2] = [9, 10];
pub(super) const FULL_RINA: usize = 11;

/// The claim of figure 5: arrangements with per cent replaced and the share of the full rate.
pub(super) fn half_rate(network: &str, told: &[(&str, f64, f64)]) -> Claim {
    let ours = told.iter().map(|(name, replaced, rate)| {
        format!("{:.0} % with {replaced:.0} % ({name})", rate * 100.0)
    });
    // The model of the figure has one server. Far less than half: the direction, not the number.
    let one: Vec<f64> = told[..2].iter().map(|(_, _, rate)| *rate).collect();
    let about_half = |rate: &f64| (0.4..0.6).contains(rate);
    Claim {
        paper: format!(
            "{network}: with 80 % of the switches replaced, throughput is only 50 % (section I)"
        ),
        ours: format!("of the full rate {}", ours.collect::<Vec<_>>().join(", ")),
        verdict: Verdict::of(one.iter().all(about_half), one.iter().any(|rate| *rate < 0.6)),
    }
}

/// The claims of figure 10: by model, samples a second of all [`SYSTEMS`].
pub(super) fn throughput_claims(groups: &[(String, Vec<f64>)]) -> Vec<Claim> {
    let ratios = |above: usize, below: usize| -> Vec<f64> {
        groups.iter().map(|(_, values)| values[above] / values[below]).collect()
    };
    let least = |list: &[f64]| list.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |list: &[f64]| list.iter().copied().fold(0.0, f64::max);
    let times = |list: &[f64]| format!("{} times", spread(list, 2));
    let over_atp = HALF_ATP.map(|atp| ratios(HALF_RINA, atp));
    let like_atp = FULL_ATP.map(|atp| ratios(FULL_RINA, atp));
    let over_ps = PS.map(|ps| ratios(FULL_RINA, ps));
    let over_ring = ratios(FULL_RINA, RAR);
    let over_hierarchical = ratios(HALF_RINA, H_AR);
    // "Up to 6 times" within a factor of two.
    let up_to_six = |list: &[f64]| (3.0..12.0).contains(&most(list));
    let comparable = |list: &[f64]| least(list) > 0.8 && most(list) < 1.3;
    let resnet = groups.iter().position(|(name, _)| name == "ResNet50");
    let surpasses = |list: &[f64]| resnet.is_some_and(|at| list[at] > 1.0);
    let apart = |names: &[&str], lists: &[Vec<f64>]| {
        let parts = names.iter().zip(lists).map(|(name, list)| format!("{} ({name})", times(list)));
        parts.collect::<Vec<_>>().join(", ")
    };
    let places = ["one server", "servers on all"];
    vec![
        Claim {
            paper: "Rina has over 50 % more throughput than ATP with half of the switches".into(),
            ours: apart(&ARRANGEMENTS, &over_atp),
            verdict: Verdict::of(
                over_atp.iter().all(|list| least(list) > 1.5),
                over_atp.iter().any(|list| most(list) > 1.5),
            ),
        },
        Claim {
            paper: "with all switches replaced, Rina is comparable to ATP, and better on ResNet50"
                .into(),
            ours: apart(&places, &like_atp),
            verdict: Verdict::of(
                like_atp.iter().all(|list| comparable(list) && surpasses(list)),
                like_atp.iter().any(|list| comparable(list) || surpasses(list)),
            ),
        },
        Claim {
            paper: "Rina is up to 6 times as fast as PS and RAR".into(),
            ours: format!("PS: {}; RAR: {}", apart(&places, &over_ps), times(&over_ring)),
            verdict: Verdict::of(
                over_ps.iter().all(|list| up_to_six(list)) && up_to_six(&over_ring),
                over_ps.iter().any(|list| up_to_six(list)) || up_to_six(&over_ring),
            ),
        },
        Claim {
            paper: "Rina is better than H-AR with half of the switches".into(),
            ours: times(&over_hierarchical),
            verdict: Verdict::of(least(&over_hierarchical) > 1.0, most(&over_hierarchical) > 1.0),
        },
    ]
}

/// Samples a second by replaced switches, of which there are `all`.
pub(super) struct Gains<'a> {
    pub(super) points: &'a [(f64, f64)],
    pub(super) all: usize,
}

impl Gains<'_> {
    /// Per cent of the gain with `count` replaced.
    fn with(&self, count: usize) -> f64 {
        let (first, last) = (self.points[0].1, self.points[self.all].1);
        100.0 * (self.points[count].1 - first) / (last - first)
    }

    fn with_half(&self) -> f64 {
        self.with(self.all / 2)
    }
}

/// The claims of figure 11: what rises when.
pub(super) fn incremental_claims(rina: &Gains<'_>, atp: &[Gains<'_>]) -> Vec<Claim> {
    let rises = rina.points.windows(2).all(|pair| pair[1].1 >= pair[0].1 * (1.0 - 1e-9));
    let rina_half = rina.with_half();
    // Later than Rina's, which is what it is compared with.
    let is_late = |atp: &Gains<'_>| atp.with_half() < 50.0 && atp.with_half() < rina_half;
    let told = ARRANGEMENTS.iter().zip(atp).map(|(name, atp)| {
        format!("{:.0} % with half, {:.0} % with the first ({name})", atp.with_half(), atp.with(1))
    });
    vec![
        Claim {
            paper: "the throughput of Rina rises gradually with each replaced switch".into(),
            ours: format!(
                "{}; {rina_half:.0} % of the gain with half of the racks, {:.2} times with all",
                if rises { "never falls" } else { "falls in between" },
                rina.points[rina.all].1 / rina.points[0].1
            ),
            // In proportion to what is replaced, within a third.
            verdict: Verdict::of(rises && (33.0..67.0).contains(&rina_half), rises),
        },
        Claim {
            paper: "that of ATP rises only after many replacements".into(),
            ours: format!(
                "of the gain {}; Rina {rina_half:.0} % with half",
                told.collect::<Vec<_>>().join(", ")
            ),
            verdict: Verdict::of(atp.iter().all(is_late), atp.iter().any(is_late)),
        },
    ]
}
