//! Text tables: each column is as wide as its widest cell.
//!

use std::fmt;

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Alignment of words.
    Left,
    /// Alignment of numbers.
    Right,
}

/// Rows under one heading.
#[derive(Clone, Debug)]
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with these headings.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let heading = columns.iter().map(|(heading, _)| printable(heading)).collect();
        Table { align: columns.iter().map(|(_, align)| *align).collect(), rows: vec![heading] }
    }

    /// Adds a row, one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.align.len(), "a row has one cell for each column");
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }
}

/// Escapes control characters. Names come from other users, and must not control the terminal or break a row.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(escaped).collect()
}

fn escaped(letter: char) -> Vec<char> {
    match letter.is_control() || is_invisible(letter) {
        true => letter.escape_default().collect(),
        false => vec![letter],
    }
}

/// Returns true for letters without a shape, which hide differences between names, or change the direction or the line
/// of the text that follows.
fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.align) {
                let padded = match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                };
                line.push_str(&padded);
                line.push_str("  ");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let mut table = Table::new(&[("name", Align::Left)]);
        let headed = Table::new(&[("\n\u{1b}", Align::Left)]);
        assert_eq!(headed.to_string(), "\\n\\u{1b}\n");
        table.row(vec!["red\u{1b}[31m\nrow".into()]);
        assert_eq!(table.to_string(), "name\nred\\u{1b}[31m\\nrow\n");
        assert_eq!(printable("gpj.\u{202e}exe\u{200b}\u{feff} é"), "gpj.\\u{202e}exe\\u{200b}\\u{feff} é");
    }
}
