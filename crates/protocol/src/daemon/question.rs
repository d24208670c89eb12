//! Which ranks have not contributed to a block, where several aggregators are to tell.

use std::time::{Duration, Instant};

use xdp_agg_common::control::BranchRequest;

use super::job::bits_of;
use super::open::Question;
use super::{ConnId, Jobs, LinkId};

/// How long branches may take to answer: less than a worker whose call is over waits for it.
const ANSWER_TIME: Duration = Duration::from_millis(500);

impl Jobs {
    /// Asks all aggregators of a tree which ranks have not contributed to a block.
    pub(super) fn ask_tree(&mut self, conn: ConnId, job_id: u16, (block, of): (u64, Option<u64>)) {
        let Some(life) = self.jobs.get(&job_id).map(|job| &job.life) else {
            return;
        };
        let open = life.trunk.links.values().map(|link| link.id).collect();
        let (epoch, asked) = (life.epoch, self.clock);
        let left = bits_of(&life.left);
        let (answered, bits) = (false, 0);
        let question = Question { job_id, epoch, block, of, asked, open, answered, bits, left };
        self.questions.insert(conn, question);
        self.tell_branches(job_id, &BranchRequest::Missing { block });
    }

    /// This daemon's engine has said which ranks are missing.
    pub(super) fn root_misses(&mut self, conn: ConnId, block: u64, bits: u64) {
        let Some(question) = self.questions.get_mut(&conn) else {
            // Nobody else is asked.
            self.tell_missing(conn, block, bits);
            return self.keep_waiting(conn, bits, self.clock);
        };
        let tree = self.jobs.get(&question.job_id).map(|job| &job.life.trunk.tree);
        let below = tree.map_or(0, |tree| {
            let all = (0..tree.branches.len()).map(|index| tree.leaves(index));
            all.fold(0, |bits, leaves| bits | leaves)
        });
        question.bits |= bits & !below;
        question.answered = true;
        self.answer_questions();
    }

    /// A branch has said which ranks are missing.
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

    /// When the wait for branches ends.
    pub(super) fn questions_due(&self) -> Option<Instant> {
        let answered = self.questions.values().filter(|question| question.answered);
        answered.map(|question| question.asked + ANSWER_TIME).min()
    }

    /// Tells what is known, without the branches that have not answered in time.
    pub(super) fn end_questions(&mut self) {
        let now = self.clock;
        for question in self.questions.values_mut() {
            if question.asked + ANSWER_TIME <= now {
                question.open.clear();
            }
        }
        self.answer_questions();
    }

    fn answer_questions(&mut self) {
        let done =
            |_: &ConnId, question: &mut Question| question.answered && question.open.is_empty();
        let done: Vec<_> = self.questions.extract_if(.., done).collect();
        for (conn, Question { job_id, epoch, block, of, asked, bits, left, .. }) in done {
            self.tell_missing(conn, block, bits);
            // Another epoch has other blocks, and its members have said nothing of these.
            let Some(life) = self.jobs.get(&job_id).map(|job| &job.life) else { continue };
            if life.epoch != epoch {
                continue;
            }
            // A rank that left since it was asked may have contributed before it did.
            let since = bits_of(&life.left) & bits & !left;
            if since == 0 {
                self.keep_waiting(conn, bits, asked);
            } else {
                self.missing(conn, job_id, (block, of));
            }
        }
    }
}
