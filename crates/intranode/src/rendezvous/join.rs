//! The side of local ranks 1 and up.

use super::*;
use crate::segment::{self, Segment};

/// What came of an attempt to join.
enum Attempt {
    Formed(Formed),
    /// Nobody there.
    Nobody,
    /// Somebody of another user has the name.
    Stranger(Peer),
    /// A live group has the name.
    InUse(Error),
    /// It ended before it answered.
    Ended(i32),
}

/// Joins the group that local rank 0 makes.
pub(crate) fn join(options: &Options, goes_on: GoesOn<'_>) -> Result<Formed, Error> {
    let start = Instant::now();
    let until = crate::options::until(options.join_within);
    let name = name(options)?;
    let mut ended: Option<Instant> = None;
    let mut waits = Waits::new(options);
    loop {
        let attempt = attempt(options, &name, until)?;
        let over = Instant::now() > until;
        match attempt {
            Attempt::Formed(formed) => return Ok(formed),
            Attempt::InUse(error) if over || start.elapsed() > NAME_PATIENCE => return Err(error),
            Attempt::Stranger(peer) if over => {
                let (uid, pid) = (peer.uid, peer.pid);
                let problem = format!("its name is held by process {pid} of another user ({uid})");
                return Err(Error::config("job", problem));
            }
            // It may be a job that is ending, whose successor is about to bind the name.
            Attempt::Ended(pid) => {
                if ended.get_or_insert_with(Instant::now).elapsed() > LINGER / 2 {
                    return Err(lost(0, pid));
                }
            }
            Attempt::Nobody if ended.is_some_and(|at| at.elapsed() > LINGER / 2) => {
                return Err(lost(0, 0));
            }
            _ if over => return Err(deadline(options, vec![0])),
            Attempt::Nobody | Attempt::InUse(_) | Attempt::Stranger(_) => {}
        }
        waits.tell(&[0]);
        goes_on()?;
        std::thread::sleep(PAUSE);
    }
}

fn attempt(options: &Options, name: &SocketAddrUnix, until: Instant) -> Result<Attempt, Error> {
    let socket = match connect(name)? {
        Ok(socket) => socket,
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN | Errno::INTR) => {
            return Ok(Attempt::Nobody);
        }
        Err(errno) => return Err(Error::system("connecting to local rank 0", errno)),
    };
    let leader = match same_user(&socket) {
        Ok(leader) => leader,
        Err(Some(stranger)) => return Ok(Attempt::Stranger(stranger)),
        Err(None) => return Ok(Attempt::Nobody),
    };
    let bell = bell()?;
    let hello = Message::Hello(Hello::new(options));
    // If this fails the connection has ended already, and there may be an answer that says why.
    let _ = message::send(&socket, &hello, &[bell.as_fd()]);
    let (len, mut descriptors) = match answer(options, &socket, until)? {
        Some((Message::Welcome { segment }, descriptors)) => (segment, descriptors),
        Some((Message::Refused(error @ Error::NameInUse { .. }), _)) => {
            return Ok(Attempt::InUse(error));
        }
        Some((Message::Refused(error), _)) => return Err(error),
        Some((other, _)) => return Err(unexpected(&other)),
        None => return Ok(Attempt::Ended(leader.pid)),
    };
    if descriptors.len() != options.local_size + 1 {
        let problem = format!("{} of {} descriptors", descriptors.len(), options.local_size + 1);
        return Err(Error::system("receiving the segment", problem));
    }
    let file = descriptors.remove(0);
    let segment = segment::check(&options.backing, &file);
    let segment =
        segment.and_then(|()| Segment::map(&file, len as usize)).inspect_err(|error| {
            // If it cannot be told either, the end of the connection tells.
            let _ = message::send(&socket, &Message::Refused(error.clone()), &[]);
        })?;
    let gone = |_| lost(0, leader.pid);
    message::send(&socket, &Message::Ready, &[]).map_err(gone)?;
    match answer(options, &socket, until)? {
        Some((Message::Go, _)) => {}
        Some((Message::Refused(error), _)) => return Err(error),
        Some((other, _)) => return Err(unexpected(&other)),
        None => return Err(lost(0, leader.pid)),
    }
    let connections = vec![Connection { socket, local_rank: 0, pid: leader.pid }];
    Ok(Attempt::Formed(Formed { segment, bells: descriptors, connections, listener: None }))
}

/// The next message; `None` if the connection ended.
fn answer(
    options: &Options,
    socket: &OwnedFd,
    until: Instant,
) -> Result<Option<(Message, Vec<OwnedFd>)>, Error> {
    // Local rank 0 has the same deadline, and says at its end which ranks it waits for.
    let until = until + LINGER;
    while Instant::now() < until {
        if readable(&[socket.as_fd()], until)?[0] {
            return receive(socket)
                .map_err(|errno| Error::system("a message of local rank 0", errno));
        }
    }
    Err(deadline(options, vec![0]))
}

fn unexpected(message: &Message) -> Error {
    Error::system("a message of local rank 0", format!("unexpected: {message:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Any user can fill the queue of a process that is stopped.
    #[test]
    fn a_leader_that_takes_nobody_in_is_not_waited_for_beyond_the_deadline() {
        let job = format!("stopped {}", rustix::process::getpid().as_raw_nonzero());
        let mut options = Options::new(&job, 1, 2);
        options.join_within = Duration::from_millis(300);
        let name = name(&options).expect("a name");
        let leader = socket(SocketFlags::empty()).expect("a socket");
        rustix::net::bind(&leader, &name).expect("it is free");
        rustix::net::listen(&leader, 2).expect("it is bound");
        let queue: Vec<_> =
            std::iter::from_fn(|| connect(&name).expect("a socket").ok()).take(100).collect();
        assert!(queue.len() < 100, "it is never full");
        let start = Instant::now();
        let error = join(&options, &|| Ok(())).expect_err("nobody leads");
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}
