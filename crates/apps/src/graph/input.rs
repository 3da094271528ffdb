//! Reads the edges of a graph from a file, or generates them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::error::GraphError;

/// Source and target of an edge.
pub type Edge = (u64, u64);

/// Source of a graph.
#[derive(Clone, Debug)]
pub enum Input {
    /// A list of edges as SNAP publishes them: two ids from 0 to 2^64-1 in a line, and comments that begin with `#`.
    File(EdgeList),
    /// A Kronecker graph.
    Kronecker(Kronecker),
    /// Edges in memory.
    Edges(Arc<[Edge]>),
}

/// A file of edges. All workers check that the file has not changed since it was found.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct EdgeList {
    path: PathBuf,
    len: u64,
    /// Time of the last change, in seconds and nanoseconds.
    changed: (i64, i64),
}

/// A Kronecker graph as Graph500 defines it: 2^scale vertices, 16 edges for each, with the quadrant probabilities 0.57,
/// 0.19, 0.19 and 0.05, and permuted ids. It may have duplicate edges and self-loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kronecker {
    /// Base-2 logarithm of the number of ids. Some ids have no edge.
    pub scale: u32,
    /// Seed of the generator.
    pub seed: u64,
}

/// Edges per vertex of a Kronecker graph.
const EDGE_FACTOR: u64 = 16;

/// Number of edges per seeding of the generator, so that each worker can generate its part independently.
const BLOCK_EDGES: u64 = 1 << 14;

/// Maximum number of characters of an invalid line that an error shows.
const SHOWN_CHARS: usize = 60;

/// Maximum bytes of a line with an edge: two numbers of 20 digits, and further columns such as weights or times.
pub(super) const LINE_BYTES_MAX: u64 = 4096;

impl Input {
    /// Returns the edges of part number `part`, from 0, of `parts`. Each edge is in exactly one part.
    pub fn part(&self, part: usize, parts: usize) -> Result<Vec<Edge>, GraphError> {
        let share = |count: u64| {
            let bound = |part: usize| (u128::from(count) * part as u128 / parts as u128) as u64;
            bound(part)..bound(part + 1)
        };
        match self {
            Input::File(list) => {
                let edges = read_part(&list.path, share(list.len))?;
                if EdgeList::find(&list.path)? != *list {
                    let changed = io::Error::other("it was changed while it was read");
                    return Err(file_error(&list.path, changed));
                }
                Ok(edges)
            }
            Input::Kronecker(graph) => {
                let blocks = share((EDGE_FACTOR << graph.scale).div_ceil(BLOCK_EDGES));
                Ok(blocks.flat_map(|block| graph.block(block)).collect())
            }
            Input::Edges(edges) => {
                let share = share(edges.len() as u64);
                Ok(edges[share.start as usize..share.end as usize].to_vec())
            }
        }
    }

    /// Returns the maximum number of edges of a part, if it is known before the part is read or generated.
    pub(super) fn edges_max(&self, parts: usize) -> Option<u64> {
        match self {
            Input::Kronecker(graph) => {
                let blocks = (EDGE_FACTOR << graph.scale).div_ceil(BLOCK_EDGES);
                Some(blocks.div_ceil(parts as u64) * BLOCK_EDGES.min(EDGE_FACTOR << graph.scale))
            }
            Input::File(_) | Input::Edges(_) => None,
        }
    }
}

impl EdgeList {
    /// Finds a file. Fails for pipes and devices, which workers cannot read in parts.
    pub fn find(path: &Path) -> Result<EdgeList, GraphError> {
        let to_error = |source| file_error(path, source);
        let metadata = std::fs::metadata(path).map_err(to_error)?;
        if !metadata.is_file() {
            return Err(to_error(io::Error::other("it is not a regular file")));
        }
        let changed = (metadata.mtime(), metadata.mtime_nsec());
        Ok(EdgeList { path: path.to_owned(), len: metadata.len(), changed })
    }
}

impl Kronecker {
    fn block(self, block: u64) -> impl Iterator<Item = Edge> {
        let mut random = Rng::with_seed(self.seed ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let edges = (EDGE_FACTOR << self.scale) - block * BLOCK_EDGES;
        (0..edges.min(BLOCK_EDGES)).map(move |_| {
            let (mut from, mut to) = (0, 0);
            for _ in 0..self.scale {
                let (row, column) = match random.u32(0..100) {
                    0..57 => (0, 0),
                    57..76 => (0, 1),
                    76..95 => (1, 0),
                    _ => (1, 1),
                };
                from = (from << 1) | row;
                to = (to << 1) | column;
            }
            (self.permute(from), self.permute(to))
        })
    }

    /// Permutes the ids: a multiplication by an odd factor and an xor with the shifted id are bijections.
    fn permute(self, id: u64) -> u64 {
        let mask = (1_u64 << self.scale) - 1;
        let mut id = id;
        for factor in [0x9e37_79b9_7f4a_7c15_u64, 0xd1b5_4a32_d192_ed03] {
            id = id.wrapping_mul(factor) & mask;
            id ^= id >> (self.scale / 2 + 1);
        }
        id
    }
}

/// Reads the lines that begin in a range of bytes.
fn read_part(path: &Path, range: std::ops::Range<u64>) -> Result<Vec<Edge>, GraphError> {
    let to_error = |source| file_error(path, source);
    let mut file = File::open(path).map_err(to_error)?;
    // A line that begins before the range belongs to the previous part.
    let begin = range.start.saturating_sub(1);
    file.seek(SeekFrom::Start(begin)).map_err(to_error)?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (mut at, mut line) = (begin, Vec::new());
    if range.start > 0 {
        at += reader.skip_until(b'\n').map_err(to_error)? as u64;
    }
    let mut edges = Vec::new();
    while at < range.end {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(to_error)?;
        if read == 0 {
            break;
        }
        match parse(&line) {
            Ok(edge) if !is_truncated(&line) => edges.extend(edge),
            Ok(None) if !line.trim_ascii_start().is_empty() => {
                // Skips the rest of a long comment.
                at += reader.skip_until(b'\n').map_err(to_error)? as u64;
            }
            _ => return Err(line_error(path, at, &line)),
        }
        at += read as u64;
    }
    Ok(edges)
}

/// Returns true if more bytes of the line follow.
fn is_truncated(line: &[u8]) -> bool {
    line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n')
}

/// Returns the edge of a line, or `None` for an empty line or a comment.
fn parse(line: &[u8]) -> Result<Option<Edge>, ()> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (Some(from), to) = (words.next(), words.next()) else { return Ok(None) };
    if matches!(from[0], b'#' | b'%') {
        return Ok(None);
    }
    match (parse_id(from), to.and_then(parse_id)) {
        // Further columns, such as weights or times, are ignored.
        (Some(from), Some(to)) => Ok(Some((from, to))),
        _ => Err(()),
    }
}

fn parse_id(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

fn file_error(path: &Path, source: io::Error) -> GraphError {
    GraphError::File { path: path.to_owned(), source }
}

/// Returns the error about the invalid line at offset `at`, with the line's number.
fn line_error(path: &Path, at: u64, line: &[u8]) -> GraphError {
    let before = File::open(path).and_then(|file| {
        let mut reader = BufReader::new(file.take(at));
        let mut lines = 0;
        while reader.skip_until(b'\n')? > 0 {
            lines += 1;
        }
        Ok(lines)
    });
    match before {
        Ok(before) if is_truncated(line) => GraphError::LongLine { path: path.to_owned(), line: before + 1 },
        Ok(before) => {
            let text = String::from_utf8_lossy(line).trim_end().chars().take(SHOWN_CHARS).collect();
            GraphError::Line { path: path.to_owned(), line: before + 1, text }
        }
        Err(source) => file_error(path, source),
    }
}
