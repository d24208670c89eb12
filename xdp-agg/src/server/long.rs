//! How many long frames are taken in at a time: of all connections, of one address, of strangers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::Source;

/// Most long frames that are taken in at a time: 16 MiB together.
const AT_A_TIME: usize = 16;
/// Most of them whose senders are not members of a job.
const OF_STRANGERS: usize = 8;
/// Most of these from one address.
const OF_ONE_STRANGER: usize = 4;

/// The right to take in long frames.
#[derive(Debug)]
pub(super) struct LongFrames {
    all: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// Of addresses from which one is taken in, or waits.
    sources: Mutex<BTreeMap<Source, Weak<Semaphore>>>,
}

/// Held while a long frame is taken in.
#[derive(Debug)]
pub(super) struct Permit(#[expect(dead_code, reason = "held")] [Option<OwnedSemaphorePermit>; 3]);

impl LongFrames {
    pub(super) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(AT_A_TIME)),
            strangers: Arc::new(Semaphore::new(OF_STRANGERS)),
            sources: Mutex::default(),
        }
    }

    /// Waits until one may be taken in from this address. A member waits for members alone, half of
    /// the places being theirs.
    pub(super) async fn enter(&self, source: Source, is_member: &AtomicBool) -> Permit {
        // None of these is ever closed.
        if is_member.load(Ordering::Relaxed) {
            return Permit([None, None, Arc::clone(&self.all).acquire_owned().await.ok()]);
        }
        let own = self.of(source).acquire_owned().await.ok();
        let stranger = Arc::clone(&self.strangers).acquire_owned().await.ok();
        Permit([own, stranger, Arc::clone(&self.all).acquire_owned().await.ok()])
    }

    fn of(&self, source: Source) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = sources.get(&source).and_then(Weak::upgrade) {
            return own;
        }
        sources.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(OF_ONE_STRANGER));
        sources.insert(source, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn strangers_of_one_address_or_of_many_leave_room_for_members() {
        let long = LongFrames::new();
        let (stranger, member) = (AtomicBool::new(false), AtomicBool::new(true));
        let now = |last: u8, who: &AtomicBool| {
            let source = Source::new(Ipv4Addr::new(10, 0, 0, last).into());
            let entering = std::pin::pin!(long.enter(source, who));
            match entering.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(permit) => Some(permit),
                Poll::Pending => None,
            }
        };
        let all = |last, who| std::iter::from_fn(|| now(last, who)).collect::<Vec<_>>();
        let first = all(1, &stranger);
        let second = all(2, &stranger);
        assert_eq!((first.len(), second.len()), (OF_ONE_STRANGER, OF_ONE_STRANGER));
        assert!(now(3, &stranger).is_none(), "all strangers together");
        let members = all(1, &member);
        assert_eq!(members.len(), AT_A_TIME - OF_STRANGERS);
        drop(first);
        let third = all(3, &stranger);
        assert_eq!(third.len(), OF_ONE_STRANGER);
        assert_eq!(long.sources.lock().expect("no panic").len(), 2);
        drop((second, third, members));
        assert_eq!(all(4, &member).len(), AT_A_TIME);
    }
}
