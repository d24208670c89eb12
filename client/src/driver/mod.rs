//! Sockets, threads and the clock: what carries out the decisions of a worker's machine.
//!
//! A [`Stripe`] is the membership at one aggregator. Its engine ([`engine`]) has the machine, the
//! UDP socket and the control connection ([`session`]). Whichever thread waits for a call drives
//! the engine ([`drive`]); the stripe's own thread does so while nobody waits ([`shared`]).

pub(crate) mod drive;
pub(crate) mod engine;
pub(crate) mod reach;
pub(crate) mod roll;
pub(crate) mod route;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod stripe;
pub(crate) mod sys;
pub(crate) mod udp;

pub(crate) use stripe::Stripe;
pub(crate) mod xsk;
