//! What comes with the packages: the default settings, the scripts of SLURM, and what crates.io
//! would be given.

mod support;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::packages::repository;
use support::{Lab, check_sums, need_root, network};
use xdp_agg::config::Partial;
use xdp_agg_testbed::program;

fn packaging(name: &str) -> String {
    let path = repository().join("packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads settings as the daemon does.
fn settings(text: &str) -> Result<Partial, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), text).expect("it is written");
    Partial::from_file(file.path()).map_err(|error| error.to_string())
}

/// `#key = value` without the `#`, of each setting in the file.
fn commented(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
    lines.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

/// As delivered, the file sets nothing. Each line may be set as it stands, and no setting lacks.
#[test]
fn the_default_settings_explain_every_key() {
    let text = packaging("config.toml");
    assert_eq!(settings(&text), Ok(Partial::default()));
    let lines = commented(&text);
    let all = settings(&lines.join("\n")).expect("each line is a setting");
    assert_ne!(all, Partial::default());
    // The error of an unknown key lists the known ones.
    let error = settings("no-such-key = 1").expect_err("there is no such key");
    let (_, known) = error.split_once("expected one of").expect("a list");
    let known: BTreeSet<&str> =
        known.split('`').skip(1).step_by(2).take_while(|key| !key.contains(' ')).collect();
    let told: BTreeSet<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(told.len(), lines.len(), "a key stands there twice");
    let missing: Vec<_> = known.difference(&told).collect();
    assert!(missing.is_empty(), "packaging/config.toml does not explain {missing:?}");
}

/// The settings in the ConfigMap are such that the daemon takes.
#[test]
fn the_settings_for_kubernetes_are_settings() {
    let text = packaging("kubernetes/config.yaml");
    let (_, block) = text.split_once("config.toml: |\n").expect("the settings are there");
    let settings = settings(block).expect("the daemon takes them");
    assert!(settings.interface.is_some() && settings.token_file.is_some());
    let daemon = packaging("kubernetes/daemon-set.yaml");
    for directory in [settings.pin, settings.token_file].into_iter().flatten() {
        let mounted = directory.parent().expect("a directory").display().to_string();
        assert!(daemon.contains(&format!("mountPath: {mounted}\n")), "{mounted} is not mounted");
    }
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).current_dir(repository()).args(arguments).output();
    let Output { status, stdout, stderr } = output.expect("cargo runs");
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

/// What crates.io asks for, and what it could not build: the full trial is
/// `cargo xtask package --publish`.
#[test]
fn published_crates_depend_on_published_ones_alone() {
    let text = cargo(&["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let metadata: Value = serde_json::from_str(&text).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let name = |package: &Value| package["name"].as_str().expect("a name").to_owned();
    let is_published = |package: &&Value| package["publish"].is_null();
    let published: BTreeSet<String> = packages.iter().filter(is_published).map(name).collect();
    assert!(published.contains("xdp-agg-cli") && published.contains("xdp-agg-client"));
    for package in packages {
        let path = package["manifest_path"].as_str().expect("a path");
        let own = Path::new(path).strip_prefix(repository()).expect("in the repository");
        let ships = ["crates", "client", "xdp-agg"].iter().any(|wing| own.starts_with(wing));
        assert_eq!(is_published(&package), ships, "{}: `publish`", own.display());
    }
    for package in packages.iter().filter(is_published) {
        let name = name(package);
        for key in ["description", "license", "rust_version"] {
            assert!(package[key].is_string(), "{name} has no {key}");
        }
        // From the one place in which the publisher writes them.
        let own = fs::read_to_string(package["manifest_path"].as_str().expect("a path"));
        let own = own.expect("it is read");
        for key in ["authors", "repository"] {
            let inherits = own.contains(&format!("\n{key}.workspace = true\n"));
            assert!(inherits, "{name}: `{key}` is that of the workspace");
        }
        assert_ne!(package["keywords"], Value::Array(Vec::new()), "{name} has no keywords");
        for dependency in package["dependencies"].as_array().expect("a list") {
            // Those of tests are left out where they have no version.
            let (to, kind) = (dependency["name"].as_str(), dependency["kind"].as_str());
            let wanted = dependency["req"].as_str();
            if dependency["path"].is_null() || (kind == Some("dev") && wanted == Some("*")) {
                continue;
            }
            let to = to.expect("a name");
            assert!(published.contains(to), "{name} needs {to}, which is not published");
            let version = format!("^{}", package["version"].as_str().expect("a version"));
            assert_eq!(wanted, Some(&*version), "{name}, of {to}: Cargo.toml of the workspace");
        }
    }
    // The kernel program comes along, compiled.
    let list = ["package", "--list", "--allow-dirty", "--offline", "--package", "xdp-agg"];
    assert!(cargo(&list).contains("bpf/xdp-agg.bpfel.o"));
}

/// Files of this release that documents and manifests name are called as they are made.
#[test]
fn documents_and_manifests_name_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let files = [
        ("docs/install.md", 8),
        ("packaging/container/Containerfile", 3),
        ("packaging/kubernetes/daemon-set.yaml", 1),
    ];
    for (file, least) in files {
        let text = fs::read_to_string(repository().join(file)).expect("it is there");
        let parts = text.split("xdp-agg").skip(1).filter_map(|rest| {
            let rest = rest.strip_prefix([':', '_', '-'])?;
            rest.starts_with(|c: char| c.is_ascii_digit()).then_some(rest)
        });
        let named: Vec<&str> = parts.collect();
        assert!(named.len() >= least, "{file}: {named:?}");
        for rest in named {
            let rest = rest.split_whitespace().next().unwrap_or("");
            assert!(rest.starts_with(version), "{file} names xdp-agg {rest}, this is {version}");
        }
    }
}

/// Runs one of SLURM's scripts on the aggregator's host, as a job's step would have it run.
fn slurm(lab: &Lab, script: &str, variables: &[(&str, &str)]) -> Output {
    let program = program("xdp-agg").expect("the tests' programs are built");
    let directory = program.parent().expect("a directory").display();
    let mut command = lab.topology.aggregator().command("sh");
    command.arg(repository().join("packaging/slurm").join(script)).env_clear();
    command.env("PATH", format!("{directory}:/usr/bin:/bin")).envs(variables.iter().copied());
    command.output().expect("sh runs")
}

/// The prolog tells a step its aggregator and a name of its own. The epilog ends what a job has
/// left, and no other's.
#[test]
fn slurm_names_and_cleans() {
    need_root!();
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    fs::write(&token, "of-the-cluster").expect("it is written");
    let chmod = Command::new("chmod").arg("600").arg(&token).status().expect("it runs");
    assert!(chmod.success());
    let token = token.display().to_string();
    let lab = Lab::start_with(network(2, "ports"), "userspace", &["--token-file", &token]);
    let file = directory.path().join("slurm.env");
    let addr = lab.topology.aggregator_addr();
    fs::write(&file, format!("XDP_AGG_ADDR={addr}\nXDP_AGG_TOKEN=of-the-cluster\n"))
        .expect("written");
    let file = file.display().to_string();
    let step = |job: &str, id: &str, more: &[(&str, &str)]| {
        let job = [("XDP_AGG_SLURM_ENV", &*file), ("SLURM_JOB_ID", job), ("SLURM_STEP_ID", id)];
        let done = slurm(&lab, "prolog.sh", &[&job[..], more].concat());
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    let told = step("77", "0", &[]);
    let expected = format!(
        "export XDP_AGG_ADDR={addr}\nexport XDP_AGG_TOKEN=of-the-cluster\n\
         export XDP_AGG_JOB=slurm-77.0\n"
    );
    assert_eq!(told, expected);
    // What the user has set stays; without the file nothing is told.
    let own = [("XDP_AGG_ADDR", "10.9.9.9"), ("XDP_AGG_JOB", "mine"), ("XDP_AGG_TOKEN", "t")];
    assert_eq!(step("77", "1", &own), "");
    let none = [("XDP_AGG_SLURM_ENV", "/no/such/file"), ("SLURM_JOB_ID", "77")];
    assert!(slurm(&lab, "prolog.sh", &none).stdout.is_empty());

    // Two jobs, of which one's number begins like the other's.
    let own = told.lines().find_map(|line| line.strip_prefix("export XDP_AGG_JOB="));
    let running = lab.connect(own.expect("a name"), 2, |worker| worker.token("of-the-cluster"));
    let other = lab.connect("slurm-771.0", 2, |worker| worker.token("of-the-cluster"));
    check_sums(&running, 1000);
    let epilog = |job: &str| {
        let job = [("XDP_AGG_SLURM_ENV", &*file), ("SLURM_JOB_ID", job)];
        let done = slurm(&lab, "epilog.sh", &job);
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stderr).expect("text")
    };
    let said = epilog("77");
    assert!(said.contains("slurm-77.0 was left"), "{said}");
    let mut values = vec![1i32; 1000];
    let error = running[0].all_reduce(&mut values, xdp_agg_client::Op::Sum).expect_err("it ended");
    assert!(!error.to_string().is_empty());
    check_sums(&other, 1000);
    assert_eq!(epilog("77"), "", "nothing is left");
    check_sums(&other, 1000);
    assert!(epilog("771").contains("slurm-771.0 was left"));
}
