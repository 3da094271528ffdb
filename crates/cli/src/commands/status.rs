//! `halite status`: shows the nodes, according to their own reports and to their lock files.
//!
//! The lock files show which nodes run even if node 0, which keeps the list of members, has ended.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use halite::cluster_dir::{self, Presence};
use halite::{
    Amounts, AttachError, AttachedSession, EPHEMERAL_NODE_MIN, JoinError, Loss, NodeId, NodeState,
    NodeStatus, PeerSeen, PrincipalUse, Quota, blocking,
};
use halite_providers::roce::scope_of;
use serde::Serialize;

use crate::addresses;
use crate::args;
use crate::bytes::ByteCount;
use crate::client::{self, Client, no_cluster, restart_advice};
use crate::limits;
use crate::loss::{self, LossJson};
use crate::output;
use crate::table::{Align, Table};

/// Status of one node; unknown values are null.
#[derive(Serialize, Clone, PartialEq, Default, Debug)]
pub(super) struct Row {
    pub(super) node: u32,
    pub(super) pid: u32,
    pub(super) state: &'static str,
    pub(super) incarnation: String,
    pub(super) provider: Option<String>,
    pub(super) bytes_used: Option<u64>,
    pub(super) bytes_total: Option<u64>,
    pub(super) bytes_refused: Option<u64>,
    pub(super) bytes_quarantined: Option<u64>,
    pub(super) bytes_largest: Option<u64>,
    pub(super) regions: Option<u64>,
    pub(super) mappings: Option<u64>,
    pub(super) lost: Option<LossJson>,
    #[serde(skip)]
    pub(super) loss: Option<Loss>,
    pub(super) address: Option<String>,
    /// True if a process of this cluster directory is the node; null if this host has no contact with it.
    pub(super) here: Option<bool>,
    pub(super) heard_ms_ago: Option<u64>,
    pub(super) round_trip_us: Option<f64>,
    pub(super) repeated_percent: Option<f64>,
    /// The reason why this host has no connection to the node, or a note that it has one although the state says
    /// otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// Sessions of other processes of this host that are attached to the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sessions: Vec<AttachedSession>,
}

/// Exit status if a node is dead or silent.
const EXIT_UNHEALTHY: u8 = 3;

/// Shows the nodes. Fails if `dir` has no files of a node.
pub fn run(dir: &Path, args: &args::Status) -> anyhow::Result<ExitCode> {
    let presences = presences(dir)?;
    if presences.as_ref().is_some_and(Vec::is_empty) {
        bail!(no_cluster(dir));
    }
    let answers = match &presences {
        Some(presences) => ask_members(dir, presences),
        // Nothing but the members can be shown.
        None => Ok(Answers::request(&client::observe(dir)?, dir)?),
    };
    let presences = presences.unwrap_or_default();
    let mut rows = rows(&presences, answers.as_ref().unwrap_or(&Answers::default()));
    if let Err(error) = &answers {
        output::note(&format!("{}: showing the state from the lock files", output::error_chain(error)));
        mark_silent(&mut rows, error);
    }
    let pieces = answers.iter().flat_map(|answers| answers.statuses.iter()).filter_map(limits::fragmentation);
    let missing =
        limits::missing_files(dir).map(|text| format!("{text}; {}", limits::missing_files_remedy(dir)));
    pieces.chain(limits::full_disk(dir)).chain(missing).for_each(|text| output::note(&text));
    if args.principals {
        print_principals(dir, &rows, args.listing.json)?;
        return Ok(exit_status(answers.is_ok(), &rows));
    }
    for row in rows.iter_mut().filter(|row| row.state == "alive") {
        row.sessions = sessions(dir, row.node);
    }
    if args.listing.json {
        output::print(&rows.iter().map(|row| output::json_line(row) + "\n").collect::<String>())?;
    } else {
        output::print(&table(&rows).to_string())?;
        for (row, reason) in rows.iter().filter_map(|row| Some((row, row.reason.as_ref()?))) {
            output::note(&format!("node {}: {reason}", row.node));
        }
        if rows.iter().any(|row| !row.sessions.is_empty()) {
            output::print(&format!("\n{}", session_table(&rows)))?;
        }
    }
    Ok(exit_status(answers.is_ok(), &rows))
}

/// Returns success if all nodes are well. Without the members' answers, the state of the nodes is unknown, so returns
/// the status of a problem.
fn exit_status(has_answers: bool, rows: &[Row]) -> ExitCode {
    let is_well = |row: &Row| matches!(row.state, "alive" | "left");
    if has_answers && rows.iter().all(is_well) { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNHEALTHY) }
}

/// Returns the processes in `dir`; `None` if the directory belongs to another user, so that this one cannot list it.
pub(super) fn presences(dir: &Path) -> anyhow::Result<Option<Vec<Presence>>> {
    if client::belongs_to_other_user(dir) {
        return Ok(None);
    }
    let presences = cluster_dir::nodes(dir);
    presences.map(Some).with_context(|| format!("cannot list the processes in {}", dir.display()))
}

/// Resource use of a principal on a node, as `--json` prints it. `max` is null for a resource without a quota.
#[derive(Serialize)]
struct PrincipalJson {
    node: u32,
    principal: String,
    used: BTreeMap<&'static str, u64>,
    max: BTreeMap<&'static str, Option<u64>>,
}

/// Prints the resource use of each principal on each node of this host that accepts sessions.
fn print_principals(dir: &Path, rows: &[Row], json: bool) -> anyhow::Result<()> {
    let mut columns = vec![("principal", Align::Left), ("node", Align::Right)];
    columns.extend(Quota::ALL.map(|quota| (quota.name(), Align::Right)));
    let mut table = Table::new(&columns);
    for row in rows.iter().filter(|row| row.node < EPHEMERAL_NODE_MIN && row.state != "left") {
        if row.state != "alive" {
            output::note(&format!("node {} is {}: it shows no principals", row.node, row.state));
            continue;
        }
        let session = match blocking::Session::attach_to(dir, NodeId(row.node)) {
            Ok(session) => session,
            // Nodes of other hosts, and nodes that accept no sessions, have none to show.
            Err(AttachError::NotHere { .. }) => continue,
            Err(error) => {
                output::note(&format!(
                    "node {} shows no principals: {}",
                    row.node,
                    output::error_chain(&error.into())
                ));
                continue;
            }
        };
        for PrincipalUse { principal, used, max } in session.principals()? {
            if json {
                let amounts = |of: Amounts| Quota::ALL.map(|quota| (quota.name(), of.of(quota)));
                let max = amounts(max).map(|(name, max)| (name, (max < u64::MAX).then_some(max))).into();
                let line = PrincipalJson { node: row.node, principal, used: amounts(used).into(), max };
                output::print_json(&line)?;
                continue;
            }
            let mut cells = vec![principal, row.node.to_string()];
            cells.extend(Quota::ALL.map(|quota| amount(quota, used.of(quota), max.of(quota))));
            table.row(cells);
        }
    }
    if json { Ok(()) } else { Ok(output::print(&table.to_string())?) }
}

/// Formats an amount, with its maximum if there is one.
fn amount(quota: Quota, used: u64, max: u64) -> String {
    let format = |amount| if quota.is_bytes() { ByteCount(amount).to_string() } else { amount.to_string() };
    match max {
        u64::MAX => format(used),
        max => format!("{} of {}", format(used), format(max)),
    }
}

/// Returns the sessions that are attached to a node of this host, except the session of this command.
fn sessions(dir: &Path, node: u32) -> Vec<AttachedSession> {
    // Nodes of other hosts, and nodes that accept no sessions, have none to show.
    let Ok(session) = blocking::Session::attach_to(dir, NodeId(node)) else { return Vec::new() };
    let mut sessions = session.sessions().unwrap_or_default();
    sessions.retain(|session| session.pid != std::process::id());
    sessions
}

fn session_table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("session of", Align::Left),
        ("process", Align::Right),
        ("node", Align::Right),
        ("operations", Align::Right),
        ("memory", Align::Right),
        ("requests by", Align::Left),
    ]);
    for (row, session) in rows.iter().flat_map(|row| row.sessions.iter().map(move |session| (row, session))) {
        table.row(vec![
            session.principal.clone(),
            session.pid.to_string(),
            row.node.to_string(),
            session.operations.to_string(),
            ByteCount(session.bytes).to_string(),
            match &session.socket_reason {
                None => "shared memory".to_owned(),
                Some(reason) => format!("socket instead of shared memory: {reason}"),
            },
        ]);
    }
    table
}

/// Reports of the members, and this host's view of them.
#[derive(Default)]
pub(super) struct Answers {
    /// The node that listed the members, unless it was node 0.
    source: Option<NodeId>,
    statuses: Vec<NodeStatus>,
    seen: BTreeMap<u32, PeerSeen>,
}

impl Answers {
    /// Asks all members, except the client itself. Silence, round trips and retransmissions are those of a node of this
    /// host that answers, because the client's own connections are new.
    pub(super) fn request(client: &Client, dir: &Path) -> anyhow::Result<Answers> {
        let (mut statuses, source) = (client.session.status()?, client.membership_source());
        statuses.retain(|status| Some(status.node) != client.own_node());
        let answers =
            |node| statuses.iter().any(|status| status.node == node && status.state == NodeState::Alive);
        let host = client.own_node().and_then(|_| client::attach_where(dir, answers));
        let seen = |node| {
            let views = [host.as_ref().and_then(|host| host.seen(node)), client.session.seen(node)];
            let (connected, others): (Vec<_>, Vec<_>) =
                views.into_iter().flatten().partition(|seen| seen.silent.is_some());
            connected.into_iter().chain(others).next()
        };
        let nodes = statuses.iter().map(|status| status.node);
        let seen = nodes.filter_map(|node| Some((node.0, seen(node)?))).collect();
        Ok(Answers { source, statuses, seen })
    }

    /// Returns a note about the source of the list, unless that is node 0.
    pub(super) fn source_note(&self) -> Option<String> {
        let source = self.source?;
        Some(format!("node 0 is unreachable: showing the report of node {source}"))
    }
}

/// Returns a row for each node that files or members know, in order.
pub(super) fn rows(presences: &[Presence], answers: &Answers) -> Vec<Row> {
    let mut rows = merge(presences, &answers.statuses);
    // Nodes reach link-local addresses over the interface of their own one.
    let mut here =
        answers.seen.values().filter(|seen| seen.is_here).filter_map(|seen| Some(seen.address?.ip()));
    let own = here.find(|ip| scope_of(*ip) != 0);
    for row in &mut rows {
        let is_of = |status: &&NodeStatus| {
            status.node.0 == row.node && hexadecimal(status.incarnation) == row.incarnation
        };
        if let Some(seen) =
            answers.seen.get(&row.node).filter(|_| answers.statuses.iter().any(|it| is_of(&it)))
        {
            row.set_seen(seen, own, answers.source.unwrap_or(NodeId(0)));
        }
    }
    rows
}

/// Asks the members for their reports. Returns none if node 0 does not run and there are no other hosts.
fn ask_members(dir: &Path, presences: &[Presence]) -> anyhow::Result<Answers> {
    if !presences.iter().any(|node| node.node.0 == 0 && node.alive) && !cluster_dir::has_hosts(dir) {
        let advice = match presences.iter().any(|node| node.alive) {
            true => format!("; {}", restart_advice(dir)),
            false => String::new(),
        };
        output::note(&format!("node 0 is not running: showing the state from the lock files{advice}"));
        return Ok(Answers::default());
    }
    let answers = Answers::request(&client::observe(dir)?, dir)?;
    answers.source_note().iter().for_each(|text| output::note(text));
    Ok(answers)
}

/// Prefix of the reasons that come from a node that answered. Such a node is not silent.
const REFUSAL: &str = "the peer refused: ";

/// Marks the nodes that run but do not answer as silent.
fn mark_silent(rows: &mut [Row], error: &anyhow::Error) {
    let Some(JoinError::Unreachable { address, reason, .. }) = error.downcast_ref::<JoinError>() else {
        return;
    };
    if reason.starts_with(REFUSAL) {
        return;
    }
    let is_unreachable = |row: &&mut Row| address.starts_with(&format!("node-{}.", row.node));
    rows.iter_mut()
        .filter(is_unreachable)
        .filter(|row| row.state == "alive")
        .for_each(|row| row.state = "silent");
}

/// Merges lock files and reports. The files decide whether processes of this host run; the reports add the figures. A
/// report of another incarnation replaces a dead process, because the node may have been restarted on another host.
/// Each row describes one incarnation.
fn merge(presences: &[Presence], statuses: &[NodeStatus]) -> Vec<Row> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    for presence in presences {
        rows.insert(presence.node.0, Row::of_presence(presence));
    }
    for status in statuses {
        let row = rows.entry(status.node.0).or_insert_with(|| Row::of_status(status));
        match (row.incarnation == hexadecimal(status.incarnation), row.state) {
            (true, "alive") | (false, "dead") => *row = Row::of_status(status),
            (true, _) => row.set_loss(status.loss),
            (false, _) => {}
        }
    }
    // Every command is an ephemeral node, so ended ephemeral nodes are omitted.
    rows.into_values().filter(|row| row.node < EPHEMERAL_NODE_MIN || row.state == "alive").collect()
}

impl Row {
    fn of_presence(presence: &Presence) -> Row {
        Row {
            node: presence.node.0,
            pid: presence.pid,
            state: if presence.alive { "alive" } else { "dead" },
            incarnation: hexadecimal(presence.incarnation),
            ..Row::default()
        }
    }

    /// Adds this host's view. The state is the opinion of `source`, which lists the members, or of this command. `own` is
    /// a link-local address of this host.
    fn set_seen(&mut self, seen: &PeerSeen, own: Option<IpAddr>, source: NodeId) {
        self.address = seen.address.map(|address| addresses::format_address(address, own));
        self.here = Some(seen.is_here);
        self.heard_ms_ago = seen.silent.map(|silent| silent.as_millis() as u64);
        self.round_trip_us = seen.round_trip.map(|time| time.as_nanos() as f64 / 1e3);
        self.repeated_percent = seen.repeated.map(|part| 100.0 * part);
        let differing = match (self.state, self.heard_ms_ago) {
            ("silent", Some(ms)) => {
                format!("it has not answered this command; this host heard it {ms} ms ago")
            }
            ("unreachable", Some(ms)) => {
                format!("it is unreachable for node {source}; this host heard it {ms} ms ago")
            }
            ("silent" | "unreachable", None) => return self.reason = seen.reason.clone(),
            _ => return,
        };
        self.reason = Some(seen.reason.clone().unwrap_or(differing));
    }

    fn set_loss(&mut self, loss: Option<Loss>) {
        self.lost = loss.map(|loss| LossJson::new(loss.cause, age(loss)));
        self.loss = loss;
    }

    fn of_status(status: &NodeStatus) -> Row {
        // A node without a connection sent no report.
        let reported = |count: u64| (status.state != NodeState::Unconnected).then_some(count);
        let state = status.state.name();
        let mut row = Row {
            node: status.node.0,
            pid: status.pid,
            state,
            incarnation: hexadecimal(status.incarnation),
            provider: Some(status.provider.clone()),
            bytes_used: reported(status.bytes_used),
            bytes_total: Some(status.bytes_total),
            bytes_refused: reported(status.bytes_refused),
            bytes_quarantined: reported(status.bytes_quarantined),
            bytes_largest: reported(status.bytes_largest),
            regions: reported(status.regions),
            mappings: reported(status.mappings),
            ..Row::default()
        };
        row.set_loss(status.loss);
        row
    }
}

/// Formats the memory of a node, as `GRANTED of TOTAL` if its system refused a part.
fn total(row: &Row) -> String {
    match (row.bytes_total, row.bytes_refused) {
        (None, _) => "-".to_owned(),
        (Some(total), None | Some(0)) => ByteCount(total).to_string(),
        (Some(total), Some(refused)) => {
            format!("{} of {}", ByteCount(total.saturating_sub(refused)), ByteCount(total))
        }
    }
}

fn age(loss: Loss) -> Duration {
    Duration::from_nanos(loss.age_ns)
}

/// Formats an incarnation as a string, because some JSON parsers cannot represent 64-bit integers.
pub fn hexadecimal(incarnation: u64) -> String {
    format!("{incarnation:016x}")
}

pub(super) fn table(rows: &[Row]) -> Table {
    let mut columns = vec![
        ("node", Align::Right),
        ("process", Align::Right),
        ("state", Align::Left),
        ("fabric", Align::Left),
        ("used", Align::Right),
        ("total", Align::Right),
        ("quarantined", Align::Right),
        ("regions", Align::Right),
        ("mappings", Align::Right),
        ("incarnation", Align::Left),
        ("lost", Align::Left),
    ];
    let is_spread = rows.iter().any(|row| row.address.is_some());
    if is_spread {
        let host_columns = [
            ("address", Align::Left),
            ("heard", Align::Right),
            ("round trip", Align::Right),
            ("retransmitted", Align::Right),
        ];
        columns.splice(3..3, host_columns);
    }
    let unknown = || "-".to_owned();
    let bytes = |count: Option<u64>| count.map_or_else(unknown, |count| ByteCount(count).to_string());
    let number = |count: Option<u64>| count.map_or_else(unknown, |count| count.to_string());
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            row.node.to_string(),
            row.pid.to_string(),
            row.state.to_owned(),
            row.provider.clone().unwrap_or_else(unknown),
            bytes(row.bytes_used),
            total(row),
            bytes(row.bytes_quarantined),
            number(row.regions),
            number(row.mappings),
            row.incarnation.clone(),
            row.loss.map(|loss| loss::describe_briefly(loss.cause, age(loss))).unwrap_or_default(),
        ];
        if is_spread {
            let host_columns = [
                row.address.clone().unwrap_or_else(unknown),
                row.heard_ms_ago.map_or_else(unknown, |ms| format!("{ms} ms ago")),
                row.round_trip_us.map_or_else(unknown, |us| format!("{us:.0} us")),
                row.repeated_percent.map_or_else(unknown, |percent| format!("{percent:.1} %")),
            ];
            cells.splice(3..3, host_columns);
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(node: u32, incarnation: u64, alive: bool) -> Presence {
        Presence { node: NodeId(node), pid: 100 + node, incarnation, alive }
    }

    fn status(node: u32, incarnation: u64, state: NodeState) -> NodeStatus {
        NodeStatus {
            node: NodeId(node),
            pid: 100 + node,
            state,
            incarnation,
            provider: "shm".into(),
            bytes_used: 1,
            bytes_total: 2,
            bytes_refused: 0,
            bytes_quarantined: 0,
            bytes_largest: 2,
            regions: 3,
            mappings: 4,
            loss: None,
        }
    }

    #[test]
    fn lock_file_overrides_report() {
        let rows = merge(
            &[presence(0, 7, true), presence(1, 8, false)],
            &[status(0, 7, NodeState::Alive), status(1, 8, NodeState::Alive)],
        );
        assert_eq!((rows[0].state, rows[0].bytes_total), ("alive", Some(2)));
        assert_eq!((rows[1].state, rows[1].bytes_total), ("dead", None));
    }

    #[test]
    fn differing_view_of_a_node_has_a_reason() {
        let seen = |silent, reason| PeerSeen {
            address: None,
            is_here: false,
            silent,
            round_trip: None,
            repeated: None,
            reason,
        };
        let heard = Some(Duration::from_millis(45));
        let reason = |state, seen| {
            let (statuses, seen) = (vec![status(1, 9, state)], BTreeMap::from([(1, seen)]));
            rows(&[], &Answers { source: Some(NodeId(2)), statuses, seen })[0].reason.clone()
        };
        let opinion = reason(NodeState::Unreachable, seen(heard, None)).unwrap();
        assert_eq!(opinion, "it is unreachable for node 2; this host heard it 45 ms ago");
        let unanswered = reason(NodeState::Silent, seen(heard, None)).unwrap();
        assert_eq!(unanswered, "it has not answered this command; this host heard it 45 ms ago");
        let lost = Some("it was silent".to_owned());
        assert_eq!(reason(NodeState::Unreachable, seen(None, lost.clone())), lost);
        assert_eq!(reason(NodeState::Alive, seen(heard, None)), None);
    }

    #[test]
    fn moved_node_has_its_new_host() {
        for state in [NodeState::Alive, NodeState::Unreachable, NodeState::Left] {
            let moved = status(0, 9, state);
            assert_eq!(
                merge(&[presence(0, 7, false)], std::slice::from_ref(&moved)),
                [Row::of_status(&moved)]
            );
        }
        // A living process of this host keeps its row, regardless of the members' reports about other incarnations.
        let seen = PeerSeen {
            address: "10.0.0.3:7000".parse().ok(),
            is_here: false,
            silent: None,
            round_trip: None,
            repeated: None,
            reason: None,
        };
        let answers = Answers {
            source: None,
            statuses: vec![status(0, 9, NodeState::Alive)],
            seen: BTreeMap::from([(0, seen)]),
        };
        assert_eq!(rows(&[presence(0, 7, true)], &answers), [Row::of_presence(&presence(0, 7, true))]);
        assert_eq!(rows(&[], &answers)[0].address.as_deref(), Some("10.0.0.3:7000"));
    }
}
