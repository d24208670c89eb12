//! What can go wrong while a test network is built, used or measured.

use std::io;

/// Why something on a test network could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel refused a BPF program, map or attachment.
    #[error("{what}: {}", chain(&**source))]
    Bpf {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This process may not do it; the text says what would help.
    #[error("{0}")]
    NotPermitted(String),
    /// The network that was asked for cannot be, or does not have the part that was named.
    #[error("{0}")]
    Config(String),
    /// A child process failed, or did not do in time what was waited for; the text ends with what
    /// it said last.
    #[error("{0}")]
    Process(String),
}

impl Error {
    /// An error of the operating system, with what was attempted.
    pub(crate) fn os<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Os { what, source: source.into() }
    }

    /// An error of the BPF loader, with what was attempted.
    pub(crate) fn bpf<E>(what: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let what = what.into();
        move |source| Self::Bpf { what, source: Box::new(source) }
    }
}

/// An error and its causes on one line; the loader keeps the telling part in the innermost.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}
