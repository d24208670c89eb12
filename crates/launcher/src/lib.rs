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
//!
//! # Where the processes meet
//!
//! `MASTER_PORT` is the launcher's own: torchrun's agent listens there. So the processes meet on
//! the same host at another port, which [`own_port`] derives from it, or at that of [`PORT`]. SLURM
//! says no such host: there it is the first one of the step's list ([`Launch::meeting`]).

mod setters;
mod slurm;

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
        numbers: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", slurm::TASKS[0], "SLURM_NODEID"],
        run: "SLURM_JOB_ID",
    },
];

/// A host of the run, and a port there, which may be the launcher's: by torchrun, or by hand with
/// every launcher.
pub const MASTER: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// The port where the processes meet, if not the one of [`own_port`].
pub const PORT: &str = "XDP_AGG_PORT";

/// The run's name, if not the launcher's. The same at all processes of a run.
pub const RUN: &str = "XDP_AGG_RUN";

/// A port for a run whose launcher has `MASTER_PORT`: never that one, and below those that systems
/// give to connections.
#[must_use]
pub const fn own_port(master: u16) -> u16 {
    match 10_000 + master % 10_000 {
        own if own == master => own + 10_000,
        own => own,
    }
}

/// All variables of launchers.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let own = |launcher: &Launcher| launcher.numbers.into_iter().chain([launcher.run]);
    let slurm = [slurm::TASKS[1], slurm::STEP].into_iter().chain(slurm::HOSTS);
    let all = LAUNCHERS.iter().flat_map(own).chain(slurm).chain(MASTER);
    all.filter(|name| !name.is_empty())
}

/// True of a variable that says where on its host a process is, or of which world of MPI: one
/// program may have several, and communicators over them. It is right for the launcher's own world
/// alone.
#[must_use]
pub fn is_local(name: &str) -> bool {
    let says = |launcher: &Launcher| {
        launcher.numbers[2..].contains(&name)
            || launcher.run == name && launcher.name != LAUNCHERS[0].name
            || [slurm::TASKS[1], slurm::STEP].contains(&name)
    };
    !name.is_empty() && LAUNCHERS.iter().any(says)
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
    /// The run's name: another run has another one. [`RUN`], else what launchers say.
    pub run: Option<String>,
    /// Name or address of a host of the run.
    pub master_addr: Option<String>,
    /// Text: in a Kubernetes cluster with a service `master` it is an address.
    master_port: Option<String>,
    /// [`PORT`].
    own_port: Option<String>,
    /// The first host of SLURM's list.
    first_host: Option<String>,
}

/// Where the processes of a run meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meeting {
    /// Name or address of a host on which at least one of them runs.
    pub host: String,
    /// A port there that is theirs alone.
    pub port: u16,
    /// The variable that says the host.
    pub name: &'static str,
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
        let text = |name| text(name, lookup(name));
        let [master_addr, master_port] = MASTER.map(text);
        let mut found = Self {
            master_addr: master_addr?,
            master_port: master_port?,
            own_port: text(PORT)?,
            ..Self::default()
        };
        let mut outer = None;
        let mut is_of_slurm = false;
        for launcher in &LAUNCHERS {
            let own = Self::of(launcher, &text)?;
            found.run = found.run.or(own.run.clone());
            if is_same(found.rank, own.rank) && is_same(found.world_size, own.world_size) {
                found.complete(&own);
                is_of_slurm = launcher.name == slurm::NAME && own.rank.is_some();
            } else {
                outer = outer.or(own.rank);
            }
        }
        found.check(outer)?;
        if is_of_slurm {
            found.first_host = slurm::first_host(text)?;
        }
        found.run = match text(RUN)?.filter(|run| !run.is_empty()) {
            Some(run) => Some(run),
            None => found.name_of_run(&text)?,
        };
        Ok(found)
    }

    /// The run's name where nobody gave it one: the launcher's; else what is left of it.
    fn name_of_run(
        &self,
        text: &impl Fn(&'static str) -> Result<Option<String>, Error>,
    ) -> Result<Option<String>, Error> {
        let torchrun = &LAUNCHERS[0];
        match self.launcher().map(|launcher| launcher.name) {
            Some(name) if name != torchrun.name => {
                // Steps of one job of SLURM are runs of their own, where they say the ranks.
                let step = if name == slurm::NAME { text(slurm::STEP)? } else { None };
                let step = step.map_or_else(String::new, |step| format!(".{step}"));
                return Ok(self.run.as_ref().map(|run| format!("{run}{step}")));
            }
            _ => {}
        }
        if let Some(run) = text(torchrun.run)?.filter(|run| run != "none") {
            return Ok(Some(run));
        }
        // torchrun gives all processes the same address; by hand it may be spelled in several ways.
        let address = text(torchrun.run)?.and_then(|_| self.master_addr.clone());
        let port = self.master_port.as_ref();
        let master = port.map(|port| format!("{}:{port}", address.unwrap_or_default()));
        let parts: Vec<String> = self.run.clone().into_iter().chain(master).collect();
        Ok((!parts.is_empty()).then(|| parts.join(" at ")))
    }

    /// What one launcher says of this process.
    fn of(
        launcher: &Launcher,
        text: &impl Fn(&'static str) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let is_slurm = launcher.name == slurm::NAME;
        let number = |name| {
            if is_slurm && name == slurm::TASKS[0] {
                return slurm::tasks_here(text);
            }
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

    /// Where the processes meet; None: no launcher says a host, or nothing says a port.
    ///
    /// # Errors
    /// A port that is not one.
    pub fn meeting(&self) -> Result<Option<Meeting>, Error> {
        let (host, name) = match (&self.master_addr, &self.first_host) {
            (Some(host), _) => (host, MASTER[0]),
            (None, Some(host)) => (host, slurm::HOSTS[0]),
            (None, None) => return Ok(None),
        };
        let read = |name, text: &str| match text.trim().parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => wrong(name, &format!("{text:?} is not a port, 1 to 65535")),
        };
        let port = match (&self.own_port, &self.master_port, &self.run) {
            (Some(text), ..) => read(PORT, text)?,
            (None, Some(text), _) => own_port(read(MASTER[1], text)?),
            // Runs of SLURM that begin on one host at once shall have ports of their own.
            (None, None, Some(run)) if self.first_host.is_some() => 10_000 + digest(run),
            (None, None, _) => return Ok(None),
        };
        Ok(Some(Meeting { host: host.clone(), port, name }))
    }

    /// The same where it is needed.
    ///
    /// # Errors
    /// A variable is not set, or the port is not a port number.
    pub fn need_meeting(&self) -> Result<Meeting, Error> {
        let missing = match (&self.master_addr, &self.first_host) {
            (None, None) => "MASTER_ADDR",
            _ => "MASTER_PORT",
        };
        let problem = "not set: where the processes find each other. torchrun sets MASTER_ADDR \
                       and MASTER_PORT, and srun says as much; with others give both (mpirun -x \
                       MASTER_ADDR=host -x MASTER_PORT=29500, a host on which a rank runs), or \
                       MASTER_ADDR and XDP_AGG_PORT";
        self.meeting()?.map_or_else(|| wrong(missing, problem), Ok)
    }
}

/// A variable's value as text. It may be a secret: the error does not show it. What is not text
/// must not pass for a variable that is not set, which could turn off a protection.
///
/// # Errors
/// It is not UTF-8.
pub fn text(name: &'static str, value: Option<OsString>) -> Result<Option<String>, Error> {
    let problem = "its value is not UTF-8; give it as UTF-8 text, or unset it";
    value.map(OsString::into_string).transpose().or_else(|_| wrong(name, problem))
}

/// Below 10 000.
fn digest(text: &str) -> u16 {
    let sum =
        text.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    (sum % 10_000) as u16
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
