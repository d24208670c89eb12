//! How long synchronisation takes, from bytes and bandwidths alone.
//!
//! Two views of each system:
//!
//! * [`paper_seconds`]: equations (1) to (4) of PASSING, section 4.1, and the same reasoning for
//!   the other systems: what is pushed and what is pulled pass one after the other (factor 2).
//! * [`bound_seconds`]: both directions of a link at once, as a pipelined system uses it: the bytes
//!   of the busiest direction of any link over its rate. Nothing can be faster.
//!
//! Notation of the paper: `n` processes in a host, `s` hosts, `p` parameter servers or aggregators,
//! `K` bytes of gradient.

use serde::{Deserialize, Serialize};

/// A way to sum gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = no_system)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Every process pushes its whole gradient to `p` parameter servers.
    Ps,
    /// PASSING's first step: reduced in the host, then pushed to `p` parameter servers.
    Psring,
    /// Every process is an aggregator's worker by itself, behind its host's one link.
    Switchml,
    /// A switch whose slots are taken as blocks come. Sums go to a parameter server, and so do
    /// blocks that find their slot taken.
    Atp,
    /// A ring of all processes.
    Ring,
    /// Reduced in the host, then by the aggregator.
    Passing,
    /// Rings inside the hosts (or racks) and across them: H-AR, the baseline of the Rina paper.
    #[serde(rename = "h-ar")]
    #[strum(serialize = "h-ar")]
    HAr,
}

impl System {
    /// Those of PASSING, in the order of the paper's figures.
    pub const ALL: [Self; 6] =
        [Self::Ps, Self::Psring, Self::Switchml, Self::Atp, Self::Ring, Self::Passing];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it sends anything to parameter servers.
    pub const fn uses_servers(self) -> bool {
        matches!(self, Self::Ps | Self::Psring | Self::Atp)
    }

    /// Whether it needs the aggregator.
    pub const fn uses_aggregator(self) -> bool {
        matches!(self, Self::Switchml | Self::Passing)
    }

    /// Whether it sends a slot's worth a packet over UDP, and not a stream.
    pub const fn uses_slots(self) -> bool {
        matches!(self, Self::Switchml | Self::Atp | Self::Passing)
    }

    /// Whether the processes of a host reduce among themselves first.
    pub const fn reduces_in_host(self) -> bool {
        matches!(self, Self::Psring | Self::Passing)
    }
}

fn no_system(text: &str) -> String {
    let names = System::ALL.map(System::name).join(", ");
    format!("{text:?} is no system; expected one of {names}, {}", System::HAr)
}

/// Where parameter servers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Servers {
    /// This number of them, each on a host of its own.
    Apart(u16),
    /// One on every host with workers, behind the same link.
    Hosts,
}

impl Servers {
    /// `p`, where this number of hosts has workers.
    pub const fn count(self, hosts: u16) -> u16 {
        match self {
            Self::Apart(count) => count,
            Self::Hosts => hosts,
        }
    }

    /// How many further hosts they want.
    pub const fn apart(self) -> u16 {
        match self {
            Self::Apart(count) => count,
            Self::Hosts => 0,
        }
    }
}

impl std::fmt::Display for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Apart(count) => write!(f, "{count}"),
            Self::Hosts => f.write_str("hosts"),
        }
    }
}

impl std::str::FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("hosts", _) => Ok(Self::Hosts),
            (_, Ok(count @ 1..=16)) => Ok(Self::Apart(count)),
            _ => Err(format!(
                "{text:?}: expected 1 to 16 parameter servers on hosts of their own, or `hosts` \
                 for one on every host with workers"
            )),
        }
    }
}

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// `s`: hosts.
    pub hosts: u16,
    /// `n`: processes in a host.
    pub processes: u16,
    /// `p`: parameter servers.
    pub servers: Servers,
    /// Bytes a second of a host's link and of a server's, in each direction: `min(B_NIC, B_link)`.
    pub link: f64,
    /// Bytes a second between two processes of a host: `min(B_PCIe, B_UPI)`; here what one process
    /// copies through shared memory. Infinity where its time shall not count.
    pub in_host: f64,
}

impl Setting {
    /// All processes.
    pub const fn world(&self) -> u16 {
        self.hosts * self.processes
    }

    /// `p`.
    fn p(&self) -> f64 {
        f64::from(self.servers.count(self.hosts))
    }

    /// What of a host's copy of the gradient passes its link: where servers are on the hosts, the
    /// own one's part does not, and the own server's sums go to all other hosts.
    fn beyond_the_host(&self) -> f64 {
        let s = f64::from(self.hosts);
        match self.servers {
            Servers::Apart(_) => 1.0,
            Servers::Hosts => 2.0 * (s - 1.0) / s,
        }
    }
}

/// Equation (1): reduce-scatter round the ring of a host's processes.
pub fn in_host_seconds(setting: &Setting, bytes: f64) -> f64 {
    let n = f64::from(setting.processes);
    (n - 1.0) * bytes / (n * setting.in_host)
}

/// Equation (2): one copy of the gradient a host, pushed and pulled. Where every host has a server,
/// what stays on a host takes no time.
pub fn between_hosts_seconds(setting: &Setting, bytes: f64) -> f64 {
    match setting.servers {
        Servers::Apart(_) => 2.0 * f64::from(setting.hosts) * bytes / (setting.p() * setting.link),
        Servers::Hosts => setting.beyond_the_host() * bytes / setting.link,
    }
}

/// What the paper's reasoning says of a system, in seconds: equation (4) for [`System::Ps`], (3)
/// for [`System::Psring`]. For the others it gives no equation; in the same terms:
///
/// * an aggregator in the network makes the host's link the narrowest: `2 n K / B` for
///   [`System::Switchml`] and [`System::Atp`] (whose servers get a sum of each block, and no
///   more), and equation (1) `+ 2 K / B` for [`System::Passing`];
/// * a ring of `N` sends `2 (N - 1) / N K` over each link (section 2.1), rings across the hosts
///   ([`System::HAr`]) that of `s`.
pub fn paper_seconds(system: System, setting: &Setting, bytes: f64) -> f64 {
    let n = f64::from(setting.processes);
    match system {
        System::Ps => n * between_hosts_seconds(setting, bytes),
        System::Psring => in_host_seconds(setting, bytes) + between_hosts_seconds(setting, bytes),
        System::Switchml | System::Atp => 2.0 * n * bytes / setting.link,
        System::Passing => in_host_seconds(setting, bytes) + 2.0 * bytes / setting.link,
        System::Ring => ring_bytes(setting.world(), setting, bytes) / setting.link,
        System::HAr => {
            in_host_seconds(setting, bytes)
                + ring_bytes(setting.hosts, setting, bytes) / setting.link
        }
    }
}

/// The least time that the links allow, in seconds. `overhead`: bytes on the wire for one byte of
/// gradient, above 1 for headers.
pub fn bound_seconds(system: System, setting: &Setting, bytes: f64, overhead: f64) -> f64 {
    let host = host_bytes(system, setting, bytes);
    let server = server_bytes(system, setting, bytes);
    host.max(server) * overhead / setting.link
}

/// Bytes of gradient that leave a host in an iteration, and that come in.
pub fn host_bytes(system: System, setting: &Setting, bytes: f64) -> f64 {
    match system {
        System::Ps => setting.beyond_the_host() * f64::from(setting.processes) * bytes,
        System::Psring => setting.beyond_the_host() * bytes,
        System::Switchml => f64::from(setting.processes) * bytes,
        // A host's server gets its part of the sums, and sends it once for all.
        System::Atp if setting.servers == Servers::Hosts => {
            (f64::from(setting.processes) + 1.0 / setting.p()) * bytes
        }
        System::Atp => f64::from(setting.processes) * bytes,
        System::Passing => bytes,
        System::Ring => ring_bytes(setting.world(), setting, bytes),
        System::HAr => ring_bytes(setting.hosts, setting, bytes),
    }
}

/// Bytes of gradient that come in at a parameter server in an iteration, and that leave it; 0 where
/// its link is a host's.
pub fn server_bytes(system: System, setting: &Setting, bytes: f64) -> f64 {
    let p = setting.p();
    match system {
        _ if setting.servers == Servers::Hosts => 0.0,
        System::Ps => f64::from(setting.world()) * bytes / p,
        System::Psring => f64::from(setting.hosts) * bytes / p,
        // The sums. What finds its slot taken comes on top, and is not known beforehand.
        System::Atp => bytes / p,
        System::Switchml | System::Ring | System::HAr | System::Passing => 0.0,
    }
}

/// What one of `members` of a ring sends. Only a host's last process has its neighbour on another
/// host. Of rings across hosts, one for each process, each carries its part.
fn ring_bytes(members: u16, setting: &Setting, bytes: f64) -> f64 {
    let world = f64::from(members);
    if setting.hosts == 1 { 0.0 } else { 2.0 * (world - 1.0) / world * bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's testbed: 4 hosts of 4, one server, links of 1 GB/s here for round numbers.
    const SETTING: Setting =
        Setting { hosts: 4, processes: 4, servers: Servers::Apart(1), link: 1e9, in_host: 10e9 };

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() <= want.abs() * 1e-12, "{got}, not {want}");
    }

    /// K = 1 GB. Worked out by hand from equations (1) to (4).
    #[test]
    fn equations_1_to_4() {
        near(in_host_seconds(&SETTING, 1e9), 0.075); // 3 / (4 * 10)
        near(between_hosts_seconds(&SETTING, 1e9), 8.0); // 2 * 4 / 1
        near(paper_seconds(System::Psring, &SETTING, 1e9), 8.075);
        near(paper_seconds(System::Ps, &SETTING, 1e9), 32.0); // 2 * 4 * 4 / 1
        let two = Setting { servers: Servers::Apart(2), ..SETTING };
        near(paper_seconds(System::Ps, &two, 1e9), 16.0);
        near(paper_seconds(System::Psring, &two, 1e9), 4.075);
    }

    #[test]
    fn the_other_systems_in_the_same_terms() {
        near(paper_seconds(System::Switchml, &SETTING, 1e9), 8.0);
        near(paper_seconds(System::Passing, &SETTING, 1e9), 2.075);
        near(paper_seconds(System::Ring, &SETTING, 1e9), 1.875); // 2 * 15 / 16
    }

    #[test]
    fn bounds_use_both_directions_at_once() {
        near(bound_seconds(System::Ps, &SETTING, 1e9, 1.0), 16.0);
        near(bound_seconds(System::Psring, &SETTING, 1e9, 1.0), 4.0);
        near(bound_seconds(System::Switchml, &SETTING, 1e9, 1.05), 4.2);
        near(bound_seconds(System::Passing, &SETTING, 1e9, 1.0), 1.0);
        // With many servers the hosts' own links are the narrowest.
        let many = Setting { servers: Servers::Apart(16), ..SETTING };
        near(bound_seconds(System::Ps, &many, 1e9, 1.0), 4.0);
        // ATP's server gets one copy of the sums.
        near(bound_seconds(System::Atp, &SETTING, 1e9, 1.0), 4.0);
        near(server_bytes(System::Atp, &SETTING, 1e9), 1e9);
        let alone = Setting { hosts: 1, ..SETTING };
        near(bound_seconds(System::Ring, &alone, 1e9, 1.0), 0.0);
    }

    /// Three quarters of 4 GB leave each host, and the sums of its quarter go to 12 processes.
    #[test]
    fn a_server_on_every_host_shares_its_link() {
        let hosts = Setting { servers: Servers::Hosts, ..SETTING };
        near(bound_seconds(System::Ps, &hosts, 1e9, 1.0), 3.0 + 12.0 * 0.25);
        near(bound_seconds(System::Psring, &hosts, 1e9, 1.0), 0.75 + 3.0 * 0.25);
        near(paper_seconds(System::Ps, &hosts, 1e9), 6.0);
        near(bound_seconds(System::Passing, &hosts, 1e9, 1.0), 1.0);
        near(bound_seconds(System::Atp, &hosts, 1e9, 1.0), 4.25);
    }

    #[test]
    fn servers_are_read() {
        for servers in [Servers::Apart(1), Servers::Apart(16), Servers::Hosts] {
            assert_eq!(servers.to_string().parse(), Ok(servers));
        }
        assert_eq!((Servers::Hosts.count(4), Servers::Hosts.apart()), (4, 0));
        for text in ["0", "17", "host", ""] {
            assert!(text.parse::<Servers>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_survive_their_text() {
        for system in System::ALL {
            assert_eq!(system.name().parse(), Ok(system));
        }
        assert_eq!("h-ar".parse(), Ok(System::HAr));
        assert!("nccl".parse::<System>().is_err());
    }
}
