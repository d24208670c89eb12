//! The log of this process, to be looked into.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes).into_owned();
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

/// From here on warnings are kept.
pub fn keep() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(Lines)
            .init();
    });
}

/// The warnings so far that have all of these words.
pub fn with(words: &[&str]) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).cloned().collect()
}

/// Waits for such a warning.
pub fn wait(words: &[&str], limit: Duration) -> String {
    let start = Instant::now();
    loop {
        if let Some(line) = with(words).pop() {
            return line;
        }
        assert!(start.elapsed() < limit, "no warning with {words:?} in {:?}", with(&[]));
        std::thread::sleep(Duration::from_millis(20));
    }
}
