//! The image of `packaging/container/Containerfile`: built from the tarball, and run, by itself and
//! as the DaemonSet of `packaging/kubernetes` has a node run it.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::packages::{bare_debian, packages, repository};
use support::watched::{all_said, calls_of, check_none_failed, work};
use support::{LIMIT, Lab, check_sums, http, need_root, network};
use xdp_agg_testbed::steady::Line;
use xdp_agg_testbed::{BpfFs, Process};

/// As Go calls this processor.
const ARCH: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Images and containers in a directory of their own.
struct Buildah<'a>(&'a Path);

impl Buildah<'_> {
    /// With this command of buildah.
    fn add_to(&self, command: &mut Command, arguments: &[&str]) {
        command.env("STORAGE_DRIVER", "vfs").env("BUILDAH_ISOLATION", "chroot");
        command.arg("--root").arg(self.0.join("store")).arg("--runroot").arg(self.0.join("run"));
        command.args(arguments);
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("buildah");
        self.add_to(&mut command, arguments);
        let output = command.output().expect("buildah runs: apt-get install buildah");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "buildah {arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }
}

impl Drop for Buildah<'_> {
    fn drop(&mut self) {
        // What its driver has mounted would keep the directory.
        let mounts = self.0.join("store/overlay");
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(mounts).output();
    }
}

fn lab(workers: u16, engine: &'static str) -> Lab {
    Lab { topology: network(workers, "ports"), daemon: None, engine, extra: Vec::new() }
}

#[test]
fn the_image_serves_by_itself_and_as_a_daemon_set() {
    need_root!();
    let Some(root) = bare_debian() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let (_, tarball) = packages(out.path());
    let buildah = Buildah(out.path());
    build(&buildah, &root, &tarball);
    let container = buildah.run(&["from", "--pull-never", "localhost/xdp-agg"]);
    serves_without_privileges(&buildah, &container);
    let place = buildah.run(&["mount", &container]);
    serves_as_a_daemon_set(Path::new(&place), out.path());
}

fn build(buildah: &Buildah<'_>, root: &Path, tarball: &Path) {
    // Instead of the public image, which a test does not load: the same system.
    let base = buildah.run(&["from", "scratch"]);
    let place = buildah.run(&["mount", &base]);
    let mut copy = Command::new("cp");
    copy.args(["-a", "--reflink=auto", "-T"]).arg(root).arg(place);
    assert!(copy.status().expect("cp runs").success());
    buildah.run(&["commit", "--quiet", "--rm", &base, "bare"]);
    let file = repository().join("packaging/container/Containerfile").display().to_string();
    let name = tarball.file_name().expect("a name").to_string_lossy();
    let argument = format!("TARBALL={name}");
    let context = tarball.parent().expect("a directory").join("context");
    fs::create_dir(&context).expect("a directory");
    fs::rename(tarball, context.join(&*name)).expect("it is moved");
    let context = context.display().to_string();
    let fixed = ["build", "--quiet", "--pull-never", "--file", &file, "--tag", "xdp-agg"];
    let arguments = ["--build-arg", "BASE=localhost/bare", "--build-arg", &argument, &context];
    buildah.run(&[&fixed[..], &arguments].concat());
}

/// Its own user has no right at all, and workers are served.
fn serves_without_privileges(buildah: &Buildah<'_>, container: &str) {
    let id = buildah.run(&["run", container, "--", "id", "--user"]);
    assert_eq!(id, "65534");
    let mut lab = lab(2, "userspace");
    let mut daemon = lab.topology.aggregator().command("buildah");
    let (control, addr) = (lab.control().to_string(), lab.topology.aggregator_addr().to_string());
    let run = ["run", "--network", "host", container, "--", "/usr/bin/xdp-agg", "serve"];
    let serve = ["--engine", "userspace", "--control", &control, "--data-addr", &addr];
    buildah.add_to(&mut daemon, &[&run[..], &serve].concat());
    lab.daemon = Some(Process::serve("a container", daemon).expect("it gets ready"));
    let workers = lab.connect("contained", 2, |settings| settings);
    check_sums(&workers, 10_000);
    // As docs/install.md has its settings written.
    let settings = buildah.0.join("settings");
    fs::create_dir(&settings).expect("there is room");
    let volume = format!("{}:/etc/xdp-agg", settings.display());
    let mut init = lab.topology.aggregator().command("buildah");
    let run = ["run", "--network", "host", "--user", "0", "--volume", &volume, container, "--"];
    let options = ["/usr/bin/xdp-agg", "init", "--yes", "--pin", "/sys/fs/bpf/xdp-agg"];
    buildah.add_to(&mut init, &[&run[..], &options].concat());
    let wrote = init.output().expect("buildah runs");
    assert!(wrote.status.success(), "{}", String::from_utf8_lossy(&wrote.stderr));
    let text = fs::read_to_string(settings.join("config.toml")).expect("it was written");
    assert!(text.contains("\npin = \"/sys/fs/bpf/xdp-agg\"\n"), "{text}");
    let told = buildah.run(&["inspect", "--format", "{{.OCIv1.Config.Entrypoint}}", container]);
    assert_eq!(told, "[/usr/bin/xdp-agg]");
}

/// `daemon-set.yaml`, as far as a runtime is told of it.
struct DaemonSet(String);

impl DaemonSet {
    fn read() -> Self {
        let path = repository().join("packaging/kubernetes/daemon-set.yaml");
        Self(fs::read_to_string(path).expect("it is there"))
    }

    /// The values of all lines `key: value`.
    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.lines().map(|line| line.trim().trim_start_matches("- "));
        lines.filter_map(move |line| line.strip_prefix(key)?.strip_prefix(": "))
    }

    fn one(&self, key: &str) -> Value {
        let mut all = self.all(key);
        let value = all.next().unwrap_or_else(|| panic!("no {key}"));
        assert_eq!(all.next(), None, "two of {key}");
        serde_json::from_str(value).unwrap_or_else(|_| panic!("{key}: {value}"))
    }

    /// Where kubelet asks, for each of the probes: an address and a path.
    fn probes(&self) -> Vec<(SocketAddr, String)> {
        let (_, named) = self.0.split_once("name: http\n").expect("a port of that name");
        let port = named.lines().find_map(|line| line.trim().strip_prefix("containerPort: "));
        let port = port.expect("a number");
        let probe = |text: &str| {
            let field = |key: &str| {
                let (_, rest) = text.split_once(key).unwrap_or_else(|| panic!("no {key} {text}"));
                rest.trim_end_matches('}').split(',').next().expect("a word").trim().to_owned()
            };
            assert_eq!(field("port:"), "http");
            (format!("{}:{port}", field("host:")).parse().expect("an address"), field("path:"))
        };
        self.all("httpGet").map(probe).collect()
    }
}

/// What containerd and Docker allow a container with these capabilities: the list of Debian's
/// package, which is older, and lets `CAP_SYS_ADMIN` alone call `bpf`.
fn runtime_default() -> Value {
    let text = fs::read_to_string("/usr/share/containers/seccomp.json");
    let all: Value = serde_json::from_str(&text.expect("it comes with buildah")).expect("JSON");
    let mut rules = vec![json!({"names": ["bpf", "perf_event_open"], "action": "SCMP_ACT_ALLOW"})];
    for rule in all["syscalls"].as_array().expect("a list") {
        let includes = &rule["includes"];
        let arches = includes["arches"].as_array();
        let is_here = arches.is_none_or(|all| all.contains(&json!(ARCH)));
        if rule["action"] == "SCMP_ACT_ALLOW" && includes["caps"].is_null() && is_here {
            let (names, args) = (&rule["names"], &rule["args"]);
            rules.push(json!({"names": names, "action": "SCMP_ACT_ALLOW", "args": args}));
        }
    }
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": rules})
}

/// A pod's container, run by `runc` as kubelet's runtime would: in the network of the node, with
/// what the manifest says and no more.
struct Pods<'a> {
    lab: &'a Lab,
    bundle: PathBuf,
}

impl Pods<'_> {
    fn spec(set: &DaemonSet, root: &Path, mounts: &[(&str, &Path, bool)]) -> Value {
        let capability = |name: &Value| format!("CAP_{}", name.as_str().expect("a name"));
        let added = set.one("add");
        let added: Vec<_> = added.as_array().expect("a list").iter().map(capability).collect();
        assert_eq!(set.one("drop"), json!(["ALL"]));
        let more = set.one("allowPrivilegeEscalation") == true;
        let user = set.one("runAsUser");
        let mut args = vec![json!("/usr/bin/xdp-agg")];
        args.extend(set.one("args").as_array().expect("a list").iter().cloned());
        let mut all = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
            json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
                   "options": ["nosuid", "noexec", "nodev", "ro"]}),
        ];
        for (to, from, writes) in mounts {
            assert!(set.all("mountPath").any(|path| path == *to), "{to} is not mounted");
            let options = ["rbind", if *writes { "rw" } else { "ro" }];
            all.push(json!({"destination": to, "type": "bind", "source": from,
                            "options": options}));
        }
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": user}, "args": args, "cwd": "/",
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "capabilities": {"bounding": added, "effective": added, "permitted": added},
                "noNewPrivileges": !more,
            },
            "root": {"path": root, "readonly": set.one("readOnlyRootFilesystem") == true},
            "mounts": all,
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"},
                               {"type": "mount"}],
                "seccomp": runtime_default(),
            },
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.lab.topology.aggregator().command("runc");
        command.arg("--root").arg(self.bundle.join("runc")).args(arguments);
        command.current_dir(&self.bundle);
        command
    }

    fn start(&self, name: &str) -> Process {
        Process::serve(name, self.command(&["run", name])).expect("it gets ready")
    }

    /// As kubelet ends it.
    fn end(&self, name: &str, process: Process) {
        let told = self.command(&["kill", name, "TERM"]).output().expect("runc runs");
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        process.wait(LIMIT).expect("it ends").success().expect("it ends in order");
    }
}

/// The pod serves workers by XDP, its probes answer where the manifest says, and a pod that takes
/// its place goes on with its jobs.
fn serves_as_a_daemon_set(root: &Path, out: &Path) {
    let bpffs = BpfFs::mount().expect("a BPF file system");
    let lab = lab(2, "xdp");
    let set = DaemonSet::read();
    let dir = |name: &str| {
        let path = out.join(name);
        fs::create_dir(&path).expect("there is room");
        path
    };
    let (config, secret, state, bundle) = (dir("config"), dir("secret"), dir("state"), dir("pod"));
    // The ConfigMap, with the node's interfaces, and the Secret.
    let map = repository().join("packaging/kubernetes/config.yaml");
    let map = fs::read_to_string(map).expect("it is there");
    let (_, settings) = map.split_once("config.toml: |\n").expect("the settings are there");
    let interfaces = json!(lab.topology.aggregator_interfaces()).to_string();
    let settings = settings.replace("[\"eth0\"]", &interfaces);
    fs::write(config.join("config.toml"), settings).expect("there is room");
    let token = secret.join("token");
    fs::write(&token, "of-the-cluster").expect("there is room");
    fs::set_permissions(&token, PermissionsExt::from_mode(0o400)).expect("it is ours");
    let pins = bpffs.pins();
    let node = pins.parent().expect("a directory");
    let mounts = [
        ("/etc/xdp-agg", &*config, false),
        ("/etc/xdp-agg-secret", &secret, false),
        ("/sys/fs/bpf", node, true),
        ("/run/xdp-agg", &state, true),
    ];
    let spec = Pods::spec(&set, root, &mounts);
    fs::write(bundle.join("config.json"), spec.to_string()).expect("there is room");
    let pods = Pods { lab: &lab, bundle };

    let first = pods.start("first");
    let probes = set.probes();
    assert_eq!(probes.len(), 3);
    let answered = || {
        let asked = probes.iter().map(|(at, path)| http::get(lab.topology.aggregator(), *at, path));
        asked.map(|answer| answer.is_some()).collect::<Vec<_>>()
    };
    let start = Instant::now();
    while answered() != [true; 3] {
        assert!(start.elapsed() < LIMIT, "{probes:?}: {}", first.last_words());
        sleep(Duration::from_millis(50));
    }
    let token = [("XDP_AGG_TOKEN", "of-the-cluster"), ("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];
    let workers = lab.steady_job("pods", 2, &token, &work());
    pods.end("first", first);
    assert_eq!(answered(), [false; 3], "nobody is there");
    calls_of(&workers, Instant::now(), 0b11, LIMIT);
    let second = pods.start("second");
    calls_of(&workers, Instant::now(), 0b11, LIMIT);
    let said = all_said(&workers);
    let anew = |line: &Line| matches!(line, Line::Call { reforms: 1.., .. });
    assert!(!said.iter().flatten().any(|(_, line)| anew(line)), "the epoch goes on");
    check_none_failed(&said);
    drop(workers);
    pods.end("second", second);
}
