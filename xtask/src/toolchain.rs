//! The toolchain of the kernel programs: a compiler that may build `core` for BPF, the sources of
//! that `core`, and a bpf-linker of the same LLVM.
//!
//! The three have to fit: a linker of an older LLVM cannot read the compiler's bitcode, or reads it
//! and emits broken type information. So everything follows from the compiler's own LLVM version.
//! Two compilers can serve: Debian's (`rustc-web`, with `RUSTC_BOOTSTRAP=1`) and rustup's nightly
//! with `rust-src`. Debian's comes first, because it builds the objects that are checked in, and
//! `cargo xtask ci` compares instructions.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{Need, install};
use crate::shell::{cargo, output, run, say, step, which};

/// The one version of bpf-linker that is used.
const BPF_LINKER: &str = "0.13.0";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";

/// Which compiler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compiler {
    Debian,
    Nightly,
}

/// A complete toolchain.
pub(crate) struct Toolchain {
    compiler: Compiler,
    version: Version,
    /// The directory of bpf-linker.
    linker_dir: PathBuf,
}

impl Toolchain {
    /// Finds the toolchain, or installs what it lacks.
    pub(crate) fn ensure() -> Result<Self> {
        let compiler = choose_compiler()?;
        let version = compiler.version().context("the compiler does not tell its version")?;
        if version.minor < 91 {
            bail!(
                "{} is too old: 1.91 or newer is needed. `apt-get update && apt-get install \
                 rustc-web cargo-web rust-web-src` brings it from Debian 12's security suite",
                version.text
            );
        }
        let linker_dir = ensure_linker(version.llvm)?;
        Ok(Self { compiler, version, linker_dir })
    }

    /// What this is, in one line; the line beside the objects that are checked in.
    pub(crate) fn describe(&self) -> String {
        let Version { text, llvm_text, .. } = &self.version;
        format!("{text}, LLVM {llvm_text}, bpf-linker {BPF_LINKER}")
    }

    /// Cargo of this toolchain in the directory of the kernel programs. Their flags stand in that
    /// directory's `.cargo/config.toml`.
    pub(crate) fn cargo(&self, directory: &Path) -> Result<Command> {
        let mut path = vec![self.linker_dir.clone()];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let mut command = self.compiler.command("cargo");
        if self.compiler == Compiler::Debian {
            // Another rustc may be first on the PATH.
            command.env("RUSTC", DEBIAN_RUSTC);
        }
        command
            .current_dir(directory)
            .env("PATH", env::join_paths(path).context("PATH")?)
            .env("RUSTC_BOOTSTRAP", "1");
        Ok(command)
    }

    /// A program of the same LLVM, such as `llvm-objdump`.
    pub(crate) fn llvm_program(&self, name: &str) -> Result<PathBuf> {
        let llvm = self.version.llvm;
        let beside = llvm_prefix(llvm).join("bin").join(name);
        if beside.is_file() {
            return Ok(beside);
        }
        which(&format!("{name}-{llvm}")).with_context(|| {
            format!("{name} of LLVM {llvm} is missing: `apt-get install llvm-{llvm}`")
        })
    }
}

/// What a compiler says of itself.
struct Version {
    text: String,
    minor: u32,
    llvm: u32,
    llvm_text: String,
}

impl Compiler {
    /// One of the compiler's programs, free of what the cargo that runs us has set.
    fn command(self, program: &str) -> Command {
        let mut command = match self {
            Self::Debian if program == "cargo" => Command::new(DEBIAN_CARGO),
            Self::Debian => Command::new(DEBIAN_RUSTC),
            Self::Nightly => {
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", program]);
                command
            }
        };
        for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "LD_LIBRARY_PATH"] {
            command.env_remove(variable);
        }
        command
    }

    fn version(self) -> Option<Version> {
        parse_version(&output(self.command("rustc").arg("-vV")).ok()?)
    }

    /// The manifest of `core`, without which it cannot be built.
    fn has_core_sources(self) -> bool {
        let Ok(sysroot) = output(self.command("rustc").args(["--print", "sysroot"])) else {
            return false;
        };
        let core = "lib/rustlib/src/rust/library/core/Cargo.toml";
        Path::new(sysroot.trim()).join(core).is_file()
    }

    /// Whether it is here with its cargo and the sources.
    fn is_complete(self) -> bool {
        let here = match self {
            Self::Debian => Path::new(DEBIAN_RUSTC).exists() && Path::new(DEBIAN_CARGO).exists(),
            Self::Nightly => which("rustup").is_some(),
        };
        here && self.version().is_some() && self.has_core_sources()
    }
}

fn parse_version(verbose: &str) -> Option<Version> {
    let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name));
    let release = field("release: ")?;
    let llvm_text = field("LLVM version: ")?;
    Some(Version {
        text: format!("rustc {release}"),
        minor: release.split('.').nth(1)?.parse().ok()?,
        llvm: llvm_text.split('.').next()?.parse().ok()?,
        llvm_text: llvm_text.to_owned(),
    })
}

fn choose_compiler() -> Result<Compiler> {
    for compiler in [Compiler::Debian, Compiler::Nightly] {
        let usable = compiler.is_complete()
            && compiler.version().is_some_and(|version| find_linker(version.llvm).is_some());
        if usable {
            return Ok(compiler);
        }
    }
    if Compiler::Debian.is_complete() {
        return Ok(Compiler::Debian);
    }
    if which("apt-get").is_none() && Compiler::Nightly.is_complete() {
        return Ok(Compiler::Nightly);
    }
    let packages = ["rustc-web", "cargo-web", "rust-web-src"].map(str::to_owned).to_vec();
    let need = Need { what: "a compiler for the kernel programs", packages };
    install(&[need]).context(
        "or, with rustup: `rustup toolchain install nightly --component rust-src`, and a \
         bpf-linker of that nightly's LLVM on the PATH",
    )?;
    if !Compiler::Debian.is_complete() {
        bail!("{DEBIAN_RUSTC} has no sources of `core`: rust-web-src is of another version");
    }
    Ok(Compiler::Debian)
}

fn llvm_prefix(llvm: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{llvm}"))
}

/// Where we put a linker of our own: beside nothing that a person may have installed.
fn own_linker_root(llvm: u32) -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: where shall bpf-linker go?")?;
    Ok(cache.join(format!("xdp-agg/bpf-linker-{BPF_LINKER}-llvm-{llvm}")))
}

/// The directory of a bpf-linker of the right version and LLVM.
fn find_linker(llvm: u32) -> Option<PathBuf> {
    let own = own_linker_root(llvm).ok().map(|root| root.join("bin/bpf-linker"));
    let candidates = own.into_iter().chain(which("bpf-linker"));
    candidates.into_iter().find(|file| linker_fits(file, llvm))?.parent().map(Path::to_owned)
}

fn linker_fits(file: &Path, llvm: u32) -> bool {
    let version = output(Command::new(file).arg("--version"));
    if !version.is_ok_and(|text| text.trim().ends_with(BPF_LINKER)) {
        return false;
    }
    // It does not tell its LLVM; the library that it is linked with does.
    output(Command::new("ldd").arg(file)).is_ok_and(|libraries| {
        libraries.contains(&format!("libLLVM.so.{llvm}."))
            || libraries.contains(&format!("libLLVM-{llvm}."))
    })
}

fn ensure_linker(llvm: u32) -> Result<PathBuf> {
    if let Some(directory) = find_linker(llvm) {
        return Ok(directory);
    }
    let prefix = llvm_prefix(llvm);
    let packages: Vec<String> = [
        (prefix.join("bin/llvm-config"), format!("llvm-{llvm}-dev")),
        (prefix.join("lib/libPolly.a"), format!("libpolly-{llvm}-dev")),
        ("/usr/include/zlib.h".into(), "zlib1g-dev".to_owned()),
        ("/usr/include/zstd.h".into(), "libzstd-dev".to_owned()),
        ("/usr/bin/g++".into(), "g++".to_owned()), // bpf-linker links the C++ library
    ]
    .into_iter()
    .filter(|(file, _)| !file.exists())
    .map(|(_, package)| package)
    .collect();
    install(&[Need { what: "LLVM, to build bpf-linker", packages }])?;
    let root = own_linker_root(llvm)?;
    say(&format!("bpf-linker goes to {}", root.display()));
    step("building bpf-linker (about a minute, once)", || {
        run(cargo()
            // Its own work is small, LLVM does the rest: optimised, it takes three times as long to
            // build, and no shorter to link.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            // LLVM_PREFIX as well: without it another llvm-config on the PATH is believed.
            .env("LLVM_PREFIX", &prefix)
            .env(format!("LLVM_SYS_{llvm}1_PREFIX"), &prefix)
            .args(["install", "bpf-linker", "--version", BPF_LINKER, "--locked"])
            .args(["--no-default-features", "--features", &format!("llvm-{llvm}")])
            .arg("--root")
            .arg(&root))
    })?;
    find_linker(llvm).with_context(|| {
        format!("the bpf-linker in {} is not linked with LLVM {llvm}", root.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_rustc_prints() {
        let text = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0\n\
                    LLVM version: 22.1.8\n";
        let version = parse_version(text).expect("it is rustc's own text");
        assert_eq!((version.minor, version.llvm), (96, 22));
        assert_eq!(version.llvm_text, "22.1.8");
        assert!(parse_version("gcc 12").is_none());
    }
}
