//! Figures 14 to 19 of paper 1 (PASSING): iterations, and scaling efficiency.

use std::collections::BTreeSet;

use crate::generate::{Generated, SpineLeaf};
use anyhow::Result;
use xdp_agg_report::plot::Axes;
use xdp_agg_topology::Rate;
use xdp_agg_workloads::Network as Model;
use xdp_agg_workloads::claims::{
    Efficiency, Saving, all_efficiencies, all_savings, compute_seconds, is_near,
};
use xdp_agg_workloads::model::{self, Setting, System, in_host_seconds};

use crate::engine::{Options, simulate};
use crate::fabric::{Costs, Fabric};
use crate::predict::Question;
use crate::strategy::{Servers, Way};

use super::{Bench, Cell, Claim, Figure, Picture, Plan, Verdict};

/// Links of the paper's first runs, in Gbit/s.
const LINK: u32 = 10;
/// And of its others.
const NARROW: u32 = 1;
/// Between two processes of a host: PCIe 3.0 x16, in bytes a second.
const IN_HOST: f64 = 12e9;

/// Hosts behind one switch.
fn star(hosts: usize, gbits: u32) -> Result<Generated> {
    let rate = Rate::gbit(gbits);
    let network = SpineLeaf {
        spines: 1,
        leaves: 1,
        hosts_per_leaf: hosts,
        host_rate: rate,
        spine_rate: rate,
    };
    Ok(network.generate()?)
}

/// Seconds of one synchronisation of `hosts` hosts of `processes` each.
struct Times {
    ps: f64,
    psring: f64,
    switchml: f64,
    passing: f64,
}

/// With links of this rate.
fn times(bench: &Bench, (hosts, processes): (usize, u16), bytes: f64, gbits: u32) -> Result<Times> {
    // The server is a host of its own and not a worker.
    let with_server = star(hosts + 1, gbits)?;
    let fabric = Fabric::new(&with_server.network, Costs::IDEAL);
    let server = Servers::new(&with_server.network, [hosts as u16]);
    let served = |pushed: f64| -> Result<f64> {
        let schedule = server.schedule(&fabric, &BTreeSet::new(), pushed);
        let options = Options::default();
        Ok(simulate(&schedule, fabric.capacities(), &options, &mut |_| {})?.seconds)
    };
    let (ps, psring) = (served(bytes * f64::from(processes))?, served(bytes)?);
    let mut generated = star(hosts, gbits)?;
    generated.equip(0);
    let aggregated = |way| -> Result<f64> {
        let question = Question { processes, ..Question::ideal(way, bytes) };
        Ok(bench.run(&generated, &question)?.seconds)
    };
    let setting = Setting {
        hosts: hosts as u16,
        processes,
        servers: model::Servers::Apart(1),
        link: Rate::gbit(gbits).bytes(),
        in_host: IN_HOST,
    };
    // Reduce-scatter before, all-gather behind.
    let in_host = 2.0 * in_host_seconds(&setting, bytes);
    let (switchml, passing) = (aggregated(Way::SwitchMl)?, aggregated(Way::Passing)? + in_host);
    Ok(Times { ps, psring: psring + in_host, switchml, passing })
}

impl Times {
    /// None for systems that are not simulated.
    const fn of(&self, system: System) -> Option<f64> {
        match system {
            System::Ps => Some(self.ps),
            System::Psring => Some(self.psring),
            System::Switchml => Some(self.switchml),
            System::Passing => Some(self.passing),
            System::Atp | System::Ring | System::HAr => None,
        }
    }
}

/// The systems of figures 14 to 17. (ATP's blocks never collide here, so it would be SwitchML.)
const SYSTEMS: [System; 4] = [System::Ps, System::Psring, System::Switchml, System::Passing];

/// Figures 14 to 17: an iteration by setting.
pub(super) fn iterations(_: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let figures = [
        (Model::Vgg19, LINK, "passing-14", "PASSING, figure 14: VGG19, 10 Gbit/s"),
        (Model::Resnet50, LINK, "passing-15", "PASSING, figure 15: ResNet50, 10 Gbit/s"),
        (Model::Vgg19, NARROW, "passing-16", "PASSING, figure 16: VGG19, 1 Gbit/s"),
        (Model::Resnet50, NARROW, "passing-17", "PASSING, figure 17: ResNet50, 1 Gbit/s"),
    ];
    figures
        .into_iter()
        .map(|(model, gbits, name, title)| {
            let computing = compute_seconds(model);
            let (mut rows, mut groups) = (Vec::new(), Vec::new());
            for setting in [(2, 2), (2, 4), (4, 2), (4, 4)] {
                let times = times(bench, setting, model.gradient_bytes() as f64, gbits)?;
                let all = SYSTEMS.map(|system| computing + times.of(system).unwrap_or(f64::NAN));
                let place = format!("{} x {}", setting.0, setting.1);
                let mut row: Vec<Cell> = vec![(&place).into()];
                row.extend(all.map(Cell::from));
                rows.push(row);
                groups.push((place, all.to_vec()));
            }
            let claims = all_savings().iter().filter(|claim| {
                (claim.network, u32::from(claim.gbits)) == (model, gbits) && !claim.fitted
            });
            Ok(Figure {
                name,
                title,
                assumptions: vec![
                format!(
                    "an iteration computes for {computing:.3} s at either rate, fitted to figures \
                     18 and 19 (lab/workloads/src/claims.rs)"
                ),
                "seconds of an iteration; one server on a host of its own; both directions of a \
                 link at once; processes of a host at 12 GB/s; ATP would be as SwitchML, because \
                 no blocks collide"
                    .into(),
            ],
                claims: claims
                    .filter_map(|claim| saved(bench, claim).transpose())
                    .collect::<Result<_>>()?,
                columns: vec!["hosts x processes", "PS", "PSRing", "SwitchML", "PASSING"],
                rows,
                picture: Picture::Bars {
                    y: "seconds of an iteration",
                    series: ["PS", "PSRing", "SwitchML", "PASSING"].map(str::to_owned).to_vec(),
                    groups,
                },
            })
        })
        .collect()
}

/// A saving of the text beside what came out; None if a system is not simulated.
fn saved(bench: &Bench, claim: &Saving) -> Result<Option<Claim>> {
    let computing = compute_seconds(claim.network);
    let bytes = claim.network.gradient_bytes() as f64;
    let setting = (usize::from(claim.hosts), claim.processes);
    let times = times(bench, setting, bytes, claim.gbits.into())?;
    let (Some(ours), Some(others)) = (times.of(claim.system), times.of(claim.over)) else {
        return Ok(None);
    };
    // With all pushed before anything is pulled: equations (2) to (4).
    let saved =
        |factor: f64| 100.0 * (1.0 - (computing + factor * ours) / (computing + factor * others));
    let (both, apart) = (saved(1.0), saved(2.0));
    Ok(Some(Claim {
        paper: format!(
            "{} x {}: {} saves {:.2} % of the time of {}",
            claim.hosts, claim.processes, claim.system, claim.percent, claim.over
        ),
        ours: format!("{both:.1} %; {apart:.1} % if all is pushed before anything is pulled"),
        verdict: near(claim.percent, both, apart),
    }))
}

/// One of the two within a fifth, or the paper's number between them.
fn near(paper: f64, both: f64, apart: f64) -> Verdict {
    let close = |percent: f64| is_near(paper, percent);
    let between = (both.min(apart)..=both.max(apart)).contains(&paper);
    Verdict::of(close(both) || close(apart), between)
}

/// Figures 18 and 19, and beyond their four hosts.
pub(super) fn scaling(plan: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let figures = [
        (Model::Vgg19, "passing-18", "PASSING, figure 18: scaling efficiency, VGG19, 10 Gbit/s"),
        (
            Model::Resnet50,
            "passing-19",
            "PASSING, figure 19: scaling efficiency, ResNet50, 10 Gbit/s",
        ),
    ];
    let hosts: &[usize] = if plan.quick { &[2, 4] } else { &[1, 2, 4, 8, 16, 32, 64, 128, 256] };
    let mut made = Vec::new();
    for (model, name, title) in figures {
        let bytes = model.gradient_bytes() as f64;
        let computing = compute_seconds(model);
        // Speed-up over one process, divided by the number of processes.
        let efficiency = |sync: f64| computing / (computing + sync);
        let mut rows = Vec::new();
        let mut lines = [const { Vec::new() }; 3];
        for processes in [2_u16, 4] {
            for &hosts in hosts {
                let Times { ps, switchml, passing, .. } =
                    times(bench, (hosts, processes), bytes, LINK)?;
                let all = [ps, switchml, passing].map(efficiency);
                if processes == 4 {
                    for (line, value) in lines.iter_mut().zip(all) {
                        line.push((hosts as f64, value));
                    }
                }
                let mut row: Vec<Cell> = vec![hosts.into(), usize::from(processes).into()];
                row.extend(all.map(Cell::from));
                row.push((100.0 * (all[2] / all[0] - 1.0)).into());
                rows.push(row);
            }
        }
        let claims = all_efficiencies()
            .iter()
            .filter(|claim| claim.network == model)
            .map(|claim| compared(bench, claim, bytes, computing))
            .collect::<Result<_>>()?;
        let names = ["PS", "SwitchML", "PASSING"].map(|name| format!("{name}, 4 processes a host"));
        made.push(Figure {
            name,
            title,
            assumptions: vec![
                format!(
                    "an iteration computes for {computing:.2} s, the one value that comes nearest \
                     to the figure's numbers (lab/workloads/src/claims.rs): with it they are \
                     compared with themselves"
                ),
                "one server on a host of its own; both directions of a link at once; processes of \
                 a host at 12 GB/s"
                    .into(),
                "only the two numbers that the text gives are compared; the curves are pictures"
                    .into(),
            ],
            claims,
            columns: vec!["hosts", "processes", "PS", "SwitchML", "PASSING", "PASSING over PS, %"],
            rows,
            picture: Picture::Lines {
                x: "hosts",
                y: "scaling efficiency",
                axes: Axes::Linear,
                series: names.into_iter().zip(lines).collect(),
            },
        });
    }
    Ok(made)
}

/// A claim of the text beside what came out.
fn compared(bench: &Bench, claim: &Efficiency, bytes: f64, computing: f64) -> Result<Claim> {
    let setting = (usize::from(claim.hosts), claim.processes);
    let times = times(bench, setting, bytes, LINK)?;
    let over = |ps: f64, passing: f64| 100.0 * ((computing + ps) / (computing + passing) - 1.0);
    let both = over(times.ps, times.passing);
    // Push, then pull: equation (4).
    let apart = over(2.0 * times.ps, 2.0 * times.passing);
    Ok(Claim {
        paper: format!(
            "{} x {}: PASSING's efficiency is {:.1} % above PS's",
            claim.hosts, claim.processes, claim.percent_over_ps
        ),
        ours: format!("{both:.1} %; {apart:.1} % if all is pushed before anything is pulled"),
        verdict: near(claim.percent_over_ps, both, apart),
    })
}
