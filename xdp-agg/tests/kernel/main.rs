//! The kernel program under `BPF_PROG_TEST_RUN`: a packet in, a verdict, a packet and map state
//! out. Needs the right to load XDP programs; without it every test here says so and passes.

mod concurrent;
mod differential;
mod events;
mod foreign;
mod forwarding;
mod frames;
mod local;
mod quota;
mod setup;
mod verdicts;
mod vlan;
