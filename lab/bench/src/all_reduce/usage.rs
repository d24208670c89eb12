//! What a run costs: processor time of the machine and of this process, and memory, from `/proc`.

use std::fs;

use anyhow::{Context, Result};

/// Ticks a second of the times in `/proc`: USER_HZ, which is 100 on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// Processor time of the whole machine since it started, all processors together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MachineTime {
    /// Seconds that it worked, in user space, kernel and interrupts.
    pub(crate) busy_s: f64,
    /// Seconds that the hypervisor gave to others.
    pub(crate) steal_s: f64,
}

impl MachineTime {
    pub(crate) fn now() -> Result<Self> {
        let stat = read("/proc/stat")?;
        parse_machine(&stat).context("/proc/stat does not begin with the times of all processors")
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { busy_s: self.busy_s - before.busy_s, steal_s: self.steal_s - before.steal_s }
    }
}

/// Seconds that this process has worked, all threads together.
pub(crate) fn process_cpu_s() -> Result<f64> {
    parse_process(&read("/proc/self/stat")?).context("/proc/self/stat does not hold our times")
}

/// The most memory that this process has held, in bytes.
pub(crate) fn peak_memory() -> Result<u64> {
    parse_peak(&read("/proc/self/status")?).context("/proc/self/status does not hold VmHWM")
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

fn parse_machine(stat: &str) -> Option<MachineTime> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = times.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    Some(MachineTime {
        busy_s: (user + nice + system + irq + softirq) / TICKS_PER_S,
        steal_s: steal / TICKS_PER_S,
    })
}

fn parse_process(stat: &str) -> Option<f64> {
    // The second field is the program's name and may hold anything, but no later field holds `)`.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_S)
}

fn parse_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_as_proc_5_says() {
        let stat = "cpu  100 20 30 4000 50 6 7 80 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let time = parse_machine(stat).expect("it is a stat");
        assert_eq!(time, MachineTime { busy_s: 1.63, steal_s: 0.8 });
        let process = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20";
        assert_eq!(parse_process(process), Some(2.0));
        assert_eq!(parse_peak("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_machine("intr 1"), None);
    }

    #[test]
    fn this_machine_has_the_same_files() {
        assert!(MachineTime::now().expect("Linux").busy_s > 0.0);
        assert!(process_cpu_s().expect("Linux") >= 0.0);
        assert!(peak_memory().expect("Linux") > 100_000);
    }
}
