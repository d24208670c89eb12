//! Records as the calls of a trace.

use std::time::Duration;

use xdp_agg_protocol::worker::{Ending, Label, Path, Record};
use xdp_agg_trace::{Call, MESH};

/// Where a record is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The aggregator.
    pub(super) track: u16,
    /// Nanoseconds of the system's clock at which the record's clock began.
    pub(super) base: u64,
    /// Workers of the job.
    pub(super) world_size: u16,
}

/// A call round a ring or a mesh of the workers. Times are the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MeshRecord {
    pub(super) number: u64,
    pub(super) what: Label,
    pub(super) digest: u64,
    pub(super) made: u64,
    pub(super) begun: Option<u64>,
    pub(super) ended: Option<u64>,
    pub(super) ending: Ending,
}

/// A call, as it was when its record was made. `now`: where a call ends that did not.
pub(super) fn call(record: &Record, origin: Origin, now: u64) -> Call {
    let Record { times, report, ending, .. } = record;
    let at = |time: Duration| origin.base + nanos(time);
    let missing = match ending {
        Ending::Done if report.contributors != 0 => {
            report.missing_ranks(origin.world_size).collect()
        }
        _ => Vec::new(),
    };
    let way = match report.path {
        Path::Aggregator => "aggregator",
        Path::Ring => "ring",
        Path::Mixed => "mixed",
        Path::Host => "host",
    };
    Call {
        number: record.sequence,
        track: origin.track,
        what: record.what.map_or_else(|| "all-reduce".into(), |what| what.as_str().into()),
        len: record.len,
        bytes: record.len * record.element.size() as u64,
        dtype: record.element.name().into(),
        op: record.op.name().into(),
        digest: record.digest,
        made: at(times.made),
        begun: times.begun.map(at),
        first_sent: times.first_sent.map(at),
        first_result: times.first_result.map(at),
        last_result: times.last_result.map(at),
        ended: Some(times.done.map_or(now, at)),
        wait: nanos(times.wait),
        gap: nanos(times.gap),
        repetitions: times.repetitions,
        pendings: times.pendings,
        blocks: report.blocks,
        way: way.into(),
        outcome: ending.name().into(),
        missing,
        reforms: report.reforms,
    }
}

/// The same of a call among the workers.
pub(super) fn of_mesh(record: &MeshRecord, now: u64) -> Call {
    Call {
        number: record.number,
        track: MESH,
        what: record.what.as_str().into(),
        digest: record.digest,
        made: record.made,
        begun: record.begun,
        ended: Some(record.ended.unwrap_or(now)),
        way: "mesh".into(),
        outcome: record.ending.name().into(),
        ..Call::default()
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
