//! Checks of the host as a whole.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use super::Check;

/// Oldest kernel that the XDP program is made for.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Receive buffer that a worker's socket should be able to get: two windows of the largest blocks.
const RMEM_WANTED: u64 = 2 << 20;

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// What was found; None where it could not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    kernel: Option<String>,
    btf: bool,
    capabilities: Option<u64>,
    unprivileged_bpf: Option<String>,
    rmem_max: Option<u64>,
    /// The veth driver: None where it cannot be told without loading it.
    veth: Option<bool>,
}

pub(super) fn gather() -> Facts {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    Facts {
        kernel: read("/proc/sys/kernel/osrelease"),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        capabilities: effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()),
        unprivileged_bpf: read("/proc/sys/kernel/unprivileged_bpf_disabled"),
        rmem_max: read("/proc/sys/net/core/rmem_max").and_then(|text| text.parse().ok()),
        veth: veth_driver(),
    }
}

/// Whether the kernel has the veth driver, loaded, built in or as a module.
fn veth_driver() -> Option<bool> {
    if Path::new("/sys/module/veth").exists() {
        return Some(true);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let modules = Path::new("/lib/modules").join(release.trim());
    let lists = ["modules.builtin", "modules.dep"].map(|list| modules.join(list));
    let texts = lists.iter().filter_map(|list| std::fs::read_to_string(list).ok());
    texts.map(|text| text.contains("/veth.ko")).reduce(|a, b| a || b)
}

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    vec![
        kernel(facts.kernel.as_deref()),
        btf(facts.btf),
        capabilities(facts.capabilities),
        unprivileged_bpf(facts.unprivileged_bpf.as_deref()),
        rmem_max(facts.rmem_max),
        own_workers(facts.veth),
    ]
}

fn kernel(release: Option<&str>) -> Check {
    let (major, minor) = KERNEL_MIN;
    let Some(release) = release else {
        return Check::warn("kernel", "its version cannot be read from /proc/sys/kernel/osrelease");
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(a)), Some(Ok(b))) if (a, b) >= KERNEL_MIN => {
            Check::ok("kernel", format!("{release}; {major}.{minor} or newer is needed"))
        }
        (Some(Ok(_)), Some(Ok(_))) => {
            Check::fail("kernel", format!("{release}; {major}.{minor} or newer is needed"))
                .mend("boot a newer kernel, or use --engine userspace")
        }
        _ => Check::warn("kernel", format!("{release} is no version that can be compared")),
    }
}

fn btf(present: bool) -> Check {
    if present {
        Check::ok("BTF", "the kernel describes its types (/sys/kernel/btf/vmlinux)")
    } else {
        Check::fail("BTF", "there is no /sys/kernel/btf/vmlinux").mend(
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (those of Debian, Ubuntu, Fedora \
             are), mount /sys, or use --engine userspace",
        )
    }
}

fn capabilities(effective: Option<u64>) -> Check {
    const SUBJECT: &str = "capabilities";
    let Some(effective) = effective else {
        return Check::warn(SUBJECT, "they cannot be read from /proc/self/status");
    };
    let has = |bit: u32| effective >> bit & 1 == 1;
    // CAP_SYS_ADMIN still includes what was split from it.
    let lacking: Vec<_> = [
        ("CAP_BPF", has(CAP_BPF) || has(CAP_SYS_ADMIN)),
        ("CAP_NET_ADMIN", has(CAP_NET_ADMIN)),
        ("CAP_PERFMON", has(CAP_PERFMON) || has(CAP_SYS_ADMIN)),
    ]
    .into_iter()
    .filter_map(|(name, has)| (!has).then_some(name))
    .collect();
    let mend = "run as root, or: setcap cap_bpf,cap_net_admin,cap_perfmon+ep \
                \"$(command -v xdp-agg)\", or use --engine userspace";
    match lacking[..] {
        [] => Check::ok(SUBJECT, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are there"),
        _ => {
            Check::fail(SUBJECT, format!("missing to load and attach XDP: {}", lacking.join(", ")))
                .mend(mend)
        }
    }
}

fn unprivileged_bpf(value: Option<&str>) -> Check {
    const SUBJECT: &str = "unprivileged BPF";
    match value {
        Some("0") => Check::warn(
            SUBJECT,
            "every user may load BPF programs; XDP needs capabilities all the same",
        )
        .mend("sysctl -w kernel.unprivileged_bpf_disabled=1"),
        Some(value) => Check::ok(SUBJECT, format!("off ({value}): the capabilities above decide")),
        None => Check::ok(SUBJECT, "not configurable on this kernel"),
    }
}

fn rmem_max(value: Option<u64>) -> Check {
    const SUBJECT: &str = "net.core.rmem_max";
    match value {
        Some(value) if value >= RMEM_WANTED => {
            Check::ok(SUBJECT, format!("{value}; workers' sockets want {RMEM_WANTED} at least"))
        }
        Some(value) => Check::warn(
            SUBJECT,
            format!(
                "{value}; workers' sockets on this host want {RMEM_WANTED}, with less they lose \
                 results in bursts"
            ),
        )
        .mend(format!("sysctl -w net.core.rmem_max={RMEM_WANTED}")),
        None => Check::warn(SUBJECT, "not visible in this network namespace; see the host's"),
    }
}

/// The XDP engine serves workers of its own host by a veth pair.
fn own_workers(veth: Option<bool>) -> Check {
    const SUBJECT: &str = "workers on this host";
    match veth {
        Some(true) => Check::ok(SUBJECT, "there is a veth driver for their way in (--local-addr)"),
        Some(false) => Check::warn(
            SUBJECT,
            "there is no veth driver for their way in: XDP serves those on other hosts only",
        )
        .mend("use a kernel with CONFIG_VETH, or --engine userspace on hosts with workers"),
        None => Check::ok(SUBJECT, "whether there is a veth driver shows when the daemon starts"),
    }
}

/// Whether the daemon's ports are free.
pub(super) fn ports(control: SocketAddr, data_port: u16) -> [Check; 2] {
    let data = SocketAddr::from((Ipv4Addr::UNSPECIFIED, data_port));
    [
        port("control port", "TCP", control, TcpListener::bind(control).err(), "--control"),
        port("data port", "UDP", data, UdpSocket::bind(data).err(), "--data-port"),
    ]
}

fn port(
    subject: &str,
    protocol: &str,
    addr: SocketAddr,
    error: Option<io::Error>,
    flag: &str,
) -> Check {
    match error {
        None => Check::ok(subject, format!("{protocol} {addr} is free")),
        Some(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Check::fail(subject, format!("{protocol} {addr} is in use; is an xdp-agg running?"))
                .mend(format!("stop it, or start the daemon with another {flag}"))
        }
        Some(error) => Check::fail(subject, format!("{protocol} {addr} cannot be used: {error}"))
            .mend(format!("choose an address of this host and a permitted port with {flag}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, status) in [
            ("6.1.0-28-amd64", Status::Ok),
            ("6.18.44", Status::Ok),
            ("10.0-rc1", Status::Ok),
            ("6.0.19", Status::Fail),
            ("5.15.0-generic", Status::Fail),
            ("weird", Status::Warn),
        ] {
            assert_eq!(kernel(Some(release)).status, status, "{release}");
        }
        assert_eq!(kernel(None).status, Status::Warn);
    }

    #[test]
    fn what_is_missing_is_named() {
        let all = 1 << CAP_BPF | 1 << CAP_NET_ADMIN | 1 << CAP_PERFMON;
        assert_eq!(capabilities(Some(all)).status, Status::Ok);
        assert_eq!(capabilities(Some(1 << CAP_SYS_ADMIN | 1 << CAP_NET_ADMIN)).status, Status::Ok);
        let strict = capabilities(Some(all & !(1 << CAP_PERFMON)));
        assert!(strict.status == Status::Fail && strict.finding.ends_with("CAP_PERFMON"));
        let none = capabilities(Some(0));
        assert_eq!(none.status, Status::Fail);
        assert!(none.finding.ends_with("CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON"), "{none:?}");
        assert!(none.remedy.is_some_and(|remedy| remedy.contains("setcap")));
    }

    #[test]
    fn a_taken_port_is_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let udp = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        let (tcp_addr, udp_addr) = (tcp.local_addr(), udp.local_addr());
        let control = tcp_addr.expect("it is bound");
        let data = udp_addr.expect("it is bound").port();
        for check in ports(control, data) {
            assert_eq!(check.status, Status::Fail, "{check:?}");
            assert!(check.finding.contains("in use"), "{check:?}");
        }
        drop((tcp, udp));
        assert!(ports(control, data).iter().all(|check| check.status == Status::Ok));
    }

    #[test]
    fn the_rest_of_the_host_is_judged() {
        assert_eq!(btf(false).status, Status::Fail);
        assert_eq!(unprivileged_bpf(Some("0")).status, Status::Warn);
        assert_eq!(unprivileged_bpf(Some("2")).status, Status::Ok);
        assert_eq!(rmem_max(Some(212_992)).status, Status::Warn);
        assert_eq!(rmem_max(Some(RMEM_WANTED)).status, Status::Ok);
        assert_eq!(own_workers(Some(false)).status, Status::Warn);
        assert_eq!(own_workers(Some(true)).status, Status::Ok);
        assert_eq!(own_workers(None).status, Status::Ok);
        assert_eq!(judge(&gather()).len(), 6);
    }
}
