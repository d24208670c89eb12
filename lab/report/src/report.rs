//! A report of a benchmark: text, tables and plots, as Markdown and as one HTML page.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::{ReportError, make_directory};

/// A report in the making. Parts appear in the order in which they are added.
#[derive(Debug)]
pub struct Report {
    title: String,
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Heading(String),
    Text(String),
    Code(String),
    Table {
        heading: Vec<String>,
        rows: Vec<Vec<String>>,
    },
    /// Name of a file beside the report, and what it shows.
    Plot {
        file: String,
        shows: String,
    },
}

impl Report {
    /// A report that begins with its command and with what it was made on.
    pub fn new(title: impl Into<String>, command: &str, facts: Vec<[String; 2]>) -> Self {
        let mut report = Self { title: title.into(), parts: Vec::new() };
        report.code(command);
        report.table(&["fact", "value"], facts.into_iter().map(Vec::from).collect());
        report
    }

    /// Begins a section.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Heading(text.into()));
    }

    /// A paragraph.
    pub fn text(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    /// Text that keeps its lines.
    pub fn code(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Code(text.into()));
    }

    /// A table.
    pub fn table(&mut self, heading: &[&str], rows: Vec<Vec<String>>) {
        let heading = heading.iter().map(ToString::to_string).collect();
        self.parts.push(Part::Table { heading, rows });
    }

    /// A plot that is, or will be, a file in the report's directory.
    pub fn plot(&mut self, file: impl Into<String>, shows: impl Into<String>) {
        self.parts.push(Part::Plot { file: file.into(), shows: shows.into() });
    }

    /// Writes `report.md` and `report.html` into a directory, which is made.
    ///
    /// # Errors
    ///
    /// [`ReportError`]: the directory or a file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), ReportError> {
        make_directory(directory)?;
        for (name, text) in [("report.md", self.markdown()), ("report.html", self.html(directory))]
        {
            let file = directory.join(name);
            fs::write(&file, text).map_err(|error| ReportError::Write(file, error))?;
        }
        Ok(())
    }

    fn markdown(&self) -> String {
        let cell = |text: &String| text.replace('|', r"\|").replace('\n', " ");
        let line = |cells: &[String]| {
            format!("| {} |\n", cells.iter().map(cell).collect::<Vec<_>>().join(" | "))
        };
        let mut text = format!("# {}\n", self.title);
        for part in &self.parts {
            text.push('\n');
            // Writing to a string does not fail.
            let _ = match part {
                Part::Heading(heading) => writeln!(text, "## {heading}"),
                Part::Text(paragraph) => writeln!(text, "{paragraph}"),
                Part::Code(code) => writeln!(text, "```\n{code}\n```"),
                Part::Plot { file, shows } => writeln!(text, "![{shows}]({file})"),
                Part::Table { heading, rows } => {
                    let rule = format!("|{}\n", "---|".repeat(heading.len()));
                    let rows: String = rows.iter().map(|row| line(row)).collect();
                    write!(text, "{}{rule}{rows}", line(heading))
                }
            };
        }
        text
    }

    /// One page without references: plots that can be read are part of it.
    fn html(&self, directory: &Path) -> String {
        let cells = |tag: &str, row: &[String]| {
            let cell = |text: &String| format!("<{tag}>{}</{tag}>", escaped(text));
            format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>())
        };
        let title = escaped(&self.title);
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        );
        for part in &self.parts {
            let _ = match part {
                Part::Heading(heading) => writeln!(text, "<h2>{}</h2>", escaped(heading)),
                Part::Text(paragraph) => writeln!(text, "<p>{}</p>", escaped(paragraph)),
                Part::Code(code) => writeln!(text, "<pre>{}</pre>", escaped(code)),
                Part::Plot { file, shows } => {
                    let svg = fs::read_to_string(directory.join(file));
                    let reference = |_| format!("<img src=\"{}\" alt=\"\">", escaped(file));
                    let image = svg.unwrap_or_else(reference);
                    let caption = escaped(shows);
                    writeln!(text, "<figure>{image}<figcaption>{caption}</figcaption></figure>")
                }
                Part::Table { heading, rows } => {
                    let rows: String = rows.iter().map(|row| cells("td", row)).collect();
                    writeln!(text, "<table>\n{}{rows}</table>", cells("th", heading))
                }
            };
        }
        text + "</body></html>\n"
    }
}

const STYLE: &str = "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}\
    table{border-collapse:collapse;font-size:.9em}td,th{border:1px solid #ccc;padding:.2em .5em;\
    text-align:left}pre{background:#f4f4f4;padding:.5em;overflow:auto}figure{margin:1em 0}";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let facts = [["processor", "A <fast> one"], ["processors", "2"]];
        let facts = facts.map(|pair| pair.map(str::to_owned)).to_vec();
        let mut report = Report::new("Passing", "xdp-agg-lab bench passing", facts);
        report.heading("Rows");
        report.text("Two of them.");
        report.table(&["system", "time"], vec![vec!["a|b".into(), "1 & 2".into()]]);
        report.plot("x.svg", "Time");
        report
    }

    #[test]
    fn markdown_is_as_written_here() {
        assert_eq!(report().markdown(), include_str!("expected.txt"));
    }

    #[test]
    fn html_escapes_and_takes_plots_in() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("x.svg");
        let html = report().html(file.parent().expect("a directory"));
        assert!(html.contains("<td>A &lt;fast&gt; one</td>") && html.contains("1 &amp; 2"));
        assert!(html.contains("<img src=\"x.svg\""));
        fs::write(&file, "<svg>drawn</svg>").expect("it can be written");
        let directory = file.parent().expect("a directory");
        report().write(directory).expect("it can be written");
        let html = fs::read_to_string(directory.join("report.html")).expect("it is there");
        assert!(html.contains("<figure><svg>drawn</svg>") && html.ends_with("</html>\n"));
        assert!(directory.join("report.md").is_file());
    }
}
