//! What a communicator's threads share: the engine, and how to get at it.
//!
//! A thread that waits for a call drives the engine, in the foreground. While nobody waits, the
//! progress thread drives it. That thread also answers the daemon, opens sockets, and carries the
//! ring.

#[cfg(test)]
mod tests;

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_forks::hold;
use xdp_agg_intranode::Group;
use xdp_agg_protocol::worker::{Blocks, Lanes, Seat, State};
use xdp_agg_tls::OpenError;

use crate::driver::drive::Driver;
use crate::driver::engine::{Engine, Errand};
use crate::driver::roll::Roll;
use crate::driver::session::{Dial, Session};
use crate::driver::sys::{self, Interest, Timer};
use crate::error::{Error, JobError};
use crate::fallback::Fallback;
use crate::trace::Tracer;

/// Longest sleep of a thread that drives the calls.
pub(crate) const NAP: Duration = Duration::from_millis(100);
/// How often a thread looks again that waits for other threads. A thread that carries a ring waits
/// for a call's input; one that is ahead waits for the other stripes.
const GLANCE: Duration = Duration::from_millis(1);
/// How long a call that was sent off is left to a thread that may wait for it.
const SOON: Duration = Duration::from_micros(200);
/// How long a thread that has handed on the engine leaves it to others before it asks for it.
const TURN: Duration = Duration::from_millis(1);

/// What the threads share: the engine, and how to get at it.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    /// Threads that want the engine while another one drives it.
    wanted: AtomicUsize,
    /// Threads that drive calls in the foreground; the progress thread keeps out of their way.
    foreground: AtomicUsize,
    closing: AtomicBool,
    /// The progress thread is busy with a ring or a connection, which it cannot leave at once. Set
    /// while it holds the engine: a closing thread gets it after that, or this one sees `closing`.
    busy: AtomicBool,
    /// For the ring.
    listener: Mutex<Option<TcpListener>>,
    ring_times: (Duration, Duration),
    /// What the communicator's stripes know of each other, and which one this is.
    roll: (Arc<Roll>, usize),
    /// Set, and signalled, when the first joining has ended, one way or the other.
    joined: Mutex<bool>,
    joined_now: Condvar,
    /// Ends the sleep of the thread that drives the engine.
    wake: Bell,
    /// Ends the sleep of the progress thread: work without a driver, an errand, or the end.
    pub(crate) nudge: Bell,
    /// The same, after a while: work whose driver may come at once. And whether it is set.
    later: (Timer, AtomicBool),
    tracer: Arc<Tracer>,
}

/// Ends another thread's sleep in `poll`.
pub(crate) struct Bell {
    tx: UnixDatagram,
    rx: UnixDatagram,
}

impl Bell {
    fn new() -> Result<Self, Error> {
        let hold = hold();
        let (tx, rx) = UnixDatagram::pair().map_err(Error::io("opening a wake-up socket"))?;
        let (tx, rx) = (hold.own(tx), hold.own(rx));
        for socket in [&tx, &rx] {
            socket.set_nonblocking(true).map_err(Error::io("opening a wake-up socket"))?;
        }
        Ok(Self { tx, rx })
    }

    pub(crate) fn ring(&self) {
        // A full buffer means that the sleeper has been woken already.
        let _ = self.tx.send(&[1]);
    }

    fn hush(&self) {
        let mut byte = [0];
        while self.rx.recv(&mut byte).is_ok() {}
    }
}

impl AsRef<Self> for Shared {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// `listener`: for a ring. `ring_times`: for its members to meet, and for each of its steps.
    pub(crate) fn new(
        engine: Engine,
        listener: Option<TcpListener>,
        ring_times: (Duration, Duration),
        roll: (Arc<Roll>, usize),
        tracer: Arc<Tracer>,
    ) -> Result<Self, Error> {
        Ok(Self {
            engine: Mutex::new(engine),
            wanted: AtomicUsize::new(0),
            foreground: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            listener: Mutex::new(listener),
            ring_times,
            roll,
            joined: Mutex::new(false),
            joined_now: Condvar::new(),
            wake: Bell::new()?,
            nudge: Bell::new()?,
            later: (Timer::new().map_err(Error::io("making a timer"))?, AtomicBool::new(false)),
            tracer,
        })
    }

    /// What the communicator remembers.
    pub(crate) const fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// The engine's latest calls. None are there if a thread keeps the engine for so long.
    pub(crate) fn recorded(&self, patience: Duration) -> Vec<xdp_agg_trace::Call> {
        let engine = self.engine.try_lock().or_else(|| {
            self.wanted.fetch_add(1, Ordering::AcqRel);
            self.wake.ring();
            let engine = self.engine.try_lock_for(patience);
            self.wanted.fetch_sub(1, Ordering::AcqRel);
            engine
        });
        engine.map(|engine| engine.recorded()).unwrap_or_default()
    }

    /// The engine; wakes the thread that drives it, if one sleeps with it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        if let Some(engine) = self.engine.try_lock() {
            return engine;
        }
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.wake.ring();
        let engine = self.engine.lock();
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        engine
    }

    /// Looks after what the other processes of the host do, too.
    pub(crate) fn watch(&self, group: &Arc<Group>) -> Result<(), Error> {
        let waker = group.waker()?;
        self.lock().watch(waker);
        Ok(())
    }

    pub(crate) fn start(&self, blocks: Box<dyn Blocks>) -> Result<u64, Error> {
        Ok(self.lock().start(blocks)?)
    }

    /// Sends what a call that was started has to send. If nobody drives it soon, the progress
    /// thread does. A caller that starts a short call often waits for it next, and waking a thread
    /// in vain costs as much as the call.
    pub(crate) fn send_off(&self) {
        let mut engine = self.lock();
        engine.advance();
        if engine.has_work() && self.foreground.load(Ordering::Acquire) == 0 {
            self.later.1.store(true, Ordering::Release);
            self.later.0.set(SOON);
        }
    }

    /// Waits for the end of joining: the machine's deadlines bound it, and the end of the progress
    /// thread ends it.
    pub(crate) fn wait_until_joined(&self) -> Result<ResultMode, Error> {
        let mut joined = self.joined.lock();
        while !*joined {
            self.joined_now.wait(&mut joined);
        }
        // The progress thread takes this lock while it holds the engine: not the other way round.
        drop(joined);
        let engine = self.lock();
        match engine.machine.failure() {
            Some(error) => Err(error.clone().into()),
            None => Ok(engine.machine.result_mode().unwrap_or(ResultMode::Ports)),
        }
    }

    /// Lets the machine know how far the other stripes are; how long it may sleep.
    pub(crate) fn keep_abreast(&self, engine: &mut Engine, patience: Duration) -> Duration {
        let (roll, stripe) = &self.roll;
        let waits = engine.machine.hold_back(roll.most_left(*stripe));
        if waits { patience.min(GLANCE) } else { patience }
    }

    /// Which of the communicator's stripes is served first.
    pub(super) fn first_served(&self) -> usize {
        self.roll.0.first_served()
    }

    /// Lets the other stripes know how far this one is.
    pub(crate) fn publish(&self, engine: &Engine) {
        let (roll, stripe) = &self.roll;
        roll.publish(*stripe, engine.machine.members(), engine.machine.left());
    }

    /// What ends the sleep of the thread that drives the engine.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.rx.as_fd()
    }

    /// True if another thread waits for the engine.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire) > 0
    }

    /// Hands the engine to a thread that waits for it.
    pub(crate) fn give_way(&self, engine: MutexGuard<'_, Engine>) {
        self.wake.hush();
        MutexGuard::unlock_fair(engine);
    }

    /// The engine again, when others were let at it: they have a turn before it is asked for.
    pub(crate) fn lock_again(&self) -> MutexGuard<'_, Engine> {
        self.engine.try_lock_for(TURN).unwrap_or_else(|| self.lock())
    }

    /// A thread waits for a call, and drives the engine meanwhile.
    pub(crate) fn enter(&self) {
        self.foreground.fetch_add(1, Ordering::AcqRel);
        if self.later.1.swap(false, Ordering::AcqRel) {
            self.later.0.set(Duration::ZERO);
        }
    }

    /// The thread drives no longer; the progress thread does the work that is left.
    pub(crate) fn leave(&self, engine: MutexGuard<'_, Engine>) {
        let more = engine.has_work() || engine.has_errand();
        // While the engine is held: a thread that adds work to it sees that nobody drives it.
        self.foreground.fetch_sub(1, Ordering::AcqRel);
        drop(engine);
        if more {
            self.nudge.ring();
        }
    }

    /// Nudges the progress thread if there is something that it alone does. True: then it must come
    /// to the engine.
    pub(crate) fn nudge_if_needed(&self, engine: &Engine) -> bool {
        let needed = engine.has_errand() || engine.machine.state() == State::OnRing;
        if needed {
            self.nudge.ring();
        }
        needed
    }

    /// Leaves the job. True if the progress thread ends now; false if it is busy, and ends later.
    pub(crate) fn close(&self) -> bool {
        self.close_with(Engine::leave)
    }

    /// The same, as one that is lost.
    pub(crate) fn vanish(&self) {
        self.close_with(Engine::vanish);
    }

    fn close_with(&self, leave: impl FnOnce(&mut Engine)) -> bool {
        self.closing.store(true, Ordering::Release);
        leave(&mut self.lock());
        self.nudge.ring();
        !self.busy.load(Ordering::Acquire)
    }

    /// The progress thread.
    pub(crate) fn progress(self: &Arc<Self>) {
        self.or_give_up(|| self.make_progress());
    }

    /// Does a thread's work. If a fault of this library's ends it, so does the membership: nobody
    /// would come to wake those that wait for this thread.
    fn or_give_up(&self, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let why = "a thread of the library panicked, and its message says where";
            self.lock().give_up(Error::Interrupted(why.into()));
            *self.joined.lock() = true;
            self.joined_now.notify_all();
        }
    }

    /// Drives while there is work and nobody waits in the foreground, answers the daemon, and runs
    /// errands.
    fn make_progress(self: &Arc<Self>) {
        let mut ring = None;
        while !self.closing.load(Ordering::Acquire) {
            let mut engine = self.lock();
            self.tell_if_joined(&engine);
            if let Some(errand) = engine.errand(|| self.roll.0.lost(self.roll.1)) {
                self.run(engine, errand, &mut ring);
            } else if engine.machine.state() == State::OnRing {
                self.carry_ring(engine, &mut ring);
            } else if self.foreground.load(Ordering::Acquire) > 0 {
                drop(engine);
                self.sleep(None);
            } else if engine.has_work() {
                Driver::background(self, engine).step(NAP);
            } else {
                let watched = engine.watched();
                let patience = engine.patience(NAP);
                drop(engine);
                if self.sleep_for(watched.as_ref().map(AsFd::as_fd), patience) {
                    Driver::background(self, self.lock()).step(Duration::ZERO);
                }
            }
        }
    }

    /// The next batch over the ring, if a call has one.
    fn carry_ring(&self, mut engine: MutexGuard<'_, Engine>, place: &mut Option<Fallback>) {
        let Some(ring) = place else {
            drop(engine);
            self.sleep(None);
            return;
        };
        engine.listen();
        if engine.machine.work() {
            return;
        }
        let mut lanes = Lanes::default();
        let Some(batch) = engine.machine.poll_ring_batch(&mut lanes) else {
            // Other processes of the host do not ring here.
            let patience = if engine.machine.has_calls() { GLANCE } else { NAP };
            drop(engine);
            self.sleep_for(None, patience);
            return;
        };
        let Some(summed) = self.away(engine, || ring.reduce(&mut lanes, batch.reduction)) else {
            return;
        };
        let mut engine = self.lock();
        let left = match summed {
            Ok(()) => engine.ring_result(batch, &lanes),
            Err(error) => {
                engine.machine.fail(error);
                false
            }
        };
        drop(engine);
        if left {
            // The others have all that they need of this worker, or are told that it goes.
            *place = None;
        }
    }

    /// The members meet, and tell each other what they have.
    fn build_ring(&self, engine: MutexGuard<'_, Engine>, seat: Seat) -> Result<Fallback, Error> {
        let own = engine.machine.progress();
        let built = self.away(engine, || {
            // It stays: another ring may have to be built.
            let again = |listener: &TcpListener| xdp_agg_forks::own(|| listener.try_clone());
            let listener = self.listener.lock().as_ref().map(again).transpose();
            let listener = listener.map_err(Error::io("opening a listener for the ring"))?;
            let mut ring = Fallback::build(seat, listener, self.ring_times)?;
            let all = ring.gather(&own)?;
            Ok((ring, all))
        });
        let (ring, all) = built.unwrap_or(Err(Error::Job(JobError::Closed)))?;
        self.lock().enter_ring(&all)?;
        Ok(ring)
    }

    /// Does slow work without the engine: a deadline may pass meanwhile, and a thread that closes
    /// does not wait for it. None: the stripe was closed already.
    fn away<T>(&self, engine: MutexGuard<'_, Engine>, work: impl FnOnce() -> T) -> Option<T> {
        self.busy.store(true, Ordering::Release);
        drop(engine);
        // A thread that closed before the engine was taken has waited for this thread since.
        let done = (!self.closing.load(Ordering::Acquire)).then(work);
        self.busy.store(false, Ordering::Release);
        done
    }

    fn tell_if_joined(&self, engine: &Engine) {
        let over = engine.machine.failure().is_some() || engine.machine.has_joined();
        let mut joined = self.joined.lock();
        if !*joined && over && !engine.has_errand() {
            *joined = true;
            self.joined_now.notify_all();
        }
    }

    fn sleep(&self, watched: Option<BorrowedFd<'_>>) -> bool {
        self.sleep_for(watched, NAP)
    }

    /// Sleeps without the engine. True if `watched` is readable, or the time is over.
    fn sleep_for(&self, watched: Option<BorrowedFd<'_>>, patience: Duration) -> bool {
        let nudge = self.nudge.rx.as_fd();
        let mut interests = [
            Interest::read(nudge),
            Interest::read(watched.unwrap_or(nudge)),
            Interest::read(self.later.0.fd()),
        ];
        if sys::wait(&mut interests, patience).is_err() {
            std::thread::sleep(NAP);
        }
        let [nudged, told, late] = interests.map(|interest| interest.ready);
        if nudged {
            self.nudge.hush();
        }
        if late {
            self.later.0.set(Duration::ZERO);
        }
        !(nudged || told || late) || watched.is_some() && told
    }

    /// What takes its time is done without the engine.
    fn run(
        self: &Arc<Self>,
        mut engine: MutexGuard<'_, Engine>,
        errand: Errand,
        ring: &mut Option<Fallback>,
    ) {
        match errand {
            Errand::Connect(dial) => {
                if let Some(outcome) = self.away(engine, || Session::open(&dial)) {
                    self.lock().connected(outcome);
                }
            }
            Errand::Probe(dial) => {
                drop(engine);
                self.probe(dial);
            }
            Errand::Join(group) => engine.join(group),
            Errand::Ring(seat) => match self.build_ring(engine, seat) {
                Ok(built) => *ring = Some(built),
                Err(error) => self.lock().machine.fail(error),
            },
        }
    }

    /// Connects to the daemon on a thread of its own, which ends after the attempt: the ring is not
    /// to wait for it.
    fn probe(self: &Arc<Self>, dial: Dial) {
        let shared = Arc::downgrade(self);
        let connect = move || {
            let outcome = Session::open(&dial);
            if let Some(shared) = shared.upgrade() {
                shared.lock().connected(outcome);
            }
        };
        // It lives where this thread does (its network namespace).
        let started = std::thread::Builder::new().name("xdp-agg probe".into()).spawn(connect);
        if let Err(error) = started {
            self.lock().connected(Err(OpenError::Io(error)));
        }
    }
}
