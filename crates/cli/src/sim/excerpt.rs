//! Selects the last trace lines about the hosts of a violation.

use std::collections::BTreeSet;

/// Returns at most `count` lines of a trace, the last ones before its violation. Returns only lines about the hosts
/// that the violation names, or about all hosts if it names none.
pub fn last_lines<'a>(trace: &'a [String], violation: &str, count: usize) -> Vec<&'a str> {
    let hosts = hosts_named(violation);
    let concerns = |line: &&String| hosts.is_empty() || words(line).any(|word| is_about(word, &hosts));
    let end = trace.iter().position(|line| line.contains("VIOLATION")).map_or(trace.len(), |index| index + 1);
    let mut lines: Vec<&str> =
        trace[..end].iter().rev().filter(concerns).take(count).map(String::as_str).collect();
    lines.reverse();
    lines
}

/// Returns true if a line with this word concerns one of the hosts. Lines with the word `story` report faults, which
/// concern all hosts.
fn is_about(word: &str, hosts: &BTreeSet<u32>) -> bool {
    word == "story" || number(word, "host-").is_some_and(|host| hosts.contains(&host))
}

/// Returns the numbers after the word `node` in a violation; hosts have the numbers of their nodes.
fn hosts_named(violation: &str) -> BTreeSet<u32> {
    let pairs = words(violation).zip(words(violation).skip(1));
    pairs.filter(|(word, _)| *word == "node").filter_map(|(_, number)| number.parse().ok()).collect()
}

fn number(word: &str, prefix: &str) -> Option<u32> {
    word.strip_prefix(prefix)?.parse().ok()
}

/// Returns the words of a text: sequences of letters, digits and hyphens.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '-').filter(|word| !word.is_empty())
}
