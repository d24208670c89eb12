//! Figures 18 and 19 of paper 1 (PASSING): scaling efficiency.

use std::collections::BTreeSet;

use crate::generate::{Generated, SpineLeaf};
use anyhow::Result;
use xdp_agg_report::plot::Axes;
use xdp_agg_topology::Rate;
use xdp_agg_workloads::claims::{all_efficiencies, compute_seconds};
use xdp_agg_workloads::model::{Servers, Setting, in_host_seconds};
use xdp_agg_workloads::{Network as Model, claims::Efficiency};

use crate::engine::{Options, simulate};
use crate::fabric::{Costs, Fabric};
use crate::predict::Question;
use crate::strategy::{Way, servers};

use super::{Bench, Cell, Claim, Figure, Picture, Plan, Verdict};

/// Links, in Gbit/s.
const LINK: u32 = 10;
/// Between two processes of a host: PCIe 3.0 x16, in bytes a second.
const IN_HOST: f64 = 12e9;

/// Hosts behind one switch.
fn star(hosts: usize) -> Result<Generated> {
    let rate = Rate::gbit(LINK);
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
    switchml: f64,
    passing: f64,
}

fn times(bench: &Bench, hosts: usize, processes: u16, bytes: f64) -> Result<Times> {
    // The server is a host of its own and not a worker.
    let with_server = star(hosts + 1)?;
    let fabric = Fabric::new(&with_server.network, Costs::IDEAL);
    let pushed = bytes * f64::from(processes);
    let schedule = servers(&fabric, &[hosts as u16], &BTreeSet::new(), pushed);
    let ps = simulate(&schedule, fabric.capacities(), &Options::default(), &mut |_| {})?.seconds;
    let mut generated = star(hosts)?;
    generated.equip(0);
    let aggregated = |way| -> Result<f64> {
        let question = Question { processes, ..Question::ideal(way, bytes) };
        Ok(bench.run(&generated, &question)?.seconds)
    };
    let setting = Setting {
        hosts: hosts as u16,
        processes,
        servers: Servers::Apart(1),
        link: Rate::gbit(LINK).bytes(),
        in_host: IN_HOST,
    };
    // Reduce-scatter before, all-gather behind.
    let in_host = 2.0 * in_host_seconds(&setting, bytes);
    let (switchml, passing) = (aggregated(Way::SwitchMl)?, aggregated(Way::Passing)? + in_host);
    Ok(Times { ps, switchml, passing })
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
                let Times { ps, switchml, passing } = times(bench, hosts, processes, bytes)?;
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
    let times = times(bench, usize::from(claim.hosts), claim.processes, bytes)?;
    let over = |ps: f64, passing: f64| 100.0 * ((computing + ps) / (computing + passing) - 1.0);
    let both = over(times.ps, times.passing);
    // Push, then pull: equation (4).
    let apart = over(2.0 * times.ps, 2.0 * times.passing);
    let close = |percent: f64| (percent / claim.percent_over_ps - 1.0).abs() <= 0.2;
    let between = (both.min(apart)..=both.max(apart)).contains(&claim.percent_over_ps);
    Ok(Claim {
        paper: format!(
            "{} x {}: PASSING's efficiency is {:.1} % above PS's",
            claim.hosts, claim.processes, claim.percent_over_ps
        ),
        ours: format!("{both:.1} %; {apart:.1} % if all is pushed before anything is pulled"),
        // One of the two within a fifth, or the paper's number between them.
        verdict: Verdict::of(close(both) || close(apart), between),
    })
}
