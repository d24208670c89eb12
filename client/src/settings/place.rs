//! Which process this is: in the world, and on its host.

use xdp_agg_common::wire::MAX_WORKERS;
use xdp_agg_intranode::MAX_PROCESSES;

use super::Builder;
use crate::error::Error;

/// This process in the world and on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// This worker's number, below the world size.
    pub rank: u16,
    /// Number of workers.
    pub world_size: u16,
    /// Among the processes that form a group; 0 of 1 without groups.
    pub local_rank: u16,
    /// Processes of the group.
    pub local_size: u16,
    /// Number of the group: the worker that it is at the aggregators.
    pub host: u16,
    /// Groups.
    pub hosts: u16,
}

impl Place {
    /// Of a rank where `local_size` successive ranks are a worker.
    pub(crate) fn of(rank: u16, world_size: u16, local_size: u16) -> Result<Self, Error> {
        let hosts = hosts(world_size, local_size.max(1))?;
        let (host, local_rank) = (rank / local_size.max(1), rank % local_size.max(1));
        Ok(Self { rank, world_size, local_rank, local_size, host, hosts })
    }
}

impl Builder {
    /// How the processes of this host meet, with a segment for blocks of `block` bytes; their peaks
    /// are known `ahead` own blocks before their data, if that is given.
    #[must_use]
    pub fn host_options(
        &self,
        place: &Place,
        block: usize,
        ahead: Option<usize>,
    ) -> xdp_agg_intranode::Options {
        let (rank, size) = (place.local_rank.into(), place.local_size.into());
        let mut options = xdp_agg_intranode::Options::new(&self.job, rank, size);
        options.scan_ahead = ahead.unwrap_or(options.scan_ahead);
        options.segment = self.segment.unwrap_or_else(|| options.good_segment(block));
        options.buffers = self.buffers;
        if let Some(directory) = &self.segment_dir {
            options.backing = xdp_agg_intranode::Backing::Directory(directory.clone());
        }
        options.join_within = self.join_deadline;
        options.wait_within = self.deadline;
        options.warn_after = self.warn_after;
        options
    }

    /// Whether calls stay in the shared memory of this host: it has all processes of the job.
    pub(crate) const fn stays_in_host(&self, place: &Place) -> bool {
        self.host_collectives && place.hosts == 1 && place.local_size > 1
    }

    /// Rank and world size, checked.
    pub(crate) fn world(&self) -> Result<(u16, u16), Error> {
        let missing = |name, method| Error::Config {
            name,
            problem: format!("not set; launchers such as torchrun set it, or use {method}"),
        };
        let rank = self.rank.ok_or_else(|| missing("RANK", "Builder::rank"))?;
        let world_size =
            self.world_size.ok_or_else(|| missing("WORLD_SIZE", "Builder::world_size"))?;
        if world_size == 0 || rank >= world_size {
            return Err(Error::Config {
                name: if world_size == 0 { "WORLD_SIZE" } else { "RANK" },
                problem: format!("rank {rank} of {world_size} workers; ranks count from 0"),
            });
        }
        let wrong = |name, problem| Err(Error::Config { name, problem });
        match (self.local_rank, self.local_size) {
            (_, Some(size)) if size == 0 || usize::from(size) > MAX_PROCESSES => {
                let problem = format!("{size} processes on this host; 1 to {MAX_PROCESSES} can be");
                wrong("LOCAL_WORLD_SIZE", problem)
            }
            (Some(local), Some(size)) if local >= size => {
                let problem =
                    format!("{local}, with LOCAL_WORLD_SIZE={size}; local ranks count from 0");
                wrong("LOCAL_RANK", problem)
            }
            _ => Ok((rank, world_size)),
        }
    }

    /// Where this process is if all hosts have as many processes, numbered host by host; checked.
    /// Those of a communicator meet first, and find out.
    ///
    /// # Errors
    /// [`Error::Config`]: a rank or a size is missing, or they do not fit together.
    pub fn place(&self) -> Result<Place, Error> {
        let (rank, world_size) = self.world()?;
        let (local_rank, local_size, host) = match self.local_size {
            Some(size) if self.in_host => self.group(rank, world_size, size)?,
            _ => (0, 1, rank),
        };
        let hosts = hosts(world_size, local_size)?;
        Ok(Place { rank, world_size, local_rank, local_size, host, hosts })
    }

    /// Where this process is if each is a worker of its own, however many there are: for systems
    /// without a limit.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn each_for_itself(&self) -> Result<Place, Error> {
        let group = Self { local_size: None, ..self.clone() };
        let (rank, world_size) =
            (group.rank.unwrap_or_default(), group.world_size.unwrap_or_default());
        if rank < world_size {
            return Ok(Place {
                rank,
                world_size,
                local_rank: 0,
                local_size: 1,
                host: rank,
                hosts: world_size,
            });
        }
        group.place()
    }

    /// Local rank, local size, and number of the host.
    fn group(&self, rank: u16, world_size: u16, size: u16) -> Result<(u16, u16, u16), Error> {
        let wrong = |name, problem| Err(Error::Config { name, problem });
        if size == 0 || usize::from(size) > MAX_PROCESSES || !world_size.is_multiple_of(size) {
            return wrong(
                "LOCAL_WORLD_SIZE",
                format!(
                    "{size} processes on this host in a world of {world_size}: every host must \
                     have equally many, 1 to {MAX_PROCESSES}, so WORLD_SIZE is a multiple of it; \
                     or set XDP_AGG_IN_HOST=off, and every process is a worker of its own"
                ),
            );
        }
        let local = match self.local_rank {
            Some(local) => local,
            None if size == 1 => 0,
            None => {
                let problem = "not set, but LOCAL_WORLD_SIZE is; launchers set both";
                return wrong("LOCAL_RANK", problem.into());
            }
        };
        if local >= size {
            return wrong(
                "LOCAL_RANK",
                format!("{local}, with LOCAL_WORLD_SIZE={size}; local ranks count from 0"),
            );
        }
        let host = self.group_rank.unwrap_or(rank / size);
        if u32::from(host) * u32::from(size) + u32::from(local) != u32::from(rank) {
            return wrong(
                "LOCAL_RANK",
                format!(
                    "{local} of {size} on host {host} is not rank {rank}: ranks must be numbered \
                     host by host (rank = host * LOCAL_WORLD_SIZE + LOCAL_RANK), as torchrun and \
                     `mpirun --map-by slot` do; or set XDP_AGG_IN_HOST=off"
                ),
            );
        }
        Ok((local, size, host))
    }
}

/// The number of workers.
fn hosts(world_size: u16, local_size: u16) -> Result<u16, Error> {
    let hosts = world_size / local_size;
    if usize::from(hosts) > MAX_WORKERS {
        let what = if local_size == 1 { "workers" } else { "hosts" };
        return Err(Error::Config {
            name: "WORLD_SIZE",
            problem: format!(
                "{hosts} {what}; a job has 1 to {MAX_WORKERS}. Where hosts have several \
                     processes, LOCAL_WORLD_SIZE makes one worker of them"
            ),
        });
    }
    Ok(hosts)
}
