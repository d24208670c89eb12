//! Falling asleep and ringing: every interleaving, by loom. What runs is what the crate runs.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use xdp_agg_intranode::protocol::{Bits, POLLS, advanced, fall_asleep, sleepers};

/// A word of sleepers' bits, with or without its fences.
struct Word<const FENCED: bool>(AtomicU32);

impl<const FENCED: bool> Bits for Word<FENCED> {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, bits: u32) {
        self.0.fetch_or(bits, Ordering::Relaxed);
    }

    fn take(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn fence() {
        if FENCED {
            fence(Ordering::SeqCst);
        }
    }
}

/// One process advances a counter, two threads of another wait for it. A sleeper that is not rung
/// for though the counter is advanced is lost.
fn nobody_sleeps_on<const FENCED: bool>() {
    let mut model = loom::model::Builder::new();
    // Three threads: all interleavings with up to this many preemptions.
    model.preemption_bound = Some(3);
    model.check(|| {
        let counter = Arc::new(AtomicU32::new(0));
        let asleep = Arc::new(Word::<FENCED>(AtomicU32::new(0)));
        // Edges of the eventfd: every sleeper sees each.
        let rings = Arc::new(AtomicU32::new(0));
        let ringer = {
            let (counter, asleep, rings) = (counter.clone(), asleep.clone(), rings.clone());
            thread::spawn(move || {
                counter.store(1, Ordering::Release);
                advanced::<Word<FENCED>>();
                if sleepers(&*asleep) & POLLS != 0 {
                    rings.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let sleeper = || {
            let (counter, asleep) = (counter.clone(), asleep.clone());
            thread::spawn(move || {
                fall_asleep(&*asleep, POLLS);
                // Whether it goes to sleep.
                counter.load(Ordering::Acquire) == 0
            })
        };
        let sleepers = [sleeper(), sleeper()];
        ringer.join().expect("the ringer");
        let slept = sleepers.map(|sleeper| sleeper.join().expect("a sleeper"));
        if slept.contains(&true) {
            assert_eq!(rings.load(Ordering::SeqCst), 1, "asleep, and nobody rang");
        }
    });
}

#[test]
fn with_fences_nobody_sleeps_on() {
    nobody_sleeps_on::<true>();
}

#[test]
#[should_panic(expected = "nobody rang")]
fn without_fences_somebody_does() {
    nobody_sleeps_on::<false>();
}
