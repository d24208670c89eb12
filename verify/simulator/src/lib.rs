//! Deterministic simulation of xdp-agg: the code that runs in production, under a virtual clock, on
//! a network that loses, repeats, delays, reorders and cuts off. Processes are stopped and killed.
//! All of it follows from one seed.
//!
//! What is real: all of `xdp_agg_protocol` (slots, admission and lane arithmetic in `sum`, the
//! daemon's membership in `daemon`, the workers in `worker`), and the coding of packets and control
//! messages. What is simulated: clocks, sockets, processes, and callers.
//! `docs/simulation.md` says what is promised by that, and what is not.
//!
//! [`run`] runs a seed; [`bulk::run`] runs many.

pub mod bulk;
mod check;
pub mod mutants;
mod reference;
pub mod scenario;
mod stats;
pub mod switch;
mod time;
mod trace;
mod world;

pub use scenario::{Choice, Scenario};
pub use stats::Stats;
pub use trace::{Party, Trace};
pub use world::Outcome;

/// Runs the scenario of a seed. `trace`: what happens is kept as text.
pub fn run(seed: u64, choice: Choice, trace: bool) -> Outcome {
    world::World::new(Scenario::draw(seed, choice), trace).run()
}
