//! What runs are counted by.

use std::collections::BTreeMap;

use xdp_agg_common::control::{AbortReason, Admitted, Reply, RunKind};
use xdp_agg_common::wire::Reduction;
use xdp_agg_protocol::sum::Answer;
use xdp_agg_protocol::worker::{Error, Limit};

use crate::check::KeyCounts;
use crate::scenario::Fault;

/// Declares [`Stats`], and how those of many runs are added: each field to its own.
macro_rules! stats {
    ($($(#[$doc:meta])* $field:ident: $kind:ty,)*) => {
        /// Counts of one run or of many.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Stats {
            /// Adds the counts of other runs.
            pub fn merge(&mut self, other: &Self) {
                $(self.$field.add(&other.$field);)*
            }
        }
    };
}

stats! {
    /// Runs.
    runs: u64,
    /// Runs with a violation.
    violations: u64,
    /// Events of the simulation.
    events: u64,
    /// Calls that ended with a result.
    calls: u64,
    /// Calls and memberships that ended with an error, by kind.
    errors: BTreeMap<&'static str, u64>,
    /// Faults that happened, by [`Fault::kind`].
    faults: [u64; Fault::KINDS.len()],
    /// Data packets that were sent.
    packets: u64,
    /// Of these, lost or cut off.
    lost: u64,
    /// Of these, delivered twice.
    duplicated: u64,
    /// Of these, late.
    late: u64,
    /// Packets of strangers.
    hostile: u64,
    /// Results that workers took in.
    results: u64,
    /// Memberships that were announced, one for each member.
    admissions: u64,
    /// Members that were told that others are lost.
    reforms: u64,
    /// Members that went on in an epoch whose daemon they had lost.
    resumes: u64,
    /// Jobs that a restarted daemon took over with their data path.
    taken_over: u64,
    /// Members that were told that a rank joins.
    pauses: u64,
    /// Members that were put out, as they kept others waiting.
    put_out: u64,
    /// Waits that workers told of.
    warnings: u64,
    /// Ranks that a worker was told of while it waited for them, and what was said was checked.
    standings: u64,
    /// Blocks of plans that were handed on.
    copies: u64,
    /// Blocks of plans that were summed again.
    redone: u64,
    /// Workers that left in good order.
    leaves: u64,
    /// Runs with several aggregators.
    trees: u64,
    /// Sums that went up to a parent.
    sums_up: u64,
    /// Results that came down and were awaited.
    deliveries: u64,
    /// Rings that took an aggregator's place.
    rings: u64,
    /// Blocks that were summed over them.
    ring_blocks: u64,
    /// Rings that were left for the daemon.
    returns: u64,
    /// Of these, jobs that the daemon took up again.
    returned: u64,
    /// Answers of a parent that were handed on to a member.
    relays: u64,
    /// Members that were told of the loss of a branch, and go on.
    branches_lost: u64,
    /// Members that were told that a lost branch is taken back.
    branches_back: u64,
    /// Epochs in which another aggregator stands in for a lost one.
    stood_in: u64,
    /// Blocks of keys that were agreed upon.
    keys: u64,
    /// Of these, behind data of their call: what a call begins with is not enough for it.
    keys_behind: u64,
    /// Of these, again: in another epoch than the first time, because no member had them.
    keys_again: u64,
    /// Blocks of keys that were handed on to members of a new epoch.
    keys_copied: u64,
    /// Blocks that their root alone contributed.
    roots: u64,
    /// Questions for such blocks.
    questions: u64,
    /// Such blocks that came before their call.
    early: u64,
}

/// What can be added up over runs.
trait Count {
    /// Adds that of other runs.
    fn add(&mut self, other: &Self);
}

impl Count for u64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }
}

impl<const N: usize> Count for [u64; N] {
    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.iter_mut().zip(other) {
            *mine += theirs;
        }
    }
}

impl Count for BTreeMap<&'static str, u64> {
    fn add(&mut self, other: &Self) {
        for (kind, count) in other {
            *self.entry(kind).or_default() += count;
        }
    }
}

impl Stats {
    /// Takes over what the checker has counted.
    pub(crate) const fn count_keys(&mut self, counts: KeyCounts) {
        let KeyCounts { agreed, again, copied, behind } = counts;
        self.keys = agreed;
        self.keys_again = again;
        self.keys_copied = copied;
        self.keys_behind = behind;
    }

    pub(crate) fn count_error(&mut self, error: &Error) {
        *self.errors.entry(name(error)).or_default() += 1;
    }

    pub(crate) fn count_reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Reform { lost, reason } => {
                self.reforms += 1;
                self.branches_lost += u64::from(lost.is_empty());
                let back = reason.starts_with("the aggregator") && reason.ends_with("is back");
                self.branches_back += u64::from(back);
            }
            Reply::Resumed => self.resumes += 1,
            Reply::Pause { .. } => self.pauses += 1,
            _ => {}
        }
    }

    /// A data path answers a packet, of a member or of the parent.
    pub(crate) const fn count_answer(&mut self, answer: &Answer, from_above: bool) {
        match answer {
            Answer::Parent { .. } => self.sums_up += 1,
            Answer::Members { .. } if from_above => self.deliveries += 1,
            Answer::Members { header, .. } => {
                self.roots += matches!(header.reduction, Reduction::Copy) as u64;
            }
            Answer::Member { .. } => self.relays += 1,
            _ => {}
        }
    }

    /// The first member of an epoch is told of its plan.
    pub(crate) fn count_plan(&mut self, admitted: &Admitted, rank: u16) {
        let Some(plan) = &admitted.plan else { return };
        if admitted.members.trailing_zeros() != u32::from(rank) {
            return;
        }
        for run in &plan.runs {
            match run.kind {
                RunKind::Copy { .. } => self.copies += run.len,
                RunKind::Redo => self.redone += run.len,
                RunKind::Skip => {}
            }
        }
    }

    /// For people, one line each.
    pub fn lines(&self) -> Vec<String> {
        let Self { runs, violations, events, calls, results, .. } = self;
        let mut lines = vec![
            format!("runs        {runs}, {violations} with violations; {events} events"),
            format!("calls       {calls} with a result ({results} results of blocks)"),
        ];
        let list = |pairs: Vec<(String, u64)>| {
            let words: Vec<_> = pairs.iter().map(|(what, n)| format!("{n} {what}")).collect();
            if words.is_empty() { "none".into() } else { words.join(", ") }
        };
        let errors = self.errors.iter().map(|(kind, count)| ((*kind).to_owned(), *count));
        lines.push(format!("errors      {}", list(errors.collect())));
        let faults = Fault::KINDS.iter().zip(self.faults);
        let faults = faults.map(|(kind, count)| ((*kind).to_owned(), count));
        lines.push(format!("faults      {}", list(faults.collect())));
        let Self { packets, lost, duplicated, late, hostile, .. } = self;
        lines.push(format!(
            "packets     {packets} sent, {lost} lost, {duplicated} twice, {late} late, {hostile} \
             by strangers"
        ));
        let Self { admissions, reforms, resumes, taken_over, pauses, put_out, leaves, .. } = self;
        lines.push(format!(
            "membership  {admissions} admitted, {reforms} told of a loss, {resumes} resumed, \
             {taken_over} jobs taken over, {pauses} paused for a rank that joins, {put_out} put \
             out, {leaves} left"
        ));
        let Self { rings, ring_blocks, returns, returned, .. } = self;
        lines.push(format!(
            "rings       {rings}, {ring_blocks} blocks summed over them; {returns} left for the \
             daemon, {returned} jobs taken up by it"
        ));
        let Self { trees, sums_up, deliveries, relays, branches_lost, .. } = self;
        let Self { branches_back, stood_in, .. } = self;
        lines.push(format!(
            "trees       {trees} runs, {sums_up} sums sent up, {deliveries} results taken down, \
             {relays} answers handed on, {branches_lost} told of a branch's loss or a \
             return, {branches_back} of these that a branch is taken back; {stood_in} epochs with \
             an aggregator in a lost one's place"
        ));
        let Self { copies, redone, .. } = self;
        lines.push(format!("plans       {copies} blocks handed on, {redone} summed again"));
        let Self { keys, keys_behind, keys_again, keys_copied, .. } = self;
        lines.push(format!(
            "keys        {keys} blocks agreed upon, {keys_behind} of them behind data, \
             {keys_again} in a later epoch; {keys_copied} handed on"
        ));
        let Self { roots, questions, early, .. } = self;
        lines.push(format!(
            "broadcasts  {roots} blocks of their roots alone, {questions} questions, {early} early"
        ));
        lines
    }
}

/// The kind of an error.
pub(crate) const fn name(error: &Error) -> &'static str {
    match error {
        Error::Aborted(AbortReason::MemberLost { .. }) => "member lost",
        Error::Aborted(AbortReason::Member { .. }) => "member gave up",
        Error::Aborted(AbortReason::Timeout { .. }) => "timeout at the daemon",
        Error::Aborted(AbortReason::Expelled) => "expelled",
        Error::Aborted(AbortReason::Branch { .. }) => "branch lost",
        Error::Aborted(AbortReason::Unrecoverable { .. }) => "unrecoverable",
        Error::Aborted(_) => "aborted otherwise",
        Error::Deadline { limit: Limit::Stall, .. } => "stall",
        Error::Deadline { .. } => "deadline",
        Error::AggregatorLost(_) => "aggregator lost",
        Error::Unreachable { .. } => "unreachable",
        Error::Refused { .. } => "refused",
        Error::Caller(_) => "ring lost",
        Error::DataPath { .. } => "no data path",
        _ => "other",
    }
}
