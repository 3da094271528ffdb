//! Clusters with names in an etcd from Debian's package: where etcd is not installed, these tests are skipped, or fail
//! if `HALITE_NEEDS_ETCD` is set, as in the gate.

use crate::support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use halite::{Config, EtcdAddress, EtcdFault, JoinError, Node, NodeId, Placement, RegionCause};
use rustix::process::Signal;
use support::etcd::{ClosedPort, Etcd};
use support::{Process, READ_WRITE, Running, Scratch, eventually, join};

fn config(dir: &Path, id: u32) -> Config {
    Config { dir: dir.to_owned(), node: Some(NodeId(id)), arena_bytes: 64 << 20, ..Config::default() }
}

fn node(dir: &Path, id: u32, directory: Option<&str>) -> Node {
    let directory = directory.map(|address| address.parse().unwrap());
    Node::embedded(Config { directory, ..config(dir, id) }).unwrap()
}

/// Starts a cluster of detached nodes with names at `prefix` of a new etcd, and creates a file that holds `words`;
/// `None` where etcd is not installed.
fn cluster(prefix: &str, nodes: u32) -> Option<(Scratch, Etcd, String)> {
    let scratch = Scratch::new(prefix);
    let etcd = Etcd::start()?;
    let file = scratch.write("file", b"words").display().to_string();
    scratch.ok(&format!("up --nodes {nodes} --arena 64M --detach --directory {}", etcd.address(prefix)));
    Some((scratch, etcd, file))
}

#[test]
fn clusters_share_an_etcd() {
    let Some((scratch, etcd, file)) = cluster("one", 3) else { return };
    scratch.ok(&format!("put a {file} --node 1"));
    assert!(scratch.ok("ls --json").contains("\"a\""));
    // The prefix of another cluster must not be within this one.
    let keys = etcd.ctl(&["get", "--prefix", "/one/", "--keys-only"]);
    let headings = keys.lines().filter_map(|key| key.strip_prefix("/one/")?.split('/').next());
    let is_refused = |heading: &str| format!("etcd://a:1/one/{heading}").parse::<EtcdAddress>().is_err();
    let open: Vec<&str> = headings.filter(|heading| !is_refused(heading)).collect();
    assert!(open.is_empty() && keys.contains("/one/names/a"), "{open:?} of {keys}");
    // Commands and applications that joined leave no key behind.
    for line in [
        &format!("--embed put b {file} --node 1"),
        "--embed get b",
        "--embed ls",
        "rm b",
        "run log --segment 64K --seconds 0.1",
    ] {
        scratch.ok(line);
    }
    let keys = etcd.ctl(&["get", "--prefix", "/one/homes/", "--keys-only"]);
    let homes = keys.lines().filter_map(|key| key.strip_prefix("/one/homes/")?.split('.').next());
    let homes: Vec<u32> = homes.map(|node| node.parse().unwrap()).collect();
    assert!(homes.contains(&1) && homes.iter().all(|node| *node < 3), "{keys}");
    Process::open(scratch.pid(0)).kill();
    scratch.ok(&format!("put b {file} --node 2"));
    assert_eq!(scratch.ok("get a"), "words");
    scratch.fails_with(&format!("put a {file} --node 2"), 1, "\"a\"");
    assert!(scratch.ok("ls --json").contains("\"b\""));
    let other = Scratch::new("etcd-other");
    other.ok(&format!("up --nodes 1 --arena 64M --detach --directory {}", etcd.address("two")));
    assert_eq!(other.ok("ls --json"), "");
    other.ok(&format!("put a {file}"));
    other.ok("down");
    scratch.ok("down");
}

/// Nodes of several hosts whose command lines name no other host. The last one joins while etcd still lists the address
/// of a killed node 0.
#[test]
fn hosts_meet_through_etcd() {
    let Some(etcd) = Etcd::start() else { return };
    let own = Scratch::new("found");
    let secret = own.file("secret").display().to_string();
    own.ok(&format!("secret new {secret}"));
    let start = |id: u32| {
        let scratch = Scratch::new(&format!("found-{id}"));
        let at = format!("--listen 127.0.0.1:0 --secret-file {secret} --directory {}", etcd.address("found"));
        let mut node = Running::start(&scratch, &format!("node --id {id} --arena 64M {at}"));
        assert!(node.line().contains("ready"));
        (node, scratch)
    };
    let (mut first, _dir) = start(0);
    let (_second, second) = start(1);
    second.ok(&format!("put a {} --node 0", own.write("file", b"words").display()));
    first.signal(Signal::KILL);
    first.wait();
    let (_third, third) = start(2);
    third.ok(&format!("put b {} --node 1", own.file("file").display()));
    assert_eq!(second.ok("get b"), "words");
}

/// A second cluster with the same prefix is refused.
#[test]
fn prefix_belongs_to_one_running_cluster() {
    let Some((scratch, etcd, file)) = cluster("taken", 2) else { return };
    scratch.ok(&format!("put a {file} --node 1"));
    eventually(|| {
        etcd.ctl(&["get", "--prefix", "/taken/places/", "--keys-only"]).contains("/taken/places/1")
    });
    let other = Scratch::new("etcd-taken-other");
    for id in [0, 1] {
        let text =
            other.fails(&format!("node --id {id} --arena 64M --directory {}", etcd.address("taken")), 1);
        assert!(text.contains("another cluster has its names at") && text.contains("prefix"), "{text}");
    }
    assert_eq!(scratch.ok("get a"), "words", "the name is still there");
    // A node that has died returns to its prefix.
    Process::open(scratch.pid(0)).kill();
    let line = format!(
        "node --id 0 --arena 64M --parent {} --directory {}",
        std::process::id(),
        etcd.address("taken")
    );
    let mut again = Running::start(&scratch, &line);
    assert!(again.line().starts_with("node 0 ready"));
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok("down");
    eventually(|| etcd.ctl(&["get", "--prefix", "/taken/places/"]).is_empty());
    other.ok(&format!("up --nodes 1 --arena 64M --detach --directory {}", etcd.address("taken")));
    other.ok("down");
}

/// Enables authentication: a root user with a password, and a user who may access everything below `/halite/one`.
fn with_users(etcd: &Etcd) {
    for line in [
        "user add root:root-word",
        "user grant-role root root",
        "role add halite",
        "role grant-permission halite readwrite --prefix=true /halite/one/",
        "user add salt:pass:word",
        "user grant-role salt halite",
        "auth enable",
    ] {
        let line = line.replace("salt:pass:word", "salt --new-user-password=pass:word");
        etcd.ctl(&line.split(' ').collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn etcd_works_over_tls_with_a_password_file() {
    let scratch = Scratch::new("etcd-tls");
    let Some(mut etcd) = Etcd::start_with_tls(&scratch) else { return };
    with_users(&etcd);
    let password = scratch.write("password", b"pass:word\n");
    let address = format!(
        "etcd://salt@127.0.0.1:{}/halite/one?ca={}&cert={}&key={}&password-file={}",
        etcd.port,
        etcd.cert("ca.pem"),
        etcd.cert("client.pem"),
        etcd.cert("client.key"),
        password.display()
    );
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    let mut up = scratch.command(&format!("up --nodes 2 --arena 64M --detach --directory {address}"));
    assert!(up.status().unwrap().success());
    // Commands read the address of etcd from the cluster directory.
    scratch.ok(&format!("put a {file} --node 1"));
    assert_eq!(scratch.ok("get a"), "words");
    // Restarting etcd invalidates its tokens: clients authenticate again.
    etcd.kill();
    etcd.run();
    eventually(|| scratch.run("get a").status.success());
    eventually(|| scratch.run(&format!("put b {file} --node 1")).status.success());
    // Certificates are replaced while nodes run.
    etcd.renew_certs();
    eventually(|| scratch.run(&format!("put c {file} --node 1")).status.success());
    scratch.ok("down");
}

#[test]
fn etcd_credentials_have_distinct_errors() {
    let scratch = Scratch::new("etcd-refused");
    let Some(etcd) = Etcd::start_with_tls(&scratch) else { return };
    with_users(&etcd);
    let right = scratch.write("right", b"pass:word");
    let wrong = scratch.write("wrong", b"password");
    let (right, wrong) = (right.to_str().unwrap(), wrong.to_str().unwrap());
    let at = format!("127.0.0.1:{}", etcd.port);
    let tls = |ca: &str, own: &str, key: &str| {
        format!("ca={}&cert={}&key={}", etcd.cert(ca), etcd.cert(own), etcd.cert(key))
    };
    let good = tls("ca.pem", "client.pem", "client.key");
    let check = |address: String, fault: EtcdFault, word: &str| {
        let config = Config { directory: Some(address.parse().unwrap()), ..config(&scratch.cluster(), 0) };
        match Node::embedded(config) {
            Err(JoinError::Etcd { source, .. }) => {
                assert_eq!(source.fault, fault, "{address}: {source}");
                assert!(source.reason.contains(word), "{address}: {source}");
            }
            other => panic!("{address}: {other:?}"),
        }
    };
    let ca_alone = format!("ca={}", etcd.cert("ca.pem"));
    for (query, fault, word) in [
        (tls("other-ca.pem", "client.pem", "client.key"), EtcdFault::Certificate, "invalid peer certificate"),
        (tls("ca.pem", "stranger.pem", "stranger.key"), EtcdFault::Certificate, "alert"),
        (ca_alone, EtcdFault::Certificate, "alert"),
        (tls("ca.pem", "client.pem", "stranger.key"), EtcdFault::File, "stranger.key: it is not the key"),
        (tls("ca.pem", "none.pem", "client.key"), EtcdFault::File, "No such file"),
    ] {
        check(format!("etcd://salt@{at}/halite/one?{query}&password-file={right}"), fault, word);
    }
    let as_salt =
        |prefix: &str, file: &str| format!("etcd://salt@{at}/halite/{prefix}?{good}&password-file={file}");
    check(as_salt("one", wrong), EtcdFault::User, "authentication failed");
    check(as_salt("two", right), EtcdFault::User, "permission denied");
    check(format!("etcd://nobody:x@{at}/halite/one?{good}"), EtcdFault::User, "authentication failed");
    check(format!("etcd://{at}/halite/one?{good}"), EtcdFault::User, "user name is empty");
    let named = tls("ca.pem", "named.pem", "named.key");
    let named = format!("etcd://salt@{at}/halite/one?{named}&password-file={right}");
    check(named, EtcdFault::CommonName, "CommonName of client");
    // Without TLS where etcd requires it, and with TLS where etcd does not use it.
    check(format!("etcd://salt:pass:word@{at}/halite/one"), EtcdFault::Unreachable, "?ca=FILE");
    let plain = Etcd::start().unwrap();
    check(format!("etcd://127.0.0.1:{}/one?{good}", plain.port), EtcdFault::Unreachable, "without TLS");
}

/// The fault, the place and the remedy are each reported once: by a command on a terminal, by a node that other nodes
/// wait for, and in a node's log.
#[test]
fn etcd_faults_are_reported_once_with_a_remedy() {
    let scratch = Scratch::new("etcd-once");
    let Some(etcd) = Etcd::start() else { return };
    let at = ClosedPort::new();
    let asked = [
        (format!("etcd://{at}/x"), "does not answer", "Connection refused", "check that etcd runs"),
        (
            format!("etcd://u:p@127.0.0.1:{}/x", etcd.port),
            "has authentication switched off",
            "not enabled",
            "remove user and password from the address",
        ),
        (format!("etcd://{at}/x?ca=/nowhere"), "needs a file", "/nowhere: No such file", "provide the file"),
    ];
    for (address, fault, why, remedy) in asked {
        for line in ["node --id 0", "up --nodes 1 --detach"] {
            let text = scratch.fails(&format!("{line} --arena 64M --directory {address}"), 1);
            for part in [fault, why, remedy, "cannot join"] {
                assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
            }
        }
    }
    let text = scratch.fails("node --id 0 --directory http://x", 2);
    assert!(text.contains("is not of the form etcd://"), "{text}");
    let _first = node(&scratch.cluster(), 0, None);
    let text = scratch.fails(&format!("node --id 1 --arena 64M --directory etcd://{at}/x"), 1);
    assert!(text.contains("keep their names at node 0"), "{text}");
}

/// A member of etcd that accepts requests and never answers, or whose host name does not resolve, is skipped: no request
/// fails.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn hanging_etcd_endpoint_is_skipped() {
    let scratch = Scratch::new("etcd-passed-over");
    let Some(etcd) = Etcd::start() else { return };
    // The system accepts connections to this socket, and no program reads from them.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute_port = mute.local_addr().unwrap().port();
    for first in [format!("127.0.0.1:{mute_port}"), "nowhere.invalid:1".to_owned()] {
        let address = format!("etcd://{first},127.0.0.1:{}/over", etcd.port);
        let only = node(&scratch.cluster(), 0, Some(&address));
        let session = only.blocking_session();
        session.alloc(Some("a"), 4096, Placement::Local, READ_WRITE).expect("another endpoint answers");
        assert_eq!(session.stat("a").unwrap().home, NodeId(0));
    }
}

/// The nodes are separate processes; applications in this process name regions at the same time.
#[test]
fn names_move_to_etcd_under_load() {
    let scratch = Scratch::new("etcd-move");
    let Some(etcd) = Etcd::start() else { return };
    scratch.ok("up --nodes 3 --arena 64M --detach");
    let file = scratch.write("file", b"words").display().to_string();
    scratch.ok(&format!("put before {file} --node 1"));
    assert_eq!(scratch.ok("directory show"), "names are at node 0\n");
    let app = join(&scratch.cluster());
    let (is_over, first) = (AtomicBool::new(false), std::sync::Barrier::new(3));
    let made: Vec<u32> = std::thread::scope(|scope| {
        let worker = |thread: u32| {
            let (session, is_over, first) = (app.blocking_session(), &is_over, &first);
            move || {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let (name, on) = (format!("{thread}-{count}"), Placement::On(NodeId(count % 3)));
                    let lh = session.alloc(Some(&name), 4096, on, READ_WRITE).expect("names can be assigned");
                    assert_eq!(session.stat(&name).expect("names can be looked up").home, NodeId(count % 3));
                    // Keeps one region in four.
                    match count % 4 {
                        0 => session.unmap(lh).unwrap(),
                        _ => session.free(lh).expect("named regions can be freed"),
                    }
                    count += 1;
                    if count == 20 {
                        first.wait();
                    }
                }
                count
            }
        };
        let workers = [0, 1].map(|thread| scope.spawn(worker(thread)));
        first.wait();
        let moved = scratch.run(&format!("directory move {}", etcd.address("moved")));
        is_over.store(true, Ordering::Relaxed);
        let made = workers.map(|worker| worker.join().unwrap());
        assert!(moved.status.success(), "{moved:?}");
        made.into()
    });
    assert_eq!(scratch.ok("directory show"), format!("names are at {}\n", etcd.address("moved")));
    let kept = 1 + made.iter().map(|made| made.div_ceil(4)).sum::<u32>();
    // If etcd answers late, the node removes the name of a freed region later.
    eventually(|| {
        let keys = etcd.ctl(&["get", "--prefix", "/moved/names/", "--keys-only"]);
        keys.lines().filter(|key| key.starts_with("/moved/names/")).count() as u32 == kept
    });
    // Names no longer need node 0.
    Process::open(scratch.pid(0)).kill();
    scratch.ok(&format!("put more {file} --node 1"));
    assert_eq!(scratch.ok("get before"), "words");
    drop(app);
    scratch.ok("down");
}

/// All nodes ask node 0 afterwards, and etcd is not needed any more.
#[test]
fn names_move_back_to_node_0() {
    let Some((scratch, etcd, file)) = cluster("back", 3) else { return };
    scratch.ok(&format!("put a {file} --node 1"));
    scratch.ok(&format!("put gone {file} --node 2"));
    let app = join(&scratch.cluster());
    Process::open(scratch.pid(2)).kill();
    eventually(|| scratch.ok("ls").contains("lost"));
    let text = scratch.ok("directory back");
    assert!(text.starts_with("moved 1 names, and 1 of lost regions to node 0"), "{text}");
    assert_eq!(scratch.ok("directory show"), "names are at node 0\n");
    let session = app.blocking_session();
    session.alloc(Some("by app"), 4096, Placement::On(NodeId(1)), READ_WRITE).unwrap();
    let other = Scratch::new("etcd-back-other");
    let text = other.fails(&format!("up --nodes 1 --arena 64M --directory {}", etcd.address("back")), 1);
    assert!(text.contains("moved back to node 0"), "{text}");
    drop(etcd);
    assert_eq!(session.stat("a").unwrap().home, NodeId(1));
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok(&format!("put b {file} --node 0"));
    scratch.fails_with("get gone", 1, "lost");
    assert_eq!(scratch.ok("directory back"), "names are at node 0\n");
    drop(app);
    scratch.ok("down");
}

#[test]
fn failed_move_to_etcd_keeps_names_at_node_0() {
    let scratch = Scratch::new("etcd-stay");
    let Some(etcd) = Etcd::start() else { return };
    scratch.ok("up --nodes 2 --arena 64M --detach");
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("put a {file} --node 1"));
    let closed = ClosedPort::new();
    for (address, why) in [
        (format!("etcd://{closed}/x"), "does not answer"),
        (format!("etcd://u:p@127.0.0.1:{}/x", etcd.port), "password-file"),
        (format!("etcd://127.0.0.1:{}/x?ca=/nowhere", etcd.port), "/nowhere"),
    ] {
        let message = scratch.fails(&format!("directory move {address}"), 1);
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(scratch.ok("directory show"), "names are at node 0\n");
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok(&format!("put b {file} --node 0"));
    scratch.ok("down");
}

/// Returns the worst severity of the findings of `halite doctor` about etcd, and its text.
fn doctor(scratch: &Scratch, address: &str) -> (String, String) {
    let output = scratch.run(&format!("doctor --json --arena 64M --directory {address}"));
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let found = found.into_iter().find(|finding| finding["check"] == "etcd").expect("etcd is checked");
    let word = |key: &str| found[key].as_str().unwrap().to_owned();
    (word("severity"), word("found"))
}

#[test]
fn full_etcd_refuses_only_new_names() {
    let scratch = Scratch::new("etcd-doctor");
    let Some(mut etcd) = Etcd::start_with(&["--quota-backend-bytes=200000"]) else { return };
    let (severity, found) = doctor(&scratch, &etcd.address("well"));
    assert!(severity == "ok" && found.contains("version 3."), "{severity}: {found}");
    // etcd becomes full, and a running cluster gets an error; mapped regions can still be used.
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&etcd.address("full"))));
    let session = nodes[0].blocking_session();
    let lh = session.alloc(Some("mapped"), 4096, Placement::On(NodeId(1)), READ_WRITE).unwrap();
    let filler = scratch.write("filler", &vec![b'x'; 100_000]);
    let filler = std::fs::read_to_string(filler).unwrap();
    let fill = |key: usize| etcd.try_ctl(&["put", &format!("/filler/{key}"), &filler]);
    assert!((0..100).any(|key| !fill(key)), "it has a quota");
    let (severity, found) = doctor(&scratch, &etcd.address("full"));
    assert!(severity == "error" && found.contains("no room left"), "{severity}: {found}");
    let alloc = |name: &str| session.alloc(Some(name), 4096, Placement::Local, READ_WRITE);
    let refused = alloc("new").unwrap_err().to_string();
    assert!(refused.contains("etcdserver: mvcc: database space exceeded; compact"), "{refused}");
    session.write(lh, 0, b"goes on").unwrap();
    session.alloc(None, 4096, Placement::Local, READ_WRITE).unwrap();
    // etcd is compacted, and names can be assigned again.
    etcd.ctl(&["del", "--prefix", "/filler/"]);
    let status = etcd.ctl(&["endpoint", "status", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    etcd.ctl(&["compact", &revision]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    eventually(|| alloc("new").is_ok());
    drop(nodes);
    etcd.kill();
    let (severity, found) = doctor(&scratch, &etcd.address("full"));
    assert!(severity == "error" && found.contains("does not answer"), "{severity}: {found}");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn hanging_etcd_refuses_only_new_names() {
    let scratch = Scratch::new("etcd-hangs");
    let Some(etcd) = Etcd::start() else { return };
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&etcd.address("hangs"))));
    let session = nodes[0].blocking_session();
    let lh = session.alloc(Some("mapped"), 4096, Placement::On(NodeId(1)), READ_WRITE).unwrap();
    let etcd_process = Process::open(etcd.pid());
    etcd_process.stop();
    let alloc = |name: &str| {
        session.alloc(Some(name), 4096, Placement::Local, READ_WRITE).map(|_| ()).map_err(|error| error.cause)
    };
    let shows = |line: &str| nodes[0].metrics().to_string().lines().any(|text| text == line);
    assert!(shows("halite_directory_ready 1"));
    assert!(
        matches!(alloc("new"), Err(RegionCause::DirectoryOut { reason }) if reason.contains("no answer within 3 s"))
    );
    assert!(shows("halite_directory_ready 0"), "the metric shows it");
    session.write(lh, 0, b"goes on").unwrap();
    etcd_process.resume();
    // etcd may have executed the claim late: the node reverts it, and the name is free.
    eventually(|| alloc("new").is_ok());
    assert!(shows("halite_directory_ready 1"));
    assert_eq!(alloc("mapped"), Err(RegionCause::NameTaken));
    drop(nodes);
}

/// Returns the logs of the detached nodes, one after the other.
fn logs(scratch: &Scratch) -> String {
    let files = std::fs::read_dir(scratch.cluster().join("logs")).unwrap().flatten();
    files.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect()
}

/// Returns the key of a node's incarnation in etcd.
fn home_key(etcd: &Etcd, prefix: &str, node: u32) -> String {
    let keys = etcd.ctl(&["get", "--prefix", &format!("/{prefix}/homes/{node}."), "--keys-only"]);
    keys.lines().find(|line| !line.is_empty()).expect("the node has a key").to_owned()
}

#[test]
fn running_node_restores_its_edited_key() {
    let Some((scratch, etcd, file)) = cluster("ended", 2) else { return };
    scratch.ok(&format!("put a {file} --node 1"));
    let key = home_key(&etcd, "ended", 1);
    for edit in ["ended killed 7", "hello"] {
        etcd.ctl(&["put", &key, edit]);
        assert_eq!(scratch.ok("get a"), "words", "{edit}");
        assert!(scratch.fails(&format!("put a {file} --node 0"), 1).contains("exists already"), "{edit}");
        assert!(!scratch.ok("ls").contains("lost with"), "{edit}: {}", scratch.ok("ls"));
        // The node notices the edit within 10 s, or at once when a name is requested from it.
        scratch.ok(&format!("put {} {file} --node 1", &edit[..5]));
        eventually(|| etcd.ctl(&["get", &key, "--print-value-only"]).trim() == "lives");
    }
    let text = logs(&scratch);
    assert_eq!(text.matches("was overwritten with").count(), 2, "{text}");
    assert!(text.contains(&key) && !text.contains("restored"), "{text}");
    scratch.ok("down");
}

#[test]
fn damaged_name_is_listed_and_removed() {
    let Some((scratch, etcd, file)) = cluster("damaged", 2) else { return };
    for name in ["a", "b"] {
        scratch.ok(&format!("put {name} {file} --node 1"));
    }
    etcd.ctl(&["put", "/damaged/names/a", "hello"]);
    let text = scratch.fails("get a", 1);
    assert!(text.contains("/damaged/names/a") && text.contains("halite rm"), "{text}");
    let text = scratch.fails(&format!("put a {file} --node 0"), 1);
    assert!(text.contains("/damaged/names/a"), "{text}");
    assert!(scratch.ok("ls").contains("damaged in etcd"), "{}", scratch.ok("ls"));
    let listed = scratch.json("ls --json");
    assert!(listed.iter().any(|row| row["name"] == "a" && row["damaged"] == true), "{listed:?}");
    assert!(listed.iter().any(|row| row["name"] == "b"), "{listed:?}");
    let output = scratch.run("rm a");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("/damaged/names/a"), "{text}");
    scratch.ok(&format!("put a {file} --node 0"));
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok("down");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn names_are_repaired_after_an_etcd_restore() {
    let Some((scratch, mut etcd, file)) = cluster("older", 2) else { return };
    for name in ["a", "b", "stays"] {
        scratch.ok(&format!("put {name} {file} --node 1"));
    }
    etcd.back_up();
    eventually(|| scratch.run("rm a").status.success());
    scratch.ok("rm b");
    scratch.ok(&format!("put since {file} --node 1"));
    assert!(!logs(&scratch).contains("restored"), "{}", logs(&scratch));
    etcd.restore();
    let names = || etcd.ctl(&["get", "--prefix", "/older/names/", "--keys-only"]);
    assert!(names().contains("/older/names/a\n"));
    // Nodes write missing keys again. A freed name that the restore brought back is freed by the next `rm` or `put` of
    // that name.
    eventually(|| names().contains("/older/names/since\n"));
    assert!(logs(&scratch).contains("etcd was restored to an earlier state"), "{}", logs(&scratch));
    let output = scratch.run("rm a");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("no longer exists"), "{text}");
    scratch.ok(&format!("put b {file} --node 0"));
    scratch.fails_with(&format!("put stays {file} --node 0"), 1, "exists already");
    for name in ["b", "stays", "since"] {
        assert_eq!(scratch.ok(&format!("get {name}")), "words");
    }
    assert!(!names().contains("/older/names/a\n"));
    scratch.ok("down");
}

/// A token of JWT is for one revision of etcd's users: any change of a user makes it old.
#[test]
fn changed_etcd_users_fail_no_request() {
    let scratch = Scratch::new("etcd-jwt");
    let key = scratch.write("key", b"signs tokens");
    let flag = format!("--auth-token=jwt,priv-key={},sign-method=HS256", key.display());
    let Some(etcd) = Etcd::start_with(&[&flag]) else { return };
    with_users(&etcd);
    let address = format!("etcd://salt:pass:word@127.0.0.1:{}/halite/one", etcd.port);
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&address)));
    let sessions = nodes.each_ref().map(Node::blocking_session);
    let alloc = |node: usize, name: &str| {
        sessions[node]
            .alloc(Some(name), 4096, Placement::Local, READ_WRITE)
            .map(|_| ())
            .map_err(|error| error.cause)
    };
    for round in 0..3 {
        for node in [0, 1] {
            assert_eq!(alloc(node, &format!("{round}-{node}")), Ok(()));
        }
        etcd.ctl(&["--user=root:root-word", "user", "add", &format!("other{round}:word")]);
    }
    // The reason for which etcd refuses the next request is that of the error.
    etcd.ctl(&[
        "--user=root:root-word",
        "role",
        "revoke-permission",
        "halite",
        "--prefix=true",
        "/halite/one/",
    ]);
    let refused = alloc(0, "refused").unwrap_err().to_string();
    assert!(refused.contains("etcd refuses the user") && refused.contains("permission denied"), "{refused}");
}
