//! `halite doctor`: checks this host and the cluster in the directory against the configuration.
//!
//! `facts` inspects the system; `host`, `network`, `cluster` and `etcd` only judge the facts, so that tests can
//! provoke each finding.

mod aging;
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Ok,
    /// Everything works, but could be faster.
    Note,
    /// Everything works, but a problem needs attention: redundancy is lost, memory is tied up, or a setting is wrong.
    Warning,
    /// A function of the node does not work.
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }

    /// Returns the exit status for the worst finding.
    fn exit_status(self) -> u8 {
        match self {
            Severity::Ok | Severity::Note => 0,
            Severity::Warning => 3,
            Severity::Error => 4,
        }
    }
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Name of the check; stable for scripts.
    pub check: &'static str,
    pub severity: Severity,
    pub found: String,
    /// The next step; empty if there is none.
    pub remedy: String,
    /// A command that shows the same fact.
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

/// Prints all findings, the worst first. Returns the exit status of the worst finding.
pub fn run(dir: &Path, args: &args::Doctor) -> anyhow::Result<ExitCode> {
    let facts = Facts::gather(dir, args)?;
    let mut findings = judge(&facts);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    if args.listing.json {
        output::print(&findings.iter().map(|finding| output::json_line(finding) + "\n").collect::<String>())?;
    } else {
        output::print(&findings.iter().map(format_finding).collect::<String>())?;
    }
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    Ok(ExitCode::from(worst.exit_status()))
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let etcd = facts.etcd.as_ref().map(etcd::judge).unwrap_or_default();
    [host::judge(&facts.host), network::judge(&facts.network), cluster::judge(&facts.cluster), etcd].concat()
}

fn format_finding(finding: &Finding) -> String {
    let Finding { check, severity, found, remedy, verify } = finding;
    let mut text = format!("{:<7}  {check}: {}\n", severity.name(), printable(found));
    if *severity > Severity::Ok {
        for (what, line) in [("do", remedy), ("check", verify)] {
            if !line.is_empty() {
                text += &format!("         {what}: {}\n", printable(line));
            }
        }
    }
    text
}
