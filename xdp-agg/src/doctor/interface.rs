//! Checks of the interfaces that the daemon is to serve.

mod gather;

use super::Check;
use super::drivers::native;
use crate::link::Offloads;

/// What was found about an interface; None where it could not be seen.
#[derive(Clone, Debug, Default)]
struct Facts {
    name: String,
    up: bool,
    mtu: u32,
    driver: Option<String>,
    offloads: Offloads,
    /// Number of the XDP program that is attached.
    program: Option<u32>,
    rx_queues: Option<u32>,
    /// Of a veth.
    peer: Option<Peer>,
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

fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![state(facts), driver(facts), mtu(facts), lro(facts), program(facts)];
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
    match facts.driver.as_deref() {
        Some(driver) if native(driver).is_some() => {
            Check::ok(subject, format!("{driver} runs XDP programs itself (native mode)"))
        }
        Some(driver) => Check::warn(
            subject,
            format!("{driver} is not known to run XDP programs itself; generic mode is slower"),
        )
        .mend("serve the physical interfaces below it, or use --xdp-mode generic"),
        None => Check::warn(subject, "it does not say its name; native XDP is unlikely")
            .mend("use --xdp-mode generic"),
    }
}

/// The MTU that the driver compares with its limit: on a veth the peer's.
fn mtu(facts: &Facts) -> Check {
    let subject = subject(facts, "MTU");
    let limit = facts.driver.as_deref().and_then(native).and_then(|native| native.mtu_max);
    let Some(limit) = limit else {
        return Check::ok(subject, format!("{}; no limit of the driver is known", facts.mtu));
    };
    let device = facts.peer.as_ref().map_or_else(|| facts.name.clone(), Peer::label);
    let set = format!("ip link set {device} mtu {limit}");
    let mend = facts.peer.as_ref().map_or_else(|| set.clone(), |peer| peer.command(&set));
    let (whose, mtu) = match &facts.peer {
        None => ("", Some(facts.mtu)),
        Some(peer) => ("the peer's is ", peer.mtu),
    };
    match mtu {
        Some(mtu) if mtu <= limit => {
            Check::ok(subject, format!("{whose}{mtu}; with XDP at most {limit}"))
        }
        Some(mtu) => {
            Check::fail(subject, format!("{whose}{mtu}; with XDP at most {limit}")).mend(mend)
        }
        None => Check::warn(
            subject,
            format!(
                "the peer is in another namespace and cannot be seen; with XDP its MTU is at \
                 most {limit}"
            ),
        )
        .mend(mend),
    }
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
            offloads: Offloads { gro: Some(true), lro: Some(false) },
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
    fn the_peers_mtu_decides_on_a_veth() {
        let mut facts = veth();
        facts.mtu = 9000;
        assert_eq!(wrong(&facts), []);
        let set = |facts: &mut Facts, mtu| {
            if let Some(peer) = &mut facts.peer {
                peer.mtu = mtu;
            }
        };
        set(&mut facts, Some(3506));
        assert_eq!(wrong(&facts), []);
        set(&mut facts, Some(3507));
        let remedy = "ip netns exec worker0 ip link set eth0 mtu 3506";
        is(&wrong(&facts), "p0: MTU", Status::Fail, remedy);
        set(&mut facts, None);
        is(&wrong(&facts), "p0: MTU", Status::Warn, "mtu 3506");
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
        let lro = Facts { offloads: Offloads { gro: None, lro: Some(true) }, ..nic.clone() };
        is(&wrong(&lro), "p0: LRO", Status::Fail, "ethtool -K p0 lro off");
        let busy = Facts { program: Some(7), ..nic.clone() };
        is(&wrong(&busy), "p0: XDP program", Status::Fail, "bpftool prog show id 7");
        let down = Facts { up: false, ..nic.clone() };
        is(&wrong(&down), "p0: state", Status::Fail, "ip link set p0 up");
        let other = Facts { driver: Some("e1000e".into()), ..nic };
        is(&wrong(&other), "p0: driver", Status::Warn, "generic");
    }
}
