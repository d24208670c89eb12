//! One thing that was looked at, and how it came out.

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Nothing to do.
    Ok,
    /// It works, but slower, or could not be seen in full.
    Warn,
    /// The XDP engine cannot run like this.
    Fail,
}

impl Status {
    /// The word in front of a line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about: `kernel`, `eth0: MTU`.
    pub subject: String,
    /// How it came out.
    pub status: Status,
    /// What is, and what was expected.
    pub finding: String,
    /// What to do, where something is to be done.
    pub remedy: Option<String>,
}

impl Check {
    pub(super) fn new(
        subject: impl Into<String>,
        status: Status,
        finding: impl Into<String>,
    ) -> Self {
        Self { subject: subject.into(), status, finding: finding.into(), remedy: None }
    }

    pub(super) fn ok(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(subject, Status::Ok, finding)
    }

    pub(super) fn warn(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(subject, Status::Warn, finding)
    }

    pub(super) fn fail(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(subject, Status::Fail, finding)
    }

    pub(super) fn mend(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
