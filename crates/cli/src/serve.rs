//! `xdp-agg serve`: the daemon.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use xdp_agg::config::{ConfigError, Partial, Settings};
use xdp_agg::confined::confine;
use xdp_agg::doctor;
use xdp_agg::engine;
use xdp_agg::process::raise_file_limit;
use xdp_agg::server::{Listener, Server};

/// Run the aggregator until it is interrupted (SIGINT or SIGTERM)
///
/// Flags win over environment variables, these over the file of --config, this over the defaults.
/// The file is TOML; its keys are named like the flags, without the dashes in front.
/// When workers may connect, one line goes to standard output:
/// `ready control=ADDR:PORT data_port=PORT engine=ENGINE`. Logs go to standard error.
///
/// Once the engine is open, the daemon keeps CAP_BPF and CAP_NET_ADMIN of its capabilities with
/// XDP, and none in user space.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Partial,
    /// Settings in TOML
    #[arg(long, env = "XDP_AGG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the sub-command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let file = args.config.as_deref().map(Partial::from_file).transpose()?.unwrap_or_default();
    let environment = Partial { log: std::env::var("RUST_LOG").ok(), ..Partial::default() };
    let partial = args.settings.over(environment).over(file);
    init_log(partial.log.as_deref().unwrap_or("info"))?;
    let settings = partial.complete()?;
    if let Err(error) = raise_file_limit() {
        warn!("the limit of open files stays as it is: {error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the daemon's runtime")?;
    runtime.block_on(serve(settings))?;
    Ok(ExitCode::SUCCESS)
}

/// How the engine without interfaces calls itself.
const USERSPACE: &str = "userspace";

async fn serve(settings: Settings) -> Result<()> {
    // Signals first: one that comes while the engine opens must not leave it half open.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM".to_owned(),
            _ = interrupt.recv() => "SIGINT".to_owned(),
        }
    };
    let listener = Listener::bind(settings.control)?;
    let engine = engine::open(&settings.engine)?;
    if engine.describe() != USERSPACE {
        for doubt in doctor::doubts(&settings.engine.interfaces).await {
            warn!("{doubt}");
        }
    }
    let confined = confine(engine.describe() != USERSPACE);
    info!("capabilities that are left: {confined}");
    for refusal in &confined.refused {
        warn!("the daemon keeps more rights than it needs: {refusal}");
    }
    if let Some(warning) = settings.openness() {
        warn!("{warning}");
    }
    let server = Server::new(listener, engine, &settings.server);
    let (control, data_port) = (server.control_addr(), server.data_port());
    let engine = server.engine();
    info!(%control, data_port, engine, "ready");
    let mut out = io::stdout();
    let line = writeln!(out, "ready control={control} data_port={data_port} engine={engine}");
    if let Err(error) = line.and_then(|()| out.flush()) {
        warn!("nobody reads standard output: {error}");
    }
    server.run(shutdown).await;
    Ok(())
}

/// Logs to standard error; colours only for a terminal, and not against NO_COLOR.
fn init_log(filter: &str) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| ConfigError::Value {
        name: "log",
        value: filter.to_owned(),
        expected: format!("{error}; a level or a list such as warn,xdp_agg=debug is expected"),
    })?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && !no_color)
        .init();
    Ok(())
}
