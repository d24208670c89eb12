//! ATP's switch, and its parameter servers.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use xdp_agg_baselines::atp::{Counters, PORT, SLOTS, Stop, serve_sums, serve_switch};

/// Run the switch or a parameter server of the baseline `atp` until it is interrupted (SIGINT or
/// SIGTERM)
///
/// Both work over UDP, in user space. When packets may come, one line goes to standard output:
/// `ready atp=ADDR:PORT`. At the end another says what was counted.
#[derive(Debug, Parser)]
#[command(name = "xdp-agg-atp", version, after_help = crate::EXIT_CODES, args_override_self = true)]
pub struct Args {
    #[command(subcommand)]
    service: Service,
}

#[derive(Clone, Debug, Subcommand)]
enum Service {
    /// Slots that are taken as fragments come; what finds its slot taken goes to the servers
    Switch {
        /// Where workers of the first host send to (UDP). Those of the next hosts use the ports
        /// behind it, and the servers' answers come in by the ports behind these
        #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::from(([0; 4], PORT)))]
        listen: SocketAddr,
        /// Hosts with workers
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
        hosts: u16,
        /// Parameter servers, separated by commas: block `b` belongs to server `b` mod `p`
        #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',', required = true)]
        servers: Vec<SocketAddr>,
        /// Slots, each for one block
        #[arg(long, value_name = "N", default_value_t = SLOTS,
            value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
        slots: u32,
    },
    /// A parameter server: adds what finds no slot, and sends all results
    Server {
        /// Where the switch sends to (UDP)
        #[arg(long, value_name = "ADDR:PORT")]
        listen: SocketAddr,
    },
}

/// Serves until it is interrupted.
///
/// # Errors
/// An address that cannot be bound; what the service ends with.
pub fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the ready line, so that a caller that waits for it may interrupt at once.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (ended, end) = tokio::sync::oneshot::channel();
        let (service, stopped) = (args.service.clone(), stop.clone());
        let thread = thread::Builder::new().name("atp".into());
        let running = thread.spawn(move || drop(ended.send(serve(&service, &stopped))))?;
        tokio::pin!(end);
        let done = tokio::select! {
            done = &mut end => done,
            _ = terminate.recv() => { stop.stop(); end.await }
            _ = interrupt.recv() => { stop.stop(); end.await }
        };
        drop(running.join());
        let counters = done.context("the service's thread has ended without a word")??;
        let Counters { passed, whole, flushed, reclaimed, merged, refused } = counters;
        writeln!(
            io::stdout(),
            "passed={passed} whole={whole} flushed={flushed} reclaimed={reclaimed} \
             merged={merged} refused={refused}"
        )?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Says where it listens, and serves until it is stopped.
fn serve(service: &Service, stop: &Stop) -> Result<Counters> {
    let ready = |address: SocketAddr| {
        // The scenario that started it waits for this line.
        drop(writeln!(io::stdout(), "ready atp={address}").and_then(|()| io::stdout().flush()));
    };
    match service {
        Service::Server { listen } => {
            serve_sums(*listen, stop, ready).with_context(|| format!("a server at {listen}"))
        }
        Service::Switch { listen, hosts, servers, slots } => {
            serve_switch(*listen, *hosts, servers, *slots, stop, ready)
                .with_context(|| format!("a switch at {listen}"))
        }
    }
}
