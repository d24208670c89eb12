//! Plots as SVG files, and reports with them as Markdown and as one HTML page.
//!
//! Shared by the benchmarks that measure (`xdp-agg-lab`) and those that simulate
//! (`xdp-agg-flowsim`).

#![forbid(unsafe_code)]

pub mod plot;
mod quantile;
mod report;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use quantile::quantile;
pub use report::Report;

/// Why a plot or a report was not written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// Neither a point nor a bar.
    #[error("nothing was measured, so there is nothing to draw; expected at least one point")]
    Nothing,
    /// The directory cannot be made.
    #[error("making the directory {0}: {1}; expected a place that can be written to")]
    Directory(PathBuf, #[source] io::Error),
    /// The file cannot be written.
    #[error("writing {0}: {1}; expected a place that can be written to")]
    Write(PathBuf, #[source] io::Error),
    /// The plot cannot be drawn.
    #[error("drawing {0}: {1}")]
    Draw(PathBuf, String),
}

fn make_directory(directory: &Path) -> Result<(), ReportError> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    let failed = |error| ReportError::Directory(directory.to_owned(), error);
    fs::create_dir_all(directory).map_err(failed)
}
