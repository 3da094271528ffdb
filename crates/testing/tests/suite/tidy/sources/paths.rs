//! The paths that code mentions: in `use` trees, written out in full, or through a module that was imported.

use std::fmt;

/// A path as it stands after `use` trees are unfolded and imported modules are put in front.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path(String);

impl Path {
    /// Whether this is `module`, something in it, or a glob that takes it in.
    pub fn is_within(&self, module: &str) -> bool {
        let glob = self.0.strip_suffix("::*").is_some_and(|parent| is_below(module, parent));
        glob || is_below(&self.0, module)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One mention.
pub struct Mention {
    /// What is mentioned.
    pub path: Path,
    /// On which line, from one.
    pub line: usize,
}

/// Everything with a `::` in `code` (comments and literals blanked), and whatever `use` items import.
pub fn mentioned(code: &str) -> Vec<Mention> {
    let mut mentions = Vec::new();
    let mut imported = Vec::new();
    let (mut at, mut line, mut counted) = (0, 1, 0);
    while at < code.len() {
        let rest = &code[at..];
        // From the last token on: from the beginning, a long file takes seconds.
        line += code[counted..at].matches('\n').count();
        counted = at;
        let len = token_len(rest);
        if &rest[..len] == "use" {
            let tree = rest[len..].split(';').next().unwrap_or_default();
            let mut found = Vec::new();
            unfold("", tree, &mut found);
            mentions.extend(found.iter().map(|path| Mention { path: Path(path.clone()), line }));
            imported.extend(found);
            at += len + tree.len();
        } else {
            if rest[..len].contains("::") {
                mentions.push(Mention { path: Path(resolve(&rest[..len], &imported)), line });
            }
            at += len;
        }
    }
    mentions
}

/// The length of the path or single character that `rest` begins with.
fn token_len(rest: &str) -> usize {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let len = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
    if len == 0 { rest.chars().next().map_or(1, char::len_utf8) } else { len }
}

/// Appends all paths of a `use` tree below `prefix`.
fn unfold(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    if let Some((head, inner)) = tree.split_once('{') {
        let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
        let prefix = format!("{prefix}{}", head.trim());
        split_outside_braces(inner).into_iter().for_each(|branch| unfold(&prefix, branch, found));
    } else if !tree.is_empty() {
        let name = tree.split(" as ").next().unwrap_or(tree).trim();
        let path =
            if name == "self" { prefix.trim_end_matches("::").to_owned() } else { format!("{prefix}{name}") };
        found.push(path.trim_start_matches("::").to_owned());
    }
}

fn split_outside_braces(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut pieces) = (0i32, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&list[start..]);
    pieces
}

/// Puts the module's own path in front where `path` begins with the name of an imported one.
fn resolve(path: &str, imported: &[String]) -> String {
    let path = path.trim_start_matches("::");
    let (first, rest) = path.split_once("::").unwrap_or((path, ""));
    let module =
        imported.iter().find(|module| module.rsplit("::").next() == Some(first) && module.contains("::"));
    module.map_or_else(|| path.to_owned(), |module| format!("{module}::{rest}"))
}

fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::mentioned;

    #[track_caller]
    fn check(code: &str, expected: &[&str]) {
        let found: Vec<String> = mentioned(code).iter().map(|mention| mention.path.to_string()).collect();
        assert_eq!(found, expected, "{code}");
    }

    #[test]
    fn trees_unfold_to_whole_paths() {
        check("use a::b;", &["a::b"]);
        check("use a::{b, c::{self, d as e}, f::*};", &["a::b", "a::c", "a::c::d", "a::f::*"]);
        check("pub use ::a::{\n    b,\n};", &["a::b"]);
    }

    #[test]
    fn imported_modules_are_followed() {
        check("use a::b; fn f() { b::c() }", &["a::b", "a::b::c"]);
        check("fn f() { a::b::<u8>::c() }", &["a::b::", "::c"].map(|path| path.trim_start_matches("::")));
    }
}
