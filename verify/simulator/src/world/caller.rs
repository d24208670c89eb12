//! The caller of a worker: makes calls, waits for them, and loses patience.

use rand::Rng;
use xdp_agg_protocol::worker::Error;
use xdp_agg_protocol::worker::{Blocks, Buffer, Local, State};
use xdp_agg_quantize::{Element, Format, Scaling};

use super::World;
use crate::reference::{Inputs, SCALE, Shape};
use crate::time::{MILLI, Nanos, SECOND, duration};
use crate::trace::Party;

/// How long a caller waits for the daemon to name the missing members.
const ASK_TIME: Nanos = SECOND;

/// A call that was made.
pub(super) struct InFlight {
    pub(super) sequence: u64,
    /// When its caller loses patience.
    pub(super) due: Nanos,
    /// The caller has asked for the missing members, and waits for the answer until then.
    pub(super) asked: Option<Nanos>,
}

/// A call's elements.
fn blocks<T: Element>(elements: Vec<T>, shape: &Shape, world: u16) -> Box<dyn Blocks> {
    let scaling = if shape.block { Scaling::Block } else { Scaling::Fixed(SCALE) };
    let format = Format::new(T::TYPE, shape.op, scaling, None, world);
    let format = format.expect("a world of workers, and a scale");
    let local = Local::new(Buffer::owned(elements), format);
    Box::new(match shape.root {
        Some(root) => local.with_root(root),
        None => local,
    })
}

impl World {
    /// Takes what has ended, and loses patience with what has not.
    pub(super) fn finish_calls(&mut self, worker: usize) -> bool {
        let Some(process) = &mut self.workers[worker].process else { return false };
        let ended = (0..process.calls.len()).find_map(|index| {
            let sequence = process.calls[index].sequence;
            process.machine.poll_call(sequence).map(|result| (index, result))
        });
        if let Some((index, result)) = ended {
            let InFlight { sequence, .. } = process.calls.remove(index);
            let life = process.life;
            let failure = result.as_ref().err().map(ToString::to_string);
            self.note(&[14, worker as u64, sequence], || {
                let end = failure.unwrap_or_else(|| "done".into());
                format!("{} call {sequence}: {end}", Party::Worker(worker))
            });
            match result {
                Ok(call) => {
                    self.stats.calls += 1;
                    self.checker.delivered(life, call);
                }
                Err(error) => self.call_failed(worker, life, &error),
            }
            return true;
        }
        self.lose_patience(worker);
        false
    }

    fn lose_patience(&mut self, worker: usize) {
        let now = self.now;
        let deadline = self.scenario.jobs[self.workers[worker].job].deadline;
        let Some(process) = &mut self.workers[worker].process else { return };
        for call in process.calls.iter_mut().filter(|call| call.due <= now) {
            match call.asked {
                None if process.machine.ask_for_missing() => call.asked = Some(now + ASK_TIME),
                Some(until) if until > now && process.machine.missing().is_none() => {}
                _ => {
                    process.machine.give_up(call.sequence, duration(deadline));
                    return;
                }
            }
        }
    }

    /// Makes the next call, if it is time.
    pub(super) fn make_calls(&mut self, worker: usize) -> bool {
        let (job, now) = (self.workers[worker].job, self.now);
        let (in_flight, think) = {
            let plan = &self.scenario.jobs[job];
            let slow = plan.slow.filter(|(rank, _)| *rank == self.workers[worker].rank);
            let think = slow.map_or(plan.think, |(_, think)| think);
            (plan.in_flight, if self.healed { plan.think.min(MILLI) } else { think })
        };
        let (world, deadline) = (self.scenario.jobs[job].world, self.scenario.jobs[job].deadline);
        let rank = self.workers[worker].rank;
        let think = self.rng.random_range(0..=think);
        let Some(process) = &mut self.workers[worker].process else { return false };
        let life = process.life;
        if process.next.is_none() && process.machine.state() == State::Running {
            process.next = self.checker.first_sequence(life);
        }
        let Some(sequence) = process.next else { return false };
        let may = sequence < self.checker.limit(life)
            && process.calls.len() < in_flight
            && now >= process.think_until
            && process.machine.failure().is_none();
        if !may {
            return false;
        }
        let shape = self.checker.shape(job, sequence);
        let inputs = Inputs::new(life, world, sequence, shape).of(rank);
        let blocks = if shape.float {
            blocks(inputs.floats(), &shape, world)
        } else {
            blocks(inputs.integers(), &shape, world)
        };
        let started = process.machine.start(blocks);
        process.next = Some(sequence + 1);
        self.checker.makes(life, sequence);
        process.think_until = now + think;
        process.made.insert(sequence, now);
        process.calls.push(InFlight { sequence, due: now + deadline, asked: None });
        self.note(&[15, worker as u64, sequence], || {
            format!("{} makes call {sequence}: {shape:?}", Party::Worker(worker))
        });
        match started {
            Ok(number) if number == sequence => {}
            other => self.checker.fail(|| format!("call {sequence} is taken as {other:?}")),
        }
        true
    }

    pub(super) fn call_failed(&mut self, worker: usize, life: usize, error: &Error) {
        self.workers[worker].errors += 1;
        self.check_told(worker, error);
        self.check_stall(worker, error);
        self.stats.count_error(error);
        self.checker.failed(life, error);
    }
}
