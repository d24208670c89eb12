//! OpenMPI's all-reduce and broadcast over the same network, where OpenMPI is installed.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use xdp_agg_testbed::Process;

use super::files::scratch;
use super::lab::Lab;
use super::workers::Measured;

/// The benchmark, compiled where it is run.
const SOURCE: &str = include_str!("../peers/openmpi_bench.c");

/// An algorithm of OpenMPI's, and how it is asked for.
pub(crate) struct Algorithm {
    /// Of this collective, in the benchmark's words.
    collective: &'static str,
    /// Its name in tables.
    pub(crate) name: &'static str,
    parameters: &'static [(&'static str, &'static str)],
}

/// OpenMPI's own choice, with plain sends only: the fastest for short vectors here.
pub(crate) const DEFAULT: Algorithm =
    Algorithm { collective: "allreduce", name: "default", parameters: &[("btl_tcp_flags", "1")] };
/// The fastest two for long vectors.
pub(crate) const RING: Algorithm = Algorithm {
    collective: "allreduce",
    name: "ring",
    parameters: &[("coll_tuned_use_dynamic_rules", "1"), ("coll_tuned_allreduce_algorithm", "4")],
};
/// A ring over segments of 1 MiB.
pub(crate) const SEGMENTED_RING: Algorithm = Algorithm {
    collective: "allreduce",
    name: "segmented ring",
    parameters: &[
        ("coll_tuned_use_dynamic_rules", "1"),
        ("coll_tuned_allreduce_algorithm", "5"),
        ("coll_tuned_allreduce_algorithm_segmentsize", "1048576"),
        ("btl_tcp_flags", "1"),
    ],
};

/// Ways of MPI_Bcast: OpenMPI's own choice, a binomial tree, a pipelined chain, and scatter with an
/// all-gather round a ring.
pub(crate) const BROADCASTS: [Algorithm; 4] = [
    Algorithm { collective: "bcast", ..DEFAULT },
    Algorithm {
        collective: "bcast",
        name: "binomial",
        parameters: &[
            ("coll_tuned_use_dynamic_rules", "1"),
            ("coll_tuned_bcast_algorithm", "6"),
            ("btl_tcp_flags", "1"),
        ],
    },
    Algorithm {
        collective: "bcast",
        name: "pipeline 64K",
        parameters: &[
            ("coll_tuned_use_dynamic_rules", "1"),
            ("coll_tuned_bcast_algorithm", "3"),
            ("coll_tuned_bcast_algorithm_segmentsize", "65536"),
            ("btl_tcp_flags", "1"),
        ],
    },
    Algorithm {
        collective: "bcast",
        name: "scatter, ring",
        parameters: &[
            ("coll_tuned_use_dynamic_rules", "1"),
            ("coll_tuned_bcast_algorithm", "9"),
            ("btl_tcp_flags", "1"),
        ],
    },
];

/// OpenMPI on this machine, and the benchmark compiled with it.
pub(crate) struct OpenMpi {
    scratch: TempDir,
    program: PathBuf,
}

/// Where a program lies on the `PATH`.
fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl OpenMpi {
    /// Whether it is installed, with its compiler.
    pub(crate) fn is_installed() -> bool {
        on_path("mpirun") && on_path("mpicc")
    }

    /// Compiles the benchmark.
    pub(crate) fn prepare() -> Result<Self> {
        let scratch = scratch()?;
        let [source, program] = ["bench.c", "bench"].map(|name| scratch.path().join(name));
        fs::write(&source, SOURCE).context("writing the source of the MPI benchmark")?;
        let output = Command::new("mpicc")
            .args(["-O2", "-o"])
            .args([&program, &source])
            .output()
            .context("running mpicc")?;
        if !output.status.success() {
            bail!("mpicc failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self { scratch, program })
    }

    /// Measures one algorithm.
    pub(crate) fn run(
        &self,
        lab: &Lab,
        algorithm: &Algorithm,
        bytes: &[u64],
        (iters, warmup): (u32, u32),
        limit: Duration,
    ) -> Result<Vec<Measured>> {
        let agent = self.write_agent(lab)?;
        let hosts: Vec<String> = (0..usize::from(lab.plan().workers))
            .map(|i| format!("{}:{}", lab.topology().worker_addr(i), lab.plan().processes))
            .collect();
        let aggregator = lab.topology().aggregator_addr().octets();
        let network = format!("{}.{}.{}.0/24", aggregator[0], aggregator[1], aggregator[2]);
        let mut command = lab.topology().aggregator().command("mpirun");
        command.args(["--allow-run-as-root", "-np", &lab.plan().ranks().to_string()]);
        command.args(["--host", &hosts.join(","), "--bind-to", "none"]);
        let agent = agent.to_string_lossy();
        let scratch = self.scratch.path();
        for (name, value) in [
            ("plm", "rsh"),
            ("plm_rsh_agent", &*agent),
            ("plm_rsh_no_tree_spawn", "1"),
            ("oob", "tcp"),
            ("oob_tcp_if_include", &network),
            ("pml", "ob1"),
            ("btl", if lab.plan().processes > 1 { "tcp,vader,self" } else { "tcp,self" }),
            ("btl_tcp_if_include", &network),
            // More ranks than processors: let the others work while one waits.
            ("mpi_yield_when_idle", "1"),
            ("orte_tmpdir_base", &scratch.to_string_lossy()),
        ]
        .into_iter()
        .chain(algorithm.parameters.iter().copied())
        {
            command.args(["--mca", name, value]);
        }
        command.arg(&self.program).arg(algorithm.collective);
        command.args([iters.to_string(), warmup.to_string()]);
        command.args(bytes.iter().map(u64::to_string));
        let finished = Process::spawn("mpirun", command)?.wait(limit)?.success()?;
        let rows: Vec<Measured> = finished
            .stdout
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).context("a line of the MPI benchmark"))
            .collect::<Result<_>>()?;
        if rows.len() != bytes.len() {
            bail!("OpenMPI measured {} of {} sizes: {}", rows.len(), bytes.len(), finished.stdout);
        }
        Ok(rows)
    }

    /// Writes what mpirun calls instead of ssh. It starts a command in the host's namespace, with a
    /// host name of its own: ranks of one host would use its memory instead of the network.
    fn write_agent(&self, lab: &Lab) -> Result<PathBuf> {
        let mut script = String::from(
            "#!/bin/sh\nwhile case \"$1\" in -*) true ;; *) false ;; esac; do shift; done\n\
             host=$1\nshift\ncase $host in\n",
        );
        let process = std::process::id();
        for (i, worker) in lab.topology().workers().iter().enumerate() {
            let (address, fd) = (lab.topology().worker_addr(i), worker.as_fd().as_raw_fd());
            // Writing to a string does not fail.
            let _ = writeln!(script, "{address}) name=worker{i} net=/proc/{process}/fd/{fd} ;;");
        }
        script.push_str(
            "*) echo \"no host $host here\" >&2; exit 1 ;;\nesac\n\
             exec nsenter --net=\"$net\" unshare --uts sh -c \"hostname $name; $*\"\n",
        );
        let file = self.scratch.path().join("agent");
        write_executable(&file, &script)?;
        Ok(file)
    }
}

fn write_executable(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("making {} executable", file.display()))
}
