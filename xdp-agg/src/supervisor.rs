//! What the daemon tells the service manager that started it (`sd_notify(3)`), if one did.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// How many signs of life fit into the time after which the service manager gives up.
const SIGNS: u32 = 3;

/// The service manager. Where there is none, nothing is told to anybody.
#[derive(Debug, Default)]
pub struct Supervisor {
    is_there: bool,
    watchdog: Option<Duration>,
    status: String,
}

impl Supervisor {
    /// The one that started this process, by `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
    #[must_use]
    pub fn from_env() -> Self {
        Self {
            is_there: std::env::var_os("NOTIFY_SOCKET").is_some(),
            watchdog: sd_notify::watchdog_enabled(),
            status: String::new(),
        }
    }

    /// How often [`Self::alive`] is to be called. None: nobody waits for it.
    #[must_use]
    pub fn period(&self) -> Option<Duration> {
        self.is_there.then_some(self.watchdog).flatten().map(|limit| limit / SIGNS)
    }

    /// The daemon serves.
    pub fn ready(&self) {
        self.tell(&[NotifyState::Ready]);
    }

    /// Settings are being read again; [`Self::ready`] says when they were.
    pub fn reloading(&self) {
        // Since systemd 253 the time has to be told, too.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => warn!("the clock cannot be read: {error}"),
        }
    }

    /// The loop that serves has come round. To be called by nobody but that loop.
    pub fn alive(&self) {
        if self.watchdog.is_some() {
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    /// Shows this sentence beside the service's name.
    pub fn status(&mut self, status: String) {
        if status != self.status {
            self.tell(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }

    /// The daemon is about to end.
    pub fn stopping(&self) {
        self.tell(&[NotifyState::Stopping]);
    }

    fn tell(&self, words: &[NotifyState<'_>]) {
        if self.is_there
            && let Err(error) = sd_notify::notify(words)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!("the service manager was not told: {error}");
        }
    }
}
