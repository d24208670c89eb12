//! The systems that xdp-agg is compared with, behind one trait with it: [`Collective`].
//!
//! [`Mesh`](xdp_agg_mesh::Mesh) is a ring over all processes, and a
//! [`Communicator`](xdp_agg_client::Communicator) with `in_host` off is SwitchML. The others:
//!
//! * [`Ps`]: every process pushes its whole vector to the parameter servers.
//! * [`PsRing`]: PASSING's first step (section 4.1): the processes of a host sum first, and push
//!   one copy.
//! * [`atp`]: a switch whose slots are taken as blocks come; what finds its slot taken goes to the
//!   servers. Its buckets are started and waited for, instead of one blocking call each.
//! * [`Har`]: rings inside groups and across them, the baseline of the Rina paper.
//!
//! They sum floats, blocking, and are tuned as far as they go: full duplex, all servers at once.

pub mod atp;
mod collective;
mod error;
mod har;
mod ps;
mod psring;
mod window;

pub use collective::{About, BoxError, Collective};
pub use error::Error;
pub use har::Har;
pub use ps::Ps;
pub use psring::PsRing;
pub use window::window;

use std::net::SocketAddr;

use xdp_agg_client::{addresses, variable};

/// Where parameter servers listen unless an address says otherwise.
pub const PS_PORT: u16 = 9880;

/// The parameter servers of the environment: `XDP_AGG_PS_ADDRS`, separated by commas.
///
/// # Errors
/// Not set, or not understood.
pub fn servers_from_env() -> Result<Vec<SocketAddr>, Error> {
    const NAME: &str = "XDP_AGG_PS_ADDRS";
    let missing = || xdp_agg_client::Error::Config {
        name: NAME,
        problem: "not set; expected host:port of each parameter server (`xdp-agg-ps`), separated \
                  by commas"
            .into(),
    };
    Ok(addresses(NAME, &variable(NAME)?.ok_or_else(missing)?, PS_PORT)?)
}
