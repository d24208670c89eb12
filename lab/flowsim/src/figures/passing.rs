//! Figures 4 to 6 and 14 to 19 of paper 1 (PASSING): computation and communication by size of the
//! cluster, iterations, and scaling efficiency.

use std::collections::BTreeSet;

use crate::generate::{Generated, SpineLeaf};
use anyhow::Result;
use xdp_agg_report::plot::Axes;
use xdp_agg_topology::Rate;
use xdp_agg_topology::graph::NodeKind;
use xdp_agg_workloads::Network as Model;
use xdp_agg_workloads::claims::{
    Efficiency, Saving, all_efficiencies, all_savings, compute_seconds, is_near, speed_ups,
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
    atp: f64,
    ring: f64,
    passing: f64,
}

/// Where a job runs, as the equations have it.
fn setting_of((hosts, processes): (usize, u16), gbits: u32) -> Setting {
    Setting {
        hosts: hosts as u16,
        processes,
        servers: model::Servers::Apart(1),
        link: Rate::gbit(gbits).bytes(),
        in_host: IN_HOST,
    }
}

/// With links of this rate.
fn times(bench: &Bench, (hosts, processes): (usize, u16), bytes: f64, gbits: u32) -> Result<Times> {
    // The server is a host of its own and not a worker.
    let with_server = star(hosts + 1, gbits)?;
    let fabric = Fabric::new(&with_server.network, Costs::IDEAL);
    let server = Servers::new(&with_server.network, [hosts as u16]);
    let served = |aggregating: &BTreeSet<usize>, pushed: f64| -> Result<f64> {
        let schedule = server.schedule(&fabric, aggregating, pushed);
        let options = Options::default();
        Ok(simulate(&schedule, fabric.capacities(), &options, &mut |_| {})?.seconds)
    };
    let (none, all_bytes) = (BTreeSet::new(), bytes * f64::from(processes));
    let nodes = with_server.network.nodes().iter().enumerate();
    let switches = nodes.filter(|(_, node)| **node == NodeKind::Switch).map(|(index, _)| index);
    // No block finds its slot taken, and the switch sums all that comes by.
    let atp = served(&switches.collect(), all_bytes)?;
    let (ps, psring) = (served(&none, all_bytes)?, served(&none, bytes)?);
    let mut generated = star(hosts, gbits)?;
    generated.equip(0);
    let aggregated = |way| -> Result<f64> {
        let question = Question { processes, ..Question::ideal(way, bytes) };
        Ok(bench.run(&generated, &question)?.seconds)
    };
    let setting = setting_of((hosts, processes), gbits);
    // Reduce-scatter before, all-gather behind.
    let in_host = 2.0 * in_host_seconds(&setting, bytes);
    let (switchml, passing) = (aggregated(Way::SwitchMl)?, aggregated(Way::Passing)? + in_host);
    // All processes in one ring: only a host's last one has its neighbour on another host.
    let ring = if hosts > 1 {
        let (world, hosts) = (f64::from(setting.world()), hosts as f64);
        let share = ((world - 1.0) / world) / ((hosts - 1.0) / hosts);
        bench.run(&generated, &Question::ideal(Way::Ring, bytes * share))?.seconds
    } else {
        in_host
    };
    Ok(Times { ps, psring: psring + in_host, switchml, atp, ring, passing })
}

impl Times {
    /// None for a system that is not the paper's.
    const fn of(&self, system: System) -> Option<f64> {
        match system {
            System::Ps => Some(self.ps),
            System::Psring => Some(self.psring),
            System::Switchml => Some(self.switchml),
            System::Atp => Some(self.atp),
            System::Ring => Some(self.ring),
            System::Passing => Some(self.passing),
            System::HAr => None,
        }
    }

    /// Of the systems of figures 14 to 19.
    fn all(&self) -> [f64; 5] {
        SYSTEMS.map(|system| self.of(system).unwrap_or(f64::NAN))
    }
}

/// The systems of figures 14 to 19, and their names there.
const SYSTEMS: [System; 5] =
    [System::Ps, System::Psring, System::Switchml, System::Atp, System::Passing];
const NAMES: [&str; 5] = ["PS", "PSRing", "SwitchML", "ATP", "PASSING"];

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
                let all = times.all().map(|seconds| computing + seconds);
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
                 link at once; processes of a host at 12 GB/s; with ATP no block finds its slot \
                 taken"
                    .into(),
            ],
                claims: claims
                    .filter_map(|claim| saved(bench, claim).transpose())
                    .collect::<Result<_>>()?,
                columns: [&["hosts x processes"][..], &NAMES].concat(),
                rows,
                picture: Picture::Bars {
                    y: "seconds of an iteration",
                    series: NAMES.map(str::to_owned).to_vec(),
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

/// Both within a fifth; or at least one of them, or the paper's number between them.
fn near(paper: f64, both: f64, apart: f64) -> Verdict {
    let close = |percent: f64| is_near(paper, percent);
    let between = (both.min(apart)..=both.max(apart)).contains(&paper);
    Verdict::of(close(both) && close(apart), close(both) || close(apart) || between)
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
        let mut lines = [const { Vec::new() }; NAMES.len()];
        for processes in [2_u16, 4] {
            for &hosts in hosts {
                let all = times(bench, (hosts, processes), bytes, LINK)?.all().map(efficiency);
                let setting = setting_of((hosts, processes), LINK);
                let equations =
                    SYSTEMS.map(|system| efficiency(model::paper_seconds(system, &setting, bytes)));
                if processes == 4 {
                    for (line, value) in lines.iter_mut().zip(all) {
                        line.push((hosts as f64, value));
                    }
                }
                let mut row: Vec<Cell> = vec![hosts.into(), usize::from(processes).into()];
                row.extend(all.map(Cell::from));
                row.push((100.0 * (all[4] / all[0] - 1.0)).into());
                row.extend(equations.map(Cell::from));
                rows.push(row);
            }
        }
        let claims = all_efficiencies()
            .iter()
            .filter(|claim| claim.network == model)
            .map(|claim| compared(bench, claim, bytes, computing))
            .collect::<Result<_>>()?;
        let names = NAMES.map(|name| format!("{name}, 4 processes a host"));
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
                 a host at 12 GB/s; with ATP no block finds its slot taken; (1)-(4): by equations \
                 (1) to (4) and their like, in which all is pushed before anything is pulled"
                    .into(),
                "only the two numbers that the text gives are compared; the curves are pictures"
                    .into(),
            ],
            claims,
            columns: [
                &["hosts", "processes"][..],
                &NAMES,
                &["PASSING over PS, %", "PS (1)-(4)", "PSRing (1)-(4)", "SwitchML (1)-(4)"],
                &["ATP (1)-(4)", "PASSING (1)-(4)"],
            ]
            .concat(),
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

/// Hosts, and processes on each: one process up to 16.
const CLUSTERS: [(usize, u16); 7] = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (4, 4)];
/// The systems of figures 4 to 6.
const BOTH: [System; 2] = [System::Ps, System::Ring];

/// Figures 4 to 6: computation and communication by the size of the cluster, and speed-up.
pub(super) fn clusters(_: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let figures = [
        (Model::Vgg19, "passing-4", "PASSING, figure 4: VGG19, computation and communication"),
        (Model::Resnet50, "passing-5", "PASSING, figure 5: ResNet50, the same"),
    ];
    let mut made = Vec::new();
    // By cluster: number of processes, then the speed-up of each system with each network.
    let mut speed_ups: Vec<(f64, Vec<f64>)> = Vec::new();
    let mut equations = Vec::new();
    for (model, name, title) in figures {
        let (computing, bytes) = (compute_seconds(model), model.gradient_bytes() as f64);
        let (mut rows, mut groups) = (Vec::new(), Vec::new());
        for (index, cluster) in CLUSTERS.into_iter().enumerate() {
            let setting = setting_of(cluster, LINK);
            let alone = setting.world() == 1;
            let times = times(bench, cluster, bytes, LINK)?;
            let simulated =
                BOTH.map(|system| times.of(system).filter(|_| !alone).unwrap_or_default());
            let modelled = BOTH.map(|system| match system {
                _ if alone => 0.0,
                // Equation (1), there and back: no link between hosts is in this ring.
                System::Ring if setting.hosts == 1 => 2.0 * in_host_seconds(&setting, bytes),
                _ => model::paper_seconds(system, &setting, bytes),
            });
            let place = format!("{} x {}", setting.hosts, setting.processes);
            let mut row: Vec<Cell> = vec![(&place).into(), computing.into()];
            row.extend(simulated.map(Cell::from));
            row.extend(modelled.map(Cell::from));
            rows.push(row);
            groups.push((place, [&[computing][..], &simulated].concat()));
            let world = f64::from(setting.world());
            let speed_up = |seconds: f64| world * computing / (computing + seconds);
            if speed_ups.len() == index {
                speed_ups.push((world, Vec::new()));
                equations.push(Vec::new());
            }
            speed_ups[index].1.extend(simulated.map(speed_up));
            equations[index].extend(modelled.map(speed_up));
        }
        made.push(Figure {
            name,
            title,
            assumptions: vec![
                format!(
                    "an iteration computes for {computing:.3} s, fitted to figures 18 and 19 \
                     (lab/workloads/src/claims.rs); a process alone communicates nothing"
                ),
                "seconds of an iteration, communication after computation; one server on a host \
                 of its own; the ring has all processes, those of a host side by side"
                    .into(),
                "the paper gives no numbers here; (1)-(4): by equation (4), and for the ring by \
                 its section 2.1"
                    .into(),
            ],
            claims: Vec::new(),
            columns: vec![
                "hosts x processes",
                "computation",
                "PS",
                "ring",
                "PS (1)-(4)",
                "ring, section 2.1",
            ],
            rows,
            picture: Picture::Bars {
                y: "seconds of an iteration",
                series: ["computation", "PS", "ring"].map(str::to_owned).to_vec(),
                groups,
            },
        });
    }
    made.push(speed_up(&speed_ups, &equations));
    Ok(made)
}

/// Figure 6, and what the text says of it.
fn speed_up(simulated: &[(f64, Vec<f64>)], equations: &[Vec<f64>]) -> Figure {
    const NAMES: [&str; 4] = ["VGG19, PS", "VGG19, ring", "ResNet50, PS", "ResNet50, ring"];
    let claims = speed_ups().iter().map(|claim| {
        let world = f64::from(claim.accelerators);
        let at = simulated.iter().zip(equations).filter(|((of, _), _)| *of == world);
        let (mut both, mut apart) = (Vec::new(), Vec::new());
        for ((_, simulated), equations) in at {
            both.extend_from_slice(simulated);
            apart.extend_from_slice(equations);
        }
        let within = |values: &[f64]| values.iter().filter(|x| **x <= claim.at_most).count();
        let all = !both.is_empty() && within(&both) == both.len() && within(&apart) == apart.len();
        let ours = NAMES.iter().zip(both.iter().zip(&apart));
        let ours = ours.map(|(name, (both, apart))| format!("{name} {both:.1}, {apart:.1}"));
        Claim {
            paper: format!(
                "with {} accelerators the speed-up is {} at most (figure {})",
                claim.accelerators, claim.at_most, claim.figure
            ),
            ours: format!(
                "{} (the second if all is pushed before anything is pulled)",
                ours.collect::<Vec<_>>().join("; ")
            ),
            verdict: Verdict::of(all, within(&both) + within(&apart) > 0),
        }
    });
    let row = |((world, simulated), equations): (&(f64, Vec<f64>), &Vec<f64>)| -> Vec<Cell> {
        [*world].iter().chain(simulated).chain(equations).map(|value| Cell::from(*value)).collect()
    };
    let line = |(index, name): (usize, &str)| {
        // Of clusters with as many processes, the last one has the most hosts.
        let points = simulated.iter().map(|(world, of)| (*world, of[index])).collect::<Vec<_>>();
        let last = points.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.last().copied());
        (name.to_owned(), last.collect())
    };
    Figure {
        name: "passing-6",
        title: "PASSING, figure 6: speed-up by number of accelerators, 10 Gbit/s",
        assumptions: vec![
            "speed-up over one process: number of processes times computation over an iteration; \
             clusters of figures 4 and 5, in their order"
                .into(),
            "computation is fitted to figures 18 and 19 (lab/workloads/src/claims.rs); no process \
             is slower than another, and nothing waits but for links"
                .into(),
        ],
        claims: claims.collect(),
        columns: vec![
            "processes",
            "VGG19, PS",
            "VGG19, ring",
            "ResNet50, PS",
            "ResNet50, ring",
            "VGG19, PS (1)-(4)",
            "VGG19, ring, 2.1",
            "ResNet50, PS (1)-(4)",
            "ResNet50, ring, 2.1",
        ],
        rows: simulated.iter().zip(equations).map(row).collect(),
        picture: Picture::Lines {
            x: "processes",
            y: "speed-up",
            axes: Axes::Linear,
            series: NAMES.into_iter().enumerate().map(line).collect(),
        },
    }
}
