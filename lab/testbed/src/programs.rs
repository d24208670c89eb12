//! Where the workspace's programs are.

use std::env;
use std::path::PathBuf;

use crate::error::Error;

/// The variable that names the directory of the programs, where they are not next to this one.
pub const DIRECTORY_VARIABLE: &str = "XDP_AGG_BIN_DIR";

/// The path of one of the workspace's programs, such as `xdp-agg`: in `XDP_AGG_BIN_DIR` if that is
/// set, otherwise next to the running program (tests run one directory further down).
///
/// # Errors
/// It is not there: where it was looked for and how to build it.
pub fn program(name: &str) -> Result<PathBuf, Error> {
    let directories: Vec<PathBuf> = match env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) => vec![directory.into()],
        None => {
            let own = env::current_exe().map_err(Error::os("finding this program's own path"))?;
            own.ancestors().skip(1).take(2).map(PathBuf::from).collect()
        }
    };
    let found = directories.iter().map(|directory| directory.join(name)).find(|p| p.is_file());
    found.ok_or_else(|| {
        let places: Vec<_> = directories.iter().map(|d| d.display().to_string()).collect();
        Error::Config(format!(
            "the program {name} is not in {}: build it (`cargo build --bin {name}`, with \
             --release if this program was) or set {DIRECTORY_VARIABLE}",
            places.join(" or ")
        ))
    })
}
