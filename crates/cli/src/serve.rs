//! `xdp-agg serve`: the daemon.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use rustix::process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use xdp_agg::config::{ConfigError, Partial, Settings};
use xdp_agg::confined::confine;
use xdp_agg::doctor;
use xdp_agg::engine;
use xdp_agg::process::raise_file_limit;
use xdp_agg::server::{ConnId, Listener, Reread, Rereads, Server};
use xdp_agg::supervisor::Supervisor;

use crate::exit::sentence;

/// Run the aggregator until it is interrupted (SIGINT or SIGTERM)
///
/// Flags win over environment variables, these over the file of --config, this over the defaults.
/// The file is TOML; its keys are named like the flags, without the dashes in front.
/// When workers may connect, one line goes to standard output:
/// `ready control=ADDR:PORT data_port=PORT engine=ENGINE`. Logs go to standard error.
///
/// With a command, the daemon runs it and goes when it goes, with its exit code:
/// `xdp-agg serve --engine userspace -- python train.py`. So a worker brings the aggregator of its
/// rack along, as an ordinary user, where no daemon is installed. SIGINT and SIGTERM are handed to
/// the command, and nothing of the daemon's goes to standard output.
///
/// SIGHUP, or `xdp-agg reload`, has it read --config, token and certificates again. Those,
/// --job-slots, --job-slots-max and --job-packet-rate then hold for new connections and jobs. If a
/// file is wrong, all stay as they were, and the log says why.
///
/// Once the engine is open, the daemon keeps CAP_BPF and CAP_NET_ADMIN of its capabilities with
/// XDP, and none in user space. So what it reads again must be readable without CAP_DAC_OVERRIDE.
/// Where the kernel has Landlock, it writes only below --pin and --state-dir from then on.
///
/// A service manager is told when it serves, and that it still does (NOTIFY_SOCKET,
/// WATCHDOG_USEC), and may hand over a socket for --control (LISTEN_FDS).
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Partial,
    /// Settings in TOML
    #[arg(long, env = "XDP_AGG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Run this command, and serve for as long as it runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
    runtime.block_on(serve(settings, (args, partial)))
}

/// How the engine without interfaces calls itself.
const USERSPACE: &str = "userspace";

async fn serve(settings: Settings, (args, partial): (Args, Partial)) -> Result<ExitCode> {
    // Signals first: one that comes while the engine opens must not leave it half open.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hangup = signal(SignalKind::hangup())?;
    let mut signalled = async move || {
        tokio::select! {
            _ = terminate.recv() => (process::Signal::TERM, "SIGTERM"),
            _ = interrupt.recv() => (process::Signal::INT, "SIGINT"),
        }
    };
    let command = args.command.clone();
    let listener = match Listener::handed_over(partial.control)? {
        Some(listener) => listener,
        None => Listener::bind(settings.control)?,
    };
    let settings = Settings { control: listener.addr(), ..settings };
    let engine = engine::open(&settings.engine)?;
    if engine.describe() != USERSPACE {
        for doubt in doctor::doubts(&settings.engine.interfaces).await {
            warn!("{doubt}");
        }
    }
    // A command of the user's may write where it wants to.
    let writable = command.is_empty().then(|| settings.writable());
    let confined = confine(engine.describe() != USERSPACE, writable.as_deref());
    info!(landlock = confined.files, "capabilities that are left: {confined}");
    for refusal in &confined.refused {
        warn!("the daemon keeps more rights than it needs: {refusal}");
    }
    if let Some(warning) = settings.openness() {
        warn!("{warning}");
    }
    let ((wishes, asked), (read, done)) = (mpsc::channel(1), mpsc::channel(1));
    tokio::spawn(read_at_each(hangup, asked, (args, partial), Supervisor::from_env(), read));
    let server = Server::new(listener, engine, &settings.server)
        .with_rereads(Rereads { wishes, done })
        .with_supervisor(Supervisor::from_env());
    let (control, data_port) = (server.control_addr(), server.data_port());
    let engine = server.engine();
    info!(%control, data_port, engine, "ready");
    if let [program, arguments @ ..] = &command[..] {
        let mut child = Child::run(program, arguments)?;
        let ended = async {
            loop {
                tokio::select! {
                    _ = &mut child.ended => return format!("{} has ended", program.display()),
                    (signal, name) = signalled() => {
                        info!("{name}: handed to {}", program.display());
                        child.signal(signal);
                    }
                }
            }
        };
        server.run(ended).await;
        return Ok(child.code());
    }
    let mut out = io::stdout();
    let line = writeln!(out, "ready control={control} data_port={data_port} engine={engine}");
    if let Err(error) = line.and_then(|()| out.flush()) {
        warn!("nobody reads standard output: {error}");
    }
    server.run(async move { signalled().await.1.to_owned() }).await;
    Ok(ExitCode::SUCCESS)
}

/// The command that the daemon serves for.
struct Child {
    pid: process::Pid,
    /// Its end; whoever waits for it reads its status.
    ended: oneshot::Receiver<()>,
    waiter: JoinHandle<io::Result<ExitStatus>>,
}

impl Child {
    fn run(program: &OsString, arguments: &[OsString]) -> Result<Self> {
        let spawned = Command::new(program).args(arguments).spawn();
        let mut child = spawned.with_context(|| format!("running {}", program.display()))?;
        let (pid, (over, ended)) = (process::Pid::from_child(&child), oneshot::channel());
        let waiter = thread::spawn(move || {
            let status = child.wait();
            // The daemon may have gone for another reason.
            let _ = over.send(());
            status
        });
        Ok(Self { pid, ended, waiter })
    }

    /// Hands a signal on. A command that has ended meanwhile gets none: it was waited for.
    fn signal(&self, signal: process::Signal) {
        if !self.waiter.is_finished()
            && let Err(error) = process::kill_process(self.pid, signal)
        {
            warn!("the command cannot be signalled: {error}");
        }
    }

    /// As a shell has it: 128 and the signal's number where one ended it.
    fn code(self) -> ExitCode {
        let status = self.waiter.join().ok().and_then(Result::ok);
        let code = status.and_then(|s| s.code().or_else(|| s.signal().map(|number| 128 + number)));
        ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
    }
}

/// Reads the settings again at each signal and at each wish of a connection. Where something is
/// wrong, all of them stay as they were.
async fn read_at_each(
    mut hangup: Signal,
    mut wishes: mpsc::Receiver<ConnId>,
    (args, before): (Args, Partial),
    supervisor: Supervisor,
    done: mpsc::Sender<Reread>,
) {
    let args = Arc::new(args);
    loop {
        let asked_by = tokio::select! {
            Some(()) = hangup.recv() => None,
            Some(conn) = wishes.recv() => Some(conn),
            else => return,
        };
        supervisor.reloading();
        let args = Arc::clone(&args);
        let slots = before.slots;
        let read = move || {
            let partial = args.read()?;
            // The pool stays as it is until a restart, and jobs' slots have to fit it.
            let running = Partial { slots, ..partial.clone() };
            Ok::<_, ConfigError>((partial, running.complete()?.server))
        };
        // A file may be anything, also one that makes its reader wait.
        let outcome = match tokio::task::spawn_blocking(read).await {
            Ok(Ok((now, config))) => Ok((config, before.needs_restart(&now))),
            Ok(Err(error)) => Err(sentence(&error.into())),
            Err(error) => Err(error.to_string()),
        };
        if done.send(Reread { outcome, asked_by }).await.is_err() {
            return;
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
