//! Figures 5, 10 and 11 of paper 3 (Rina).

use std::collections::BTreeSet;

use crate::generate::{Dragonfly, Generated, fat_tree};
use anyhow::Result;
use xdp_agg_report::plot::Axes;
use xdp_agg_topology::{Forest, Rate, Strategy};
use xdp_agg_workloads::{Network as Model, Tensor};

use crate::engine::{Options, simulate};
use crate::fabric::{Costs, Fabric};
use crate::predict::Question;
use crate::strategy::{Way, occupation, servers, switches_on_way};

use super::{Bench, Cell, Claim, Figure, Picture, Plan, Verdict, judged, spread};

/// Links, in Gbit/s.
const LINK: u32 = 25;
/// `t_s` and `sigma` of equation (3).
const STEP: f64 = 100e-6;
const COSTS: Costs = Costs { step: STEP, jitter: STEP, hop: 10e-6, ..Costs::IDEAL };
/// What a worker computes, in floating-point operations a second.
const WORKER: f64 = 15e12;
/// Rank whose host has the parameter server.
const SERVER: u16 = 0;

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
        "PS and ATP: one server, on the host of rank 0, as in the bandwidth-occupation model; \
         aggregating switches work at line rate and have slots for everything; the others pass \
         everything on; results take the same way back"
            .into(),
        "Rina as xdp-agg plans it: a rack's aggregator passes its sums to the next rack's \
         aggregator, not to its agent's host, and results go back along the same path; its \
         2 (G - 1) steps cost what a ring's do (equation 3 for G groups), as the paper's agents \
         take them, where nothing else is said; `in blocks` is xdp-agg, where blocks follow each \
         other and a hop costs 10 us once"
            .into(),
        "ATP replaces first whatever switch helps its busiest link most, then those nearest to \
         the workers; Rina replaces racks by their number of workers, then by index"
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

/// Switches in the order in which ATP replaces them.
fn atp_order(generated: &Generated) -> Vec<usize> {
    let network = &generated.network;
    let mut left = switches_on_way(network, SERVER);
    let mut chosen = BTreeSet::new();
    let mut order = Vec::new();
    while !left.is_empty() {
        let busiest = |&switch: &usize| {
            let mut with = chosen.clone();
            with.insert(switch);
            // A whole number.
            occupation(network, SERVER, &with).round() as u64
        };
        let best = (0..left.len()).min_by_key(|&at| (busiest(&left[at]), at)).unwrap_or(0);
        let switch = left.remove(best);
        chosen.insert(switch);
        order.push(switch);
    }
    order
}

/// Seconds of ATP with these switches aggregating; of PS with none.
fn atp(generated: &Generated, aggregating: &[usize], bytes: f64, costs: Costs) -> Result<f64> {
    let fabric = Fabric::new(&generated.network, costs);
    let aggregating: BTreeSet<usize> = aggregating.iter().copied().collect();
    let schedule = servers(&fabric, &[SERVER], &aggregating, bytes);
    let outcome = simulate(&schedule, fabric.capacities(), &Options::default(), &mut |_| {})?;
    Ok(outcome.seconds)
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
        let order = atp_order(&generated);
        let mut points = Vec::new();
        for count in 0..=order.len() {
            let seconds = atp(&generated, &order[..count], bytes, Costs::IDEAL)?;
            let share = 100.0 * count as f64 / order.len() as f64;
            let throughput = samples(&generated, model, seconds);
            let set = order[..count].iter().copied().collect();
            let worker = 1.0 / occupation(&generated.network, SERVER, &set);
            points.push((share, worker));
            rows.push(vec![
                name.into(),
                count.into(),
                share.into(),
                worker.into(),
                throughput.into(),
            ]);
        }
        let at = points.iter().rfind(|point| point.0 <= 80.5).copied().unwrap_or_default();
        claims.push(Claim {
            paper: format!(
                "{name}: with 80 % of the switches replaced, throughput is only 50 % (section I)"
            ),
            ours: format!("{:.0} % of the full rate with {:.0} % replaced", at.1 * 100.0, at.0),
            // Far less than half: the direction, and not the number.
            verdict: Verdict::of((0.4..0.6).contains(&at.1), at.1 < 0.6),
        });
        series.push((name.to_owned(), points));
    }
    Ok(vec![Figure {
        name: "rina-5",
        title: "Rina, figure 5: throughput of PS-based aggregation by replaced switches",
        assumptions: vec![
            "the switches are those on the one tree of shortest paths to the server, as the model \
             wants; they are replaced in the order that helps most"
                .into(),
        ],
        claims,
        columns: vec!["network", "replaced", "%", "worker's throughput", "samples/s"],
        rows,
        picture: Picture::Lines {
            x: "replaced switches, %",
            y: "throughput of a worker, share of its link",
            axes: Axes::Linear,
            series,
        },
    }])
}

/// The systems of figure 10.
const SYSTEMS: [&str; 7] = ["PS", "RAR", "H-AR", "ATP 50%", "Rina 50%", "ATP 100%", "Rina 100%"];

/// Samples a second of each system.
fn systems(
    bench: &Bench,
    generated: &Generated,
    (model, batch): (Model, f64),
    costs: Costs,
) -> Result<[f64; SYSTEMS.len()]> {
    let bytes = model.gradient_bytes() as f64;
    let order = atp_order(generated);
    let racks = racks(generated).len();
    let plain = |way| -> Result<f64> {
        let question = Question { costs, ..Question::ideal(way, bytes) };
        Ok(bench.run(generated, &question)?.seconds)
    };
    let seconds = [
        plain(Way::OneServer)?,
        plain(Way::Ring)?,
        plain(Way::HierarchicalRing)?,
        atp(generated, &order[..order.len() / 2], bytes, costs)?,
        rina(bench, generated, racks / 2, bytes, (costs, true))?,
        atp(generated, &order, bytes, costs)?,
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
        for &(model, name, batch) in models {
            let all = systems(bench, &generated, (model, batch), COSTS)?;
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
        figures.push(incremental(bench, &generated, names.1, titles.1)?);
    }
    figures.push(step_costs(plan, bench)?);
    Ok(figures)
}

fn throughput_claims(groups: &[(String, Vec<f64>)]) -> Vec<Claim> {
    let ratios = |above: usize, below: usize| -> Vec<f64> {
        groups.iter().map(|(_, values)| values[above] / values[below]).collect()
    };
    let least = |list: &[f64]| list.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |list: &[f64]| list.iter().copied().fold(0.0, f64::max);
    let over_atp = ratios(4, 3);
    let like_atp = ratios(6, 5);
    let (over_ps, over_ring) = (ratios(6, 0), ratios(6, 1));
    let over_hierarchical = ratios(4, 2);
    let times = |list: &[f64]| format!("{} times", spread(list, 2));
    // "Up to 6 times" within a factor of two.
    let up_to_six = |list: &[f64]| (3.0..12.0).contains(&most(list));
    let comparable = least(&like_atp) > 0.8 && most(&like_atp) < 1.3;
    let resnet = groups.iter().position(|(name, _)| name == "ResNet50");
    let surpasses = resnet.is_some_and(|at| like_atp[at] > 1.0);
    vec![
        Claim {
            paper: "Rina has over 50 % more throughput than ATP with half of the switches".into(),
            ours: times(&over_atp),
            verdict: Verdict::of(least(&over_atp) > 1.5, most(&over_atp) > 1.5),
        },
        Claim {
            paper: "with all switches replaced, Rina is comparable to ATP, and better on ResNet50"
                .into(),
            ours: times(&like_atp),
            verdict: Verdict::of(comparable && surpasses, comparable || surpasses),
        },
        Claim {
            paper: "Rina is up to 6 times as fast as PS and RAR".into(),
            ours: format!("PS: {}; RAR: {}", times(&over_ps), times(&over_ring)),
            verdict: Verdict::of(
                up_to_six(&over_ps) && up_to_six(&over_ring),
                up_to_six(&over_ps) || up_to_six(&over_ring),
            ),
        },
        Claim {
            paper: "Rina is better than H-AR with half of the switches".into(),
            ours: times(&over_hierarchical),
            verdict: Verdict::of(least(&over_hierarchical) > 1.0, most(&over_hierarchical) > 1.0),
        },
    ]
}

/// Figure 11: switch by switch.
fn incremental(
    bench: &Bench,
    generated: &Generated,
    name: &'static str,
    title: &'static str,
) -> Result<Figure> {
    let model = (Model::Resnet50, 64.0);
    // 98 MB, section VI-C.
    let bytes = 98e6;
    let order = atp_order(generated);
    let racks = racks(generated).len();
    let mut lines: [(&str, Vec<(f64, f64)>); 3] =
        [("ATP", Vec::new()), ("Rina", Vec::new()), ("Rina, in blocks", Vec::new())];
    let mut rows = Vec::new();
    for count in 0..=order.len().max(racks) {
        let equipped = count.min(racks);
        let seconds = [
            atp(generated, &order[..count.min(order.len())], bytes, COSTS)?,
            rina(bench, generated, equipped, bytes, (COSTS, true))?,
            rina(bench, generated, equipped, bytes, (COSTS, false))?,
        ];
        let mut row: Vec<Cell> = vec![count.into()];
        for ((_, points), seconds) in lines.iter_mut().zip(seconds) {
            let samples = samples(generated, model, seconds);
            points.push((count as f64, samples));
            row.push(samples.into());
        }
        rows.push(row);
    }
    let [(_, atp_points), (_, rina_points), _] = &lines;
    let claims = incremental_claims((rina_points, racks), (atp_points, order.len()));
    let mut assumptions = assumptions();
    assumptions.push(format!(
        "ATP's {} switches are those on the way to its server, Rina's {racks} those with workers",
        order.len()
    ));
    Ok(Figure {
        name,
        title,
        assumptions,
        claims,
        columns: vec!["replaced", "ATP samples/s", "Rina samples/s", "Rina in blocks samples/s"],
        rows,
        picture: Picture::Lines {
            x: "replaced switches",
            y: "samples/s",
            axes: Axes::Linear,
            series: lines.map(|(name, points)| (name.to_owned(), points)).to_vec(),
        },
    })
}

/// What rises when: points by replaced switches, and how many there are to replace.
fn incremental_claims(rina: (&[(f64, f64)], usize), atp: (&[(f64, f64)], usize)) -> Vec<Claim> {
    let rises = rina.0.windows(2).all(|pair| pair[1].1 >= pair[0].1 * (1.0 - 1e-9));
    // Percent of the gain with `count` of `all` replaced.
    let gained = |(points, all): (&[(f64, f64)], usize), count: usize| {
        let (first, last) = (points[0].1, points[all].1);
        100.0 * (points[count].1 - first) / (last - first)
    };
    let [rina_half, atp_half] = [rina, atp].map(|system| gained(system, system.1 / 2));
    vec![
        Claim {
            paper: "the throughput of Rina rises gradually with each replaced switch".into(),
            ours: format!(
                "{}; {rina_half:.0} % of the gain with half of the racks, {:.2} times with all",
                if rises { "never falls" } else { "falls in between" },
                rina.0[rina.1].1 / rina.0[0].1
            ),
            // In proportion to what is replaced, within a third.
            verdict: Verdict::of(rises && (33.0..67.0).contains(&rina_half), rises),
        },
        Claim {
            paper: "that of ATP rises only after many replacements".into(),
            ours: format!(
                "{atp_half:.0} % of the gain with half of the switches (Rina {rina_half:.0} %), \
                 {:.0} % with the first",
                gained(atp, 1)
            ),
            // Later than Rina's, which is what it is compared with.
            verdict: Verdict::of(atp_half < 50.0 && atp_half < rina_half, false),
        },
    ]
}

/// What a step costs: the one parameter that decides and that the paper does not give.
fn step_costs(plan: &Plan, bench: &Bench) -> Result<Figure> {
    let steps: &[f64] = if plan.quick { &[1e-4] } else { &[1e-6, 1e-5, 1e-4, 1e-3] };
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for (network, generated) in networks()? {
        let mut points = [const { Vec::new() }; 3];
        for &step in steps {
            let costs = Costs { step, jitter: step, ..COSTS };
            let all = systems(bench, &generated, (Model::Resnet50, 64.0), costs)?;
            for (points, rival) in points.iter_mut().zip([1, 2, 3]) {
                points.push((step * 1e6, all[4] / all[rival]));
            }
            let mut row: Vec<Cell> = vec![network.into(), (step * 1e6).into()];
            row.extend(all.map(Cell::from));
            rows.push(row);
        }
        for (points, rival) in points.into_iter().zip([1, 2, 3]) {
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
