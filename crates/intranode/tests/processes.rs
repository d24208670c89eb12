//! The group among real processes: each is this program again, running [`child`].

mod common;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Running, job, options, sum};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal};
use xdp_agg_intranode::add::add;
use xdp_agg_intranode::csc::Csc;
use xdp_agg_intranode::{Backing, Error, Group, Options};

const SEGMENT: usize = 4 << 20;

/// What a child is to do.
const ROLE: &str = "HOST_TEST_ROLE";

/// Not a test by itself: what the other processes run.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let text = |name: &str| std::env::var(name).ok();
    let (rank, size) = (number("RANK").expect("a rank"), number("SIZE").expect("a size"));
    let mut options = options(&text("JOB").expect("a job"), rank, size);
    options.segment = SEGMENT;
    if let Some(seconds) = number("JOIN_WITHIN") {
        options.join_within = Duration::from_secs(seconds as u64);
    }
    if let Some(directory) = text("PLACE") {
        options.backing = Backing::Directory(PathBuf::from(directory));
    }
    let outcome = Group::join(&options).and_then(|group| {
        say("joined");
        match role.as_str() {
            "calls" => calls(&group),
            "forever" => forever(&group),
            "leave" => leave(&group),
            "hold" => hold(),
            other => panic!("no role {other}"),
        }
    });
    match outcome {
        Ok(()) => say("ok"),
        Err(error) => say(&format!("{error:?}")),
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nSAYS {text}").and_then(|()| out.flush()).expect("a pipe");
}

/// Several calls at a time, with random delays, and collectives between them.
fn calls(group: &Arc<Group>) -> Result<(), Error> {
    let mut random = SmallRng::seed_from_u64(group.local_rank() as u64);
    let mut csc = Csc::new(group, 1 << 20)?;
    for round in 0..6 {
        let lengths = [10, 20_000, 250_001].map(|len| len + round);
        let mut running = Vec::new();
        for (i, len) in lengths.into_iter().enumerate() {
            let sequence = (round * 10 + i) as u64;
            running.push(loop {
                match Running::begin(group, sequence, len, 352) {
                    Err(Error::Busy { .. }) => std::thread::yield_now(),
                    begun => break (begun?, len),
                }
            });
            std::thread::sleep(Duration::from_micros(random.random_range(0..2000)));
        }
        while !running.is_empty() {
            let mut done = Vec::new();
            for (i, (call, _)) in running.iter_mut().enumerate() {
                if call.turn()?.1 {
                    done.push(i);
                }
            }
            for i in done.into_iter().rev() {
                let (call, len) = running.swap_remove(i);
                assert!(call.data == sum(call.sequence, group.local_size(), len), "a wrong sum");
            }
        }
        let mut data: Vec<u8> = (0..70_000_i32).flat_map(i32::to_ne_bytes).collect();
        csc.all_reduce(&mut data, 4, &mut add::<i32>)?;
        let n = group.local_size() as i32;
        assert!(common::elements(&data).eq((0..70_000).map(|i| i * n)), "a wrong sum");
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let shared = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("RssShmem");
    let shared: usize = shared.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(shared << 10 <= SEGMENT, "{shared} KiB are shared");
    Ok(())
}

/// Calls and collectives until something goes wrong.
fn forever(group: &Arc<Group>) -> Result<(), Error> {
    let mut csc = Csc::new(group, 1 << 20)?;
    for sequence in 0.. {
        let call = loop {
            match Running::begin(group, sequence, 100_000, 352) {
                Err(Error::Busy { .. }) => std::thread::yield_now(),
                begun => break begun?,
            }
        };
        assert!(call.finish()? == sum(sequence, group.local_size(), 100_000), "a wrong sum");
        let mut output = vec![0; 300_000 * group.local_size()];
        csc.all_gather(&vec![1; 300_000], &mut output)?;
        group.barrier()?;
    }
    Ok(())
}

/// Local rank 1 leaves in good order after a while.
fn leave(group: &Arc<Group>) -> Result<(), Error> {
    for sequence in 0.. {
        if group.local_rank() == 1 && sequence == 20 {
            return Ok(());
        }
        Running::begin(group, sequence, 10_000, 352)?.finish()?;
    }
    Ok(())
}

/// Stays until the other end of its input closes.
fn hold() -> Result<(), Error> {
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

/// A child that is killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(role: &str, job: &str, rank: usize, size: usize, set: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().expect("this program");
        Self::run(Command::new(program), role, job, rank, size, set)
    }

    fn run(
        mut command: Command,
        role: &str,
        job: &str,
        rank: usize,
        size: usize,
        set: &[(&str, &str)],
    ) -> Self {
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env("JOB", job).envs(set.iter().copied());
        command.env("RANK", rank.to_string()).env("SIZE", size.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().expect("a child"))
    }

    fn all(role: &str, job: &str, size: usize, set: &[(&str, &str)]) -> Vec<Self> {
        (0..size).map(|rank| Self::start(role, job, rank, size, set)).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("a living child");
    }

    /// The last thing it says, when it has ended.
    fn last_words(mut self) -> String {
        let mut text = String::new();
        drop(self.0.stdin.take());
        let out = self.0.stdout.as_mut().expect("a pipe");
        out.read_to_string(&mut text).expect("text");
        let says = text.lines().filter_map(|line| line.strip_prefix("SAYS ")).next_back();
        says.unwrap_or(&text).to_owned()
    }

    fn wait_till_joined(&mut self) {
        let mut text = String::new();
        let out = self.0.stdout.as_mut().expect("a pipe");
        let mut byte = [0];
        while !text.ends_with("SAYS joined") {
            assert_eq!(out.read(&mut byte).expect("text"), 1, "it ended: {text}");
            text.push(char::from(byte[0]));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has ended, as a rule.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a group of this name can be made: the name is free.
fn can_form(job: &str) {
    let start = Instant::now();
    let threads = [0, 1].map(|rank| {
        let options: Options = options(job, rank, 2);
        std::thread::spawn(move || Group::join(&options).map(drop))
    });
    for thread in threads {
        thread.join().expect("a thread").expect("the name is free");
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn calls_and_collectives_among_processes() {
    for size in 1..=4 {
        let processes = Process::all("calls", &job(), size, &[]);
        for process in processes {
            assert_eq!(process.last_words(), "ok");
        }
    }
}

/// Kills each rank at random moments; the others notice, and nothing stays behind.
#[test]
fn a_killed_process_is_noticed_by_all() {
    let mut random = SmallRng::seed_from_u64(7);
    let shm = "/dev/shm";
    let free = || rustix::fs::statvfs(shm).expect("a tmpfs").f_bfree;
    let before = free();
    for round in 0..12 {
        let (size, victim) = (3, round % 3);
        let job = job();
        let place = [("PLACE", shm)];
        let mut processes =
            Process::all("forever", &job, size, if round % 2 == 0 { &place } else { &[] });
        if round < 9 {
            processes.iter_mut().for_each(Process::wait_till_joined);
        }
        // In the later rounds: even while the group is being made.
        std::thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
        let killed = processes.remove(victim);
        killed.signal(Signal::KILL);
        let start = Instant::now();
        for process in processes {
            let words = process.last_words();
            let expected = format!("PeerLost {{ local_rank: {victim},");
            let in_time = start.elapsed() < Duration::from_secs(1);
            if round < 9 {
                assert!(words.starts_with(&expected), "{victim} was killed: {words}");
                assert!(in_time, "{words} after {:?}", start.elapsed());
            } else {
                // A process that never came cannot be told from one that is late.
                assert!(words.contains("PeerLost") || words.contains("Deadline"), "{words}");
            }
        }
        drop(killed);
        can_form(&job);
    }
    // Others may use /dev/shm too; what twelve segments would take is seen all the same.
    let gone = before.saturating_sub(free()) * 4096;
    assert!(gone < 3 * SEGMENT as u64, "{gone} bytes of {shm} are still taken");
}

#[test]
fn a_stopped_process_is_waited_for() {
    for victim in 0..2 {
        let mut processes = Process::all("calls", &job(), 2, &[]);
        processes.iter_mut().for_each(Process::wait_till_joined);
        processes[victim].signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(700));
        processes[victim].signal(Signal::CONT);
        for process in processes {
            assert_eq!(process.last_words(), "ok");
        }
    }
}

#[test]
fn leaving_is_not_dying() {
    let processes = Process::all("leave", &job(), 3, &[]);
    for (rank, process) in processes.into_iter().enumerate() {
        let words = process.last_words();
        if rank == 1 {
            assert_eq!(words, "ok");
            continue;
        }
        // The one that notices first gives the call up, and says why to the other.
        let left = "local rank 1 left the group";
        assert!(words == "PeerLeft { local_rank: 1 }" || words.contains(left), "{rank}: {words}");
    }
}

#[test]
fn a_mismatch_is_told_to_all() {
    let cases = [
        // (rank, size) of each.
        ([(0, 3), (1, 3), (2, 4)], ["local_size (LOCAL_WORLD_SIZE) 3", "(LOCAL_WORLD_SIZE) 4"]),
        ([(0, 3), (1, 3), (1, 3)], ["local rank 1 is process", "has local rank 1 too"]),
        ([(0, 2), (0, 2), (1, 2)], ["local rank 0 is process", "has local rank 0 too"]),
    ];
    for (who, expected) in cases {
        let job = job();
        let set = [("JOIN_WITHIN", "5")];
        let processes: Vec<_> = who
            .iter()
            .map(|&(rank, size)| Process::start("hold", &job, rank, size, &set))
            .collect();
        let words: Vec<_> = processes.into_iter().map(Process::last_words).collect();
        let told = |words: &String| {
            words.starts_with("Mismatch") && expected.iter().all(|part| words.contains(part))
        };
        if who[1].0 == 0 && words.iter().any(|words| words == "ok") {
            // The other two were complete before the second leader came: it has to give up.
            assert_eq!(words.iter().filter(|words| *words == "ok").count(), 2, "{words:#?}");
            continue;
        }
        assert!(words.iter().all(told), "{who:?}: {words:#?}");
    }
}

#[test]
fn who_does_not_come_is_named() {
    let job = job();
    let set = [("JOIN_WITHIN", "1")];
    let start = Instant::now();
    let processes = [0, 2].map(|rank| Process::start("hold", &job, rank, 4, &set));
    for process in processes {
        let words = process.last_words();
        assert!(words.contains("Deadline") && words.contains("waiting_for: [1, 3]"), "{words}");
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn a_name_in_use_is_an_error() {
    let job = job();
    let mut first = Process::all("hold", &job, 2, &[]);
    first.iter_mut().for_each(Process::wait_till_joined);
    let set = [("JOIN_WITHIN", "2")];
    for process in Process::all("hold", &job, 2, &set) {
        let words = process.last_words();
        let pid = first[0].0.id();
        assert!(words.contains("NameInUse") && words.contains(&format!("pid: {pid}")), "{words}");
    }
    for process in first {
        assert_eq!(process.last_words(), "ok", "the first group is as it was");
    }
    can_form(&job);
}

/// A tmpfs of 1 MiB, in a mount namespace of its own.
#[test]
fn a_full_directory_is_an_error_at_all() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("a plain name");
    let job = job();
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=1m none \"$PLACE\" && exec \"$0\" \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(program);
    let set = [("PLACE", place), ("JOIN_WITHIN", "10")];
    let start = Instant::now();
    let processes =
        [Process::run(command, "hold", &job, 0, 2, &set), Process::start("hold", &job, 1, 2, &set)];
    let words = processes.map(Process::last_words);
    assert!(words[0].starts_with("NoSpace") && words[0].contains(place), "{words:?}");
    assert!(words[1].contains("no room for a shared segment of 4194304 bytes"), "{words:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
