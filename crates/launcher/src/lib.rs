//! What launchers tell a process of its place in a run, by environment variables.
//!
//! [`Launch::read`] is the only reader of these variables. [`LAUNCHERS`] has their names, and
//! `docs/guide.md` a table of them, which a test holds to this code.
//!
//! # Precedence
//!
//! Launchers nest: `torchrun` runs under `srun`, and `mpirun` in a batch job of SLURM. So the
//! launchers count in the order of [`LAUNCHERS`], the innermost first. The variables of a later
//! one complete an earlier one's if both speak of the same world: rank and size are the same, as
//! far as both say them. Otherwise the later ones are those of an outer run, and are not read. Of
//! the place on a host, the earliest launcher that knows this rank says all.
//!
//! A rank without a size, or a size without a rank, is an error where an outer run has the other
//! one. Where no launcher has it, it is missing: a caller may know it by other means.

use std::ffi::OsString;
use std::fmt;

/// The variables of one launcher; "" for what it does not say.
#[derive(Debug)]
#[non_exhaustive]
pub struct Launcher {
    /// Its name, for people.
    pub name: &'static str,
    /// Rank, world size, rank on the host, processes of the host, number of the host.
    numbers: [&'static str; 5],
    /// The run's name.
    run: &'static str,
}

/// Those that are known, the innermost first.
pub static LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "torchrun",
        numbers: ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"],
        run: "TORCHELASTIC_RUN_ID",
    },
    Launcher {
        name: "Open MPI",
        numbers: [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "",
        ],
        run: "",
    },
    Launcher {
        name: "MPICH",
        numbers: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""],
        run: "PMI_JOBID",
    },
    Launcher { name: "PMIx", numbers: ["PMIX_RANK", "", "", "", ""], run: "PMIX_NAMESPACE" },
    Launcher {
        name: "SLURM",
        numbers: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", ""],
        run: "SLURM_JOB_ID",
    },
];

/// The host of rank 0, and a free port there: by torchrun, or by hand with every launcher.
pub const MASTER: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

impl Launcher {
    /// All its variables.
    pub fn variables(&self) -> impl Iterator<Item = &'static str> {
        self.numbers.into_iter().chain([self.run]).filter(|name| !name.is_empty())
    }
}

/// True of a variable that says where on its host a process is. It is right for the launcher's own
/// world alone.
#[must_use]
pub fn is_local(name: &str) -> bool {
    LAUNCHERS.iter().any(|launcher| launcher.numbers[2..].contains(&name) && !name.is_empty())
}

/// A variable that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
#[non_exhaustive]
pub struct Error {
    /// The variable.
    pub name: &'static str,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// A number, and the variable that says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Number {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: u16,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// What launchers say of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// Its number, from 0, below the world's size.
    pub rank: Option<Number>,
    /// Number of processes, at least 1.
    pub world_size: Option<Number>,
    /// Its number on its host.
    pub local_rank: Option<Number>,
    /// Number of processes on its host.
    pub local_size: Option<Number>,
    /// The number of its host.
    pub group_rank: Option<Number>,
    /// The run's name: another run has another one.
    pub run: Option<String>,
    /// Name or address of rank 0's host.
    pub master_addr: Option<String>,
    /// Text: in a Kubernetes cluster with a service `master` it is an address.
    master_port: Option<String>,
}

impl Launch {
    /// This process's own environment.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn from_env() -> Result<Self, Error> {
        Self::read(std::env::var_os)
    }

    /// What `lookup` says, given the names of variables.
    ///
    /// # Errors
    /// A value that is not a number, or not text; values that contradict each other.
    pub fn read(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Error> {
        let lookup = |name: &'static str| if name.is_empty() { None } else { lookup(name) };
        let text = |name| match lookup(name).map(OsString::into_string).transpose() {
            Ok(text) => Ok(text),
            // A value that is not text must not pass for a variable that is not set.
            Err(_) => wrong(name, "its value is not UTF-8; give it as UTF-8 text, or unset it"),
        };
        let [master_addr, master_port] = MASTER.map(text);
        let mut found =
            Self { master_addr: master_addr?, master_port: master_port?, ..Self::default() };
        let mut outer = None;
        for launcher in &LAUNCHERS {
            let own = Self::of(launcher, &text)?;
            found.run = found.run.or(own.run.clone());
            if is_same(found.rank, own.rank) && is_same(found.world_size, own.world_size) {
                found.complete(&own);
            } else {
                outer = outer.or(own.rank);
            }
        }
        found.check(outer)?;
        Ok(found)
    }

    /// What one launcher says of this process.
    fn of(
        launcher: &Launcher,
        text: &impl Fn(&'static str) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let number = |name| {
            let Some(text) = text(name)? else { return Ok(None) };
            match text.trim().parse() {
                Ok(value) => Ok(Some(Number { name, value })),
                Err(_) => wrong(name, &format!("{text:?} is not a number from 0 to 65535")),
            }
        };
        let [rank, world_size, local_rank, local_size, group_rank] = launcher.numbers.map(number);
        // torchrun's name of a run without a name is "none".
        let run = text(launcher.run)?.filter(|run| run != "none");
        let (rank, world_size, group_rank) = (rank?, world_size?, group_rank?);
        let (local_rank, local_size) = (local_rank?, local_size?);
        let found =
            Self { rank, world_size, local_rank, local_size, group_rank, run, ..Self::default() };
        // A shell in an allocation of SLURM is told of processes, but is not one of them.
        let is_meant = rank.is_some() || launcher.name == LAUNCHERS[0].name;
        Ok(if is_meant { found } else { Self { run: found.run, ..Self::default() } })
    }

    /// Adds what a later launcher says of the same world.
    fn complete(&mut self, own: &Self) {
        self.rank = self.rank.or(own.rank);
        self.world_size = self.world_size.or(own.world_size);
        if self.local_rank.or(self.local_size).is_none() {
            (self.local_rank, self.local_size) = (own.local_rank, own.local_size);
            self.group_rank = self.group_rank.or(own.group_rank);
        }
    }

    /// `outer` is the rank in a run that this one is a part of, or that was left in the shell.
    fn check(&self, outer: Option<Number>) -> Result<(), Error> {
        for (rank, size) in [(self.rank, self.world_size), (self.local_rank, self.local_size)] {
            match (rank, size) {
                (_, Some(size)) if size.value == 0 => {
                    return wrong(size.name, "0 processes; at least 1 is expected");
                }
                (Some(rank), Some(size)) if rank.value >= size.value => {
                    let problem = format!("rank {}, with {size}; ranks count from 0", rank.value);
                    return wrong(rank.name, &problem);
                }
                _ => {}
            }
        }
        if let (Some(half), None, Some(outer)) | (None, Some(half), Some(outer)) =
            (self.rank, self.world_size, outer)
        {
            let problem = format!(
                "{}, with {outer} of another run: a rank and a number of processes belong \
                 together; set both, or unset {}",
                half.value, half.name
            );
            return wrong(half.name, &problem);
        }
        Ok(())
    }

    /// The launcher that says the rank.
    #[must_use]
    pub fn launcher(&self) -> Option<&'static Launcher> {
        LAUNCHERS
            .iter()
            .find(|launcher| self.rank.is_some_and(|rank| rank.name == launcher.numbers[0]))
    }

    /// Rank and world size.
    ///
    /// # Errors
    /// One of them is not set.
    pub fn world(&self) -> Result<(u16, u16), Error> {
        let need = |number: Option<Number>, name| match number {
            Some(number) => Ok(number.value),
            None => wrong(name, "not set; launchers such as torchrun, mpirun and srun set it"),
        };
        Ok((need(self.rank, "RANK")?, need(self.world_size, "WORLD_SIZE")?))
    }

    /// Number of processes on this host; 1 where nobody says so.
    #[must_use]
    pub fn processes(&self) -> u16 {
        self.local_size.map_or(1, |size| size.value)
    }

    /// Host and port where rank 0 listens; None: at least one of them is not set.
    ///
    /// # Errors
    /// Both are set, and the port is not a port number.
    pub fn master(&self) -> Result<Option<(&str, u16)>, Error> {
        let (Some(host), Some(text)) = (&self.master_addr, &self.master_port) else {
            return Ok(None);
        };
        match text.trim().parse() {
            Ok(port) => Ok(Some((host, port))),
            Err(_) => wrong(MASTER[1], &format!("{text:?} is not a port, 1 to 65535")),
        }
    }

    /// The same where it is needed.
    ///
    /// # Errors
    /// A variable is not set, or the port is not a port number.
    pub fn need_master(&self) -> Result<(&str, u16), Error> {
        let missing = match (&self.master_addr, &self.master_port) {
            (None, _) => "MASTER_ADDR",
            _ => "MASTER_PORT",
        };
        let problem = "not set: rank 0's host, and a free port there; torchrun sets both, with \
                       others they are given (mpirun -x MASTER_ADDR=host -x MASTER_PORT=29600)";
        self.master()?.map_or_else(|| wrong(missing, problem), Ok)
    }
}

fn wrong<T>(name: &'static str, problem: &str) -> Result<T, Error> {
    Err(Error { name, problem: problem.to_owned() })
}

/// Whether they are the same, as far as both are known.
fn is_same(one: Option<Number>, other: Option<Number>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one.value == other.value)
}

#[cfg(test)]
mod tests;
