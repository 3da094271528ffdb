//! `halite doctor`: whether this host, and the cluster in the directory, are fit for what the configuration asks of them.
//!
//! `facts` looks at the system; `host`, `network` and `cluster` judge what was seen, and look at nothing: so each finding can be
//! provoked by facts that are made up.

mod cluster;
mod etcd;
mod facts;
mod host;
mod network;

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::args;
use crate::output;
use crate::table::printable;
use facts::Facts;

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It works, and could be faster or is worth to be known.
    Note,
    /// It works until something happens.
    Warning,
    /// It does not work.
    Error,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }

    /// The exit status for the worst finding.
    fn status(self) -> u8 {
        match self {
            Severity::Ok | Severity::Note => 0,
            Severity::Warning => 3,
            Severity::Error => 4,
        }
    }
}

/// What was found about one thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at; these names stay the same.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What to do about it; empty if nothing.
    pub remedy: String,
    /// How to see it with one's own eyes.
    pub verify: String,
}

impl Finding {
    fn new(
        check: &'static str,
        severity: Severity,
        found: impl Into<String>,
        remedy: impl Into<String>,
        verify: impl Into<String>,
    ) -> Finding {
        Finding { check, severity, found: found.into(), remedy: remedy.into(), verify: verify.into() }
    }

    fn ok(check: &'static str, found: impl Into<String>, verify: impl Into<String>) -> Finding {
        Finding::new(check, Severity::Ok, found, "", verify)
    }
}

/// Prints all findings, the worst first, and ends with the status of the worst.
pub fn run(dir: &Path, args: &args::Doctor) -> anyhow::Result<ExitCode> {
    let facts = Facts::gather(dir, args)?;
    let mut findings = judge(&facts);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    if args.listing.json {
        output::print(&findings.iter().map(|finding| output::json_line(finding) + "\n").collect::<String>())?;
    } else {
        output::print(&findings.iter().map(told).collect::<String>())?;
    }
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    Ok(ExitCode::from(worst.status()))
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let etcd = facts.etcd.as_ref().map(etcd::judge).unwrap_or_default();
    [host::judge(&facts.host), network::judge(&facts.network), cluster::judge(&facts.cluster), etcd].concat()
}

fn told(finding: &Finding) -> String {
    let Finding { check, severity, found, remedy, verify } = finding;
    let mut text = format!("{:<7}  {check}: {}\n", severity.word(), printable(found));
    if *severity > Severity::Ok {
        for (what, line) in [("do", remedy), ("check", verify)] {
            if !line.is_empty() {
                text += &format!("         {what}: {}\n", printable(line));
            }
        }
    }
    text
}
