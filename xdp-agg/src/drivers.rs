//! What is known of network drivers and XDP.

/// A driver that runs XDP programs itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Native {
    /// Largest packet that its first buffer holds, in bytes from the IP header on, where it is
    /// known. A larger MTU takes several buffers.
    pub(crate) first_buffer: Option<u32>,
    /// It hands packets of several buffers to programs that take them, so any MTU is possible.
    pub(crate) frags: bool,
}

/// The largest packet that surely lies in one buffer where nothing is known of a driver.
const ORDINARY: u32 = 1500;

/// The largest packet that one buffer of an interface with this driver and MTU holds. It bounds the
/// blocks.
pub(crate) fn room(driver: &str, mtu: u32) -> u32 {
    mtu.min(native(driver).and_then(|native| native.first_buffer).unwrap_or(ORDINARY))
}

/// Name that the driver gives to ethtool, and the largest MTU for one buffer (kernel documentation
/// of XDP drivers for x86; veth and its peer: measured).
const LIMITS: [(&str, u32); 17] = [
    ("veth", 3506),
    ("virtio_net", 3506),
    ("ena", 3498),
    ("mlx4_en", 3498),
    ("mlx5_core", 3498),
    ("bnxt_en", 3502),
    ("i40e", 3046),
    ("ice", 3046),
    ("igb", 3046),
    ("ixgbe", 3050),
    ("ixgbevf", 3050),
    ("gve", 2032),
    ("atlantic", 2048),
    ("igc", 1500),
    ("st_gmac", 1500),
    ("stmmac", 1500),
    ("tun", 1500),
];

/// Drivers with native XDP whose limit is not known here.
const WITHOUT_LIMIT: [&str; 13] = [
    "bonding",
    "dpaa2-eth",
    "fsl_dpaa2_eth",
    "fsl_enetc",
    "hv_netvsc",
    "mana",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "sfc",
    "tsnep",
    "vif",
];

/// Drivers that hand over packets of several buffers.
const WITH_FRAGS: [&str; 8] =
    ["veth", "virtio_net", "mlx5_core", "bnxt_en", "i40e", "ice", "mvneta", "fsl_enetc"];

/// Whether a driver works out checksums that a sender on this machine left open, when it wraps what
/// generic XDP sends. It cannot know that the program has written the packet anew.
pub(crate) fn wraps(driver: &str) -> bool {
    ["vxlan", "geneve", "gre", "ip_gre", "ip6_gre", "batman-adv"].contains(&driver)
}

/// What attaching a program does to other traffic of the interface until it is detached, where that
/// is known. The kernel undoes it all then.
pub(crate) fn changes(driver: &str) -> Option<&'static str> {
    match driver {
        "veth" => Some(
            "its peer cuts TCP and UDP into single packets itself (TSO and UDP segmentation are \
             off there)",
        ),
        "virtio_net" => Some("packets are not joined on receipt (GRO-HW and LRO are off)"),
        "ena" => Some("half of its queues carry what the program sends"),
        _ => None,
    }
}

/// What is known of a driver's native XDP. None: nothing is known, so it probably has none.
pub(crate) fn native(driver: &str) -> Option<Native> {
    let limit = LIMITS.iter().find(|(name, _)| *name == driver).map(|(_, mtu)| *mtu);
    let known = limit.is_some() || WITHOUT_LIMIT.contains(&driver);
    known.then(|| Native { first_buffer: limit, frags: WITH_FRAGS.contains(&driver) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_found_by_their_ethtool_name() {
        let of = |first_buffer, frags| Some(Native { first_buffer, frags });
        assert_eq!(native("ixgbe"), of(Some(3050), false));
        assert_eq!(native("ice"), of(Some(3046), true));
        assert_eq!(native("nfp"), of(None, false));
        for other in ["bridge", "e1000e", "802.1Q VLAN Support", ""] {
            assert_eq!(native(other), None, "{other}");
        }
    }

    #[test]
    fn a_block_is_no_larger_than_the_first_buffer() {
        for (driver, mtu, largest) in [
            ("veth", 9000, 3506),
            ("veth", 1500, 1500),
            ("ice", 9000, 3046),
            ("of-tomorrow", 9000, 1500),
            ("", 1400, 1400),
        ] {
            assert_eq!(room(driver, mtu), largest, "{driver} at {mtu}");
        }
    }
}
