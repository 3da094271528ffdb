//! Who has to do with a violation, and what they did last.

use std::collections::BTreeSet;

/// The last lines of a trace up to its violation, `count` at most, that tell of hosts which that names; of all hosts
/// if it names none.
pub fn last_lines<'a>(trace: &'a [String], violation: &str, count: usize) -> Vec<&'a str> {
    let hosts = hosts_named(violation);
    let concerns = |line: &&String| hosts.is_empty() || words(line).any(|word| is_about(word, &hosts));
    let end = trace.iter().position(|line| line.contains("VIOLATION")).map_or(trace.len(), |index| index + 1);
    let mut lines: Vec<&str> =
        trace[..end].iter().rev().filter(concerns).take(count).map(String::as_str).collect();
    lines.reverse();
    lines
}

/// The story tells of faults, which concern everybody.
fn is_about(word: &str, hosts: &BTreeSet<u32>) -> bool {
    word == "story" || number(word, "host-").is_some_and(|host| hosts.contains(&host))
}

/// The numbers that stand behind the word `node`: hosts are numbered as their nodes are.
fn hosts_named(violation: &str) -> BTreeSet<u32> {
    let pairs = words(violation).zip(words(violation).skip(1));
    pairs.filter(|(word, _)| *word == "node").filter_map(|(_, number)| number.parse().ok()).collect()
}

fn number(word: &str, prefix: &str) -> Option<u32> {
    word.strip_prefix(prefix)?.parse().ok()
}

/// Letters, digits and hyphens that stand together.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '-').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Vec<String> {
        let lines = [
            "host-1   posts",
            "host-2   posts",
            "story    cuts the link",
            "host-12  posts",
            "host-3   waits for host-1",
        ];
        lines.iter().enumerate().map(|(us, line)| format!("{us:>9}.000 us  {line}")).collect()
    }

    #[track_caller]
    fn check(violation: &str, count: usize, expected: &[usize]) {
        let trace = trace();
        let expected: Vec<&str> = expected.iter().map(|index| trace[*index].as_str()).collect();
        assert_eq!(last_lines(&trace, violation, count), expected);
    }

    #[test]
    fn lines_are_kept_of_the_hosts_that_a_violation_names() {
        check("session 0 of node 1 read what nobody wrote", 10, &[0, 2, 4]);
        check("node 2, and node 12: too late", 10, &[1, 2, 3]);
    }

    #[test]
    fn what_happens_after_the_violation_is_left_out() {
        let mut trace = trace();
        trace[1] = "story VIOLATION: of node 1".to_owned();
        assert_eq!(last_lines(&trace, "of node 1", 10), [&trace[0], &trace[1]]);
    }

    #[test]
    fn without_names_the_last_lines_of_all_are_kept() {
        check("all wait for ever", 2, &[3, 4]);
    }
}
