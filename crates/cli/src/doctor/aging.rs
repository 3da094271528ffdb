//! Finding about cleaners that remove old files from the cluster directory.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Finding, Severity};

/// Folders with the rules of systemd-tmpfiles. A file in an earlier folder replaces those of its name in later ones.
const RULE_FOLDERS: [&str; 3] = ["/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"];
/// Configurations of cleaners that ignore locks; all of them clean `/tmp`.
const OTHER_CLEANERS: [&str; 4] = [
    "/etc/tmpreaper.conf",
    "/etc/cron.daily/tmpreaper",
    "/etc/cron.daily/tmpwatch",
    "/etc/cron.daily/tmpclean",
];
/// Types of rules whose age applies to the contents of a directory.
const CLEANING_TYPES: [char; 7] = ['d', 'D', 'e', 'v', 'q', 'Q', 'C'];

/// A cleaner of old files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cleaner {
    /// The cleaned directory.
    dir: PathBuf,
    /// Age of removed files; `None` if it is unknown.
    age: Option<String>,
    /// File that says so.
    by: PathBuf,
    /// True if the cleaner skips directories that a process has locked.
    respects_locks: bool,
}

impl Cleaner {
    /// Returns the cleaner of `dir`, if there is one.
    pub fn find_for(dir: &Path) -> Option<Cleaner> {
        let dir = std::path::absolute(dir).ok()?;
        let is_temporary = ["/tmp", "/var/tmp"].iter().any(|parent| dir.starts_with(parent));
        let other = OTHER_CLEANERS.iter().map(PathBuf::from).find(|path| is_temporary && path.exists());
        let ignoring_locks = other.map(|by| {
            let cleaned = dir.ancestors().filter(|parent| parent.ends_with("tmp")).last();
            Cleaner { dir: cleaned.unwrap_or(&dir).to_owned(), age: None, by, respects_locks: false }
        });
        ignoring_locks.or_else(|| rule_for(&dir, &rules()))
    }
}

/// Returns the files with rules, each with its text.
fn rules() -> Vec<(PathBuf, String)> {
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in RULE_FOLDERS.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        let path = entry.path();
        let is_rule = path.extension().is_some_and(|extension| extension == "conf");
        if is_rule && !found.iter().any(|earlier| earlier.file_name() == path.file_name()) {
            found.push(path);
        }
    }
    found.sort_by(|one, next| one.file_name().cmp(&next.file_name()));
    found.into_iter().filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?))).collect()
}

/// Returns the rule for the nearest parent of `dir`, if it removes old files.
fn rule_for(dir: &Path, rules: &[(PathBuf, String)]) -> Option<Cleaner> {
    let mut nearest: Option<(usize, Option<Cleaner>)> = None;
    for (by, line) in rules.iter().flat_map(|(by, text)| text.lines().map(move |line| (by, line))) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(kind), Some(path)) = (fields.first().and_then(|kind| kind.chars().next()), fields.get(1))
        else {
            continue;
        };
        let (path, is_exempt) = (Path::new(path), matches!(kind, 'x' | 'X'));
        let depth = path.components().count();
        if !(is_exempt || CLEANING_TYPES.contains(&kind))
            || !dir.starts_with(path)
            || nearest.as_ref().is_some_and(|(deepest, _)| *deepest >= depth)
        {
            continue;
        }
        let age = fields.get(5).filter(|age| **age != "-" && !is_exempt).map(|age| (*age).to_owned());
        let cleaner = age.map(|age| Cleaner {
            dir: path.to_owned(),
            age: Some(age),
            by: by.clone(),
            respects_locks: true,
        });
        nearest = Some((depth, cleaner));
    }
    nearest?.1
}

pub fn judge(dir: &Path, cleaner: Option<&Cleaner>) -> Finding {
    let verify = "systemd-tmpfiles --cat-config; ls /etc/cron.*";
    let Some(Cleaner { dir: cleaned, age, by, respects_locks }) = cleaner else {
        return Finding::ok(
            "aging",
            format!("no cleaner of old files is known for {}", dir.display()),
            verify,
        );
    };
    let age = age.as_ref().map_or("old".to_owned(), |age| format!("{age} old"));
    let found = format!(
        "{} is in {}, where {} removes files that are {age}",
        dir.display(),
        cleaned.display(),
        by.display()
    );
    match respects_locks {
        true => Finding::new(
            "aging",
            Severity::Note,
            found + "; it skips the directories of running nodes, which hold a lock",
            "for clusters that run for days, choose a directory in /run, by --dir or XDG_RUNTIME_DIR",
            verify,
        ),
        false => Finding::new(
            "aging",
            Severity::Warning,
            found + " and ignores locks: processes would no longer find the nodes",
            "choose a directory elsewhere, for example in /run, by --dir or XDG_RUNTIME_DIR",
            verify,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rule_with_an_age_applies() {
        let text = "# comment\nq /tmp 1777 root root 10d\nd /var/tmp 1777 root root -\nx /tmp/kept\nd /run 0755 root root";
        let rules = [(PathBuf::from("tmp.conf"), text.to_owned())];
        let age = |dir: &str| rule_for(Path::new(dir), &rules).map(|cleaner| cleaner.age.unwrap());
        assert_eq!(age("/tmp/halite-0").as_deref(), Some("10d"));
        for dir in ["/tmp/kept/halite", "/var/tmp/halite", "/run/halite", "/tmpfoo"] {
            assert_eq!(age(dir), None, "{dir}");
        }
        let severity = |respects_locks| {
            let cleaner = Cleaner { dir: "/tmp".into(), age: None, by: "conf".into(), respects_locks };
            judge(Path::new("/tmp/halite"), Some(&cleaner)).severity
        };
        assert_eq!((severity(true), severity(false)), (Severity::Note, Severity::Warning));
    }
}
