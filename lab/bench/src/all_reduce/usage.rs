//! What a run costs: processor time of the machine and of this process, and memory, from `/proc`.

use anyhow::{Context, Result};
use procfs::process::Process;
use procfs::{CurrentSI, KernelStats};

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
        let total = KernelStats::current().context("reading /proc/stat")?.total;
        let interrupts = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        let busy = total.user + total.nice + total.system + interrupts;
        let steal = total.steal.unwrap_or(0);
        Ok(Self { busy_s: busy as f64 / TICKS_PER_S, steal_s: steal as f64 / TICKS_PER_S })
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { busy_s: self.busy_s - before.busy_s, steal_s: self.steal_s - before.steal_s }
    }
}

/// Seconds that this process has worked, all threads together.
pub(crate) fn process_cpu_s() -> Result<f64> {
    let stat = Process::myself()?.stat()?;
    Ok((stat.utime + stat.stime) as f64 / TICKS_PER_S)
}

/// The most memory that this process has held, in bytes.
pub(crate) fn peak_memory() -> Result<u64> {
    let kib = Process::myself()?.status()?.vmhwm;
    Ok(kib.context("/proc/self/status does not hold VmHWM")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_all_of_it() {
        assert!(MachineTime::now().expect("Linux").busy_s > 0.0);
        assert!(process_cpu_s().expect("Linux") >= 0.0);
        assert!(peak_memory().expect("Linux") > 100_000);
    }
}
