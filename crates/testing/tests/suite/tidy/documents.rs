//! Rules for documents: relative links lead to files of the tree, what is named by its file or path exists, the glossary is short, and the
//! changelog has an open section.

use std::path::{Component, Path, PathBuf};

use super::Finding;
use super::tree::File;

/// Relative links of the Markdown text at `path` whose target does not exist.
pub fn broken_links(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (number, line) in prose_lines(text) {
        for target in link_targets(line).filter(|target| is_relative(target)) {
            let file = target.split('#').next().unwrap_or_default();
            if !normalised(&folder.join(file)).is_some_and(|file| exists(&file)) {
                findings.push(Finding::new(
                    format!("{path}:{number}"),
                    format!("the link to {target} leads nowhere"),
                ));
            }
        }
    }
    findings
}

/// What the text at `path` names as `` `FILE.rs: function` `` and is not there; `source` reads a file of the tree.  And how many are.
pub fn missing_functions(
    path: &str,
    text: &str,
    source: impl Fn(&str) -> Option<String>,
) -> (usize, Vec<Finding>) {
    let (mut found, mut findings) = (0, Vec::new());
    for (number, line) in prose_lines(text) {
        let named = line.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(".rs: "));
        for (file, function) in named {
            let file = format!("{file}.rs");
            // Its name ends there: generics or arguments follow.
            let is_there = source(&file).is_some_and(|source| {
                ['(', '<'].iter().any(|behind| source.contains(&format!("fn {function}{behind}")))
            });
            match is_there {
                true => found += 1,
                false => findings.push(Finding::new(
                    format!("{path}:{number}"),
                    format!("there is no function {function} in {file}"),
                )),
            }
        }
    }
    (found, findings)
}

/// What the text at `path` names in inline code and is not among `files`: files, items by a path that begins with their crate, and
/// constants.
pub fn missing_names(path: &str, text: &str, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in prose_lines(text) {
        let missing = line.split('`').skip(1).step_by(2).filter(|code| !is_there(code, files));
        findings.extend(
            missing.map(|code| Finding::new(format!("{path}:{number}"), format!("there is no {code}"))),
        );
    }
    findings
}

/// Whether inline code names something that is there, as far as can be told.
fn is_there(code: &str, files: &[File]) -> bool {
    // As in a path that tells how others are made.
    let is_example = code.contains("NAME") || code.contains(": ");
    if code.starts_with("crates/") && !is_example {
        let folder = format!("{}/", code.trim_end_matches('/'));
        return files.iter().any(|file| file.path == code || file.path.starts_with(&folder));
    }
    let is_constant = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if code.contains("_") && code.bytes().all(is_constant) && !code.starts_with("HALITE_") {
        return files.iter().any(|file| declares(&file.text, code));
    }
    let is_path = code.bytes().all(|byte| byte.is_ascii_alphanumeric() || [b'_', b':'].contains(&byte));
    let Some((krate, item)) = code.split_once("::").filter(|_| is_path) else { return true };
    let mut sources =
        files.iter().filter(|file| file.path.starts_with(&format!("crates/{krate}/src/"))).peekable();
    let name = item.rsplit("::").next().unwrap_or(item);
    sources.peek().is_none() || sources.any(|file| declares(&file.text, name))
}

fn declares(source: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait", "mod", "const", "type"];
    kinds.iter().any(|kind| {
        let declaration = format!("{kind} {name}");
        source.match_indices(&declaration).any(|(at, _)| {
            let next = source[at + declaration.len()..].chars().next();
            !next.is_some_and(|next| next.is_alphanumeric() || next == '_')
        })
    })
}

/// The terms of the table below `## Glossary`.
pub fn glossary(text: &str) -> Vec<&str> {
    let section = text.split("\n## Glossary\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    rows.map(|(term, _)| term).filter(|term| *term != "term").collect()
}

/// Whether the changelog has a section for what is not released yet.
pub fn changelog_is_open(text: &str) -> Vec<Finding> {
    let is_open = text.lines().any(|line| matches!(line.trim_end(), "## Unreleased" | "## [Unreleased]"));
    if is_open { Vec::new() } else { vec![Finding::new("CHANGELOG.md", "has no section `## Unreleased`")] }
}

/// Numbered lines outside of fenced code.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line))
    })
}

/// What stands in the parentheses of `[text](target)`, leaving out inline code: in an odd piece between backticks.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let prose = line.split('`').step_by(2);
    prose.flat_map(|piece| {
        // A link whose text is inline code begins in an earlier piece; its target still follows "](".
        piece.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim())
    })
}

fn is_relative(target: &str) -> bool {
    !target.is_empty()
        && !target.starts_with('#')
        && !target.contains("://")
        && !target.starts_with("mailto:")
}

/// Resolves `..` without looking at the disk; `None` if the path leaves the tree.
fn normalised(path: &Path) -> Option<String> {
    let mut kept = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => kept.push(name),
            Component::ParentDir if kept.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(kept.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: usize) {
        let exists = |path: &str| ["docs/protocol.md", "README.md", "docs"].contains(&path);
        let found = broken_links("docs/index.md", text, exists);
        assert_eq!(found.len(), expected, "{text}: {found:?}");
    }

    #[test]
    fn a_planted_broken_link_is_found_with_its_line() {
        let found = broken_links("README.md", "fine\n[a](no/such.md#part)\n", |_| false);
        assert_eq!(found[0].place, "README.md:2");
        check("[a](protocol.md) and [b](missing.md)", 1);
        check("[`code`](missing.md)", 1);
        check("[out of the tree](../../etc/passwd)", 1);
    }

    #[test]
    fn links_that_lead_somewhere_are_left_alone() {
        check("[a](protocol.md#words) [b](../README.md) [c](./protocol.md) [d](..//docs)", 0);
        check("[web](https://example.org/x.md) [here](#words) [mail](mailto:a@example.org)", 0);
        check("```\n[in code](missing.md)\n```\nand `[inline](missing.md)`", 0);
    }

    #[test]
    fn functions_that_are_named_and_not_there_are_found() {
        let source = |path: &str| (path == "a.rs").then(|| "pub fn walk() {}".to_owned());
        let text = "1. `a.rs: walk`: goes, `fn`.\n2. `a.rs: run`, or `b.rs: walk`.\n";
        let (found, missing) = missing_functions("A.md", text, source);
        let missing: Vec<String> = missing.iter().map(Finding::to_string).collect();
        assert_eq!(found, 1);
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing.iter().all(|finding| finding.starts_with("A.md:2")), "{missing:?}");
    }

    #[test]
    fn names_of_what_is_not_there_are_found() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files =
            [file("crates/mem/src/pins.rs", "pub struct Pins;\nconst PINS_MAX: usize = 1;\npub mod tests;")];
        let text = "`crates/mem/src/`, `mem::Pins`, `mem::pins::tests`, `PINS_MAX`, `HALITE_DIR`, `std::mem`, `Pins::pin`\n\
                    `crates/mem/src/pin.rs`, `mem::Pin`, `PIN_MAX`\n";
        let missing: Vec<String> =
            missing_names("A.md", text, &files).iter().map(Finding::to_string).collect();
        assert_eq!(missing.len(), 3, "{missing:?}");
        assert!(missing.iter().all(|finding| finding.starts_with("A.md:2")), "{missing:?}");
    }

    #[test]
    fn the_terms_of_a_glossary_are_its_first_column() {
        let text = "# A\n\n## Glossary\n\n| term | meaning |\n|---|---|\n| ring, slot | where |\n\n## B\n\n| x | y |\n";
        assert_eq!(glossary(text), ["ring, slot"]);
    }

    #[test]
    fn a_changelog_without_an_open_section_is_found() {
        assert_eq!(changelog_is_open("# Changelog\n\n## 0.1.0\n").len(), 1);
        assert_eq!(changelog_is_open("").len(), 1);
        assert!(changelog_is_open("# Changelog\n\n## [Unreleased]\n").is_empty());
    }
}
