//! Findings about the etcd that holds the names.

use halite::{EtcdError, EtcdFault, EtcdHealth};

use super::{Finding, Severity};
use crate::bytes::ByteCount;

/// Maximum difference of clocks in seconds; a larger one distorts the times of lost regions.
const SKEW_S_MAX: u64 = 5;

/// State of etcd, as this host sees it.
#[derive(Clone, Debug)]
pub struct EtcdFacts {
    /// Address without the password.
    pub address: String,
    /// The answer of each endpoint.
    pub endpoints: Vec<(String, Result<EtcdHealth, EtcdError>)>,
    /// The reason why names cannot be read; `None` if they can.
    pub refused: Option<EtcdError>,
    /// Difference between the clocks of etcd and this host, in seconds.
    pub skew_s: Option<u64>,
}

pub fn judge(facts: &EtcdFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts
        .endpoints
        .iter()
        .filter_map(|(endpoint, health)| match health {
            Ok(health) => judge_health(endpoint, health),
            Err(error) => Some(silent_endpoint(facts, endpoint, error)),
        })
        .collect();
    if let Some(error) = &facts.refused
        && facts.endpoints.iter().any(|(_, health)| health.is_ok())
    {
        findings.push(finding(
            Severity::Error,
            format!("cannot read names from {}: {}", facts.address, describe_error(error)),
            error.fault.remedy(),
            "etcdctl get --prefix --limit 1 PREFIX/",
        ));
    }
    if let Some(skew_s) = facts.skew_s.filter(|skew_s| *skew_s > SKEW_S_MAX) {
        findings.push(finding(
            Severity::Warning,
            format!("the clocks of this host and of etcd differ by {skew_s} s: the times of lost regions are off by as much"),
            "synchronise both clocks by NTP (chronyc tracking)",
            "date; curl -sI http://HOST:PORT/health | grep Date",
        ));
    }
    if findings.is_empty() {
        let healthy: Vec<String> = facts
            .endpoints
            .iter()
            .filter_map(|(_, health)| health.as_ref().ok())
            .map(describe_health)
            .collect();
        findings.push(Finding::ok(
            "etcd",
            format!("{} answers: {}", facts.address, healthy.join(", ")),
            "etcdctl endpoint status",
        ));
    }
    findings
}

fn describe_health(health: &EtcdHealth) -> String {
    format!("version {}, {} in use", health.version, ByteCount(health.db_bytes_in_use))
}

fn finding(severity: Severity, found: String, remedy: &str, verify: &str) -> Finding {
    Finding::new("etcd", severity, found, remedy, verify)
}

/// Creates the finding about a silent endpoint. If all are silent, the names are unavailable.
fn silent_endpoint(facts: &EtcdFacts, endpoint: &str, error: &EtcdError) -> Finding {
    let is_any = facts.endpoints.iter().any(|(_, health)| health.is_ok());
    let severity = if is_any { Severity::Warning } else { Severity::Error };
    finding(
        severity,
        format!("{endpoint} is unreachable: {}", describe_error(error)),
        error.fault.remedy(),
        "etcdctl endpoint health --endpoints HOST:PORT",
    )
}

/// Formats the error without its remedy, which a finding shows separately.
fn describe_error(error: &EtcdError) -> String {
    format!("it {}: {}", error.fault.as_str(), error.reason)
}

fn judge_health(endpoint: &str, health: &EtcdHealth) -> Option<Finding> {
    let verify = "etcdctl endpoint status; etcdctl alarm list";
    if health.alarms.iter().any(|alarm| alarm == "NOSPACE") {
        let found = format!(
            "{endpoint} has no room left: its database has {}, of which {} are in use; it accepts no new names",
            ByteCount(health.db_bytes),
            ByteCount(health.db_bytes_in_use)
        );
        return Some(finding(Severity::Error, found, EtcdFault::Full.remedy(), verify));
    }
    if let Some(alarm) = health.alarms.first() {
        let found = format!("{endpoint} has an alarm: {alarm}");
        return Some(finding(Severity::Error, found, "see the etcd manual about this alarm", verify));
    }
    if !health.has_leader {
        let found = format!("{endpoint} has no leader: names cannot be written");
        return Some(finding(
            Severity::Error,
            found,
            "start etcd members until more than half of them run and reach each other",
            verify,
        ));
    }
    let is_old = |(major, minor)| (major, minor) < (3, 4);
    let found = format!("{endpoint} is etcd {}; 3.4 or newer is required", health.version);
    version(&health.version)
        .is_none_or(is_old)
        .then(|| finding(Severity::Error, found, "upgrade etcd", verify))
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> EtcdHealth {
        EtcdHealth {
            version: "3.4.23".to_owned(),
            db_bytes: 40_960,
            db_bytes_in_use: 20_480,
            has_leader: true,
            alarms: Vec::new(),
            date: String::new(),
        }
    }

    fn found(change: impl FnOnce(&mut EtcdFacts)) -> Vec<(Severity, String)> {
        let mut facts = EtcdFacts {
            address: "etcd://a:2379,b:2379/halite".to_owned(),
            endpoints: vec![("a:2379".to_owned(), Ok(health())), ("b:2379".to_owned(), Ok(health()))],
            refused: None,
            skew_s: Some(1),
        };
        change(&mut facts);
        let findings = judge(&facts).into_iter();
        let findings = findings.inspect(|finding| {
            assert!(
                finding.severity == Severity::Ok || !finding.remedy.is_empty() && !finding.verify.is_empty()
            );
        });
        findings.map(|finding| (finding.severity, finding.found)).collect()
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut EtcdFacts), severity: Severity, word: &str) {
        let found = found(change);
        assert!(found.len() == 1 && found[0].0 == severity && found[0].1.contains(word), "{found:?}");
    }

    #[test]
    fn each_fault_of_etcd_is_found() {
        check(|_| (), Severity::Ok, "version 3.4.23");
        let silent = || Err(EtcdError { fault: EtcdFault::Unreachable, reason: "refused".to_owned() });
        check(|facts| facts.endpoints[1].1 = silent(), Severity::Warning, "b:2379 is unreachable");
        check(
            |facts| {
                facts.endpoints.truncate(1);
                facts.endpoints[0].1 = silent();
            },
            Severity::Error,
            "a:2379 is unreachable",
        );
        let first = |change: fn(&mut EtcdHealth)| {
            move |facts: &mut EtcdFacts| change(facts.endpoints[0].1.as_mut().unwrap())
        };
        check(first(|health| health.alarms.push("NOSPACE".to_owned())), Severity::Error, "no room");
        check(first(|health| health.alarms.push("CORRUPT".to_owned())), Severity::Error, "CORRUPT");
        check(first(|health| health.has_leader = false), Severity::Error, "no leader");
        for old in ["3.3.27", "2.3", "", "x"] {
            let change = |facts: &mut EtcdFacts| {
                facts.endpoints[0].1.as_mut().unwrap().version = old.to_owned();
            };
            check(change, Severity::Error, "3.4 or newer");
        }
        let refused = EtcdError { fault: EtcdFault::User, reason: "permission denied".to_owned() };
        check(|facts| facts.refused = Some(refused), Severity::Error, "permission denied");
        check(|facts| facts.skew_s = Some(60), Severity::Warning, "differ by 60 s");
    }
}
