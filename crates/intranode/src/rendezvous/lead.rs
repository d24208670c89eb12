//! The side of local rank 0.

use super::*;
use crate::layout::Slot;
use crate::segment::{self, Segment};
use std::sync::atomic::Ordering::Relaxed;

/// The group while it is being made.
struct Leader<'a> {
    options: &'a Options,
    hello: Hello,
    listener: OwnedFd,
    /// Connected, but not yet known.
    strangers: Vec<(OwnedFd, Peer)>,
    /// By local rank.
    members: Vec<Option<Member>>,
    until: Instant,
    goes_on: GoesOn<'a>,
}

struct Member {
    connection: Connection,
    bell: OwnedFd,
}

/// Makes the group, as local rank 0.
pub(crate) fn lead(options: &Options, goes_on: GoesOn<'_>) -> Result<Formed, Error> {
    let until = crate::options::until(options.join_within);
    let mut leader = Leader {
        options,
        hello: Hello::new(options),
        listener: bind(options, goes_on)?,
        strangers: Vec::new(),
        members: (0..options.local_size).map(|_| None).collect(),
        until,
        goes_on,
    };
    leader.form().inspect_err(|error| leader.refuse_all(error))
}

fn bind(options: &Options, goes_on: GoesOn<'_>) -> Result<OwnedFd, Error> {
    let name = name(options)?;
    let until = Instant::now() + NAME_PATIENCE.min(options.join_within);
    let listener = socket(SocketFlags::NONBLOCK)?;
    loop {
        match rustix::net::bind(&listener, &name) {
            Ok(()) => break,
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(Error::system("binding the job's socket", errno)),
        }
        goes_on()?;
        let pid = second_leader(options, &name, until)?;
        if Instant::now() > until {
            return Err(Error::NameInUse { job: options.job.clone(), pid });
        }
        std::thread::sleep(PAUSE);
    }
    rustix::net::listen(&listener, 2 * crate::MAX_PROCESSES as i32)
        .map_err(|errno| Error::system("listening on the job's socket", errno))?;
    Ok(listener)
}

/// Says hello to the process that has the name: two processes may both have been given local rank
/// 0, and then all have to know. Returns its process id.
fn second_leader(options: &Options, name: &SocketAddrUnix, until: Instant) -> Result<i32, Error> {
    let Ok(socket) = connect(name)? else { return Ok(0) };
    let pid = Peer::of(&socket).map_or(0, |peer| peer.pid);
    let bell = bell()?;
    let _ = message::send(&socket, &Message::Hello(Hello::new(options)), &[bell.as_fd()]);
    if readable(&[socket.as_fd()], until)?[0]
        && let Ok(Some((Message::Refused(error @ Error::Mismatch { .. }), _))) = receive(&socket)
    {
        return Err(error);
    }
    Ok(pid)
}

/// Tells a process that comes when the group is complete that the name is in use.
pub(crate) fn refuse_newcomer(listener: &OwnedFd, options: &Options) {
    let Ok(socket) = accept(listener) else { return };
    if same_user(&socket).is_ok() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let error = Error::NameInUse { job: options.job.clone(), pid };
        // A process that does not want to know has gone already.
        let _ = message::send(&socket, &Message::Refused(error), &[]);
        tracing::warn!(job = options.job, "a process came to a job that is complete");
    }
}

impl Leader<'_> {
    fn form(&mut self) -> Result<Formed, Error> {
        let len = self.options.mapped();
        // Before anything else: without room there is nothing to wait for.
        let file = segment::create(&self.options.backing, len)?;
        let segment = Segment::map(&file, len)?;
        let own_bell = bell()?;
        self.gather()?;

        let mut bells = vec![own_bell.as_fd()];
        bells.extend(self.members.iter().flatten().map(|member| member.bell.as_fd()));
        let mut descriptors = vec![file.as_fd()];
        descriptors.extend(&bells);
        for (rank, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            let welcome = Message::Welcome { segment: len as u64 };
            message::send(&member.connection.socket, &welcome, &descriptors)
                .map_err(|_| lost(rank, member.connection.pid))?;
        }
        for (rank, member) in self.members.iter().enumerate() {
            let pid = member.as_ref().map_or_else(
                || rustix::process::getpid().as_raw_nonzero().get(),
                |member| member.connection.pid,
            );
            segment.word(Slot::of(rank).pid()).store(pid.cast_unsigned(), Relaxed);
        }
        self.all_ready()?;
        for member in self.members.iter().flatten() {
            let Connection { socket, local_rank, pid } = &member.connection;
            message::send(socket, &Message::Go, &[]).map_err(|_| lost(*local_rank, *pid))?;
        }

        let mut bells = vec![own_bell];
        let mut connections = Vec::new();
        for member in self.members.drain(..).flatten() {
            bells.push(member.bell);
            connections.push(member.connection);
        }
        let listener = own(|| self.listener.try_clone());
        let listener = listener.map_err(|error| Error::system("the job's socket", error))?;
        Ok(Formed { segment, bells, connections, listener: Some(listener) })
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.members.len()).filter(|&rank| self.members[rank].is_none()).collect()
    }

    /// Until all have come.
    fn gather(&mut self) -> Result<(), Error> {
        let mut waits = Waits::new(self.options);
        while !self.missing().is_empty() {
            waits.tell(&self.missing());
            if Instant::now() > self.until {
                return Err(deadline(self.options, self.missing()));
            }
            let mut descriptors = vec![self.listener.as_fd()];
            descriptors.extend(self.strangers.iter().map(|(socket, _)| socket.as_fd()));
            let members = self.members.iter().flatten();
            descriptors.extend(members.map(|member| member.connection.socket.as_fd()));
            let ready = readable(&descriptors, self.until.min(until(LOOK)))?;
            (self.goes_on)()?;
            let known = 1 + self.strangers.len();
            // A member has nothing to say before it is welcomed, so this is its end.
            let gone = ready[known..].iter().position(|&ready| ready);
            if let Some(member) = gone.and_then(|at| self.members.iter().flatten().nth(at)) {
                return Err(lost(member.connection.local_rank, member.connection.pid));
            }
            for at in (0..self.strangers.len()).rev().filter(|at| ready[at + 1]) {
                let (socket, peer) = self.strangers.swap_remove(at);
                self.introduce(socket, peer)?;
            }
            if ready[0] {
                self.accept();
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        let Ok(socket) = accept(&self.listener) else { return };
        match same_user(&socket) {
            // More connections than a job can need are a mistake, and must not exhaust descriptors.
            Ok(peer) if self.strangers.len() < 2 * crate::MAX_PROCESSES => {
                self.strangers.push((socket, peer));
            }
            Ok(peer) => tracing::warn!(pid = peer.pid, "too many connections: one is closed"),
            Err(peer) => tracing::warn!(?peer, "a process of another user: turned away"),
        }
    }

    /// A stranger says hello.
    fn introduce(&mut self, socket: OwnedFd, peer: Peer) -> Result<(), Error> {
        let Ok(Some((Message::Hello(hello), mut descriptors))) = message::receive(&socket) else {
            tracing::debug!(pid = peer.pid, "a connection ended without a hello");
            return Ok(());
        };
        let rank = hello.local_rank as usize;
        let refusal = if let Some((ours, theirs)) = self.hello.differs(&hello) {
            Some((ours, theirs))
        } else if hello.job != self.hello.job {
            let ours = format!("the job is {:?}", self.hello.job);
            Some((ours, format!("local rank {rank} is of job {:?}", hello.job)))
        } else if hello.run != self.hello.run {
            let ours = format!("the run is {:?}", self.hello.run);
            Some((ours, format!("local rank {rank} is of run {:?}", hello.run)))
        } else if rank >= self.members.len() {
            let ours = format!("local ranks are below {}", self.members.len());
            Some((ours, format!("process {} has local rank {rank}", peer.pid)))
        } else {
            let own = rustix::process::getpid().as_raw_nonzero().get();
            let holder = self.members[rank].as_ref().map(|member| member.connection.pid);
            let holder = holder.or((rank == 0).then_some(own));
            holder.map(|pid| {
                let ours = format!("local rank {rank} is process {pid}");
                (ours, format!("process {} has local rank {rank} too", peer.pid))
            })
        };
        if let Some((ours, theirs)) = refusal {
            // It has to be told as well.
            self.strangers.push((socket, peer));
            return Err(Error::Mismatch { ours, theirs });
        }
        let Some(bell) = descriptors.pop() else {
            return Err(Error::system("receiving a bell", "none came"));
        };
        let connection = Connection { socket, local_rank: rank, pid: peer.pid };
        self.members[rank] = Some(Member { connection, bell });
        Ok(())
    }

    /// Until all have mapped the segment.
    fn all_ready(&self) -> Result<(), Error> {
        for member in self.members.iter().flatten() {
            let Connection { socket, local_rank, pid } = &member.connection;
            while !readable(&[socket.as_fd()], self.until)?[0] {
                if Instant::now() > self.until {
                    return Err(deadline(self.options, vec![*local_rank]));
                }
            }
            match message::receive(socket) {
                Ok(Some((Message::Ready, _))) => {}
                Ok(Some((Message::Refused(error), _))) => return Err(error),
                _ => return Err(lost(*local_rank, *pid)),
            }
        }
        Ok(())
    }

    /// Tells all that have come, and for a while those that still come, why the group fails.
    fn refuse_all(&mut self, error: &Error) {
        let refused = Message::Refused(error.clone());
        let complete = self.missing().is_empty();
        let members = self.members.drain(..).flatten().map(|member| member.connection.socket);
        for socket in members.chain(self.strangers.drain(..).map(|(socket, _)| socket)) {
            // A process that does not want to know has gone already; so below.
            let _ = message::send(&socket, &refused, &[]);
        }
        let until = Instant::now() + LINGER;
        while !complete && Instant::now() < until {
            let Ok(ready) = readable(&[self.listener.as_fd()], until) else { return };
            if !ready[0] {
                continue;
            }
            self.accept();
            for (socket, _) in self.strangers.drain(..) {
                let _ = message::send(&socket, &refused, &[]);
            }
        }
    }
}
