//! What is wrong with the cluster of the directory, and what dead nodes have left.

use halite::{EPHEMERAL_NODE_MIN, NodeState, NodeStatus};

use super::facts::ClusterFacts;
use super::{Finding, Severity};
use crate::bytes::ByteCount;

pub fn judge(facts: &ClusterFacts) -> Vec<Finding> {
    let mut findings = vec![directory(facts)];
    findings.extend(secret(facts));
    findings.extend(members(facts));
    findings.push(leftovers(facts));
    findings
}

fn directory(facts: &ClusterFacts) -> Finding {
    let dir = facts.dir.display();
    let verify = format!("ls -lad {dir}; ls -la {dir}");
    if let Some(reason) = &facts.dir_refused {
        let remedy = "make it a directory that you alone may enter (chmod 700), with nothing else in it, or name another with --dir";
        return Finding::new("directory", Severity::Error, reason, remedy, verify);
    }
    match facts.is_founded {
        true => Finding::ok("directory", format!("{dir} is a cluster's"), verify),
        false => Finding::ok("directory", format!("there is no cluster in {dir}; it can be created"), verify),
    }
}

fn secret(facts: &ClusterFacts) -> Option<Finding> {
    let Some((file, refused)) = &facts.secret else {
        let found = "--listen or --join is set without --secret-file";
        let remedy = "name it with --secret-file; halite secret new FILE makes one, which all hosts need";
        let lacks =
            || Finding::new("secret", Severity::Error, found, remedy, "halite config | grep secret_file");
        return facts.is_spread.then(lacks);
    };
    let verify = format!("stat -c '%a %U %s' {}", file.display());
    let Some(refused) = refused else {
        return Some(Finding::ok(
            "secret",
            format!("{} holds a secret that only its owner may read", file.display()),
            verify,
        ));
    };
    let remedy = match refused.is_open {
        true => {
            format!("chmod 600 {0}, by its owner; if others may have read it, make a new one", file.display())
        }
        false => format!(
            "copy the file of another host to {0}, or make one: halite secret new {0}",
            file.display()
        ),
    };
    Some(Finding::new("secret", Severity::Error, &refused.text, remedy, verify))
}

fn members(facts: &ClusterFacts) -> Vec<Finding> {
    let verify = format!("halite status --dir {}", facts.dir.display());
    match &facts.members {
        None => Vec::new(),
        Some(Err(reason)) => {
            let remedy = "if node 0 is not running, start it again; if it stands still, see why (top, dmesg)";
            vec![Finding::new("members", Severity::Error, format!("no answer: {reason}"), remedy, verify)]
        }
        Some(Ok(statuses)) => {
            let missed: Vec<String> = statuses.iter().filter_map(trouble).collect();
            let kept: u64 = statuses.iter().map(|status| status.bytes_quarantined).sum();
            let mut findings = Vec::new();
            if missed.is_empty() {
                let alive = statuses.iter().filter(|status| status.node.0 < EPHEMERAL_NODE_MIN).count();
                let found =
                    if alive == 1 { "1 node answers".to_owned() } else { format!("{alive} nodes answer") };
                findings.push(Finding::ok("members", found, verify.clone()));
            } else {
                let remedy = "start dead nodes again (halite node --id N), or forget them (halite forget N)";
                findings.push(Finding::new(
                    "members",
                    Severity::Warning,
                    missed.join(", "),
                    remedy,
                    verify.clone(),
                ));
            }
            if kept > 0 {
                let found =
                    format!("{} are kept back because of nodes that are not cut off", ByteCount(kept));
                let remedy = "check the unreachable nodes; `halite forget N` frees what is kept for a node that is gone";
                findings.push(Finding::new("quarantine", Severity::Warning, found, remedy, verify));
            }
            findings
        }
    }
}

fn trouble(status: &NodeStatus) -> Option<String> {
    let state = match status.state {
        NodeState::Alive | NodeState::Unconnected | NodeState::Draining | NodeState::Left => return None,
        NodeState::Silent => "silent",
        NodeState::Unreachable => "not reached",
        NodeState::Dead => "dead",
    };
    (status.node.0 < EPHEMERAL_NODE_MIN).then(|| format!("node {} is {state}", status.node))
}

fn leftovers(facts: &ClusterFacts) -> Finding {
    let dir = facts.dir.display();
    let verify = format!("ls -la {dir}");
    let dead = || facts.presences.iter().filter(|node| !node.alive);
    let stayed: Vec<String> =
        dead().filter(|node| node.node.0 < EPHEMERAL_NODE_MIN).map(|node| node.node.to_string()).collect();
    let runs = facts.presences.iter().any(|node| node.alive);
    match (stayed.len(), dead().count()) {
        (0, 0) => Finding::ok("leftovers", "no dead node has left files", verify),
        (0, passed) => Finding::new(
            "leftovers",
            Severity::Note,
            format!("{passed} applications or commands that died have left files"),
            "nothing: the next node that joins removes them",
            verify,
        ),
        _ => Finding::new(
            "leftovers",
            Severity::Warning,
            format!("files of dead nodes are left: {}", stayed.join(", ")),
            match runs {
                true => format!(
                    "halite node --id N --dir {dir} starts one again; halite forget N --dir {dir} forgets it"
                ),
                false => format!("halite down --dir {dir} removes them"),
            },
            verify,
        ),
    }
}

#[cfg(test)]
mod tests {
    use halite::NodeId;
    use halite::cluster_dir::Presence;

    use super::super::facts::SecretRefusal;
    use super::*;

    fn presence(node: u32, alive: bool) -> Presence {
        Presence { node: NodeId(node), pid: 100, incarnation: 7, alive }
    }

    fn status(node: u32, state: NodeState) -> NodeStatus {
        NodeStatus {
            node: NodeId(node),
            pid: 100,
            state,
            incarnation: 7,
            provider: "shm".into(),
            bytes_used: 0,
            bytes_total: 1,
            bytes_refused: 0,
            bytes_quarantined: 0,
            regions: 0,
            mappings: 0,
            loss: None,
        }
    }

    fn found(change: impl FnOnce(&mut ClusterFacts)) -> Vec<(&'static str, Severity)> {
        let mut facts = ClusterFacts {
            dir: "/run/halite".into(),
            dir_refused: None,
            is_founded: true,
            is_spread: true,
            presences: vec![presence(0, true), presence(1000, true)],
            secret: Some(("/etc/halite/secret".into(), None)),
            members: Some(Ok(vec![status(0, NodeState::Alive)])),
        };
        change(&mut facts);
        let wrong = judge(&facts).into_iter().filter(|finding| finding.severity > Severity::Ok);
        let wrong =
            wrong.inspect(|finding| assert!(!finding.remedy.is_empty() && !finding.verify.is_empty()));
        wrong.map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_cluster_that_has_all_is_well() {
        assert_eq!(found(|_| ()), []);
        let nobody = |facts: &mut ClusterFacts| {
            (facts.is_founded, facts.members, facts.secret) = (false, None, None);
            facts.is_spread = false;
            facts.presences.clear();
        };
        assert_eq!(found(nobody), []);
    }

    #[test]
    fn a_directory_or_a_secret_that_is_none_is_found() {
        let refused = |facts: &mut ClusterFacts| facts.dir_refused = Some("others may enter".into());
        assert_eq!(found(refused), [("directory", Severity::Error)]);
        assert_eq!(found(|facts| facts.secret = None), [("secret", Severity::Error)]);
        for is_open in [true, false] {
            let secret = SecretRefusal { text: "none".into(), is_open };
            assert_eq!(
                found(|facts| facts.secret.as_mut().unwrap().1 = Some(secret)),
                [("secret", Severity::Error)]
            );
        }
    }

    #[test]
    fn members_that_are_missed_and_memory_that_is_kept_back_are_found() {
        let silent = |facts: &mut ClusterFacts| facts.members = Some(Err("timed out".into()));
        assert_eq!(found(silent), [("members", Severity::Error)]);
        for state in [NodeState::Silent, NodeState::Unreachable, NodeState::Dead] {
            let missed = |facts: &mut ClusterFacts| facts.members = Some(Ok(vec![status(3, state)]));
            assert_eq!(found(missed), [("members", Severity::Warning)]);
        }
        let kept = NodeStatus { bytes_quarantined: 4096, ..status(0, NodeState::Alive) };
        assert_eq!(found(|facts| facts.members = Some(Ok(vec![kept]))), [("quarantine", Severity::Warning)]);
        let ephemeral =
            |facts: &mut ClusterFacts| facts.members = Some(Ok(vec![status(1001, NodeState::Dead)]));
        assert_eq!(found(ephemeral), []);
    }

    #[test]
    fn files_of_the_dead_are_found() {
        let dead = |node| found(|facts| facts.presences.push(presence(node, false)));
        assert_eq!(dead(2), [("leftovers", Severity::Warning)]);
        assert_eq!(dead(1002), [("leftovers", Severity::Note)]);
    }
}
