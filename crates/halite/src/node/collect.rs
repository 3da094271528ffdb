//! Collects a node's metrics.
//!
//! The collection takes the runner's lock once, and sends no message. The number of time series is bounded: only
//! permanent nodes, whose numbers are below [`EPHEMERAL_NODE_MIN`], have series of their own, and a cluster has a few
//! hundred of them at most. Applications and commands are only counted.

use halite_fabric::Path;
use halite_tier::access::{Count, Counts};
use halite_tier::engine::{Figures, KnownPeer};
use halite_tier::message::NodeState;

use crate::cluster::config::EPHEMERAL_NODE_MIN;
use crate::driver::Driver;
use crate::driver::ticket::CommandTimes;
use crate::metrics::{AttachedSession, Metrics, Queues, Timed};

impl Metrics {
    /// Collects the metrics of a node. After the node has left, only the counters of its threads remain; in a fork,
    /// nothing.
    pub(crate) fn collect(driver: &Driver) -> Metrics {
        let mut metrics = Metrics::default();
        if driver.is_forked() {
            return metrics;
        }
        let now_ns = driver.now_ns();
        let (figures, queues, times) = driver.look(|runner| {
            let figures = runner.engine().map(|engine| engine.figures(now_ns));
            (figures, runner.queues(), runner.tickets.times().clone())
        });
        metrics.add_node(driver, figures.as_ref(), now_ns);
        metrics.add_accesses(&driver.shared.path.counts());
        metrics.add_calls(&driver.shared.path.counts(), driver);
        metrics.add_times(driver, &times);
        metrics.add_queues(driver, &queues);
        metrics.add_memory(figures.as_ref());
        metrics.add_directory(figures.as_ref());
        metrics.add_members(figures.as_ref());
        metrics.add_sessions(driver);
        metrics.add_peers(driver, figures.as_ref());
        metrics.add_packets(driver, figures.as_ref());
        metrics
    }

    fn add_node(&mut self, driver: &Driver, figures: Option<&Figures>, now_ns: u64) {
        let info = self.gauge("halite_info", "Always 1; the labels identify the node.");
        if let Some(Figures { status, .. }) = figures {
            let (node, incarnation) = (status.node.to_string(), format!("{:016x}", status.incarnation));
            let version = env!("CARGO_PKG_VERSION");
            let labels = [
                ("node", node.as_str()),
                ("incarnation", &incarnation),
                ("fabric", &status.provider),
                ("version", version),
            ];
            info.with_labels(&labels, 1_u64);
        }
        self.gauge("halite_uptime_seconds", "Time since the node started.").set(now_ns as f64 / 1e9);
        self.gauge("halite_closed", "1 if the node is leaving or has failed, and serves no requests.")
            .set(driver.is_closed());
    }

    fn add_accesses(&mut self, counts: &Counts) {
        use Count::*;
        let ops = [
            ("read", "direct", DirectReads),
            ("write", "direct", DirectWrites),
            ("atomic", "direct", DirectAtomics),
            ("fill", "direct", DirectFills),
            ("copy", "direct", DirectCopies),
            ("read", "posted", PostedReads),
            ("write", "posted", PostedWrites),
            ("atomic", "posted", PostedAtomics),
        ];
        let bytes = [
            ("read", "direct", DirectReadBytes),
            ("write", "direct", DirectWriteBytes),
            ("fill", "direct", DirectFillBytes),
            ("copy", "direct", DirectCopyBytes),
            ("read", "posted", PostedReadBytes),
            ("write", "posted", PostedWriteBytes),
        ];
        let family = self.counter(
            "halite_accesses_total",
            "Accesses to regions by sessions of this node. A long access counts once for each of its pieces.",
        );
        for (kind, path, count) in ops {
            family.with_labels(&[("kind", kind), ("path", path)], counts.of(count));
        }
        let family = self.counter("halite_access_bytes_total", "Bytes of accesses.");
        for (kind, path, count) in bytes {
            family.with_labels(&[("kind", kind), ("path", path)], counts.of(count));
        }
        self.counter("halite_access_failures_total", "Accesses that ended with an error.")
            .set(counts.of(AccessFailures));
    }

    fn add_calls(&mut self, counts: &Counts, driver: &Driver) {
        let rpc = &driver.shared.rpc;
        let counters = [
            ("halite_calls_total", "Calls posted by sessions of this node.", Count::Calls),
            ("halite_call_bytes_total", "Bytes of inputs of calls posted.", Count::CallBytes),
            ("halite_call_failures_total", "Calls that ended with an error.", Count::CallFailures),
            (
                "halite_calls_received_total",
                "Calls received by functions of this node.",
                Count::CallsReceived,
            ),
            (
                "halite_call_received_bytes_total",
                "Bytes of inputs of calls received.",
                Count::CallBytesReceived,
            ),
            ("halite_messages_total", "Messages posted by sessions of this node.", Count::Messages),
            ("halite_message_bytes_total", "Bytes of messages posted.", Count::MessageBytes),
            ("halite_message_failures_total", "Messages that could not be sent.", Count::MessageFailures),
            (
                "halite_messages_received_total",
                "Messages received from ports of this node.",
                Count::MessagesReceived,
            ),
            (
                "halite_message_received_bytes_total",
                "Bytes of messages received.",
                Count::MessageBytesReceived,
            ),
        ];
        for (name, help, count) in counters {
            self.counter(name, help).set(counts.of(count));
        }
        self.gauge(
            "halite_calls_under_way",
            "Calls and messages without an answer, including abandoned ones whose answer may still arrive.",
        )
        .set(rpc.client.all_under_way());
    }

    fn add_times(&mut self, driver: &Driver, times: &CommandTimes) {
        let timings = &driver.shared.timings;
        self.histogram(
            "halite_call_seconds",
            "Duration of calls whose caller waited at once; samples one call in 16 per thread.",
        )
        .add_histogram(&[], timings.of(Timed::Call));
        let family = self.histogram(
            "halite_posted_access_seconds",
            "Duration of accesses that were posted at least in part, or had to wait; samples one in 16 per thread.",
        );
        for timed in Timed::ALL.into_iter().filter(|timed| *timed != Timed::Call) {
            family.add_histogram(&[("kind", timed.name())], timings.of(timed));
        }
        let family = self.histogram(
            "halite_command_seconds",
            "Duration of commands: all operations on regions, locks and barriers except accesses.",
        );
        for (command, (taken, _)) in times.all() {
            family.add_histogram(&[("command", command)], taken);
        }
        let family = self.counter("halite_command_failures_total", "Commands that ended with an error.");
        for (command, (_, failures)) in times.all() {
            family.with_labels(&[("command", command)], *failures);
        }
    }

    fn add_queues(&mut self, driver: &Driver, queues: &Queues) {
        let (functions, ports) = driver.shared.rpc.services();
        self.gauge("halite_commands_under_way", "Commands that have not ended.").set(queues.commands);
        self.gauge("halite_posted_under_way", "Posted accesses that have not completed.")
            .set(driver.shared.posted.under_way());
        self.gauge("halite_services", "Functions that are served, and open ports.")
            .with_labels(&[("kind", "function")], functions.services)
            .with_labels(&[("kind", "port")], ports.services);
        self.gauge(
            "halite_service_requests_waiting",
            "Calls and messages in service queues that no thread has received yet.",
        )
        .with_labels(&[("kind", "function")], functions.waiting)
        .with_labels(&[("kind", "port")], ports.waiting);
        self.gauge("halite_jobs_waiting", "Copies, fills and arena growth that no thread has started.")
            .set(queues.jobs);
        self.gauge("halite_outbox_messages", "Control messages that the network has not accepted yet.")
            .set(queues.messages);
        self.gauge("halite_outbox_bytes", "Bytes of control messages not accepted yet.")
            .set(queues.message_bytes);
    }

    fn add_memory(&mut self, figures: Option<&Figures>) {
        let mut gauge = |name, help, value: fn(&Figures) -> u64| {
            let family = self.gauge(name, help);
            figures.into_iter().for_each(|figures| family.set(value(figures)));
        };
        gauge("halite_arena_limit_bytes", "Memory that the node may contribute.", |f| f.status.bytes_total);
        gauge("halite_arena_bytes", "Size to which the arena has grown.", |f| f.bytes_grown);
        gauge("halite_arena_used_bytes", "Arena memory that belongs to regions.", |f| f.status.bytes_used);
        gauge("halite_arena_free_bytes", "Arena memory that can be allocated at once.", |f| f.bytes_free);
        gauge(
            "halite_arena_quarantined_bytes",
            "Arena memory held back because a node that is not cut off may still write to it.",
            |f| f.status.bytes_quarantined,
        );
        gauge("halite_arena_refused_bytes", "Part of the limit that the system has refused.", |f| {
            f.status.bytes_refused
        });
        gauge("halite_regions", "Regions whose home is this node.", |f| f.status.regions);
        gauge("halite_mappings", "Handles of this node's sessions.", |f| f.status.mappings);
    }

    fn add_directory(&mut self, figures: Option<&Figures>) {
        let directory = figures.and_then(|figures| figures.directory.as_ref());
        let family = self.gauge(
            "halite_directory_ready",
            "1 if the directory of names answers. Exported by node 0, or by every node if names are in etcd.",
        );
        directory.into_iter().for_each(|directory| family.set(directory.is_ready));
        let family = self.gauge(
            "halite_directory_names",
            "Names of existing regions; if names are in etcd, only of regions whose home is this node.",
        );
        directory.into_iter().for_each(|directory| family.set(directory.names));
        let family = self.gauge(
            "halite_directory_lost_names",
            "Names that were lost with their nodes. Not exported if names are in etcd: use halite ls.",
        );
        let lost = directory.and_then(|directory| directory.lost);
        lost.into_iter().for_each(|lost| family.set(lost));
        let family = self.gauge(
            "halite_directory_requests_waiting",
            "Directory requests that wait until all nodes have announced their names, or for etcd.",
        );
        directory.into_iter().for_each(|directory| family.set(directory.waiting));
    }

    fn add_members(&mut self, figures: Option<&Figures>) {
        let lease = self.gauge("halite_lease_seconds", "Silence after which a node gives a peer up.");
        figures.into_iter().for_each(|figures| lease.set(figures.lease_ns as f64 / 1e9));
        let requests = self.gauge(
            "halite_requests_under_way",
            "Control requests without an answer, including those to this node.",
        );
        figures.into_iter().for_each(|figures| requests.set(figures.requests_under_way));
        let family = self.gauge("halite_nodes", "Other permanent nodes, by state as seen from this node.");
        for state in NodeState::ALL {
            let count = permanent(figures).filter(|(peer, _)| peer.state == state).count();
            family.with_labels(&[("state", state.name())], count);
        }
        let ephemeral = figures.into_iter().flat_map(|figures| &figures.peers);
        let ephemeral = ephemeral.filter(|(known, _)| is_ephemeral(known) && known.peer.is_some()).count();
        self.gauge("halite_applications", "Applications and commands connected to this node.").set(ephemeral);
    }

    fn add_sessions(&mut self, driver: &Driver) {
        let attached = &driver.shared.attached;
        let sessions = attached.list();
        let sum = |of: &dyn Fn(&AttachedSession) -> u64| sessions.iter().map(of).sum::<u64>();
        self.gauge("halite_sessions", "Sessions of other processes that are attached to the node.")
            .set(sessions.len());
        self.gauge(
            "halite_session_operations_under_way",
            "Operations of attached sessions that have not ended.",
        )
        .set(sum(&|session| session.operations));
        self.gauge("halite_session_bytes", "Memory for requests and unsent replies of attached sessions.")
            .set(sum(&|session| session.bytes));
        let [started, refused] = attached.counts();
        self.counter("halite_session_operations_total", "Operations of attached sessions.").set(started);
        self.counter(
            "halite_session_refusals_total",
            "Requests of attached sessions that were refused because of a quota.",
        )
        .set(refused);
    }

    fn add_peers(&mut self, driver: &Driver, figures: Option<&Figures>) {
        let peers: Vec<Peer<'_>> = permanent(figures).map(Peer::new).collect();
        let mut gauge = |name, help, value: &dyn Fn(&KnownPeer, u64) -> Option<f64>| {
            let family = self.gauge(name, help);
            for peer in &peers {
                if let Some(value) = value(peer.known, peer.pairing) {
                    family.with_labels(&[("peer", &peer.node)], value);
                }
            }
        };
        let fabric = &driver.shared.fabric;
        gauge("halite_peer_up", "1 if the peer is alive and connected.", &|known, _| {
            Some(f64::from(u8::from(known.state == NodeState::Alive && known.peer.is_some())))
        });
        gauge(
            "halite_peer_silence_seconds",
            "Time since the peer was last heard; the node gives the peer up at halite_lease_seconds.",
            &|known, _| {
                let heard_ns =
                    known.peer.and_then(|peer| fabric.heard(peer)).map(|ago| ago.as_nanos() as u64);
                Some(known.silent_ns?.min(heard_ns.unwrap_or(u64::MAX)) as f64 / 1e9)
            },
        );
        gauge(
            "halite_peer_pairing",
            "Number of the pairing with the peer; rises with each new pairing.",
            &|_, pairing| Some(pairing as f64),
        );
        gauge(
            "halite_peer_quarantined_bytes",
            "Memory of this node held back because the peer could still write to it.",
            &|known, _| Some(known.bytes_quarantined as f64),
        );
        gauge(
            "halite_peer_calls_under_way",
            "Calls and messages to the peer without an answer.",
            &|known, _| Some(driver.shared.rpc.under_way(known.incarnation.node).0 as f64),
        );
        gauge(
            "halite_peer_round_trip_seconds",
            "Smoothed round trip to the peer, if the network measures it.",
            &|known, _| Some(fabric.round_trip(known.peer?)?.as_secs_f64()),
        );
    }

    fn add_packets(&mut self, driver: &Driver, figures: Option<&Figures>) {
        let paths: Vec<_> = permanent(figures)
            .filter_map(|peer| Some((Peer::new(peer).node, driver.shared.fabric.path(peer.0.peer?)?)))
            .collect();
        let counters: [(_, _, PathCounter); 7] = [
            (
                "halite_peer_packets_sent_total",
                "Packets sent to the peer, including retransmitted ones.",
                |path| path.sent,
            ),
            ("halite_peer_packets_repeated_total", "Packets retransmitted to the peer.", |path| {
                path.repeated
            }),
            ("halite_peer_packets_received_total", "Packets received from the peer.", |path| path.arrived),
            ("halite_peer_packets_duplicate_total", "Received packets that had arrived before.", |path| {
                path.duplicates
            }),
            (
                "halite_peer_packets_early_total",
                "Received packets that arrived ahead of a lost or late one.",
                |path| path.kept,
            ),
            ("halite_peer_timeouts_total", "Retransmission timeouts towards the peer.", |path| path.timeouts),
            (
                "halite_peer_trains_refused_total",
                "Packet trains that the operating system refused or that the path seemed to drop.",
                |path| path.trains_refused,
            ),
        ];
        for (name, help, value) in counters {
            let family = self.counter(name, help);
            for (node, path) in &paths {
                family.with_labels(&[("peer", node)], value(path));
            }
        }
        let family =
            self.counter("halite_packets_dropped_total", "Packets that the node dropped, by reason.");
        for (reason, count) in driver.shared.fabric.dropped_packets() {
            family.with_labels(&[("reason", reason)], count);
        }
        let family =
            self.gauge("halite_peer_mtu_bytes", "Largest packet payload that the path to the peer carries.");
        for (node, path) in &paths {
            family.with_labels(&[("peer", node)], u64::from(path.mtu_bytes));
        }
        let family = self
            .gauge("halite_peer_window_packets", "Packets that may be under way to the peer, in all lanes.");
        for (node, path) in &paths {
            family.with_labels(
                &[("peer", node)],
                path.window_packets.iter().map(|packets| u64::from(*packets)).sum::<u64>(),
            );
        }
    }
}

/// A function that reads a counter of a path.
type PathCounter = fn(&Path) -> u64;

struct Peer<'f> {
    node: String,
    known: &'f KnownPeer,
    pairing: u64,
}

impl<'f> Peer<'f> {
    fn new((known, pairing): &'f (KnownPeer, u64)) -> Peer<'f> {
        Peer { node: known.incarnation.node.to_string(), known, pairing: *pairing }
    }
}

fn is_ephemeral(known: &KnownPeer) -> bool {
    known.incarnation.node.0 >= EPHEMERAL_NODE_MIN
}

fn permanent(figures: Option<&Figures>) -> impl Iterator<Item = &(KnownPeer, u64)> {
    figures.into_iter().flat_map(|figures| &figures.peers).filter(|(known, _)| !is_ephemeral(known))
}
