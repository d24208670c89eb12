//! What can go wrong among the processes of a host, and what to do about it.

use std::time::Duration;

/// Why a group could not be made, or a call in it did not end with a result.
///
/// [`Error::Busy`] can be tried again. After any other error of a call the group is of no more
/// use: drop it, and make another with all processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of its range.
    #[error("{name}: {problem}")]
    Config {
        /// Field of [`Options`](crate::Options), or what else was given.
        name: &'static str,
        /// What was wrong and what is expected.
        problem: String,
    },
    /// A live process group has this job's name on this host.
    #[error(
        "job {job:?} is already running on this host (process {pid}, same user, same network \
         namespace); wait for it to end, stop it, or give this job another name"
    )]
    NameInUse {
        /// Name of the job.
        job: String,
        /// Its process with local rank 0, as far as can be told.
        pid: i32,
    },
    /// The processes of the host do not agree.
    #[error("the processes of this host do not agree: {ours}, but {theirs}")]
    Mismatch {
        /// What one has, and which.
        ours: String,
        /// What another has, and which.
        theirs: String,
    },
    /// There is no room for the segment.
    #[error("no room for a shared segment of {wanted} bytes in {place} ({reason}); {advice}")]
    NoSpace {
        /// Bytes that were asked for.
        wanted: usize,
        /// Where.
        place: String,
        /// The system's words.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// A single call needs more than the whole segment has.
    #[error(
        "this call needs {wanted} bytes of the shared segment, which has {room} for calls; make \
         the segment larger or the blocks of a tile fewer"
    )]
    TooLarge {
        /// Bytes the call needs.
        wanted: usize,
        /// Bytes there are when no other call runs.
        room: usize,
    },
    /// No room for a buffer, or for results that are read in place.
    #[error(
        "{wanted} bytes of the shared segment are wanted for a buffer or a result that is read in \
         place; {room} are set apart for these, of which {used} are in use: set \
         XDP_AGG_BUFFERS={advised} at all processes of this host, or drop buffers and views"
    )]
    BufferRoom {
        /// Bytes that were asked for.
        wanted: usize,
        /// Bytes set apart.
        room: usize,
        /// Bytes of these that are in use.
        used: usize,
        /// What would be enough, in bytes.
        advised: usize,
    },
    /// This process holds as many results in place as it may.
    #[error(
        "this process reads {most} results in place, which is the most; drop a view before the \
         next call that gives one"
    )]
    TooManyViews {
        /// How many it may hold.
        most: usize,
    },
    /// No room at present: other calls have to end first.
    #[error("no room for another call: {running} are running; let one end first")]
    Busy {
        /// Calls that hold room.
        running: usize,
    },
    /// A local process died, or closed its connection without leaving.
    #[error("local rank {local_rank} (process {pid}) of this host is gone: {how}")]
    PeerLost {
        /// Which.
        local_rank: usize,
        /// Its process id.
        pid: i32,
        /// How this was noticed.
        how: &'static str,
    },
    /// A local process left in good order, though something of it was still wanted.
    #[error("local rank {local_rank} left the group before this call was done")]
    PeerLeft {
        /// Which.
        local_rank: usize,
    },
    /// Time is up.
    #[error(
        "{what} has waited {after:?} for local ranks {waiting_for:?} of this host{} (longer: {})",
        colon(.known),
        if *.what == MEETING { "XDP_AGG_JOIN_DEADLINE" } else { "XDP_AGG_DEADLINE" }
    )]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
        /// The local ranks that had not come so far.
        waiting_for: Vec<usize>,
        /// How their processes do; empty: nothing is known.
        known: String,
    },
    /// A call failed at another local process, which said why.
    #[error("local rank {local_rank}: {text}")]
    Elsewhere {
        /// Which.
        local_rank: usize,
        /// What the one that failed gave to [`Exchange::fail`](crate::Exchange::fail).
        code: u32,
        /// Its words.
        text: String,
    },
    /// This process was forked from the one that joined the group.
    #[error("the group is that of the process this one was forked from; join another one here")]
    Forked,
    /// A system call failed that should not.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
}

/// What a process does that waits for others to make a group with.
pub(crate) const MEETING: &str = "making the group";

fn colon(known: &str) -> String {
    if known.is_empty() { String::new() } else { format!(": {known}") }
}

impl Error {
    pub(crate) fn system(what: &'static str, error: impl std::fmt::Display) -> Self {
        Self::System { what, reason: error.to_string() }
    }

    pub(crate) fn config(name: &'static str, problem: impl Into<String>) -> Self {
        Self::Config { name, problem: problem.into() }
    }
}
