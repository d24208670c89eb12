//! The metrics: what each look shows, by Prometheus' conventions for names and units.
//!
//! Jobs have the labels `job_name` and `job_id` (`job` is Prometheus' own label). Packets that
//! belong to no job have an empty name and no index.

use std::collections::BTreeMap;
use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xdp_agg_common::maps::{JobCounters, Reject};

use super::api::{Job, RankState};
use super::events::Journal;
use super::pages::Look;
use super::text::{Kind, Text};

/// A job's labels.
struct Labels {
    name: String,
    id: String,
}

impl Labels {
    fn with<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = [("job_name", self.name.as_str()), ("job_id", self.id.as_str())];
        own.into_iter().chain(more.iter().copied()).collect()
    }
}

/// All metrics.
pub(super) fn render(look: &Look, journal: &Journal, open: bool) -> String {
    let mut text = Text::new(open);
    daemon(&mut text, look);
    control(&mut text, look);
    packets(&mut text, look);
    let jobs: Vec<_> = look.state.jobs.iter().map(|job| (labels(&job.name, job.id), job)).collect();
    job_gauges(&mut text, &jobs);
    ranks(&mut text, &jobs);
    trees(&mut text, &jobs);
    ports(&mut text, look);
    text.family("xdp_agg_events", Kind::Counter, "Events, by kind.");
    for (kind, count) in journal.counts() {
        text.sample(&[("kind", kind)], count);
    }
    process(&mut text);
    text.finish()
}

fn labels(name: &str, id: u16) -> Labels {
    Labels { name: name.into(), id: id.to_string() }
}

fn daemon(text: &mut Text, look: &Look) {
    let (stats, daemon) = (&look.stats, &look.state.daemon);
    text.family("xdp_agg_build_info", Kind::Gauge, "Version of the daemon.");
    text.sample(&[("version", &daemon.version)], 1);
    text.family("xdp_agg_engine_info", Kind::Gauge, "The engine that sums.");
    text.sample(&[("engine", &stats.engine)], 1);
    let fallback = u8::from(look.fallback.is_some());
    let help = "1: the user-space engine was taken because XDP could not be.";
    text.one("xdp_agg_engine_fallback", Kind::Gauge, help, fallback);
    let help = "Time since the daemon started.";
    text.one("xdp_agg_uptime_seconds", Kind::Gauge, help, stats.uptime_s);
    let help = "1: workers can be served, as /readyz says.";
    text.one("xdp_agg_ready", Kind::Gauge, help, u8::from(daemon.ready));
    text.one("xdp_agg_slots", Kind::Gauge, "Slots of the whole pool.", stats.slots);
    let help = "Slots of the pool that belong to no job.";
    text.one("xdp_agg_slots_free", Kind::Gauge, help, stats.slots_free);
    text.family("xdp_agg_jobs", Kind::Gauge, "Jobs, by phase.");
    let mut phases: BTreeMap<&str, u32> = PHASES.into_iter().map(|phase| (phase, 0)).collect();
    for job in &stats.jobs {
        *phases.entry(&job.info.phase).or_default() += 1;
    }
    for (phase, count) in phases {
        text.sample(&[("phase", phase)], count);
    }
    let help = "Time that the latest look at the data path took.";
    text.one("xdp_agg_look_duration_seconds", Kind::Gauge, help, seconds(look.cost));
}

/// The phases of jobs.
const PHASES: [&str; 7] =
    ["forming", "connecting", "resuming", "probing", "running", "pausing", "reforming"];

fn control(text: &mut Text, look: &Look) {
    let (daemon, counters) = (&look.state.daemon, &look.stats.control);
    text.family("xdp_agg_control_connections", Kind::Gauge, "Open control connections, by kind.");
    text.sample(&[("kind", "member")], daemon.members);
    text.sample(&[("kind", "other")], daemon.connections.saturating_sub(daemon.members));
    let help = "Control connections that were taken in.";
    text.one("xdp_agg_control_connections_accepted", Kind::Counter, help, counters.accepted);
    let help = "Control connections that were refused or ended, by reason.";
    text.family("xdp_agg_control_connections_refused", Kind::Counter, help);
    for (reason, count) in counters.refusals() {
        text.sample(&[("reason", reason)], count);
    }
}

/// What the data path counts.
fn packets(text: &mut Text, look: &Look) {
    let none = Labels { name: String::new(), id: String::new() };
    let jobs = look.stats.jobs.iter();
    let jobs = jobs.map(|job| (labels(&job.info.job, job.info.job_id), job.counters));
    let all: Vec<_> = jobs.chain([(none, *look.stats.unattributed)]).collect();
    type Read = fn(&JobCounters) -> u64;
    let families: [(&'static str, &str, Read); 14] = [
        ("xdp_agg_contributions", "Contributions that were added.", |c| c.contributions),
        ("xdp_agg_blocks_completed", "Blocks whose sum was completed.", |c| c.blocks),
        ("xdp_agg_duplicates", "Contributions that came again.", |c| c.duplicates),
        ("xdp_agg_results_resent", "Results that were sent again to one worker.", |c| c.resends),
        ("xdp_agg_pending_answers", "Answers that others are awaited.", |c| c.pendings),
        ("xdp_agg_stale_packets", "Contributions older than their slot's block.", |c| c.stale),
        ("xdp_agg_probes", "Probes of paths that were answered.", |c| c.probes),
        ("xdp_agg_member_moves", "Packets of members that came by another way.", |c| c.moves),
        ("xdp_agg_result_packets", "Packets with a result that were sent.", |c| c.copies),
        ("xdp_agg_forwards", "Sums that were sent up to a parent.", |c| c.forwards),
        ("xdp_agg_forwards_repeated", "Sums sent up again.", |c| c.forwards_again),
        ("xdp_agg_deliveries", "Results of the parent that were handed down.", |c| c.deliveries),
        ("xdp_agg_late_results", "Results of the parent not needed any more.", |c| c.late),
        ("xdp_agg_relays", "Other answers of the parent that were handed on.", |c| c.relays),
    ];
    for (name, help, read) in families {
        text.family(name, Kind::Counter, help);
        for (labels, counters) in &all {
            text.sample(&labels.with(&[]), read(counters));
        }
    }
    let help = "Time from a block's first contribution to its last, of one block in sixteen.";
    text.family("xdp_agg_block_completion_seconds", Kind::Histogram, help);
    // A packet of no job completes nothing.
    for (labels, counters) in all.iter().filter(|(labels, _)| !labels.id.is_empty()) {
        text.durations(&labels.with(&[]), &counters.times);
    }
    text.family("xdp_agg_packets_rejected", Kind::Counter, "Packets that were refused, by reason.");
    for (labels, counters) in &all {
        for (reason, count) in Reject::ALL.into_iter().zip(counters.rejects) {
            text.sample(&labels.with(&[("reason", reason.name())]), count);
        }
    }
}

fn job_gauges(text: &mut Text, jobs: &[(Labels, &Job)]) {
    text.family("xdp_agg_job_info", Kind::Gauge, "Phase of a job, and how its results go out.");
    for (labels, job) in jobs {
        let mode = job.mode.as_deref().unwrap_or("");
        text.sample(&labels.with(&[("phase", &job.phase), ("mode", mode)]), 1);
    }
    type Read = fn(&Job) -> u64;
    let families: [(&'static str, &str, Read); 6] = [
        ("xdp_agg_job_workers", "World size.", |job| job.workers.into()),
        ("xdp_agg_job_slots", "Slots of the job's pool.", |job| job.slots.into()),
        ("xdp_agg_job_slots_in_use", "Begun blocks that are not done.", |j| j.slots_in_use.into()),
        ("xdp_agg_job_block_bytes", "Payload of a block.", |job| job.block_bytes.into()),
        ("xdp_agg_job_epoch", "Number of the job's membership.", |job| job.epoch.into()),
        ("xdp_agg_job_stalled", "1: a rank is late and nothing completes.", |j| j.stalled.into()),
    ];
    for (name, help, read) in families {
        text.family(name, Kind::Gauge, help);
        for (labels, job) in jobs {
            text.sample(&labels.with(&[]), read(job));
        }
    }
    let help = "Epochs that began because a member was lost.";
    text.family("xdp_agg_job_reforms", Kind::Counter, help);
    for (labels, job) in jobs {
        text.sample(&labels.with(&[]), job.reforms);
    }
}

fn ranks(text: &mut Text, jobs: &[(Labels, &Job)]) {
    text.family("xdp_agg_ranks", Kind::Gauge, "Ranks of a job, by state.");
    for (labels, job) in jobs {
        for state in RankState::ALL {
            let count = job.ranks.iter().filter(|rank| rank.state == state).count();
            text.sample(&labels.with(&[("state", state.name())]), count);
        }
    }
    let each = |text: &mut Text, read: &dyn Fn(&super::api::Rank) -> Option<f64>| {
        for (labels, job) in jobs {
            for rank in &job.ranks {
                if let Some(value) = read(rank) {
                    text.sample(&labels.with(&[("rank", &rank.rank.to_string())]), value);
                }
            }
        }
    };
    let help = "1: others have waited for this rank for 0.5 s or more.";
    text.family("xdp_agg_rank_late", Kind::Gauge, help);
    each(text, &|rank| Some(if rank.state == RankState::Late { 1.0 } else { 0.0 }));
    let help = "How long others have been waiting for this rank's next contribution.";
    text.family("xdp_agg_rank_lag_seconds", Kind::Gauge, help);
    each(text, &|rank| rank.lag_seconds);
    text.family("xdp_agg_rank_lag_blocks", Kind::Gauge, "Blocks behind the foremost rank.");
    each(text, &|rank| rank.lag_blocks.map(|blocks| blocks as f64));
    let help = "The block of the epoch that the rank has to contribute next.";
    text.family("xdp_agg_rank_next_block", Kind::Gauge, help);
    each(text, &|rank| rank.blocks_contributed.map(|blocks| blocks as f64));
    let help = "Contributions of the rank that came again.";
    text.family("xdp_agg_rank_repetitions", Kind::Counter, help);
    each(text, &|rank| rank.repetitions.map(|count| count as f64));
    let help = "Time since the rank's process answered a heartbeat.";
    text.family("xdp_agg_rank_heartbeat_age_seconds", Kind::Gauge, help);
    each(text, &|rank| rank.heartbeat_seconds);
    let help = "Time since the rank's last contribution.";
    text.family("xdp_agg_rank_contribution_age_seconds", Kind::Gauge, help);
    each(text, &|rank| rank.contributed_seconds);
}

fn trees(text: &mut Text, jobs: &[(Labels, &Job)]) {
    let branches =
        || jobs.iter().flat_map(|(labels, job)| job.branches.iter().map(move |b| (labels, b)));
    let help = "1: the way up of this aggregator of the job's tree is open.";
    text.family("xdp_agg_branch_linked", Kind::Gauge, help);
    for (labels, branch) in branches() {
        let daemon = branch.daemon.to_string();
        text.sample(&labels.with(&[("branch", &daemon)]), u8::from(branch.linked));
    }
    text.family("xdp_agg_branch_ranks", Kind::Gauge, "Ranks that send to this aggregator.");
    for (labels, branch) in branches() {
        let daemon = branch.daemon.to_string();
        text.sample(&labels.with(&[("branch", &daemon)]), branch.ranks.len());
    }
    let help = "How long others have been waiting for this aggregator's next sum.";
    text.family("xdp_agg_branch_lag_seconds", Kind::Gauge, help);
    for (labels, branch) in branches() {
        if let Some(lag) = branch.lag_seconds {
            text.sample(&labels.with(&[("branch", &branch.daemon.to_string())]), lag);
        }
    }
    let parents = || jobs.iter().filter_map(|(labels, job)| Some((labels, job.parent.as_ref()?)));
    let help = "1: the way to the job's parent is open.";
    text.family("xdp_agg_parent_linked", Kind::Gauge, help);
    for (labels, parent) in parents() {
        let address = parent.address.to_string();
        text.sample(&labels.with(&[("parent", &address)]), u8::from(parent.linked));
    }
    let help = "How long a result of the job's parent has been waited for.";
    text.family("xdp_agg_parent_lag_seconds", Kind::Gauge, help);
    for (labels, parent) in parents() {
        if let Some(lag) = parent.lag_seconds {
            text.sample(&labels.with(&[("parent", &parent.address.to_string())]), lag);
        }
    }
}

fn ports(text: &mut Text, look: &Look) {
    let ports = &look.state.ports;
    text.family("xdp_agg_port_up", Kind::Gauge, "1: the interface is up, and has a carrier.");
    for port in ports {
        text.sample(&[("port", &port.name)], u8::from(port.up));
    }
    type Read = fn(&super::api::Port) -> u64;
    let families: [(&'static str, &str, Read); 6] = [
        ("xdp_agg_port_receive_packets", "Packets that came in.", |port| port.rx_packets),
        ("xdp_agg_port_receive_bytes", "Bytes that came in.", |port| port.rx_bytes),
        ("xdp_agg_port_receive_drops", "Packets lost on the way in.", |port| port.rx_dropped),
        ("xdp_agg_port_transmit_packets", "Packets that went out.", |port| port.tx_packets),
        ("xdp_agg_port_transmit_bytes", "Bytes that went out.", |port| port.tx_bytes),
        ("xdp_agg_port_transmit_drops", "Packets lost on the way out.", |port| port.tx_dropped),
    ];
    for (name, help, read) in families {
        text.family(name, Kind::Counter, help);
        for port in ports {
            text.sample(&[("port", &port.name)], read(port));
        }
    }
}

/// What Prometheus' own libraries tell of each process.
fn process(text: &mut Text) {
    let Some(process) = Process::now() else { return };
    let help = "When the daemon started, in seconds since 1970.";
    text.one("process_start_time_seconds", Kind::Gauge, help, process.started);
    let help = "Processor time that the daemon has used. With XDP the kernel sums: not in here.";
    text.one("process_cpu_seconds", Kind::Counter, help, process.cpu);
    let help = "Memory of the daemon. The slots of XDP are the kernel's: not in here.";
    text.one("process_resident_memory_bytes", Kind::Gauge, help, process.resident);
}

/// From `/proc`.
struct Process {
    started: f64,
    cpu: f64,
    resident: u64,
}

impl Process {
    fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in parentheses may hold anything; the third field follows it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = rustix::param::clock_ticks_per_second();
        let seconds = |count: u64| count as f64 / ticks as f64;
        let cpu = seconds(field(14)? + field(15)?);
        let resident = field(24)? * rustix::param::page_size() as u64;
        Some(Self { started: started(seconds(field(22)?))?, cpu, resident })
    }
}

/// When the process started. The clock may be set later: so it is worked out once.
fn started(since_boot: f64) -> Option<f64> {
    static STARTED: OnceLock<Option<f64>> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(seconds(now) - uptime + since_boot)
    })
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
