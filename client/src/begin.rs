//! How a call begins: cut into a part for each aggregator, in this process's memory or in that of
//! the host's processes.

use std::sync::Arc;

use xdp_agg_intranode::{Group, Reserved, Results, View};
use xdp_agg_quantize::{Element, Format, LaneWidth};

use crate::communicator::Communicator;
use crate::driver::{Stripe, drive};
use crate::error::{Error, JobError};
use crate::flight;
use crate::grouped::{Grouped, Opened, Opening};
use crate::handle::{Begun, Owned, Patience, given_back, globally};
use crate::joining;
use xdp_agg_protocol::worker::{Blocks, Buffer, Call, Local, Purpose, Report, Share};
use xdp_agg_quantize::Op;

/// Of a call: one an aggregator.
type Parts = Vec<Box<dyn Blocks>>;

impl Communicator {
    /// Begins a call on memory that a caller lends.
    ///
    /// # Safety
    /// The memory must be valid, and used by nobody else, until the returned call has been waited
    /// for or dropped.
    #[expect(unsafe_code, reason = "the one place where memory is lent to a call")]
    pub(crate) unsafe fn begin_lent<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        purpose: &Purpose,
    ) -> Result<Begun, Error> {
        // SAFETY: as the caller promises; and a call that could not be started everywhere `begin`
        // has taken out of where it was.
        self.begin_in(unsafe { Buffer::lend(data) }, op, purpose)
    }

    /// All-reduces `data`, which is not written to, into memory that all processes of the host
    /// read.
    pub(crate) fn reduce_in_view<T: Element>(
        &self,
        data: &[T],
        op: Op,
        place: Reserved,
    ) -> Result<(View, Report), Error> {
        let purpose = Purpose::default();
        #[expect(unsafe_code, reason = "a call on memory that a caller lends")]
        // SAFETY: the call is waited for, or taken out of all engines when this function ends in
        // any other way, before the borrow of `data` ends.
        let (begun, results) = unsafe { self.begin_view(data, op, &purpose, place) }?;
        let mut patience = Patience { deadline: self.deadline(), interrupted: &mut || false };
        let calls = self.wait(begun, &mut patience)?;
        let report = Report::of_parts(&calls);
        let view = results.and_then(Results::view).ok_or(Error::Job(JobError::Closed))?;
        Ok((view, report))
    }

    /// Begins such a call. Where its results are can be asked when it has been waited for.
    ///
    /// # Safety
    /// As [`Self::begin_lent`]; the memory is only read.
    #[expect(unsafe_code, reason = "memory is lent to a call")]
    pub(crate) unsafe fn begin_view<T: Element>(
        &self,
        data: &[T],
        op: Op,
        purpose: &Purpose,
        place: Reserved,
    ) -> Result<(Begun, Option<Results>), Error> {
        // SAFETY: as the caller promises.
        let buffer = unsafe { Buffer::lend_reading(data) };
        let short = self.is_short(&buffer);
        let (sequence, results) = self.begin_with(buffer, op, purpose, Some(place))?;
        if !short {
            self.nudge(1);
        }
        Ok((Begun::new(self.stripes(), (sequence, short)), results))
    }

    /// Starts such a call on memory that it keeps, and leaves it to the communicator's threads; its
    /// number, whether it is short, and where its results will be.
    pub(crate) fn start_view<T: Element>(
        &self,
        buffer: Buffer<T>,
        op: Op,
        place: Reserved,
    ) -> Result<((u64, bool), Option<Results>), Error> {
        let short = self.is_short(&buffer);
        let (sequence, results) = self.begin_with(buffer, op, &Purpose::default(), Some(place))?;
        self.leave_to_threads(short);
        Ok(((sequence, short), results))
    }

    /// Has the communicator's threads carry on with a call that nobody waits for yet.
    pub(crate) fn leave_to_threads(&self, short: bool) {
        if short {
            drive::in_turn(&self.stripes).for_each(|index| self.stripes[index].shared.send_off());
        } else {
            self.nudge(0);
        }
    }

    /// Begins a call on its own memory; [`Self::wait_owned`] gives it back.
    pub(crate) fn begin_owned<T: Element>(
        &self,
        data: Vec<T>,
        op: Op,
        purpose: &Purpose,
    ) -> Result<Owned<T>, Error> {
        let buffer = Buffer::owned(data);
        let memory = buffer.keep();
        Ok(Owned { begun: self.begin_in(buffer, op, purpose)?, memory })
    }

    fn begin_in<T: Element>(
        &self,
        buffer: Buffer<T>,
        op: Op,
        purpose: &Purpose,
    ) -> Result<Begun, Error> {
        let short = self.is_short(&buffer);
        let sequence = self.begin(buffer, op, purpose)?;
        if !short {
            self.nudge(1);
        }
        Ok(Begun::new(self.stripes(), (sequence, short)))
    }

    /// Waits for a call, and drives all calls meanwhile.
    pub(crate) fn wait(
        &self,
        begun: Begun,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Call>, Error> {
        begun.wait(patience).map_err(|error| globally(error, &self.place))
    }

    /// The same of a call on its own memory: the elements, and what became of the call.
    pub(crate) fn wait_owned<T>(
        &self,
        owned: Owned<T>,
        patience: &mut Patience<'_>,
    ) -> Result<(Vec<T>, Report), Error> {
        Ok(given_back(self.wait(owned.begun, patience)?, owned.memory))
    }

    /// Wakes the progress threads, from this stripe's on: nobody drives these yet.
    pub(crate) fn nudge(&self, first: usize) {
        for stripe in &self.stripes[first..] {
            stripe.shared.nudge.ring();
        }
    }

    /// A thread that waits for such a call drives all stripes itself.
    pub(crate) fn is_short<T: Element>(&self, buffer: &Buffer<T>) -> bool {
        self.stripes.len() > 1 && buffer.len() * size_of::<T>() <= drive::LONGEST
    }

    /// One flow carries all blocks, as it likes to cut them.
    pub(crate) fn is_single(&self) -> bool {
        self.stripes.len() == 1 && self.group.is_none()
    }

    /// Starts a call at all aggregators; its number.
    pub(crate) fn begin<T: Element>(
        &self,
        buffer: Buffer<T>,
        op: Op,
        purpose: &Purpose,
    ) -> Result<u64, Error> {
        self.begin_with(buffer, op, purpose, None).map(|(sequence, _)| sequence)
    }

    /// The same; where the results will be, if they have a place in which they are to be read.
    fn begin_with<T: Element>(
        &self,
        buffer: Buffer<T>,
        op: Op,
        purpose: &Purpose,
        place: Option<Reserved>,
    ) -> Result<(u64, Option<Results>), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let format =
            Format::new(T::TYPE, op, self.scaling, self.lanes_of::<T>(op), self.place.hosts)?;
        if self.is_single() {
            let part = Local::new(buffer, format).with_purpose(purpose);
            let started = self.first().start(Box::new(part));
            let sequence =
                started.inspect_err(|error| flight::call_failed(&self.stripes, error))?;
            return Ok((sequence, None));
        }
        if self.group.is_none() {
            format.check(buffer.slice(0..buffer.len()), 1).map_err(|error| {
                let error = Error::from(error);
                self.fail(&error);
                error
            })?;
        }
        let _order = self.starting.lock();
        let sequence = self.agreed_sequence()?;
        let (parts, results) = match &self.group {
            None => (self.parts(buffer, format, purpose), None),
            Some(group) => self
                .grouped_parts(group, buffer, format, (sequence, purpose, place))
                .map_err(|error| self.first_error().unwrap_or(error))?,
        };
        self.start_parts(sequence, parts)?;
        Ok((sequence, results))
    }

    /// Starts a call's parts, one at each aggregator; [`Self::starting`] is held.
    pub(crate) fn start_parts(
        &self,
        sequence: u64,
        parts: Vec<Box<dyn Blocks>>,
    ) -> Result<(), Error> {
        for (index, (stripe, part)) in self.stripes.iter().zip(parts).enumerate() {
            if let Err(error) = stripe.shared.start(part) {
                self.fail(&error);
                // The caller's memory is the caller's again.
                for started in &self.stripes[..index] {
                    started.shared.lock().remove(sequence);
                }
                return Err(globally(error, &self.place));
            }
        }
        Ok(())
    }

    /// Why this membership has ended, if it has. The processes of the host may not know it, and say
    /// something else of a call.
    pub(crate) fn first_error(&self) -> Option<Error> {
        let failure = |stripe: &Stripe| stripe.shared.lock().machine.failure().cloned();
        self.stripes.iter().find_map(failure).map(|error| globally(error.into(), &self.place))
    }

    /// The configured width, where this type has a choice.
    pub(crate) fn lanes_of<T: Element>(&self, op: Op) -> Option<LaneWidth> {
        let chooses = T::TYPE.is_float() && op.adds() && size_of::<T>() < 8;
        self.lanes.filter(|_| chooses)
    }

    /// The next call's number. All aggregators count alike: [`joining`] sees to it.
    pub(crate) fn agreed_sequence(&self) -> Result<u64, Error> {
        joining::next_call(&self.stripes).ok_or_else(|| {
            let error = Error::Job(JobError::Protocol(
                "the aggregators are at different calls; connect again".into(),
            ));
            self.fail(&error);
            error
        })
    }

    /// A vector in this process's own memory, in a part for each aggregator.
    fn parts<T: Element>(
        &self,
        buffer: Buffer<T>,
        format: Format,
        purpose: &Purpose,
    ) -> Vec<Box<dyn Blocks>> {
        let shares = shares(self.stripes.len());
        let mut parts: Vec<Box<dyn Blocks>> = Vec::with_capacity(shares.len());
        for share in &shares[1..] {
            #[expect(unsafe_code, reason = "parts of one vector")]
            // SAFETY: the shares of a vector are disjoint, and a part reads and writes the blocks
            // of its own share alone.
            let memory = unsafe { buffer.share() };
            let part = Local::part(memory, format, *share, self.chunks);
            parts.push(Box::new(part.with_purpose(purpose)));
        }
        let first = Local::part(buffer, format, shares[0], self.chunks);
        parts.insert(0, Box::new(first.with_purpose(purpose)));
        parts
    }

    /// A vector of the processes of this host, in a part for each aggregator.
    fn grouped_parts<T: Element>(
        &self,
        group: &Arc<Group>,
        buffer: Buffer<T>,
        format: Format,
        (sequence, purpose, results): (u64, &Purpose, Option<Reserved>),
    ) -> Result<(Parts, Option<Results>), Error> {
        let chunks = self.chunks;
        let opening = Opening { format, chunks, sequence, purpose, way: "aggregator" };
        let opened = opening.open(group, buffer, results).map_err(|error| {
            let error = Error::Host(error);
            self.fail(&error);
            error
        })?;
        let Opened { exchange, place, feed, results } = opened;
        let mut feed = Some(feed);
        let parts = shares(self.stripes.len()).into_iter().map(|share| {
            let part = Grouped::new(Arc::clone(&exchange), format, share, place, feed.take());
            Box::new(part.with_purpose(purpose)) as Box<dyn Blocks>
        });
        Ok((parts.collect(), results))
    }
}

/// Parts of a vector, one an aggregator.
fn shares(count: usize) -> Vec<Share> {
    let of = count as u64;
    (0..of).map(|index| Share { index, of }).collect()
}
