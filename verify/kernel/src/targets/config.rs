//! Settings: the daemon's file, and the worker's environment.
//!
//! An input is read as both: as a TOML file, and line by line as `NAME=value`. What reads them are
//! the aggregator and the worker library, sockets and all: the results are their own settings.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use xdp_agg::config::{Partial, Settings};
use xdp_agg::engine::EngineKind;
use xdp_agg_client::Builder;
use xdp_agg_common::slot::Pool;

use xdp_agg_fuzz::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "config",
    about: "the daemon's configuration file and the worker's environment",
    run,
    text: true,
    tokens: include_str!("../../../fuzz/dictionaries/config.txt"),
    features: &FEATURES,
};

const FEATURES: [&str; 6] = [
    "a file",
    "a file that is complete",
    "refused: no such file",
    "refused: a value",
    "an environment",
    "refused: an environment",
];

fn run(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let text = String::from_utf8_lossy(input);
    match toml::from_str::<Partial>(&text) {
        Ok(mut partial) => {
            outcome.note(0);
            // Files of others' names are not to be touched from here.
            partial.token_file = None;
            (partial.tls_cert, partial.tls_key, partial.tls_client_ca) = (None, None, None);
            partial.state_dir = Some(std::env::temp_dir());
            // Over itself nothing changes.
            let words = format!("{partial:?}");
            assert_eq!(format!("{:?}", partial.clone().over(partial.clone())), words);
            assert_eq!(format!("{:?}", partial.clone().over(Partial::default())), words);
            match partial.complete() {
                Ok(settings) => {
                    outcome.note(1);
                    outcome.accepted = true;
                    check(&settings);
                }
                Err(error) => {
                    outcome.note(3);
                    assert!(error.to_string().contains(": "), "{error}");
                }
            }
        }
        Err(error) => {
            outcome.note(2);
            assert!(!error.to_string().is_empty());
        }
    }
    environment(&text, &mut outcome);
    outcome
}

/// What the rest of the daemon relies on.
fn check(settings: &Settings) {
    let Settings { engine, server, .. } = settings;
    assert!(Pool::new(server.job_slots).is_some() && server.job_slots <= engine.slots);
    assert!(engine.slots <= 1 << 20, "more memory than anybody has");
    assert!(engine.data_port != 0 || engine.kind == EngineKind::Userspace);
    assert!(!server.join_timeout.is_zero() && !server.probe_timeout.is_zero());
    let second = Duration::from_secs(1);
    assert!(server.patience.0.is_none_or(|time| time >= second / 10));
    assert!(!server.resume_timeout.is_zero());
    assert!(server.job_packet_rate.is_none_or(|rate| (1..=1_000_000_000).contains(&rate)));
    assert!(server.job_slots_max.is_none_or(|most| server.job_slots <= most));
    assert!(server.state.is_some() == engine.pin.is_some());
    assert!(engine.mtu.is_none_or(|mtu| (114..=65_535).contains(&mtu)));
}

fn environment(text: &str, outcome: &mut Outcome) {
    let mut values = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
        values.insert(name.trim(), value);
    }
    values.remove("XDP_AGG_TOKEN_FILE");
    // Names of hosts would be asked for on the network.
    if values.get("XDP_AGG_ADDR").is_some_and(|value| !is_numeric(value)) {
        values.remove("XDP_AGG_ADDR");
    }
    match Builder::from_lookup(|name| values.get(name).map(|value| (*value).to_owned())) {
        Ok(builder) => {
            assert!(!format!("{builder:?}").is_empty());
            if values.keys().any(|name| name.starts_with("XDP_AGG_") || *name == "RANK") {
                outcome.note(4);
                outcome.accepted = true;
            }
        }
        Err(error) => {
            outcome.note(5);
            assert!(!error.to_string().is_empty());
        }
    }
}

/// An address, with or without something that is to be its port.
fn is_numeric(value: &str) -> bool {
    let host = value.rsplit_once(':').map_or(value, |(host, _)| host);
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}
