//! Findings about the cluster in the cluster directory, and about files of dead nodes.

use halite::{EPHEMERAL_NODE_MIN, NodeState, NodeStatus};

use super::facts::ClusterFacts;
use super::{Finding, Severity, aging};
use crate::bytes::ByteCount;
use crate::limits;

pub fn judge(facts: &ClusterFacts) -> Vec<Finding> {
    let mut findings = vec![directory(facts), aging::judge(&facts.dir, facts.cleaner.as_ref())];
    findings.extend(secret(facts));
    findings.push(disk(facts));
    findings.extend(members(facts));
    findings.push(leftovers(facts));
    findings
}

fn directory(facts: &ClusterFacts) -> Finding {
    let dir = facts.dir.display();
    let verify = format!("ls -lad {dir}; ls -la {dir}");
    if let Some(reason) = &facts.dir_refused {
        let remedy = "make it private (chmod 700) and empty, or name another one with --dir";
        return Finding::new("directory", Severity::Error, reason, remedy, verify);
    }
    if let Some(found) = &facts.missing_files {
        let remedy = limits::missing_files_remedy(&facts.dir);
        return Finding::new("directory", Severity::Error, found, remedy, verify);
    }
    match facts.is_founded {
        true => Finding::ok("directory", format!("{dir} belongs to a cluster"), verify),
        false => Finding::ok("directory", format!("there is no cluster in {dir}; it can be created"), verify),
    }
}

fn disk(facts: &ClusterFacts) -> Finding {
    let verify = format!("df {0}; df -i {0}", facts.dir.display());
    match &facts.full_disk {
        Some(found) => {
            let remedy = "free space there: nodes and applications that join make short files, and logs end";
            Finding::new("disk", Severity::Warning, found, remedy, verify)
        }
        None => Finding::ok("disk", "the disk of the cluster directory has room", verify),
    }
}

fn secret(facts: &ClusterFacts) -> Option<Finding> {
    let Some((file, refused)) = &facts.secret else {
        let found = "--listen or --join is set without --secret-file";
        let remedy = "name it with --secret-file; `halite secret new FILE` creates one, which all hosts need";
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
            format!(
                "chmod 600 {0}, by its owner; create a new one if others may have read it",
                file.display()
            )
        }
        false => format!(
            "copy the file of another host to {0}, or create one: halite secret new {0}",
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
            let remedy = "if node 0 is not running, start it again; if it hangs, find the cause (top, dmesg)";
            vec![Finding::new("members", Severity::Error, format!("no answer: {reason}"), remedy, verify)]
        }
        Some(Ok(statuses)) => {
            let problems: Vec<String> = statuses.iter().filter_map(problem).collect();
            let quarantined: u64 = statuses.iter().map(|status| status.bytes_quarantined).sum();
            let mut findings = Vec::new();
            if problems.is_empty() {
                let alive = statuses.iter().filter(|status| status.node.0 < EPHEMERAL_NODE_MIN).count();
                let found =
                    if alive == 1 { "1 node answers".to_owned() } else { format!("{alive} nodes answer") };
                findings.push(Finding::ok("members", found, verify.clone()));
            } else {
                let is_dead =
                    |status: &NodeStatus| status.state == NodeState::Dead && problem(status).is_some();
                let remedy = match statuses.iter().any(is_dead) {
                    true => "start dead nodes again (halite node --id N), or forget them (halite forget N)",
                    false => {
                        "check the network between the hosts (TCP and UDP), or start the node if it has ended (halite node --id N)"
                    }
                };
                findings.push(Finding::new(
                    "members",
                    Severity::Warning,
                    problems.join(", "),
                    remedy,
                    verify.clone(),
                ));
            }
            for found in statuses.iter().filter_map(limits::fragmentation) {
                let remedy = "free regions, or move them to other nodes (`halite mv`, `halite drain`)";
                findings.push(Finding::new("pieces", Severity::Warning, found, remedy, verify.clone()));
            }
            if quarantined > 0 {
                let found = format!(
                    "{} are quarantined: unreachable nodes may still access them",
                    ByteCount(quarantined)
                );
                let remedy = "check the unreachable nodes; `halite forget N` frees the memory that is quarantined because of a dead node N";
                findings.push(Finding::new("quarantine", Severity::Warning, found, remedy, verify));
            }
            findings
        }
    }
}

fn problem(status: &NodeStatus) -> Option<String> {
    let state = match status.state {
        NodeState::Alive | NodeState::Unconnected | NodeState::Draining | NodeState::Left => return None,
        NodeState::Silent => "silent",
        NodeState::Unreachable => "unreachable",
        NodeState::Dead => "dead",
    };
    (status.node.0 < EPHEMERAL_NODE_MIN).then(|| format!("node {} is {state}", status.node))
}

fn leftovers(facts: &ClusterFacts) -> Finding {
    let dir = facts.dir.display();
    let verify = format!("ls -la {dir}");
    let dead = || facts.presences.iter().filter(|node| !node.alive);
    let dead_nodes: Vec<String> =
        dead().filter(|node| node.node.0 < EPHEMERAL_NODE_MIN).map(|node| node.node.to_string()).collect();
    let runs = facts.presences.iter().any(|node| node.alive);
    match (dead_nodes.len(), dead().count()) {
        (0, 0) => Finding::ok("leftovers", "no files of dead nodes", verify),
        (0, passed) => Finding::new(
            "leftovers",
            Severity::Note,
            format!("files of {passed} dead applications or commands remain"),
            "nothing: the next node to join removes them",
            verify,
        ),
        _ => Finding::new(
            "leftovers",
            Severity::Warning,
            format!("files of dead nodes remain: {}", dead_nodes.join(", ")),
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
