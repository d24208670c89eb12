//! Flow-level simulation of all-reduce on networks that this machine cannot run.
#![forbid(unsafe_code)]

pub mod engine;
