//! Quotes words for shells, in commands that users may paste.

use std::borrow::Cow;

/// Quotes `word` so that a shell reads it as one word and a terminal shows it unchanged. Paths and names may come from
/// other users, and may hold blanks, shell characters and escapes.
pub fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    let is_printable =
        |letter: char| matches!(letter, '\'' | '"' | '\\') || letter.escape_debug().count() == 1;
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.chars().all(is_printable) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = "$'".to_owned();
    for letter in word.chars() {
        match letter {
            '\'' | '\\' => text.extend(['\\', letter]),
            _ if is_printable(letter) => text.push(letter),
            // Three digits, so that a following digit cannot belong to the code.
            _ => text.extend(letter.to_string().bytes().map(|byte| format!("\\{byte:03o}"))),
        }
    }
    text + "'"
}

/// Quotes a positional argument as [`quoted`] does, and prevents it from beginning with a dash, because the command
/// would take it for an option.
pub fn argument(name: &str) -> String {
    if name.starts_with('-') { format!("-- {}", quoted(name)) } else { quoted(name) }
}

/// Returns a name as a table shows it: quoted if a blank at its end, which the table hides, would make it look like
/// another name, or if it looks quoted itself.
pub fn shown(name: &str) -> Cow<'_, str> {
    match name.trim() != name || name.starts_with(['\'', '$']) {
        true => quoted(name).into(),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_reach_the_shell_unchanged() {
        for word in ["$(echo no)", "`echo`;&|>*~#!", "it's\n\x1b[2J'\\\u{202e}7ä\u{9b}1", "\x01\t\r\x7f"] {
            let quoted = quoted(word);
            assert!(
                !quoted.contains(|letter: char| letter.is_control() || letter == '\u{202e}'),
                "{quoted:?}"
            );
            let script = format!("printf %s {quoted}");
            let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
