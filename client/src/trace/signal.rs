//! A signal that asks for flight recordings.
//!
//! The handler only writes a byte. A thread of its own reads it and asks all communicators that
//! live. So a recording is written also while all other threads of the process wait.

use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use parking_lot::Mutex;
use xdp_agg_forks::{Origin, hold};

/// What can write a flight recording of itself.
pub(crate) trait Flies: Send + Sync {
    /// Writes it.
    fn record(&self, reason: &str);
}

/// The end of a socket that the handler writes to; -1: none.
static BELL: AtomicI32 = AtomicI32::new(-1);
static FLYING: Mutex<Vec<Weak<dyn Flies>>> = Mutex::new(Vec::new());
/// The signals that have our handler, each in the process that installed it.
static INSTALLED: Mutex<Vec<(libc::c_int, Origin)>> = Mutex::new(Vec::new());

/// Has this one write a recording at this signal, too.
///
/// # Errors
/// The program, or another library, has a handler for the signal, or ignores it: that stays so.
pub(crate) fn register(signal: libc::c_int, flies: Weak<dyn Flies>) -> io::Result<()> {
    let mut installed = INSTALLED.lock();
    let here = |(known, origin): &(libc::c_int, Origin)| *known == signal && !origin.is_elsewhere();
    if !installed.iter().any(here) {
        install(signal, installed.iter().any(|(known, _)| *known == signal))?;
        start_listener(installed.iter().all(|(_, origin)| origin.is_elsewhere()))?;
        installed.push((signal, Origin::here()));
    }
    let mut flying = FLYING.lock();
    flying.retain(|one| one.strong_count() > 0);
    flying.push(flies);
    Ok(())
}

/// Installs the handler where nobody has one. A child has its parent's.
fn install(signal: libc::c_int, inherited: bool) -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = ring;
    // SAFETY: a sigaction of zeros is valid, and both outlive the calls. The handler does what a
    // signal's handler may: it loads an atomic and sends a byte.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        let ours = inherited && action.sa_sigaction == handler as libc::sighandler_t;
        if action.sa_sigaction != libc::SIG_DFL && !ours {
            return Err(io::Error::other("the program has a use of its own for it"));
        }
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn ring(_: libc::c_int) {
    let bell = BELL.load(Ordering::Relaxed);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte that is there; a descriptor that is never closed, or -1. What the call says
    // of an error is put back for the code that was interrupted.
    unsafe {
        let error = *libc::__errno_location();
        libc::send(bell, [1_u8].as_ptr().cast(), 1, flags);
        *libc::__errno_location() = error;
    }
}

fn start_listener(wanted: bool) -> io::Result<()> {
    if !wanted {
        return Ok(());
    }
    let (bell, mut heard) = {
        let hold = hold();
        let (bell, heard) = UnixStream::pair()?;
        (hold.own(bell), hold.own(heard))
    };
    let listen = move || {
        let mut bytes = [0; 64];
        while heard.read(&mut bytes).is_ok_and(|count| count > 0) {
            let all: Vec<_> = FLYING.lock().iter().filter_map(Weak::upgrade).collect();
            all.iter().for_each(|one| one.record("a signal asked for it"));
        }
    };
    thread::Builder::new().name("xdp-agg flight".into()).spawn(listen)?;
    BELL.store(bell.into_raw_fd(), Ordering::Relaxed);
    Ok(())
}
