//! One system in one setting, as measured and as it should be.

use serde::{Deserialize, Serialize};
use xdp_agg_testbed::LinkReport;
use xdp_agg_workloads::Framing;
use xdp_agg_workloads::Workload;
use xdp_agg_workloads::model::{self, Servers, Setting, System};

use super::super::bound::aggregated_wire_bytes;
use super::cluster::{Mark, Size};
use xdp_agg_report::quantile;

/// Below this share of idle processor time the machine is the limit, not the links.
const IDLE_SHARE: f64 = 0.1;
/// From this share of its rate on, the busiest link is the limit: for certain, and where the
/// machine is not.
const LINK_SHARES: [f64; 2] = [0.9, 0.8];
/// A system that takes longer than this times what its own links allow is no baseline, but a bad
/// one: nothing that is compared with it counts.
pub(crate) const SLOWEST: f64 = 1.15;
/// Computation hides all communication that adds less than this share to it.
const HIDDEN_SHARE: f64 = 0.05;

/// What one process reports (`xdp-agg-bench --strategy --json`), as far as it is used here.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) algorithm: String,
    pub(crate) processors: f64,
    pub(crate) loads: Vec<LoadReport>,
    pub(crate) peak_memory_bytes: u64,
}

/// Of one workload.
#[derive(Debug, Deserialize)]
pub(crate) struct LoadReport {
    /// Bytes of each bucket.
    pub(crate) buckets: Vec<u64>,
    pub(crate) phases: Vec<Measured>,
    pub(crate) wrong: u64,
}

/// Of one phase.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) iters: u32,
    pub(crate) compute_s: f64,
    pub(crate) overlap: bool,
    pub(crate) times_s: Vec<f64>,
    pub(crate) wall_s: f64,
    pub(crate) busy_s: f64,
    pub(crate) steal_s: f64,
    pub(crate) process_cpu_s: f64,
}

/// One system at one setting.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Name of the system.
    pub(crate) system: System,
    /// What sums, in the system's own words.
    pub(crate) algorithm: String,
    /// Whose gradients.
    pub(crate) workload: String,
    /// Of its tensors' elements.
    pub(crate) fraction: f64,
    /// `K`: bytes of gradient of a process.
    pub(crate) bytes: u64,
    /// `s`.
    pub(crate) hosts: u16,
    /// `n`.
    pub(crate) processes: u16,
    /// `p`: a number of them on hosts of their own, or one on every host.
    pub(crate) servers: Servers,
    /// Rate of every link in each direction.
    pub(crate) rate: String,
    /// Computation of an iteration in seconds.
    pub(crate) compute_s: f64,
    /// Where that is the paper's: with which rate of its links it compares, in Gbit/s.
    pub(crate) paper_gbits: Option<u16>,
    /// Whether buckets are summed during the backward pass.
    pub(crate) overlap: bool,
    /// Timed iterations.
    pub(crate) iters: u32,
    /// Each iteration in seconds, averaged over the processes.
    pub(crate) times_s: Vec<f64>,
    /// Their median.
    pub(crate) time_s: f64,
    /// The part of it without computation.
    pub(crate) exposed_s: f64,
    /// Elements that were not the exact sum, of all processes, in all phases.
    pub(crate) wrong: u64,
    /// Bytes on the wire that left a host in an iteration, of the host that sent most.
    pub(crate) host_out_bytes: f64,
    /// The same that came to a host.
    pub(crate) host_in_bytes: f64,
    /// The most of a direction of a server's link; 0 without servers.
    pub(crate) server_bytes: f64,
    /// `K` and the headers of its blocks: what may leave a host that has reduced its processes'
    /// gradients to one.
    pub(crate) one_copy_bytes: f64,
    /// Equations (1) to (4) and their like: nothing at once.
    pub(crate) paper_s: Option<f64>,
    /// The busiest direction of any link at its rate. What finds its slot taken with ATP is not
    /// known beforehand: its bound has what its servers' links carried.
    pub(crate) bound_s: Option<f64>,
    /// Share of its rate that the busiest direction of any link carried during iterations; where
    /// communication comes after computation, during the former.
    pub(crate) link_share: Option<f64>,
    /// Share of the processors' time in which they were idle.
    pub(crate) idle_share: f64,
    /// Share that the hypervisor gave to others.
    pub(crate) steal_share: f64,
    /// Processor seconds of the whole machine an iteration.
    pub(crate) cpu_s: f64,
    /// Processor seconds of all processes of the job an iteration.
    pub(crate) process_cpu_s: f64,
    /// What was the limit: `link`, `machine`, `compute` or `neither`.
    pub(crate) limit: &'static str,
    /// Whether no direction of any link carried more than its rate; none where none is set. A row
    /// with `false` does not count as a result.
    pub(crate) caps_kept: Option<bool>,
    /// Computation over time: the speed-up over one process, over the number of processes. None
    /// without computation.
    pub(crate) efficiency: Option<f64>,
    /// The most memory that a process held.
    pub(crate) peak_memory_bytes: u64,
    /// Packets that the queues of all links dropped while the system ran, all phases together; none
    /// where links have no rate.
    pub(crate) drops: Option<u64>,
    /// With ATP, what its servers and its switch have counted, all phases together.
    pub(crate) counted: Vec<String>,
}

/// What was run, for rows.
pub(crate) struct Ran<'a> {
    pub(crate) system: System,
    pub(crate) workload: &'a Workload,
    pub(crate) size: Size,
    pub(crate) rate: super::super::setting::Rate,
    pub(crate) mtu: u32,
    /// Largest IP packet that goes into a slot.
    pub(crate) slot_mtu: u32,
    /// Bytes a second that one process copies.
    pub(crate) in_host: f64,
}

impl Ran<'_> {
    /// The setting of the models; none where links have no rate.
    pub(crate) fn setting(&self) -> Option<Setting> {
        let Size { hosts, processes, servers } = self.size;
        let link = self.rate.bits? as f64 / 8.0;
        Some(Setting { hosts, processes, servers, link, in_host: self.in_host })
    }

    /// Rows of all phases; `reports` in order of rank.
    pub(crate) fn rows(
        &self,
        reports: &[Report],
        marks: &[Mark],
        links: Option<&[LinkReport]>,
    ) -> Vec<Row> {
        let Some(first) = reports.first().and_then(|report| report.loads.first()) else {
            return Vec::new();
        };
        let wrong = reports.iter().flat_map(|report| &report.loads).map(|load| load.wrong).sum();
        let caps_kept = links.map(|links| links.iter().all(|link| link.kept));
        let drops = links.map(|links| links.iter().map(|link| link.drops).sum());
        (0..first.phases.len())
            .map(|phase| {
                let mut row = self.row(reports, phase);
                (row.wrong, row.caps_kept, row.drops) = (wrong, caps_kept, drops);
                row.carry(&carried_in(marks, phase), self);
                row.judge();
                row
            })
            .collect()
    }

    fn row(&self, reports: &[Report], phase: usize) -> Row {
        let (report, load) = (&reports[0], &reports[0].loads[0]);
        let measured = &load.phases[phase];
        let times_s = mean_times(reports, phase);
        let time_s = quantile(&times_s, 0.5);
        let iters = f64::from(measured.iters);
        let bytes: u64 = load.buckets.iter().sum();
        let one_copy =
            load.buckets.iter().map(|bytes| aggregated_wire_bytes(*bytes, self.slot_mtu));
        let setting = self.setting();
        let overhead = overhead(self.system, self.mtu, self.slot_mtu);
        let size = bytes as f64;
        let bound = |setting: &Setting| model::bound_seconds(self.system, setting, size, overhead);
        let processor_s = measured.wall_s * report.processors;
        let process_cpu: f64 =
            reports.iter().map(|report| report.loads[0].phases[phase].process_cpu_s).sum();
        let with_compute = measured.compute_s > 0.0;
        Row {
            system: self.system,
            algorithm: report.algorithm.clone(),
            workload: self.workload.network.name().to_owned(),
            fraction: self.workload.fraction,
            bytes,
            hosts: self.size.hosts,
            processes: self.size.processes,
            servers: self.size.servers,
            rate: self.rate.to_string(),
            compute_s: measured.compute_s,
            paper_gbits: None,
            overlap: measured.overlap,
            iters: measured.iters,
            time_s,
            times_s,
            exposed_s: time_s - measured.compute_s,
            wrong: 0,
            host_out_bytes: 0.0,
            host_in_bytes: 0.0,
            server_bytes: 0.0,
            one_copy_bytes: one_copy.sum(),
            paper_s: setting.map(|setting| model::paper_seconds(self.system, &setting, size)),
            bound_s: setting.as_ref().map(bound),
            link_share: None,
            // Ticks are counted a little early or late.
            idle_share: (1.0 - (measured.busy_s + measured.steal_s) / processor_s).max(0.0),
            steal_share: measured.steal_s / processor_s,
            cpu_s: measured.busy_s / iters,
            process_cpu_s: process_cpu / iters,
            limit: "",
            caps_kept: None,
            efficiency: with_compute.then(|| measured.compute_s / time_s),
            peak_memory_bytes: reports.iter().map(|r| r.peak_memory_bytes).max().unwrap_or(0),
            drops: None,
            counted: Vec::new(),
        }
    }
}

/// Bytes on the wire for one byte of gradient.
fn overhead(system: System, mtu: u32, slot_mtu: u32) -> f64 {
    let framing = if system.uses_slots() { Framing::xdp(slot_mtu) } else { Framing::tcp(mtu) };
    framing.wire(1.0)
}

/// Each iteration's time, averaged over the processes.
fn mean_times(reports: &[Report], phase: usize) -> Vec<f64> {
    let iters = reports[0].loads[0].phases[phase].times_s.len();
    let of = |iteration: usize| {
        let times = reports.iter().filter_map(|report| {
            report.loads.first()?.phases.get(phase)?.times_s.get(iteration).copied()
        });
        times.sum::<f64>() / reports.len() as f64
    };
    (0..iters).map(of).collect()
}

/// What each link carried in a phase: between its two marks.
fn carried_in(marks: &[Mark], phase: usize) -> Vec<[f64; 2]> {
    let (Some(begin), Some(end)) = (marks.get(2 * phase), marks.get(2 * phase + 1)) else {
        return Vec::new();
    };
    if !begin.begins || end.begins {
        return Vec::new();
    }
    let links = begin.carried.iter().zip(&end.carried);
    links
        .map(|(before, after)| {
            [0, 1].map(|direction| after[direction].saturating_sub(before[direction]) as f64)
        })
        .collect()
}

impl Row {
    /// Takes in what the links carried.
    fn carry(&mut self, links: &[[f64; 2]], ran: &Ran<'_>) {
        let iters = f64::from(self.iters);
        let (hosts, servers) = links.split_at(links.len().min(ran.size.hosts.into()));
        let most = |links: &[[f64; 2]], direction: usize| {
            links.iter().map(|link| link[direction]).fold(0.0, f64::max) / iters
        };
        self.host_out_bytes = most(hosts, 0);
        self.host_in_bytes = most(hosts, 1);
        self.server_bytes = most(servers, 0).max(most(servers, 1));
        let busiest = self.host_out_bytes.max(self.host_in_bytes).max(self.server_bytes);
        if let (System::Atp, Some(bits)) = (self.system, ran.rate.bits) {
            let on_hosts = ran.size.servers == Servers::Hosts;
            let served = if on_hosts { busiest } else { self.server_bytes };
            let served_s = served * 8.0 / bits as f64;
            self.bound_s = self.bound_s.map(|bound| bound.max(served_s));
        }
        let mean = self.times_s.iter().sum::<f64>() / iters;
        let spent = match self.kind() {
            Kind::After => mean - self.compute_s,
            Kind::Communication | Kind::Overlapped => mean,
        };
        self.link_share = ran.rate.bits.map(|bits| busiest * 8.0 / bits as f64 / spent);
    }

    /// Says what was the limit.
    fn judge(&mut self) {
        let link = |least: f64| self.link_share.is_some_and(|share| share >= least);
        let hidden = self.exposed_s < HIDDEN_SHARE * self.compute_s;
        self.limit = match self.kind() {
            Kind::Overlapped if hidden => "compute",
            _ if link(LINK_SHARES[0]) => "link",
            _ if self.idle_share < IDLE_SHARE => "machine",
            _ if link(LINK_SHARES[1]) => "link",
            _ => "neither",
        };
    }

    /// Its system, and where its servers are if not where the paper has them.
    pub(crate) fn label(&self) -> String {
        match self.servers {
            Servers::Hosts => format!("{}@hosts", self.system),
            Servers::Apart(_) => self.system.to_string(),
        }
    }

    /// Whether it has servers where the paper has them, or none.
    pub(crate) fn is_papers(&self) -> bool {
        self.servers != Servers::Hosts
    }

    /// How many times as long as its links allow it took; none where it computed, too.
    pub(crate) fn times_bound(&self) -> Option<f64> {
        let bound = self.bound_s.filter(|_| self.kind() == Kind::Communication)?;
        // A process alone sends nothing.
        (bound > 0.0).then(|| self.time_s / bound)
    }

    /// All processes.
    pub(crate) const fn world(&self) -> u16 {
        self.hosts * self.processes
    }

    /// Whether two rows differ in their system alone.
    pub(crate) fn compares_with(&self, other: &Self) -> bool {
        let key = |row: &Self| {
            (row.workload.clone(), row.hosts, row.processes, row.compute_s.to_bits(), row.overlap)
        };
        key(self) == key(other)
    }

    /// What this saves of another's time, in percent.
    pub(crate) fn saving_over(&self, other: &Self) -> f64 {
        100.0 * (1.0 - self.time_s / other.time_s)
    }

    /// The same by a model of the time of communication; none where that can be hidden.
    pub(crate) fn modelled_saving_over(
        &self,
        other: &Self,
        model: impl Fn(&Self) -> Option<f64>,
    ) -> Option<f64> {
        if self.kind() == Kind::Overlapped {
            return None;
        }
        let time = |row: &Self| Some(row.compute_s + model(row)?);
        Some(100.0 * (1.0 - time(self)? / time(other)?))
    }

    /// What kind of iterations these are.
    pub(crate) fn kind(&self) -> Kind {
        match (self.compute_s > 0.0, self.overlap) {
            (false, _) => Kind::Communication,
            (true, false) => Kind::After,
            (true, true) => Kind::Overlapped,
        }
    }
}

/// Kinds of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// No computation.
    Communication,
    /// Communication after all computation.
    After,
    /// Communication during the backward pass.
    Overlapped,
}

impl Kind {
    /// All.
    pub(crate) const ALL: [Self; 3] = [Self::Communication, Self::After, Self::Overlapped];

    /// For titles.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Communication => "communication only",
            Self::After => "computation, then communication",
            Self::Overlapped => "communication during the backward pass",
        }
    }

    /// For names of files.
    pub(crate) const fn short(self) -> &'static str {
        match self {
            Self::Communication => "communication",
            Self::After => "after",
            Self::Overlapped => "overlapped",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::super::setting::Rate;
    use super::*;
    use xdp_agg_workloads::Network;

    fn report(times_s: &[f64], busy_s: f64) -> Report {
        let measured = Measured {
            iters: times_s.len() as u32,
            compute_s: 0.5,
            overlap: false,
            times_s: times_s.to_vec(),
            wall_s: 2.0,
            busy_s,
            steal_s: 0.2,
            process_cpu_s: 0.1,
        };
        let load = LoadReport { buckets: vec![1408, 2816], phases: vec![measured], wrong: 0 };
        Report {
            algorithm: "a".into(),
            processors: 2.0,
            loads: vec![load],
            peak_memory_bytes: 1 << 20,
        }
    }

    pub(crate) fn rows_of(system: System, reports: &[Report]) -> Vec<Row> {
        let workload = Workload::new(Network::Vgg19, 0.001);
        let ran = Ran {
            system,
            workload: &workload,
            size: Size { hosts: 2, processes: 1, servers: Servers::Apart(1) },
            rate: Rate { bits: Some(8_000_000) },
            mtu: 1500,
            slot_mtu: 1500,
            in_host: 1e9,
        };
        let mark = |begins, carried: [[u64; 2]; 3]| Mark { begins, carried: carried.to_vec() };
        let marks = [
            mark(true, [[100, 100], [100, 100], [0, 0]]),
            mark(false, [[900_100, 100], [500_100, 700_100], [0, 800_000]]),
        ];
        ran.rows(reports, &marks, None)
    }

    pub(crate) fn example(system: System) -> Row {
        rows_of(system, &[report(&[1.0, 0.8], 1.0), report(&[1.2, 0.6], 1.0)]).remove(0)
    }

    #[test]
    fn a_row_holds_what_processes_and_links_say() {
        let row = example(System::Passing);
        assert_eq!(row.bytes, 4224);
        assert_eq!(row.one_copy_bytes, 3.0 * 1472.0);
        assert_eq!(row.times_s, [1.1, 0.7]);
        assert!((row.time_s - 0.9).abs() < 1e-12 && (row.exposed_s - 0.4).abs() < 1e-12);
        assert_eq!((row.host_out_bytes, row.host_in_bytes), (450_000.0, 350_000.0));
        assert_eq!(row.server_bytes, 400_000.0);
        // 450 kB over 1 MB/s in the 0.4 s without computation.
        assert!((row.link_share.expect("a rate") - 1.125).abs() < 1e-12);
        assert!((row.idle_share - 0.7).abs() < 1e-12 && (row.steal_share - 0.05).abs() < 1e-12);
        assert_eq!((row.limit, row.kind()), ("link", Kind::After));
        assert!((row.efficiency.expect("it computes") - 0.5 / 0.9).abs() < 1e-12);
        // 4224 bytes: one way in 4.2 ms and headers; two ways, one after the other, in 8.4 ms.
        assert!((row.bound_s.expect("a rate") - 4224e-6 * 1472.0 / 1408.0).abs() < 1e-6);
        assert!((row.paper_s.expect("a rate") - 2.0 * 4224e-6).abs() < 1e-6);
    }

    #[test]
    fn a_full_link_is_the_limit_before_a_busy_machine() {
        let limit = |kind: Kind, link: f64, idle: f64| {
            let mut row = example(System::Ps);
            row.overlap = kind == Kind::Overlapped;
            if kind == Kind::Communication {
                row.compute_s = 0.0;
            }
            (row.link_share, row.idle_share) = (Some(link), idle);
            row.judge();
            row.limit
        };
        assert_eq!(limit(Kind::Communication, 0.95, 0.05), "link");
        assert_eq!(limit(Kind::Communication, 0.85, 0.05), "machine");
        assert_eq!(limit(Kind::Communication, 0.85, 0.5), "link");
        assert_eq!(limit(Kind::Communication, 0.5, 0.5), "neither");
        let mut hidden = example(System::Ps);
        (hidden.overlap, hidden.exposed_s) = (true, 0.01);
        hidden.judge();
        assert_eq!(hidden.limit, "compute");
    }

    #[test]
    fn the_bound_of_atp_has_its_servers_load() {
        let bound = |system| example(system).bound_s.expect("a rate");
        // 400 kB an iteration over 1 MB/s, where the gradient takes 4 ms.
        assert!((bound(System::Atp) - 0.4).abs() < 1e-9);
        assert!(bound(System::Switchml) < 0.01);
    }

    #[test]
    fn only_communication_is_compared_with_its_bound() {
        let mut row = example(System::Ps);
        assert_eq!(row.times_bound(), None);
        (row.compute_s, row.bound_s, row.time_s) = (0.0, Some(0.5), 0.6);
        assert!((row.times_bound().expect("it has one") - 1.2).abs() < 1e-9);
    }

    #[test]
    fn savings_are_of_the_others_time() {
        let mut slow = example(System::Ps);
        slow.time_s = 1.8;
        let fast = example(System::Passing);
        assert!(fast.compares_with(&slow) && (fast.saving_over(&slow) - 50.0).abs() < 1e-9);
        slow.overlap = true;
        assert!(!fast.compares_with(&slow));
    }
}
