//! Tests of the settings.

use super::*;

fn file(text: &str) -> Result<Partial, ConfigError> {
    toml::from_str(text)
        .map_err(|source| ConfigError::Toml { path: "test.toml".into(), source: Box::new(source) })
}

#[test]
fn a_file_says_what_the_flags_say() {
    let all = "interface = ['p0', 'p1']\nengine = 'xdp'\nxdp-mode = 'generic'\n\
               control = '10.0.0.254:9000'\ndata-addr = '10.0.0.254'\ndata-port = 5000\n\
               slots = 64\njob-slots = 8\nmtu = 1500\njoin-timeout = 5\n\
               join-timeout-max = 50\nprobe-timeout = 6\n\
               log = 'debug'\nresume-timeout = 7\ndead-after = 1\nstraggler-timeout = 2.5\n\
               silent-timeout = 20\njob-slots-max = 16\njob-packet-rate = 1000\n\
               local-addr = '169.254.7.7'\n";
    let settings = file(all).and_then(Partial::complete).expect("all of it is right");
    assert_eq!(settings.control.to_string(), "10.0.0.254:9000");
    assert_eq!(settings.engine.interfaces, ["p0", "p1"]);
    assert_eq!((settings.engine.slots, settings.server.job_slots), (64, 8));
    assert_eq!(settings.engine.xdp_mode, XdpMode::Generic);
    let local = LocalAddr::At(Ipv4Addr::new(169, 254, 7, 7));
    assert_eq!(settings.engine.local_addr, local);
    let server = settings.server;
    assert_eq!(server.probe_timeout, Duration::from_secs(6));
    assert_eq!(server.join_timeout_max, Duration::from_secs(50));
    assert_eq!(server.resume_timeout, Duration::from_secs(7));
    assert_eq!(server.patience, Patience(Some(Duration::from_secs(1))));
    assert_eq!(server.straggler_timeout, Some(Duration::from_millis(2500)));
    assert_eq!(server.silent_timeout, Some(Duration::from_secs(20)));
    assert_eq!((server.job_slots_max, server.job_packet_rate), (Some(16), Some(1000)));
}

#[test]
fn an_unknown_key_is_named() {
    let error = file("slots = 64\ndata_prot = 5000\n").expect_err("there is no such key");
    let text = error.to_string();
    for word in ["data_prot", "line 2", "data-port", "test.toml"] {
        assert!(text.contains(word), "{word:?} is missing in {text}");
    }
}

#[test]
fn what_lies_above_wins() {
    let above = Partial { slots: Some(16), ..Partial::default() };
    let below = Partial { slots: Some(64), job_slots: Some(4), ..Partial::default() };
    let both = above.over(below);
    assert_eq!((both.slots, both.job_slots), (Some(16), Some(4)));
}

#[test]
fn values_out_of_range_are_named_with_what_is_expected() {
    let cases = [
        ("slots = 1", "slots = 1: 2 to"),
        ("job-slots = 12", "job-slots = 12: a power of two"),
        ("slots = 8\njob-slots = 16", "from 2 to 8"),
        ("mtu = 113", "mtu = 113: 114 to"),
        ("data-addr = '0.0.0.0'", "data-addr = 0.0.0.0: one address"),
        ("local-addr = '127.0.0.1'", "local-addr = 127.0.0.1: an address that nobody has"),
        ("vlan = 4095", "vlan = 4095: 1 to 4094"),
        ("data-addr = '::1'", "over IPv4 only"),
        ("local-addr = 'fe80::1%eth0'", "over IPv4 only"),
        ("data-port = 0", "--engine userspace"),
        ("join-timeout = 0", "join-timeout = 0: 1 to"),
        ("probe-timeout = 90000", "probe-timeout = 90000: 1 to"),
        ("resume-timeout = 0", "resume-timeout = 0: 1 to"),
        ("dead-after = 0", "dead-after = 0: 0.1 to 3600"),
        ("dead-after = nan", "dead-after = NaN: 0.1 to 3600"),
        ("silent-timeout = -1", "silent-timeout = -1: 0.1 to 3600"),
        ("straggler-timeout = -1", "straggler-timeout = -1: 0.1 to 3600"),
        ("job-slots-max = 1", "job-slots-max = 1: 2 to 8192"),
        ("job-slots-max = 16\njob-slots = 32", "from 2 to 16 (job-slots-max)"),
        ("job-packet-rate = 2000000000", "job-packet-rate = 2000000000: 0 (no limit)"),
        ("keep-on-exit = true", "--pin"),
        ("pin = 'here'", "pin = here: an absolute path"),
        ("pin = '/sys/fs/bpf/x'\nengine = 'userspace'", "nothing to pin"),
        ("pin = '/sys/fs/bpf/x'\nstate-dir = '/proc/none'", "state-dir = /proc/none"),
        ("token-file = '/none'", "token-file: cannot read /none (No such file"),
    ];
    for (text, words) in cases {
        let error = file(text).and_then(Partial::complete).expect_err(text);
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}

#[test]
fn a_small_pool_shrinks_the_default_of_a_job() {
    let settings = file("slots = 100").and_then(Partial::complete).expect("it is right");
    assert_eq!(settings.server.job_slots, 64);
}

#[test]
fn an_open_control_port_is_told_of() {
    let openness = |text: &str| {
        let settings = file(text).and_then(Partial::complete).expect("it is right");
        settings.openness()
    };
    let told = openness("").expect("it listens everywhere");
    assert!(told.contains("0.0.0.0:9870") && told.contains("--token-file"), "{told}");
    assert!(openness("control = '10.0.0.254:9000'").is_some());
    assert_eq!(openness("control = '127.0.0.1:9000'"), None);
    assert_eq!(openness("control = '[::1]:9000'"), None);
    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "s3cret").expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, private).expect("it is ours");
    assert_eq!(openness(&format!("token-file = '{}'", token.display())), None);
    // A certificate of the daemon's own keeps nobody out; that of its clients does.
    let authority = xdp_agg_tls::testing::Authority::new("openness");
    let server = authority.issue("localhost", xdp_agg_tls::testing::Valid::Now);
    let (certificate, key) = (server.certificate.display(), server.key.display());
    let tls = format!("tls-cert = '{certificate}'\ntls-key = '{key}'\n");
    assert!(openness(&tls).is_some());
    let asks = format!("{tls}tls-client-ca = '{}'\n", authority.ca.display());
    assert_eq!(openness(&asks), None);
}

#[test]
fn what_only_a_restart_changes_is_known() {
    let of = |text: &str| file(text).expect("it is right");
    let before = of("slots = 64\njob-slots = 8\ntoken-file = 'old'");
    let anew = "token-file = 'new'\ntls-cert = 'c'\ntls-key = 'k'\ntls-client-ca = 'a'\n\
                tls-branch-ca = 'b'\njob-slots = 4\njob-slots-max = 8\njob-packet-rate = 9\n";
    assert!(before.needs_restart(&of(&format!("slots = 64\n{anew}"))).is_empty());
    for (other, names) in [
        ("slots = 128", &["slots"][..]),
        ("slots = 64\ncontrol = '127.0.0.1:1'", &["control"]),
        ("dead-after = 7\nkeep-on-exit = true", &["slots", "dead-after", "keep-on-exit"]),
    ] {
        assert_eq!(before.needs_restart(&of(&format!("{other}\n{anew}"))), names, "{other}");
    }
}
