//! The phases of a job, and what moves it from one to the next.
//!
//! | from | to | when |
//! |---|---|---|
//! | Forming | Preparing, Branching | all ranks have joined |
//! | Forming | Returning | a worker comes that remembers an epoch of another daemon |
//! | Branching | Preparing | the tree's branches are connected |
//! | Preparing | Branching | a branch is lost, and the plan that is made again waits for one |
//! | Preparing | Probing | all engines of the tree know the members |
//! | Probing | Starting | all members have tried their paths |
//! | Starting | Running | all engines of the tree sum |
//! | Running | Pausing | ranks wait to join |
//! | Pausing | RunningTo | all members have said which call they would start next |
//! | Probing, Starting, Running, Pausing, RunningTo | Collecting | a member or a branch is lost, a lost branch is back, or a member has a new address |
//! | Returning, RunningTo, Collecting | Preparing, Branching | all have said what they have; those that are lost are not waited for |
//! | all but Forming | Returning | a worker remembers a ring that this daemon does not know of |
//! | all but Forming | Forming | the job ends: all have left, or it is aborted |
//!
//! In any phase a job may stay with a new end, where the phase's wait begins anew. The table is
//! held to the code: [`Current::enter`] refuses every other move wherever assertions are compiled
//! in, as in the tests, the simulation and the fuzzers.

use std::time::Instant;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Ranks are missing. The time is the end of the wait, from the first member's join.
    Forming(Option<Instant>),
    /// Members of an epoch of another daemon come back, until then.
    Returning(Instant),
    /// Branches of the tree are being connected, until then.
    Branching(Instant),
    /// The engines are registering the members: those of branches, until then.
    Preparing(Instant),
    /// Members try their paths, until then.
    Probing(Instant),
    /// The engines are opening the data path: those of branches, until then.
    Starting(Instant),
    /// Contributions are summed.
    Running,
    /// As running; members are asked which call they would start next, since then.
    Pausing(Instant),
    /// As running, up to the call with this number. The time is when the first member had come
    /// there. That member has all sums, so all have contributed, and have only to say so.
    RunningTo(u64, Option<Instant>),
    /// The epoch is over; members are asked what they have, since then.
    Collecting(Instant),
}

impl Phase {
    /// Its name in the table.
    const fn name(self) -> &'static str {
        match self {
            Self::Forming(_) => "Forming",
            Self::Returning(_) => "Returning",
            Self::Branching(_) => "Branching",
            Self::Preparing(_) => "Preparing",
            Self::Probing(_) => "Probing",
            Self::Starting(_) => "Starting",
            Self::Running => "Running",
            Self::Pausing(_) => "Pausing",
            Self::RunningTo(..) => "RunningTo",
            Self::Collecting(_) => "Collecting",
        }
    }
}

/// The phase that a job is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current(Phase);

impl Current {
    /// Of a job that begins here.
    pub(super) const fn first(phase: Phase) -> Self {
        Self(phase)
    }

    pub(super) const fn get(self) -> Phase {
        self.0
    }

    /// Moves on, along the table.
    pub(super) fn enter(&mut self, to: Phase) {
        debug_assert!(may_move(self.0.name(), to.name()), "from {:?} to {to:?}", self.0);
        self.0 = to;
    }
}

/// All phases but the first.
const JOINED: [&str; 9] = [
    "Returning",
    "Branching",
    "Preparing",
    "Probing",
    "Starting",
    "Running",
    "Pausing",
    "RunningTo",
    "Collecting",
];

/// The rows of the table.
const MOVES: [(&[&str], &[&str]); 13] = [
    (&["Forming"], &["Preparing", "Branching"]),
    (&["Forming"], &["Returning"]),
    (&["Branching"], &["Preparing"]),
    (&["Preparing"], &["Branching"]),
    (&["Preparing"], &["Probing"]),
    (&["Probing"], &["Starting"]),
    (&["Starting"], &["Running"]),
    (&["Running"], &["Pausing"]),
    (&["Pausing"], &["RunningTo"]),
    (&["Probing", "Starting", "Running", "Pausing", "RunningTo"], &["Collecting"]),
    (&["Returning", "RunningTo", "Collecting"], &["Preparing", "Branching"]),
    (&JOINED, &["Returning"]),
    (&JOINED, &["Forming"]),
];

/// Whether the table has this move.
fn may_move(from: &str, to: &str) -> bool {
    from == to || MOVES.iter().any(|(all, next)| all.contains(&from) && next.contains(&to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(cell: &str) -> Vec<&str> {
        match cell.trim() {
            "all but Forming" => JOINED.to_vec(),
            names => names.split(", ").collect(),
        }
    }

    #[test]
    fn the_table_says_what_is_checked() {
        let rows = include_str!("phase.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let rows = rows.skip(1).filter_map(|row| {
            let mut cells = row.split('|').map(names);
            Some((cells.next()?, cells.next()?))
        });
        let moves = MOVES.map(|(from, to)| (from.to_vec(), to.to_vec()));
        assert_eq!(rows.collect::<Vec<_>>(), moves);
    }

    #[test]
    #[should_panic(expected = "from Running to Probing")]
    fn no_other_move_is_made() {
        Current::first(Phase::Running).enter(Phase::Probing(Instant::now()));
    }

    #[test]
    fn the_first_phase_is_in_no_other_list() {
        let now = Instant::now();
        let joined = [
            Phase::Returning(now),
            Phase::Branching(now),
            Phase::Preparing(now),
            Phase::Probing(now),
            Phase::Starting(now),
            Phase::Running,
            Phase::Pausing(now),
            Phase::RunningTo(7, None),
            Phase::Collecting(now),
        ];
        assert_eq!(joined.map(Phase::name), JOINED);
    }
}
