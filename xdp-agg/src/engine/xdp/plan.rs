//! How a job's results go out: which mode its paths allow, and where each copy goes.

use xdp_agg_common::maps::{JobConf, Member, ResultMode};
use xdp_agg_protocol::sum;

use crate::engine::EngineError;

/// Where the copies of a job's results go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) mode: ResultMode,
    /// Interface of each copy, in the order in which they are made.
    pub(super) ifindexes: Vec<u32>,
    /// Port, number of the copy on this port, and the rank that it is for. Empty in multicast.
    pub(super) recipients: Vec<(u32, u32, u16)>,
}

/// Chooses the mode, or checks the wanted one, for members whose paths are all learned.
///
/// `port_of` numbers the served interfaces. `copies_differ` is false where all copies of a packet
/// share one memory, so that they cannot be addressed to one member each. `local` is the interface
/// of workers of this host.
pub(super) fn plan(
    members: &[(u16, Member)],
    port_of: impl Fn(u32) -> Option<u32>,
    wanted: Option<ResultMode>,
    (copies_differ, local): (bool, Option<u32>),
) -> Result<Plan, EngineError> {
    let shared = first_shared(members);
    let best = match shared {
        _ if !copies_differ && members.len() > 1 => ResultMode::Multicast,
        Some(_) => ResultMode::Fanout,
        None => ResultMode::Ports,
    };
    let mode = wanted.unwrap_or(best);
    if mode != ResultMode::Multicast && best == ResultMode::Multicast {
        return Err(misfit(
            mode,
            "generic XDP cannot address the copies of a packet one by one; multicast fits, or \
             interfaces whose driver takes native XDP"
                .into(),
        ));
    }
    if let (ResultMode::Ports, Some((one, two))) = (mode, shared) {
        return Err(misfit(
            mode,
            format!("ranks {one} and {two} are behind the same interface; fanout fits"),
        ));
    }
    if mode == ResultMode::Multicast {
        let here = |(_, member): &&(u16, Member)| Some(member.ifindex) == local;
        if let Some((rank, _)) = members.iter().find(here) {
            let why = format!(
                "rank {rank} is on the aggregator's own host, which a multicast does not reach; \
                 ports or fanout fit"
            );
            return Err(misfit(mode, why));
        }
        let mut ifindexes: Vec<u32> = members.iter().map(|(_, m)| m.ifindex).collect();
        ifindexes.sort_unstable();
        ifindexes.dedup();
        return Ok(Plan { mode, ifindexes, recipients: Vec::new() });
    }
    let mut recipients: Vec<(u32, u32, u16)> = Vec::with_capacity(members.len());
    for (rank, member) in members {
        let port = port_of(member.ifindex).ok_or(sum::Error::NoPath(*rank))?;
        let copy = recipients.iter().filter(|(other, ..)| *other == port).count();
        recipients.push((port, copy as u32, *rank));
    }
    let ifindexes = members.iter().map(|(_, member)| member.ifindex).collect();
    Ok(Plan { mode, ifindexes, recipients })
}

/// The group and port of a job's multicast results: what the job names, or an administratively
/// scoped group (RFC 2365). That group is made of index and cookie, so that jobs do not meet.
pub(super) fn group(job: u16, conf: &JobConf) -> (u32, u16) {
    let [a, b, ..] = conf.cookie.to_be_bytes();
    let group = match conf.group {
        0 => u32::from_be_bytes([239, 192 | a & 0x3f, b, job as u8]),
        named => named,
    };
    (group, if conf.group_port == 0 { conf.port } else { conf.group_port })
}

/// The first two ranks that are behind one interface.
fn first_shared(members: &[(u16, Member)]) -> Option<(u16, u16)> {
    members.iter().enumerate().find_map(|(behind, (two, member))| {
        let mut before = members[..behind].iter();
        before.find(|(_, other)| other.ifindex == member.ifindex).map(|(one, _)| (*one, *two))
    })
}

fn misfit(mode: ResultMode, why: String) -> EngineError {
    sum::Error::Mode { mode: mode.name(), why }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(ifindexes: &[u32]) -> Vec<(u16, Member)> {
        let member = |ifindex: &u32| Member { ifindex: *ifindex, ..Member::default() };
        (0..).zip(ifindexes.iter().map(member)).collect()
    }

    /// Interfaces 10, 11, 12, … are ports 0, 1, 2, …
    fn port_of(ifindex: u32) -> Option<u32> {
        ifindex.checked_sub(10)
    }

    #[test]
    fn a_port_for_each_member_is_ports() {
        let plan = plan(&behind(&[12, 10, 11]), port_of, None, (true, None)).expect("it fits");
        assert_eq!(plan.mode, ResultMode::Ports);
        assert_eq!(plan.ifindexes, [12, 10, 11]);
        assert_eq!(plan.recipients, [(2, 0, 0), (0, 0, 1), (1, 0, 2)]);
    }

    #[test]
    fn copies_on_one_port_are_numbered_in_the_order_of_the_device_map() {
        let plan = plan(&behind(&[10, 11, 10, 10]), port_of, None, (true, None)).expect("it fits");
        assert_eq!(plan.mode, ResultMode::Fanout);
        assert_eq!(plan.recipients, [(0, 0, 0), (1, 0, 1), (0, 1, 2), (0, 2, 3)]);
    }

    #[test]
    fn multicast_sends_one_packet_a_port() {
        let wanted = Some(ResultMode::Multicast);
        let plan = plan(&behind(&[11, 10, 11]), port_of, wanted, (true, None)).expect("it fits");
        assert_eq!(plan.ifindexes, [10, 11]);
        assert_eq!(plan.recipients, []);
        let own = plan_of_host(Some(ResultMode::Multicast)).expect_err("one is on this host");
        assert!(own.to_string().contains("rank 1 is on the aggregator's own host"), "{own}");
        let auto = plan_of_host(None).expect("copies of their own");
        assert_eq!(auto.mode, ResultMode::Ports);
    }

    /// Rank 1 is on the aggregator's host.
    fn plan_of_host(wanted: Option<ResultMode>) -> Result<Plan, EngineError> {
        plan(&behind(&[11, 12]), port_of, wanted, (true, Some(12)))
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let wanted = Some(ResultMode::Ports);
        let error =
            plan(&behind(&[11, 10, 11]), port_of, wanted, (true, None)).expect_err("shared");
        assert!(error.to_string().contains("ranks 0 and 2"), "{error}");
        let error = plan(&behind(&[11, 10]), port_of, wanted, (false, None)).expect_err("generic");
        assert!(error.to_string().contains("multicast fits"), "{error}");
        let auto = plan(&behind(&[11, 10]), port_of, None, (false, None)).expect("multicast");
        assert_eq!(auto.mode, ResultMode::Multicast);
        let alone =
            plan(&behind(&[11]), port_of, None, (false, None)).expect("one copy needs no sharing");
        assert_eq!(alone.mode, ResultMode::Ports);
    }

    #[test]
    fn an_interface_that_is_not_served_is_no_path() {
        let error = plan(&behind(&[10, 9]), port_of, None, (true, None)).expect_err("not served");
        assert!(matches!(error, EngineError::Sum(sum::Error::NoPath(1))), "{error}");
    }

    #[test]
    fn groups_are_scoped_and_differ_between_jobs() {
        let conf = JobConf { cookie: 0x1234_5678_9abc_def0, port: 7, ..JobConf::default() };
        assert_eq!(group(1, &conf), (0xefc0_0001 | 0x12_3400, 7));
        assert_ne!(group(1, &conf), group(2, &conf));
        let named = JobConf { group: 0xe000_0105, group_port: 9, ..conf };
        assert_eq!(group(1, &named), (0xe000_0105, 9));
    }
}
