//! `xdp-agg serve`: the daemon.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;
use xdp_agg::config::{ConfigError, Partial, Settings};
use xdp_agg::confined::confine;
use xdp_agg::doctor;
use xdp_agg::engine;
use xdp_agg::process::raise_file_limit;
use xdp_agg::server::{Listener, Server, ServerConfig};

/// Run the aggregator until it is interrupted (SIGINT or SIGTERM)
///
/// Flags win over environment variables, these over the file of --config, this over the defaults.
/// The file is TOML; its keys are named like the flags, without the dashes in front.
/// When workers may connect, one line goes to standard output:
/// `ready control=ADDR:PORT data_port=PORT engine=ENGINE`. Logs go to standard error.
///
/// SIGHUP has it read --config, token and certificates again. Those, --job-slots, --job-slots-max
/// and --job-packet-rate then hold for new connections and jobs. If a file is wrong, all stay as
/// they were, and the log says why.
///
/// Once the engine is open, the daemon keeps CAP_BPF and CAP_NET_ADMIN of its capabilities with
/// XDP, and none in user space. So what it reads again must be readable without CAP_DAC_OVERRIDE.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Partial,
    /// Settings in TOML
    #[arg(long, env = "XDP_AGG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Args {
    /// What all sources say together. The file is read each time.
    fn read(&self) -> Result<Partial, ConfigError> {
        let file = self.config.as_deref().map(Partial::from_file).transpose()?.unwrap_or_default();
        let environment = Partial { log: std::env::var("RUST_LOG").ok(), ..Partial::default() };
        Ok(self.settings.clone().over(environment).over(file))
    }
}

/// Runs the sub-command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let partial = args.read()?;
    init_log(partial.log.as_deref().unwrap_or("info"))?;
    let settings = partial.clone().complete()?;
    if let Err(error) = raise_file_limit() {
        warn!("the limit of open files stays as it is: {error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the daemon's runtime")?;
    runtime.block_on(serve(settings, (args, partial)))?;
    Ok(ExitCode::SUCCESS)
}

/// How the engine without interfaces calls itself.
const USERSPACE: &str = "userspace";

async fn serve(settings: Settings, (args, partial): (Args, Partial)) -> Result<()> {
    // Signals first: one that comes while the engine opens must not leave it half open.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hangup = signal(SignalKind::hangup())?;
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
    let (configs, read_again) = mpsc::channel(1);
    tokio::spawn(read_at_each(hangup, (args, partial), configs));
    let server = Server::new(listener, engine, &settings.server).with_configs(read_again);
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

/// Reads the settings again at each signal, for `configs`. Where something is wrong, all of them
/// stay as they were.
async fn read_at_each(
    mut hangup: Signal,
    (args, before): (Args, Partial),
    configs: mpsc::Sender<ServerConfig>,
) {
    let args = Arc::new(args);
    while hangup.recv().await.is_some() {
        let args = Arc::clone(&args);
        let slots = before.slots;
        let read = move || {
            let partial = args.read()?;
            // The pool stays as it is until a restart, and jobs' slots have to fit it.
            let running = Partial { slots, ..partial.clone() };
            Ok::<_, ConfigError>((partial, running.complete()?.server))
        };
        // A file may be anything, also one that makes its reader wait.
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok((now, config))) => {
                if before.needs_restart(&now) {
                    warn!("SIGHUP: other settings have changed too; a restart takes these over");
                }
                if configs.send(config).await.is_err() {
                    return;
                }
            }
            Ok(Err(error)) => {
                let error = anyhow::Error::from(error);
                error!("SIGHUP: all settings stay as they were: {error:#}");
            }
            Err(error) => error!("SIGHUP: all settings stay as they were: {error}"),
        }
    }
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
