//! What went wrong, and at which rank.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use serde::Serialize;

use crate::clock::{Basis, Clock};
use crate::model::{Call, Kind, MESH};
use crate::read::Recording;

/// How much shorter than the others' a rank's recording may be.
const QUIET: u64 = 1_000_000_000;
/// Findings of one kind that are listed for a rank.
const LISTED: usize = 10;

/// How a rank was late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It made the call later than the others.
    MadeTheCallLate,
    /// Its process did not run in the middle of the call.
    DidNotRun,
}

/// A rank that the others waited for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Late {
    /// The rank.
    pub rank: u16,
    /// Number of the call.
    pub call: u64,
    /// The call goes round a ring or a mesh of the workers, whose calls have numbers of their own.
    pub among_workers: bool,
    /// The call in words.
    pub what: String,
    /// How much, in milliseconds.
    pub by_ms: f64,
    /// How.
    pub how: How,
}

/// Ranks that called something else than the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differs {
    /// Number of the call.
    pub call: u64,
    /// As in [`Late`].
    pub among_workers: bool,
    /// What was called, and by which ranks: most of them first.
    pub calls: Vec<(String, Vec<u16>)>,
    /// The ranks that are fewer than half. Empty: no call has a majority.
    pub odd: Vec<u16>,
}

/// A rank that wrote no more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stopped {
    /// The rank.
    pub rank: u16,
    /// Its last call, and whether it ended.
    pub last_call: Option<(u64, String, bool)>,
    /// How long before the others' latest event its own was, in milliseconds.
    pub before_ms: f64,
}

/// A call in which some ranks wait, and to which others have not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hangs {
    /// Number of the call.
    pub call: u64,
    /// As in [`Late`].
    pub among_workers: bool,
    /// The call in words.
    pub what: String,
    /// Ranks that are in it.
    pub waiting: Vec<u16>,
    /// Ranks with a file that never made it.
    pub absent: Vec<u16>,
}

/// A rank in sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The rank.
    pub rank: u16,
    /// Its file.
    pub file: String,
    /// What the file is.
    pub kind: Kind,
    /// Its calls.
    pub calls: usize,
    /// Of these, calls to which it came last.
    pub came_last: usize,
    /// How much later than the others it made these, together, in milliseconds.
    pub late_ms: f64,
    /// Packets that it sent again.
    pub repetitions: u64,
    /// How its clock was found, and how wrong it is at most, in microseconds.
    pub clock: Basis,
    /// See [`Self::clock`].
    pub clock_error_us: Option<f64>,
    /// Why a flight recording was written.
    pub reason: Option<String>,
}

/// All that there is to say of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Name of the job.
    pub job: String,
    /// Workers of the job.
    pub world_size: u16,
    /// What is late, in milliseconds.
    pub threshold_ms: f64,
    /// Ranks that called something else.
    pub differs: Vec<Differs>,
    /// Ranks that wrote no more.
    pub stopped: Vec<Stopped>,
    /// Ranks of which there is no file.
    pub without_file: Vec<u16>,
    /// Calls to which not all came.
    pub hangs: Vec<Hangs>,
    /// Ranks that were late: the most first.
    pub late: Vec<Late>,
    /// How many were, listed or not.
    pub late_calls: usize,
    /// All ranks.
    pub ranks: Vec<Summary>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A call at a rank.
struct At<'a> {
    rank: u16,
    /// Processes that are one worker share a digest if they have the same place on their hosts.
    place: (u16, u16),
    call: &'a Call,
    clock: &'a Clock,
}

impl At<'_> {
    fn made(&self) -> u64 {
        self.clock.common(self.call.made)
    }
}

/// Looks at the recordings of each job. `all` is sorted by job and rank; `clocks` are theirs.
/// `threshold` nanoseconds are late.
#[must_use]
pub fn diagnose(all: &[&Recording], clocks: &[Clock], threshold: u64) -> Vec<Diagnosis> {
    let jobs: BTreeSet<&str> = all.iter().map(|recording| &*recording.source.job).collect();
    let of = |job: &str| {
        let both = all.iter().copied().zip(clocks);
        let both = both.filter(|(recording, _)| recording.source.job == job);
        of_job(job, &both.collect::<Vec<_>>(), threshold)
    };
    jobs.into_iter().map(of).collect()
}

fn of_job(job: &str, all: &[(&Recording, &Clock)], threshold: u64) -> Diagnosis {
    let world_size = all.iter().map(|(r, _)| r.source.world_size).max().unwrap_or_default();
    let has: BTreeSet<u16> = all.iter().map(|(r, _)| r.source.rank).collect();
    let mut notes = Vec::new();
    let mut summaries: BTreeMap<u16, Summary> = BTreeMap::new();
    // By number, aggregators' calls and the workers' own: a rank counts once.
    let mut calls: BTreeMap<(bool, u64), BTreeMap<u16, At<'_>>> = BTreeMap::new();
    for (recording, clock) in all {
        let source = &recording.source;
        let summary = summaries.entry(source.rank).or_insert_with(|| Summary {
            rank: source.rank,
            file: recording.file.clone(),
            kind: source.kind,
            calls: 0,
            came_last: 0,
            late_ms: 0.0,
            repetitions: 0,
            clock: clock.basis,
            clock_error_us: clock.error_ns.map(|error| error as f64 / 1e3),
            reason: None,
        });
        if source.reason.is_some() {
            summary.reason.clone_from(&source.reason);
        }
        let place = (source.local_rank, source.local_size);
        for call in &recording.calls {
            let at = At { rank: source.rank, place, call, clock };
            summary.repetitions += u64::from(call.repetitions);
            let ranks = calls.entry((call.track == MESH, call.number)).or_default();
            match ranks.get_mut(&source.rank) {
                // Another aggregator's part of it, or the same call in another file.
                Some(known) if known.call.gap >= call.gap => {}
                Some(known) => *known = at,
                None => {
                    summary.calls += 1;
                    ranks.insert(source.rank, at);
                }
            }
        }
    }
    if all.iter().any(|(_, clock)| clock.basis == Basis::TimeOfDay) {
        notes.push(
            "some hosts have no call in common: their clocks are taken from the time of day, and \
             nobody is called late by them"
                .into(),
        );
    }
    if has.len() < usize::from(world_size) {
        let count = has.len();
        notes.push(format!("{count} of {world_size} ranks have a file"));
    }
    let mut late = Vec::new();
    for ((among_workers, number), ranks) in &calls {
        let ranks: Vec<&At<'_>> = ranks.values().collect();
        let found = lateness(&ranks, threshold, &mut summaries);
        late.extend(found.into_iter().map(|(at, by, how)| Late {
            rank: at.rank,
            call: *number,
            among_workers: *among_workers,
            what: at.call.describe(),
            by_ms: by as f64 / 1e6,
            how,
        }));
    }
    let late_calls = late.len();
    late.sort_by(|a, b| b.by_ms.total_cmp(&a.by_ms));
    let mut listed: BTreeMap<u16, usize> = BTreeMap::new();
    late.retain(|late| {
        let count = listed.entry(late.rank).or_default();
        *count += 1;
        *count <= LISTED
    });
    Diagnosis {
        job: job.to_owned(),
        world_size,
        threshold_ms: threshold as f64 / 1e6,
        differs: calls.iter().filter_map(|(key, ranks)| differing(*key, ranks)).collect(),
        stopped: stopped(all),
        without_file: (0..world_size).filter(|rank| !has.contains(rank)).collect(),
        hangs: hangs(&calls, &has),
        late,
        late_calls,
        ranks: summaries.into_values().collect(),
        notes,
    }
}

/// Who was late in a call, by how much, and how; and who came last, if it was not late.
fn lateness<'a>(
    ranks: &[&'a At<'a>],
    threshold: u64,
    summaries: &mut BTreeMap<u16, Summary>,
) -> Vec<(&'a At<'a>, u64, How)> {
    let mut found = Vec::new();
    let long = |at: &At<'_>| at.call.ended.map_or(u64::MAX, |ended| ended - at.call.made);
    for at in ranks.iter().filter(|at| at.call.gap >= threshold) {
        // A process may rest while nobody waits for it.
        let waited = ranks.iter().any(|o| o.rank != at.rank && long(o) >= at.call.gap / 2);
        if waited {
            found.push((*at, at.call.gap, How::DidNotRun));
        }
    }
    // A clock that nobody knows says nothing of who was late.
    let mut known: Vec<&&At<'_>> =
        ranks.iter().filter(|at| at.clock.basis != Basis::TimeOfDay).collect();
    known.sort_by_key(|at| at.made());
    let Some((last, others)) = known.split_last().filter(|(_, others)| !others.is_empty()) else {
        return found;
    };
    let middle = others[others.len() / 2].made();
    let error = known.iter().filter_map(|at| at.clock.error_ns).max().unwrap_or_default();
    if last.made().saturating_sub(middle) > error
        && let Some(summary) = summaries.get_mut(&last.rank)
    {
        summary.came_last += 1;
        summary.late_ms += (last.made() - middle) as f64 / 1e6;
    }
    // Several may be late: each against the rank in the middle of those that were not.
    for at in known.iter().rev() {
        let before = known.iter().filter(|other| other.made() + threshold <= at.made());
        let before: Vec<u64> = before.map(|other| other.made()).collect();
        if before.len() * 2 < known.len() {
            break;
        }
        let by = at.made() - before[before.len() / 2];
        if by >= threshold + error {
            found.push((**at, by, How::MadeTheCallLate));
        }
    }
    found
}

fn differing((among_workers, call): (bool, u64), ranks: &BTreeMap<u16, At<'_>>) -> Option<Differs> {
    let mut kinds: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for at in ranks.values() {
        kinds.entry(at.call.describe()).or_default().push(at.rank);
    }
    if kinds.len() == 1 {
        // The arguments that have no name of their own here: the scale, and the like.
        let mut digests: BTreeMap<(u16, u16), BTreeMap<u64, Vec<u16>>> = BTreeMap::new();
        for at in ranks.values() {
            let of_place = digests.entry(at.place).or_default();
            of_place.entry(at.call.digest).or_default().push(at.rank);
        }
        let unlike = digests.into_values().find(|digests| digests.len() > 1)?;
        let what = kinds.pop_first()?.0;
        for (digest, ranks) in unlike {
            kinds.insert(format!("{what}, with arguments of digest {digest:016x}"), ranks);
        }
    }
    let mut calls: Vec<(String, Vec<u16>)> = kinds.into_iter().collect();
    calls.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let total: usize = calls.iter().map(|(_, ranks)| ranks.len()).sum();
    let has_majority = calls[0].1.len() * 2 > total;
    let odd = calls[1..].iter().filter(|_| has_majority).flat_map(|(_, ranks)| ranks.clone());
    let mut odd: Vec<u16> = odd.collect();
    odd.sort_unstable();
    Some(Differs { call, among_workers, calls, odd })
}

/// Traces that end without a word, before the others do. A flight recording ends where it was
/// written.
fn stopped(all: &[(&Recording, &Clock)]) -> Vec<Stopped> {
    let traces: Vec<_> =
        all.iter().filter(|(recording, _)| recording.source.kind == Kind::Trace).collect();
    let end = |(recording, clock): &(&Recording, &Clock)| clock.common(recording.latest);
    let latest = traces.iter().map(|both| end(both)).max().unwrap_or_default();
    let silent = traces.iter().filter(|(recording, _)| !recording.left);
    let silent = silent.filter(|both| {
        latest.saturating_sub(end(both)) >= QUIET || { traces.iter().any(|(other, _)| other.left) }
    });
    let told = silent.map(|both| {
        let last = both.0.calls.last();
        Stopped {
            rank: both.0.source.rank,
            last_call: last.map(|c| (c.number, c.describe(), c.ended.is_some())),
            before_ms: latest.saturating_sub(end(both)) as f64 / 1e6,
        }
    });
    told.collect()
}

/// The calls that some ranks are in, and others, which have a file, never made.
fn hangs(calls: &BTreeMap<(bool, u64), BTreeMap<u16, At<'_>>>, has: &BTreeSet<u16>) -> Vec<Hangs> {
    let mut found = Vec::new();
    for ((among_workers, call), ranks) in calls {
        let mut waiting = ranks.values().filter(|at| !at.call.is_done());
        let Some(one) = waiting.next() else { continue };
        let what = one.call.describe();
        let waiting: Vec<u16> =
            ranks.values().filter(|a| !a.call.is_done()).map(|a| a.rank).collect();
        let absent: Vec<u16> = has.iter().filter(|r| !ranks.contains_key(r)).copied().collect();
        if !absent.is_empty() {
            let (call, among_workers) = (*call, *among_workers);
            found.push(Hangs { call, among_workers, what, waiting, absent });
        }
    }
    found.truncate(LISTED);
    found
}

impl Diagnosis {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.differs.is_empty()
            && self.stopped.is_empty()
            && self.hangs.is_empty()
            && self.late.is_empty()
    }

    fn text(&self, out: &mut impl Write) -> fmt::Result {
        let Self { job, world_size, threshold_ms, .. } = self;
        writeln!(out, "job {job}, {world_size} ranks")?;
        for found in &self.differs {
            let number = number(found.call, found.among_workers);
            match &found.odd[..] {
                [] => writeln!(out, "  DIFFERS  {number}: the ranks called different things")?,
                odd => writeln!(out, "  DIFFERS  {number}: {} called something else", ranks(odd))?,
            }
            for (what, of) in &found.calls {
                writeln!(out, "           {}: {what}", ranks(of))?;
            }
        }
        for Stopped { rank, last_call, before_ms } in &self.stopped {
            write!(
                out,
                "  STOPPED  rank {rank} wrote no more, {before_ms:.0} ms before the others"
            )?;
            match last_call {
                Some((call, what, true)) => writeln!(out, "; its last call was {call}, {what}")?,
                Some((call, what, false)) => writeln!(out, ", in call {call}, {what}")?,
                None => writeln!(out, "; it made no call")?,
            }
        }
        if !self.without_file.is_empty() {
            let of = ranks(&self.without_file);
            writeln!(out, "  NO FILE  {of}: died before it was written, or it was not given")?;
        }
        for Hangs { call, among_workers, what, waiting, absent } in &self.hangs {
            let number = number(*call, *among_workers);
            let (waiting, absent) = (ranks(waiting), ranks(absent));
            writeln!(out, "  WAITING  {number}, {what}: {waiting} in it, {absent} never made it")?;
        }
        for Late { rank, call, among_workers, what, by_ms, how } in &self.late {
            let number = number(*call, *among_workers);
            let how = match how {
                How::MadeTheCallLate => format!("made it {by_ms:.1} ms late"),
                How::DidNotRun => format!("did not run for {by_ms:.1} ms in it"),
            };
            writeln!(out, "  LATE     rank {rank} in {number}, {what}: {how}")?;
        }
        if self.late_calls > self.late.len() {
            let more = self.late_calls - self.late.len();
            writeln!(out, "           and {more} more; --json lists the same ones")?;
        }
        if self.is_well() {
            writeln!(out, "  nothing is wrong: nobody was late by {threshold_ms:.0} ms or more")?;
        }
        for found in &self.ranks {
            let Summary { rank, calls, came_last, late_ms, repetitions, .. } = found;
            let clock = match (found.clock, found.clock_error_us) {
                (Basis::Same, _) => "the reference".to_owned(),
                (_, Some(error)) => format!("within {error:.1} us"),
                (_, None) => "unknown".to_owned(),
            };
            writeln!(
                out,
                "  rank {rank}: {calls} calls, came last in {came_last} ({late_ms:.1} ms in all), \
                 {repetitions} packets again, clock {clock}"
            )?;
            if let Some(reason) = &found.reason {
                writeln!(out, "           wrote: {reason}")?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "  note: {note}"))
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(f)
    }
}

fn number(call: u64, among_workers: bool) -> String {
    match among_workers {
        true => format!("call {call} among the workers"),
        false => format!("call {call}"),
    }
}

fn ranks(all: &[u16]) -> String {
    match all {
        [one] => format!("rank {one}"),
        many => format!("ranks {many:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::clocks;
    use crate::read::{ReadError, file, of_one_run};
    use crate::testing::{MS, World, plain};

    fn of(world: &World) -> Diagnosis {
        let files = world.files();
        let all = of_one_run(&files).expect("one run");
        let found = diagnose(&all, &clocks(&all), 100 * MS);
        found.into_iter().next().expect("a job")
    }

    fn well(world: &mut World, calls: u64) {
        for call in 0..calls {
            let late: Vec<u64> = (0..4).map(|rank| (call * 7 + rank * 3) % 5 * 20_000).collect();
            world.call(&late, 30_000);
        }
    }

    fn four() -> World {
        let mut world = World::new(4);
        (0..4).for_each(|rank| world.ahead(rank, rank as i64 * 1_000_000 * MS as i64));
        world
    }

    #[test]
    fn nothing_is_said_of_a_job_that_is_well() {
        let mut world = four();
        well(&mut world, 50);
        let found = of(&world);
        assert!(found.is_well() && found.late_calls == 0, "{found:?}");
        assert!(found.to_string().contains("nothing is wrong"), "{found}");
        assert!(found.ranks.iter().all(|rank| rank.calls == 50));
    }

    #[test]
    fn a_rank_that_comes_late_is_named_with_the_time() {
        let mut world = four();
        well(&mut world, 10);
        world.call(&[0, 1000, 1000 * MS, 2000], 30_000);
        well(&mut world, 10);
        let found = of(&world);
        let [late] = &found.late[..] else { panic!("{found:?}") };
        assert_eq!((late.rank, late.call, late.how), (2, 10, How::MadeTheCallLate));
        assert!((late.by_ms - 1000.0).abs() < 1.0, "{late:?}");
        let said =
            "LATE     rank 2 in call 10, all-reduce (sum) of 1000 f32: made it 1000.0 ms late";
        assert!(found.to_string().contains(said), "{found}");
    }

    #[test]
    fn a_process_that_did_not_run_is_named_and_not_those_that_waited() {
        let mut world = four();
        well(&mut world, 3);
        world.call(&[0, 0, 0, 0], 1200 * MS);
        world.last(1).gap = 1150 * MS;
        let found = of(&world);
        let [late] = &found.late[..] else { panic!("{found:?}") };
        assert_eq!((late.rank, late.call, late.how), (1, 3, How::DidNotRun));
        // If nobody waited for it, it is not late.
        world.call(&[0, 0, 0, 0], 30_000);
        world.last(3).gap = 1150 * MS;
        assert_eq!(of(&world).late, std::slice::from_ref(late));
    }

    #[test]
    fn a_rank_that_calls_another_size_is_named() {
        let mut world = four();
        well(&mut world, 2);
        world.call(&[0, 0, 0, 0], 1000);
        world.last(3).len = 999;
        let found = of(&world);
        let [differs] = &found.differs[..] else { panic!("{found:?}") };
        assert_eq!((differs.call, &differs.odd[..]), (2, &[3][..]));
        let said = found.to_string();
        assert!(said.contains("DIFFERS  call 2: rank 3 called something else"), "{said}");
        assert!(said.contains("rank 3: all-reduce (sum) of 999 f32"), "{said}");
        // With another scale only the digest tells.
        world.last(3).len = 1000;
        world.last(3).digest = 77;
        let found = of(&world);
        assert_eq!(found.differs[0].odd, [3]);
    }

    #[test]
    fn a_rank_that_was_killed_is_named_with_its_last_call() {
        let mut world = four();
        well(&mut world, 5);
        world.hang(&[0, 1, 2]);
        world.killed(1);
        let found = of(&world);
        let [stopped] = &found.stopped[..] else { panic!("{found:?}") };
        assert_eq!(stopped.rank, 1);
        assert_eq!(
            stopped.last_call.as_ref().map(|(call, _, ended)| (*call, *ended)),
            Some((5, false))
        );
        assert!(stopped.before_ms >= 2999.0, "{stopped:?}");
        let [hangs] = &found.hangs[..] else { panic!("{found:?}") };
        assert_eq!(
            (hangs.call, &hangs.waiting[..], &hangs.absent[..]),
            (5, &[0, 1, 2][..], &[3][..])
        );
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_reason() {
        let world = four();
        let text = world.texts().swap_remove(0);
        let told = |text: &str| file("x.json", text).expect_err("refused").to_string();
        assert!(told("").contains("it is empty"));
        assert!(told(r#"{"a": 1}"#).contains("no JSON array"));
        assert!(told("[\n{\"name\": nonsense}").contains("event 1 is no JSON"));
        let foreign = r#"[{"name":"x","ph":"X","ts":1,"dur":2,"pid":1,"tid":1}]"#;
        assert!(matches!(file("x", foreign), Err(ReadError::Foreign { .. })));
        let newer = text.replace(r#""format":1"#, r#""format":9"#);
        assert!(told(&newer).contains("format 9; this release reads 1"));
    }

    #[test]
    fn a_file_may_end_anywhere() {
        let mut world = four();
        well(&mut world, 2);
        let text = world.texts().swap_remove(0);
        let whole = file("x", &text).expect("ours");
        let first = text.find("\"xdp_agg\"").expect("who it is");
        let begin = first + text[first..].find('\n').expect("a line");
        let mut cut = 0;
        for end in begin..text.len() {
            let part = file("x", &text[..end]).expect("ours");
            assert!(part.events.len() <= whole.events.len());
            assert_eq!(part.recordings[0].source, whole.recordings[0].source);
            cut += part.notes.len();
        }
        assert!(cut > 100, "{cut}");
        let closed = file("x", &format!("{text}\n]\n")).expect("ours");
        assert_eq!(closed.recordings, whole.recordings);
    }

    #[test]
    fn two_runs_are_told_apart() {
        let two = |change: fn(&mut crate::model::Source)| {
            let mut world = four();
            let mut files = world.files();
            change(world.source(1));
            files.extend(world.files().into_iter().skip(1).take(1));
            of_one_run(&files).map(|all| all.len()).map_err(|error| error.to_string())
        };
        let process = two(|source| source.process = 7).expect_err("two processes");
        assert!(process.contains("rank 1 of job train is in r1.json"), "{process}");
        let run = two(|source| source.run = Some("b".into())).expect_err("two runs");
        assert!(run.contains("different runs of job train"), "{run}");
        let size = two(|source| source.world_size = 8).expect_err("two worlds");
        assert!(size.contains("one has 4 workers, the other 8"), "{size}");
        // A trace and a flight recording of one process go together.
        assert_eq!(two(|source| source.kind = Kind::Flight), Ok(5));
    }

    #[test]
    fn a_call_in_two_files_of_a_rank_counts_once() {
        let mut world = four();
        well(&mut world, 6);
        let mut files = world.files();
        files.extend(world.files());
        let all = of_one_run(&files).expect("one run");
        let found = diagnose(&all, &clocks(&all), 100 * MS);
        assert!(found[0].ranks.iter().all(|rank| rank.calls == 6), "{found:?}");
        assert_eq!(plain(3, 5).describe(), "all-reduce (sum) of 1000 f32");
    }
}
