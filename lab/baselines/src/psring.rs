//! Processes of a host first, then parameter servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xdp_agg_client::{Builder, Op, Place};
use xdp_agg_intranode::{Exchange, Feeder, Geometry, Group, Marks, Shape, Waker};
use xdp_agg_ps::PsClient;
use xdp_agg_quantize::{Element, Format, Scaling};

use crate::collective::{About, BoxError, Collective};
use crate::error::Error;
use crate::ps::{BLOCK, operation, window};

/// Longest sleep.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// PASSING's first step, PSRing: the processes of a host sum over shared memory, each pushes the
/// slices that it owns to `p` parameter servers, and all gather the results (section 4.1).
pub struct PsRing {
    place: Place,
    group: Arc<Group>,
    waker: Waker,
    client: PsClient,
    sequence: u64,
    deadline: Duration,
    sum: Vec<u8>,
}

impl std::fmt::Debug for PsRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PsRing").field("place", &self.place).finish_non_exhaustive()
    }
}

impl PsRing {
    /// Joins the job of these settings at these servers, and the other processes of this host.
    ///
    /// # Errors
    /// Settings that are missing, servers that do not answer, workers that do not come.
    pub fn connect(settings: &Builder, servers: &[SocketAddr]) -> Result<Self, Error> {
        let place = settings.place()?;
        // Blocks are large, and calls come one at a time: a few blocks under way are enough.
        let group = Group::join(&settings.host_options(&place, BLOCK / 2, None))?;
        let job = format!("{}/{}", settings.get_job(), place.local_rank);
        let (deadline, join_deadline) = settings.get_deadlines();
        let options = xdp_agg_ps::Options {
            deadline: deadline.max(join_deadline),
            window: window(place.world_size),
            ..xdp_agg_ps::Options::new(job, place.host, place.hosts)
        };
        let mut client = PsClient::connect_with(servers, options)?;
        client.set_deadline(deadline);
        let waker = group.waker()?;
        Ok(Self { place, group, waker, client, sequence: 0, deadline, sum: Vec::new() })
    }

    fn all_reduce<T: xdp_agg_ps::Element>(
        &mut self,
        data: &mut [T],
        op: Op,
    ) -> Result<(), BoxError> {
        operation(op)?;
        let slice_blocks = self.group.slice_blocks(BLOCK * size_of::<T>());
        let geometry = Geometry::new(data.len(), BLOCK, slice_blocks, self.place.local_size.into());
        let description = format!("call {}: {op} of {} {}", self.sequence, data.len(), T::TYPE);
        let shape = Shape {
            sequence: self.sequence,
            len: data.len(),
            element_size: size_of::<T>(),
            digest: 0,
            description,
            key: None,
        };
        self.sequence += 1;
        let (feeder, exchange) = self.group.begin(&shape, geometry)?;
        let outcome = self.carry::<T>(bytemuck::cast_slice_mut(data), feeder, &exchange);
        if let Err(error) = &outcome {
            exchange.fail(0, &error.to_string());
        }
        outcome
    }

    /// Feeds this process's vector, pushes the host's sums of its slices, and takes results in.
    fn carry<T: xdp_agg_ps::Element>(
        &mut self,
        data: &mut [u8],
        mut feeder: Feeder,
        exchange: &Exchange,
    ) -> Result<(), BoxError> {
        let until = Instant::now() + self.deadline.min(xdp_agg_mesh::MAX_DEADLINE);
        let format = Format::new(T::TYPE, Op::Sum, Scaling::Block, None, 1)?;
        self.client.start(exchange.own_blocks())?;
        let mut pushed = 0;
        let mut full = false;
        loop {
            let mut did = feeder.poll(data, &mut |_| 0.0)?.did;
            while !full && pushed < exchange.staged() {
                self.sum_of::<T>(&format, exchange, pushed);
                full = !self.client.push::<T>(pushed, bytemuck::cast_slice(&self.sum))?;
                if !full {
                    pushed += 1;
                    did = true;
                }
            }
            let sums = self.client.poll::<T>(Duration::ZERO, |piece| {
                exchange.with_output(piece.piece, |to| {
                    to.copy_from_slice(bytemuck::cast_slice(piece.values));
                });
                exchange.finish(piece.piece, Marks::default());
            })?;
            full &= sums == 0;
            if feeder.done() {
                return Ok(());
            }
            if !did && sums == 0 {
                if Instant::now() > until {
                    let waiting = feeder.waiting_for();
                    return Err(format!(
                        "no result after {:?}: {} sums are outstanding at the servers, and local \
                         ranks {waiting:?} are waited for",
                        self.deadline,
                        self.client.outstanding()
                    )
                    .into());
                }
                // A push that was refused waits for a sum, or for room: the sockets tell of both.
                self.sleep(&feeder, || !full && pushed < exchange.staged())?;
                full = false;
            }
        }
    }

    /// The processes' sum of a block that this one owns.
    fn sum_of<T: Element>(&mut self, format: &Format, exchange: &Exchange, block: u64) {
        let inputs = exchange.inputs(block);
        let sources: Vec<&[T]> = inputs.iter().map(|input| bytemuck::cast_slice(input)).collect();
        self.sum.resize(size_of_val(sources[0]), 0);
        format.reduce(&sources, bytemuck::cast_slice_mut(&mut self.sum));
    }

    /// Sleeps until a server or another process of the host has done something.
    fn sleep(&self, feeder: &Feeder, can_push: impl FnOnce() -> bool) -> Result<(), Error> {
        self.waker.arm();
        if !feeder.can() && !can_push() {
            let mut fds = vec![PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN)];
            fds.extend(self.client.fds().map(|(fd, writes)| {
                let write = if writes { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(fd, PollFlags::IN | write)
            }));
            match poll(&mut fds, Some(&NAP)) {
                // Whatever interrupted the wait, this process looks around now.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::Wait(error.into())),
            }
        }
        self.waker.disarm();
        Ok(())
    }
}

impl Collective for PsRing {
    fn about(&self) -> About {
        (self.place.rank, self.place.world_size, "psring")
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        self.all_reduce(data, op)?;
        if op == Op::Average {
            data.iter_mut().for_each(|sum| *sum /= f32::from(self.place.world_size));
        }
        Ok(())
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        self.all_reduce(data, op)?;
        if op == Op::Average {
            data.iter_mut().for_each(|sum| *sum /= i32::from(self.place.world_size));
        }
        Ok(())
    }
}
