//! Calls among the workers, one after the other in the order in which they were begun. The caller's
//! thread makes a call, or the queue's thread if it was started for later.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use xdp_agg_mesh::Mesh;

use crate::error::{Error, JobError};
use crate::handle::{ASKED, INTERRUPTED};

/// What the thread does.
type Task = Box<dyn FnOnce() + Send>;

/// The workers' connections, and whose turn it is on them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Held while a call is begun: all workers agree on calls, and open connections, in the same
    /// order.
    begun: Mutex<Begun>,
    /// How many have ended.
    ended: Mutex<u64>,
    one_more: Condvar,
    mesh: Mutex<Option<Mesh>>,
    /// To the thread that carries out what was started.
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Begun {
    calls: u64,
    /// The connections are there.
    open: bool,
}

/// The way to the thread.
#[derive(Debug, Default)]
enum Tasks {
    /// There was nothing to do yet.
    #[default]
    None,
    Thread(Sender<Task>),
    Closed,
}

impl Queue {
    /// Begins a call: no other call begins meanwhile.
    pub(super) fn begin(self: &Arc<Self>) -> Beginning<'_> {
        Beginning { begun: self.begun.lock(), queue: self }
    }

    /// Leaves a task to the thread, behind those that it has.
    ///
    /// # Errors
    /// The system has no thread; the queue is closed. The task comes back: dropping it ends a turn,
    /// which may have to wait, so no lock may be held then.
    fn leave(&self, task: Task) -> Result<(), (Error, Task)> {
        let mut tasks = self.tasks.lock();
        if let Tasks::None = *tasks {
            let (to_do, all) = channel::<Task>();
            let thread = thread::Builder::new()
                .name("xdp-agg-mesh".into())
                .spawn(move || all.into_iter().for_each(|task| task()));
            if let Err(error) = thread {
                let error = Error::io("starting a thread for calls among the workers")(error);
                return Err((error, task));
            }
            *tasks = Tasks::Thread(to_do);
        }
        match &*tasks {
            // The thread ends when the sender is dropped.
            Tasks::Thread(to_do) => {
                to_do.send(task).map_err(|unsent| (Error::Job(JobError::Closed), unsent.0))
            }
            Tasks::None | Tasks::Closed => Err((Error::Job(JobError::Closed), task)),
        }
    }

    /// Tasks whose turn has not come are never carried out; the thread ends with the call that it
    /// is in.
    pub(super) fn close(&self) {
        *self.tasks.lock() = Tasks::Closed;
    }

    fn is_closed(&self) -> bool {
        matches!(*self.tasks.lock(), Tasks::Closed)
    }
}

/// A call is being begun.
pub(super) struct Beginning<'a> {
    begun: MutexGuard<'a, Begun>,
    queue: &'a Arc<Queue>,
}

impl Beginning<'_> {
    /// True once the connections are there.
    pub(super) fn is_open(&self) -> bool {
        self.begun.open
    }

    /// These are they.
    pub(super) fn opened(&mut self, mesh: Mesh) {
        self.begun.open = true;
        *self.queue.mesh.lock() = Some(mesh);
    }

    /// The call has begun; it comes after all that were begun before. Its turn is the caller's: the
    /// thread's tasks must have theirs by [`Self::leave`].
    pub(super) fn turn(mut self) -> Turn {
        self.next_turn()
    }

    /// The call has begun, and is the thread's. Turns and tasks have one order, or the thread would
    /// wait in a task for the turn of one that is behind it.
    ///
    /// # Errors
    /// The system has no thread; the queue is closed.
    pub(super) fn leave(mut self, call: impl FnOnce(Turn) + Send + 'static) -> Result<(), Error> {
        let turn = self.next_turn();
        let left = self.queue.leave(Box::new(move || call(turn)));
        drop(self);
        left.map_err(|(error, _)| error)
    }

    fn next_turn(&mut self) -> Turn {
        let number = self.begun.calls;
        self.begun.calls += 1;
        Turn { queue: Arc::clone(self.queue), number }
    }
}

/// A call's turn. It passes when this is dropped, in order.
#[derive(Debug)]
pub(super) struct Turn {
    queue: Arc<Queue>,
    number: u64,
}

impl Turn {
    /// How many calls came before, since the communicator was made.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the turn, and carries out the call.
    ///
    /// # Errors
    /// The call's; the communicator was closed before the turn came.
    pub(super) fn run(
        self,
        call: impl FnOnce(&mut Mesh) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.run_asking(&mut || false, |mesh, _| call(mesh))
    }

    /// The same. Asks now and then, while the turn has not come, whether the caller was
    /// interrupted; the call may ask, too.
    ///
    /// # Errors
    /// As [`Self::run`]; it was.
    pub(super) fn run_asking(
        self,
        interrupted: &mut dyn FnMut() -> bool,
        call: impl FnOnce(&mut Mesh, &mut dyn FnMut() -> bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !self.comes_within(ASKED) {
            if interrupted() {
                return Err(Error::Interrupted(INTERRUPTED.into()));
            }
        }
        let mut mesh = self.queue.mesh.lock();
        match &mut *mesh {
            Some(mesh) if !self.queue.is_closed() => call(mesh, interrupted),
            _ => Err(Error::Job(JobError::Closed)),
        }
    }

    /// Waits for the turn at most that long. True: it has come.
    fn comes_within(&self, at_most: Duration) -> bool {
        let mut ended = self.queue.ended.lock();
        let is_late = |ended: &mut u64| *ended < self.number;
        self.queue.one_more.wait_while_for(&mut ended, is_late, at_most);
        *ended >= self.number
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Every call ends within its deadline, and so do all before this one.
        while !self.comes_within(ASKED) {}
        *self.queue.ended.lock() += 1;
        self.queue.one_more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A queue over a mesh of one.
    fn alone() -> Arc<Queue> {
        let queue = Arc::new(Queue::default());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mesh = Mesh::builder().rank(0).world_size(1).listener(listener);
        let mesh = mesh.addresses(vec![address]).open().expect("nobody is waited for");
        queue.begin().opened(mesh);
        queue
    }

    #[test]
    fn calls_come_in_the_order_in_which_they_were_begun() {
        let queue = alone();
        let order = Arc::new(Mutex::new(Vec::new()));
        let turns: Vec<Turn> = (0..6).map(|_| queue.begin().turn()).collect();
        let mut threads = Vec::new();
        for (number, turn) in turns.into_iter().enumerate().rev() {
            let noted = Arc::clone(&order);
            let call = move || {
                if number == 3 {
                    // Given up: those behind it must not wait for it.
                    return drop(turn);
                }
                let done = turn.run(|_| {
                    noted.lock().push(number);
                    Ok(())
                });
                done.expect("it is open");
            };
            if number % 2 == 0 {
                threads.push(thread::spawn(call));
            } else {
                threads.push(thread::spawn(move || {
                    thread::sleep(Duration::from_millis(5));
                    call();
                }));
            }
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(*order.lock(), [0, 1, 2, 4, 5]);
    }

    #[test]
    fn a_closed_queue_carries_out_nothing() {
        let queue = alone();
        let (sender, done) = channel();
        let carry_out = move |turn: Turn| {
            turn.run(|_| Ok(())).expect("it is open");
            sender.send(1).expect("waited for");
        };
        queue.begin().leave(carry_out).expect("a thread");
        assert_eq!(done.recv(), Ok(1));
        let turn = queue.begin().turn();
        queue.close();
        assert!(matches!(turn.run(|_| panic!("closed")), Err(Error::Job(JobError::Closed))));
        let left = queue.begin().leave(|_| panic!("closed"));
        assert!(matches!(left, Err(Error::Job(JobError::Closed))));
    }

    /// Calls that are started at the same time come to the thread in the order of their turns.
    #[test]
    fn calls_that_are_started_at_once_all_come_to_their_turn() {
        const THREADS: usize = 4;
        const CALLS: usize = 2000;
        let queue = alone();
        let (sender, done) = channel();
        for _ in 0..THREADS {
            let (queue, sender) = (Arc::clone(&queue), sender.clone());
            thread::spawn(move || {
                for _ in 0..CALLS {
                    let sender = sender.clone();
                    let left = queue.begin().leave(move |turn| {
                        turn.run(|_| Ok(())).expect("it is open");
                        // Nobody is there any more if the test has failed.
                        let _ = sender.send(());
                    });
                    left.expect("a thread");
                }
            });
        }
        for call in 0..THREADS * CALLS {
            done.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("call {call}"));
        }
    }

    #[test]
    fn without_connections_there_is_no_call() {
        let queue = Arc::new(Queue::default());
        assert!(!queue.begin().is_open());
        let turn = queue.begin().turn();
        assert!(matches!(
            turn.run(|_| panic!("there is no mesh")),
            Err(Error::Job(JobError::Closed))
        ));
    }
}
