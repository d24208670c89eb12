//! Children of a test end with it, whatever ends it, and networks end with their process.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg_testbed::{Namespace, Process, Sink, Topology, is_root, need_root};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_secs(20);
const NETLAB: &str = env!("CARGO_BIN_EXE_xdp-agg-netlab");

/// Waits until something holds, or fails.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "still not so after {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// True while the process runs (a zombie does not).
fn runs(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

fn shell(namespace: &Namespace, script: &str) -> Command {
    let mut command = namespace.command("sh");
    command.args(["-c", script]);
    command
}

/// A network whose process is killed with SIGKILL takes everything with it: its end of a veth pair
/// into a namespace of ours disappears, which happens when the kernel has destroyed the namespace.
#[test]
fn a_killed_process_leaves_no_network() -> TestResult {
    need_root!(Ok(()));
    let ours = Namespace::new("observer")?;
    for _ in 0..2 {
        let mut command = Command::new(NETLAB);
        let tether = format!("/proc/{}/fd/{}", std::process::id(), ours.as_fd().as_raw_fd());
        command.args(["--workers", "2", "--rate", "100mbit", "--loss", "0.1", "--tether", &tether]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut lines = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().ok_or("it has a pipe")?);
        while !lines.ends_with("ready\n") {
            assert_ne!(std::io::BufRead::read_line(&mut output, &mut lines)?, 0, "it has ended");
        }
        assert!(ours.interfaces()?.contains(&"tether".to_owned()));
        child.kill()?;
        child.wait()?;
        eventually("the network is gone", || ours.interfaces().is_ok_and(|names| names == ["lo"]));
    }
    // Names are free, and so is everything else: the next one can be built.
    Topology::builder().build()?;
    Ok(())
}

#[test]
fn an_ordinary_user_builds_a_network_in_a_user_namespace() -> TestResult {
    let mut command = Command::new(NETLAB);
    command.args(["--workers", "3", "--rate", "100mbit", "--unprivileged"]);
    // Where an ordinary user can reach it.
    let copy = readable_copy()?;
    if is_root() {
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(copy.join("xdp-agg-netlab"));
        command.args(arguments).uid(65_534).gid(65_534).current_dir("/");
    }
    command.process_group(0);
    // Its standard input is empty: it ends as soon as the network is there.
    let finished = Process::spawn("netlab", command)?.wait(LIMIT)?;
    if finished.stderr.contains("does not let ordinary users") {
        eprintln!("skipped: {}", finished.stderr);
        return Ok(());
    }
    let finished = finished.success()?;
    assert!(finished.stdout.ends_with("ready\n"), "{}", finished.stdout);
    assert!(finished.stdout.contains("10.88.0.3 on eth0"), "{}", finished.stdout);
    Ok(())
}

/// A directory that is gone when this is dropped.
struct Directory(PathBuf);

impl Directory {
    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that stays behind harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn readable_copy() -> Result<Directory, std::io::Error> {
    let path = std::env::temp_dir().join(format!("xdp-agg-netlab-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    let directory = Directory(path);
    std::fs::copy(NETLAB, directory.join("xdp-agg-netlab"))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&directory.0, mode)?;
    Ok(directory)
}

#[test]
fn a_command_runs_in_its_namespace() -> TestResult {
    need_root!(Ok(()));
    let net = Topology::builder().wire(false).build()?;
    let process = Process::spawn("cat", shell(net.worker(1), "cat /proc/net/route /proc/net/dev"))?;
    let finished = process.wait(LIMIT)?.success()?;
    assert!(finished.stdout.contains("eth0"), "{}", finished.stdout);
    assert!(!finished.stdout.contains("br0"), "{}", finished.stdout);
    Ok(())
}

#[test]
fn a_failure_shows_what_the_child_said() -> TestResult {
    need_root!(Ok(()));
    let namespace = Namespace::new("failing")?;
    let script = "seq 100; echo the reason >&2; exit 3";
    let finished = Process::spawn("counter", shell(&namespace, script))?.wait(LIMIT)?;
    assert_eq!(finished.stdout.lines().count(), 100);
    let error = finished.success().expect_err("it exits with 3").to_string();
    for part in ["counter failed", "exit status: 3", "the reason", "\n  81\n", "\n  100"] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    assert!(!error.contains("\n  80\n"), "too much of its output: {error}");
    let missing = Process::spawn("nobody", namespace.command("/no/such/program"));
    let error = missing.expect_err("there is no such program").to_string();
    assert!(error.contains("nobody") && error.contains("/no/such/program"), "{error}");
    Ok(())
}

#[test]
fn waiting_has_an_end() -> TestResult {
    need_root!(Ok(()));
    let namespace = Namespace::new("waiting")?;
    let process = Process::spawn("talker", shell(&namespace, "echo one; echo two; sleep 600"))?;
    let line = process.wait_line("a line with w", LIMIT, |line| line.contains('w'))?;
    assert_eq!(line, "two");
    let short = Duration::from_millis(50);
    let error = process.wait_line("a third line", short, |line| line == "three");
    let error = error.expect_err("it sleeps").to_string();
    assert!(error.contains("has not said in 50ms: a third line"), "{error}");
    assert!(error.contains("two"), "{error}");
    let error = process.wait(short).expect_err("it sleeps").to_string();
    assert!(error.contains("has not ended in 50ms"), "{error}");
    let process = Process::spawn("silent", shell(&namespace, "exit 0"))?;
    let error = process.wait_line("anything", LIMIT, |_| true).expect_err("it ends").to_string();
    assert!(error.contains("has ended without saying: anything"), "{error}");
    Ok(())
}

#[test]
fn a_dropped_process_and_its_children_are_dead() -> TestResult {
    need_root!(Ok(()));
    let namespace = Namespace::new("parent")?;
    let process = Process::spawn("parent", shell(&namespace, "sleep 600 & echo $!; wait"))?;
    let grandchild: u32 = process.wait_line("a process id", LIMIT, |_| true)?.parse()?;
    let pid = process.pid();
    assert!(runs(pid) && runs(grandchild));
    drop(process);
    assert!(!runs(pid));
    eventually("the grandchild is dead", || !runs(grandchild));
    Ok(())
}

#[test]
fn a_child_outlives_the_thread_that_spawned_it() -> TestResult {
    need_root!(Ok(()));
    let namespace = Namespace::new("orphan")?;
    let command = shell(&namespace, "sleep 0.3; echo alive");
    let process = thread::spawn(move || Process::spawn("orphan", command))
        .join()
        .map_err(|_| "the thread panicked")??;
    assert_eq!(process.wait(LIMIT)?.success()?.stdout, "alive\n");
    Ok(())
}

#[test]
fn lines_are_handed_on_as_they_come() -> TestResult {
    need_root!(Ok(()));
    let namespace = Namespace::new("lines")?;
    let (sender, lines) = mpsc::channel();
    let hook = Sink::Lines(Box::new(move |line| drop(sender.send(line.to_owned()))));
    let command = shell(&namespace, "echo first; sleep 600");
    let process = Process::spawn_with("lines", command, hook, Sink::Capture)?;
    assert_eq!(lines.recv_timeout(LIMIT)?, "first");
    let finished = process.terminate()?;
    assert!(!finished.status.success());
    assert_eq!(finished.stdout, "first\n");
    Ok(())
}
