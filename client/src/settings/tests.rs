//! Tests of the settings.

use std::collections::BTreeSet;
use std::sync::Mutex;

use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_quantize::simd;

use super::*;

fn with(pairs: &'static [(&'static str, &'static str)]) -> Result<Builder, Error> {
    Builder::from_lookup(|name| {
        pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn launchers_are_understood() {
    let builder = with(&[
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("XDP_AGG_ADDR", "127.0.0.1"),
        ("XDP_AGG_DEADLINE", "0.5"),
        ("XDP_AGG_RESULT_MODE", "fanout"),
        ("XDP_AGG_CONGESTION", "aimd"),
    ])
    .expect("all is well");
    let place = builder.place().expect("set");
    assert_eq!((place.rank, place.world_size, place.local_size), (3, 4, 1));
    assert_eq!(builder.aggregators[0].address, ([127, 0, 0, 1], CONTROL_PORT).into());
    assert_eq!(builder.deadline, Duration::from_millis(500));
    assert_eq!(builder.result_mode, Some(ResultMode::Fanout));
    assert_eq!(builder.congestion, Congestion::Aimd);
    assert_eq!(with(&[]).expect("all is well").congestion, Congestion::Tolerant);
}

#[test]
fn what_follows_a_loss_is_understood() {
    let builder = with(&[
        ("XDP_AGG_ON_WORKER_LOSS", "shrink"),
        ("XDP_AGG_ON_AGGREGATOR_LOSS", "ring"),
        ("XDP_AGG_FALLBACK_AFTER", "0.5"),
        ("XDP_AGG_TOKEN", "secret"),
    ])
    .expect("all is well");
    assert_eq!(builder.policy.worker_loss, WorkerLoss::Shrink);
    assert_eq!(builder.policy.aggregator_loss, AggregatorLoss::Ring);
    assert_eq!(builder.fallback_after, Duration::from_millis(500));
    assert_eq!(builder.dead_after_or_default(), Duration::from_secs(10));
    assert_eq!(builder.token, Some(Token("secret".into())));
    assert!(!format!("{builder:?}").contains("secret"));
    assert_eq!(Builder::default().dead_after_or_default(), Duration::from_secs(30));
}

#[test]
fn nonsense_is_named() {
    for (pairs, words) in [
        (&[("RANK", "first")][..], "RANK: \"first\""),
        (&[("XDP_AGG_DEADLINE", "-1")][..], "XDP_AGG_DEADLINE"),
        (&[("XDP_AGG_RESULT_MODE", "carrier pigeon")][..], "ports, fanout, multicast"),
        (&[("XDP_AGG_CONGESTION", "reno")][..], "tolerant, aimd"),
        (&[("XDP_AGG_ADDR", "10.0.0.1:port")][..], "host:port"),
        (&[("XDP_AGG_STRATEGY", "rat")][..], "set XDP_AGG_TOPOLOGY"),
        (&[("XDP_AGG_ON_WORKER_LOSS", "panic")][..], "fail, shrink"),
        (&[("XDP_AGG_ON_AGGREGATOR_LOSS", "panic")][..], "fail, resume, ring"),
        (&[("XDP_AGG_TOKEN_FILE", "/does/not/exist")][..], "cannot read"),
    ] {
        let error = with(pairs).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// The table of the guide has each variable, and no other.
#[test]
fn the_guide_lists_the_settings() {
    let guide = include_str!("../../../docs/guide.md");
    let table = guide.lines().filter(|line| line.starts_with("| `"));
    let names = table.flat_map(|line| line.split(" | ").next().unwrap_or(line).split('`'));
    let in_guide: BTreeSet<_> = names.filter(|name| name.starts_with("XDP_AGG_")).collect();
    let asked =
        Mutex::new(BTreeSet::from([simd::VARIABLE, "XDP_AGG_PRECISION", "XDP_AGG_EXACT_UP_TO"]));
    Builder::from_lookup(|name| {
        asked.lock().expect("no panic").insert(name);
        None
    })
    .expect("nothing is set");
    let mut in_code = asked.into_inner().expect("no panic");
    in_code.retain(|name| name.starts_with("XDP_AGG_"));
    assert_eq!(in_guide, in_code);
}

#[test]
fn places_are_checked() {
    let place = |rank, size| Builder::default().rank(rank).world_size(size).place();
    assert!(place(0, 0).is_err());
    assert!(place(0, 65).is_err());
    assert!(place(4, 4).is_err());
    assert!(place(63, 64).is_ok());
    assert!(Builder::default().rank(0).place().is_err());
}

#[test]
fn processes_of_a_host_are_one_worker() {
    let place = |rank, world, local, size| {
        Builder::default().rank(rank).world_size(world).local(local, size).place()
    };
    let found = place(6, 8, 2, 4).expect("it fits");
    assert_eq!((found.host, found.hosts, found.local_rank, found.local_size), (1, 2, 2, 4));
    // More than a job has workers, but not more hosts.
    assert!(place(255, 256, 3, 4).is_ok());
    for (rank, world, local, size, words) in [
        (0, 6, 0, 4, "LOCAL_WORLD_SIZE: 4 processes on this host in a world of 6"),
        (0, 4, 0, 0, "LOCAL_WORLD_SIZE: 0 processes"),
        (1, 4, 2, 2, "LOCAL_RANK: 2, with LOCAL_WORLD_SIZE=2"),
        (1, 4, 0, 2, "LOCAL_RANK: 0 of 2 on host 0 is not rank 1"),
    ] {
        let error = place(rank, world, local, size).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let own = Builder::default().rank(1).world_size(6).local(0, 4).in_host(false);
    assert_eq!(own.place().expect("each for itself").hosts, 6);
}

#[test]
fn numbers_are_understood() {
    let scaled = with(&[("XDP_AGG_SCALE", "1e8"), ("XDP_AGG_LANES", "16")]).expect("it is well");
    assert_eq!(scaled.scaling, Scaling::Fixed(1e8));
    assert_eq!(scaled.lanes, Some(LaneWidth::W16));
    let block = with(&[("XDP_AGG_SCALING", "block")]).expect("it is well");
    assert_eq!(block.scaling, Scaling::Block);
    for pairs in [
        &[("XDP_AGG_SCALING", "fixed")][..],
        &[("XDP_AGG_LANES", "8")][..],
        &[("XDP_AGG_IN_HOST", "yes")][..],
    ] {
        let error = with(pairs).expect_err("nonsense").to_string();
        assert!(error.contains(pairs[0].0), "{error}");
    }
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let builder = Builder::default().rank(0).world_size(1).scale(scale);
        let error = builder.connect().expect_err("no scale").to_string();
        assert!(error.contains("scale of"), "{error}");
    }
}

#[test]
fn transports_are_understood() {
    assert_eq!(with(&[]).expect("none").transport, Transport::Auto);
    for transport in Transport::ALL {
        let named = |name| (name == "XDP_AGG_TRANSPORT").then(|| transport.to_string());
        let builder = Builder::from_lookup(named).expect("a name");
        assert_eq!(builder.transport, transport);
    }
    let error = with(&[("XDP_AGG_TRANSPORT", "xsk")]).expect_err("no such one").to_string();
    assert!(error.contains("XDP_AGG_TRANSPORT") && error.contains("auto, udp, af_xdp"), "{error}");
}

#[test]
fn several_aggregators_are_understood() {
    let builder = with(&[("XDP_AGG_ADDR", "127.0.0.1:1000, 127.0.0.2")]).expect("it is well");
    let addresses: Vec<_> = builder.aggregators.iter().map(|target| target.address).collect();
    let expected = [([127, 0, 0, 1], 1000).into(), ([127, 0, 0, 2], CONTROL_PORT).into()];
    assert_eq!(addresses, expected);
    let twice = with(&[("XDP_AGG_ADDR", "127.0.0.1,127.0.0.1")]).expect("it is well");
    let error = twice.rank(0).world_size(1).connect().expect_err("twice").to_string();
    assert!(error.contains("named twice"), "{error}");
}

/// In a process of its own: the environment is one for all tests.
#[test]
fn unknown_instructions_are_told_at_the_start() {
    const CHILD: &str = "XDP_AGG_TEST_OF_SIMD";
    if std::env::var_os(CHILD).is_some() {
        // Nobody listens there: a wrong setting is refused before any connection.
        let builder = with(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("XDP_AGG_ADDR", "127.0.0.1:1")]);
        let error = builder.expect("all is well").connect().expect_err("no such level");
        assert!(matches!(&error, Error::Config { name: "XDP_AGG_SIMD", .. }), "{error}");
        assert!(error.to_string().contains("choose portable, avx2 or avx512"), "{error}");
        return;
    }
    let test = "settings::tests::unknown_instructions_are_told_at_the_start";
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test])
        .envs([(CHILD, "1"), ("XDP_AGG_SIMD", "sse9")])
        .output()
        .expect("the same program again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
