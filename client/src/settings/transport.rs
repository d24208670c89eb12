//! By which sockets a worker's packets travel.

use std::fmt;

/// How results come into a worker. Contributions always leave by a UDP socket, in trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// What is known to be faster: [`Self::Udp`], on all drivers that were measured.
    #[default]
    Auto,
    /// By a UDP socket.
    Udp,
    /// By an `AF_XDP` socket, around the stack. It takes the capabilities `CAP_BPF`,
    /// `CAP_NET_ADMIN` and `CAP_NET_RAW`, and an interface whose driver runs XDP programs. Where
    /// another program has the interface, or no driver is in between (loopback), results come by
    /// UDP, and the log says so.
    AfXdp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Udp, Self::AfXdp];

    /// The name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::AfXdp => "af_xdp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
