//! Child processes that do not outlive the test, and whose words are kept.

use std::collections::VecDeque;
use std::io;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::error::Error;

/// Most lines of each stream that are kept; of a child that says more, the last ones.
const KEPT_LINES: usize = 100_000;
/// Lines of each stream that an error shows.
const SHOWN_LINES: usize = 20;
/// Longest time for a daemon to get ready.
pub(crate) const READY: Duration = Duration::from_secs(30);
/// How long a child that was asked to end has for it before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// What is called with each line that a child writes to a stream, as it comes.
pub type LineHook = Box<dyn FnMut(&str) + Send>;

/// Where a stream of a child goes.
#[derive(Default)]
pub enum Sink {
    /// Into memory.
    #[default]
    Capture,
    /// Into memory, and line by line to a function (on a thread of its own).
    Lines(LineHook),
    /// Where this process's own goes. Nothing is kept.
    Inherit,
}

impl Sink {
    fn stdio(&self) -> Stdio {
        match self {
            Self::Capture | Self::Lines(_) => Stdio::piped(),
            Self::Inherit => Stdio::inherit(),
        }
    }
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Capture => "Capture",
            Self::Lines(_) => "Lines",
            Self::Inherit => "Inherit",
        })
    }
}

/// A running child. Dropping it kills it and its process group, and reaps it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Arc<Stream>,
    stderr: Arc<Stream>,
    reaped: Option<ExitStatus>,
}

/// A child that has ended.
#[derive(Debug)]
pub struct Finished {
    /// What the child was called.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output, as far as that was captured.
    pub stdout: String,
    /// The same of its standard error.
    pub stderr: String,
}

impl Finished {
    /// The same, if the child was content.
    ///
    /// # Errors
    /// It was not: how it ended, and what it said last.
    pub fn success(self) -> Result<Self, Error> {
        if self.status.success() {
            return Ok(self);
        }
        let Self { name, status, stdout, stderr } = &self;
        let text = format!("{name} failed: {status}{}", said(&last(stdout), &last(stderr)));
        Err(Error::Process(text))
    }
}

impl Process {
    /// Starts a child whose streams are captured and whose standard input is empty. The command is
    /// one of [`crate::Namespace::command`], or any other that leads a process group of its own.
    ///
    /// The child is killed by the kernel when this process ends in whatever way, and only then,
    /// whichever thread called this.
    pub fn spawn(name: impl Into<String>, command: Command) -> Result<Self, Error> {
        Self::spawn_with(name, command, Sink::Capture, Sink::Capture)
    }

    /// The same with a choice of where its streams go.
    pub fn spawn_with(
        name: impl Into<String>,
        mut command: Command,
        stdout: Sink,
        stderr: Sink,
    ) -> Result<Self, Error> {
        let name = name.into();
        command.stdin(Stdio::null());
        command.stdout(stdout.stdio()).stderr(stderr.stdio());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = spawn_on_lasting_thread(command)
            .map_err(Error::os(format!("starting {name} ({program})")))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let stdout = Stream::read(&format!("{name} out"), out, stdout);
        let stderr = Stream::read(&format!("{name} err"), err, stderr);
        Ok(Self { name, child, stdout, stderr, reaped: None })
    }

    /// Starts a daemon, and waits until it says that it is ready.
    ///
    /// # Errors
    /// It cannot be started, or does not get ready: what it said.
    pub fn serve(name: impl Into<String>, command: Command) -> Result<Self, Error> {
        let daemon = Self::spawn(name, command)?;
        daemon.wait_line("its readiness", READY, |line| line.starts_with("ready "))?;
        Ok(daemon)
    }

    /// What this child is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that it has used until now, all threads together, its children not.
    ///
    /// # Errors
    /// It was reaped, or the operating system's.
    pub fn cpu_time(&self) -> Result<Duration, Error> {
        let stat = procfs::process::Process::new(self.pid() as i32).and_then(|this| this.stat());
        let stat = stat.map_err(io::Error::other);
        let stat = stat.map_err(Error::os(format!("reading /proc/{}/stat", self.pid())))?;
        // The kernel shows hundredths of seconds on every architecture that this runs on.
        Ok(Duration::from_millis((stat.utime + stat.stime) * 10))
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.reaped.is_none() {
            let what = format!("waiting for {}", self.name);
            self.reaped = self.child.try_wait().map_err(Error::os(what))?;
        }
        Ok(self.reaped)
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// It has not ended in time (then it is killed): what it said last.
    pub fn wait(mut self, limit: Duration) -> Result<Finished, Error> {
        match self.wait_status(limit)? {
            Some(status) => Ok(self.finished(status)),
            None => Err(Error::Process(format!(
                "{} (process {}) has not ended in {limit:?}; it was killed{}",
                self.name,
                self.pid(),
                self.last_words()
            ))),
        }
    }

    /// Asks it to end (SIGTERM), and kills it if it has not within five seconds.
    pub fn terminate(mut self) -> Result<Finished, Error> {
        self.signal(libc::SIGTERM)?;
        let status = match self.wait_status(GRACE)? {
            Some(status) => status,
            None => self.end()?,
        };
        Ok(self.finished(status))
    }

    /// Kills it (SIGKILL) and its process group.
    pub fn kill(mut self) -> Result<Finished, Error> {
        let status = self.end()?;
        Ok(self.finished(status))
    }

    /// Sends it a signal. Nothing happens if it has ended. After SIGSTOP all its threads have
    /// stopped: one on another processor goes on for a moment otherwise.
    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        // A child that is not reaped keeps its id, so this cannot meet another process.
        if self.try_wait()?.is_none() {
            let what = format!("sending signal {signal} to {}", self.name);
            let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL);
            let sent = signal.and_then(|signal| kill_process(Pid::from_child(&self.child), signal));
            sent.map_err(Error::os(what))?;
        }
        if signal == libc::SIGSTOP {
            self.wait_stopped()?;
        }
        Ok(())
    }

    /// Waits until none of its threads runs.
    fn wait_stopped(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while self.try_wait()?.is_none() && self.runs() {
            if start.elapsed() > GRACE {
                return Err(Error::Process(format!("{} does not stop in {GRACE:?}", self.name)));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether a thread of it neither is stopped nor has ended.
    fn runs(&self) -> bool {
        let tasks = procfs::process::Process::new(self.pid() as i32).and_then(|own| own.tasks());
        let Ok(mut tasks) = tasks else { return false };
        tasks.any(|task| {
            let state = task.and_then(|task| task.stat()).map(|stat| stat.state);
            state.is_ok_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
        })
    }

    /// Waits for a line on its standard output for which the condition holds, and returns it.
    /// Lines that came before the call count.
    ///
    /// # Errors
    /// The child ended, or the time passed, without such a line: what it said last.
    pub fn wait_line(
        &self,
        what: &str,
        limit: Duration,
        condition: impl Fn(&str) -> bool,
    ) -> Result<String, Error> {
        self.stdout.wait_line(limit, condition).map_err(|missed| self.missed(missed, what, limit))
    }

    /// The same on its standard error. The two streams are read apart: a line that was written
    /// there before one on the standard output may be seen after it.
    ///
    /// # Errors
    /// As [`Self::wait_line`].
    pub fn wait_error_line(
        &self,
        what: &str,
        limit: Duration,
        condition: impl Fn(&str) -> bool,
    ) -> Result<String, Error> {
        self.stderr.wait_line(limit, condition).map_err(|missed| self.missed(missed, what, limit))
    }

    fn missed(&self, missed: Missed, what: &str, limit: Duration) -> Error {
        let why = match missed {
            Missed::End => "has ended without saying".to_owned(),
            Missed::Time => format!("has not said in {limit:?}"),
        };
        Error::Process(format!("{} {why}: {what}{}", self.name, self.last_words()))
    }

    /// What it has written to its standard output until now.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to its standard error until now.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The end of what it has said, for an error; empty if it has said nothing.
    pub fn last_words(&self) -> String {
        said(&last(&self.stdout()), &last(&self.stderr()))
    }

    fn wait_status(&mut self, limit: Duration) -> Result<Option<ExitStatus>, Error> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn end(&mut self) -> Result<ExitStatus, Error> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        // Not reaped, so neither its id nor its group's can mean another process, even if it has
        // ended and children of its own go on. It leads a group unless the caller's command was of
        // another making.
        if kill_process_group(Pid::from_child(&self.child), Signal::KILL).is_err() {
            let what = format!("killing {}", self.name);
            self.child.kill().map_err(Error::os(what))?;
        }
        let status = self.child.wait().map_err(Error::os(format!("waiting for {}", self.name)))?;
        self.reaped = Some(status);
        Ok(status)
    }

    fn finished(&mut self, status: ExitStatus) -> Finished {
        // Its own children may hold the pipes open; do not wait for those for long.
        let limit = Duration::from_secs(1);
        self.stdout.wait_end(limit);
        self.stderr.wait_end(limit);
        Finished {
            name: self.name.clone(),
            status,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody to tell, and the kernel ends the child with this process in any case.
        let _ = self.end();
    }
}

fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n  ")
}

fn said(stdout: &str, stderr: &str) -> String {
    let part = |name: &str, text: &str| {
        if text.is_empty() { String::new() } else { format!("\n{name}:\n  {text}") }
    };
    part("its standard error ends", stderr) + &part("its standard output ends", stdout)
}

/// What was read of one stream of a child.
#[derive(Debug, Default)]
struct Stream {
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StreamState {
    lines: VecDeque<String>,
    /// Lines that were forgotten.
    dropped: usize,
    ended: bool,
}

enum Missed {
    End,
    Time,
}

impl Stream {
    fn read(name: &str, pipe: Option<impl Read + Send + 'static>, sink: Sink) -> Arc<Self> {
        let stream = Arc::new(Self::default());
        let Some(pipe) = pipe else {
            stream.lock().ended = true;
            return stream;
        };
        let mut hook = match sink {
            Sink::Lines(hook) => Some(hook),
            Sink::Capture | Sink::Inherit => None,
        };
        let writer = Arc::clone(&stream);
        let mut reader = BufReader::new(pipe);
        let work = move || {
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                if let Some(hook) = &mut hook {
                    hook(&text);
                }
                writer.push(text);
                line.clear();
            }
            writer.lock().ended = true;
            writer.changed.notify_all();
        };
        if thread::Builder::new().name(name.to_owned()).spawn(work).is_err() {
            stream.lock().ended = true;
        }
        stream
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: String) {
        let mut state = self.lock();
        if state.lines.len() == KEPT_LINES {
            state.lines.pop_front();
            state.dropped += 1;
        }
        state.lines.push_back(line);
        drop(state);
        self.changed.notify_all();
    }

    fn text(&self) -> String {
        let state = self.lock();
        let mut text = String::new();
        for line in &state.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    fn wait_line(
        &self,
        limit: Duration,
        condition: impl Fn(&str) -> bool,
    ) -> Result<String, Missed> {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        let mut looked_at = 0;
        loop {
            let first = looked_at.max(state.dropped) - state.dropped;
            if let Some(line) = state.lines.iter().skip(first).find(|line| condition(line)) {
                return Ok(line.clone());
            }
            looked_at = state.dropped + state.lines.len();
            if state.ended {
                return Err(Missed::End);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Missed::Time);
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wait_end(&self, limit: Duration) {
        let wait = self.changed.wait_timeout_while(self.lock(), limit, |state| !state.ended);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Spawns on a thread that lives as long as this process: "kill me when my parent dies" means the
/// parent's *thread*, and the threads of a test runner come and go.
fn spawn_on_lasting_thread(command: Command) -> std::io::Result<Child> {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders): (_, Receiver<Order>) = channel();
        let work = move || {
            for (mut command, reply) in orders {
                // The thread that ordered it waits for the answer, so this does not fail.
                let _ = reply.send(command.spawn());
            }
        };
        // If it cannot start, its end of the channel is gone, which the send below reports.
        let _ = thread::Builder::new().name("spawner".into()).spawn(work);
        Mutex::new(sender)
    });
    let gone = || std::io::Error::other("the thread that spawns children is gone");
    let (sender, reply) = channel();
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, sender))
        .map_err(|_| gone())?;
    reply.recv().map_err(|_| gone())?
}
