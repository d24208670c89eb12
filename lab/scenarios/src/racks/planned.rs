//! What the planner says beforehand of a system's time.

use xdp_agg_testbed::Fabric;
use xdp_agg_topology::Strategy;
use xdp_agg_topology::analysis::Traffic;
use xdp_agg_topology::flows::Scheme;
use xdp_agg_workloads::Framing;

use super::super::bound::aggregated_wire_bytes;
use super::{Args, System};

/// Seconds of the fullest link for one call, with the headers of packets (`xdp-agg topology plan`
/// counts the data alone); `None`: links have no rate, or the planner has no such plan.
pub(super) fn seconds(args: &Args, fabric: &Fabric, system: System) -> Option<f64> {
    args.rate.bits?;
    let strategy = match system {
        System::Ring => Strategy::Ring,
        System::Ps => Strategy::Ps,
        other => other.strategy()?,
    };
    let plan = fabric.plan(strategy);
    let scheme = Scheme::of(&plan, strategy).ok()?;
    let bytes = match system {
        System::Ring | System::Ps | System::HAr => Framing::tcp(args.mtu).wire(args.bytes as f64),
        _ => aggregated_wire_bytes(args.bytes, args.mtu),
    };
    Some(Traffic::of(&plan, &scheme, bytes).seconds)
}
