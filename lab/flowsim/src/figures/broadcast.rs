//! Figure 11 of paper 4 (broadcast): the topology-aware pipelined chain (TA-PC) against the plain
//! one (PC), on nodes with PCIe links.

use anyhow::{Context, Result, ensure};
use xdp_agg_mesh::Groups;
use xdp_agg_report::plot::Axes;
use xdp_agg_workloads::broadcast::{Order, orders};

use crate::engine::{After, Options, ResourceId, Schedule, Stream, Uses, simulate};

use super::{Bench, Cell, Claim, Figure, Picture, Plan, Verdict, judged};

/// GPUs of a card (K80), behind a switch (PLX) of their own.
const GPUS: u16 = 2;
/// Bytes a second of a PCIe 3.0 link of 16 lanes, each direction, as transfers see it.
const PCIE: f64 = 12e9;
/// Bytes a second between the sockets, each direction (QPI).
const SOCKETS: f64 = 16e9;
/// Bytes of a chunk, and seconds that starting it takes.
const CHUNK: f64 = 512.0 * 1024.0;
const STARTUP: f64 = 10e-6;
/// How far from the paper's number still counts.
const NEAR: f64 = 5.0;

/// How the links of a node are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duplex {
    /// Each direction has the whole rate: PCIe as it is.
    Full,
    /// Both directions together have it.
    Half,
}

/// The links of a cluster.
struct Cluster<'a> {
    of: &'a Order,
    capacities: Vec<f64>,
    duplex: Duplex,
}

impl<'a> Cluster<'a> {
    fn new(of: &'a Order, duplex: Duplex) -> Self {
        let capacities = Vec::new();
        let mut cluster = Self { of, capacities, duplex };
        let adapter = of.adapter_gbits * 1e9 / 8.0;
        let links = |count, rate| vec![rate; 2 * usize::from(count)];
        for _ in 0..of.nodes {
            cluster.capacities.extend(links(of.cards * GPUS, PCIE));
            cluster.capacities.extend(links(of.cards, PCIE));
            cluster.capacities.extend(links(1, SOCKETS));
            // A network's link has both directions whatever PCIe has.
            cluster.capacities.extend(links(of.adapters, adapter));
        }
        cluster
    }

    const fn gpus_of_node(&self) -> u16 {
        self.of.cards * GPUS
    }

    /// Cards sit on the two sockets by halves, and adapters as well.
    const fn socket(&self, card: u16) -> u16 {
        if card * 2 < self.of.cards { 0 } else { 1 }
    }

    const fn adapter(&self, card: u16) -> u16 {
        if self.of.adapters == 1 { 0 } else { self.socket(card) }
    }

    /// Uses one direction of a link of a node: GPUs first, then cards, sockets, adapters. `out`:
    /// away from the GPU; of the sockets, from the first to the second.
    fn use_link(&self, uses: &mut Uses, node: u16, link: u16, out: bool) {
        let (gpus, cards) = (self.gpus_of_node(), self.of.cards);
        let a_node = gpus + cards + 1 + self.of.adapters;
        let is_adapter = link > gpus + cards;
        let direction = u32::from(out && (self.duplex == Duplex::Full || is_adapter));
        uses.add(ResourceId(u32::from(node * a_node + link) * 2 + direction), 1.0);
    }

    /// The links from one GPU to another.
    fn route(&self, uses: &mut Uses, from: u16, to: u16) {
        let (gpus, cards) = (self.gpus_of_node(), self.of.cards);
        let place = |gpu: u16| (gpu / gpus, gpu % gpus, gpu % gpus / GPUS);
        let ((here, a, card_a), (there, b, card_b)) = (place(from), place(to));
        self.use_link(uses, here, a, true);
        self.use_link(uses, there, b, false);
        if here == there && card_a == card_b {
            return;
        }
        self.use_link(uses, here, gpus + card_a, true);
        self.use_link(uses, there, gpus + card_b, false);
        let cross = |uses: &mut Uses, node, from: u16, to: u16| {
            if from != to {
                self.use_link(uses, node, gpus + cards, from < to);
            }
        };
        if here == there {
            cross(uses, here, self.socket(card_a), self.socket(card_b));
            return;
        }
        // An adapter is on the socket with its number.
        let (out, into) = (self.adapter(card_a), self.adapter(card_b));
        cross(uses, here, self.socket(card_a), out);
        cross(uses, there, into, self.socket(card_b));
        self.use_link(uses, here, gpus + cards + 1 + out, true);
        self.use_link(uses, there, gpus + cards + 1 + into, false);
    }

    /// Seconds of a chain in this order.
    fn chain(&self, order: &[u16], bytes: f64) -> Result<f64> {
        let mut schedule = Schedule::new();
        let mut uses = Uses::new(self.capacities.len());
        let chunks = (bytes / CHUNK).ceil();
        let mut before = None;
        for hop in order.windows(2) {
            self.route(&mut uses, hop[0], hop[1]);
            let stream = Stream::chunked(chunks as u32, bytes / chunks);
            let stream = schedule.add(Stream { overhead: STARTUP, ..stream }, &mut uses);
            if let Some(before) = before {
                schedule.wait(stream, before, After::Lag(0));
            }
            before = Some(stream);
        }
        let outcome = simulate(&schedule, &self.capacities, &Options::default(), &mut |_| {});
        Ok(outcome.with_context(|| format!("a chain on {}", self.of.cluster))?.seconds)
    }
}

/// The chains: names, and orders of GPUs.
fn chains(of: &Order) -> Result<[(&'static str, Vec<u16>); 4]> {
    let gpus = of.cards * GPUS;
    let world = of.nodes * gpus;
    let flat = Groups::of_size(world, gpus);
    let cards: Vec<Vec<u16>> =
        (0..world / GPUS).map(|card| (card * GPUS..(card + 1) * GPUS).collect()).collect();
    let nested = flat.clone().with_modules(cards);
    let nested = nested.map_err(anyhow::Error::msg)?;
    // Ranks are dealt to the cards in turn: neighbours in the chain are on different cards.
    let dealt = (0..world).map(|rank| {
        let (node, at) = (rank / gpus, rank % gpus);
        node * gpus + at % of.cards * GPUS + at / of.cards
    });
    let chains = [
        ("PC", (0..world).collect()),
        ("TA-PC", flat.chain(0)),
        ("TA-PC by cards", nested.chain(0)),
        ("PC, ranks dealt to the cards", dealt.collect()),
    ];
    for (name, order) in &chains {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        ensure!(sorted.into_iter().eq(0..world), "{name} on {}: {order:?}", of.cluster);
    }
    Ok(chains)
}

/// How much faster the second is, in percent of its own time.
fn faster(slow: f64, fast: f64) -> f64 {
    (slow / fast - 1.0) * 100.0
}

pub(super) fn orders_of_chains(plan: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let sizes: &[u32] = if plan.quick { &[8, 64] } else { &[4, 8, 16, 32, 64, 128, 256] };
    orders().iter().map(|of| panel(plan, bench, of, sizes)).collect()
}

fn panel(plan: &Plan, bench: &Bench, of: &Order, sizes: &[u32]) -> Result<Figure> {
    let gpus = of.nodes * of.cards * GPUS;
    bench.say(format!("broadcast-{}: {}", of.figure, of.cluster));
    let mut rows = Vec::new();
    let mut series = Vec::new();
    // By duplex and chain, in the order of sizes.
    let mut times: Vec<Vec<Vec<f64>>> = Vec::new();
    for (duplex, links) in [(Duplex::Full, "both ways at once"), (Duplex::Half, "one way")] {
        let cluster = Cluster::new(of, duplex);
        let mut all = Vec::new();
        for (name, order) in chains(of)? {
            let mut seconds = Vec::new();
            for mib in sizes {
                let time = cluster.chain(&order, f64::from(*mib) * f64::from(1 << 20))?;
                let mib = *mib as usize;
                rows.push(vec![Cell::from(links), name.into(), mib.into(), (time * 1e3).into()]);
                seconds.push(time);
            }
            if duplex == Duplex::Full {
                let points = sizes.iter().map(|mib| f64::from(*mib));
                let ms = seconds.iter().map(|seconds| seconds * 1e3);
                series.push((name.to_owned(), points.zip(ms).collect()));
            }
            all.push(seconds);
        }
        times.push(all);
    }
    // The largest gain of any size, as the paper gives one number a panel.
    let gain = |duplex: usize, slow: usize, fast: usize| {
        let pairs = times[duplex][slow].iter().zip(&times[duplex][fast]);
        pairs.map(|(slow, fast)| faster(*slow, *fast)).fold(f64::NEG_INFINITY, f64::max)
    };
    // No gain is 0 %, without a sign.
    let percent = |gain: f64| if gain.abs() < 0.05 { 0.0 } else { gain };
    let (full, half) = (percent(gain(0, 0, 1)), percent(gain(1, 0, 1)));
    let (cards, dealt) = (percent(gain(0, 0, 2)), percent(gain(0, 3, 2)));
    let best = full.max(half);
    let name = if of.figure == "11a" { "broadcast-11a" } else { "broadcast-11b" };
    let claim = Claim {
        paper: format!("TA-PC is {} % faster than PC", of.percent),
        ours: format!(
            "{full:.1} %; {half:.1} % if PCIe carries one way at a time; card by card {cards:.1} \
             %, and {dealt:.1} % over PC with ranks dealt to the cards in turn"
        ),
        verdict: Verdict::of((best - of.percent).abs() <= NEAR, best > 0.0),
    };
    Ok(Figure {
        name,
        title: if of.figure == "11a" {
            "Pipelined chains on 16 nodes with a K80 each (RX3): figure 11a"
        } else {
            "Pipelined chains on 8 nodes with four K80 each (RX1): figure 11b"
        },
        assumptions: vec![
            format!(
                "{}: {gpus} GPUs, {} K80 cards (2 GPUs behind a switch) a node on two sockets, {} \
                 adapters of {} Gbit/s",
                of.cluster, of.cards, of.adapters, of.adapter_gbits
            ),
            format!(
                "PCIe {} GB/s, between sockets {} GB/s, each way; chunks of {} KiB, {} us to start \
                 one: the text gives none of these",
                PCIE * 1e-9,
                SOCKETS * 1e-9,
                CHUNK / 1024.0,
                STARTUP * 1e6
            ),
            "data goes from GPU to GPU over the switches on its way; the orders are those of the \
             product (Groups::chain)"
                .into(),
        ],
        claims: judged(plan, vec![claim]),
        columns: vec!["PCIe", "chain", "MiB", "ms"],
        rows,
        picture: Picture::Lines { x: "MiB", y: "ms", axes: Axes::Logarithmic, series },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node of figures 3 and 4: two cards, an adapter. Each hop of PC has its directions for
    /// itself; TA-PC as the text has it (1, 4, 3, 2) uses those of the first card twice.
    #[test]
    fn uses_of_the_figures_links() {
        let of = Order { nodes: 3, cards: 2, ..orders()[0].clone() };
        let cluster = Cluster::new(&of, Duplex::Full);
        let uses = |order: &[u16]| {
            let mut schedule = Schedule::new();
            let mut uses = Uses::new(cluster.capacities.len());
            for hop in order.windows(2) {
                cluster.route(&mut uses, hop[0], hop[1]);
                schedule.add(Stream::whole(1.0), &mut uses);
            }
            // The second node's two directions of each card: 4 GPUs, 2 cards, sockets, adapter.
            let bytes = schedule.planned_bytes(cluster.capacities.len());
            bytes[(8 + 4) * 2..(8 + 6) * 2].to_vec()
        };
        let all = chains(&of).expect("orders");
        assert_eq!(uses(&all[0].1), [1.0; 4]);
        assert_eq!(all[1].1[..5], [0, 3, 2, 1, 4]);
        assert_eq!(uses(&all[1].1), [2.0, 2.0, 1.0, 1.0]);
        assert_eq!(uses(&all[2].1), [1.0; 4]);
        assert_eq!(uses(&all[3].1), [2.0; 4]);
    }

    /// A chain over links of one rate takes model (5)'s time.
    #[test]
    fn a_chain_takes_the_models_time() {
        let of = Order { nodes: 4, cards: 1, adapters: 1, ..orders()[0].clone() };
        let cluster = Cluster { capacities: vec![1e9; 40], ..Cluster::new(&of, Duplex::Full) };
        let order: Vec<u16> = (0..8).collect();
        let seconds = cluster.chain(&order, 16.0 * CHUNK).expect("it ends");
        let model = (16.0 + 8.0 - 2.0) * (STARTUP + CHUNK / 1e9);
        assert!((seconds / model - 1.0).abs() < 0.01, "{seconds} {model}");
    }
}
