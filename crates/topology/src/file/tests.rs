use xdp_agg_common::wire::MAX_WORKERS;

use super::*;
use crate::plan::Site;
use crate::units::Rate;

/// Two racks of two hosts each; line numbers matter to the tests.
const GOOD: &str = include_str!("good.toml");

#[test]
fn a_file_is_read_and_its_canonical_form_says_the_same() {
    let read = Topology::parse(GOOD).expect("it is right");
    assert_eq!(read.world(), 4);
    assert_eq!(read.hosts.iter().map(|host| host.rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(read.regions[0].uplink, Some(Rate::gbit(5)), "20 Gbit/s at 4:1");
    let aggregator = read.regions[1].aggregator.as_ref().expect("it is given");
    assert_eq!(aggregator.control.port(), CONTROL_PORT);
    assert_eq!(aggregator.slots, Some(512));
    assert_eq!(read.hosts[0].daemon, Some(SocketAddrV4::new(read.hosts[0].address, CONTROL_PORT)));
    assert_eq!(read.hosts[1].daemon.map(|at| at.port()), Some(9999));
    assert_eq!(read.hosts[3].daemon, None);
    for (site, name, port) in [
        (Site::Host(1), "a1", Some(9999)),
        (Site::Host(3), "b1", None),
        (Site::Region(1), "b", Some(CONTROL_PORT)),
        (Site::Region(0), "a", None),
    ] {
        assert_eq!(read.name_of(site), name);
        assert_eq!(read.control_of(site).map(|at| at.port()), port);
    }
    let printed = read.to_toml();
    let again = Topology::parse(&printed).expect("the canonical form is right");
    assert_eq!(again, read);
    assert_eq!(again.to_toml(), printed);
}

#[test]
fn measured_costs_are_kept_as_far_as_they_are_known() {
    let text = format!("{GOOD}[costs]\ntcp_byte = 4.5e-10\nmessage = 0.00002\n");
    let read = Topology::parse(&text).expect("it is right");
    let costs = KnownCosts { message: Some(2e-5), tcp_byte: Some(4.5e-10), ..Default::default() };
    assert_eq!(read.costs, costs);
    assert_eq!(Topology::parse(&read.to_toml()), Ok(read));
}

#[test]
fn uplinks_of_inner_regions_bound_what_the_outer_ones_offer() {
    let text = r#"
[[region]]
name = "rack"
parent = "pod"
oversubscription = 4.0
[[region]]
name = "pod"
oversubscription = 2.0
[[host]]
name = "h0"
rank = 0
address = "10.0.0.1"
region = "rack"
rate = "8gbit"
[[host]]
name = "h1"
rank = 1
address = "10.0.0.2"
region = "rack"
rate = "8gbit"
"#;
    let read = Topology::parse(text).expect("it is right");
    let uplinks: Vec<_> =
        read.regions.iter().map(|region| (region.name.as_str(), region.uplink)).collect();
    assert_eq!(uplinks, [("pod", Some(Rate::gbit(2))), ("rack", Some(Rate::gbit(4)))]);
    assert_eq!(read.regions[1].parent, Some(0));
}

/// What in [`GOOD`] is replaced by what, or has it put behind it (`+`); the line of the fault, and
/// what is said.
const BAD: &[(&str, &str, usize, &str)] = &[
    ("name = \"a\"\n", "+parent = \"a\"\n", 9, "\"a\" is inside itself: a -> a"),
    (
        "region = \"a\"\n[[host]]\nname = \"a1",
        "region = \"c\"\n[[host]]\nname = \"a1",
        25,
        "host \"a0\" cannot be reached: there is no region \"c\"",
    ),
    (
        "name = \"a\"\n",
        "+parent = \"core\"\n",
        9,
        "region \"a\" cannot be reached: there is no region \"core\"",
    ),
    ("rank = 3", "rank = 2", 34, "rank 2 is used twice, first in line 18"),
    ("rank = 3", "rank = 5", 34, "no host has rank 3; 4 hosts have the ranks 0 to 3"),
    ("rank = 3", "rank = -1", 34, "invalid value"),
    ("name = \"b1\"", "name = \"b0\"", 33, "host name b0 is used twice, first in line 17"),
    ("name = \"b1\"", "name = \"\"", 33, "expected a name without spaces"),
    ("name = \"b\"\n", "name = \"a\"\n", 11, "region name a is used twice, first in line 8"),
    ("10.0.0.4", "10.0.0.3", 35, "address 10.0.0.3 is used twice, first in line 19"),
    ("10.0.0.2:9999", "10.0.0.1:9870", 31, "control address 10.0.0.1:9870 is used twice"),
    (
        "daemon = false\n",
        "+interface = \"\"\n",
        38,
        "interface = \"\": expected an interface's name",
    ),
    ("daemon = false\n", "+interface = \"../eth0\"\n", 38, "without blanks"),
    ("daemon = false\n", "+interface = \"eth 0\"\n", 38, "without blanks"),
    ("daemon = false\n", "+interface = \"eth0:1\"\n", 38, "and colons"),
    ("daemon = false\n", "+interface = \"..\"\n", 38, "interface = \"..\""),
    ("rate = \"10gbit\"", "+\ninterface = \"sixteen-bytes-ab\"", 6, "1 to 15 bytes"),
    ("10.0.0.4", "+00", 35, "expected an IPv4 address"),
    ("10.0.0.4", "fe80::1%eth0", 35, "address = \"fe80::1%eth0\": expected an IPv4 address"),
    ("10.0.0.4", "0.0.0.0", 35, "address = \"0.0.0.0\": expected the address of one host"),
    ("10.0.0.4", "255.255.255.255", 35, "expected the address of one host"),
    ("10.0.0.4", "224.0.0.1", 35, "neither 0.0.0.0 nor multicast or broadcast"),
    ("10.0.0.254", "239.1.1.1:9870", 13, "aggregator = \"239.1.1.1:9870\": expected the address"),
    ("10.0.0.254", "+:0", 13, "expected a port from 1 to 65535; without one it is 9870"),
    ("10.0.0.2:9999", "10.0.0.2:0", 31, "expected a port"),
    ("10.0.0.254", "tor-b", 13, "expected an IPv4 address and a port"),
    ("rate = \"10gbit\"", "rate = \"0gbit\"", 5, "expected a number and a unit in lower case"),
    ("uplink = \"5gbit\"", "uplink = \"fast\"", 12, "uplink = \"fast\": expected a number and"),
    ("uplink = \"5gbit\"", "uplink = \"5Gbit\"", 12, "lower case (bit, kbit, mbit or gbit"),
    ("uplink = \"5gbit\"", "uplink = \"1e30gbit\"", 12, "at most 100000gbit"),
    ("rate = \"10gbit\"", "", 17, "`rate` is missing here and in [defaults]"),
    ("oversubscription = 4", "oversubscription = 0.5", 9, "over-subscribed 0.5:1, which cannot"),
    ("oversubscription = 4", "oversubscription = inf", 9, "which cannot be: it is no finite"),
    ("oversubscription = 4", "+\nuplink = \"9gbit\"", 9, "`uplink` = 9gbit beside it makes 2.22:1"),
    (
        "[[region]]\nname = \"b\"",
        "[[region]]\nname=\"c\"\noversubscription=2.0\n[[region]]\nname=\"b\"",
        12,
        "no host is in it",
    ),
    ("strategy = \"rat\"", "strategy = \"star\"", 3, "expected auto, colocated, rat"),
    ("[job]", "[jobs]", 2, "unknown field `jobs`"),
    ("rank = 3", "rnk = 3", 34, "unknown field `rnk`"),
    ("rank = 3\n", "", 32, "missing field `rank`"),
    ("rank = 3", "rank = ", 34, "docs/topology.md"),
    ("aggregator_slots = 512", "aggregator_slots = 0", 14, "expected at least 1"),
    ("oversubscription = 4", "+\naggregator_slots = 4", 10, "want an `aggregator`"),
    ("10.0.0.2:9999\"", "+\ndaemon = false", 31, "leave one of them out"),
    ("daemon = false\n", "+[measured]\nhosts = [\"zz\"]\nmbit = [[0]]\n", 38, "names host \"zz\""),
    ("daemon = false\n", "+[measured]\nhosts = [\"a0\"]\nmbit = []\n", 38, "`mbit` is not 1 x 1"),
    ("daemon = false\n", "+[measured]\nhosts = [\"a0\"]\nmbit = [[-1.0]]\n", 38, "has the rate -1"),
    ("daemon = false\n", "+[costs]\nmessage = 0\n", 39, "seconds above 0"),
    ("daemon = false\n", "+[costs]\ntcp_byte = 2.5\n", 39, "at most 1"),
    ("daemon = false\n", "+[costs]\nbyte = 1e-9\n", 39, "unknown field"),
    (
        "daemon = false\n",
        "+[measured]\nhosts=[\"a0\",\"a0\"]\nmbit=[[0,1],[1,0]]\n",
        38,
        "\"a0\" twice",
    ),
];

#[test]
fn every_fault_is_refused_with_its_line_and_the_reason() {
    for (what, with, line, said) in BAD {
        assert!(GOOD.contains(what), "{what}");
        let behind = with.strip_prefix('+').map(|more| format!("{what}{more}"));
        let bad = GOOD.replacen(what, behind.as_deref().unwrap_or(with), 1);
        let error = Topology::parse(&bad).expect_err(with);
        assert!(error.to_string().contains(said), "{with:?}: {error}");
        assert_eq!(error.line, *line, "{with:?}: {error}");
    }
}

#[test]
fn an_interface_that_does_not_exist_is_refused_with_its_line() {
    let text = GOOD.replace("[defaults]", "[defaults]\ninterface = \"eth0\"");
    let text =
        text.replace("daemon = false\n", "daemon = false\ninterface = \"fifteen-bytes-a\"\n");
    let file = TopologyFile::parse(&text).expect("it is right");
    let known = interfaces("Inter-|  Receive\n face |bytes\n    lo:  0  0\n wlan0: 7 1\n");
    assert_eq!(known, ["lo", "wlan0"]);
    for (rank, line, name) in [(0, 5, "\"eth0\" of host \"a0\""), (3, 39, "\"fifteen-bytes-a\"")] {
        let error = file.check_interface(rank, &known).expect_err(name);
        let said = error.to_string();
        assert_eq!(error.line, line, "{said}");
        assert!(said.contains(name) && said.contains("there are lo, wlan0"), "{said}");
    }
    assert_eq!(file.check_interface(0, &["eth0".into()]), Ok(()));
    let silent = TopologyFile::parse(GOOD).expect("it is right");
    assert_eq!(silent.check_interface(0, &known), Ok(()), "it names none");
}

#[test]
fn a_longer_cycle_is_shown_as_it_goes() {
    let region = |(name, parent)| format!("[[region]]\nname = \"{name}\"\nparent = \"{parent}\"\n");
    let cycle: String = [("x", "y"), ("y", "z"), ("z", "y")].map(region).concat();
    let error = Topology::parse(&format!("{GOOD}{cycle}")).expect_err("it is a cycle");
    assert!(error.to_string().contains("\"y\" is inside itself: y -> z -> y"), "{error}");
    assert_eq!(error.line, 46);
}

#[test]
fn a_rack_without_daemon_is_told_of() {
    let alone = GOOD.replace("aggregator = \"10.0.0.254\"\naggregator_slots = 512\n", "");
    let alone = alone.replace("address = \"10.0.0.3\"", "address = \"10.0.0.3\"\ndaemon = false");
    let ring = TopologyFile::parse(&alone.replace("\"rat\"", "\"ring\""));
    let ring = ring.expect("a ring needs none");
    for strategy in Strategy::ALL {
        let bare = ring.topology().bare_racks(strategy);
        if matches!(strategy, Strategy::Rat | Strategy::Rina) {
            assert_eq!(ring.check_agents(strategy), Ok(()), "{strategy}: rack a has daemons");
            let [bare] = &bare[..] else { panic!("{strategy}: {bare:?}") };
            assert_eq!((&*bare.region, bare.workers), ("b", 2));
            assert!(bare.to_string().contains("region \"b\" has 2 workers and no aggregator"));
        } else {
            assert_eq!(bare, [], "{strategy}");
        }
    }
    let passing = ring.check_agents(Strategy::Passing).expect_err("there are only daemons");
    assert_eq!(passing.line, 8, "where one can be given");
    let said = "line 8: strategy passing needs an aggregator; give a region an `aggregator`";
    assert_eq!(passing.to_string(), said);
    let none = alone.replace("[defaults]", "[defaults]\ndaemon = false");
    let none = none.replace("aggregator = \"10.0.0.2:9999\"\n", "");
    for strategy in ["passing", "colocated"] {
        let error = Topology::parse(&none.replace("\"rat\"", &format!("{strategy:?}")));
        let error = error.expect_err("nothing aggregates");
        assert_eq!(error.line, 3, "{error}");
        assert!(error.to_string().contains("needs an aggregator"), "{error}");
    }
}

#[test]
fn baselines_are_strategies_of_no_job() {
    for strategy in Strategy::ALL {
        let text = GOOD.replace("\"rat\"", &format!("\"{strategy}\""));
        let file = TopologyFile::parse(&text).expect("it is right");
        if matches!(strategy, Strategy::HAr | Strategy::Ring | Strategy::Ps) {
            let error = file.check_job().expect_err("it is a baseline");
            let said = error.to_string();
            assert!(said.starts_with(&format!("line 3: strategy {strategy} is a base")), "{said}");
            assert!(said.contains("expected auto, colocated, rat, rina, passing or atp"), "{said}");
            assert!(said.contains(&format!("`xdp-agg-bench --strategy {strategy}`")), "{said}");
        } else {
            assert_eq!(file.check_job(), Ok(()));
        }
    }
}

#[test]
fn racks_that_were_measured_are_told_of_too() {
    let host = |i: usize| {
        let daemon = if i < 3 { "" } else { "daemon = false\n" };
        let host = format!("[[host]]\nname = \"h{i}\"\nrank = {i}\naddress = \"10.0.1.{i}\"");
        format!("{host}\nrate = \"1gbit\"\n{daemon}")
    };
    let rate = |i: usize, j: usize| match (i == j, i / 3 == j / 3) {
        (true, _) => "0",
        (_, true) => "300",
        _ => "30",
    };
    let row = |i| (0..6).map(|j| rate(i, j)).collect::<Vec<_>>().join(",");
    let rows: Vec<_> = (0..6).map(|i| format!("[{}]", row(i))).collect();
    let names = "\"h0\",\"h1\",\"h2\",\"h3\",\"h4\",\"h5\"";
    let hosts: String = (0..6).map(host).collect();
    let text = format!("{hosts}[measured]\nhosts = [{names}]\nmbit = [{}]\n", rows.join(","));
    let file = TopologyFile::parse(&text).expect("it is right");
    assert_eq!(file.topology().clone().inferred().regions.len(), 2);
    let bare = file.topology().clone().inferred().bare_racks(Strategy::Rat);
    let [bare] = &bare[..] else { panic!("{bare:?}") };
    assert_eq!((&*bare.region, bare.workers, &*bare.host), ("measured1", 3, "h3"));
}

#[test]
fn a_job_has_its_limits() {
    let host = |i: usize| {
        format!(
            "[[host]]\nname = \"h{i}\"\nrank = {i}\naddress = \"10.0.1.{i}\"\nrate = \"1gbit\"\n"
        )
    };
    let hosts = |count| (0..count).map(host).collect::<String>();
    assert_eq!(Topology::parse(&hosts(MAX_WORKERS)).map(|read| read.world()), Ok(MAX_WORKERS));
    let large = Topology::parse_large(&hosts(MAX_WORKERS + 1));
    assert_eq!(large.map(|read| read.world()), Ok(MAX_WORKERS + 1));
    let error = Topology::parse(&hosts(MAX_WORKERS + 1)).expect_err("one too many");
    assert_eq!(error.line, MAX_WORKERS * 5 + 2);
    assert!(error.to_string().contains("65 hosts, but a job has at most 64"), "{error}");
    let error = Topology::parse("name = \"empty\"\n").expect_err("no hosts");
    assert_eq!(error.fault, Fault::NoHosts);
    let error = Topology::parse(&" ".repeat(MAX_BYTES + 1)).expect_err("too long");
    assert_eq!(error.fault, Fault::TooLong);
    assert!(error.to_string().contains("more than 1048576 bytes; one of 64 hosts"), "{error}");
    let regions: String =
        (0..=MAX_REGIONS).map(|i| format!("[[region]]\nname = \"r{i}\"\n")).collect();
    let error = Topology::parse(&(regions + &hosts(1))).expect_err("too many regions");
    assert_eq!(error.line, MAX_REGIONS * 2 + 2);
}

#[test]
fn no_more_is_read_than_may_be() {
    let endless = bounded(std::io::repeat(0)).expect("it ends");
    assert_eq!(endless.len(), MAX_BYTES + 1);
    let error = Topology::parse(&endless).expect_err("it is too long");
    assert_eq!(error.fault, Fault::TooLong);
    assert!(bounded(std::io::repeat(0xc3)).is_ok(), "too long is too long, text or not");
    assert_eq!(bounded(GOOD.as_bytes()).expect("it is text"), GOOD);
    let error = bounded(&b"name = \"\xff\""[..]).expect_err("it is no text");
    assert!(error.to_string().contains("no text"), "{error}");
}

#[test]
fn nothing_that_is_read_makes_it_panic() {
    // Every prefix, and every line left out.
    for end in 0..GOOD.len() {
        let _ = Topology::parse(&GOOD[..end]);
    }
    let lines: Vec<_> = GOOD.lines().collect();
    for left_out in 0..lines.len() {
        let some: Vec<_> = (0..lines.len()).filter(|i| *i != left_out).map(|i| lines[i]).collect();
        let _ = Topology::parse(&some.join("\n"));
    }
}
