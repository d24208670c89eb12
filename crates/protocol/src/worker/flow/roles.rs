//! Which blocks a worker contributes to, and which it only waits for.
//!
//! [`xdp_agg_common::copies`] says which blocks of a broadcast are the root's alone.

use std::collections::VecDeque;

use xdp_agg_common::copies::is_full;

/// What a worker has to do with the blocks of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRole {
    /// All workers contribute.
    All,
    /// A broadcast, of this worker's elements.
    Root,
    /// A broadcast of another worker's elements.
    Listener,
}

/// What a worker has to do with one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Contribute, as all do.
    Sum,
    /// Contribute, as all do, to a broadcast's block.
    Full,
    /// Contribute, alone: a solo block.
    Solo,
    /// Wait for the root's, and ask for what does not come.
    Listen,
}

/// The roles of the blocks that a flow was given, by runs.
#[derive(Debug)]
pub(super) struct Roles {
    /// Each run's end, and its role; the last one's end is the flow's.
    runs: VecDeque<(u64, CallRole)>,
    /// Runs that are this worker's broadcasts.
    roots: usize,
}

impl Roles {
    pub(super) const fn new() -> Self {
        Self { runs: VecDeque::new(), roots: 0 }
    }

    /// The blocks behind the last run, up to `end`, are of this role.
    pub(super) fn extend(&mut self, end: u64, role: CallRole) {
        match self.runs.back_mut() {
            Some(last) if last.1 == role => last.0 = end,
            _ => {
                self.runs.push_back((end, role));
                self.roots += usize::from(role == CallRole::Root);
            }
        }
    }

    /// Blocks below this one will not be asked about.
    pub(super) fn forget(&mut self, base: u64) {
        while let Some(&(end, role)) = self.runs.front()
            && end <= base
        {
            self.roots -= usize::from(role == CallRole::Root);
            self.runs.pop_front();
        }
    }

    /// What this worker has to do with a block. One that no run has is as one of a sum.
    pub(super) fn of(&self, number: u64) -> Role {
        let run = self.runs.iter().find(|(end, _)| number < *end);
        match run.map_or(CallRole::All, |(_, role)| *role) {
            CallRole::All => Role::Sum,
            CallRole::Root | CallRole::Listener if is_full(number) => Role::Full,
            CallRole::Root => Role::Solo,
            CallRole::Listener => Role::Listen,
        }
    }

    /// Whether the block's results are another worker's broadcast.
    pub(super) fn is_heard(&self, number: u64) -> bool {
        let run = self.runs.iter().find(|(end, _)| number < *end);
        run.is_some_and(|(_, role)| *role == CallRole::Listener)
    }

    /// Whether some of the blocks are this worker's broadcast.
    pub(super) const fn has_root(&self) -> bool {
        self.roots > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_tell_what_to_do_with_a_block() {
        let mut roles = Roles::new();
        for (end, role) in [
            (3, CallRole::All),
            (20, CallRole::Root),
            (30, CallRole::Root),
            (40, CallRole::Listener),
        ] {
            roles.extend(end, role);
        }
        for (number, role) in [
            (0, Role::Sum),
            (3, Role::Solo),
            (16, Role::Full),
            (29, Role::Solo),
            (30, Role::Listen),
            (32, Role::Full),
            (40, Role::Sum),
        ] {
            assert_eq!(roles.of(number), role, "block {number}");
        }
        assert!(roles.has_root() && !roles.is_heard(29) && roles.is_heard(32));
        roles.forget(29);
        assert!(roles.has_root());
        roles.forget(30);
        assert!(!roles.has_root() && roles.of(33) == Role::Listen);
        roles.forget(40);
        assert!(roles.runs.is_empty());
    }
}
