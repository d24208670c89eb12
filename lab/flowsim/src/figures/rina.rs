//! Figures 5, 10 and 11 of paper 3 (Rina).

mod claims;

use std::collections::BTreeSet;

use crate::generate::{Dragonfly, Generated, fat_tree};
use anyhow::Result;
use xdp_agg_report::plot::Axes;
use xdp_agg_topology::{Forest, Rate, Strategy};
use xdp_agg_workloads::{Network as Model, Tensor};

use crate::fabric::{Costs, Fabric};
use crate::predict::Question;
use crate::strategy::Way;

use super::atp::Atp;
use super::{Bench, Cell, Figure, Picture, Plan, judged};
use claims::{
    Gains, H_AR, HALF_ATP, HALF_RINA, RAR, SYSTEMS, half_rate, incremental_claims,
    throughput_claims,
};

/// Links, in Gbit/s.
const LINK: u32 = 25;
/// `t_s` and `sigma` of equation (3).
const STEP: f64 = 100e-6;
const COSTS: Costs = Costs { step: STEP, jitter: STEP, hop: 10e-6, ..Costs::IDEAL };
/// What a worker computes, in floating-point operations a second.
const WORKER: f64 = 15e12;

/// The networks that section VI trains, with their batches.
const MODELS: [(Model, &str, f64); 5] = [
    (Model::Resnet50, "ResNet50", 64.0),
    (Model::Vgg16, "VGG16", 64.0),
    (Model::Inception, "InceptionV3", 64.0),
    (Model::Resnet101, "ResNet101", 64.0),
    (Model::Bert, "BERTbase", 12.0),
];

fn networks() -> Result<[(&'static str, Generated); 2]> {
    let dragonfly = Dragonfly { a: 4, g: 9, h: 2, p: 2 };
    let rate = Rate::gbit(LINK);
    Ok([("fat-tree", fat_tree(4, rate)?), ("dragonfly", dragonfly.generate(rate)?)])
}

fn assumptions() -> Vec<String> {
    vec![
        format!(
            "links of {LINK} Gbit/s; t_s = sigma = {} us for each step between hosts (equation 3), \
             {} us for each hop to an aggregator: the text gives neither",
            STEP * 1e6,
            COSTS.hop * 1e6
        ),
        format!(
            "a worker computes {} TFLOP/s on the networks' usual inputs; three forward passes' \
             worth an iteration; batches of 64, BERT 12",
            WORKER * 1e-12
        ),
        "PS and ATP: one server, on the host of rank 0, as in the bandwidth-occupation model (half \
         of the switches on its tree of the fat-tree are the text's 6), and beside it one on each \
         host; aggregating switches work at line rate and have slots for everything; the others \
         pass everything on; results take the same way back"
            .into(),
        "Rina as xdp-agg plans it: a rack's aggregator passes its sums to the next rack's \
         aggregator, not to its agent's host, and results go back along the same path; its \
         2 (G - 1) steps cost what a ring's do (equation 3 for G groups), as the paper's agents \
         take them, where nothing else is said; `in blocks` is xdp-agg, where blocks follow each \
         other and a hop costs 10 us once"
            .into(),
        "ATP has those switches replaced that leave the least on its busiest link: with one server \
         the best for each number, with more one after the other; beside it the racks' switches \
         before all others; Rina replaces racks by their number of workers, then by index"
            .into(),
    ]
}

/// Seconds of an iteration's computation.
fn compute(model: Model, batch: f64) -> f64 {
    let flops: f64 = model.tensors().iter().map(|tensor: &Tensor| tensor.flops).sum();
    3.0 * flops * batch / WORKER
}

/// Samples a second of all workers.
fn samples(generated: &Generated, (model, batch): (Model, f64), sync: f64) -> f64 {
    generated.topology.world() as f64 * batch / (compute(model, batch) + sync)
}

/// Regions that are racks: those that hosts are in.
fn racks(generated: &Generated) -> Vec<usize> {
    let regions: BTreeSet<usize> =
        generated.topology.hosts.iter().filter_map(|host| host.region).collect();
    let mut racks: Vec<usize> = regions.into_iter().collect();
    let workers = |&rack: &usize| {
        let hosts = generated.topology.hosts.iter();
        std::cmp::Reverse(hosts.filter(|host| host.region == Some(rack)).count())
    };
    racks.sort_by_key(workers);
    racks
}

/// Seconds of Rina with this number of racks equipped. With `steps`, as in the paper: its agents
/// take step after step. Each costs what a ring's step does (equation 3), with as many members as
/// there are groups. Without, as xdp-agg does it: blocks follow each other.
fn rina(
    bench: &Bench,
    plain: &Generated,
    count: usize,
    bytes: f64,
    (costs, steps): (Costs, bool),
) -> Result<f64> {
    let mut generated = plain.clone();
    for rack in racks(plain).into_iter().take(count) {
        generated.equip(rack);
    }
    let groups = Forest::plan(&generated.topology, Strategy::Rina)?.trees.len();
    let hop = if steps { costs.step_of(groups) } else { costs.hop };
    let costs = Costs { hop, ..costs };
    let question = Question { costs, ..Question::ideal(Way::Rina, bytes) };
    Ok(bench.run(&generated, &question)?.seconds)
}

/// Figure 5: the bandwidth-occupation model.
pub(super) fn occupation_model(_: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let model = (Model::Resnet50, 64.0);
    let bytes = Model::Resnet50.gradient_bytes() as f64;
    let mut rows = Vec::new();
    let mut series = Vec::new();
    let mut claims = Vec::new();
    for (name, generated) in networks()? {
        bench.say(format!("rina-5: {name}"));
        let fabric = Fabric::new(&generated.network, Costs::IDEAL);
        let mut told = Vec::new();
        for atp in Atp::all(&generated.network) {
            let mut points = Vec::new();
            for count in 0..=atp.switches() {
                let seconds = atp.seconds(&fabric, count, bytes)?;
                let share = 100.0 * count as f64 / atp.switches() as f64;
                let throughput = samples(&generated, model, seconds);
                let worker = atp.throughput(count);
                points.push((share, worker));
                rows.push(vec![
                    name.into(),
                    atp.name.into(),
                    count.into(),
                    share.into(),
                    worker.into(),
                    throughput.into(),
                ]);
            }
            let at = points.iter().rfind(|point| point.0 <= 80.5).copied().unwrap_or_default();
            told.push((atp.name, at.0, at.1));
            series.push((format!("{name}, {}", atp.name), points));
        }
        claims.push(half_rate(name, &told));
    }
    Ok(vec![Figure {
        name: "rina-5",
        title: "Rina, figure 5: throughput of PS-based aggregation by replaced switches",
        assumptions: vec![
            "the switches are those on the trees of shortest paths to the servers, one tree for \
             each server, as the model wants; with several servers a link carries what goes up to \
             some and comes down from others"
                .into(),
        ],
        claims,
        columns: vec!["network", "ATP", "replaced", "%", "worker's throughput", "samples/s"],
        rows,
        picture: Picture::Lines {
            x: "replaced switches, %",
            y: "throughput of a worker, share of its link",
            axes: Axes::Linear,
            series,
        },
    }])
}

/// Samples a second of each system.
fn systems(
    bench: &Bench,
    generated: &Generated,
    atp: &[Atp<'_>; 4],
    (model, batch): (Model, f64),
    costs: Costs,
) -> Result<[f64; SYSTEMS.len()]> {
    let bytes = model.gradient_bytes() as f64;
    let racks = racks(generated).len();
    let plain = |way| -> Result<f64> {
        let question = Question { costs, ..Question::ideal(way, bytes) };
        Ok(bench.run(generated, &question)?.seconds)
    };
    let fabric = Fabric::new(&generated.network, costs);
    let replaced = |which: usize, share: usize| {
        let atp: &Atp<'_> = &atp[which];
        atp.seconds(&fabric, atp.switches() / share, bytes)
    };
    let seconds = [
        plain(Way::OneServer)?,
        plain(Way::Servers)?,
        plain(Way::Ring)?,
        plain(Way::HierarchicalRing)?,
        replaced(0, 2)?,
        replaced(1, 2)?,
        replaced(2, 2)?,
        replaced(3, 2)?,
        rina(bench, generated, racks / 2, bytes, (costs, true))?,
        replaced(0, 1)?,
        replaced(2, 1)?,
        rina(bench, generated, racks, bytes, (costs, true))?,
    ];
    Ok(seconds.map(|sync| samples(generated, (model, batch), sync)))
}

/// Figures 10 and 11, and what the cost of a step does to them.
pub(super) fn throughput(plan: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let names = [("rina-10a", "rina-11a"), ("rina-10b", "rina-11b")];
    let titles = [
        (
            "Rina, figure 10(a): throughput on a fat-tree, k = 4, 16 workers",
            "Rina, figure 11(a): replaced switches of a fat-tree, k = 4, 16 workers",
        ),
        (
            "Rina, figure 10(b): throughput on a dragonfly, a=4 g=9 h=2, 72 workers",
            "Rina, figure 11(b): replaced switches of a dragonfly, a=4 g=9 h=2, 72 workers",
        ),
    ];
    let models = if plan.quick { &MODELS[..1] } else { &MODELS[..] };
    for (((_, generated), names), titles) in networks()?.into_iter().zip(names).zip(titles) {
        let (mut rows, mut groups) = (Vec::new(), Vec::new());
        let atp = Atp::all(&generated.network);
        for &(model, name, batch) in models {
            let all = systems(bench, &generated, &atp, (model, batch), COSTS)?;
            let mut row: Vec<Cell> = vec![name.into()];
            row.extend(all.map(Cell::from));
            rows.push(row);
            groups.push((name.to_owned(), all.to_vec()));
        }
        let mut columns = vec!["samples/s"];
        columns.extend(SYSTEMS);
        figures.push(Figure {
            name: names.0,
            title: titles.0,
            assumptions: assumptions(),
            claims: judged(plan, throughput_claims(&groups)),
            columns,
            rows,
            picture: Picture::Bars {
                y: "samples/s",
                series: SYSTEMS.map(str::to_owned).to_vec(),
                groups,
            },
        });
        figures.push(incremental(bench, &generated, &atp, names.1, titles.1)?);
    }
    figures.push(step_costs(plan, bench)?);
    Ok(figures)
}

/// Figure 11: switch by switch.
fn incremental(
    bench: &Bench,
    generated: &Generated,
    atp: &[Atp<'_>; 4],
    name: &'static str,
    title: &'static str,
) -> Result<Figure> {
    let model = (Model::Resnet50, 64.0);
    // 98 MB, section VI-C.
    let bytes = 98e6;
    let racks = racks(generated).len();
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        atp.iter().map(|atp| (format!("ATP, {}", atp.name), Vec::new())).collect();
    lines.extend(["Rina", "Rina, in blocks"].map(|name| (name.to_owned(), Vec::new())));
    let mut rows = Vec::new();
    let fabric = Fabric::new(&generated.network, COSTS);
    let most = atp.iter().map(|atp| atp.switches()).max().unwrap_or(0);
    for count in 0..=most.max(racks) {
        let equipped = count.min(racks);
        let mut seconds = Vec::new();
        for atp in atp {
            seconds.push(atp.seconds(&fabric, count, bytes)?);
        }
        for steps in [true, false] {
            seconds.push(rina(bench, generated, equipped, bytes, (COSTS, steps))?);
        }
        let mut row: Vec<Cell> = vec![count.into()];
        for ((_, points), seconds) in lines.iter_mut().zip(seconds) {
            let samples = samples(generated, model, seconds);
            points.push((count as f64, samples));
            row.push(samples.into());
        }
        rows.push(row);
    }
    let of_atp = lines.iter().zip(atp);
    let of_atp = of_atp.map(|((_, points), atp)| Gains { points, all: atp.switches() });
    let of_atp: Vec<Gains<'_>> = of_atp.collect();
    let of_rina = Gains { points: &lines[atp.len()].1, all: racks };
    let claims = incremental_claims(&of_rina, &of_atp);
    let mut assumptions = assumptions();
    assumptions.push(format!(
        "samples/s; ATP's {} switches are those on the way to one server, or {most} with servers \
         on all hosts; Rina's {racks} are those with workers",
        atp[0].switches()
    ));
    let columns = vec![
        "replaced",
        "ATP, one",
        "ATP, one, racks first",
        "ATP, all",
        "ATP, all, racks first",
        "Rina",
        "Rina, in blocks",
    ];
    Ok(Figure {
        name,
        title,
        assumptions,
        claims,
        columns,
        rows,
        picture: Picture::Lines {
            x: "replaced switches",
            y: "samples/s",
            axes: Axes::Linear,
            series: lines,
        },
    })
}

/// What a step costs: the one parameter that decides and that the paper does not give.
fn step_costs(plan: &Plan, bench: &Bench) -> Result<Figure> {
    let steps: &[f64] = if plan.quick { &[1e-4] } else { &[1e-6, 1e-5, 1e-4, 1e-3] };
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let rivals = [RAR, H_AR, HALF_ATP[0], HALF_ATP[1]];
    for (network, generated) in networks()? {
        let atp = Atp::all(&generated.network);
        let mut points = [const { Vec::new() }; 4];
        for &step in steps {
            let costs = Costs { step, jitter: step, ..COSTS };
            let all = systems(bench, &generated, &atp, (Model::Resnet50, 64.0), costs)?;
            for (points, rival) in points.iter_mut().zip(rivals) {
                points.push((step * 1e6, all[HALF_RINA] / all[rival]));
            }
            let mut row: Vec<Cell> = vec![network.into(), (step * 1e6).into()];
            row.extend(all.map(Cell::from));
            rows.push(row);
        }
        for (points, rival) in points.into_iter().zip(rivals) {
            series.push((format!("over {}, {network}", SYSTEMS[rival]), points));
        }
    }
    let mut columns = vec!["network", "t_s = sigma, us"];
    columns.extend(SYSTEMS);
    Ok(Figure {
        name: "rina-steps",
        title: "Rina with half of the switches against others, by the cost of a step (ResNet50)",
        assumptions: assumptions(),
        claims: Vec::new(),
        columns,
        rows,
        picture: Picture::Lines {
            x: "t_s = sigma, us",
            y: "Rina 50 % is so many times as fast",
            axes: Axes::Logarithmic,
            series,
        },
    })
}
