//! `cargo xtask build-ebpf`: the kernel programs, compiled and put where they are checked in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup;
use crate::shell::{root, run, say, step};
use crate::toolchain::Toolchain;

/// The file that names the toolchain of the objects that are checked in.
const TOOLCHAIN_NOTE: &str = "xdp-agg/bpf/toolchain.txt";

/// A kernel program: what cargo calls it, and where its object is checked in.
pub(crate) struct Program {
    name: &'static str,
    object: &'static str,
}

/// All kernel programs.
pub(crate) const PROGRAMS: [Program; 4] = [
    Program { name: "xdp-agg", object: "xdp-agg/bpf/xdp-agg.bpfel.o" },
    Program { name: "bench", object: "lab/scenarios/bpf/bench.bpfel.o" },
    Program { name: "worker", object: "client/bpf/worker.bpfel.o" },
    Program { name: "wire", object: "lab/testbed/bpf/wire.bpfel.o" },
];

impl Program {
    /// What cargo has built.
    fn linked(&self) -> PathBuf {
        directory().join("target/bpfel-unknown-none/release").join(self.name)
    }

    /// The object that [`compile`] has made of it: what would be checked in.
    pub(crate) fn built(&self) -> PathBuf {
        directory().join("target").join(format!("{}.bpfel.o", self.name))
    }

    /// The object that is checked in.
    pub(crate) fn checked_in(&self) -> PathBuf {
        root().join(self.object)
    }

    /// The latter's path in the repository.
    pub(crate) const fn object(&self) -> &'static str {
        self.object
    }
}

pub(crate) fn main() -> Result<()> {
    setup::ensure_base()?;
    let toolchain = Toolchain::ensure()?;
    say(&toolchain.describe());
    compile(&toolchain)?;
    for program in &PROGRAMS {
        let (from, to) = (program.built(), program.checked_in());
        fs::create_dir_all(to.parent().expect("it lies in a directory"))?;
        let bytes = fs::copy(&from, &to)
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        say(&format!("{}: {bytes} bytes", program.object));
    }
    fs::write(root().join(TOOLCHAIN_NOTE), format!("{}\n", toolchain.describe()))
        .with_context(|| format!("writing {TOOLCHAIN_NOTE}"))
}

/// Compiles the kernel programs in a directory that is the same for every clone. What is for
/// debuggers only goes: the kernel wants types (BTF), not DWARF, which is four fifths of the file.
pub(crate) fn compile(toolchain: &Toolchain) -> Result<()> {
    stage()?;
    step("building the kernel programs", || {
        let mut cargo = toolchain.cargo(&directory())?;
        run(cargo.args(["build", "--release", "--locked", "--target-dir", "target"]))
    })?;
    let strip = toolchain.llvm_program("llvm-strip")?;
    for program in &PROGRAMS {
        run(Command::new(&strip).arg("-g").arg("-o").args([program.built(), program.linked()]))?;
    }
    Ok(())
}

/// The toolchain of the objects that are checked in, as it described itself.
pub(crate) fn recorded_toolchain() -> String {
    fs::read_to_string(root().join(TOOLCHAIN_NOTE))
        .map_or_else(|_| "an unknown toolchain".to_owned(), |text| text.trim().to_owned())
}

/// Where the kernel programs are compiled. Absolute paths get into symbols, and symbols into the
/// order in which LLVM sees functions. So the objects of two clones could differ by an instruction:
/// every clone builds at this place.
const STAGE: &str = "/tmp/xdp-agg-kernel-programs";

fn directory() -> PathBuf {
    Path::new(STAGE).join("xdp-agg-ebpf")
}

/// Brings the sources of the kernel programs there.
fn stage() -> Result<()> {
    for part in ["Cargo.toml", "lab/testbed/src/layout.rs", "crates/common", "xdp-agg-ebpf"] {
        copy(&root().join(part), &Path::new(STAGE).join(part))?;
    }
    Ok(())
}

/// Copies a file, or a directory without what was built in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().expect("it lies in a directory"))
            .and_then(|()| fs::copy(from, to))
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        return Ok(());
    }
    if to.join("src").is_dir() {
        // Files that are no longer there must not be built.
        fs::remove_dir_all(to.join("src")).with_context(|| format!("emptying {}", to.display()))?;
    }
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let name = entry?.file_name();
        if name != "target" {
            copy(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}
