//! Directories and files that nobody else may write: what is read there decides about jobs.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Makes the directory for its owner alone, if it is not there. One that is there must be this
/// user's or root's, and no others may write to it.
pub(crate) fn make_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // The owner of a link decides where it leads.
    check(&fs::symlink_metadata(dir)?)?;
    check(&fs::metadata(dir)?)
}

/// Opens such a file for reading. A link is not followed, and a pipe not waited for.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link, not a file"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    check(&found)?;
    Ok(file)
}

fn check(found: &Metadata) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != own && owner != 0 {
        let why =
            format!("it belongs to user {owner}, not to user {own}; remove it or choose another");
        return Err(io::Error::other(why));
    }
    if mode & 0o022 != 0 && !found.is_symlink() {
        let why = format!("its mode {mode:o} lets others write to it; `chmod go-w` it");
        return Err(io::Error::other(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::Command;

    use super::*;

    fn text<T>(refused: io::Result<T>) -> String {
        refused.map(drop).expect_err("it is not ours alone").to_string()
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = base.path().join("one");
        make_directory(&dir).expect("it is made");
        make_directory(&dir).expect("it is ours");
        let mode = |mode| fs::set_permissions(&dir, PermissionsExt::from_mode(mode));
        for open in [0o720, 0o702, 0o1777] {
            mode(open).expect("it is ours");
            let text = text(make_directory(&dir));
            assert!(text.contains(&format!("mode {open:o}")), "{text}");
        }
        mode(0o755).expect("it is ours");
        make_directory(&dir).expect("others may look");
        let link = base.path().join("link");
        symlink(&dir, &link).expect("a link");
        make_directory(&link).expect("our own link");
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(1000), None).expect("root may");
            assert!(text(make_directory(&dir)).contains("belongs to user 1000"));
            chown(&dir, Some(0), None).expect("root may");
            std::os::unix::fs::lchown(&link, Some(1000), None).expect("root may");
            assert!(text(make_directory(&link)).contains("belongs to user 1000"));
        }
    }

    #[test]
    fn a_file_of_another_kind_or_user_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        assert_eq!(open(&at("none")).expect_err("none").kind(), io::ErrorKind::NotFound);
        fs::write(at("file"), "text").expect("there is room");
        open(&at("file")).expect("it is ours");
        symlink(at("file"), at("link")).expect("a link");
        assert!(text(open(&at("link"))).contains("symbolic link"));
        // Without a writer a pipe would be waited for.
        assert!(Command::new("mkfifo").arg(at("pipe")).status().expect("a program").success());
        assert!(text(open(&at("pipe"))).contains("regular file"));
        fs::set_permissions(at("file"), PermissionsExt::from_mode(0o666)).expect("it is ours");
        assert!(text(open(&at("file"))).contains("mode 666"));
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(at("file"), PermissionsExt::from_mode(0o600)).expect("it is ours");
            chown(at("file"), Some(1000), None).expect("root may");
            assert!(text(open(&at("file"))).contains("belongs to user 1000"));
        }
    }
}
