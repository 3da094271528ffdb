//! Rules for sources and manifests, each a function from one file's path and text to findings.

pub mod lexer;
pub mod paths;

use super::Finding;

/// A file longer than this surely holds more than one idea; typical ones have a few hundred lines.
const LINES_MAX: usize = 900;

/// The crates with a licence for `unsafe`: those that touch memory which the compiler does not own.
const UNSAFE_CRATES: &[&str] = &["crates/mem/", "crates/providers/", "crates/capi/", "crates/python/"];

/// The crates whose whole outside world is their arguments, so that a seed replays them.
const PURE_CRATES: &[&str] = &["crates/rnic/src/", "crates/tier/src/", "crates/sim/src/"];

/// Paths that reach the outside world, or smuggle state from one call into another.
const IMPURE_PATHS: &[&str] = &[
    "std::net",
    "std::os::unix::net",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::env",
    "std::fs",
    "std::process",
    "std::sync::LazyLock",
    "std::sync::Once",
    "rustix",
    "libc",
];

/// `unsafe` outside of the crates that may have it.
pub fn unsafe_is_confined(path: &str, text: &str) -> Vec<Finding> {
    if UNSAFE_CRATES.iter().any(|allowed| path.starts_with(allowed)) {
        return Vec::new();
    }
    let what = "`unsafe` stands only in mem, providers and the bindings; offer a safe function there";
    lines_with(&lexer::code_only(text), |line| words(line).any(|word| word == "unsafe"))
        .map(|number| Finding::new(format!("{path}:{number}"), what))
        .collect()
}

/// Anything in a pure crate's sources that knows a socket, thread, clock, environment variable, file or global.
pub fn pure_crates_stay_pure(path: &str, text: &str) -> Vec<Finding> {
    if !PURE_CRATES.iter().any(|pure| path.starts_with(pure)) {
        return Vec::new();
    }
    let code = lexer::code_only(text);
    let mentioned = paths::mentioned(&code);
    let impure =
        mentioned.into_iter().filter(|mention| IMPURE_PATHS.iter().any(|bad| mention.path.is_within(bad)));
    let mut findings: Vec<Finding> = impure
        .map(|mention| {
            let what = format!("mentions {}: take it as an argument instead", mention.path);
            Finding::new(format!("{path}:{}", mention.line), what)
        })
        .collect();
    let globals = lines_with(&code, declares_a_global);
    findings
        .extend(globals.map(|number| Finding::new(format!("{path}:{number}"), "declares a mutable global")));
    findings
}

/// A file that has grown past [`LINES_MAX`].
pub fn length_is_bounded(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![Finding::new(path, format!("has {lines} lines, more than {LINES_MAX}: split it by ideas"))]
}

/// A manifest without `[lints] workspace = true`.
pub fn lints_are_inherited(path: &str, text: &str) -> Vec<Finding> {
    let mut section = text.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    let inherits =
        section.by_ref().take_while(|line| !line.starts_with('[')).any(|line| line == "workspace = true");
    if inherits { Vec::new() } else { vec![Finding::new(path, "does not say `[lints] workspace = true`")] }
}

/// A `static` that can change: marked so, or of a type that changes behind a shared reference.
fn declares_a_global(line: &str) -> bool {
    // The lifetime keeps its quote here, so that only the keyword is a word of its own.
    let is_static = line.split_whitespace().any(|word| word == "static");
    let changes = |word: &str| {
        word == "mut" || word.starts_with("Atomic") || ["Mutex", "RwLock", "OnceLock"].contains(&word)
    };
    words(line).any(|word| word == "thread_local" || (is_static && changes(word)))
}

/// Numbers, from one, of the lines that `is_hit` accepts.
fn lines_with(code: &str, is_hit: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
    code.lines().enumerate().filter(move |(_, line)| is_hit(line)).map(|(index, _)| index + 1)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_unsafe_is_found_outside_of_its_crates_only() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(unsafe_is_confined("crates/halite/src/a.rs", text)[0].place, "crates/halite/src/a.rs:2");
        assert_eq!(unsafe_is_confined("crates/halite/tests/a.rs", text).len(), 1);
        assert!(unsafe_is_confined("crates/mem/src/a.rs", text).is_empty());
        assert!(
            unsafe_is_confined("crates/memory/src/a.rs", text).len() == 1,
            "a prefix of a name is not the name"
        );
    }

    #[test]
    fn talking_about_unsafe_is_not_writing_it() {
        let text = "//! unsafe\n#![forbid(unsafe_code)]\n/* unsafe /* unsafe */ */\nlet a = \"unsafe\"; let b = r#\"unsafe\"#;\n";
        assert!(unsafe_is_confined("crates/halite/src/a.rs", text).is_empty());
    }

    #[track_caller]
    fn check_impure(text: &str, expected: usize) {
        let found = pure_crates_stay_pure("crates/tier/src/a.rs", text);
        assert_eq!(found.len(), expected, "{text}: {found:?}");
        assert!(pure_crates_stay_pure("crates/halite/src/a.rs", text).is_empty());
    }

    #[test]
    fn planted_clocks_threads_sockets_and_variables_are_found() {
        check_impure("fn f() { std::thread::yield_now(); }", 1);
        check_impure("use std::time::Instant;", 1);
        check_impure("use std::{collections::BTreeMap, time::{Duration, SystemTime}};", 1);
        check_impure("use std::{\n    env,\n    net as network,\n};", 2);
        check_impure("use std::time;\nfn f() { time::Instant::now(); }", 1);
        check_impure("use std::os::unix::net::UnixStream;", 1);
        check_impure("use std::time::*;", 1);
    }

    #[test]
    fn planted_globals_are_found() {
        check_impure("static mut COUNT: u32 = 0;", 1);
        check_impure("static COUNT: AtomicU64 = AtomicU64::new(0);", 1);
        check_impure("thread_local! { static A: u8 = 0; }", 1);
        check_impure("static ONCE: std::sync::OnceLock<u8> = std::sync::OnceLock::new();", 1);
        check_impure("struct Late { value: std::sync::OnceLock<u8> }", 0);
    }

    #[test]
    fn pure_code_is_left_alone() {
        check_impure("use std::time::Duration;\n// std::thread\nlet now_ns = \"std::env\";", 0);
        check_impure(
            "static NAMES: [&str; 2] = [\"a\", \"b\"];\nfn f(name: &'static str, lock: &Mutex<u8>) {}",
            0,
        );
        check_impure("use std::environment::x; fn threads() { my_std::thread::f() }", 0);
    }

    #[test]
    fn a_file_of_too_many_lines_is_found() {
        assert_eq!(length_is_bounded("a.rs", &"x\n".repeat(901)).len(), 1);
        assert!(length_is_bounded("a.rs", &"x\n".repeat(900)).is_empty());
    }

    #[test]
    fn a_manifest_that_goes_its_own_way_is_found() {
        assert!(lints_are_inherited("Cargo.toml", "[lints]\nworkspace = true\n").is_empty());
        assert_eq!(lints_are_inherited("Cargo.toml", "[package]\nname = \"a\"\n").len(), 1);
        assert_eq!(
            lints_are_inherited("Cargo.toml", "[lints]\n\n[dependencies.a]\nworkspace = true\n").len(),
            1
        );
    }
}
