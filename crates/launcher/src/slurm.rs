//! SLURM's own forms: numbers for each node, and lists of hosts.

use super::{Error, Number, wrong};

/// Its name among the launchers.
pub(super) const NAME: &str = "SLURM";
/// Processes of each node: of the step, else as they were asked for.
pub(super) const TASKS: [&str; 2] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];
/// The number of this process's node.
const NODE: &str = "SLURM_NODEID";
/// Number of the step.
pub(super) const STEP: &str = "SLURM_STEP_ID";
/// The nodes: of the step, else of the whole job. Then the host on which `srun` runs.
pub(super) const HOSTS: [&str; 3] =
    ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"];

/// Processes of this node.
pub(super) fn tasks_here(
    text: impl Fn(&'static str) -> Result<Option<String>, Error>,
) -> Result<Option<Number>, Error> {
    let node: usize = text(NODE)?.and_then(|node| node.trim().parse().ok()).unwrap_or(0);
    for name in TASKS {
        if let Some(text) = text(name)? {
            return match tasks_of(text.trim(), node) {
                Some(value) => Ok(Some(Number { name, value })),
                None => {
                    let form = "a number of processes for each node, such as 4 or 2(x3),1";
                    wrong(name, &format!("{text:?} is not {form}, or has none for node {node}"))
                }
            };
        }
    }
    Ok(None)
}

/// A node's number in `2(x3),1`. One number alone holds for all nodes.
fn tasks_of(text: &str, node: usize) -> Option<u16> {
    if let Ok(all) = text.parse() {
        return Some(all);
    }
    let mut first_behind = 0_usize;
    for part in text.split(',') {
        let (number, times) = match part.trim().split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1),
        };
        let number = number.parse().ok()?;
        first_behind = first_behind.checked_add(times)?;
        if node < first_behind {
            return Some(number);
        }
    }
    None
}

/// The host that is named first.
pub(super) fn first_host(
    text: impl Fn(&'static str) -> Result<Option<String>, Error>,
) -> Result<Option<String>, Error> {
    for name in HOSTS {
        if let Some(list) = text(name)?.filter(|list| !list.trim().is_empty()) {
            return match first_of(list.trim()) {
                Some(host) => Ok(Some(host)),
                None => wrong(name, &format!("{list:?} is no list of hosts, such as n[01-04],m7")),
            };
        }
    }
    Ok(None)
}

/// `n01` of `n[01-04,09],m7`; several brackets are possible.
fn first_of(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            return (!host.is_empty() && !host.contains(']')).then_some(host);
        }
        let (numbers, behind) = rest[end + 1..].split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_are_read() {
        for (text, expected) in [
            ("4", [Some(4), Some(4), Some(4)]),
            ("2(x3),1", [Some(2), Some(2), Some(2)]),
            ("8,2", [Some(8), Some(2), None]),
            ("3(x2),1", [Some(3), Some(3), Some(1)]),
            ("2(x", [None; 3]),
            ("a(x2)", [None; 3]),
            ("2(x99999999999999999999)", [None; 3]),
        ] {
            assert_eq!([0, 1, 2].map(|node| tasks_of(text, node)), expected, "{text}");
        }
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, expected) in [
            ("n1", Some("n1")),
            ("gpu7,n[01-04]", Some("gpu7")),
            ("n[01-04,09],gpu7", Some("n01")),
            ("rack[2-3]-n[08,10].site", Some("rack2-n08.site")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("n[01", None),
            ("n[-1]", None),
            (",n1", None),
        ] {
            assert_eq!(first_of(list).as_deref(), expected, "{list}");
        }
    }
}
