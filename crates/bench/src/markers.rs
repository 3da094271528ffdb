//! Replaces tables in documents. Each table stands between two markers: `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Cause of a failed replacement.
#[derive(Debug, thiserror::Error)]
pub enum MarkersError {
    /// The document cannot be read or written.
    #[error("cannot put the table into {path}: {source}")]
    Io {
        /// Path of the document.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The document lacks a marker, or its markers are in the wrong order.
    #[error("cannot put the table into {path}: the document has no line `{}` with a line `{}` below it", begin(.name), end(.name))]
    Missing {
        /// Path of the document.
        path: PathBuf,
        /// Name of the table.
        name: &'static str,
    },
}

/// Checks that the document at `path` has both markers, in order.
pub fn check(path: &Path, name: &'static str) -> Result<(), MarkersError> {
    replaced(path, name, &read(path)?, "").map(|_| ())
}

/// Replaces the text between the markers of the document at `path` by `table`.
pub fn splice(path: &Path, name: &'static str, table: &str) -> Result<(), MarkersError> {
    let text = replaced(path, name, &read(path)?, table)?;
    fs::write(path, text).map_err(|source| MarkersError::Io { path: path.to_path_buf(), source })
}

fn begin(name: &str) -> String {
    format!("<!-- {name}:begin -->")
}

fn end(name: &str) -> String {
    format!("<!-- {name}:end -->")
}

fn read(path: &Path) -> Result<String, MarkersError> {
    fs::read_to_string(path).map_err(|source| MarkersError::Io { path: path.to_path_buf(), source })
}

fn replaced(path: &Path, name: &'static str, text: &str, table: &str) -> Result<String, MarkersError> {
    let missing = || MarkersError::Missing { path: path.to_path_buf(), name };
    let (begin, end) = (begin(name), end(name));
    let (before, rest) = text.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}\n{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_is_replaced() {
        let text = "above\n<!-- a:begin -->\nold\n<!-- a:end -->\nbelow\n";
        let new = replaced(Path::new("a.md"), "a", text, "new\n").unwrap();
        assert_eq!(new, "above\n<!-- a:begin -->\nnew\n<!-- a:end -->\nbelow\n");
        assert!(replaced(Path::new("a.md"), "a", "<!-- a:end -->\n<!-- a:begin -->\n", "new\n").is_err());
    }
}
