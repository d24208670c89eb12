//! What real children of this process have.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg_forks::{Bytes, Kept, Origin, Pages, hold, own};

/// These tests count on the numbers of descriptors: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Runs the checks of a child in one.
fn child(checks: impl FnOnce()) {
    // SAFETY: the child allocates and does system calls, and ends without the parent's destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes no pointers; ends a child that hangs.
        unsafe { libc::alarm(20) };
        let failed = catch_unwind(AssertUnwindSafe(checks)).is_err();
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = 0;
    // SAFETY: the status is an integer that outlives the call.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0), "the child's checks");
}

/// What a number stands for, such as `socket:[123]`.
fn link(number: i32) -> String {
    let link = fs::read_link(format!("/proc/self/fd/{number}"));
    link.map_or_else(|error| error.to_string(), |link| link.display().to_string())
}

#[test]
fn a_child_is_elsewhere_and_its_child_again() {
    let here = Origin::here();
    assert!(!here.is_elsewhere());
    child(|| {
        assert!(here.is_elsewhere());
        let own = Origin::here();
        assert!(!own.is_elsewhere());
        child(|| assert!(here.is_elsewhere() && own.is_elsewhere()));
        assert!(!own.is_elsewhere());
    });
    assert!(!here.is_elsewhere());
}

#[test]
fn a_child_has_no_connection_and_disturbs_none() {
    let _turn = TURN.lock();
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let mut ours = hold().own(ours);
    let copy = own(|| ours.try_clone()).expect("a descriptor");
    let (users, mut others) = UnixStream::pair().expect("sockets");
    let (number, name) = (ours.as_raw_fd(), link(ours.as_raw_fd()));
    child(|| {
        assert_ne!(link(number), name);
        assert_ne!(link(copy.as_raw_fd()), name);
        assert!(link(number).starts_with("socket:"), "the number is taken");
        ours.write_all(b"x").expect_err("it leads nowhere");
        // What ends it ends nothing of the parent's.
        let _ = ours.shutdown(std::net::Shutdown::Both);
        // What closes the number closes nothing else.
        // SAFETY: the number is open, and nobody else in this process closes it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        // Descriptors of the program's own are inherited as ever.
        (&users).write_all(b"hi").expect("it is connected");
        // The child has its own table: its children do not have its sockets.
        let (own, _peer) = UnixStream::pair().expect("sockets");
        let own = hold().own(own);
        let name = link(own.as_raw_fd());
        child(|| assert_ne!(link(own.as_raw_fd()), name));
        assert_eq!(link(own.as_raw_fd()), name);
    });
    let mut said = [0; 2];
    others.read_exact(&mut said).expect("the child wrote");
    assert_eq!(&said, b"hi");
    (&theirs).write_all(b"on").expect("it is connected");
    ours.read_exact(&mut said).expect("it goes on here");
    drop((ours, copy));
    let mut rest = Vec::new();
    (&theirs).read_to_end(&mut rest).expect("nobody has the other end");
}

#[test]
fn a_number_that_is_another_files_is_left_alone() {
    let _turn = TURN.lock();
    let socket = || OwnedFd::from(UnixStream::pair().expect("sockets").0);
    let file = || OwnedFd::from(File::open("/proc/self/exe").expect("this program"));
    for users in [socket(), file()] {
        let ours = own(|| UnixStream::pair().map(|(ours, _)| ours)).expect("a socket");
        let number = ours.as_raw_fd();
        drop(ours);
        // SAFETY: nobody has the number.
        assert_eq!(unsafe { libc::dup2(users.as_raw_fd(), number) }, number);
        let name = link(number);
        child(|| assert_eq!(link(number), name));
        // SAFETY: made above, and nobody else has it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

#[test]
fn files_in_memory_and_listeners_are_given_up() {
    let _turn = TURN.lock();
    let dir = std::env::temp_dir().join(format!("forks-{}", std::process::id()));
    let listener = own(|| UnixListener::bind(&dir)).expect("a name");
    fs::remove_file(&dir).expect("it is there");
    let memory = own(|| rustix::fs::memfd_create("forks", rustix::fs::MemfdFlags::CLOEXEC));
    let memory = memory.expect("memory");
    let names = [listener.as_raw_fd(), memory.as_raw_fd()].map(|number| (number, link(number)));
    child(|| names.iter().for_each(|(number, name)| assert_ne!(&link(*number), name)));
}

#[test]
fn memory_is_not_there() {
    let _turn = TURN.lock();
    let file = rustix::fs::memfd_create("forks-map", rustix::fs::MemfdFlags::CLOEXEC);
    let file = file.expect("memory");
    rustix::fs::ftruncate(&file, 1 << 20).expect("memory");
    let shared = Pages::of_file(&file, 1 << 20).expect("memory");
    let mut bytes = Bytes::zeroed(100_000).expect("memory");
    bytes[99_999] = 7;
    let mut inherited = Some((shared, bytes));
    child(|| {
        let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
        assert!(!maps.contains("forks-map"));
        let (shared, bytes) = inherited.take().expect("it has the names");
        assert!(shared.is_elsewhere() && bytes.is_empty());
        let base = shared.base().as_ptr().cast();
        // SAFETY: nothing is mapped there; with this flag nothing else would be replaced.
        let own = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(base, 1 << 20, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_eq!(own, base, "the place is free");
        // Dropping them takes nothing from where they were.
        drop((shared, bytes));
        // SAFETY: mapped above.
        unsafe { own.cast::<u8>().write(1) };
    });
    let (_, bytes) = inherited.expect("it is here");
    assert_eq!(bytes[99_999], 7);
}

#[test]
fn a_fork_waits_for_a_descriptor_that_is_being_made() {
    let _turn = TURN.lock();
    let held = Duration::from_millis(200);
    let (begun, is_held) = channel();
    let holder = thread::spawn(move || {
        let hold = hold();
        let socket = UnixStream::pair().map(|(ours, _)| ours).expect("a socket");
        begun.send(socket.as_raw_fd()).expect("waited for");
        thread::sleep(held);
        hold.own(socket)
    });
    let number = is_held.recv().expect("it is held");
    let (name, start) = (link(number), Instant::now());
    child(|| assert_ne!(link(number), name));
    assert!(start.elapsed() >= held / 2, "{:?}", start.elapsed());
    drop(holder.join().expect("no panic"));
    // And the other way round no hold waits for ever.
    drop(hold());
}

/// Descriptors of other kinds than sockets and files, which all have one name.
#[test]
fn a_child_does_not_get_what_is_kept() {
    let _turn = TURN.lock();
    let epoll = || {
        // SAFETY: no pointers.
        let number = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(number >= 0);
        // SAFETY: it was just opened, and nobody else has it.
        Ok::<_, ()>(unsafe { OwnedFd::from_raw_fd(number) })
    };
    let kept = Kept::new(epoll).expect("one");
    let number = kept.as_fd().as_raw_fd();
    assert!(link(number).contains("eventpoll"));
    child(|| assert!(link(number).starts_with("socket:"), "{}", link(number)));
    assert!(link(number).contains("eventpoll"));
    // The number is another's now, of the same kind.
    drop(kept);
    let other = epoll().expect("one");
    assert_eq!(other.as_raw_fd(), number);
    child(|| assert!(link(number).contains("eventpoll"), "{}", link(number)));
}
