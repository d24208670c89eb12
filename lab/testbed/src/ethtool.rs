//! Interface features (offloads) by the names that `ethtool -k` and the kernel use.

use xdp_agg::link::Links;

use crate::error::Error;
use crate::namespace::Namespace;

/// Generic receive offload. On a veth it also gives the interface a receive queue of its own
/// (NAPI), without which frames redirected to its peer by XDP are lost.
pub const GRO: &str = "rx-gro";
/// Whether receive offload merges UDP packets that are to be passed on into a train, too.
pub const UDP_GRO_FORWARDING: &str = "rx-udp-gro-forwarding";
/// TCP segmentation by the interface: super-packets cross it whole.
pub const TSO: &str = "tx-tcp-segmentation";
/// UDP segmentation by the interface: trains of `UDP_SEGMENT` cross it whole.
pub const UDP_SEGMENTATION: &str = "tx-udp-segmentation";
/// Checksums by the interface: on a veth, none are worked out at all.
pub const TX_CHECKSUM: &str = "tx-checksum-ip-generic";

/// VLAN tags by the interface: on a veth, they stand beside the frame and not in it.
pub const TX_VLAN: &str = "tx-vlan-hw-insert";

/// Turns features of an interface on or off.
///
/// # Errors
/// No such interface or feature, no privilege, or the kernel keeps the feature as it is.
pub fn set_features(
    namespace: &Namespace,
    interface: &str,
    changes: &[(&'static str, bool)],
) -> Result<(), Error> {
    let names: Vec<_> = changes.iter().map(|(name, _)| *name).collect();
    let set = || {
        let links = Links::open()?;
        links.set_features(interface, changes)?;
        links.features_on(interface, &names)
    };
    let what = format!("setting features of interface {interface}");
    let on = namespace.run(set)?.map_err(Error::os(what))?;
    match changes.iter().find(|(name, wanted)| on.contains(name) != *wanted) {
        None => Ok(()),
        Some((name, wanted)) => {
            let kept = if *wanted { "keeps it off, or has none" } else { "keeps it on" };
            Err(Error::Config(format!("{name} of interface {interface}: the kernel {kept}")))
        }
    }
}
