//! Calls a target with one input after the other, and deals with what goes wrong.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::mutate::Mutator;
use crate::{Outcome, Random, Target};

/// An input that takes longer is a failure of its own: no message may stop the daemon.
const SLOW: Duration = Duration::from_secs(2);
/// An input that takes longer than this is a hang, and the process is given up for it.
const HANG: Duration = Duration::from_secs(30);
/// Most inputs that are kept in memory because they led to something new.
const POOL_MAX: usize = 4096;
/// How often a failing input is tried again to make it shorter.
const MINIMISE_TRIES: usize = 20_000;
/// And for how long.
const MINIMISE_TIME: Duration = Duration::from_secs(10);

/// How much to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Inputs, those of the corpus not counted.
    pub inputs: u64,
    /// Everything follows from it.
    pub seed: u64,
    /// Not longer than this.
    pub time: Option<Duration>,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Inputs, with those of the corpus.
    pub inputs: u64,
    /// Inputs that got behind the first checks.
    pub accepted: u64,
    /// In how many inputs each of the target's features occurred.
    pub features: Vec<u64>,
    /// Different combinations of features that were seen.
    pub combinations: usize,
    /// How long it took.
    pub time: Duration,
    /// What went wrong, if something did: the run ends there.
    pub failure: Option<Failure>,
}

/// An input that a target did not survive.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The input, made as short as it could be.
    pub input: Vec<u8>,
    /// Its length before.
    pub original_len: usize,
    /// What was said.
    pub message: String,
    /// Which input of the run it was, from 1; the corpus comes first.
    pub number: u64,
}

/// The inputs of a directory, in order of their names; none if there is no such directory.
pub fn corpus(directory: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let listing = match fs::read_dir(directory) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths: Vec<PathBuf> =
        listing.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    paths.into_iter().map(|path| fs::read(&path).map(|bytes| (path, bytes))).collect()
}

/// Runs a target. `progress` is told now and then how far it is.
///
/// # Panics
/// A thread cannot be started.
pub fn run(
    target: &Target,
    corpus: &[Vec<u8>],
    plan: Plan,
    mut progress: impl FnMut(&Summary),
) -> Summary {
    let watchdog = Watchdog::start(target.name);
    let mut random = Random::new(plan.seed);
    let mutator = Mutator { text: target.text, tokens: target.tokens.lines().collect() };
    let mut pool = corpus.to_vec();
    let mut seen = BTreeSet::new();
    let mut summary = Summary { features: vec![0; target.features.len()], ..Summary::default() };
    let start = Instant::now();
    let all = plan.inputs + corpus.len() as u64;
    while summary.inputs < all {
        let given = corpus.get(summary.inputs as usize);
        let input = given.cloned().unwrap_or_else(|| mutator.make(&mut random, &pool));
        summary.inputs += 1;
        watchdog.watch(&input);
        let result = attempt(target, &input);
        summary.time = start.elapsed();
        match result {
            Ok(outcome) => {
                summary.accepted += u64::from(outcome.accepted);
                for (feature, count) in summary.features.iter_mut().enumerate() {
                    *count += outcome.features >> feature & 1;
                }
                if seen.insert(outcome.features) && given.is_none() && pool.len() < POOL_MAX {
                    pool.push(input);
                }
            }
            Err(message) => {
                let (number, original_len) = (summary.inputs, input.len());
                let input = minimise(target, input, &watchdog);
                summary.failure = Some(Failure { input, original_len, message, number });
                break;
            }
        }
        if summary.inputs.is_multiple_of(256) {
            summary.combinations = seen.len();
            progress(&summary);
            if plan.time.is_some_and(|most| summary.time >= most) {
                break;
            }
        }
    }
    summary.combinations = seen.len();
    summary
}

/// Runs a target on one input. The error is what a panic said, or that it was slow.
pub fn attempt(target: &Target, input: &[u8]) -> Result<Outcome, String> {
    quiet_panics();
    let start = Instant::now();
    MESSAGE.set(Some(String::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let message = MESSAGE.take().unwrap_or_default();
    match result {
        Ok(_) if start.elapsed() > SLOW => Err(format!("it took {:?}", start.elapsed())),
        Ok(outcome) => Ok(outcome),
        Err(_) => Err(message),
    }
}

thread_local! {
    /// Where a panic's words go while a target runs on this thread.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what a panic of a target says, instead of printing it.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let kept = MESSAGE.with_borrow_mut(|message| match message {
                Some(message) => {
                    *message = info.to_string();
                    true
                }
                None => false,
            });
            if !kept {
                usual(info);
            }
        }));
    });
}

/// Makes a failing input shorter and plainer, as long as it fails.
fn minimise(target: &Target, mut input: Vec<u8>, watchdog: &Watchdog) -> Vec<u8> {
    let start = Instant::now();
    let mut tries = 0;
    let mut fails = |input: &[u8]| {
        tries += 1;
        watchdog.watch(input);
        let goes_on = tries < MINIMISE_TRIES && start.elapsed() < MINIMISE_TIME;
        goes_on && attempt(target, input).is_err()
    };
    let mut len = input.len().next_power_of_two();
    while len > 0 {
        let mut from = 0;
        while from < input.len() {
            let mut shorter = input.clone();
            shorter.drain(from..(from + len).min(input.len()));
            if fails(&shorter) { input = shorter } else { from += len }
        }
        len /= 2;
    }
    let plain = if target.text { b'0' } else { 0 };
    for at in 0..input.len() {
        let was = std::mem::replace(&mut input[at], plain);
        if was != plain && !fails(&input) {
            input[at] = was;
        }
    }
    input
}

/// Ends the process if a target does not come back, after it has said on which input.
struct Watchdog(Arc<Mutex<Watched>>);

/// What a target is at.
struct Watched {
    since: Instant,
    input: Vec<u8>,
}

impl Watchdog {
    fn start(target: &'static str) -> Self {
        let watched = Arc::new(Mutex::new(Watched { since: Instant::now(), input: Vec::new() }));
        let theirs = Arc::downgrade(&watched);
        let work = move || {
            while let Some(watched) = theirs.upgrade() {
                watched.lock().unwrap_or_else(PoisonError::into_inner).give_up(target);
                drop(watched);
                thread::sleep(Duration::from_millis(200));
            }
        };
        thread::Builder::new().name("watchdog".into()).spawn(work).expect("a thread");
        Self(watched)
    }

    fn watch(&self, input: &[u8]) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.since = Instant::now();
        watched.input.clear();
        watched.input.extend_from_slice(input);
    }
}

impl Watched {
    /// Ends the process if it takes too long.
    fn give_up(&self, target: &str) {
        if self.since.elapsed() < HANG {
            return;
        }
        let file = PathBuf::from(format!("hang-{target}.bin"));
        // A failed write is not reported: the next line says all that is known.
        let _ = fs::write(&file, &self.input);
        eprintln!("{target}: no end after {HANG:?}; the input is in {}", file.display());
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picky(input: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        if input.first() == Some(&b'x') {
            outcome.note(0);
            if input.get(1).is_some_and(|byte| *byte > 200) {
                outcome.note(1);
                outcome.accepted = true;
                assert!(input.len() < 3 || input[2] != 7, "byte 2 is 7");
            }
        }
        outcome
    }

    const TARGET: Target = Target {
        name: "picky",
        about: "",
        run: picky,
        text: false,
        tokens: "",
        features: &["one", "two"],
    };

    const PLAN: Plan = Plan { inputs: 1_000_000, seed: 1, time: None };

    /// Three conditions one behind the other: by chance alone one input in 300 000 meets them.
    #[test]
    fn what_is_wrong_is_found_and_made_short() {
        let summary = run(&TARGET, &[b"hello, x world".to_vec()], PLAN, |_| {});
        let failure = summary.failure.expect("it is found");
        assert!(failure.message.contains("byte 2 is 7"), "{}", failure.message);
        assert!(matches!(failure.input[..], [b'x', high, 7] if high > 200), "{:?}", failure.input);
        let again = run(&TARGET, &[b"hello, x world".to_vec()], PLAN, |_| {});
        assert_eq!(again.inputs, summary.inputs, "a seed makes the same run");
    }

    #[test]
    fn the_corpus_comes_first() {
        let corpus = [b"x".to_vec(), b"xx".to_vec(), vec![b'x', 255, 7]];
        let summary = run(&TARGET, &corpus, PLAN, |_| {});
        assert_eq!(summary.failure.expect("it is in the corpus").number, 3);
        assert_eq!(summary.features, [2, 0]);
    }
}
