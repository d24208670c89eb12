//! `cargo xtask upgrade-test REVISION`: another revision's programs, and the test that has them
//! work with this one's.

use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, output, root, run, say, step, target};
use crate::{build, setup};

/// Arguments of `cargo xtask upgrade-test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The revision that is upgraded: a tag, a branch, or a commit
    revision: String,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_tests()?;
    let git = || {
        let mut command = Command::new("git");
        command.current_dir(root());
        command
    };
    let commit = format!("{}^{{commit}}", args.revision);
    let commit = output(git().args(["rev-parse", "--short=10", "--verify", &commit]))?;
    let commit = commit.trim();
    let described = output(git().args(["log", "-1", "--format=%h of %cs: %s", commit]))?;
    say(&format!("the old release: {}", described.trim()));
    let base = target().join("upgrade");
    let (source, built) = (base.join(commit), base.join("build"));
    if !source.exists() {
        run(git().args(["worktree", "prune"]))?;
        run(git().args(["worktree", "add", "--quiet", "--detach"]).arg(&source).arg(commit))?;
    }
    let done = step("building its programs", || {
        let mut build = cargo();
        build.current_dir(&source).env("CARGO_TARGET_DIR", &built);
        run(build.args([
            "build",
            "--quiet",
            "-p",
            "xdp-agg-cli",
            "-p",
            "xdp-agg-testbed",
            "--bins",
        ]))
    });
    run(git().args(["worktree", "remove", "--force"]).arg(&source))?;
    done?;
    build::for_tests()?;
    let mut test = cargo();
    test.args(["test", "--quiet", "--workspace", "--test", "upgrade", "--", "--nocapture"]);
    run(test.arg("a_running_job").env("XDP_AGG_OLD_PROGRAMS", built.join("debug")))
}
