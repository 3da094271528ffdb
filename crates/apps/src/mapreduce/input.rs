//! Input: files and folders, divided into splits that cut no word and no line.
//!
//! A split is a range `begin..end` of bytes in a file. Its text begins after the first boundary byte at or after
//! offset `begin - 1`, and ends after the first boundary byte at or after offset `end - 1`. So the workers of adjacent
//! splits agree on their border without a message. Boundary bytes are ASCII, so no character is cut either.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::Error;

/// Length of a split: small enough that all workers finish at about the same time, large enough that the cost of an
/// order is negligible.
pub const SPLIT_BYTES: u64 = 1 << 20;
/// Maximum length of a text in which no word or line ends.
const TEXT_BYTES_MAX: usize = 1 << 30;
/// Bytes per read beyond the end of a split, to find the boundary.
const CONTINUATION_BYTES: usize = 64 << 10;

/// A file to read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Source {
    /// Path of the file.
    pub path: PathBuf,
    /// Length of the file in bytes. Bytes that are appended later are not read.
    pub len: u64,
}

/// A part of a file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Split {
    pub(super) file: u32,
    /// Number of this split in the file.
    pub(super) number: u32,
    path: Vec<u8>,
    begin: u64,
    end: u64,
    /// Length of the file.
    len: u64,
}

/// Lists files, and the files in folders, sorted by path. Symbolic links in folders are not followed; devices, sockets
/// and pipes in folders are left out.
pub fn list(paths: &[PathBuf]) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    let mut folders = Vec::new();
    for path in paths {
        let metadata = fs::metadata(path).map_err(|error| unreadable(path, error))?;
        if metadata.is_dir() {
            folders.push(path.clone());
        } else if metadata.is_file() {
            sources.push(Source { path: path.clone(), len: metadata.len() });
        } else {
            return Err(unreadable(path, io::Error::other("it is neither a file nor a folder")));
        }
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| unreadable(&folder, error))? {
            let path = entry.map_err(|error| unreadable(&folder, error))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(|error| unreadable(&path, error))?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() {
                sources.push(Source { path, len: metadata.len() });
            }
        }
    }
    sources.sort();
    Ok(sources)
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::Input { path: path.to_owned(), source }
}

/// Divides files into tasks of about [`SPLIT_BYTES`]: a split of a large file, or several small files.
pub(super) fn divide(sources: &[Source]) -> Vec<Vec<Split>> {
    let mut tasks = Vec::new();
    let (mut task, mut bytes) = (Vec::new(), 0);
    for (file, source) in sources.iter().enumerate() {
        for (number, begin) in (0..source.len).step_by(SPLIT_BYTES as usize).enumerate() {
            let end = source.len.min(begin + SPLIT_BYTES);
            let path = source.path.as_os_str().as_bytes().to_owned();
            task.push(Split { file: file as u32, number: number as u32, path, begin, end, len: source.len });
            bytes += end - begin;
            if bytes >= SPLIT_BYTES {
                tasks.push(std::mem::take(&mut task));
                bytes = 0;
            }
        }
    }
    tasks.extend((!task.is_empty()).then_some(task));
    tasks
}

/// Reads the texts of splits.
#[derive(Default)]
pub(super) struct Reader {
    /// The file of the last split, since the next one is often of the same file.
    open: Option<(u32, File)>,
    bytes: Vec<u8>,
}

impl Reader {
    /// Returns the text of a split, and the time that reading took.
    pub(super) fn read(
        &mut self,
        split: &Split,
        is_boundary: impl Fn(u8) -> bool,
    ) -> Result<(&mut [u8], Duration), Error> {
        let begin = Instant::now();
        let path = Path::new(OsStr::from_bytes(&split.path));
        let text = self.try_read(split, path, is_boundary).map_err(|error| unreadable(path, error))?;
        Ok((&mut self.bytes[text], begin.elapsed()))
    }

    fn try_read(
        &mut self,
        split: &Split,
        path: &Path,
        is_boundary: impl Fn(u8) -> bool,
    ) -> io::Result<std::ops::Range<usize>> {
        if self.open.as_ref().is_none_or(|(file, _)| *file != split.file) {
            self.open = Some((split.file, File::open(path)?));
        }
        let (_, file) = self.open.as_ref().expect("the file was opened");
        let bytes = &mut self.bytes;
        bytes.clear();
        let first = split.begin.saturating_sub(1);
        read_more(file, first, (split.end - first) as usize, bytes)?;
        let mut start = 0;
        if split.begin > 0 {
            let before_last = &bytes[..bytes.len().saturating_sub(1)];
            match before_last.iter().position(|byte| is_boundary(*byte)) {
                Some(boundary) => start = boundary + 1,
                // A word or line that starts in an earlier split covers the whole split.
                None => return Ok(0..0),
            }
        }
        if bytes.last().is_some_and(|byte| is_boundary(*byte)) {
            return Ok(start..bytes.len());
        }
        loop {
            let read = bytes.len();
            let rest = split.len.saturating_sub(first + read as u64);
            let count = read_more(file, first + read as u64, CONTINUATION_BYTES.min(rest as usize), bytes)?;
            if let Some(boundary) = bytes[read..].iter().position(|byte| is_boundary(*byte)) {
                return Ok(start..read + boundary + 1);
            }
            if count == 0 {
                return Ok(start..read);
            }
            if bytes.len() > TEXT_BYTES_MAX {
                return Err(io::Error::other("a word or line is longer than 1 GiB"));
            }
        }
    }
}

/// Appends up to `len` bytes from `offset` to `bytes`; fewer at the end of the file. Returns their number.
fn read_more(file: &File, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let begin = bytes.len();
    bytes.resize(begin + len, 0);
    let mut count = 0;
    while count < len {
        match file.read_at(&mut bytes[begin + count..], offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(begin + count);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads `bytes` as splits that begin at `cuts`.
    fn read_in_splits(bytes: &[u8], mut cuts: Vec<u64>) -> Vec<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, bytes).unwrap();
        let len = bytes.len() as u64;
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut reader = Reader::default();
        let read = |ends: &[u64]| {
            let path = path.as_os_str().as_bytes().to_owned();
            let split = Split { file: 0, number: 0, path, begin: ends[0], end: ends[1], len };
            reader.read(&split, |byte| byte == b' ').unwrap().0.to_owned()
        };
        cuts.windows(2).map(read).collect()
    }

    proptest! {
        #[test]
        fn splits_cut_no_word_and_miss_no_byte(
            text in "[a-c é]{0,60}",
            cuts in prop::collection::vec(0u64..90, 0..6),
        ) {
            let cuts = cuts.into_iter().filter(|cut| *cut < text.len() as u64).collect();
            let texts = read_in_splits(text.as_bytes(), cuts);
            prop_assert_eq!(texts.concat(), text.as_bytes());
            for text in texts.iter().rev().skip_while(|text| text.is_empty()).skip(1) {
                prop_assert!(text.is_empty() || text.ends_with(b" "));
            }
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = list(&["/nowhere/text".into()]).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /nowhere/text: "), "{error}");
    }
}
