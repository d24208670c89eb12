//! PyTorch's launcher on every host of a network: one agent and one process a host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use xdp_agg_testbed::{LinkMeter, Process, Sink};

use super::files::read_json;
use super::lab::{Lab, Plan, wait_all};

/// Port of the agents' store on host 0: not the one that the processes meet at.
const STORE: u16 = 29_400;
/// The interpreter that has torch and this package, as `cargo xtask` found it.
const PYTHON: &str = "XDP_AGG_PYTHON";

/// A script that runs on all hosts.
pub(crate) struct Script<'a> {
    /// Where it lies in the repository.
    pub(crate) path: &'a str,
    pub(crate) arguments: Vec<String>,
    /// What PyTorch calls the system: `xdp-agg` or `gloo`.
    pub(crate) backend: &'a str,
    pub(crate) limit: Duration,
    /// Host 0's words go to our standard error.
    pub(crate) shown: bool,
}

/// The interpreter.
pub(crate) fn interpreter() -> Result<PathBuf> {
    match std::env::var_os(PYTHON) {
        Some(path) => Ok(path.into()),
        None => bail!(
            "{PYTHON} is not set: the path of a Python that has torch and xdp_agg; `cargo xtask \
             demo --torch` and `cargo xtask bench torch` set it"
        ),
    }
}

/// A file of the repository.
fn file(path: &str) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the repository's root")?;
    let file = root.join(path);
    if file.exists() { Ok(file) } else { bail!("{} is not there", file.display()) }
}

/// Runs a script over one system in a network of its own; its record, and whether every link kept
/// its rate.
pub(crate) fn record<T: DeserializeOwned>(
    plan: Plan,
    mut script: Script<'_>,
    out: &Path,
) -> Result<(T, bool)> {
    let lab = Lab::build(plan)?;
    let daemon = lab.start_daemon()?;
    if script.shown && script.backend == "xdp-agg" {
        println!("   the aggregator is ready: {}", daemon.engine());
    }
    let out = std::path::absolute(out)?;
    // A record that an earlier run left is not this run's.
    let _ = std::fs::remove_file(&out);
    script.arguments.extend(["--out".to_owned(), out.to_string_lossy().into_owned()]);
    let meter = lab.meter()?;
    run(&lab, &script)?;
    let links = meter.map(LinkMeter::finish).transpose()?.unwrap_or_default();
    daemon.stop()?;
    Ok((read_json(&out)?, links.iter().all(|link| link.kept)))
}

/// Runs a script as `torchrun --nnodes N --nproc-per-node 1` does, with the c10d rendezvous, and
/// waits for all.
fn run(lab: &Lab, script: &Script<'_>) -> Result<()> {
    let (python, path) = (interpreter()?, file(script.path)?);
    let hosts = lab.plan().workers;
    let first = lab.topology().worker_addr(0);
    let start = |host: u16| {
        let mut command = lab.topology().worker(host.into()).command(&python);
        command.args(["-m", "torch.distributed.run", "--nproc-per-node", "1"]);
        command.args(["--nnodes", &hosts.to_string(), "--rdzv-id", "lab"]);
        command.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &format!("{first}:{STORE}")]);
        // All hosts have this machine's name, by which the launcher would know host 0.
        command.args(["--rdzv-conf", &format!("is_host={}", u16::from(host == 0))]);
        command.args(["--local-addr", &lab.topology().worker_addr(host.into()).to_string()]);
        command.arg(&path).args(&script.arguments).args(["--backend", script.backend]);
        command.env("XDP_AGG_ADDR", lab.control_address()).env("OMP_NUM_THREADS", "1");
        command.env("TORCH_CPP_LOG_LEVEL", "ERROR").env("NO_COLOR", "1");
        if script.backend == "gloo" {
            // By itself it looks the host's name up. Ours takes the way to the aggregator.
            command.env("GLOO_SOCKET_IFNAME", "eth0");
        }
        let stderr = if script.shown && host == 0 { Sink::Inherit } else { Sink::Capture };
        Ok(Process::spawn_with(format!("torchrun {host}"), command, Sink::Capture, stderr)?)
    };
    let agents = (0..hosts).map(start).collect::<Result<Vec<_>>>()?;
    wait_all(agents, script.limit)
}
