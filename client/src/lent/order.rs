//! Turns: calls begin in the order in which they were made, and parts of them that must be done
//! again follow the same order.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Turns, which come one after the other, and are taken in any.
#[derive(Debug, Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The next turn that is given out.
    given: u64,
    /// All turns below are over.
    over: u64,
    /// Turns above that are over.
    early: BTreeSet<u64>,
}

impl Order {
    /// The next turn.
    pub(super) fn next(&self) -> u64 {
        let mut state = self.state.lock();
        state.given += 1;
        state.given - 1
    }

    /// True if all turns before this one are over.
    pub(super) fn is_due(&self, turn: u64) -> bool {
        self.state.lock().over == turn
    }

    /// Waits until all turns before this one are over, at most for `at_most`. True: they are.
    pub(super) fn wait(&self, turn: u64, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if state.over < turn {
            self.changed.wait_while_for(&mut state, |state| state.over < turn, at_most);
        }
        state.over >= turn
    }

    /// This turn is over, whether it came or not.
    pub(super) fn end(&self, turn: u64) {
        let mut state = self.state.lock();
        state.early.insert(turn);
        let mut over = state.over;
        while state.early.remove(&over) {
            over += 1;
        }
        state.over = over;
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_comes_when_all_before_are_over() {
        let order = Order::default();
        let [first, second, third] = [(); 3].map(|()| order.next());
        assert!(order.is_due(first) && !order.is_due(second));
        order.end(second);
        assert!(!order.wait(third, Duration::ZERO));
        order.end(first);
        assert!(order.wait(third, Duration::ZERO) && order.is_due(third));
    }
}
