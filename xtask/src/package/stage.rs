//! What packages hold besides sources: made by the program itself, under `target/packaging`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{debian, workspace};
use crate::shell::{output, root, run, target};

/// A shell, and the name under which it looks for completions of `xdp-agg`.
pub(super) const SHELLS: [(&str, &str); 3] =
    [("bash", "xdp-agg"), ("zsh", "_xdp-agg"), ("fish", "xdp-agg.fish")];

/// The directory with all of it.
pub(super) struct Stage {
    pub(super) directory: PathBuf,
    pub(super) program: PathBuf,
    pub(super) version: String,
    pub(super) epoch: u64,
}

impl Stage {
    /// Makes it anew.
    pub(super) fn fill(program: &Path, version: &str, epoch: u64) -> Result<Self> {
        if !program.is_file() {
            bail!("{} is not there: `cargo xtask build` makes it", program.display());
        }
        // The manifest of the packages names this place.
        let directory = target().join("packaging");
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        let man = directory.join("man");
        fs::create_dir_all(&man).with_context(|| format!("cannot make {}", man.display()))?;
        run(Command::new(program).arg("man").arg(&man))?;
        let mut pages: Vec<PathBuf> =
            fs::read_dir(&man)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        pages.sort();
        run(Command::new("gzip").args(["-9", "-n"]).args(&pages))?;
        for (shell, name) in SHELLS {
            let place = directory.join("completions").join(shell);
            fs::create_dir_all(&place)?;
            let text = output(Command::new(program).args(["completions", shell]))?;
            fs::write(place.join(name), text)?;
        }
        let stage =
            Self { directory, program: program.to_owned(), version: version.to_owned(), epoch };
        stage.changelog()?;
        Ok(stage)
    }

    /// Debian's own form; what changed stands in CHANGELOG.md, which comes along.
    fn changelog(&self) -> Result<()> {
        let mut date = Command::new("date");
        date.args(["-u", "-R", "-d", &format!("@{}", self.epoch)]).stderr(Stdio::inherit());
        let date = output(&mut date)?;
        let text = format!(
            "xdp-agg ({}-1) stable; urgency=medium\n\n  * changelog.gz in this directory tells \
             what changed.\n\n -- {}  {date}",
            debian(&self.version),
            workspace("authors")?,
        );
        fs::write(self.directory.join("changelog.Debian"), text).context("the changelog")?;
        let changes = self.directory.join("changelog");
        fs::copy(root().join("CHANGELOG.md"), &changes).context("CHANGELOG.md")?;
        run(Command::new("gzip").args(["-9", "-n"]).arg(changes))
    }
}
