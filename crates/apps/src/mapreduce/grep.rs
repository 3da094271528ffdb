//! Finds lines that match a pattern.
//!
//! A worker sees one part of a file at a time (a [`Text`]), so it numbers lines within that part. The reducer knows how
//! many lines each part of the file has, and converts these numbers to line numbers in the file.

use regex::bytes::Regex;
use serde::{Deserialize, Serialize};

use super::job::{Job, Text};
use super::table::Table;

/// Maximum length of a line in the answer, in bytes; the rest is cut off.
pub const LINE_BYTES_MAX: usize = 500;

/// Finds the lines that match a pattern.
#[derive(Debug)]
pub struct Grep {
    pattern: Regex,
    lines_max: usize,
}

impl Grep {
    /// Creates the job. `pattern` is matched against single lines, without their line feed. The answer has the first
    /// `lines_max` matching lines, and counts all matching lines.
    pub fn new(pattern: &str, lines_max: usize) -> Result<Grep, regex::Error> {
        Ok(Grep { pattern: Regex::new(pattern)?, lines_max })
    }
}

/// The matching lines of one file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileMatches {
    /// Index of the file in the list of input files, which is sorted by path.
    pub file: u32,
    /// Number of matching lines.
    pub matches: u64,
    /// The first matching lines.
    pub lines: Vec<Line>,
}

/// A matching line.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    /// Number of the line, from 1.
    pub number: u64,
    /// Bytes of the line without its line feed, at most [`LINE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// The matching lines of one text, numbered in the text.
#[derive(Serialize, Deserialize, Default, Debug)]
pub struct TextMatches {
    number: u32,
    /// Number of all lines.
    lines: u64,
    matches: u64,
    found: Vec<Line>,
}

impl Job for Grep {
    type Value = Vec<TextMatches>;
    type Record = FileMatches;

    fn is_boundary(byte: u8) -> bool {
        byte == b'\n'
    }

    fn map(&self, text: Text<'_>, mut emit: impl FnMut(&[u8], Vec<TextMatches>)) {
        let mut text_matches = TextMatches { number: text.number, ..TextMatches::default() };
        for line in text.bytes.split_inclusive(|byte| *byte == b'\n') {
            text_matches.lines += 1;
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            if self.pattern.is_match(line) {
                text_matches.matches += 1;
                if text_matches.found.len() < self.lines_max {
                    let bytes = line[..line.len().min(LINE_BYTES_MAX)].to_owned();
                    text_matches.found.push(Line { number: text_matches.lines, bytes });
                }
            }
        }
        emit(&text.file.to_be_bytes(), vec![text_matches]);
    }

    fn combine(&self, into: &mut Vec<TextMatches>, more: Vec<TextMatches>) {
        into.extend(more);
    }

    fn weight(&self, value: &Vec<TextMatches>) -> u64 {
        value.iter().map(|text| text.matches).sum()
    }

    fn reduce(&self, part: Table<Vec<TextMatches>>) -> Vec<FileMatches> {
        let mut records: Vec<FileMatches> = part.into_entries().filter_map(join_texts).collect();
        records.sort_unstable();
        self.shorten(&mut records);
        records
    }

    fn shorten(&self, records: &mut Vec<FileMatches>) {
        let mut room = self.lines_max;
        for record in records {
            record.lines.truncate(room);
            room -= record.lines.len();
        }
    }
}

/// Joins the texts of a file; `None` if no line matches.
fn join_texts((key, mut texts): (Vec<u8>, Vec<TextMatches>)) -> Option<FileMatches> {
    let file = u32::from_be_bytes(*key.first_chunk()?);
    texts.sort_unstable_by_key(|text| text.number);
    let mut record = FileMatches { file, matches: 0, lines: Vec::new() };
    let mut lines_before = 0;
    for text in texts {
        record.matches += text.matches;
        let renumber = |line: Line| Line { number: lines_before + line.number, ..line };
        record.lines.extend(text.found.into_iter().map(renumber));
        lines_before += text.lines;
    }
    (record.matches > 0).then_some(record)
}
