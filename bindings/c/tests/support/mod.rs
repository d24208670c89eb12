//! What the tests of the C interface share: an installed library, compilers, a daemon, ranks.
#![expect(unreachable_pub, reason = "a module of a test program")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use xdp_agg_testbed::{DIRECTORY_VARIABLE, Finished, Process, without_settings};

/// Longest time that anything here may take: beyond it is a hang, which is a failure.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Warnings are errors.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// The library as a user has it: installed, found by pkg-config.
pub struct Installed {
    directory: TempDir,
}

impl Installed {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("there is room for it");
        let script = root().join("install.sh");
        let mut install = Command::new(script);
        install.env("FROM", built()).env("PREFIX", directory.path()).env("STATIC", "no");
        run(install.env_remove("DESTDIR"));
        Self { directory }
    }

    pub fn libraries(&self) -> PathBuf {
        self.directory.path().join("lib")
    }

    /// Compiles a program of `tests/programs` or `examples`: C99, or C++11 by its name.
    pub fn compile(&self, source: &str) -> PathBuf {
        let source = root().join(source);
        let program = self.directory.path().join(source.file_stem().expect("it has a name"));
        let is_c = source.extension().is_some_and(|extension| extension == "c");
        let (compiler, standard) = if is_c { ("cc", "-std=c99") } else { ("c++", "-std=c++11") };
        let mut compile = Command::new(compiler);
        compile.arg(standard).args(STRICT).args(["-g", "-pthread", "-o"]).arg(&program);
        run(compile.arg(source).args(self.flags()));
        program
    }

    /// What pkg-config says, or what it would say where it is not installed.
    fn flags(&self) -> Vec<String> {
        let mut ask = Command::new("pkg-config");
        ask.env("PKG_CONFIG_PATH", self.libraries().join("pkgconfig"));
        match ask.args(["--cflags", "--libs", "xdp-agg"]).output() {
            Ok(answer) => {
                let words = String::from_utf8_lossy(&answer.stderr);
                assert!(answer.status.success(), "pkg-config: {words}");
                let flags = String::from_utf8_lossy(&answer.stdout).into_owned();
                flags.split_whitespace().map(ToOwned::to_owned).collect()
            }
            Err(_) => {
                let root = self.directory.path().display();
                vec![format!("-I{root}/include"), format!("-L{root}/lib"), "-lxdp_agg".into()]
            }
        }
    }
}

/// A daemon on loopback; ends with this.
pub struct Daemon(xdp_agg_testbed::Daemon);

impl Daemon {
    pub fn start() -> Self {
        Self(xdp_agg_testbed::Daemon::userspace().expect("the daemon gets ready"))
    }

    /// Runs a program as each rank of a job; how it ended.
    pub fn ranks(
        &self,
        installed: &Installed,
        program: &Path,
        arguments: (&[&str], u16),
    ) -> Vec<Finished> {
        self.ranks_of_hosts(installed, program, arguments, 1)
    }

    /// The same, with hosts of `per_host` ranks.
    pub fn ranks_of_hosts(
        &self,
        installed: &Installed,
        program: &Path,
        (arguments, size): (&[&str], u16),
        per_host: u16,
    ) -> Vec<Finished> {
        let start = |rank: u16| {
            let mut command = without_settings(Command::new(program));
            command.args(arguments).env("LD_LIBRARY_PATH", installed.libraries());
            command.env("XDP_AGG_ADDR", self.0.control());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
            command.env("LOCAL_RANK", (rank % per_host).to_string());
            command.env("LOCAL_WORLD_SIZE", per_host.to_string());
            Process::spawn(format!("rank {rank}"), command).expect("it starts")
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.wait(LIMIT).expect("it ends in time")).collect()
    }

    /// The same; all of them have to say that they are done.
    pub fn all_done(&self, installed: &Installed, program: &Path, arguments: (&[&str], u16)) {
        self.ranks(installed, program, arguments).into_iter().for_each(is_done);
    }
}

/// It ended well, and said that it was done.
pub fn is_done(rank: Finished) {
    let rank = rank.success().unwrap_or_else(|error| panic!("{error}"));
    assert!(rank.stdout.contains("done"), "{rank:?}");
}

/// This package.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory with the library that cargo has built.
fn built() -> PathBuf {
    let directories: Vec<PathBuf> = match env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) => vec![directory.into()],
        None => {
            let own = env::current_exe().expect("this program has a path");
            own.ancestors().skip(2).take(1).map(PathBuf::from).collect()
        }
    };
    let found = directories.iter().find(|directory| directory.join("libxdp_agg.so").is_file());
    found.cloned().unwrap_or_else(|| {
        panic!(
            "libxdp_agg.so is not in {directories:?}: build it (`cargo build -p xdp-agg-c`) or set \
             {DIRECTORY_VARIABLE}"
        )
    })
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{words}", output.status);
}
