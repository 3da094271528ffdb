//! Blanks out what is not code: comments, and the insides of string and character literals.
//!
//! Knows just enough of Rust's lexical grammar for that: nested comments, raw and byte strings, and that `'a` may be a
//! lifetime.  Lines keep their numbers.

/// `text` with every character of a comment or literal replaced by a space; line ends stay.
pub fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = not_code(rest, code.chars().next_back());
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    code
}

/// How many bytes at the start of `rest` are a comment or literal; `before` is the character ahead of it.
fn not_code(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let is_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if is_word { 0 } else { raw_string(rest) }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a literal between `quote`s with backslash escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// A character literal; 0 for a lifetime, which has no closing quote behind its first character.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => quoted(rest, '\''),
        (_, Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

/// `r"..."` and `r#"..."#`, also with a `b` or `c` in front; 0 for anything else.
fn raw_string(rest: &str) -> usize {
    let body = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let Some(body) = body.strip_prefix('r') else {
        return 0;
    };
    let hashes = body.len() - body.trim_start_matches('#').len();
    if !body[hashes..].starts_with('"') {
        return 0;
    }
    let opened = rest.len() - body.len() + hashes + 1;
    let closing = format!("\"{}", "#".repeat(hashes));
    rest[opened..].find(&closing).map_or(rest.len(), |at| opened + at + closing.len())
}

#[cfg(test)]
mod tests {
    use super::code_only;

    /// Expects that of the words in `text` only those in `kept` survive.
    #[track_caller]
    fn check(text: &str, kept: &str) {
        let code = code_only(text);
        let words: Vec<&str> =
            code.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        assert_eq!(words.join(" "), kept, "{text}");
        assert_eq!(code.lines().count(), text.lines().count(), "lines keep their numbers");
    }

    #[test]
    fn comments_go_and_code_stays() {
        check("one // two\nthree /* four\n /* five */ six */ seven", "one three seven");
        check("one /// \"\ntwo", "one two");
    }

    #[test]
    fn strings_go_with_their_escapes() {
        check(r#"one "two \" three" four"#, "one four");
        check("one r#\"two \" three\"# four br\"five\" six", "one four six");
        check("one \"// two\" three", "one three");
    }

    #[test]
    fn a_quote_may_be_a_character_or_a_lifetime() {
        check("one '\"' two '\\'' three", "one two three");
        check("fn f<'a>(x: &'a str) {}", "fn f a x a str");
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_file() {
        check("one \"two", "one");
        check("one /* two", "one");
        check("one r#\"two", "one");
    }
}
