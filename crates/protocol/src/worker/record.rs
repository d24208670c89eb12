//! What is remembered of a call: its arguments, and when what of it happened.

use std::fmt;
use std::time::Duration;

use xdp_agg_quantize::{ElementType, Op};

use super::report::Report;

/// When what of a call happened, by the clock of the machine's caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The call was made.
    pub made: Duration,
    /// It was cut into blocks: they may be sent.
    pub begun: Option<Duration>,
    /// Its first packet left.
    pub first_sent: Option<Duration>,
    /// Its first result came.
    pub first_result: Option<Duration>,
    /// Its last result came.
    pub last_result: Option<Duration>,
    /// All of it was done, copies in the memory of the host included.
    pub done: Option<Duration>,
    /// Longest time without a result, once its first packet had left.
    pub wait: Duration,
    /// Longest time in which nobody drove the machine: the process was stopped, or had no CPU.
    pub gap: Duration,
    /// Packets that were sent again.
    pub repetitions: u32,
    /// Answers that other workers are waited for.
    pub pendings: u32,
}

impl Timeline {
    pub(crate) fn sent(&mut self, first_time: bool, now: Duration) {
        self.first_sent.get_or_insert(now);
        self.repetitions += u32::from(!first_time);
    }

    pub(crate) fn result(&mut self, now: Duration) {
        let before = self.last_result.or(self.first_sent);
        self.wait = self.wait.max(now.saturating_sub(before.unwrap_or(now)));
        self.first_result.get_or_insert(now);
        self.last_result = Some(now);
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did not end yet.
    Running,
    /// It has its result.
    Done,
    /// The membership ended before the call.
    Failed,
    /// Its caller took it back.
    GivenUp,
}

impl Ending {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::GivenUp => "given up",
        }
    }
}

/// The first bytes of a text, in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Label {
    /// Bytes that it keeps.
    pub const MAX: usize = 63;

    /// As much of a text as fits: whole characters.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let len = text.floor_char_boundary(Self::MAX);
        let mut bytes = [0; Self::MAX];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { len: len as u8, bytes }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// What is remembered of a call. It owns no memory, so that keeping one costs a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the call in the job's life.
    pub sequence: u64,
    /// What it is, where it is more than an all-reduce.
    pub what: Option<Label>,
    /// Elements of its vector.
    pub len: u64,
    /// Their type.
    pub element: ElementType,
    /// How they are reduced.
    pub op: Op,
    /// Of all its arguments: the same at all workers, or they call differently.
    pub digest: u64,
    /// When what of it happened.
    pub times: Timeline,
    /// How it ended.
    pub ending: Ending,
    /// What became of its blocks.
    pub report: Report,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_keeps_whole_characters() {
        assert_eq!(Label::new("").as_str(), "");
        let exact = "x".repeat(Label::MAX);
        assert_eq!(Label::new(&exact).as_str(), exact);
        let cut = format!("{}ö", "x".repeat(Label::MAX - 1));
        assert_eq!(Label::new(&cut).as_str(), "x".repeat(Label::MAX - 1));
    }

    #[test]
    fn the_longest_pause_between_results_is_kept() {
        let ms = Duration::from_millis;
        let mut times = Timeline::default();
        times.sent(true, ms(10));
        times.sent(false, ms(14));
        times.result(ms(15));
        times.result(ms(1015));
        times.result(ms(1016));
        assert_eq!((times.first_sent, times.repetitions), (Some(ms(10)), 1));
        assert_eq!((times.first_result, times.last_result), (Some(ms(15)), Some(ms(1016))));
        assert_eq!(times.wait, ms(1000));
    }
}
