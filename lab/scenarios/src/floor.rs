//! `bench floor`: what a call costs at least on this machine, and how near to it ours is.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::HEADER_LEN;
use xdp_agg_quantize::throughput::{WorkingSet, alone};
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};
use xdp_agg_report::quantile;
use xdp_agg_testbed::echo::{Receive, Until, Way, echo};
use xdp_agg_testbed::{CpuMeter, Probe, at_once};

use super::compare::{self, Calls, System};
use super::files::write_json;
use super::lab::{Engine, Lab, Plan, Privilege};
use super::row;
use super::setting::{Rate, parse_bytes};

/// Long vectors over links without a rate, beside the least that they can cost here: packets
/// through an empty XDP program and sockets that do nothing else, and the quantizing.
///
/// `empty` is every worker that sends the call's packets in trains of 32, 128 under way, to a
/// program that swaps their addresses and sends them back. `copy` is a copy of each worker's vector
/// by the C library, and `quantize` is quantizing and de-quantizing it in packets. `cpu` is
/// processor seconds of the whole machine for one call, of all workers. The last row is the real
/// thing, and its processor time over that of `empty` and `quantize` together.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of workers, each on a host of its own.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    workers: u16,
    /// MTUs of all links, separated by commas; XDP on veth takes at most 3506.
    #[arg(long, value_delimiter = ',', default_values_t = [1500, 3500],
          value_parser = clap::value_parser!(u32).range(256..=3506))]
    mtu: Vec<u32>,
    /// Bytes of a worker's vector.
    #[arg(long, default_value = "97M", value_parser = parse_bytes)]
    bytes: u64,
    /// Timed calls of each kind.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    iters: u32,
    /// Let every packet cross the links by itself, as on a cable.
    #[arg(long)]
    no_offloads: bool,
    /// Instead, ways to use sockets, in turns: trains of other lengths, `UDP_GRO` off, a system
    /// call for each message, io_uring, `MSG_ZEROCOPY`, two sockets, `SO_BUSY_POLL`.
    #[arg(long, conflicts_with = "json")]
    ways: bool,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// One MTU.
#[derive(Debug, Serialize)]
struct Row {
    mtu: u32,
    offloads: bool,
    workers: u16,
    bytes: u64,
    /// Packets in each direction of each link.
    packets: u64,
    /// Seconds of each run of packets through an empty program.
    empty_s: Vec<f64>,
    /// Processor seconds of one.
    empty_cpu_s: f64,
    /// Packets that were lost in it, and sent again.
    empty_lost: u64,
    /// Processor seconds of all workers.
    copy_cpu_s: f64,
    quantize_cpu_s: f64,
    /// Seconds of a call, and its processor time.
    call_s: f64,
    call_cpu_s: f64,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("bench floor needs root: it loads an XDP program");
    }
    compare::warn_if_busy()?;
    if args.ways {
        return args.mtu.iter().try_for_each(|mtu| compare_ways(args, *mtu, privilege));
    }
    println!(
        "# floor: {} workers, {} bytes each, links without a rate{}",
        args.workers,
        args.bytes,
        if args.no_offloads { ", no offloads" } else { "" }
    );
    println!("{}", row::HEADING);
    let measured = args.mtu.iter().map(|mtu| measure(args, *mtu, privilege));
    let rows = measured.collect::<Result<Vec<Row>>>()?;
    println!("#\n{HEADING}");
    rows.iter().for_each(Row::print);
    if let Some(file) = &args.json {
        write_json(file, &rows)?;
    }
    Ok(())
}

const HEADING: &str = "\
#  mtu  what                        time (ms)  spread (ms)        cpu (s)  ns of cpu a packet";

/// The packets of a call, through an empty program.
struct Packets {
    lab: Lab,
    workers: u16,
    payload: u16,
    /// Of each worker.
    count: u64,
}

/// What a number of calls' packets took.
struct Took {
    seconds: f64,
    cpu_s: f64,
    lost: u64,
}

impl Packets {
    fn of(args: &Args, plan: Plan) -> Result<Self> {
        let block = u64::from(chunks_for_mtu(plan.mtu)) * CHUNK_LEN as u64;
        let payload = u16::try_from(block as usize + HEADER_LEN).context("a packet's length")?;
        let lab = Lab::build(plan)?;
        for interface in lab.topology().aggregator_interfaces() {
            lab.topology().attach_probe(&interface, Probe::Mirror)?;
        }
        Ok(Self { lab, workers: args.workers, payload, count: args.bytes.div_ceil(block) })
    }

    /// All workers send and receive them, and that many times.
    fn go(&self, way: Way, times: u32) -> Result<Took> {
        let until = Until::Back(self.count * u64::from(times));
        let one = |worker| echo(self.lab.topology(), worker, self.payload, way, until);
        let (meter, start) = (CpuMeter::start()?, Instant::now());
        let echoed = at_once(0..usize::from(self.workers), one);
        let seconds = start.elapsed().as_secs_f64();
        let cpu_s = meter.elapsed()?.busy.as_secs_f64();
        let lost = echoed.into_iter().map(|echoed| Ok(echoed?.lost)).sum::<Result<u64>>()?;
        Ok(Took { seconds, cpu_s, lost })
    }

    /// Nanoseconds of processor time a packet there and back.
    fn each(&self, cpu_s: f64) -> f64 {
        cpu_s * 1e9 / (self.count * u64::from(self.workers)) as f64
    }
}

fn plan(args: &Args, mtu: u32, privilege: Privilege) -> Plan {
    let plan = Plan::new(args.workers, Rate { bits: None }, privilege);
    Plan { mtu, offloads: !args.no_offloads, engine: Engine::Xdp, ..plan }
}

fn measure(args: &Args, mtu: u32, privilege: Privilege) -> Result<Row> {
    let Args { workers, bytes, iters, .. } = *args;
    let plan = plan(args, mtu, privilege);
    let packets = Packets::of(args, plan)?;
    packets.go(Way::OURS, 1)?;
    let took: Vec<Took> = (0..iters).map(|_| packets.go(Way::OURS, 1)).collect::<Result<_>>()?;
    let (count, all) = (packets.count, f64::from(iters));
    drop(packets);
    let [copy_cpu_s, quantize_cpu_s] = work(workers, bytes)?;
    let calls = Calls { bytes: &[bytes], iters, warmup: 1 };
    let ours = compare::measure(&Lab::build(plan)?, System::XdpAgg, &calls)?;
    let ours = ours.first().context("no row")?;
    if ours.wrong > 0 {
        bail!("{} elements were not the exact sum", ours.wrong);
    }
    Ok(Row {
        mtu,
        offloads: plan.offloads,
        workers,
        bytes,
        packets: count,
        empty_s: took.iter().map(|took| took.seconds).collect(),
        empty_cpu_s: took.iter().map(|took| took.cpu_s).sum::<f64>() / all,
        empty_lost: took.iter().map(|took| took.lost).sum(),
        copy_cpu_s,
        quantize_cpu_s,
        call_s: ours.time_us_median / 1e6,
        call_cpu_s: ours.cpu_s,
    })
}

/// What is tried beside ours.
fn ways() -> Vec<(&'static str, Way)> {
    let ours = Way::OURS;
    vec![
        ("ours", ours),
        ("packets one by one", Way { train: 1, ..ours }),
        ("trains of 8", Way { train: 8, ..ours }),
        ("trains of 16", Way { train: 16, ..ours }),
        ("UDP_GRO off", Way { merged: false, ..ours }),
        ("a call for each message", Way { receive: Receive::Single, ..ours }),
        ("the same, UDP_GRO off", Way { receive: Receive::Single, merged: false, ..ours }),
        ("io_uring", Way { receive: Receive::Uring, ..ours }),
        ("io_uring, UDP_GRO off", Way { receive: Receive::Uring, merged: false, ..ours }),
        ("MSG_ZEROCOPY", Way { zero_copy: true, ..ours }),
        ("two sockets", Way { sockets: 2, ..ours }),
        ("SO_BUSY_POLL of 50 us", Way { busy_poll: 50, ..ours }),
    ]
}

/// All ways in turns, so that other load on this machine meets all.
fn compare_ways(args: &Args, mtu: u32, privilege: Privilege) -> Result<()> {
    let packets = Packets::of(args, plan(args, mtu, privilege))?;
    println!(
        "# {} workers, MTU {mtu}{}: {} packets each, there and back through an empty program, {} \
         turns\n# way                          time (ms)       spread  ns of cpu a packet       \
         spread  over ours    lost",
        args.workers,
        if args.no_offloads { ", no offloads" } else { "" },
        packets.count,
        args.iters
    );
    packets.go(Way::OURS, 1)?;
    let ways = ways();
    let mut took: Vec<Vec<Took>> = ways.iter().map(|_| Vec::new()).collect();
    for turn in 0..args.iters as usize {
        for place in 0..ways.len() {
            // None is always the first.
            let index = (place + turn) % ways.len();
            let (name, way) = ways[index];
            took[index].push(packets.go(way, 1).with_context(|| name.to_owned())?);
        }
    }
    let all = |of: &[Took], value: &dyn Fn(&Took) -> f64| of.iter().map(value).collect::<Vec<_>>();
    let each = |took: &Took| packets.each(took.cpu_s);
    let ours = quantile(&all(&took[0], &each), 0.5);
    for ((name, _), took) in ways.iter().zip(&took) {
        let (ms, ns) = (all(took, &|took| took.seconds * 1e3), all(took, &each));
        let spread = |of: &[f64]| format!("{:.0} to {:.0}", quantile(of, 0.0), quantile(of, 1.0));
        println!(
            "{name:<28} {:>11.0} {:>12} {:>19.0} {:>12} {:>10.2} {:>7}",
            quantile(&ms, 0.5),
            spread(&ms),
            quantile(&ns, 0.5),
            spread(&ns),
            quantile(&ns, 0.5) / ours,
            took.iter().map(|took| took.lost).sum::<u64>(),
        );
    }
    Ok(())
}

/// Processor seconds that all workers' vectors take: to be copied, and to be quantized and
/// de-quantized.
fn work(workers: u16, bytes: u64) -> Result<[f64; 2]> {
    const ROUNDS: usize = 5;
    let format = Format::new(ElementType::F32, Op::Sum, Scaling::Block, None, workers)?;
    let rows = alone(&[("sums", format)], WorkingSet::Packets, ROUNDS);
    // A row moves each byte of its elements twice: it is read, and written elsewhere.
    let seconds = |name: &str| -> Result<f64> {
        let row = rows.iter().find(|row| row.name == name).context("no such row")?;
        let [rate, _] = row.rates();
        Ok(2.0 * bytes as f64 * f64::from(workers) / rate)
    };
    Ok([seconds("copy of all")?, seconds("quantize sums")? + seconds("de-quantize sums")?])
}

impl Row {
    /// Processor seconds of the least that a call needs.
    fn least(&self) -> f64 {
        self.empty_cpu_s + self.quantize_cpu_s
    }

    fn print(&self) {
        let packets = self.packets as f64 * f64::from(self.workers);
        let line = |what: &str, time: Option<f64>, spread: Option<(f64, f64)>, cpu: f64| {
            let time = time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time * 1e3));
            let spread = spread.map_or_else(
                || "-".to_owned(),
                |(least, most)| format!("{:.0} to {:.0}", least * 1e3, most * 1e3),
            );
            let each = cpu / packets * 1e9;
            println!(
                "# {:>4}  {what:<26} {time:>10} {spread:>12} {cpu:>14.3} {each:>19.0}",
                self.mtu
            );
        };
        let at = |q| quantile(&self.empty_s, q);
        line(
            "empty program and sockets",
            Some(at(0.5)),
            Some((at(0.0), at(1.0))),
            self.empty_cpu_s,
        );
        line("copy", None, None, self.copy_cpu_s);
        line("quantize, de-quantize", None, None, self.quantize_cpu_s);
        line("xdp-agg", Some(self.call_s), None, self.call_cpu_s);
        println!(
            "# MTU {}: xdp-agg takes {:.2} times the processor time of the empty program and \
             quantizing ({:.3} s); {} packets of the empty program were lost",
            self.mtu,
            self.call_cpu_s / self.least(),
            self.least(),
            self.empty_lost
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twice the workers copy twice as much, and quantizing moves more than nothing.
    #[test]
    fn work_grows_with_workers() {
        let [copy, quantize] = work(2, 1 << 20).expect("a format");
        assert!(copy > 0.0 && quantize > 0.0, "{copy} {quantize}");
    }
}
