//! `bench flood`: what is left of a job's speed while others do their worst.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Serialize;
use xdp_agg_client::{Communicator, Op};
use xdp_agg_common::maps::{JobCounters, Reject};
use xdp_agg_testbed::at_once;
use xdp_agg_testbed::flood::{Attacker, Flood, Rude, Secret, pin_to_cpu};
use xdp_agg_testbed::steady::input;

use super::files::write_json;
use super::lab::{Daemon, Lab, Plan, Privilege};
use super::setting::{Rate, parse_bytes};
use xdp_agg_report::quantile;

/// Scale, seed and limits of the calls.
const SCALE: f64 = 1024.0;
const SEED: u64 = 1;
const LIMIT: Duration = Duration::from_secs(60);

/// What goes on beside the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Beside {
    /// Nothing.
    Nothing,
    /// Forged packets of all kinds, from a host of their own.
    Forged,
    /// A job of which one member never contributes, and the other repeats itself without end.
    Rude,
}

/// What is left of a job's speed while forged packets come as fast as one processor can send them,
/// and while another job never ends.
///
/// Job and daemon run on processor 0, the flood on processor 1. The job's links have a rate where
/// processor 0 has time to spare, the flood's cable has none. Conditions take turns. Exit status 1
/// if a sum is wrong.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of workers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    workers: u16,
    /// Rate of the job's links in each direction.
    #[arg(long, default_value = "100mbit")]
    rate: Rate,
    /// Bytes of a call.
    #[arg(long, default_value = "4M", value_parser = parse_bytes)]
    bytes: u64,
    /// Calls under each condition.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// What goes on beside the job, separated by commas. Default: each in turn.
    #[arg(long, value_enum, value_delimiter = ',')]
    beside: Option<Vec<Beside>>,
    /// Packets a second that a job may send (`--job-packet-rate` of the daemon).
    #[arg(long)]
    job_packet_rate: Option<u64>,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One condition.
#[derive(Debug, Serialize)]
struct Row {
    beside: Beside,
    /// Each call, at the slowest worker.
    seconds: Vec<f64>,
    wrong: u64,
    /// Packets that were sent beside the job, and in what time.
    packets: u64,
    packet_seconds: f64,
    /// Packets that the data path refused meanwhile, by reason.
    refused: Vec<(&'static str, u64)>,
}

impl Row {
    fn median(&self) -> f64 {
        quantile(&self.seconds, 0.5)
    }

    fn line(&self, bytes: u64, undisturbed: f64) -> String {
        let speed = |seconds: f64| bytes as f64 * 8.0 / seconds / 1e6;
        let rate = self.packets as f64 / self.packet_seconds.max(1e-9) / 1e3;
        format!(
            "{:<9} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>7.3} {:>6} {:>10.1}",
            format!("{:?}", self.beside).to_lowercase(),
            self.seconds.len(),
            speed(self.median()),
            speed(quantile(&self.seconds, 1.0)),
            speed(quantile(&self.seconds, 0.0)),
            undisturbed / self.median(),
            self.wrong,
            rate,
        )
    }
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("`bench flood` needs root");
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let flood_cpu = if processors > 1 {
        pin_to_cpu(0)?;
        Some(1)
    } else {
        eprintln!("warning: one processor: job and flood share it");
        None
    };
    // Two more hosts are the rude job's.
    let lab = Lab::build(Plan::new(args.workers + 2, args.rate, privilege))?;
    let attacker = Attacker::connect(lab.topology().aggregator())?;
    let mut extra = vec!["--interface".to_owned(), Attacker::INTERFACE.to_owned()];
    if let Some(rate) = args.job_packet_rate {
        extra.extend(["--job-packet-rate".to_owned(), rate.to_string()]);
    }
    let daemon = lab.start_daemon_with(&extra)?;
    let bench = Bench { args, lab: &lab, daemon, attacker, flood_cpu };
    let rows = bench.run()?;
    bench.daemon.stop()?;
    if let Some(file) = &args.json {
        write_json(file, &rows)?;
    }
    if rows.iter().any(|row| row.wrong > 0) {
        bail!("wrong sums");
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a Args,
    lab: &'a Lab,
    daemon: Daemon<'a>,
    attacker: Attacker,
    flood_cpu: Option<usize>,
}

impl Bench<'_> {
    fn run(&self) -> Result<Vec<Row>> {
        let workers = self.connect()?;
        let secret = self.overhear(&workers)?;
        let conditions =
            self.args.beside.clone().unwrap_or_else(|| Beside::value_variants().to_vec());
        let empty = |beside| Row {
            beside,
            seconds: Vec::new(),
            wrong: 0,
            packets: 0,
            packet_seconds: 0.0,
            refused: Reject::ALL.iter().map(|reason| (reason.name(), 0)).collect(),
        };
        let mut rows: Vec<Row> = conditions.into_iter().map(empty).collect();
        if rows.first().is_none_or(|row| row.beside != Beside::Nothing) {
            rows.insert(0, empty(Beside::Nothing));
        }
        for _ in 0..self.args.rounds {
            for row in &mut rows {
                self.turn(&workers, &secret, row)?;
            }
        }
        let undisturbed = rows[0].median();
        println!(
            "# flood: {} workers, {} a link, calls of {} bytes\n\
             # beside   calls    median     least      most   ratio  wrong    flood\n\
             #                 (Mbit/s)  (Mbit/s)  (Mbit/s)                 (kpacket/s)",
            self.args.workers, self.args.rate, self.args.bytes
        );
        for row in &rows {
            println!("{}", row.line(self.args.bytes, undisturbed));
            let refused = row.refused.iter().filter(|(_, count)| *count > 0);
            let refused: Vec<_> = refused.map(|(name, n)| format!("{name} {n}")).collect();
            if !refused.is_empty() {
                println!("#          refused: {}", refused.join(", "));
            }
        }
        Ok(rows)
    }

    /// One call under one condition.
    fn turn(&self, workers: &[Communicator], secret: &Secret, row: &mut Row) -> Result<()> {
        let before = self.rejects()?;
        let rude = if row.beside == Beside::Rude { Some(self.rude()?) } else { None };
        let flood: Option<Flood> = match (row.beside, &rude) {
            (Beside::Forged, _) => Some(self.attacker.flood(secret, self.flood_cpu)?),
            (_, Some([first, _])) => Some(first.repeat(self.flood_cpu)?),
            _ => None,
        };
        let (seconds, wrong) = self.call(workers)?;
        row.seconds.push(seconds);
        row.wrong += wrong;
        if let Some((packets, time)) = flood.map(Flood::stop) {
            row.packets += packets;
            row.packet_seconds += time.as_secs_f64();
        }
        let after = self.rejects()?;
        for ((_, count), (now, then)) in row.refused.iter_mut().zip(after.iter().zip(before)) {
            *count += now.saturating_sub(then);
        }
        drop(rude);
        Ok(())
    }

    /// One call at all workers: seconds at the slowest, and elements that were wrong.
    fn call(&self, workers: &[Communicator]) -> Result<(f64, u64)> {
        let len = (self.args.bytes / 4) as usize;
        let inputs: Vec<Vec<i32>> =
            workers.iter().map(|worker| input(SEED, 0, worker.rank(), len)).collect();
        let mut sums = vec![0; len];
        for part in &inputs {
            sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        let one = |(worker, mut data): (&Communicator, Vec<i32>)| -> Result<(f64, u64)> {
            let start = Instant::now();
            worker.all_reduce(&mut data, Op::Sum)?;
            let seconds = start.elapsed().as_secs_f64();
            let wrong = data.iter().zip(&sums).filter(|(got, sum)| got != sum).count();
            Ok((seconds, wrong as u64))
        };
        let mut all = (0.0_f64, 0);
        for ended in at_once(workers.iter().zip(inputs), one) {
            let (seconds, wrong) = ended?;
            all = (all.0.max(seconds), all.1 + wrong);
        }
        Ok(all)
    }

    fn connect(&self) -> Result<Vec<Communicator>> {
        let daemon = self.daemon_address()?;
        let connect = |rank: u16| -> Result<Communicator> {
            let settings = Communicator::builder()
                .aggregator(daemon)
                .job("flooded")
                .rank(rank)
                .world_size(self.args.workers)
                .scale(SCALE)
                .learning(false)
                .deadline(LIMIT);
            let host = self.lab.topology().worker(rank.into());
            Ok(host.run(move || settings.connect())??)
        };
        at_once(0..self.args.workers, connect).into_iter().collect()
    }

    fn daemon_address(&self) -> Result<SocketAddr> {
        self.lab.control_address().parse().context("the daemon's address")
    }

    /// Listens to a worker while it calls.
    fn overhear(&self, workers: &[Communicator]) -> Result<Secret> {
        std::thread::scope(|scope| {
            let host = self.lab.topology().worker(1);
            let listening = scope.spawn(|| Secret::overhear(host));
            while !listening.is_finished() {
                self.call(workers)?;
            }
            Ok(listening.join().map_err(|_| anyhow!("the listener panicked"))??)
        })
    }

    /// The rude job, which runs until it is dropped.
    fn rude(&self) -> Result<[Rude; 2]> {
        let daemon = self.daemon_address()?;
        // A job of the round before may be there for a moment still.
        let name = format!("rude-{}", next_number());
        let join = |rank: u16| {
            let host = usize::from(self.args.workers + rank);
            let topology = self.lab.topology();
            let host = (topology.worker(host), topology.worker_addr(host));
            Rude::join(host, daemon, &name, rank, 2)
        };
        let mut rude = [join(0)?, join(1)?];
        for worker in &mut rude {
            worker.get_ready()?;
        }
        for worker in &mut rude {
            worker.wait_go()?;
        }
        Ok(rude)
    }

    /// Packets that the data path has refused, by reason.
    fn rejects(&self) -> Result<[u64; Reject::COUNT]> {
        let stats = self.daemon.stats()?;
        let mut all: JobCounters = *stats.unattributed;
        for job in &stats.jobs {
            all.merge(&job.counters);
        }
        Ok(all.rejects)
    }
}

/// A number that was not there before.
fn next_number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}
