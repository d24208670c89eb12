//! Where traces and flight recordings go.

use std::path::{Path, PathBuf};

use crate::error::Error;

const TRACE: &str = "XDP_AGG_TRACE";
const DIRECTORY: &str = "XDP_AGG_FLIGHT_DIR";
const SIGNAL: &str = "XDP_AGG_FLIGHT_SIGNAL";

/// Signals that may ask for a flight recording.
const SIGNALS: [(&str, libc::c_int); 4] = [
    ("SIGUSR1", libc::SIGUSR1),
    ("SIGUSR2", libc::SIGUSR2),
    ("SIGQUIT", libc::SIGQUIT),
    ("SIGHUP", libc::SIGHUP),
];

/// What is written, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tracing {
    /// The file of the trace, with what stands for rank, process and host.
    pub(crate) trace: Option<String>,
    pub(crate) flights: Flights,
    /// The signal that asks for a flight recording.
    pub(crate) signal: Option<libc::c_int>,
}

/// Where flight recordings go when a call fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flights {
    /// To a directory of this user in that for temporary files.
    #[default]
    Usual,
    /// Here.
    In(PathBuf),
    /// Nowhere.
    Off,
}

impl Tracing {
    /// Failed calls are recorded here.
    pub(crate) fn fly_to(&mut self, directory: PathBuf) {
        self.flights = Flights::In(directory);
    }

    /// From variables.
    pub(crate) fn read(lookup: &impl Fn(&'static str) -> Option<String>) -> Result<Self, Error> {
        let mut tracing = Self::default();
        if let Some(pattern) = lookup("XDP_AGG_TRACE").filter(|pattern| !pattern.is_empty()) {
            expand(&pattern, &Place::default())?;
            tracing.trace = Some(pattern);
        }
        if let Some(value) = lookup("XDP_AGG_FLIGHT_DIR") {
            tracing.flights = flights(&value)?;
        }
        if let Some(value) = lookup("XDP_AGG_FLIGHT_SIGNAL") {
            tracing.signal = signal(value.trim())?;
        }
        Ok(tracing)
    }
}

fn flights(value: &str) -> Result<Flights, Error> {
    match value {
        "" => {
            let problem = "it is empty; expected a directory, or off".into();
            Err(Error::Config { name: DIRECTORY, problem })
        }
        "off" => Ok(Flights::Off),
        directory => Ok(Flights::In(directory.into())),
    }
}

fn signal(value: &str) -> Result<Option<libc::c_int>, Error> {
    if value == "off" {
        return Ok(None);
    }
    let is = |name: &str| name == value || name.strip_prefix("SIG") == Some(value);
    match SIGNALS.iter().find(|(name, _)| is(name)) {
        Some((_, number)) => Ok(Some(*number)),
        None => {
            let known = SIGNALS.map(|(name, _)| name).join(", ");
            let problem = format!("{value:?} is not one of off, {known}");
            Err(Error::Config { name: SIGNAL, problem })
        }
    }
}

/// What a pattern's signs stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) rank: u16,
    pub(super) world_size: u16,
    pub(super) process: u32,
    pub(super) host: String,
}

/// The file that a pattern names. `%r` is the rank, `%p` the process, `%h` the host, `%%` a percent
/// sign. A directory gets a file for each rank. Where there are several ranks and the pattern tells
/// none of them, the rank stands before the name's end.
pub(super) fn expand(pattern: &str, place: &Place) -> Result<PathBuf, Error> {
    let wrong = |problem: String| Error::Config { name: TRACE, problem };
    let (mut path, mut tells) = (String::new(), false);
    let mut signs = pattern.chars();
    while let Some(sign) = signs.next() {
        if sign != '%' {
            path.push(sign);
            continue;
        }
        match signs.next() {
            Some('r') => {
                path += &place.rank.to_string();
                tells = true;
            }
            Some('p') => {
                path += &place.process.to_string();
                tells = true;
            }
            Some('h') => path += &place.host,
            Some('%') => path.push('%'),
            other => {
                let found = other.map_or_else(|| "%".into(), |other| format!("%{other}"));
                return Err(wrong(format!(
                    "{pattern:?} has {found}; expected %r (rank), %p (process), %h (host) or %%"
                )));
            }
        }
    }
    let path = PathBuf::from(path);
    if pattern.ends_with('/') || path.is_dir() {
        return Ok(path.join(format!("xdp-agg-trace-r{}.json", place.rank)));
    }
    Ok(if tells || place.world_size <= 1 { path } else { with_rank(&path, place.rank) })
}

/// `trace.json` as `trace-r3.json`.
fn with_rank(path: &Path, rank: u16) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy()));
    path.with_file_name(format!("{stem}-r{rank}{}", end.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pattern: &str) -> PathBuf {
        let place = Place { rank: 3, world_size: 8, process: 77, host: "node1".into() };
        expand(pattern, &place).expect("it makes sense")
    }

    #[test]
    fn a_pattern_names_a_file_a_rank() {
        for (pattern, file) in [
            ("/t/%r.json", "/t/3.json"),
            ("/t/%h-%p.json", "/t/node1-77.json"),
            ("/t/trace.json", "/t/trace-r3.json"),
            ("/t/trace", "/t/trace-r3"),
            ("/t/%h.json", "/t/node1-r3.json"),
            ("/t/100%%.json", "/t/100%-r3.json"),
            ("/t/new/", "/t/new/xdp-agg-trace-r3.json"),
            ("/", "/xdp-agg-trace-r3.json"),
        ] {
            assert_eq!(of(pattern), Path::new(file), "{pattern}");
        }
        let alone = Place { world_size: 1, ..Place::default() };
        assert_eq!(expand("/t/a.json", &alone).expect("it does"), Path::new("/t/a.json"));
    }

    #[test]
    fn settings_that_make_no_sense_are_told() {
        let read = |name: &'static str, value: &str| {
            Tracing::read(&|asked| (asked == name).then(|| value.to_owned()))
        };
        for (name, value, words) in [
            ("XDP_AGG_TRACE", "/t/%x.json", "has %x; expected %r"),
            ("XDP_AGG_TRACE", "/t/%", "has %; expected %r"),
            ("XDP_AGG_FLIGHT_DIR", "", "a directory, or off"),
            ("XDP_AGG_FLIGHT_SIGNAL", "SIGKILL", "\"SIGKILL\" is not one of off, SIGUSR1"),
        ] {
            let error = read(name, value).expect_err(value).to_string();
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
        let usr2 = read("XDP_AGG_FLIGHT_SIGNAL", "USR2").expect("a signal");
        assert_eq!(usr2.signal, Some(libc::SIGUSR2));
        assert_eq!(read("XDP_AGG_FLIGHT_SIGNAL", "off").expect("none").signal, None);
        assert_eq!(read("XDP_AGG_FLIGHT_DIR", "off").expect("none").flights, Flights::Off);
        assert_eq!(read("XDP_AGG_TRACE", "").expect("none").trace, None);
    }
}
