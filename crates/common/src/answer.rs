//! The answer rule: what goes out for a packet that a slot was asked about, and what is counted.
//!
//! Kernel program, user-space engine and the fuzzer's model of the former call these functions.
//! They put the packets together, and count what is theirs alone to know: refusals, and the packets
//! that a result for all members becomes ([`JobCounters::copies`]).

use crate::admission::Reply;
use crate::lanes::Chunk;
use crate::maps::{JobCounters, Reject};
use crate::slot::{Contribution, Outcome, Payload, Pool, SlotState, Verdict, take_result};

/// What goes out for a packet. Without fields, so that the compiler never moves an undefined one
/// through the kernel program, which the verifier would refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    Nothing,
    /// The packet's lanes, to the sender as a result.
    Resend,
    /// [`Outcome::word`] in one chunk, to the sender: its packet arrived.
    Pending,
    /// The same, to a sender that has to end the job.
    Mismatch,
    /// The packet's lanes, to all members as a result.
    All,
    /// The packet's lanes, to the parent as our contribution.
    Parent,
    /// The packet, which is the parent's, to one member.
    Member,
}

impl Outcome {
    /// What goes out for a contribution or a question.
    #[inline(always)]
    #[must_use]
    pub const fn reaction(&self, pool: Pool) -> Reaction {
        match self.verdict {
            Verdict::Store { complete } | Verdict::Add { complete } => match complete {
                true if pool.forwards() => Reaction::Parent,
                true => Reaction::All,
                false => Reaction::Nothing,
            },
            Verdict::Resend => Reaction::Resend,
            Verdict::Pending => Reaction::Pending,
            Verdict::Forward => Reaction::Parent,
            // The only refusal with an answer.
            Verdict::Reject(Reject::Mismatch) => Reaction::Mismatch,
            Verdict::Stale | Verdict::Reject(_) => Reaction::Nothing,
        }
    }

    /// What an answer of one chunk tells: the ranks that have contributed, as bits; of a mismatch,
    /// the tag of the first contribution.
    #[inline(always)]
    #[must_use]
    pub const fn word(&self) -> u64 {
        if let Verdict::Pending = self.verdict { self.seen } else { self.tag as u64 }
    }
}

/// Takes in what the parent said of a block: the critical section of the block's slot, as
/// [`crate::slot::take_in`] is for contributions. The second part is the rank of the recipient,
/// where it is one member.
#[inline(always)]
#[must_use]
pub fn take_reply(
    (state, lanes): (&mut SlotState, &mut [Chunk]),
    pool: Pool,
    members: u64,
    (reply, said): (Reply, &Contribution),
    packet: &mut (impl Payload + ?Sized),
) -> (Reaction, u16) {
    match reply {
        Reply::Result if take_result((state, lanes), pool, members, said, packet) => {
            (Reaction::All, said.rank)
        }
        Reply::Pending => match state.waiting(pool, members, said.epoch, said.block) {
            Some(rank) => (Reaction::Member, rank),
            None => (Reaction::Nothing, said.rank),
        },
        // One member ends the job for all.
        Reply::Mismatch => (Reaction::Member, members.trailing_zeros() as u16),
        Reply::Path | Reply::Result => (Reaction::Nothing, said.rank),
    }
}

impl JobCounters {
    /// Counts a contribution or a question (`asks`) that was not refused.
    #[inline(always)]
    pub fn note(&mut self, outcome: &Outcome, asks: bool, pool: Pool) {
        let verdict = outcome.verdict;
        self.duplicates += verdict.is_repetition(asks) as u64;
        match verdict {
            Verdict::Store { complete } | Verdict::Add { complete } => {
                self.contributions += 1;
                self.blocks += complete as u64;
                self.forwards += (complete && pool.forwards()) as u64;
                // A block that its first contribution completes takes no time.
                if outcome.timed != 0 && matches!(verdict, Verdict::Add { complete: true }) {
                    self.times.note(outcome.timed);
                }
            }
            Verdict::Resend => {
                self.resends += 1;
                self.copies += 1;
            }
            Verdict::Pending => self.pendings += 1,
            Verdict::Forward => self.forwards_again += 1,
            Verdict::Stale => self.stale += 1,
            Verdict::Reject(_) => {}
        }
    }

    /// Counts what the parent said of a block, by what [`take_reply`] made of it.
    #[inline(always)]
    pub fn note_reply(&mut self, reaction: Reaction) {
        match reaction {
            Reaction::All => self.deliveries += 1,
            Reaction::Member => self.relays += 1,
            _ => self.late += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reduction;

    const ROOT: Pool = Pool::new(8).expect("a power of two");
    const BELOW: Pool = ROOT.forwarding(true);

    /// The whole table: what goes out, and what is counted.
    #[test]
    fn each_verdict_has_its_answer_and_its_counters() {
        let (add, store) =
            (|complete| Verdict::Add { complete }, |complete| Verdict::Store { complete });
        let zero = JobCounters::default();
        let one = JobCounters { contributions: 1, ..zero };
        let block = JobCounters { blocks: 1, ..one };
        let again = JobCounters { duplicates: 1, ..zero };
        let rows = [
            (add(false), ROOT, Reaction::Nothing, one),
            (store(false), BELOW, Reaction::Nothing, one),
            (add(true), ROOT, Reaction::All, block),
            (store(true), ROOT, Reaction::All, block),
            (add(true), BELOW, Reaction::Parent, JobCounters { forwards: 1, ..block }),
            (
                Verdict::Resend,
                ROOT,
                Reaction::Resend,
                JobCounters { resends: 1, copies: 1, ..again },
            ),
            (Verdict::Pending, ROOT, Reaction::Pending, JobCounters { pendings: 1, ..again }),
            (Verdict::Forward, BELOW, Reaction::Parent, JobCounters { forwards_again: 1, ..again }),
            (Verdict::Stale, ROOT, Reaction::Nothing, JobCounters { stale: 1, ..zero }),
            (Verdict::Reject(Reject::Window), ROOT, Reaction::Nothing, zero),
            (Verdict::Reject(Reject::Mismatch), ROOT, Reaction::Mismatch, zero),
        ];
        for (verdict, pool, reaction, counted) in rows {
            let outcome = Outcome { verdict, seen: 0b101, flags: 1, tag: 9, timed: 0 };
            assert_eq!(outcome.reaction(pool), reaction, "{verdict:?}");
            let word = if verdict == Verdict::Pending { 0b101 } else { 9 };
            assert_eq!(outcome.word(), word, "the ranks, or the tag of the first one");
            let mut counters = zero;
            counters.note(&outcome, false, pool);
            assert_eq!(counters, counted, "{verdict:?}");
            let mut timed = zero;
            timed.note(&Outcome { timed: 5000, ..outcome }, false, pool);
            let (completes, count) = (verdict == add(true), u64::from(timed.times.nanos == 5000));
            assert_eq!((timed.times.total(), count), (completes.into(), completes.into()));
            assert_eq!(timed.duplicates == 1, verdict.is_repetition(false), "{verdict:?}");
            let mut asked = zero;
            asked.note(&outcome, true, pool);
            if matches!(verdict, Verdict::Resend | Verdict::Pending) {
                assert_eq!(asked, JobCounters { duplicates: 0, ..counted }, "a question");
            }
        }
    }

    #[test]
    fn what_the_parent_says_goes_to_all_or_to_the_member_that_asked() {
        let zero = JobCounters::default();
        let of = |rank| Contribution {
            rank,
            epoch: 1,
            tag: 7,
            chunks: 1,
            flags: 0,
            reduction: Reduction::Add,
            asks: false,
            block: 3,
        };
        let (mut state, mut lanes) = (SlotState::default(), [Chunk::default()]);
        for rank in [1, 2] {
            state.contribute(BELOW, 0b110, &of(rank));
        }
        let mut packet = [Chunk::default()];
        let mut said = |state: &mut SlotState, reply: Reply| {
            let held = (state, &mut lanes[..]);
            let answer = take_reply(held, BELOW, 0b110, (reply, &of(0)), &mut packet[..]);
            let mut counters = zero;
            counters.note_reply(answer.0);
            (answer, counters)
        };
        let late = ((Reaction::Nothing, 0), JobCounters { late: 1, ..zero });
        let relayed = JobCounters { relays: 1, ..zero };
        assert_eq!(said(&mut state, Reply::Pending), late, "nobody asked");
        assert_eq!(state.contribute(BELOW, 0b110, &of(2)), Verdict::Forward);
        assert_eq!(said(&mut state, Reply::Pending), ((Reaction::Member, 2), relayed));
        assert_eq!(said(&mut state, Reply::Mismatch), ((Reaction::Member, 1), relayed));
        let delivered = ((Reaction::All, 0), JobCounters { deliveries: 1, ..zero });
        assert_eq!(said(&mut state, Reply::Result), delivered);
        assert_eq!(said(&mut state, Reply::Result), late, "it is here already");
    }
}
