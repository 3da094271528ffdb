//! Matches keys against the glob patterns of `KEYS` and `SCAN`.

/// Returns true if a name matches a pattern: `*` matches any bytes, `?` one byte, `[a-c]` one byte of a set and
/// `[^a-c]` one byte outside; a backslash quotes the next byte. Takes time of at most the product of both lengths.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern_at, mut name_at) = (0, 0);
    // Positions to continue at if the part after the last star does not match. The star then matches one more byte.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(pattern_at) == Some(&b'*') {
            pattern_at += 1;
            retry = Some((pattern_at, name_at));
            continue;
        }
        let fits = match (name.get(name_at), pattern_at == pattern.len()) {
            (None, is_end) => return is_end,
            (Some(_), true) => None,
            (Some(byte), false) => match_element(&pattern[pattern_at..], *byte),
        };
        match (fits, retry) {
            (Some(len), _) => (pattern_at, name_at) = (pattern_at + len, name_at + 1),
            (None, None) => return false,
            (None, Some((after_star, skipped))) => {
                retry = Some((after_star, skipped + 1));
                (pattern_at, name_at) = (after_star, skipped + 1);
            }
        }
    }
}

/// Returns the length of the pattern's first element if it matches the byte; `None` otherwise.
fn match_element(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', set @ ..] => {
            let (len, is_in) = match_set(set, byte);
            is_in.then_some(1 + len)
        }
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

/// Returns the length of a set with its closing bracket, and whether it contains the byte. An unclosed set ends with
/// the pattern.
fn match_set(set: &[u8], byte: u8) -> (usize, bool) {
    let is_inverted = set.first() == Some(&b'^');
    let mut at = usize::from(is_inverted);
    let mut is_in = false;
    loop {
        let (len, hit) = match &set[at..] {
            [] => return (set.len(), is_in != is_inverted),
            [b']', ..] => return (at + 1, is_in != is_inverted),
            [b'\\', escaped, ..] => (2, *escaped == byte),
            [from, b'-', to, ..] => (3, (*from.min(to)..=*from.max(to)).contains(&byte)),
            [one, ..] => (1, *one == byte),
        };
        is_in |= hit;
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, yes, no) in [
            ("h?llo", &["hello", "hallo"][..], &["hllo", "heello"][..]),
            ("h*llo", &["hllo", "heeello", "hllollo"], &["hell", "ello"]),
            ("*a*b", &["ab", "xaxb", "abb", "abab"], &["ba", "a", "abx"]),
            ("h[ae]llo", &["hello", "hallo"], &["hillo", "hllo"]),
            ("h[^e]llo", &["hallo"], &["hello"]),
            ("h[c-a]llo", &["hbllo"], &["hdllo"]),
            ("a\\*", &["a*"], &["ab"]),
            ("[\\]]", &["]"], &["\\"]),
            ("[ab", &["a"], &["["]),
            ("a\\", &["a\\"], &["a"]),
        ] {
            for name in yes {
                assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
            }
        }
        // These need time exponential in the number of stars if a match backtracks to earlier stars.
        assert!(!matches(&b"*a".repeat(100), &b"a".repeat(99)));
        assert!(!matches(&[&b"*a".repeat(200)[..], b"b"].concat(), &b"a".repeat(5_000)));
    }
}
