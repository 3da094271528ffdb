//! Replaces tables in documents. Each table stands between two markers: `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

use std::fmt::Display;
use std::fs;
use std::path::Path;

/// Checks that the document at `path` has both markers, in order.
pub fn check(path: &Path, name: &str) -> Result<(), String> {
    replaced_file(path, name, "").map(drop)
}

/// Replaces the text between the markers of the document at `path` by `table`.
pub fn splice(path: &Path, name: &str, table: &str) -> Result<(), String> {
    let text = replaced_file(path, name, table)?;
    fs::write(path, text).map_err(|error| failed(path, error))
}

fn replaced_file(path: &Path, name: &str, table: &str) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| failed(path, error))?;
    let (begin, end) = markers(name);
    let missing = || failed(path, format!("the document has no line `{begin}` with a line `{end}` below it"));
    replaced(&text, name, table).ok_or_else(missing)
}

fn failed(path: &Path, cause: impl Display) -> String {
    format!("cannot put the table into {}: {cause}", path.display())
}

fn markers(name: &str) -> (String, String) {
    (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"))
}

fn replaced(text: &str, name: &str, table: &str) -> Option<String> {
    let (begin, end) = markers(name);
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_is_replaced() {
        let text = "above\n<!-- a:begin -->\nold\n<!-- a:end -->\nbelow\n";
        let new = replaced(text, "a", "new\n").unwrap();
        assert_eq!(new, "above\n<!-- a:begin -->\nnew\n<!-- a:end -->\nbelow\n");
        assert_eq!(replaced("<!-- a:end -->\n<!-- a:begin -->\n", "a", "new\n"), None);
    }
}
