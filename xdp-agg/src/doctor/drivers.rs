//! What is known of network drivers and XDP.

/// A driver that runs XDP programs itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Native {
    /// Largest MTU with an XDP program that takes packets in one buffer, where it is known.
    pub(super) mtu_max: Option<u32>,
}

/// Name that the driver gives to ethtool, and its largest MTU (kernel documentation of XDP
/// drivers for x86; veth and its peer: measured).
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

/// What is known of a driver's native XDP. None: nothing is known, so it probably has none.
pub(super) fn native(driver: &str) -> Option<Native> {
    let limit = LIMITS.iter().find(|(name, _)| *name == driver).map(|(_, mtu)| *mtu);
    if limit.is_some() || WITHOUT_LIMIT.contains(&driver) {
        Some(Native { mtu_max: limit })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_found_by_their_ethtool_name() {
        assert_eq!(native("ixgbe"), Some(Native { mtu_max: Some(3050) }));
        assert_eq!(native("nfp"), Some(Native { mtu_max: None }));
        for other in ["bridge", "e1000e", "802.1Q VLAN Support", ""] {
            assert_eq!(native(other), None, "{other}");
        }
    }
}
