//! Text tables: each column is as wide as its widest cell.

use std::fmt::{self, Write};
use std::iter;

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
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with these headings.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let align: Vec<Align> = columns.iter().map(|(_, align)| *align).collect();
        let mut table = Table { widths: vec![0; align.len()], align, rows: Vec::new() };
        table.row(columns.iter().map(|(heading, _)| (*heading).to_owned()).collect());
        table
    }

    /// Adds a row, one cell for each column.
    pub fn row(&mut self, mut cells: Vec<String>) {
        assert_eq!(cells.len(), self.align.len(), "a row has one cell for each column");
        for (cell, width) in cells.iter_mut().zip(&mut self.widths) {
            if !cell.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                *cell = printable(cell);
            }
            *width = cell.chars().count().max(*width);
        }
        self.rows.push(cells);
    }

    /// Returns the number of rows without the heading.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Removes the rows, and returns them as text. Later rows go under the same heading; a column only gets wider.
    pub fn take_text(&mut self) -> String {
        let text = self.to_string();
        self.rows.clear();
        text
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
        let mut line = String::new();
        for row in &self.rows {
            line.clear();
            for ((cell, width), align) in row.iter().zip(&self.widths).zip(&self.align) {
                let padding = iter::repeat_n(' ', width - cell.chars().count());
                match align {
                    Align::Left => {
                        line.push_str(cell);
                        line.extend(padding);
                    }
                    Align::Right => {
                        line.extend(padding);
                        line.push_str(cell);
                    }
                }
                line.push_str("  ");
            }
            f.write_str(line.trim_end())?;
            f.write_char('\n')?;
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
