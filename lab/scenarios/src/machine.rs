//! What a figure needs to be understood: the machine, the program, the command and the date.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use procfs::{CpuInfo, Current, CurrentSI, KernelStats, Meminfo};
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
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kernel = kernel.trim().to_owned();
        let cpu = CpuInfo::current().ok();
        Self {
            cpu: cpu.and_then(|cpu| cpu.model_name(0).map(Into::into)).unwrap_or_else(unknown),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: if kernel.is_empty() { unknown() } else { kernel },
            memory_bytes: Meminfo::current().map_or(0, |memory| memory.mem_total),
            version: version(),
            command: command(env::args()),
            date: Timestamp::now().strftime("%F %T UTC").to_string(),
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
    Meminfo::current().ok().and_then(|memory| memory.mem_available).unwrap_or(0)
}

/// Seconds that the hypervisor has given to others since the machine started, over all processors;
/// 0 where the kernel does not say.
pub(crate) fn steal_s() -> f64 {
    let stolen = KernelStats::current().ok().and_then(|stat| stat.total.steal_duration());
    stolen.map_or(0.0, |time| time.as_secs_f64())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_and_names_no_directory() {
        let words = ["/some/where/xdp-agg-lab", "bench", "--json", "it's here"];
        let text = command(words.iter().map(ToString::to_string));
        assert_eq!(text, r"xdp-agg-lab bench --json 'it'\''s here'");
    }
}
