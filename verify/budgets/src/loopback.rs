//! Four workers' machines and the user-space engine, without sockets between them. The results of
//! each call are checked.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use xdp_agg_common::admission::Source;
use xdp_agg_common::control::{Admitted, Reply};
use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_common::maps::{JobConf, ResultMode};
use xdp_agg_common::wire::{HEADER_LEN, Header};
use xdp_agg_protocol::engine::JobSetup;
use xdp_agg_protocol::sum::{Answer, Sums};
use xdp_agg_protocol::worker::{Buffer, Config, Control, Local, Machine, State};

use crate::workloads::{elements, format, measured};

/// Workers.
pub(crate) const WORKERS: u16 = 4;
const SLOTS: u32 = 1024;
/// Rounds of a call: more of them are a hang.
const ROUNDS: usize = 10_000;

/// What is counted of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing.
    None,
    /// What rank 0 does to send.
    Packets,
    /// What rank 0 does with results.
    Receive,
    /// What the engine does.
    Sum,
    /// Everything.
    All,
}

impl Part {
    /// Does it, and counts it if it is this part.
    fn count<R>(self, which: Self, work: impl FnOnce() -> R) -> R {
        if self == which { measured(work) } else { work() }
    }
}

/// A running job.
pub(crate) struct Loopback {
    machines: Vec<Machine>,
    sums: Sums,
    now: Duration,
    packet: Vec<u8>,
    under_way: VecDeque<(u16, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

fn address(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank as u8 + 1), 4000)
}

impl Loopback {
    /// Workers of a job that runs.
    pub(crate) fn new() -> Result<Self> {
        let chunks = chunks_for_mtu(1500);
        let conf = JobConf {
            members: (1 << WORKERS) - 1,
            cookie: 77,
            slots: SLOTS,
            epoch: 1,
            workers: WORKERS,
            max_chunks: chunks,
            ..JobConf::default()
        };
        let mut sums = Sums::new(SLOTS, chunks);
        let members = (0..WORKERS).map(|rank| (rank, address(rank))).collect();
        sums.prepare(&JobSetup::new(0, conf, members))?;
        let now = Duration::from_secs(5);
        let machine = |rank| Machine::new(Config::new("budgets", rank, WORKERS), now);
        let machines = (0..WORKERS).map(machine).collect();
        let (packet, under_way, spare) = (vec![0; 2048], VecDeque::new(), Vec::new());
        let mut loopback = Self { machines, sums, now, packet, under_way, spare };
        loopback.round(Part::None)?;
        loopback.tell(&Reply::Admitted(Admitted {
            job_id: 0,
            cookie: conf.cookie,
            epoch: 1,
            members: conf.members,
            chunks,
            slots: SLOTS,
            data: address(99),
            single_packets: false,
            plan: None,
            ring: Vec::new(),
        }));
        loopback.round(Part::None)?;
        loopback.sums.start(0, None)?;
        loopback.tell(&Reply::Go { mode: ResultMode::Fanout, group: None });
        let run = loopback.machines.iter().all(|machine| machine.state() == State::Running);
        ensure!(run, "the job does not run");
        Ok(loopback)
    }

    fn tell(&mut self, reply: &Reply) {
        let now = self.now;
        self.machines.iter_mut().for_each(|machine| machine.handle_reply(reply.clone(), now));
    }

    /// A call of vectors of `len` elements; rank 0's result, which is right.
    pub(crate) fn all_reduce(&mut self, len: usize, part: Part) -> Result<Vec<f32>> {
        let format = format()?;
        let inputs: Vec<_> = (0..usize::from(WORKERS)).map(|rank| elements(len, rank)).collect();
        let expected: Vec<f32> =
            (0..len).map(|i| inputs.iter().map(|input| input[i]).sum()).collect();
        let buffers = inputs.into_iter().map(Buffer::owned).collect::<Vec<_>>();
        let kept: Vec<_> = buffers.iter().map(Buffer::keep).collect();
        part.count(Part::All, || -> Result<()> {
            let mut calls = Vec::new();
            for (machine, buffer) in self.machines.iter_mut().zip(buffers) {
                calls.push(machine.start(Box::new(Local::new(buffer, format)))?);
            }
            let mut left = calls.len();
            for _ in 0..ROUNDS {
                self.round(part)?;
                for (machine, call) in self.machines.iter_mut().zip(&calls) {
                    if let Some(ended) = machine.poll_call(*call) {
                        ended?;
                        left -= 1;
                    }
                }
                if left == 0 {
                    return Ok(());
                }
            }
            bail!("a hang")
        })?;
        let result: Vec<f32> =
            kept.into_iter().next().map(|kept| kept.into_owned()).unwrap_or_default();
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
        ensure!(result.len() == len, "{} elements of {len}", result.len());
        ensure!(result.iter().zip(&expected).all(near), "a wrong sum");
        Ok(result)
    }

    /// Carries what the workers send, until there is nothing more for now.
    fn round(&mut self, part: Part) -> Result<()> {
        self.now += Duration::from_millis(1);
        let now = self.now;
        for (rank, machine) in (0..).zip(&mut self.machines) {
            machine.handle_timeout(now);
            while let Some(control) = machine.poll_control(now) {
                if control == Control::Connect {
                    machine.handle_connected(now);
                }
            }
            let part = if rank == 0 || part == Part::All { part } else { Part::None };
            part.count(Part::Packets, || {
                while let Some(len) = machine.poll_transmit(now, &mut self.packet) {
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.clear();
                    bytes.extend_from_slice(&self.packet[..len]);
                    self.under_way.push_back((rank, bytes));
                }
            });
        }
        while let Some((rank, mut packet)) = self.under_way.pop_front() {
            let from = address(rank);
            let source = Source { addr: u32::from(*from.ip()), port: from.port() };
            let answer =
                part.count(Part::Sum, || self.sums.handle_packet(source, &mut packet, now));
            let (to, mut header, len) = match answer {
                Answer::Nothing => (0..0, None, 0),
                Answer::Sender { header, len } => (rank..rank + 1, Some(header), len),
                Answer::Members { header, len } => (0..WORKERS, Some(header), len),
                other => bail!("a root answers {other:?}"),
            };
            for rank in to {
                let Some(header) = &mut header else { continue };
                header.rank = rank;
                let Some(head) = packet.first_chunk_mut::<HEADER_LEN>() else { continue };
                Header::emit(header, head);
                let machine = &mut self.machines[usize::from(rank)];
                let part = if rank == 0 { part } else { Part::None };
                part.count(Part::Receive, || {
                    machine.handle_packet(&packet[..HEADER_LEN + len], now);
                });
            }
            self.spare.push(packet);
        }
        Ok(())
    }
}
