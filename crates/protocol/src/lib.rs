//! The protocol of xdp-agg: what a worker and a daemon decide, without sockets, clocks or threads.
//!
//! * [`worker`]: a worker's membership, calls and blocks.
//! * [`daemon`]: jobs and their members.
//! * [`sum`]: what a packet does to the sums, where no kernel program does it.
//! * [`bucket`]: how much of something there may be in a time.
//! * [`engine`]: what a daemon's jobs and whatever sums for them tell each other.
//!
//! # How a machine is driven
//!
//! [`worker::Machine`], the [`worker::flow::Flow`] in it and [`daemon::Jobs`] are driven alike, by
//! whatever has the sockets and the clock. Their methods are of four classes:
//!
//! * `handle_*`: something came in. A message, a packet, a connection that opened or ended, what
//!   came of an effect, or a time (`handle_timeout`).
//! * `poll_*`: what is to go out. Packets (`poll_transmit`); what to do with the control connection
//!   (`poll_control`), or with the engine and connections (`poll_effect`). And when time alone will
//!   matter (`poll_timeout`; None: not before something comes in).
//! * Wishes of the application or the operator: `start`, `leave`, `fail`, `shut_down`, ….
//! * Questions, which change nothing: `state`, `counters`, `snapshot`, ….
//!
//! **Order.** After any call of the first or third class, take what each `poll_*` gives until it
//! gives nothing, and carry it out in that order. Then sleep until something comes in, or until
//! `poll_timeout`; then call `handle_timeout`. A `poll_*` may be called at any time.
//!
//! **Time.** Nothing here reads a clock: the caller says what time it is. A time never goes back.
//! [`daemon::Jobs`] takes [`Instant`](std::time::Instant)s, the others
//! [`Duration`](std::time::Duration)s since any fixed moment. A wait ends when a call tells a time
//! behind it, and not before: a `handle_timeout` that comes early or late does no harm.
#![deny(unsafe_code)]

pub mod bucket;
pub mod daemon;
pub mod engine;
pub mod sum;
pub mod worker;
