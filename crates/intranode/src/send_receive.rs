//! The paper's baseline: collectives round a ring of sends and receives (paper 5, section 1.3,
//! Fig. 4 and Eq. (3); paper 1, Fig. 8).
//!
//! It stands for *communicating entities without common memory*: in the paper's two-tier
//! architecture each core group reaches its own memory alone, and "relies on send and receive
//! operations across core groups" (section 2.2). CSC brings the shared tier. Between processes
//! without common memory such operations need a stream socket. Counted as the paper counts, with
//! `n` processes and a vector of `V` bytes:
//!
//! | per step, of `n - 1` | paper | here |
//! |---|---|---|
//! | transfers of `V/n` | a DMA get into local memory, a DMA put to the neighbour | a copy into the
//! socket's buffer, a copy out of it |
//! | launches | one in each entity: `n (n - 1)` in all, 12 of four | the system calls that send and
//! receive |
//! | synchronisations | one of all, over PCIe | with the neighbours alone: a receive waits for its
//! sender |
//!
//! So it pays no more than the paper's baseline: no process waits for all, and a step goes by
//! pieces that overlap with the next step's. [`Ring`](crate::ring::Ring) is the same over mailboxes
//! in the shared segment: a ring that already has CSC's memory and needs fewer system calls.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::csc::Reduce;
use crate::{Error, Group};

/// Bytes that are sent before the next ones are received. A stream socket has to take them without
/// a reader, or all would wait for each other.
const CHUNK: usize = 64 << 10;

/// Longest wait for a neighbour.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ring of stream sockets between the processes of a group.
#[derive(Debug)]
pub struct SendReceive {
    rank: usize,
    n: usize,
    next: UnixStream,
    previous: UnixStream,
    /// What is under way round the ring in a reduction.
    partial: Vec<u8>,
    piece: Vec<u8>,
}

impl SendReceive {
    /// Connects the ring. All processes do, with the same `name`, which no other ring on this host
    /// has.
    ///
    /// # Errors
    /// [`Error::System`] if sockets cannot be had; errors of [`Group::barrier`].
    pub fn connect(group: &Group, name: &str) -> Result<Self, Error> {
        let (rank, n) = (group.local_rank(), group.local_size());
        let system = |error| Error::system("a socket of the ring", error);
        let address = |rank: usize| {
            SocketAddr::from_abstract_name(format!("xdp-agg-ring/{name}/{rank}")).map_err(system)
        };
        let listener = UnixListener::bind_addr(&address(rank)?).map_err(system)?;
        // All listen before anybody connects.
        group.barrier()?;
        let next = UnixStream::connect_addr(&address((rank + 1) % n)?).map_err(system)?;
        let (previous, _) = listener.accept().map_err(system)?;
        next.set_write_timeout(Some(PATIENCE)).map_err(system)?;
        previous.set_read_timeout(Some(PATIENCE)).map_err(system)?;
        Ok(Self { rank, n, next, previous, partial: Vec::new(), piece: vec![0; CHUNK] })
    }

    /// `output` is all processes' `input`, in order of local rank.
    ///
    /// # Errors
    /// [`Error::PeerLeft`] if a neighbour's end is closed, [`Error::System`] if it does nothing for
    /// a minute.
    ///
    /// # Panics
    /// If `output` is not `local_size` times as long as `input`.
    pub fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        let (rank, n, len) = (self.rank, self.n, input.len());
        assert_eq!(output.len(), n * len, "an output for all inputs");
        output[rank * len..(rank + 1) * len].copy_from_slice(input);
        for round in 0..n - 1 {
            let sends = (rank + n - round) % n * len;
            let receives = (rank + n - round - 1) % n * len;
            for start in (0..len).step_by(CHUNK) {
                let end = len.min(start + CHUNK);
                self.send(&output[sends + start..sends + end])?;
                self.receive(&mut output[receives + start..receives + end])?;
            }
        }
        Ok(())
    }

    /// `output` is the reduction of all processes' `local_rank`-th part of `input`.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    ///
    /// # Panics
    /// If `input` is not `local_size` times as long as `output`, or that no multiple of `grain`,
    /// which has to divide 64 KiB.
    pub fn reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        grain: usize,
        reduce: Reduce<'_>,
    ) -> Result<(), Error> {
        let (rank, n, len) = (self.rank, self.n, output.len());
        assert_eq!(input.len(), n * len, "an input for all outputs");
        assert!(len.is_multiple_of(grain) && CHUNK.is_multiple_of(grain), "whole elements");
        if n == 1 {
            output.copy_from_slice(input);
        }
        let (mut partial, mut piece) =
            (std::mem::take(&mut self.partial), std::mem::take(&mut self.piece));
        partial.resize(len, 0);
        for round in 0..n - 1 {
            let sends = (rank + 2 * n - round - 1) % n * len;
            let receives = (rank + 2 * n - round - 2) % n * len;
            for start in (0..len).step_by(CHUNK) {
                let end = len.min(start + CHUNK);
                let from = if round == 0 { &input[sends..sends + len] } else { &partial[..] };
                self.send(&from[start..end])?;
                let theirs = &mut piece[..end - start];
                self.receive(theirs)?;
                let to = if round + 2 == n { &mut *output } else { &mut partial[..] };
                let own = &input[receives + start..receives + end];
                reduce(&[theirs, own], &mut to[start..end]);
            }
        }
        (self.partial, self.piece) = (partial, piece);
        Ok(())
    }

    fn send(&mut self, data: &[u8]) -> Result<(), Error> {
        let neighbour = (self.rank + 1) % self.n;
        self.next.write_all(data).map_err(|error| failed(neighbour, &error))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<(), Error> {
        let neighbour = (self.rank + self.n - 1) % self.n;
        self.previous.read_exact(into).map_err(|error| failed(neighbour, &error))
    }
}

fn failed(local_rank: usize, error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            Error::PeerLeft { local_rank }
        }
        _ => Error::system("a send or receive of the ring", error),
    }
}
