//! The workers' own connections: opened at the first call that needs them, and typed calls on them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg_forks::own;
use xdp_agg_mesh::meet::random;
use xdp_agg_mesh::{Algorithm, Mesh, Patience as MeshPatience};
use xdp_agg_quantize::{Element, ElementType};

use super::onlooker::Watcher;
use super::queue::{Beginning, Turn};
use super::tuning::Choice;
use crate::communicator::Communicator;
use crate::digest::digest;
use crate::driver::Stripe;
use crate::error::{Error, JobError};
use crate::handle::{Handle, INTERRUPTED, Patience, fail, globally};
use crate::settings::Place;
use crate::trace::MeshCall;
use xdp_agg_protocol::worker::{Purpose, Report};
use xdp_agg_quantize::Op;

/// A mesh, if the workers can connect.
type Opened = Result<Mesh, Error>;
/// How a call on a mesh ends.
type Done = Result<(), xdp_agg_mesh::Error>;

/// A call among the workers that has begun, and waits for its turn.
pub(crate) struct Aside {
    what: Arc<str>,
    turn: Turn,
    traced: MeshCall,
}

impl Communicator {
    /// Carries out a call among the workers. `what`: what they must agree on.
    pub(super) fn over_mesh(
        &self,
        choice: Choice,
        what: &Arc<str>,
        call: impl FnOnce(&mut Mesh) -> Done,
    ) -> Result<(), Error> {
        let aside = self.begin_aside(choice, what)?;
        let mut patience = Patience { deadline: self.deadline(), interrupted: &mut || false };
        self.carry_out(aside, &mut patience, |mesh, _| Ok(call(mesh)?))
    }

    /// Begins a call among the workers, which has its turn then. The first one opens their
    /// connections.
    pub(super) fn begin_aside(&self, choice: Choice, what: &Arc<str>) -> Result<Aside, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let mut beginning = self.side.queue.begin();
        self.make_aside();
        if choice.checked {
            self.agree(what)?;
        }
        self.open_if_needed(&mut beginning)?;
        let turn = beginning.turn();
        let traced = self.tracer().mesh_call(turn.number(), what, digest(what.bytes()));
        Ok(Aside { what: Arc::clone(what), turn, traced })
    }

    /// Carries out a call that has begun, in its turn.
    pub(super) fn carry_out(
        &self,
        Aside { what, turn, mut traced }: Aside,
        patience: &mut Patience<'_>,
        call: impl FnOnce(&mut Mesh, &mut MeshPatience<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (watcher, deadline) = (self.watcher(), patience.deadline);
        let mut was_interrupted = false;
        let mut interrupted = || {
            if !was_interrupted && (patience.interrupted)() {
                was_interrupted = true;
                // Calls whose turns come before this one's end with it.
                self.fail(&Error::Interrupted(INTERRUPTED.into()));
            }
            was_interrupted
        };
        let done = turn.run_asking(&mut interrupted, |mesh, interrupted| {
            traced.begin();
            let mut patience = MeshPatience { deadline, interrupted };
            let done = Watcher::during(&watcher, &what, || call(mesh, &mut patience));
            if done.is_ok() {
                traced.done();
            }
            done
        });
        if was_interrupted {
            return Err(Error::Interrupted(INTERRUPTED.into()));
        }
        self.failing(done)
    }

    /// Starts a call among the workers. The first one opens their connections, and so returns when
    /// all have come to it.
    pub(super) fn start_over_mesh<T: Element>(
        &self,
        choice: Choice,
        what: &Arc<str>,
        mut data: Vec<T>,
        call: impl FnOnce(&mut Mesh, &mut [T]) -> Result<Report, Error> + Send + 'static,
    ) -> Result<Handle<T>, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let mut beginning = self.side.queue.begin();
        self.make_aside();
        let sequence = self.next_sequence();
        let agreement = match (choice.checked, beginning.is_open()) {
            (true, true) => Some(self.start_agreement(what)?),
            (true, false) => {
                self.agree(what)?;
                None
            }
            (false, _) => None,
        };
        self.open_if_needed(&mut beginning)?;
        let (stripes, deadline, watcher) = (self.stripes(), self.deadline(), self.watcher());
        let place = *self.place();
        let tracer = Arc::clone(self.tracer());
        let what = Arc::clone(what);
        let (sender, result) = channel();
        let carry_out = move |turn: Turn| {
            let mut traced = tracer.mesh_call(turn.number(), &what, digest(what.bytes()));
            agreement.map_or(Ok(()), |agreement| agreement.wait(deadline))?;
            let mut report = Report::default();
            turn.run(|mesh| {
                traced.begin();
                report = Watcher::during(&watcher, &what, || call(mesh, &mut data))?;
                traced.done();
                Ok(())
            })?;
            Ok((data, report))
        };
        beginning.leave(move |turn| {
            let outcome: Result<(Vec<T>, Report), Error> = carry_out(turn);
            let outcome = outcome.map_err(|error| reason(&stripes, &place, error));
            if let Err(error) = &outcome {
                fail(&stripes, error);
            }
            // Nobody may be there any more.
            let _ = sender.send(outcome);
        })?;
        Ok(Handle::carried(self.stripes(), sequence, result))
    }

    /// All workers make this call, or it is an error at all of them.
    fn agree(&self, what: &Arc<str>) -> Result<(), Error> {
        let mut seen = digests(what);
        self.all_reduce_for(&mut seen, Op::Max, &Purpose::of(what))?;
        self.failing(same(what, &seen))
    }

    /// The same, to be waited for later.
    fn start_agreement(&self, what: &Arc<str>) -> Result<Agreement, Error> {
        let call = self.start_for(digests(what).into(), Op::Max, &Purpose::of(what))?;
        Ok(Agreement { call, what: Arc::clone(what), stripes: self.stripes() })
    }

    /// Counts a call among the workers: one that makes it in place of another call is found out.
    fn make_aside(&self) {
        self.stripes.iter().for_each(|stripe| stripe.shared.lock().machine.make_aside());
    }

    /// Ends the membership with a call that failed.
    fn failing<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let stripes = self.stripes();
        outcome
            .map_err(|error| reason(&stripes, self.place(), error))
            .inspect_err(|error| self.fail(error))
    }

    fn watcher(&self) -> Option<Arc<Watcher>> {
        self.side.watcher.lock().clone()
    }

    fn open_if_needed(&self, beginning: &mut Beginning<'_>) -> Result<(), Error> {
        if !beginning.is_open() {
            let mesh = self.try_mesh(self.side.stall_deadline).flatten();
            beginning.opened(self.failing(mesh)?);
        }
        Ok(())
    }

    /// The workers tell each other, through the aggregator, where they listen; rank 0 makes the
    /// cookie. `within`: how long they may take to connect then. The inner error is one of
    /// connecting alone.
    pub(super) fn try_mesh(&self, within: Duration) -> Result<Opened, Error> {
        let (rank, world) = (self.rank(), self.world_size());
        let io = |error| Error::io("opening a listener for the other workers")(error);
        let listener = own(|| TcpListener::bind((self.side.address, 0)));
        let listener = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        // The others wait for the addresses in any case; a port of 0 tells them.
        let port = listener.as_ref().map_or(0, |(port, _)| *port);
        // A word a rank: address and port; and the cookie behind them. Max keeps what is not 0.
        let mut words = vec![0_i64; usize::from(world) + 1];
        words[usize::from(rank)] = i64::from(self.side.address.to_bits()) << 16 | i64::from(port);
        if rank == 0 {
            // The highest bit would make it less than nothing.
            words[usize::from(world)] = (random() >> 1) as i64 | 1;
        }
        self.all_reduce_for(&mut words, Op::Max, &Purpose::of(&Arc::from("addresses of a mesh")))?;
        let cookie = words.pop().unwrap_or_default() as u64;
        let (_, listener) = match listener {
            Ok(listener) => listener,
            Err(error) => return Ok(Err(io(error))),
        };
        if let Some(deaf) = words.iter().position(|word| *word as u16 == 0) {
            let (rank, call, reason) = (deaf as u16, 0, "it has no port to listen at".into());
            return Ok(Err(xdp_agg_mesh::Error::PeerLost { rank, call, reason }.into()));
        }
        let address =
            |word: &i64| SocketAddr::from((Ipv4Addr::from_bits((word >> 16) as u32), *word as u16));
        let watcher = Watcher::new(&self.stripes(), *self.place(), self.side.warn_after);
        *self.side.watcher.lock() = Some(Arc::clone(&watcher));
        let mesh = Mesh::builder()
            .rank(rank)
            .world_size(world)
            .group_size(self.local_size())
            .addresses(words.iter().map(address).collect())
            .listener(listener)
            .cookie(cookie)
            .deadline(self.deadline())
            // All have come to this call.
            .join_deadline(within)
            .onlooker(watcher);
        Ok(mesh.open().map_err(Error::from))
    }
}

/// How long a call of which a worker was lost waits for the daemon's word of it.
const LOST: Duration = Duration::from_millis(500);
/// The same where another worker gave the call up, which itself may have waited as long.
const GIVEN_UP: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(5);

/// Why a call has failed. One that was given up because the membership has ended tells why that is.
/// Where another worker was lost or gave up, the daemon's word of it goes before that of a
/// connection that ended: then all workers tell the same, whichever way a call went.
fn reason(stripes: &[Stripe], place: &Place, error: Error) -> Error {
    use xdp_agg_mesh::Error as Mesh;
    let patience = match &error {
        Error::Mesh(of_mesh) => match **of_mesh {
            Mesh::Interrupted(_) => Duration::ZERO,
            Mesh::PeerLost { .. } => LOST,
            Mesh::Stopped { .. } => GIVEN_UP,
            _ => return error,
        },
        _ => return error,
    };
    let failure = |stripe: &Stripe| stripe.shared.lock().machine.failure().cloned();
    let begun = Instant::now();
    loop {
        if let Some(failure) = stripes.iter().find_map(failure) {
            return globally(failure.into(), place);
        }
        if begun.elapsed() >= patience {
            return error;
        }
        thread::sleep(LOOK);
    }
}

/// On a call among the workers, under way.
struct Agreement {
    call: Handle<i64>,
    what: Arc<str>,
    stripes: Arc<[Stripe]>,
}

impl Agreement {
    fn wait(self, deadline: Duration) -> Result<(), Error> {
        let (seen, _) = self.call.wait(deadline)?;
        same(&self.what, &seen).inspect_err(|error| fail(&self.stripes, error))
    }
}

/// What a worker says of a call besides its description, which the aggregator compares: for two
/// descriptions that look alike to it.
fn digests(what: &str) -> [i64; 2] {
    let digest = digest(what.bytes()) as i64;
    [digest, !digest]
}

/// Whether all workers said the same, by the largest of what they said.
fn same(what: &str, seen: &[i64]) -> Result<(), Error> {
    if seen == digests(what) {
        return Ok(());
    }
    let theirs = "at least one other worker made another one".into();
    Err(Error::Job(JobError::CallMismatch { ours: what.into(), theirs }))
}

/// True for types that workers can reduce among themselves.
pub(super) const fn reducible<T: Element>() -> bool {
    !matches!(T::TYPE, ElementType::F16 | ElementType::Bf16)
}

/// To one rank of each other host alone.
pub(super) fn broadcast_between_hosts<T: Element>(
    mesh: &mut Mesh,
    data: &mut [T],
    root: u16,
    by: Algorithm,
) -> Done {
    match size_of::<T>() {
        2 => mesh.broadcast_between_hosts::<u16>(bytemuck::cast_slice_mut(data), root, by),
        4 => mesh.broadcast_between_hosts::<u32>(bytemuck::cast_slice_mut(data), root, by),
        _ => mesh.broadcast_between_hosts::<u64>(bytemuck::cast_slice_mut(data), root, by),
    }
}

pub(super) fn broadcast<T: Element>(
    mesh: &mut Mesh,
    data: &mut [T],
    root: u16,
    algorithm: Algorithm,
) -> Done {
    match size_of::<T>() {
        2 => mesh.broadcast::<u16>(bytemuck::cast_slice_mut(data), root, algorithm),
        4 => mesh.broadcast::<u32>(bytemuck::cast_slice_mut(data), root, algorithm),
        _ => mesh.broadcast::<u64>(bytemuck::cast_slice_mut(data), root, algorithm),
    }
}

pub(super) fn all_gather<T: Element>(mesh: &mut Mesh, data: &mut [T]) -> Done {
    match size_of::<T>() {
        2 => mesh.all_gather::<u16>(bytemuck::cast_slice_mut(data)),
        4 => mesh.all_gather::<u32>(bytemuck::cast_slice_mut(data)),
        _ => mesh.all_gather::<u64>(bytemuck::cast_slice_mut(data)),
    }
}
