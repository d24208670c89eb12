//! `cargo xtask ci`: what has to hold before a change is merged, apart from the tests.

use std::ffi::OsStr;

use anyhow::{Result, bail};

use crate::shell::{cargo, root, run, say, step};
use crate::toolchain::Toolchain;
use crate::{build_ebpf, disasm, package, python, setup, tidy};

type Check = fn() -> Result<()>;

pub(crate) fn main() -> Result<()> {
    setup::ensure_base()?;
    let checks: [(&str, Check); 8] = [
        ("tidy", tidy::main),
        ("rustfmt", rustfmt),
        ("clippy", clippy),
        ("documentation", documentation),
        ("Python: types and style", python::check),
        ("packaging: scripts, manifests, the image", package::check_sources),
        ("kernel programs", compare_objects),
        ("the wheel of the Python package", python::wheel_without_clone),
    ];
    // All of them, whatever fails: one run shows everything that is wrong.
    let mut failed = Vec::new();
    for (name, check) in checks {
        if let Err(error) = step(name, check) {
            eprintln!("error: {error:#}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("these checks failed: {}", failed.join(", "));
    }
    say("ci: all checks passed");
    Ok(())
}

fn rustfmt() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    // The manifest of the kernel programs asks for what stable cargo has, but does not offer.
    let mut kernel = cargo();
    kernel.current_dir(root().join("xdp-agg-ebpf")).env("RUSTC_BOOTSTRAP", "1");
    run(kernel.args(["fmt", "--check"]))
}

fn clippy() -> Result<()> {
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn documentation() -> Result<()> {
    // Libraries only: the program `xdp-agg` and the library `xdp_agg` would share a directory. So
    // would the library for C, whose documentation is its header.
    run(cargo().env("RUSTDOCFLAGS", OsStr::new("-D warnings")).args([
        "doc",
        "--workspace",
        "--exclude",
        "xdp-agg-c",
        "--no-deps",
        "--lib",
    ]))
}

/// Rebuilds the kernel programs and compares them with the objects that are checked in.
fn compare_objects() -> Result<()> {
    let toolchain = Toolchain::ensure()?;
    say(&toolchain.describe());
    build_ebpf::compile(&toolchain)?;
    let objdump = toolchain.llvm_program("llvm-objdump")?;
    let mut differ = Vec::new();
    for program in &build_ebpf::PROGRAMS {
        let old = disasm::disassemble(&objdump, &program.checked_in())?;
        let new = disasm::disassemble(&objdump, &program.built())?;
        match disasm::difference(&old, &new) {
            None => say(&format!("{}: {} lines, the same", program.object(), new.len())),
            Some(difference) => {
                eprintln!("{} differs from its sources {difference}", program.object());
                differ.push(program.object());
            }
        }
    }
    if differ.is_empty() {
        return Ok(());
    }
    let (old, new) = (build_ebpf::recorded_toolchain(), toolchain.describe());
    let cause = if old == new {
        "the sources have changed since".to_owned()
    } else {
        format!("the toolchain was {old}, and is {new} here")
    };
    bail!(
        "{} does not hold what its sources say ({cause}); run `cargo xtask build-ebpf` and check \
         in what it writes",
        differ.join(" and ")
    )
}
