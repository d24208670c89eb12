//! A parameter server.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use xdp_agg_ps::{ServeOptions, Server};

/// Run a parameter server over TCP until it is interrupted (SIGINT or SIGTERM)
///
/// It adds in user space what its workers push: for the baselines `ps` and `psring`, and for what
/// finds no slot in `atp`. A job may have several servers: of `p`, each adds one block in `p`. When
/// workers may connect, one line goes to standard output: `ready ps=ADDR:PORT`. Logs go to standard
/// error.
#[derive(Debug, Parser)]
#[command(name = "xdp-agg-ps", version, after_help = crate::EXIT_CODES, args_override_self = true)]
pub struct Args {
    /// Where workers connect (TCP); port 0 takes a free one
    #[arg(
        long,
        env = "XDP_AGG_PS_LISTEN",
        value_name = "ADDR:PORT",
        default_value = "0.0.0.0:9872"
    )]
    listen: SocketAddr,
    /// Most jobs at a time
    #[arg(long, env = "XDP_AGG_PS_JOBS_MAX", value_name = "N", default_value_t = 64)]
    jobs_max: usize,
    /// Bytes that a worker may be ahead of the others, in MiB; a job takes this for each worker
    #[arg(long, env = "XDP_AGG_PS_WINDOW", value_name = "MIB", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// How long ranks may take to join a job, from the first one, in seconds
    #[arg(long, env = "XDP_AGG_PS_JOIN_TIMEOUT", value_name = "SECS", default_value_t = 60)]
    join_timeout: u32,
    /// What is logged, for example `debug`; RUST_LOG does the same
    #[arg(long, env = "XDP_AGG_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Serves until it is interrupted.
///
/// # Errors
/// An address that cannot be listened on; what the server ends with.
pub fn run(args: &Args) -> Result<ExitCode> {
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(&args.log));
    let filter = filter.with_context(|| format!("--log {}", args.log))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let options = ServeOptions {
        jobs_max: args.jobs_max,
        window: usize::from(args.window) << 20,
        join_within: Duration::from_secs(args.join_timeout.into()),
        ..ServeOptions::new(args.listen)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the ready line, so that a caller that waits for it may interrupt at once.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let server = Server::bind(options)?;
        let stopper = server.stopper();
        writeln!(io::stdout(), "ready ps={}", server.local_addr()?)?;
        io::stdout().flush()?;
        let (ended, end) = tokio::sync::oneshot::channel();
        let thread = thread::Builder::new().name("ps".into());
        let running = thread.spawn(move || drop(ended.send(server.run())))?;
        tokio::pin!(end);
        let done = tokio::select! {
            done = &mut end => done,
            _ = terminate.recv() => { stopper.stop(); end.await }
            _ = interrupt.recv() => { stopper.stop(); end.await }
        };
        drop(running.join());
        done.context("the server's thread has ended without a word")??;
        Ok(ExitCode::SUCCESS)
    })
}
