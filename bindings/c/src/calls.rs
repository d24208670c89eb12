//! A call's arguments: checked, and what is copied before and after it.

use std::ffi::c_int;
use std::ops::Range;

use xdp_agg_client::lent::{DataType, Memory, Task};
use xdp_agg_client::{Communicator, Name};

use crate::comm::Comm;
use crate::failure::Failure;
use crate::memory::{After, Lent, Prepared, Scratch, Vector};
use crate::names;
use crate::raw::{xdp_agg_datatype_t, xdp_agg_op_t};

/// What is called, in C's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    AllReduce { op: xdp_agg_op_t },
    Broadcast { root: c_int },
    Reduce { op: xdp_agg_op_t, root: c_int },
    ReduceScatter { op: xdp_agg_op_t },
    AllGather,
    Barrier,
}

/// The elements of a barrier.
pub(crate) const NO_VECTOR: (usize, xdp_agg_datatype_t) = (0, 0);

/// A call as C makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    /// None: in place.
    pub(crate) send: Lent,
    pub(crate) recv: Lent,
    /// Elements: those of one rank where each rank has its part.
    pub(crate) count: usize,
    pub(crate) datatype: xdp_agg_datatype_t,
    pub(crate) what: What,
    /// The caller's name for it.
    pub(crate) name: Option<&'a str>,
}

/// The bytes of a call's vectors.
struct Extent {
    /// Of one rank.
    each: usize,
    /// Of all ranks, where each has its part.
    all: usize,
    /// This rank's part of these.
    own: Range<usize>,
}

impl Arguments<'_> {
    /// Checks the call, and copies what it must not write to.
    ///
    /// # Errors
    /// An invalid argument; nothing was copied then.
    pub(crate) fn prepare(&self, comm: &Comm) -> Result<Prepared, Failure> {
        let communicator = comm.caller()?.communicator();
        let data_type = names::data_type(self.datatype)?;
        let task = self.task(communicator.world_size())?;
        let name = self.name.map(Name::new).transpose();
        let name = name.map_err(|_| Failure::of("name", "is empty or longer than 128 bytes"))?;
        let Extent { each, all, own } = self.extent(data_type, communicator)?;
        let is_in_place = self.send.is_none();
        let vectors = |send, recv| Vectors {
            send: (!is_in_place).then(|| self.send.vector(send)),
            recv: self.recv.vector(recv),
            data_type,
        };
        let (vector, after) = match task {
            Task::Reduce { root, .. } if root != communicator.rank() => {
                vectors(each, each).given_away()?
            }
            Task::ReduceScatter(_) if is_in_place => vectors(all, all).whole()?,
            Task::ReduceScatter(_) => vectors(all, each).scattered(own)?,
            Task::AllGather => vectors(each, all).gathered(own)?,
            Task::Broadcast { .. } => vectors(each, each).data()?,
            Task::Barrier => {
                return Ok(Prepared {
                    memory: Memory::none(),
                    task,
                    name,
                    after: After::default(),
                });
            }
            _ => vectors(each, each).whole()?,
        };
        Ok(Prepared { memory: vector.memory(data_type), task, name, after })
    }

    fn task(&self, world_size: u16) -> Result<Task, Failure> {
        let root = |root: c_int| {
            let found = u16::try_from(root).ok().filter(|root| *root < world_size);
            let problem = format!("is no rank of {world_size}; ranks count from 0");
            found.ok_or_else(|| Failure::argument("root", root, &problem))
        };
        Ok(match self.what {
            What::AllReduce { op } => Task::AllReduce(names::reduction(op)?),
            What::Broadcast { root: number } => Task::Broadcast { root: root(number)? },
            What::Reduce { op, root: number } => {
                Task::Reduce { reduction: names::reduction(op)?, root: root(number)? }
            }
            What::ReduceScatter { op } => Task::ReduceScatter(names::reduction(op)?),
            What::AllGather => Task::AllGather,
            What::Barrier => Task::Barrier,
        })
    }

    fn extent(&self, data_type: DataType, communicator: &Communicator) -> Result<Extent, Failure> {
        let [rank, world] = [communicator.rank(), communicator.world_size()].map(usize::from);
        let parts = match self.what {
            What::ReduceScatter { .. } | What::AllGather => world,
            _ => 1,
        };
        let each = self.count.checked_mul(data_type.size());
        let all = each.and_then(|each| each.checked_mul(parts));
        let (Some(each), Some(all)) = (each, all.filter(|all| isize::try_from(*all).is_ok()))
        else {
            let problem = format!("elements of {data_type}, {parts} times, are no memory's length");
            return Err(Failure::argument("count", self.count, &problem));
        };
        let start = if parts == 1 { 0 } else { rank * each };
        Ok(Extent { each, all, own: start..start + each })
    }
}

/// The vectors of a call.
struct Vectors {
    /// None: in place.
    send: Option<Vector>,
    recv: Vector,
    data_type: DataType,
}

/// What the call is made on, and what is to be done after it.
type Laid = Result<(Vector, After), Failure>;

impl Vectors {
    /// Reduced where it is received.
    fn whole(self) -> Laid {
        self.recv.check("recv", self.data_type)?;
        if let Some(send) = self.send.filter(|send| !send.is_at(self.recv)) {
            self.sent_to(send, self.recv)?;
        }
        Ok((self.recv, After::default()))
    }

    /// The one vector of a broadcast.
    fn data(self) -> Laid {
        self.recv.check("data", self.data_type)?;
        Ok((self.recv, After::default()))
    }

    /// Reduced for another rank: what this rank sent stays as it is, and it receives nothing.
    fn given_away(self) -> Laid {
        match self.send.filter(|send| !send.is_at(self.recv)) {
            None => self.whole(),
            Some(send) => {
                send.check("send", self.data_type)?;
                let mut scratch = Scratch::copy_of(send);
                Ok((scratch.vector(), After { scratch: Some(scratch), copy: None }))
            }
        }
    }

    /// All of what is sent is reduced, and this rank's part of it received.
    fn scattered(self, own: Range<usize>) -> Laid {
        let Some(send) = self.send else { return self.whole() };
        send.check("send", self.data_type)?;
        self.recv.check("recv", self.data_type)?;
        let mut scratch = Scratch::copy_of(send);
        let vector = scratch.vector();
        let copy = Some((vector.part(own), self.recv));
        Ok((vector, After { scratch: Some(scratch), copy }))
    }

    /// What is sent is this rank's part of what is received.
    fn gathered(self, own: Range<usize>) -> Laid {
        self.recv.check("recv", self.data_type)?;
        let part = self.recv.part(own);
        if let Some(send) = self.send.filter(|send| !send.is_at(part)) {
            self.sent_to(send, part)?;
        }
        Ok((self.recv, After::default()))
    }

    fn sent_to(&self, send: Vector, part: Vector) -> Result<(), Failure> {
        send.check("send", self.data_type)?;
        if send.overlaps(self.recv) {
            let problem = "overlaps recv; give vectors apart from each other, or NULL to work in \
                           place";
            return Err(Failure::of("send", problem));
        }
        send.copy_to(part);
        Ok(())
    }
}
