//! Columns for people.

/// Lays rows out in columns: the first is flush left, the others flush right.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|c| c.chars().count()).max();
    let widths: Vec<_> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A row of a table, its cells divided by bars.
pub(crate) fn row(cells: &str) -> Vec<String> {
    cells.split('|').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [row("job|blocks"), row("a long name|7"), row("b|123456789")];
        assert_eq!(
            columns(&rows),
            "job             blocks\na long name          7\nb            123456789\n"
        );
    }
}
