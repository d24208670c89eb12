//! `xdp-agg top`: jobs, ranks and ports of a daemon, live.
//!
//! It asks the daemon's HTTP server, not its control port. An observer there knows which ranks are
//! late: it has looked before, and looks once for all that ask. No token is needed either.

mod draw;
mod fetch;
mod model;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use fetch::NoHttp;
use fetch::Source;
use model::{Model, Sort};

/// How long keys and signals may wait to be looked at.
const TICK: Duration = Duration::from_millis(100);

/// Show jobs, ranks and ports live: who is late, and by how much
///
/// It asks the HTTP server of the daemon (`xdp-agg serve --http`). Where that is on another host's
/// loopback address: `ssh -t HOST xdp-agg top`.
///
/// Keys: up and down choose a job, Enter shows its ranks, Esc goes back. `s` sorts by the next
/// column, `r` turns the order round, `p` pauses, `q` ends.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    /// Where the daemon serves HTTP, host and port
    #[arg(long, env = "XDP_AGG_HTTP", value_name = "ADDR:PORT", default_value = "127.0.0.1:9871")]
    http: String,
    /// Print one look as plain text, as is also done where standard output is no terminal
    #[arg(long)]
    once: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    interval: f64,
    /// Column by which jobs are sorted at first
    #[arg(long, value_name = "COLUMN", default_value = "lag")]
    sort: Sort,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.2..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("0.2 to 3600 seconds are expected".into()),
    }
}

/// Runs the sub-command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let source = Source::new(&args.http);
    let mut model = Model::new(args.sort);
    model.take(runtime.block_on(source.state())?);
    if args.once || !io::stdout().is_terminal() {
        write!(io::stdout(), "{}", model.text())?;
        return Ok(ExitCode::SUCCESS);
    }
    let ended = Arc::new(AtomicBool::new(false));
    {
        let _inside = runtime.enter();
        for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
            let (mut signal, ended) = (signal(kind)?, Arc::clone(&ended));
            runtime.spawn(async move {
                signal.recv().await;
                ended.store(true, Ordering::Relaxed);
            });
        }
    }
    // A panic gives the terminal back too.
    let terminal = ratatui::try_init().context("taking over the terminal")?;
    let interval = Duration::from_secs_f64(args.interval);
    let shown = show(terminal, &mut model, (&runtime, &source), interval, &ended);
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

/// Shows and asks until a key or a signal ends it.
fn show(
    mut terminal: ratatui::DefaultTerminal,
    model: &mut Model,
    (runtime, source): (&Runtime, &Source),
    interval: Duration,
    ended: &AtomicBool,
) -> Result<()> {
    let mut due = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, model))?;
        // Signals are heard in here.
        runtime.block_on(tokio::task::yield_now());
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        if event::poll(TICK)?
            && let Event::Key(key) = event::read()?
            && press(model, key)
        {
            return Ok(());
        }
        if Instant::now() >= due && !model.paused {
            due = Instant::now() + interval;
            match runtime.block_on(source.look(model.events_seen())) {
                Ok((state, events)) => {
                    model.take(state);
                    model.hear(events);
                }
                Err(error) => model.fail(format!("{error:#}")),
            }
        }
    }
}

/// What a key does. True: it ends the program.
fn press(model: &mut Model, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') => return true,
        KeyCode::Char('s') => model.sort_by_next(),
        KeyCode::Char('r') => model.turn_round(),
        KeyCode::Char('p') => model.paused = !model.paused,
        KeyCode::Down | KeyCode::Char('j') => model.choose(1),
        KeyCode::Up | KeyCode::Char('k') => model.choose(-1),
        KeyCode::Enter | KeyCode::Right => model.enter(),
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => model.back(),
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests;
