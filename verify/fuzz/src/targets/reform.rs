//! What becomes of blocks when a job gets a new epoch, from progress that any member may claim.
//!
//! An input that begins with `[` is JSON, `[[rank, progress], …]` or a plan, as they come over
//! the control connection. Any other is a script for progress of a more likely kind.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use xdp_agg_common::reform::{BlockMap, Held, Plan, PlanError, Progress, Run, RunKind, SPAN_MAX};

use crate::script::Script;
use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "reform",
    about: "plans for a new epoch from any progress, and their tables",
    run,
    text: false,
    tokens: include_str!("../../dictionaries/reform.txt"),
    features: &FEATURES,
};

const FEATURES: [&str; 10] = [
    "a plan",
    "no source",
    "impossible",
    "skip",
    "redo",
    "copy",
    "json",
    "a plan in json",
    "a long span",
    "one member",
];

/// A daemon must not be held up for longer by what one worker says.
const PLAN_TIME: Duration = Duration::from_secs(1);
/// Every block of a span up to this is looked at.
const LOOKED_AT: u64 = 4096;

type Members = Vec<(u16, Progress)>;

fn run(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    if input.first() == Some(&b'[') {
        if let Ok(members) = serde_json::from_slice::<Members>(input) {
            outcome.note(6);
            // The daemon asks each rank once.
            let ranks: BTreeSet<u16> = members.iter().map(|(rank, _)| *rank).collect();
            if ranks.len() == members.len() {
                plan(&members, &mut outcome);
            }
        }
        if let Ok([plan]) = serde_json::from_slice::<[Plan; 1]>(input) {
            outcome.note(7);
            // What a worker asks before it uses a plan.
            if plan.is_possible() {
                table(&plan, None, &mut outcome);
            }
        }
    } else {
        plan(&members(input), &mut outcome);
    }
    outcome
}

/// Members as they may well be: around one place, most of them honest.
fn members(input: &[u8]) -> Members {
    let mut script = Script::new(input);
    let count = 1 + script.below(6);
    let around = script.number();
    (0..count)
        .map(|rank| {
            let base = around.wrapping_add(script.number());
            let next_sequence = script.number();
            let runs = script.below(8);
            let mut at =
                if script.below(2) == 1 { base.saturating_sub(script.number()) } else { base };
            let held = (0..runs).map(|_| {
                let from = at.wrapping_add(script.number());
                let len = script.number();
                at = from.wrapping_add(len);
                Held { from, len, members: script.number() }
            });
            let held = held.collect();
            (u16::from(rank), Progress { base, next_sequence, held })
        })
        .collect()
}

fn plan(members: &Members, outcome: &mut Outcome) {
    let start = Instant::now();
    let result = Plan::new(members);
    assert!(start.elapsed() < PLAN_TIME, "a plan took {:?}", start.elapsed());
    match result {
        Ok(plan) => {
            outcome.note(0);
            outcome.accepted = true;
            if members.len() == 1 {
                outcome.note(9);
            }
            assert!(plan.is_possible());
            check(members, &plan);
            table(&plan, Some(members), outcome);
        }
        Err(PlanError::NoSource(block)) => {
            outcome.note(1);
            outcome.accepted = true;
            assert!(members.iter().any(|(_, progress)| has(progress, block)));
            assert!(members.iter().all(|(_, progress)| held(progress, block).is_none()));
        }
        Err(PlanError::Impossible { rank }) => {
            outcome.note(2);
            assert!(members.iter().any(|(other, _)| *other == rank));
        }
    }
}

/// Whether any member has a block, by the words of `reform.rs` and without its code.
fn has(progress: &Progress, block: u64) -> bool {
    block < progress.base || held(progress, block).is_some()
}

fn held(progress: &Progress, block: u64) -> Option<u64> {
    let of = progress.held.iter().find(|h| h.from <= block && block - h.from < h.len);
    of.map(|held| held.members)
}

fn check(members: &Members, plan: &Plan) {
    let span: u64 = plan.runs.iter().map(|run| run.len).sum();
    assert!(span <= SPAN_MAX && plan.runs.iter().all(|run| run.len > 0));
    assert!(plan.runs.windows(2).all(|pair| pair[0].kind != pair[1].kind), "not joined");
    // Every change of fate has its cause in a claim.
    let claims: usize = members.iter().map(|(_, progress)| 2 * progress.held.len() + 1).sum();
    assert!(plan.runs.len() <= claims + 1, "{} runs of {claims} claims", plan.runs.len());
    let mut block = plan.from;
    for Run { len, kind } in &plan.runs {
        for block in [block, block + len / 2, block + len - 1] {
            fate(members, block, kind);
        }
        block += len;
    }
    assert!(members.iter().all(|(_, progress)| !has(progress, block)), "more behind the end");
}

fn fate(members: &Members, block: u64, kind: &RunKind) {
    let holders = members.iter().filter(|(_, progress)| has(progress, block)).count();
    match kind {
        RunKind::Skip => assert_eq!(holders, members.len(), "block {block} is not with all"),
        RunKind::Redo => assert_eq!(holders, 0, "block {block} is with somebody"),
        RunKind::Copy { source, members: sum } => {
            assert!(holders > 0 && holders < members.len());
            let source = members.iter().find(|(rank, _)| rank == source).map(|(_, p)| p);
            assert_eq!(source.and_then(|p| held(p, block)), Some(*sum), "block {block}");
        }
    }
}

/// The table of a plan agrees with itself.
fn table(plan: &Plan, members: Option<&Members>, outcome: &mut Outcome) {
    for run in &plan.runs {
        outcome.note(match run.kind {
            RunKind::Skip => 3,
            RunKind::Redo => 4,
            RunKind::Copy { .. } => 5,
        });
    }
    let map = BlockMap::new(plan);
    let span = plan.runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.len));
    if span > LOOKED_AT {
        outcome.note(8);
    }
    let mut next = 0;
    for block in plan.from..plan.from.saturating_add(span.min(LOOKED_AT) + 4) {
        assert_eq!(map.count_before(block), next, "block {block}");
        if let Some((epoch, kind)) = map.to_epoch(block) {
            assert_eq!(epoch, next, "block {block}");
            assert_eq!(map.to_job(epoch), (block, kind));
            next += 1;
            if let Some(members) = members {
                fate(members, block, &kind);
            }
        }
    }
}
