//! Files of flight recordings: readable by their owner alone, and bounded in number.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use xdp_agg_forks::own;

use super::settings::Flights;

/// Recordings of failed calls that a process writes at most.
const OF_A_PROCESS: u32 = 16;
/// Recordings of a user that stay in the usual directory: the latest.
const KEPT: usize = 64;
/// How a recording's name begins.
const PREFIX: &str = "flight-r";

/// How many this process wrote of its own accord.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is here.
    To(PathBuf),
    /// Nobody wants any, or there are enough.
    Not,
}

/// Writes a recording that nobody asked for: of a failed call.
pub(super) fn write_of_failure(flights: &Flights, rank: u16, text: &str) -> io::Result<Written> {
    if *flights == Flights::Off || WRITTEN.fetch_add(1, Ordering::Relaxed) >= OF_A_PROCESS {
        return Ok(Written::Not);
    }
    write(flights, rank, text).map(Written::To)
}

/// Writes a recording. The directory for failed calls is taken, also where these write none.
pub(super) fn write(flights: &Flights, rank: u16, text: &str) -> io::Result<PathBuf> {
    let directory = match flights {
        Flights::In(directory) => {
            fs::create_dir_all(directory)?;
            directory.clone()
        }
        Flights::Usual | Flights::Off => usual()?,
    };
    let (mut file, path) = create(&directory, rank)?;
    file.write_all(text.as_bytes())?;
    if !matches!(flights, Flights::In(_)) {
        prune(&directory);
    }
    Ok(path)
}

/// A file that was not there before.
fn create(directory: &Path, rank: u16) -> io::Result<(File, PathBuf)> {
    let process = std::process::id();
    for number in 0..1000 {
        let path = directory.join(format!("{PREFIX}{rank}-p{process}-{number}.json"));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        match own(|| options.open(&path)) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// `xdp-agg-1000` among the temporary files: this user's, and nobody else's.
fn usual() -> io::Result<PathBuf> {
    let user = fs::metadata("/proc/self")?.uid();
    let directory = std::env::temp_dir().join(format!("xdp-agg-{user}"));
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&directory)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        let name = directory.display();
        return Err(io::Error::other(format!(
            "{name} is not a directory that user {user} alone writes to"
        )));
    }
    Ok(directory)
}

/// Removes all recordings but the latest. Other processes may do the same at this moment.
fn prune(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let recordings = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(PREFIX) && name.ends_with(".json")
    });
    let dated = recordings.filter_map(|entry| {
        let modified = entry.metadata().ok()?.modified().ok()?;
        Some((modified, entry.path()))
    });
    let mut dated: Vec<(SystemTime, PathBuf)> = dated.collect();
    dated.sort();
    for (_, path) in dated.iter().take(dated.len().saturating_sub(KEPT)) {
        // It may be gone already.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_recording_is_its_owners_and_their_number_is_bounded() {
        let directory =
            std::env::temp_dir().join(format!("xdp-agg-flights-{}", std::process::id()));
        let flights = Flights::In(directory.clone());
        let first = write(&flights, 3, "[]").expect("written");
        let second = write(&flights, 3, "[]").expect("written");
        assert_ne!(first, second);
        let mode = fs::metadata(&first).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A name that is taken by a link is left alone.
        let process = std::process::id();
        let link = directory.join(format!("{PREFIX}4-p{process}-0.json"));
        std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
        let third = write(&flights, 4, "[]").expect("written");
        assert_eq!(third, directory.join(format!("{PREFIX}4-p{process}-1.json")));
        for number in 0..KEPT + 20 {
            fs::write(directory.join(format!("{PREFIX}9-p1-{number}.json")), "").expect("written");
        }
        fs::write(directory.join("somebody-elses.json"), "").expect("written");
        prune(&directory);
        assert_eq!(fs::read_dir(&directory).expect("it is there").count(), KEPT + 1);
        fs::remove_dir_all(&directory).expect("it is there");
        let limit = OF_A_PROCESS.saturating_sub(WRITTEN.load(Ordering::Relaxed));
        let tried = (0..limit + 5).map(|_| write_of_failure(&flights, 5, "[]").expect("written"));
        assert_eq!(tried.filter(|w| *w != Written::Not).count(), limit as usize);
        assert_eq!(write_of_failure(&Flights::Off, 5, "").expect("none"), Written::Not);
        fs::remove_dir_all(&directory).expect("it is there");
    }
}
