//! Metrics, as Prometheus sees them: one that scrapes a real node, and is strict about what it reads.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use halite::{Config, Function, Node, Permissions, Placement, ServeOptions};
use serde_json::Value;
use support::{Running, Scratch};

/// What one scrape says: all families by name with their types, and all samples by name and labels.
#[derive(Default, Debug)]
struct Scrape {
    types: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    /// Asks as Prometheus does; `at` is `IP:PORT`.
    fn of(at: &str) -> Scrape {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: halite\r\nAccept: text/plain\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        Scrape::parse(body)
    }

    /// Reads the text format strictly: each family has one HELP and one TYPE, in this order, and its samples behind them.
    fn parse(text: &str) -> Scrape {
        assert!(text.ends_with('\n'));
        let mut scrape = Scrape::default();
        let (mut helped, mut family) = (String::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(help.ends_with('.') && help.len() > 5, "{line}");
                helped = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, helped, "HELP and TYPE stand together");
                check_name(name, kind);
                let known = scrape.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(known, None, "{name} stands twice");
                family = name.to_owned();
            } else {
                scrape.add_sample(line, &family);
            }
        }
        scrape.check_histograms();
        scrape
    }

    fn add_sample(&mut self, line: &str, family: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} stands below {family}"));
        match self.types[family].as_str() {
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            _ => assert_eq!(suffix, "", "{line}"),
        }
        if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            check_labels(labels);
        }
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert_eq!(self.samples.insert(series.to_owned(), value), None, "{series} stands twice");
    }

    /// The buckets of each histogram do not fall, and end with all.
    fn check_histograms(&self) {
        for (series, count) in self.samples.iter().filter(|(series, _)| series.contains("le=\"+Inf\"")) {
            let (name, labels) = series.split_once('{').unwrap();
            let family = name.strip_suffix("_bucket").unwrap();
            let others = labels.strip_suffix('}').unwrap().replace("le=\"+Inf\"", "");
            let others = others.trim_end_matches(',');
            let suffixed = if others.is_empty() { String::new() } else { format!("{{{others}}}") };
            assert_eq!(self.samples[&format!("{family}_count{suffixed}")], *count);
            assert!(self.samples.contains_key(&format!("{family}_sum{suffixed}")));
            let is_one =
                |other: &&String| other.starts_with(&format!("{name}{{{others}")) && other.contains("le=");
            let mut buckets: Vec<(f64, f64)> = self
                .samples
                .keys()
                .filter(is_one)
                .map(|key| {
                    let bound = key.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
                    (bound.parse().unwrap(), self.samples[key])
                })
                .collect();
            buckets.sort_by(|one, next| one.0.total_cmp(&next.0));
            assert!(
                buckets.len() > 5 && buckets.is_sorted_by(|one, next| one.1 <= next.1),
                "{series}: {buckets:?}"
            );
        }
    }

    fn value(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.samples))
    }

    fn names(&self) -> BTreeSet<String> {
        self.types.keys().cloned().collect()
    }
}

fn check_name(name: &str, kind: &str) {
    assert!(name.starts_with("halite_"), "{name}");
    assert!(name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{name}");
    assert!(["counter", "gauge", "histogram"].contains(&kind), "{name} is a {kind}");
    assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
    let others = ["_ms", "_us", "_ns", "_kb", "_mb", "_percent", "_bucket", "_sum", "_count"];
    assert!(!others.iter().any(|unit| name.ends_with(unit)), "{name} is in no base unit");
}

fn check_labels(labels: &str) {
    let inner = labels.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap();
    for label in inner.split("\",") {
        let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{labels}"));
        assert!(name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{labels}");
        assert!(!value.trim_end_matches('"').contains(['"', '\n']), "{labels}");
    }
}

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)).unwrap()
}

/// The names of the table in the manual, with their types.
fn documented() -> BTreeMap<String, String> {
    let text = document("operations.md");
    let table = text
        .lines()
        .skip_while(|line| *line != "| name | type | meaning |")
        .take_while(|line| line.starts_with('|'));
    let rows = table.filter_map(|line| line.strip_prefix("| `halite_"));
    let found = rows.map(|row| {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap().split(['`', '{']).next().unwrap();
        (format!("halite_{name}"), cells.next().unwrap().to_owned())
    });
    found.collect()
}

/// A node in the foreground that serves metrics; where it does.
fn node_with_metrics(scratch: &Scratch) -> (Running, String) {
    let parent = std::process::id();
    let mut node = Running::start(
        scratch,
        &format!("node --id 0 --arena 256M --fabric roce --metrics 127.0.0.1:0 --parent {parent}"),
    );
    let line = node.line();
    let at = line.split_once("metrics at http://").expect("it says where").1.trim_end();
    (node, at.strip_suffix("/metrics").unwrap().to_owned())
}

#[test]
fn a_node_tells_all_that_the_manual_says_and_nothing_else() {
    let scratch = Scratch::new("metrics");
    let (_node, at) = node_with_metrics(&scratch);
    let scrape = Scrape::of(&at);
    assert_eq!(scrape.types, documented());
    assert_eq!(scrape.value("halite_arena_limit_bytes"), f64::from(256 << 20));
    assert_eq!(scrape.value("halite_directory_ready"), 1.0);
    assert_eq!(scrape.value("halite_directory_names"), 0.0);
    assert_eq!(scrape.value("halite_lease_seconds"), 5.0);
    assert_eq!(scrape.value("halite_command_seconds_count{command=\"status\"}"), 1.0);
}

#[test]
fn operations_are_counted_by_the_node_whose_sessions_do_them() {
    let scratch = Scratch::new("counted");
    let (_node, at) = node_with_metrics(&scratch);
    let config = Config {
        dir: scratch.cluster(),
        node: Some(halite::NodeId(1)),
        arena_bytes: 64 << 20,
        ..Config::default()
    };
    let node = Node::embedded(Config { metrics: "127.0.0.1:0".parse().ok(), ..config }).unwrap();
    let own = node.metrics_address().unwrap().to_string();
    let session = node.blocking_session();
    let rights = Permissions::READ | Permissions::WRITE | Permissions::ATOMIC;
    let far = session.alloc(Some("salt"), 1 << 20, Placement::On(halite::NodeId(0)), rights).unwrap();
    let near = session.alloc(None, 4096, Placement::Local, rights).unwrap();
    for place in 0..10 {
        session.write(far, 8 * place, &[7; 8]).unwrap();
        session.read(near, 0, &mut [0; 100]).unwrap();
    }
    session.fetch_add(far, 0, 1).unwrap();
    session.fill(near, 0, 4096, 1).unwrap();
    session.write(near, 5000, b"beyond").unwrap_err();
    let server = session.serve(Function(7), ServeOptions::default()).unwrap();
    let pending = session.post_call(node.id(), Function(7), b"salt", 64, Duration::from_secs(60)).unwrap();
    let waiting = Scrape::of(&own);
    assert_eq!(waiting.value("halite_service_requests_waiting{kind=\"function\"}"), 1.0);
    assert_eq!(waiting.value("halite_calls_under_way"), 1.0);
    server.recv().unwrap().reply(b"pepper").unwrap();
    pending.answer().unwrap();

    let scrape = Scrape::of(&own);
    let access = |name: &str, kind: &str, path: &str| {
        scrape.value(&format!("halite_{name}_total{{kind=\"{kind}\",path=\"{path}\"}}"))
    };
    assert_eq!(access("accesses", "write", "posted"), 10.0);
    assert_eq!(access("access_bytes", "write", "posted"), 80.0);
    assert_eq!(access("accesses", "read", "direct"), 10.0);
    assert_eq!(access("access_bytes", "read", "direct"), 1000.0);
    assert_eq!(access("accesses", "atomic", "posted") + access("accesses", "atomic", "direct"), 1.0);
    assert_eq!(access("access_bytes", "fill", "direct"), 4096.0);
    assert_eq!(scrape.value("halite_access_failures_total"), 1.0);
    // One in sixteen of a thread is timed, and the first is one.
    assert_eq!(scrape.value("halite_posted_access_seconds_count{kind=\"write\"}"), 1.0);
    assert_eq!(scrape.value("halite_command_seconds_count{command=\"alloc\"}"), 2.0);
    assert_eq!(scrape.value("halite_calls_total"), 1.0);
    assert_eq!(scrape.value("halite_calls_received_total"), 1.0);
    assert_eq!(scrape.value("halite_call_received_bytes_total"), 4.0);
    assert_eq!(scrape.value("halite_peer_up{peer=\"0\"}"), 1.0);
    assert!(scrape.value("halite_peer_packets_sent_total{peer=\"0\"}") >= 10.0);
    assert!(scrape.value("halite_peer_silence_seconds{peer=\"0\"}") < 60.0);
    assert_eq!(scrape.names(), documented().into_keys().collect());
    assert!(!scrape.samples.contains_key("halite_directory_names"), "node 0 alone has it");

    // The one that holds the bytes and the names tells how much of them there is.
    let first = Scrape::of(&at);
    assert_eq!(first.value("halite_directory_names"), 1.0);
    assert_eq!(first.value("halite_nodes{state=\"alive\"}"), 1.0);
    let used = first.value("halite_arena_used_bytes");
    assert!(used >= f64::from(1 << 20), "{used}");
    assert_eq!(
        first.value("halite_arena_bytes"),
        used + first.value("halite_arena_free_bytes") + first.value("halite_arena_quarantined_bytes")
    );
}

#[test]
fn up_gives_each_node_a_port_and_says_which() {
    let scratch = Scratch::new("up-metrics");
    let printed = scratch.ok("up --nodes 2 --arena 64M --metrics 127.0.0.1:0 --detach");
    let places: Vec<&str> = printed
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("http://")?.strip_suffix("/metrics"))
        .collect();
    assert_eq!(places.len(), 2, "{printed}");
    for (node, at) in places.into_iter().enumerate() {
        let info = format!("halite_info{{node=\"{node}\",");
        assert!(Scrape::of(at).samples.keys().any(|series| series.starts_with(&info)));
    }
    scratch.ok("down");
}

#[test]
fn nodes_of_a_cluster_above_the_number_that_is_set_are_not_connected_each_to_each() {
    let scratch = Scratch::new("mesh");
    let file = scratch.write("halite.toml", b"full_mesh_nodes_max = 2\n");
    let line = format!("up --nodes 6 --arena 16M --metrics 127.0.0.1:0 --detach --config {}", file.display());
    let printed = scratch.ok(&line);
    let last = printed.lines().find(|line| line.trim_start().starts_with('5')).unwrap();
    let at = last.split_whitespace().find_map(|word| word.strip_prefix("http://")?.strip_suffix("/metrics"));
    let scrape = Scrape::of(at.unwrap_or_else(|| panic!("where node 5 serves metrics: {printed}")));
    let is_peer = |series: &&String| series.starts_with("halite_peer_up{") && scrape.samples[*series] > 0.0;
    let peers: Vec<&String> = scrape.samples.keys().filter(is_peer).collect();
    // The first node, and two more that tell where it is.
    assert_eq!(peers.len(), 3, "{peers:?}");
    scratch.ok("down");
}

#[test]
fn an_address_that_cannot_be_had_is_said_before_anything_is_started() {
    let scratch = Scratch::new("taken");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let complaint = scratch.fails(&format!("node --id 0 --arena 64M --metrics {at}"), 1);
    assert!(
        complaint.contains(&format!("cannot serve metrics at {at}: Address already in use")),
        "{complaint}"
    );
    assert!(scratch.fails("node --id 0 --metrics localhost", 2).contains("127.0.0.1:9464"), "it shows how");
}

/// The names in an expression, each of a family that there is.
fn check_expression(expression: &str, documented: &BTreeMap<String, String>) -> BTreeSet<String> {
    let words = expression.split(|letter: char| letter != '_' && !letter.is_ascii_lowercase());
    let names: BTreeSet<String> =
        words.filter(|word| word.starts_with("halite_")).map(str::to_owned).collect();
    for name in &names {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let kind = |name: &str| documented.get(name).map(String::as_str);
        let is_part = family.is_some_and(|family| kind(family) == Some("histogram"));
        assert!(is_part || kind(name).is_some_and(|kind| kind != "histogram"), "{name} is in no table");
    }
    names
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_names_that_there_are() {
    let (documented, manual) = (documented(), document("operations.md"));
    let dashboard: Value = serde_json::from_str(&document("grafana.json")).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let names = check_expression(target["expr"].as_str().unwrap(), &documented);
            assert!(!names.is_empty(), "{target}");
            asked.extend(names);
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    let alerts = manual.lines().skip_while(|line| *line != "| expression | means | look at |").skip(2);
    let alerts: Vec<&str> = alerts.take_while(|line| line.starts_with('|')).collect();
    assert!(alerts.len() > 5);
    alerts.iter().for_each(|alert| drop(check_expression(alert, &documented)));
}

#[test]
fn an_application_that_is_run_tells_what_its_processes_do() {
    let scratch = Scratch::new("run-metrics");
    let line = "run kv --nodes 2 --listen 127.0.0.1:0 --arena 64M --metrics 127.0.0.1:0 --json";
    // A cluster of its own, which ends with it.
    let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
    command.args(line.split_whitespace()).env_remove("HALITE_DIR").env("TMPDIR", scratch.file(""));
    let mut run = Running::of(command);
    let told: Value = serde_json::from_str(&run.line()).unwrap();
    let mut client = TcpStream::connect(told["address"].as_str().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Of twenty keys, each of the two shards has some.
    for key in 0..20 {
        client.write_all(format!("SET key{key} salt\r\n").as_bytes()).unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }
    let places = told["metrics"].as_array().unwrap().iter().map(|at| at.as_str().unwrap());
    let scrapes: Vec<Scrape> = places.map(Scrape::of).collect();
    let [first, second] = &scrapes[..] else { panic!("{told}") };
    let called = first.value("halite_calls_total");
    assert!(
        (1.0..20.0).contains(&called),
        "the first serves clients, and calls the owner of the other shard: {called}"
    );
    assert_eq!(second.value("halite_calls_received_total"), called);
    run.signal(rustix::process::Signal::TERM);
    run.wait();
}
