//! What the daemon logs, and in which form.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt};
use xdp_agg::config::{ConfigError, LogFormat};

/// What systemd says of a service's standard error: device and inode, if that is the journal.
const STREAM: &str = "JOURNAL_STREAM";

/// Logs from now on. Without a format it is the journal's, where standard error is the journal.
///
/// # Errors
/// A filter that cannot be understood; a journal that was asked for and is not there.
pub(crate) fn start(filter: &str, format: Option<LogFormat>) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| ConfigError::Value {
        name: "log",
        value: filter.to_owned(),
        expected: format!("{error}; a level or a list such as warn,xdp_agg=debug is expected"),
    })?;
    let is_journal = stream_is(std::env::var_os(STREAM).as_deref(), standard_error());
    let usual = if is_journal { LogFormat::Journald } else { LogFormat::Text };
    let all = Registry::default().with(filter);
    match format.unwrap_or(usual) {
        LogFormat::Json => {
            let json = fmt::layer().json().flatten_event(true).with_current_span(false);
            all.with(json.with_span_list(false).with_writer(io::stderr)).init();
        }
        LogFormat::Text => all.with(text()).init(),
        LogFormat::Journald => match tracing_journald::layer() {
            Ok(journal) => all.with(journal).init(),
            // Standard error goes to the journal in any case.
            Err(_) if format.is_none() => all.with(text()).init(),
            Err(error) => {
                return Err(ConfigError::Value {
                    name: "log-format",
                    value: "journald".to_owned(),
                    expected: format!("no journal of systemd is here ({error}); text or json"),
                });
            }
        },
    }
    Ok(())
}

/// Lines for people; colours only for a terminal, and not against NO_COLOR.
fn text<S>() -> fmt::Layer<S, fmt::format::DefaultFields, fmt::format::Format, fn() -> io::Stderr>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let writer: fn() -> io::Stderr = io::stderr;
    fmt::layer().with_writer(writer).with_ansi(io::stderr().is_terminal() && !no_color)
}

/// Device and inode of standard error.
fn standard_error() -> Option<(u64, u64)> {
    let copy = io::stderr().as_fd().try_clone_to_owned().ok()?;
    let found = File::from(copy).metadata().ok()?;
    Some((found.dev(), found.ino()))
}

fn stream_is(said: Option<&OsStr>, found: Option<(u64, u64)>) -> bool {
    let said = said.and_then(OsStr::to_str).and_then(|text| text.split_once(':'));
    let said = said.and_then(|(dev, inode)| Some((dev.parse().ok()?, inode.parse().ok()?)));
    said.is_some() && said == found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_what_systemd_says_it_is() {
        let is = |said: &str, found| stream_is(Some(OsStr::new(said)), found);
        assert!(is("8:12345", Some((8, 12345))));
        assert!(!is("8:12345", Some((8, 12346))) && !is("8:12345", None));
        // Inherited by a program whose standard error goes elsewhere, or nonsense.
        assert!(!is("8", Some((8, 0))) && !is("", None) && !is("x:y", None));
        assert!(!stream_is(None, Some((8, 12345))) && !stream_is(None, None));
    }
}
