//! A diagnosis in words.

use std::fmt::{self, Write};

use super::{Diagnosis, Hangs, How, Late, Stopped, Summary};
use crate::clock::Basis;

impl Diagnosis {
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
