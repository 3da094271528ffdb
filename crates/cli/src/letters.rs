//! Permissions as letters: `r` read, `w` write, `a` atomic, `m` master.

use std::fmt::{self, Write};

use halite::Permissions;

const LETTERS: [(char, Permissions); 4] = [
    ('r', Permissions::READ),
    ('w', Permissions::WRITE),
    ('a', Permissions::ATOMIC),
    ('m', Permissions::MASTER),
];

/// Parses permissions, for example `rw`, `rwam` or `none`.
pub fn parse(text: &str) -> Result<Permissions, String> {
    if text == "none" {
        return Ok(Permissions::empty());
    }
    let expected = || "expected letters of `rwam` (read, write, atomic, master), or `none`".to_owned();
    if text.is_empty() {
        return Err(expected());
    }
    let find =
        |letter: char| LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, permission)| *permission);
    text.chars().try_fold(Permissions::empty(), |sum, letter| Ok(sum | find(letter).ok_or_else(expected)?))
}

/// Parses permissions as [`parse`] does, but rejects `none`.
pub fn parse_some(text: &str) -> Result<Permissions, String> {
    match parse(text)? {
        none if none.is_empty() => Err("expected letters of `rwam` (read, write, atomic, master)".to_owned()),
        some => Ok(some),
    }
}

/// Formats permissions as letters; the inverse of [`parse`].
pub fn format(permissions: Permissions) -> String {
    display(permissions).to_string()
}

/// Returns permissions that print as [`format`] formats them.
pub fn display(permissions: Permissions) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        if permissions.is_empty() {
            return f.write_str("none");
        }
        let given = LETTERS.iter().filter(|(_, permission)| permissions.contains(*permission));
        given.map(|(letter, _)| *letter).try_for_each(|letter| f.write_char(letter))
    })
}
