//! Flow-level simulation of all-reduce on networks that this machine cannot run.
//!
//! * [`engine`]: streams of chunks that share links max-min fairly, event by event.
//! * [`fabric`]: a network (`xdp-agg-topology`) as capacities and routes; headers and overheads.
//! * [`generate`]: fat-trees, dragonflies, spines with leaves.
//! * [`strategy`]: ways to sum as schedules, from the planner's forests and rings.
//! * [`predict`]: how long an all-reduce takes on a network.
//! * [`figures`]: the papers' figures, as files.
//!
//! The same seed gives the same result, to the last bit. What is left out and what is simplified is
//! in `docs/flowsim.md`.

#![forbid(unsafe_code)]

pub mod engine;
pub mod fabric;
pub mod figures;
pub mod generate;
pub mod predict;
pub mod strategy;
