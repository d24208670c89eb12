//! Who has not contributed to a block, where several aggregators are to tell.

use std::collections::{BTreeMap, BTreeSet};

use xdp_agg_common::control::BranchRequest;

use super::{ConnId, Jobs, LinkId};

/// A question that several aggregators are to answer.
#[derive(Clone, Debug)]
pub(super) struct Question {
    job_id: u16,
    block: u64,
    /// Links whose answer is awaited.
    open: BTreeSet<LinkId>,
    /// This daemon's engine has answered.
    answered: bool,
    /// Ranks that are awaited, as far as is known.
    bits: u64,
}

impl Jobs {
    /// Asks all aggregators of a tree who has not contributed to a block.
    pub(super) fn ask_tree(&mut self, conn: ConnId, job_id: u16, block: u64) {
        let links = self.jobs.get(&job_id).map(|job| &job.life.trunk.links);
        let open = links.into_iter().flat_map(BTreeMap::values).map(|link| link.id).collect();
        let question = Question { job_id, block, open, answered: false, bits: 0 };
        self.questions.insert(conn, question);
        self.tell_branches(job_id, &BranchRequest::Missing { block });
    }

    /// This daemon's engine has said who is missing. Some: nobody else is asked, or all have said.
    pub(super) fn root_misses(&mut self, conn: ConnId, bits: u64) -> Option<u64> {
        let Some(question) = self.questions.get_mut(&conn) else {
            return Some(bits);
        };
        let tree = self.jobs.get(&question.job_id).map(|job| &job.life.trunk.tree);
        let below = tree.map_or(0, |tree| {
            let all = (0..tree.branches.len()).map(|index| tree.leaves(index));
            all.fold(0, |bits, leaves| bits | leaves)
        });
        question.bits |= bits & !below;
        question.answered = true;
        let bits = question.bits;
        if question.open.is_empty() {
            self.questions.remove(&conn);
            return Some(bits);
        }
        None
    }

    /// A branch has said it.
    pub(super) fn branch_misses(&mut self, link: LinkId, block: u64, bits: u64) {
        let asked = |question: &Question| question.block == block && question.open.contains(&link);
        let conn = self.questions.iter().find(|(_, q)| asked(q)).map(|(conn, _)| *conn);
        if let Some(question) = conn.and_then(|conn| self.questions.get_mut(&conn)) {
            question.bits |= bits;
            question.open.remove(&link);
        }
        self.answer_questions();
    }

    /// A branch will not answer any more.
    pub(super) fn forget_questions(&mut self, link: LinkId) {
        for question in self.questions.values_mut() {
            question.open.remove(&link);
        }
        self.answer_questions();
    }

    fn answer_questions(&mut self) {
        let done =
            |_: &ConnId, question: &mut Question| question.answered && question.open.is_empty();
        let done: Vec<_> = self.questions.extract_if(.., done).collect();
        for (conn, question) in done {
            self.tell_missing(conn, question.block, question.bits);
        }
    }
}
