//! `bench auto`: all-reduces that learn their way, against each system alone.

use anyhow::Result;

use super::compare::{self, Calls, Common, System};
use super::lab::{Lab, Plan, Privilege};
use super::row::{HEADING, Row};
use super::setting::{Rate, short_bytes};

/// Sizes where none are given.
const SIZES: [u64; 9] =
    [4, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 97 << 20];
/// Calls before the timed ones: all that a size tries lies among them.
const LEARNING: u32 = 80;
/// A time of more than this share of the best one is marked.
const ALLOWED: f64 = 1.05;
/// The name of the ring that runs beside a daemon.
const BESIDE: &str = "ring-beside";

/// Calls that learn which way is fastest, against each system alone.
///
/// For every rate and size: the aggregators alone, the ring alone, OpenMPI where it is installed,
/// and `auto` after its first calls. The ring is measured twice: in a network without a daemon, and
/// beside one (`ring-beside`), where `auto` is. A daemon's XDP program takes TCP's super-packets
/// from virtual links; on real ones workers send them all the same. A row whose time is more than
/// 1.05 of the best one's is marked: `SLOWER` where that one has a daemon beside it, or links carry
/// packet by packet (`--no-offloads`), and `slower than without a daemon` otherwise.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Rates of every link in each direction, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "none,500mbit,2.5gbit")]
    rates: Vec<Rate>,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let common = &args.common;
    let sizes = common.bytes.clone().unwrap_or_else(|| SIZES.to_vec());
    let mut systems = common.systems(privilege);
    systems.retain(|system| *system != System::Auto);
    systems.push(System::Auto);
    let (hosts, processes, mtu) = (common.workers, common.processes, common.mtu);
    println!("# auto: {hosts} hosts x {processes} workers, MTU {mtu}\n{HEADING}");
    let mut rows: Vec<Row> = Vec::new();
    for rate in &args.rates {
        let plan = common.plan(*rate, privilege);
        for system in &systems {
            rows.extend(measure(plan, *system, &sizes, common.iters, false)?);
            if *system == System::TcpRing {
                rows.extend(measure(plan, *system, &sizes, common.iters, true)?);
            }
        }
    }
    print_ratios(&rows);
    common.finish(&rows)
}

/// One system, over a network of its own. `beside`: a daemon is there, too.
fn measure(
    plan: Plan,
    system: System,
    sizes: &[u64],
    iters: Option<u32>,
    beside: bool,
) -> Result<Vec<Row>> {
    let lab = Lab::build(plan)?;
    let daemon = if beside { Some(lab.start_daemon()?) } else { None };
    let mut rows = Vec::new();
    for bytes in sizes {
        let usual = match bytes {
            0..0x2_0000 => 500,
            0x2_0000..0x40_0000 => 50,
            _ => 5,
        };
        let iters = iters.unwrap_or(usual);
        let warmup = if system == System::Auto { LEARNING } else { (usual / 5).max(1) };
        let calls = Calls { bytes: &[*bytes], iters, warmup };
        rows.extend(compare::measure(&lab, system, &calls)?);
    }
    if let Some(daemon) = daemon {
        rows.iter_mut().for_each(|row| row.system = BESIDE.into());
        daemon.stop()?;
    }
    Ok(rows)
}

/// A line a rate and size: every system's time, and that of `auto` over the best.
fn print_ratios(rows: &[Row]) {
    println!("#\n# rate     bytes    auto (us)    best (us)  auto/best");
    for auto in rows.iter().filter(|row| row.system == "auto") {
        let same = |row: &&Row| (&row.rate, row.bytes) == (&auto.rate, auto.bytes);
        let others = || rows.iter().filter(same).filter(|row| row.system != "auto");
        let fastest = |of: &dyn Fn(&&Row) -> bool| {
            others().filter(of).map(|row| row.time_us_median).min_by(f64::total_cmp)
        };
        let Some(best) = fastest(&|_| true) else { continue };
        // Where offloads are off, TCP has no super-packets that a daemon could take from it.
        let with_daemon = |row: &&Row| !row.offloads || ["xdp-agg", BESIDE].contains(&&*row.system);
        let ratio = auto.time_us_median / best;
        let is_slower = |best: f64| auto.time_us_median > ALLOWED * best;
        let mark = match fastest(&with_daemon) {
            Some(best) if is_slower(best) => " SLOWER",
            _ if is_slower(best) => " slower than without a daemon",
            _ => "",
        };
        let all = others().map(|row| format!("{} {:.1}", row.system, row.time_us_median));
        println!(
            "# {:<8} {:<5} {:>12.1} {:>12.1} {:>10.2}{mark} by {}; {}",
            auto.rate,
            short_bytes(auto.bytes),
            auto.time_us_median,
            best,
            ratio,
            auto.algorithm,
            all.collect::<Vec<_>>().join(", "),
        );
    }
}
