//! Rules for documents: relative links lead to files of the tree, functions that are named by their file exist, and the changelog has
//! an open section.

use std::path::{Component, Path, PathBuf};

use crate::Finding;

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
            let is_there = source(&file).is_some_and(|source| source.contains(&format!("fn {function}")));
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
    fn a_changelog_without_an_open_section_is_found() {
        assert_eq!(changelog_is_open("# Changelog\n\n## 0.1.0\n").len(), 1);
        assert_eq!(changelog_is_open("").len(), 1);
        assert!(changelog_is_open("# Changelog\n\n## [Unreleased]\n").is_empty());
    }
}
