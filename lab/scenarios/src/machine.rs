//! What a figure needs to be understood: the machine, the program, the command and the date.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use xdp_agg_report::Report;

/// Where and how something was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Facts {
    /// The processor's own name.
    pub(crate) cpu: String,
    /// Processors that this process may use.
    pub(crate) processors: usize,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Version of xdp-agg, and the commit where the sources are under git.
    pub(crate) version: String,
    /// The command, without the directory of the program.
    pub(crate) command: String,
    /// Date and time of the beginning, UTC.
    pub(crate) date: String,
}

impl Facts {
    /// What can be found out here and now; what cannot is `unknown`.
    pub(crate) fn gather() -> Self {
        let unknown = || "unknown".to_owned();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: if kernel.is_empty() { unknown() } else { kernel },
            memory_bytes: kib(&read("/proc/meminfo"), "MemTotal"),
            version: version(),
            command: command(env::args()),
            date: utc(seconds),
        }
    }

    /// A report that begins with where and how it was measured.
    pub(crate) fn report(&self, title: impl Into<String>) -> Report {
        Report::new(title, &self.command, self.pairs())
    }

    /// As pairs of a name and a value, for a table.
    fn pairs(&self) -> Vec<[String; 2]> {
        let memory = format!("{:.1} GiB", self.memory_bytes as f64 / f64::from(1 << 30));
        [
            ("date", self.date.clone()),
            ("xdp-agg", self.version.clone()),
            ("processor", self.cpu.clone()),
            ("processors", self.processors.to_string()),
            ("memory", memory),
            ("kernel", self.kernel.clone()),
        ]
        .map(|(name, value)| [name.to_owned(), value])
        .to_vec()
    }
}

/// Memory that can be used without swapping, in bytes; 0 where the kernel does not say.
pub(crate) fn available_memory() -> u64 {
    kib(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable")
}

/// Seconds that the hypervisor has given to others since the machine started, over all processors;
/// 0 where the kernel does not say.
pub(crate) fn steal_s() -> f64 {
    stolen(&fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or(0.0)
}

fn stolen(stat: &str) -> Option<f64> {
    let ticks: f64 = stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    // The kernel shows hundredths of seconds on every architecture that this runs on.
    Some(ticks / 100.0)
}

/// The first value of a `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

fn kib(text: &str, name: &str) -> u64 {
    let value = field(text, name).unwrap_or_default();
    value.trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

fn version() -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let commit = git.ok().filter(|output| output.status.success());
    let commit = commit.and_then(|output| String::from_utf8(output.stdout).ok());
    let version = env!("CARGO_PKG_VERSION");
    match commit {
        Some(commit) => format!("{version}, commit {}", commit.trim()),
        None => version.to_owned(),
    }
}

/// A command line that can be pasted: the program's name without its directory.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let quoted = arguments.enumerate().map(|(i, argument)| {
        let name = Path::new(&argument).file_name().filter(|_| i == 0);
        let argument = name.map_or(argument.clone(), |name| name.to_string_lossy().into_owned());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// `2026-01-31 12:00:00 UTC` of seconds since 1970 (the civil calendar after Howard Hinnant).
fn utc(seconds: u64) -> String {
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_command_can_be_pasted_and_names_no_directory() {
        let words = ["/some/where/xdp-agg-lab", "bench", "--json", "it's here"];
        let text = command(words.iter().map(ToString::to_string));
        assert_eq!(text, r"xdp-agg-lab bench --json 'it'\''s here'");
    }

    #[test]
    fn proc_is_read_as_proc_5_says() {
        assert_eq!(field("a\t: 1\nmodel name\t: X 9 @ 2\n", "model name"), Some("X 9 @ 2".into()));
        assert_eq!(kib("MemTotal:       2048 kB\n", "MemTotal"), 2 << 20);
        assert_eq!(stolen("cpu  1 2 3 4 5 6 7 250 0 0\n"), Some(2.5));
        assert_eq!(stolen(""), None);
    }
}
