//! Text tables: each column is as wide as its widest cell, up to [`WIDTH_MAX`]. A wider cell moves the rest of its own row
//! only.

use std::fmt::{self, Write};

/// Maximum width of a column, in letters.
const WIDTH_MAX: usize = 64;

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
    /// The texts of all cells, row by row.
    text: String,
    /// For each cell, the end of its text, and its width.
    cells: Vec<(usize, usize)>,
}

impl Table {
    /// Creates an empty table with these headings.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let align: Vec<Align> = columns.iter().map(|(_, align)| *align).collect();
        let widths = vec![0; align.len()];
        let mut table = Table { align, widths, text: String::new(), cells: Vec::new() };
        columns.iter().for_each(|(heading, _)| table.cell(heading));
        table
    }

    /// Adds a row, one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.align.len(), "a row has one cell for each column");
        cells.iter().for_each(|cell| self.cell(cell));
    }

    /// Adds a cell to the last row, or to a new one if that is complete.
    pub fn cell(&mut self, cell: impl fmt::Display) {
        let begin = self.text.len();
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{cell}");
        let mut width = self.text.len() - begin;
        if !self.text.as_bytes()[begin..].iter().all(|byte| matches!(byte, b' '..=b'~')) {
            let cell = printable(&self.text[begin..]);
            width = cell.chars().count();
            self.text.replace_range(begin.., &cell);
        }
        let column = self.cells.len() % self.widths.len();
        self.widths[column] = self.widths[column].max(width.min(WIDTH_MAX));
        self.cells.push((self.text.len(), width));
    }

    /// Returns the number of rows without the heading.
    pub fn len(&self) -> usize {
        self.cells.len() / self.align.len() - 1
    }

    /// Removes the rows, and returns them as text. Later rows go under the same heading; a column only gets wider.
    pub fn take_text(&mut self) -> String {
        let mut text = String::new();
        self.append_to(&mut text);
        self.text.clear();
        self.cells.clear();
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

impl Table {
    /// Appends the table to `text`.
    fn append_to(&self, text: &mut String) {
        let columns = self.align.len();
        text.reserve(self.cells.len() / columns * (self.widths.iter().sum::<usize>() + 2 * columns + 1));
        let mut begin = 0;
        for row in self.cells.chunks(columns) {
            let row_begin = text.len();
            for (((end, width), column), align) in row.iter().zip(&self.widths).zip(&self.align) {
                let cell = &self.text[begin..*end];
                begin = *end;
                match align {
                    Align::Left => {
                        text.push_str(cell);
                        pad(text, column.saturating_sub(*width));
                    }
                    Align::Right => {
                        pad(text, column.saturating_sub(*width));
                        text.push_str(cell);
                    }
                }
                text.push_str("  ");
            }
            text.truncate(row_begin + text[row_begin..].trim_end().len());
            text.push('\n');
        }
    }
}

fn pad(text: &mut String, mut len: usize) {
    const SPACES: &str = "                                ";
    while len > 0 {
        let part = len.min(SPACES.len());
        text.push_str(&SPACES[..part]);
        len -= part;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.append_to(&mut text);
        f.write_str(&text)
    }
}
