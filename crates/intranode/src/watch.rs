//! The death watch: a thread that notices when a process of the group ends.
//!
//! Local rank 0 watches all, the others watch local rank 0, which tells them through the segment.
//! Two signs are watched: the end of the connection, and the end of the process (pidfd). A copy of
//! the connection in another process (`vfork`, `pidfd_getfd`) holds it open, so the first sign
//! alone is not enough.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use xdp_agg_forks::Origin;

use crate::Error;
use crate::core::{Core, How};
use crate::rendezvous::{self, Connection};

/// The watching thread. Ends, and closes the connections, when dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    origin: Origin,
}

/// One sign of another process's life.
struct Sign {
    descriptor: OwnedFd,
    local_rank: usize,
    how: How,
}

impl Watch {
    pub(crate) fn start(
        core: &Arc<Core>,
        connections: Vec<Connection>,
        listener: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let mut signs = Vec::new();
        for Connection { socket, local_rank, pid } in connections {
            // Without it (another pid namespace) the connection has to do.
            let process = Pid::from_raw(pid)
                .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            signs.push(Sign { descriptor: socket, local_rank, how: How::Closed });
            signs.extend(process.map(|descriptor| Sign {
                descriptor,
                local_rank,
                how: How::Ended,
            }));
        }
        let stop = rendezvous::bell()?;
        let stopped = stop.try_clone().map_err(|error| Error::system("dup", error))?;
        let core = Arc::clone(core);
        let thread = std::thread::Builder::new()
            .name(String::from("xdp-agg-watch"))
            .spawn(move || watch(&core, signs, listener.as_ref(), &stopped))
            .map_err(|error| Error::system("starting the watching thread", error))?;
        Ok(Self { stop, thread: Some(thread), origin: Origin::here() })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            // The thread is another process's, and `stop` the same one that it looks at.
            std::mem::forget(self.thread.take());
            return;
        }
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It does not panic; and if it did, there would be nothing to do about it here.
            let _ = thread.join();
        }
    }
}

fn watch(core: &Core, mut signs: Vec<Sign>, listener: Option<&OwnedFd>, stop: &OwnedFd) {
    loop {
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(signs.iter().map(|sign| PollFd::new(&sign.descriptor, PollFlags::IN)));
        polled.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the death watch ends: poll failed");
                return;
            }
        }
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        if let Some(listener) = listener
            && ready[signs.len() + 1]
        {
            rendezvous::refuse_newcomer(listener, &core.options);
        }
        for at in (0..signs.len()).rev().filter(|&at| ready[at + 1]) {
            if !over(&signs[at]) {
                continue;
            }
            let Sign { local_rank, how, .. } = signs.swap_remove(at);
            // It said so before it closed the connection.
            if !core.has_left(local_rank) {
                core.lose(local_rank, how);
            }
        }
    }
}

/// Whether a sign that can be read is one of an end.
fn over(sign: &Sign) -> bool {
    match sign.how {
        How::Ended => true,
        // Nobody says anything more: what can be read is the end.
        How::Closed => {
            let mut byte = [0_u8; 1];
            let read = rustix::net::recv(
                sign.descriptor.as_fd(),
                &mut byte,
                rustix::net::RecvFlags::DONTWAIT,
            );
            !matches!(read, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR))
        }
    }
}
