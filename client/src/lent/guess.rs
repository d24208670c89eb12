//! Guesses of an exact sum's spans, by those of the last sum like it.
//!
//! A guess saves a short vector the round in which the workers agree. Each worker says with its
//! digits whether its elements have room in them; if one's have not, all workers agree as usual.
//! All ranks guess alike. They begin the same calls in the same order, each once the decision on
//! the one before is known, and learn from agreed numbers alone. If their guesses differed, so
//! would the purposes of their calls, which is an error and not a wrong sum.

use std::collections::HashMap;

use xdp_agg_quantize::ElementType;
use xdp_agg_quantize::exact::{Digits, Span};

/// Elements of the longest vector for which it is worth it: a round takes as long as some packets.
const UP_TO: usize = 1024;
/// Vectors that are told apart; a program has few lengths.
const KINDS: usize = 256;
/// Rows that a guess has at most.
const ROWS: usize = 4;
/// Calls that agree at once after guesses that were wrong, at most.
const LONGEST_PAUSE: u32 = 63;

/// Guesses for vectors by their type and length.
#[derive(Debug, Default)]
pub(super) struct Guesses(HashMap<(ElementType, usize), Guess>);

#[derive(Debug, Default)]
struct Guess {
    /// What each group needed so far.
    spans: Vec<Span>,
    /// Calls that agree at once before the next guess.
    pause: u32,
    /// The last pause.
    last_pause: u32,
}

impl Guesses {
    /// The spans to try for such a vector. None: the workers agree first.
    pub(super) fn take(
        &mut self,
        of: ElementType,
        len: usize,
        digits: Digits,
    ) -> Option<Vec<Span>> {
        let guess = self.0.get_mut(&(of, len))?;
        if guess.pause > 0 {
            guess.pause -= 1;
            return None;
        }
        Some(guess.spans.iter().map(|span| digits.filled(*span)).collect())
    }

    /// Whether all elements had room. If not, no guess is made for some calls, each time for twice
    /// the number of calls.
    pub(super) fn was(&mut self, right: bool, of: ElementType, len: usize) {
        let Some(guess) = self.0.get_mut(&(of, len)) else { return };
        guess.pause = if right { 0 } else { (guess.last_pause * 2).clamp(1, LONGEST_PAUSE) };
        guess.last_pause = guess.pause;
    }

    /// What the workers agreed on.
    pub(super) fn learn(&mut self, of: ElementType, len: usize, digits: Digits, spans: &[Span]) {
        if len > UP_TO {
            return;
        }
        if self.0.len() >= KINDS && !self.0.contains_key(&(of, len)) {
            self.0.clear();
        }
        let guess = self.0.entry((of, len)).or_default();
        guess.spans.resize(spans.len(), Span::EMPTY);
        for (known, span) in guess.spans.iter_mut().zip(spans) {
            let both = known.joined(*span).of_numbers();
            let wide = digits.rows(both) > ROWS;
            *known = if wide { span.of_numbers() } else { both };
        }
    }
}

#[cfg(test)]
mod tests {
    use xdp_agg_quantize::exact::survey;

    use super::*;

    const F32: ElementType = ElementType::F32;

    fn digits() -> Digits {
        Digits::new(1 << 28)
    }

    #[test]
    fn what_was_agreed_has_room_in_the_next_guess() {
        let mut guesses = Guesses::default();
        assert_eq!(guesses.take(F32, 3, digits()), None);
        let span = survey(&[1.0_f32, 3.5, -1e3]);
        guesses.learn(F32, 3, digits(), &[span]);
        let guess = guesses.take(F32, 3, digits()).expect("it was learnt");
        assert!(guess[0].holds(span) && guess[0].holds(survey(&[0.5_f32, 2e3])));
        assert_eq!(digits().rows(guess[0]), digits().rows(span), "it is no longer");
        assert!(!guess[0].holds(survey(&[f32::NAN])) && !guess[0].holds(survey(&[1e-30_f32])));
        assert_eq!(guesses.take(F32, 4, digits()), None, "of another length");
    }

    #[test]
    fn guesses_grow_but_not_beyond_some_rows() {
        let mut guesses = Guesses::default();
        let (small, large) = (survey(&[1e-9_f32]), survey(&[1e9_f32]));
        guesses.learn(F32, 1, digits(), &[small]);
        guesses.learn(F32, 1, digits(), &[large]);
        let guess = guesses.take(F32, 1, digits()).expect("learnt")[0];
        assert!(guess.holds(small) && guess.holds(large));
        let tiny = survey(&[f32::MIN_POSITIVE]);
        guesses.learn(F32, 1, digits(), &[tiny]);
        let guess = guesses.take(F32, 1, digits()).expect("learnt")[0];
        assert!(guess.holds(tiny) && !guess.holds(large));
        guesses.learn(F32, UP_TO + 1, digits(), &[small]);
        assert_eq!(guesses.take(F32, UP_TO + 1, digits()), None);
    }

    #[test]
    fn wrong_guesses_pause_longer_and_longer() {
        let mut guesses = Guesses::default();
        guesses.learn(F32, 1, digits(), &[survey(&[1.0_f32])]);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(guesses.take(F32, 1, digits()).is_some());
            guesses.was(false, F32, 1);
            let calls = (0..).take_while(|_| {
                guesses.0[&(F32, 1)].pause > 0 && {
                    guesses.take(F32, 1, digits());
                    true
                }
            });
            pauses.push(calls.count());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 63, 63]);
        guesses.was(true, F32, 1);
        guesses.was(false, F32, 1);
        assert_eq!(guesses.0[&(F32, 1)].pause, 1);
    }

    #[test]
    fn there_are_only_some_kinds() {
        let mut guesses = Guesses::default();
        for len in 1..2 * KINDS {
            guesses.learn(F32, len, digits(), &[survey(&[1.0_f32])]);
            assert!(guesses.0.len() <= KINDS);
        }
    }
}
