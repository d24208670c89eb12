//! What crates.io would be given, tried without giving it: each crate is packed and built alone.

use anyhow::Result;

use crate::shell::{cargo, run, step};

/// Packs all crates that are published, in order, and builds each from its package.
pub(super) fn dry_run() -> Result<()> {
    step("cargo publish --dry-run, all crates (some minutes)", || {
        // A clone with changes may be tried, too: nothing leaves this machine.
        run(cargo().args(["publish", "--workspace", "--dry-run", "--locked", "--allow-dirty"]))
    })
}
