//! Metrics of a real node, read as Prometheus does.

use crate::support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use halite::{Config, Function, Node, Permissions, Placement, ServeOptions};
use support::{Running, Scratch};

/// All samples of one scrape, by name and labels.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    /// Sends the request of Prometheus; `at` is `IP:PORT`.
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
        let samples = body.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        });
        Scrape(samples.collect())
    }

    fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.0))
    }
}

#[test]
fn operations_are_counted_by_their_node() {
    let scratch = Scratch::new("counted");
    let parent = std::process::id();
    let line = format!("node --id 0 --arena 256M --fabric roce --metrics 127.0.0.1:0 --parent {parent}");
    let mut first = Running::start(&scratch, &line);
    let text = first.line();
    let at = text.split_once("metrics at http://").expect("it prints its address").1.trim_end();
    let at = at.strip_suffix("/metrics").unwrap();
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
    assert_eq!(scrape.value("halite_access_failures_total"), 1.0);
    assert_eq!(scrape.value("halite_command_seconds_count{command=\"alloc\"}"), 2.0);
    assert_eq!(scrape.value("halite_calls_total"), 1.0);
    assert_eq!(scrape.value("halite_calls_received_total"), 1.0);
    assert_eq!(scrape.value("halite_peer_up{peer=\"0\"}"), 1.0);
    assert!(scrape.value("halite_peer_packets_sent_total{peer=\"0\"}") >= 10.0);

    // The node that holds the bytes and the names reports their amounts.
    let first = Scrape::of(at);
    assert_eq!(first.value("halite_directory_names"), 1.0);
    assert_eq!(first.value("halite_nodes{state=\"alive\"}"), 1.0);
    assert!(first.value("halite_arena_used_bytes") >= f64::from(1 << 20));
    assert_eq!(first.value("halite_lease_seconds"), 5.0);
}

#[test]
fn busy_metrics_address_is_refused() {
    let scratch = Scratch::new("taken");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    scratch.fails_with(
        &format!("node --id 0 --arena 64M --metrics {at}"),
        1,
        &format!("cannot serve metrics at {at}: Address already in use"),
    );
    assert!(
        scratch.fails("node --id 0 --metrics localhost", 2).contains("127.0.0.1:9464"),
        "it shows an example"
    );
}
