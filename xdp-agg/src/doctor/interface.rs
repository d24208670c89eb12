//! Checks of the interfaces that the daemon is to serve.

mod gather;

use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_common::lanes::CHUNK_LEN;

use super::Check;
use crate::drivers::{self, native, room};
use crate::link::Offloads;

/// What was found about an interface; None where it could not be seen.
#[derive(Clone, Debug, Default)]
struct Facts {
    name: String,
    up: bool,
    mtu: u32,
    driver: Option<String>,
    stack: Stack,
    offloads: Offloads,
    /// Number of the XDP program that is attached.
    program: Option<u32>,
    rx_queues: Option<u32>,
    /// Of a veth.
    peer: Option<Peer>,
}

/// The interfaces above and below it, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stack {
    /// It is a VLAN: its number, and the interface that carries it.
    vlan: Option<(u16, String)>,
    /// Ports of a bridge or bond.
    ports: Vec<String>,
    /// VLANs that it carries.
    vlans: Vec<String>,
}

/// The other end of a veth pair.
#[derive(Clone, Debug, Default)]
struct Peer {
    name: Option<String>,
    /// In another network namespace.
    elsewhere: bool,
    /// That namespace's name, where `ip netns` knows it.
    namespace: Option<String>,
    mtu: Option<u32>,
    gro: Option<bool>,
    program: Option<bool>,
    tx_queues: Option<u32>,
}

/// Looks at all interfaces.
pub(super) async fn run(names: &[String]) -> Vec<Check> {
    if names.is_empty() {
        let hint = "none was named; name those that the workers are behind to have them checked";
        return vec![Check::ok("interfaces", hint).mend("xdp-agg doctor --interface IF")];
    }
    match gather::gather(names).await {
        Ok(found) => names
            .iter()
            .zip(found)
            .flat_map(|(name, facts)| match facts {
                Some(facts) => judge(&facts),
                None => {
                    let finding = "no interface of this name here";
                    vec![
                        Check::fail(name, finding)
                            .mend("`ip link` lists them; correct --interface"),
                    ]
                }
            })
            .collect(),
        Err(error) => {
            vec![
                Check::fail("interfaces", format!("the kernel cannot be asked: {error}"))
                    .mend("allow netlink and UDP sockets in this sandbox"),
            ]
        }
    }
}

/// Whether attaching shows the same, with an error of its own.
pub(super) fn is_tried(check: &Check) -> bool {
    ["driver", "XDP program", "queues"].iter().any(|what| check.subject.ends_with(what))
}

fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![state(facts), driver(facts), mtu(facts), lro(facts), program(facts)];
    checks.extend(neighbours(facts));
    checks.extend(tags(facts));
    if let Some(peer) = &facts.peer {
        checks.push(napi(facts, peer));
        checks.push(queues(facts, peer));
    }
    checks
}

fn subject(facts: &Facts, what: &str) -> String {
    format!("{}: {what}", facts.name)
}

fn state(facts: &Facts) -> Check {
    let subject = subject(facts, "state");
    if facts.up {
        Check::ok(subject, "up")
    } else {
        Check::fail(subject, "down: no packet comes in")
            .mend(format!("ip link set {} up", facts.name))
    }
}

fn driver(facts: &Facts) -> Check {
    let subject = subject(facts, "driver");
    let name = match facts.driver.as_deref() {
        Some(driver) if native(driver).is_some() => {
            return Check::ok(subject, format!("{driver} runs XDP programs itself (native mode)"));
        }
        Some(driver) => driver,
        None => "a driver that does not say its name",
    };
    if facts.stack.vlan.is_some() {
        return Check::ok(subject, "it is a VLAN of another interface").mend(elsewhere(facts));
    }
    let finding = format!(
        "{name} is not known to run XDP programs itself: `serve` takes the user-space engine then \
         (--engine auto) or ends (--engine xdp)"
    );
    Check::warn(subject, finding).mend(elsewhere(facts))
}

/// Where the XDP engine can be had instead.
fn elsewhere(facts: &Facts) -> String {
    let Stack { vlan, ports, .. } = &facts.stack;
    match (vlan, &ports[..]) {
        (Some((id, parent)), _) => format!(
            "nothing: `serve --interface {name}` attaches to {parent} and takes what has the tag \
             of VLAN {id}; look at it, too: xdp-agg doctor --interface {parent}",
            name = facts.name
        ),
        (_, [_, ..]) => {
            let ports: Vec<_> = ports.iter().map(|port| format!("--interface {port}")).collect();
            format!("serve its ports, the address stays where it is: {}", ports.join(" "))
        }
        _ if facts.driver.as_deref().is_some_and(drivers::wraps) => "use --engine userspace".into(),
        _ => "use --engine userspace; --xdp-mode generic is slower than that".into(),
    }
}

/// The MTU that the driver compares with its limit: on a veth the peer's.
fn mtu(facts: &Facts) -> Check {
    let subject = subject(facts, "MTU");
    let driver = facts.driver.as_deref().unwrap_or_default();
    let known = native(driver);
    let limit = known.and_then(|native| native.first_buffer);
    let (whose, mtu) = match &facts.peer {
        Some(Peer { mtu: Some(mtu), .. }) => ("the peer's is ", *mtu),
        _ => ("", facts.mtu),
    };
    let block = usize::from(chunks_for_mtu(room(driver, facts.mtu))) * CHUNK_LEN;
    match limit {
        Some(limit) if mtu > limit && !known.is_some_and(|native| native.frags) => {
            Check::fail(subject, format!("{whose}{mtu}; with XDP at most {limit}"))
                .mend(format!("ip link set {} mtu {limit}, or use --engine userspace", facts.name))
        }
        Some(limit) if mtu > limit => {
            let finding =
                format!("{whose}{mtu}; a block is what the first buffer holds: {block} bytes");
            let check = Check::ok(subject, finding);
            if driver != "mlx5_core" {
                return check;
            }
            check.mend(format!(
                "if probes stay without an answer: ethtool --set-priv-flags {} rx_striding_rq off",
                facts.name
            ))
        }
        Some(limit) => Check::ok(subject, format!("{whose}{mtu}; in one buffer at most {limit}")),
        None if known.is_some() && room(driver, mtu) < mtu => Check::ok(
            subject,
            format!("{mtu}; how much one buffer holds is not known: blocks of {block} bytes"),
        )
        .mend("for larger blocks try `serve --mtu`, up to what is answered"),
        None => Check::ok(subject, format!("{mtu}; no limit of the driver is known")),
    }
}

/// What attaching changes for other traffic, as long as the program is there.
fn neighbours(facts: &Facts) -> Option<Check> {
    let subject = subject(facts, "other traffic");
    let changes = drivers::changes(facts.driver.as_deref()?)?;
    let whose = match &facts.peer {
        Some(peer) => format!(" ({} is the peer)", peer.label()),
        None => String::new(),
    };
    Some(Check::ok(subject, format!("while XDP is attached, {changes}{whose}")))
}

/// A card that takes tags off shows packets of its VLANs to the program as if they had none.
fn tags(facts: &Facts) -> Option<Check> {
    let vlans = &facts.stack.vlans;
    if vlans.is_empty() || facts.offloads.rx_vlan != Some(true) {
        return None;
    }
    let finding = format!(
        "it takes the tags of {} off before XDP sees them: their packets to the data port would be \
         taken for untagged ones",
        vlans.join(", ")
    );
    let line = format!("ethtool -K {} rx-vlan-offload off", facts.name);
    Some(Check::warn(self::subject(facts, "VLAN tags"), finding).mend(line))
}

fn lro(facts: &Facts) -> Check {
    let subject = subject(facts, "LRO");
    match facts.offloads.lro {
        Some(true) => {
            let more = match facts.driver.as_deref() {
                Some("virtio_net") => " rx-gro-hw off",
                _ => "",
            };
            Check::fail(subject, "on: it joins packets before XDP sees them")
                .mend(format!("ethtool -K {} lro off{more}", facts.name))
        }
        Some(false) => Check::ok(subject, "off"),
        None => Check::ok(subject, "the driver has none"),
    }
}

fn program(facts: &Facts) -> Check {
    let subject = subject(facts, "XDP program");
    match facts.program {
        None => Check::ok(subject, "none is attached"),
        Some(id) => Check::fail(
            subject,
            format!("program {id} is attached; is an xdp-agg running?"),
        )
        .mend(format!(
            "stop its owner (`bpftool prog show id {id}` names it), or: ip link set {} xdp off",
            facts.name
        )),
    }
}

/// Results that are redirected into a veth are taken by its peer's NAPI, which runs only with GRO
/// or an XDP program there. Without either, the results vanish silently.
fn napi(facts: &Facts, peer: &Peer) -> Check {
    let subject = subject(facts, "NAPI of the peer");
    let line = peer.command(&format!("ethtool -K {} gro on", peer.label()));
    match (peer.program, peer.gro) {
        (Some(true), _) => Check::ok(subject, "on: an XDP program is attached there"),
        (_, Some(true)) => Check::ok(subject, "on: GRO is on there"),
        (_, Some(false)) => {
            Check::fail(subject, "off: results into this veth are lost without a trace").mend(line)
        }
        (_, None) => Check::warn(
            subject,
            "it cannot be seen from here; without GRO or an XDP program there, results into this \
             veth are lost without a trace",
        )
        .mend(line),
    }
}

fn queues(facts: &Facts, peer: &Peer) -> Check {
    let subject = subject(facts, "queues");
    let Some(rx) = facts.rx_queues else {
        return Check::warn(subject, "their number cannot be seen");
    };
    let create = "ip link add A numrxqueues N numtxqueues N type veth peer name B numrxqueues N \
                  numtxqueues N";
    match peer.tx_queues {
        Some(tx) if tx > rx => Check::fail(
            subject,
            format!("{rx} to receive, but the peer has {tx} to send: XDP cannot be attached"),
        )
        .mend(format!("create both ends with the same numbers: {create}")),
        _ if rx == 1 => Check::ok(subject, "1 to receive: one processor at a time serves it")
            .mend(format!("for more: {create}")),
        _ => Check::ok(subject, format!("{rx} to receive")),
    }
}

impl Peer {
    fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| "PEER".into())
    }

    /// A command as it is to be run for the peer.
    fn command(&self, command: &str) -> String {
        match &self.namespace {
            Some(name) => format!("ip netns exec {name} {command}"),
            None if self.elsewhere => format!("in the peer's namespace: {command}"),
            None => command.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn veth() -> Facts {
        Facts {
            name: "p0".into(),
            up: true,
            mtu: 1500,
            driver: Some("veth".into()),
            stack: Stack::default(),
            offloads: Offloads { gro: Some(true), lro: Some(false), rx_vlan: None },
            program: None,
            rx_queues: Some(2),
            peer: Some(Peer {
                name: Some("eth0".into()),
                elsewhere: true,
                namespace: Some("worker0".into()),
                mtu: Some(1500),
                gro: Some(true),
                program: Some(false),
                tx_queues: Some(2),
            }),
        }
    }

    /// The checks that are not ok: subject, status and remedy.
    fn wrong(facts: &Facts) -> Vec<(String, Status, String)> {
        let bad = judge(facts).into_iter().filter(|check| check.status != Status::Ok);
        bad.map(|check| (check.subject, check.status, check.remedy.unwrap_or_default())).collect()
    }

    fn is(found: &[(String, Status, String)], subject: &str, status: Status, remedy: &str) {
        let [(what, how, mend)] = found else {
            panic!("one finding is expected: {found:?}");
        };
        assert_eq!((what.as_str(), *how), (subject, status));
        assert!(mend.contains(remedy), "{mend:?} does not say {remedy:?}");
    }

    #[test]
    fn a_good_veth_has_nothing_to_mend() {
        assert_eq!(wrong(&veth()), []);
    }

    #[test]
    fn any_mtu_is_possible_where_packets_may_have_several_buffers() {
        let mut facts = veth();
        facts.mtu = 9000;
        facts.peer.get_or_insert_default().mtu = Some(9000);
        assert_eq!(wrong(&facts), []);
        let found = mtu(&facts);
        assert!(found.finding.contains("3456 bytes"), "{}", found.finding);
        let card = |driver: &str| Facts { driver: Some(driver.into()), peer: None, ..veth() };
        let striding = mtu(&Facts { mtu: 9000, ..card("mlx5_core") });
        assert!(striding.remedy.is_some_and(|line| line.contains("rx_striding_rq off")));
        let unknown = mtu(&Facts { mtu: 9000, ..card("bonding") });
        assert!(unknown.finding.contains("blocks of 1408 bytes"), "{}", unknown.finding);
    }

    #[test]
    fn what_stands_on_others_is_told_where_xdp_can_be_had() {
        let on = |driver: &str, stack| {
            let facts = Facts { driver: Some(driver.into()), stack, peer: None, ..veth() };
            let [(_, Status::Warn, remedy)] = &wrong(&facts)[..] else { panic!("one warning") };
            remedy.clone()
        };
        let ports = vec!["p0".into(), "p1".into()];
        let bridge = on("bridge", Stack { ports, ..Stack::default() });
        assert!(bridge.contains("--interface p0 --interface p1"), "{bridge}");
        let stack = Stack { vlan: Some((100, "eth0".into())), ..Stack::default() };
        let driver = Some("802.1Q VLAN Support".into());
        let vlan = Facts { name: "eth0.100".into(), driver, stack, peer: None, ..veth() };
        assert_eq!(wrong(&vlan), []);
        let told = elsewhere(&vlan);
        for part in ["--interface eth0.100", "attaches to eth0", "VLAN 100"] {
            assert!(told.contains(part), "{told}");
        }
        let overlay = on("vxlan", Stack::default());
        assert!(overlay.contains("--engine userspace"), "{overlay}");
    }

    #[test]
    fn a_card_that_takes_tags_off_is_found_where_vlans_are() {
        let mut facts = Facts { driver: Some("ice".into()), peer: None, ..veth() };
        facts.offloads.rx_vlan = Some(true);
        assert_eq!(wrong(&facts), []);
        facts.stack.vlans = vec!["p0.7".into()];
        is(&wrong(&facts), "p0: VLAN tags", Status::Warn, "ethtool -K p0 rx-vlan-offload off");
        facts.offloads.rx_vlan = Some(false);
        assert_eq!(wrong(&facts), []);
    }

    #[test]
    fn what_attaching_does_to_others_is_told() {
        let told = neighbours(&veth()).expect("veth loses offloads");
        assert!(told.finding.contains("eth0 is the peer"), "{}", told.finding);
    }

    #[test]
    fn a_peer_without_napi_loses_results() {
        let mut facts = veth();
        let peer = facts.peer.get_or_insert_default();
        peer.gro = Some(false);
        let remedy = "ip netns exec worker0 ethtool -K eth0 gro on";
        is(&wrong(&facts), "p0: NAPI of the peer", Status::Fail, remedy);
        let peer = facts.peer.get_or_insert_default();
        peer.program = Some(true);
        assert_eq!(wrong(&facts), []);
        let peer = facts.peer.get_or_insert_default();
        (peer.program, peer.gro) = (None, None);
        is(&wrong(&facts), "p0: NAPI of the peer", Status::Warn, "gro on");
    }

    #[test]
    fn too_few_queues_are_found() {
        let mut facts = veth();
        facts.rx_queues = Some(1);
        is(&wrong(&facts), "p0: queues", Status::Fail, "numrxqueues");
    }

    #[test]
    fn a_nic_is_judged_by_its_driver() {
        let nic = Facts { driver: Some("ixgbe".into()), peer: None, ..veth() };
        assert_eq!(wrong(&nic), []);
        let jumbo = Facts { mtu: 9000, ..nic.clone() };
        is(&wrong(&jumbo), "p0: MTU", Status::Fail, "ip link set p0 mtu 3050");
        let offloads = Offloads { lro: Some(true), ..Offloads::default() };
        let lro = Facts { offloads, ..nic.clone() };
        is(&wrong(&lro), "p0: LRO", Status::Fail, "ethtool -K p0 lro off");
        let busy = Facts { program: Some(7), ..nic.clone() };
        is(&wrong(&busy), "p0: XDP program", Status::Fail, "bpftool prog show id 7");
        let down = Facts { up: false, ..nic.clone() };
        is(&wrong(&down), "p0: state", Status::Fail, "ip link set p0 up");
        let other = Facts { driver: Some("e1000e".into()), ..nic };
        is(&wrong(&other), "p0: driver", Status::Warn, "--engine userspace");
    }
}
