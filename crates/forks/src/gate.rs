//! The handlers that `fork(3)` calls, and what keeps a fork out of the moment between the making of
//! a descriptor and its entry in the table.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::descriptors;

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// [`Hold`]s that live, and above them the forks under way.
static GATE: AtomicU32 = AtomicU32::new(0);
/// One fork in [`GATE`].
const FORK: u32 = 1 << 16;

/// Waits of a fork for holds, at most: a second. A hold is a system call or two. Only a signal
/// handler that forks in the middle of one waits in vain, and must not do so for ever.
const WAITS: u32 = 10_000;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(100);

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        register();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// This process was forked from that one.
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

/// While it lives no thread of this process forks.
#[derive(Debug)]
pub struct Hold(());

/// Keeps forks waiting while a descriptor is made. What is done under it must not block, nor take
/// another hold.
#[must_use]
pub fn hold() -> Hold {
    register();
    loop {
        let now = GATE.load(Ordering::Relaxed);
        let entered =
            |now| GATE.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed);
        if now >= FORK {
            thread::sleep(PAUSE);
        } else if entered(now).is_ok() {
            return Hold(());
        }
    }
}

/// Makes a descriptor under a [`hold`] of its own: see [`Hold::own`].
///
/// # Errors
/// Those of `make`.
pub fn own<T: AsFd, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let hold = hold();
    make().map(|made| hold.own(made))
}

impl Hold {
    /// This descriptor, which was made under the hold, is no child's.
    ///
    /// Sockets and files are: they have an identity, by which a child tells them from what has
    /// their number by then. Other kinds (eventfd, timer, epoll, pidfd) stay open in a child. These
    /// copies hold nothing up, and nobody uses them.
    pub fn own<T: AsFd>(&self, made: T) -> T {
        descriptors::note(made.as_fd());
        made
    }
}

/// A descriptor of any kind that is no child's, also of those that [`Hold::own`] cannot tell from
/// others. Nothing else closes it.
#[derive(Debug)]
pub struct Kept(ManuallyDrop<OwnedFd>);

impl Kept {
    /// Makes one.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new<E>(make: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        let _hold = hold();
        let made = make()?;
        descriptors::remember(made.as_fd());
        Ok(Self(ManuallyDrop::new(made)))
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _hold = hold();
        // Its number may be another file's of the same kind next.
        descriptors::forget(self.0.as_fd());
        // SAFETY: the value is not used again.
        drop(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        GATE.fetch_sub(1, Ordering::Release);
    }
}

/// No [`std::sync::Once`]: a child that was forked in the middle of one would wait for ever.
fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.load(Ordering::Relaxed) && !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers live as long as the program, and do what a child of a process with
        // many threads may: atomics and system calls. Where there is no memory for one more
        // handler, forks go unnoticed.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

extern "C" fn prepare() {
    GATE.fetch_add(FORK, Ordering::AcqRel);
    for _ in 0..WAITS {
        if GATE.load(Ordering::Acquire) & (FORK - 1) == 0 {
            break;
        }
        thread::sleep(PAUSE);
    }
}

extern "C" fn parent() {
    GATE.fetch_sub(FORK, Ordering::Release);
}

extern "C" fn child() {
    // Threads that held or forked are not here.
    GATE.store(0, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    descriptors::give_up();
}
