//! Who writes, and what is known of a call.

use serde::{Deserialize, Serialize};

/// Number of the format, in each file.
pub const FORMAT: u32 = 1;

/// The track of calls round a ring or a mesh of the workers; the others are aggregators.
pub const MESH: u16 = 255;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// All calls, as they happened.
    Trace,
    /// The latest calls, written when something went wrong or somebody asked.
    Flight,
}

/// One communicator of a process: what writes events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// [`FORMAT`].
    pub format: u32,
    /// Its number in the file: the `pid` of its events.
    pub source: u32,
    /// What the file is.
    pub kind: Kind,
    /// Name of the job.
    pub job: String,
    /// The launcher's name of the run, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The worker's rank.
    pub rank: u16,
    /// Workers of the job.
    pub world_size: u16,
    /// This process among those of its host.
    pub local_rank: u16,
    /// Processes of its host that sum together.
    pub local_size: u16,
    /// The host's name.
    pub host: String,
    /// Number of the process.
    pub process: u32,
    /// What clock the times are of: two sources with the same text have the same clock.
    pub clock: String,
    /// That clock, in nanoseconds, when the source began.
    pub monotonic_ns: u64,
    /// The time of day at that moment, in nanoseconds since 1970.
    pub realtime_ns: u64,
    /// Why a flight recording was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A call as one rank knows it. Times are nanoseconds of the source's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its number in the job's life; of calls on the track [`MESH`] it counts these.
    pub number: u64,
    /// The aggregator that it goes through, from 0, or [`MESH`].
    pub track: u16,
    /// What it is, in words that all ranks share.
    pub what: String,
    /// Elements.
    pub len: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Their type.
    pub dtype: String,
    /// How they are reduced; empty: not at all.
    pub op: String,
    /// Of all arguments.
    pub digest: u64,
    /// It was made.
    pub made: u64,
    /// Its blocks may be sent, or its turn came.
    pub begun: Option<u64>,
    /// Its first packet left.
    pub first_sent: Option<u64>,
    /// Its first result came.
    pub first_result: Option<u64>,
    /// Its last result came.
    pub last_result: Option<u64>,
    /// It ended, well or not. None: it did not.
    pub ended: Option<u64>,
    /// Longest time without a result.
    pub wait: u64,
    /// Longest time in which its process did not run.
    pub gap: u64,
    /// Packets that were sent again.
    pub repetitions: u32,
    /// Answers that others are waited for.
    pub pendings: u32,
    /// Blocks that it was cut into.
    pub blocks: u64,
    /// Over what it went: `aggregator`, `ring`, `mixed`, `host`, or the name of a mesh's algorithm.
    pub way: String,
    /// `done`, `failed`, `given up`, or `running`.
    pub outcome: String,
    /// Ranks without a contribution to all of it.
    pub missing: Vec<u16>,
    /// New epochs while it was under way.
    pub reforms: u32,
}

impl Call {
    /// What it is, without its arguments: the name of its slice.
    #[must_use]
    pub fn name(&self) -> &str {
        self.what.split(" of ").next().unwrap_or_default()
    }

    /// What all ranks must call alike.
    #[must_use]
    pub fn signature(&self) -> (&str, u64, &str, &str) {
        (&self.what, self.len, &self.dtype, &self.op)
    }

    /// The same in words: `all-reduce (sum) of 1000 f32`.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.what.contains(" of ") {
            return self.what.clone();
        }
        let op = match &*self.op {
            "" => String::new(),
            op => format!(" ({op})"),
        };
        format!("{}{op} of {} {}", self.name(), self.len, self.dtype)
    }

    /// It has a result.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.outcome == "done"
    }

    /// No rank has a result before all have sent something.
    #[must_use]
    pub fn waits_for_all(&self) -> bool {
        let name = self.name();
        let to_one = self.track == MESH && name.starts_with("reduce") && !name.contains("scatter");
        !name.starts_with("broadcast") && !to_one && self.missing.is_empty()
    }

    /// Its parts, in order and without holes: what each is, and its begin and end.
    #[must_use]
    pub fn phases(&self) -> Vec<(&'static str, u64, u64)> {
        let Some(ended) = self.ended else { return Vec::new() };
        let host = self.way == "host" || self.track == MESH;
        let marks = [
            ("waits for its turn", self.begun),
            (if host { "in the host" } else { "staging" }, self.first_sent),
            ("until the first result", self.first_result),
            ("results", self.last_result),
        ];
        let mut phases = Vec::new();
        let mut from = self.made;
        let mut push = |name, to: u64| {
            // Times of other threads may be a little behind.
            let to = to.clamp(from, ended.max(from));
            if to > from {
                phases.push((name, from, to));
                from = to;
            }
        };
        for (name, to) in marks {
            to.into_iter().for_each(|to| push(name, to));
        }
        let last = match (self.track, self.first_result) {
            (MESH, _) => "among the workers",
            (_, Some(_)) => "gather",
            _ if host => "in the host",
            _ => "without a result",
        };
        push(last, ended);
        phases
    }
}
