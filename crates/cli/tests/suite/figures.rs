//! What names in etcd cost beside those at node 0, what is felt of an etcd that is away, and what being asked for metrics costs.
//!
//! Nothing is asserted about time.  Without `HALITE_FIGURES` all is so short that it only shows that it works; all tables, in some three minutes:
//!
//! ```text
//! HALITE_FIGURES=1 cargo test --release -p halite-cli --test suite -- --ignored --nocapture --test-threads 1 figures
//! ```

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halite::blocking::Session;
use halite::{Config, Node, NodeId, Permissions, Placement};
use support::etcd::Etcd;
use support::{Running, Scratch};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);
const NODES: u32 = 8;

/// So much where figures are wanted, and so much else.
fn scaled(wanted: usize, else_: usize) -> usize {
    if std::env::var_os("HALITE_FIGURES").is_some() { wanted } else { else_ }
}

fn node(dir: &Path, id: u32, directory: Option<&str>) -> Node {
    let directory = directory.map(|address| address.parse().unwrap());
    let config =
        Config { dir: dir.to_owned(), node: Some(NodeId(id)), arena_bytes: 64 << 20, ..Config::default() };
    Node::embedded(Config { directory, ..config }).unwrap()
}

/// Processor time that a process has used, in us.
fn processor_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) * 1e6 / rustix::param::clock_ticks_per_second() as f64
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

fn timed<T>(job: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let done = job();
    (begin.elapsed(), done)
}

/// Repeats it until it succeeds.
fn until(is_so: impl Fn() -> bool) -> Duration {
    timed(|| while !is_so() {}).0
}

/// How many regions with names the nodes make in a second, each by so many threads, as where many processes make some.
fn rate(nodes: &[Node], count: usize, threads: usize) -> f64 {
    let (took, ()) = timed(|| {
        std::thread::scope(|scope| {
            for node in nodes {
                for thread in 0..threads {
                    let session = node.blocking_session();
                    scope.spawn(move || {
                        for index in (thread..count / nodes.len()).step_by(threads) {
                            let name = format!("{}-{index}", node.id());
                            session.alloc(Some(&name), 4096, Placement::Local, ANYBODY).unwrap();
                        }
                    });
                }
            }
        });
    });
    count as f64 / took.as_secs_f64()
}

#[test]
#[ignore = "measures: .ci/deep figures"]
fn figures_of_names_in_etcd_beside_those_at_node_0() {
    let scratch = Scratch::new("figures");
    let Some(disk) = Etcd::start(&scratch) else { return };
    let memory = Etcd::start_in_memory().expect("there is one");
    let count = scaled(4000, 80);
    println!(
        "| directory | threads of each of 8 nodes | names per second | processor time per name: nodes, us | etcd, us |"
    );
    println!("|---|---|---|---|---|");
    for threads in [1, 4, 32] {
        for (what, etcd) in
            [("node 0", None), ("etcd on disk", Some(&disk)), ("etcd in memory", Some(&memory))]
        {
            let prefix = format!("{what}-{threads}").replace(' ', "-");
            let directory = etcd.map(|etcd| etcd.address(&prefix));
            let dir = scratch.file(&prefix);
            let nodes: Vec<Node> = (0..NODES).map(|id| node(&dir, id, directory.as_deref())).collect();
            let used =
                || (processor_us(std::process::id()), etcd.map_or(0.0, |etcd| processor_us(etcd.pid())));
            let before = used();
            let rate = rate(&nodes, count, threads);
            let after = used();
            let each = |us: f64| us / count as f64;
            let (ours, its) = (each(after.0 - before.0), each(after.1 - before.1));
            println!("| {what} | {threads} | {rate:.0} | {ours:.0} | {its:.0} |");
        }
    }
}

/// What single operations take, the median of several.
struct Overheads {
    alloc: Duration,
    map: Duration,
    map_known: Duration,
    join: Duration,
    /// Processor time of a node that does nothing, in us a second.
    idle_us: f64,
    recovery: Duration,
}

fn overheads(dir: &Path, etcd: Option<&mut Etcd>) -> Overheads {
    let (count, idle) = (scaled(200, 5), Duration::from_millis(scaled(10_000, 100) as u64));
    let directory = etcd.as_ref().map(|etcd| etcd.address("overheads"));
    let (mut nodes, mut joined) = (Vec::new(), Vec::new());
    for id in 0..NODES {
        let (took, node) = timed(|| node(dir, id, directory.as_deref()));
        nodes.push(node);
        joined.push(took);
    }
    let (maker, mapper) = (nodes[1].blocking_session(), nodes[2].blocking_session());
    let name = |index: usize| format!("region-{index}");
    let alloc =
        |index: usize| timed(|| maker.alloc(Some(&name(index)), 4096, Placement::Local, ANYBODY).unwrap()).0;
    let map = |index: usize| {
        let (took, lh) = timed(|| mapper.map(&name(index), ANYBODY).unwrap());
        mapper.unmap(lh).unwrap();
        took
    };
    let alloc = median((0..count).map(alloc).collect());
    let map_first = median((0..count).map(map).collect());
    let map_known = median((0..count).map(map).collect());
    let before = processor_us(std::process::id());
    std::thread::sleep(idle);
    let idle_us = (processor_us(std::process::id()) - before) / idle.as_secs_f64() / f64::from(NODES);
    let late = |index: usize| maker.alloc(Some(&name(index)), 4096, Placement::Local, ANYBODY).is_ok();
    let recovery = match etcd {
        Some(etcd) => {
            etcd.kill();
            assert!(!late(count), "nobody gives names");
            etcd.run();
            until(|| late(count + 1))
        }
        None => {
            nodes.remove(0).leave();
            assert!(!late(count), "nobody gives names");
            let (took, first) = timed(|| node(dir, 0, None));
            nodes.push(first);
            took + until(|| late(count + 1))
        }
    };
    // Node 0 leaves last.
    nodes.sort_by_key(|node| std::cmp::Reverse(node.id()));
    drop((maker, mapper, nodes));
    Overheads { alloc, map: map_first, map_known, join: median(joined), idle_us, recovery }
}

#[test]
#[ignore = "measures: .ci/deep figures"]
fn figures_of_single_operations_in_etcd_beside_those_at_node_0() {
    let scratch = Scratch::new("overheads");
    let Some(mut disk) = Etcd::start(&scratch) else { return };
    let mut memory = Etcd::start_in_memory().expect("there is one");
    println!(
        "| directory | alloc with a name, us | map by name, us | again, us | a join, ms | an idle node, us/s | names again, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (what, etcd) in
        [("node 0", None), ("etcd on disk", Some(&mut disk)), ("etcd in memory", Some(&mut memory))]
    {
        let of = overheads(&scratch.file(&what.replace(' ', "-")), etcd);
        let (us, ms) = (|took: Duration| took.as_secs_f64() * 1e6, |took: Duration| took.as_secs_f64() * 1e3);
        println!(
            "| {what} | {:.0} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} |",
            us(of.alloc),
            us(of.map),
            us(of.map_known),
            ms(of.join),
            of.idle_us,
            ms(of.recovery),
        );
    }
}

/// Processor time that this thread has used.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How often an operation is done in a second, and what processor time of its caller each takes, in us, while names are asked for.
fn operations(session: &Session, time: Duration, job: &(dyn Fn(u64) + Sync)) -> (f64, f64) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let (begin, begin_busy, mut count) = (Instant::now(), thread_time(), 0);
            while !is_over.load(Ordering::Relaxed) {
                job(count);
                count += 1;
            }
            let (took, busy) = (begin.elapsed().as_secs_f64(), (thread_time() - begin_busy).as_secs_f64());
            (count as f64 / took, busy * 1e6 / count as f64)
        });
        let begin = Instant::now();
        while begin.elapsed() < time {
            // As far as any are given.
            let named = session.alloc(Some("load"), 4096, Placement::Local, ANYBODY);
            named.into_iter().for_each(|lh| session.free(lh).unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        caller.join().unwrap()
    })
}

/// By turns with etcd and without it, 33 s of each in all.  An operation that fails is a failure here.
#[test]
#[ignore = "measures: .ci/deep figures"]
fn figures_of_what_is_mapped_while_etcd_is_away() {
    let scratch = Scratch::new("away");
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    let address = etcd.address("away");
    let nodes = [0, 1, 2].map(|id| node(&scratch.cluster(), id, Some(&address)));
    let session = nodes[0].blocking_session();
    let lh = session.alloc(Some("mapped"), 1 << 20, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let part = Duration::from_millis(scaled(1000, 50) as u64);
    let jobs: [(&str, &(dyn Fn(u64) + Sync)); 3] = [
        ("write and read of 4 KiB", &|count| {
            let mut bytes = [count as u8; 4096];
            session.write(lh, 0, &bytes).expect("it is not concerned");
            session.read(lh, 0, &mut bytes).expect("it is not concerned");
        }),
        ("map by a name that is known, and unmap", &|_| {
            session.unmap(session.map("mapped", ANYBODY).expect("its home is known")).unwrap();
        }),
        ("alloc without a name, and free", &|_| {
            let lh = session.alloc(None, 4096, Placement::On(NodeId(2)), ANYBODY);
            session.free(lh.expect("it is not concerned")).unwrap();
        }),
    ];
    let mut seen = [const { [const { Vec::new() }; 2] }; 3];
    for _ in 0..scaled(11, 1) {
        for is_away in [false, true] {
            if is_away {
                etcd.kill();
            }
            for (seen, (_, job)) in seen.iter_mut().zip(&jobs) {
                seen[usize::from(is_away)].push(operations(&session, part, *job));
            }
            if is_away {
                etcd.run();
                until(|| {
                    session
                        .alloc(Some("back"), 4096, Placement::Local, ANYBODY)
                        .is_ok_and(|lh| session.free(lh).is_ok())
                });
            }
        }
    }
    println!(
        "| operation | a second, with etcd | while it is away | ratio | processor time of its caller, us | while it is away | ratio |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (seen, (what, _)) in seen.iter_mut().zip(jobs) {
        let mut middle = |of: fn(&(f64, f64)) -> f64| {
            seen.each_mut().map(|seen| {
                let mut seen: Vec<f64> = seen.iter().map(of).collect();
                seen.sort_by(f64::total_cmp);
                seen[seen.len() / 2]
            })
        };
        let ([rate, rate_away], [busy, busy_away]) = (middle(|seen| seen.0), middle(|seen| seen.1));
        println!(
            "| {what} | {rate:.0} | {rate_away:.0} | {:.2} | {busy:.2} | {busy_away:.2} | {:.2} |",
            rate_away / rate,
            busy_away / busy
        );
    }
}

/// Asks once for metrics.
fn scrape(address: &str) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text.len()
}

/// By the processor time of the node's process, in turns with and without somebody who asks once a second.
#[test]
#[ignore = "measures: .ci/deep figures"]
fn figures_of_being_asked_for_metrics_once_a_second() {
    let scratch = Scratch::new("scrapes");
    scratch.ok("up --nodes 2 --arena 64M --detach");
    let line = "node --id 7 --arena 64M --metrics 127.0.0.1:0";
    let mut running = Running::start(&scratch, line);
    let said = running.line();
    let address = said.split_once("metrics at http://").expect("it says where").1;
    let address = address.trim_end().strip_suffix("/metrics").unwrap().to_owned();
    let (seconds, rounds) = (scaled(15, 1), scaled(2, 1));
    let mut used = [0.0, 0.0];
    let mut bytes = 0;
    for _ in 0..rounds {
        for (is_asked, used) in [false, true].into_iter().zip(&mut used) {
            let before = processor_us(running.pid());
            for _ in 0..seconds {
                if is_asked {
                    bytes = scrape(&address);
                }
                std::thread::sleep(Duration::from_secs(1));
            }
            *used += processor_us(running.pid()) - before;
        }
    }
    let percent = |us: f64| us / (seconds * rounds) as f64 / 1e4;
    println!("| a node of three | of a core |\n|---|---|");
    println!("| nobody asks | {:.2} % |", percent(used[0]));
    println!("| asked once a second, {bytes} B | {:.2} % |", percent(used[1]));
    // The clock of processor time has ticks of 10 ms.
    let before = processor_us(running.pid());
    let count = scaled(2000, 20);
    (0..count).for_each(|_| assert!(scrape(&address) > 0));
    println!(
        "| each time that it is asked | {:.0} us |",
        (processor_us(running.pid()) - before) / count as f64
    );
    scratch.ok("down");
}
