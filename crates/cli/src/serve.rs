//! `xdp-agg serve`: the daemon.

use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use xdp_agg::config::{ConfigError, Partial, Settings};
use xdp_agg::engine::{self, EngineKind, LocalAddr, XdpMode};
use xdp_agg::process::raise_file_limit;
use xdp_agg::server::{Listener, Server};

/// Run the aggregator until it is interrupted (SIGINT or SIGTERM)
///
/// Flags win over environment variables, these over the file of --config, this over the defaults.
/// The file is TOML; its keys are named like the flags, without the dashes in front.
/// When workers may connect, one line goes to standard output:
/// `ready control=ADDR:PORT data_port=PORT engine=ENGINE`. Logs go to standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    /// Interface that workers are behind; repeat it for several
    #[arg(short, long, env = "XDP_AGG_INTERFACE", value_name = "IF", value_delimiter = ',')]
    interface: Vec<String>,
    /// What sums: XDP in the kernel, or plain UDP sockets without privileges [default: auto]
    #[arg(long, env = "XDP_AGG_ENGINE", value_name = "ENGINE")]
    engine: Option<EngineArg>,
    /// How the XDP program is attached [default: auto]
    #[arg(long, env = "XDP_AGG_XDP_MODE", value_name = "MODE")]
    xdp_mode: Option<XdpModeArg>,
    /// Where workers and tools connect (TCP) [default: 0.0.0.0:9870]
    #[arg(long, env = "XDP_AGG_CONTROL", value_name = "ADDR:PORT")]
    control: Option<SocketAddr>,
    /// IPv4 address of this host that workers send data to [default: the one that each worker is
    /// connected to]
    #[arg(long, env = "XDP_AGG_DATA_ADDR", value_name = "IP")]
    data_addr: Option<Ipv4Addr>,
    /// Address that workers on this host send data to, with the XDP engine: no host may have it; a
    /// veth pair is made to it. `auto` takes one of 169.254.109.0/24, `off` serves no such workers
    /// [default: auto]
    #[arg(long, env = "XDP_AGG_LOCAL_ADDR", value_name = "IP|auto|off")]
    local_addr: Option<LocalAddr>,
    /// UDP port that workers send data to; 0 takes a free one (user-space engine only) [default:
    /// 48864]
    #[arg(long, env = "XDP_AGG_DATA_PORT", value_name = "PORT")]
    data_port: Option<u16>,
    /// Slots of all jobs together [default: 8192]
    #[arg(long, env = "XDP_AGG_SLOTS", value_name = "N")]
    slots: Option<u32>,
    /// Slots of a job that asks for none in particular, a power of two [default: 1024]
    #[arg(long, env = "XDP_AGG_JOB_SLOTS", value_name = "N")]
    job_slots: Option<u32>,
    /// MTU that bounds the blocks, in bytes [default: the smallest of the interfaces']
    #[arg(long, env = "XDP_AGG_MTU", value_name = "BYTES")]
    mtu: Option<u32>,
    /// How long ranks may take to join a job, from the first one [default: 60]
    #[arg(long, env = "XDP_AGG_JOIN_TIMEOUT", value_name = "SECS")]
    join_timeout: Option<u64>,
    /// How long the members of a job may take to try their paths, and the branches of its tree for
    /// each step until it runs: connect, serve, prepare, find their parent, start [default: 20]
    #[arg(long, env = "XDP_AGG_PROBE_TIMEOUT", value_name = "SECS")]
    probe_timeout: Option<u64>,
    /// Certificate of this daemon in PEM, for control connections over TLS (then all are)
    #[arg(long, env = "XDP_AGG_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(long, env = "XDP_AGG_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Authority that must have signed the certificate of every worker and tool [default: none is
    /// asked for]
    #[arg(long, env = "XDP_AGG_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// The daemons below this one in a job's tree are reached over TLS: their certificates must be
    /// signed by this authority (PEM). Without it these connections are plain. This daemon shows
    /// its own certificate.
    #[arg(long, value_name = "FILE", env = "XDP_AGG_TLS_BRANCH_CA")]
    tls_branch_ca: Option<PathBuf>,
    /// How long the members of a job may take to come back after the daemon's restart [default: 10]
    #[arg(long, env = "XDP_AGG_RESUME_TIMEOUT", value_name = "SECS")]
    resume_timeout: Option<u64>,
    /// In what time a dead host or link is noticed; a process that is only stopped is not dead
    /// [default: 2]
    #[arg(long, env = "XDP_AGG_DEAD_AFTER", value_name = "SECS")]
    dead_after: Option<f64>,
    /// How long the others wait for a worker that contributes nothing until it counts as lost; 0:
    /// until their calls' deadlines [default: 0]
    #[arg(long, env = "XDP_AGG_STRAGGLER_TIMEOUT", value_name = "SECS")]
    straggler_timeout: Option<f64>,
    /// File with the token that workers and tools have to know; only its owner may read it
    /// [default: none is needed]
    #[arg(long, env = "XDP_AGG_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Most slots that a job may ask for [default: all]
    #[arg(long, env = "XDP_AGG_JOB_SLOTS_MAX", value_name = "N")]
    job_slots_max: Option<u32>,
    /// Packets a second that a job may send; further ones are dropped and counted; 0: no limit
    /// [default: 0]
    #[arg(long, env = "XDP_AGG_JOB_PACKET_RATE", value_name = "N")]
    job_packet_rate: Option<u64>,
    /// Directory in a BPF file system where the data path is pinned: it goes on while the daemon is
    /// replaced, also after SIGKILL [default: it ends with the daemon]
    #[arg(long, env = "XDP_AGG_PIN", value_name = "DIR")]
    pin: Option<PathBuf>,
    /// With --pin: remove the data path that an earlier daemon left there, with its jobs, instead
    /// of taking it over
    #[arg(long, requires = "pin")]
    fresh: bool,
    /// With --pin: directory of the file that tells the next daemon of the running jobs, and is
    /// named after the directory of the pins [default: /run/xdp-agg]
    #[arg(long, env = "XDP_AGG_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// With --pin: leave data path and jobs to the next daemon also when interrupted; without it
    /// they end then (keep-on-exit in the file)
    #[arg(long)]
    keep: bool,
    /// Settings in TOML
    #[arg(long, env = "XDP_AGG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// What is logged, for example `debug` or `warn,xdp_agg_protocol=debug`; RUST_LOG does the same
    /// [default: info]
    #[arg(long, env = "XDP_AGG_LOG", value_name = "FILTER")]
    log: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineArg {
    /// XDP if interfaces are named and it is permitted, otherwise user space, with a warning
    Auto,
    /// The XDP program, or an error
    Xdp,
    /// Plain UDP sockets
    Userspace,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum XdpModeArg {
    /// Native if all drivers can, otherwise generic, with a warning
    Auto,
    /// In the driver, or an error
    Native,
    /// Behind the driver: any interface, but slower
    Generic,
}

/// Runs the sub-command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let file = args.config.as_deref().map(Partial::from_file).transpose()?.unwrap_or_default();
    let environment = Partial { log: std::env::var("RUST_LOG").ok(), ..Partial::default() };
    let partial = args.into_partial().over(environment).over(file);
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

impl Args {
    /// Flags and XDP_AGG_* variables as one source.
    fn into_partial(self) -> Partial {
        Partial {
            interface: Some(self.interface).filter(|names| !names.is_empty()),
            engine: self.engine.map(|engine| match engine {
                EngineArg::Auto => EngineKind::Auto,
                EngineArg::Xdp => EngineKind::Xdp,
                EngineArg::Userspace => EngineKind::Userspace,
            }),
            xdp_mode: self.xdp_mode.map(|mode| match mode {
                XdpModeArg::Auto => XdpMode::Auto,
                XdpModeArg::Native => XdpMode::Native,
                XdpModeArg::Generic => XdpMode::Generic,
            }),
            control: self.control,
            data_addr: self.data_addr,
            local_addr: self.local_addr,
            data_port: self.data_port,
            slots: self.slots,
            job_slots: self.job_slots,
            mtu: self.mtu,
            join_timeout: self.join_timeout,
            probe_timeout: self.probe_timeout,
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            tls_client_ca: self.tls_client_ca,
            tls_branch_ca: self.tls_branch_ca,
            resume_timeout: self.resume_timeout,
            dead_after: self.dead_after,
            straggler_timeout: self.straggler_timeout,
            token_file: self.token_file,
            job_slots_max: self.job_slots_max,
            job_packet_rate: self.job_packet_rate,
            pin: self.pin,
            fresh: self.fresh.then_some(true),
            state_dir: self.state_dir,
            keep_on_exit: self.keep.then_some(true),
            log: self.log,
        }
    }
}
