//! Clusters whose names are in etcd, as Debian's package has it: where there is none, these say so and do nothing, unless
//! `HALITE_NEEDS_ETCD` is set, as where changes are checked.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halite::{Config, EtcdAddress, EtcdFault, JoinError, Node, NodeId, Permissions, Placement, RegionCause};
use rustix::process::Signal;
use serde_json::Value;
use support::etcd::{ClosedPort, Etcd, Slow};
use support::{Process, Running, Scratch, eventually};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);

fn application(dir: &Path) -> Node {
    Node::embedded(Config { dir: dir.to_owned(), node: None, arena_bytes: 0, ..Config::default() }).unwrap()
}

fn config(dir: &Path, id: u32) -> Config {
    Config { dir: dir.to_owned(), node: Some(NodeId(id)), arena_bytes: 64 << 20, ..Config::default() }
}

fn node(dir: &Path, id: u32, directory: Option<&str>) -> Node {
    let directory = directory.map(|address| address.parse().unwrap());
    Node::embedded(Config { directory, ..config(dir, id) }).unwrap()
}

#[test]
fn a_cluster_with_its_names_in_etcd_goes_on_naming_without_node_0_and_two_do_not_see_each_other() {
    let scratch = Scratch::new("etcd");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file");
    let file = file.to_str().unwrap();
    scratch.ok(&format!("up --nodes 3 --arena 64M --detach --directory {}", etcd.address("one")));
    scratch.ok(&format!("put a {file} --node 1"));
    assert!(scratch.ok("ls --json").contains("\"a\""));
    // No other cluster may have its prefix among these keys.
    let keys = etcd.ctl(&["get", "--prefix", "/one/", "--keys-only"]);
    let headings = keys.lines().filter_map(|key| key.strip_prefix("/one/")?.split('/').next());
    let is_refused = |heading: &str| format!("etcd://a:1/one/{heading}").parse::<EtcdAddress>().is_err();
    let open: Vec<&str> = headings.filter(|heading| !is_refused(heading)).collect();
    assert!(open.is_empty() && keys.contains("/one/names/a"), "{open:?} of {keys}");
    Process::open(scratch.pid(0)).kill();
    scratch.ok(&format!("put b {file} --node 2"));
    assert_eq!(scratch.ok("get a"), "words");
    assert!(scratch.fails(&format!("put a {file} --node 2"), 1).contains("\"a\""));
    assert!(scratch.ok("ls --json").contains("\"b\""));
    let other = Scratch::new("etcd-other");
    other.ok(&format!("up --nodes 1 --arena 64M --detach --directory {}", etcd.address("two")));
    assert_eq!(other.ok("ls --json"), "");
    other.ok(&format!("put a {file}"));
    // A node that comes back has lost what it held, and the store knows.
    Process::open(scratch.pid(1)).kill();
    eventually(|| scratch.states().iter().filter(|state| *state == "alive").count() == 1);
    eventually(|| scratch.fails("get a", 1).contains("lost with node 1"));
    scratch.ok(&format!("put a {file} --node 2"));
    other.ok("down");
    scratch.ok("down");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn etcd_is_killed_and_restarted_under_load_and_only_new_names_notice() {
    let scratch = Scratch::new("etcd-killed");
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    let address = etcd.address("load");
    let nodes = [0, 1, 2].map(|id| node(&scratch.cluster(), id, Some(&address)));
    let app = application(&scratch.cluster());
    let session = app.blocking_session();
    let lh = session.alloc(Some("mapped"), 1 << 20, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let (is_over, names) = (AtomicBool::new(false), session.clone());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut count, mut bytes) = (0_u64, vec![0; 4096]);
            while !is_over.load(Ordering::Relaxed) {
                session.write(lh, 0, &count.to_le_bytes()).expect("what is mapped is not concerned");
                session.read(lh, 0, &mut bytes).expect("what is mapped is not concerned");
                session
                    .unmap(
                        session
                            .alloc(None, 4096, Placement::Local, ANYBODY)
                            .or_else(|_| session.alloc(None, 4096, Placement::On(NodeId(2)), ANYBODY))
                            .expect("what has no name is not concerned"),
                    )
                    .unwrap();
                count += 1;
            }
            count
        });
        let named = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut given = Vec::new();
            let alloc = |index: usize| {
                let on = Placement::On(NodeId(index as u32 % 3));
                names.alloc(Some(&format!("n{index}")), 4096, on, ANYBODY).map_err(|error| error.cause)
            };
            for index in 0..50 {
                alloc(index).unwrap();
                given.push(index);
            }
            etcd.kill();
            let mut index = 50;
            while alloc(index) != Err(RegionCause::DirectoryOut) {
                given.push(index);
                index += 1;
            }
            for index in 1000..1010 {
                assert_eq!(alloc(index), Err(RegionCause::DirectoryOut));
            }
            etcd.run();
            // Each node notices for itself.
            let is_back = |index| match alloc(index) {
                Ok(_) | Err(RegionCause::NameTaken) => true,
                Err(cause) => {
                    assert_eq!(cause, RegionCause::DirectoryOut);
                    false
                }
            };
            eventually(|| (2000..2003).all(is_back));
            for index in 0..50 {
                assert_eq!(alloc(index), Err(RegionCause::NameTaken));
                assert_eq!(names.stat(&format!("n{index}")).unwrap().home, NodeId(index as u32 % 3));
            }
            // What was refused is free.
            eventually(|| {
                (1000..1010).all(|index| matches!(alloc(index), Ok(_) | Err(RegionCause::NameTaken)))
            });
        }));
        is_over.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
        named.unwrap();
    });
    drop((app, nodes));
}

#[test]
fn a_wrong_address_is_refused_with_the_reason_and_so_is_one_that_the_cluster_does_not_have() {
    let scratch = Scratch::new("etcd-wrong");
    let nobody = ClosedPort::new();
    let wrong = format!("etcd://{nobody}/x");
    let said = scratch.fails(&format!("node --id 0 --arena 64M --directory {wrong}"), 1);
    assert!(said.contains("does not answer") && said.contains(&wrong), "{said}");
    let said = scratch.fails("node --id 0 --directory http://x", 2);
    assert!(said.contains("is no etcd://"), "{said}");
    let _first = node(&scratch.cluster(), 0, None);
    let said = scratch.fails(&format!("node --id 1 --arena 64M --directory {wrong}"), 1);
    assert!(said.contains("keep their names by themselves"), "{said}");
}

/// As by two who are told no prefix.
#[test]
fn a_second_cluster_at_the_place_of_one_that_lives_is_refused_and_comes_when_that_is_gone() {
    let scratch = Scratch::new("etcd-taken");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("up --nodes 2 --arena 64M --detach --directory {}", etcd.address("taken")));
    scratch.ok(&format!("put a {file} --node 1"));
    eventually(|| {
        etcd.ctl(&["get", "--prefix", "/taken/places/", "--keys-only"]).contains("/taken/places/1")
    });
    let other = Scratch::new("etcd-taken-other");
    for id in [0, 1] {
        let said =
            other.fails(&format!("node --id {id} --arena 64M --directory {}", etcd.address("taken")), 1);
        assert!(said.contains("another cluster has its names at") && said.contains("prefix"), "{said}");
    }
    assert_eq!(scratch.ok("get a"), "words", "nothing is lost");
    // A node that has died comes back where it was.
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

#[test]
fn a_cluster_whose_names_were_moved_to_etcd_keeps_another_one_away_as_long_as_it_lives() {
    let scratch = Scratch::new("etcd-moved");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok("up --nodes 2 --arena 64M --detach");
    scratch.ok(&format!("put a {file} --node 1"));
    scratch.ok(&format!("directory move {}", etcd.address("moved")));
    let places = || etcd.ctl(&["get", "--prefix", "/moved/places/", "--keys-only"]);
    eventually(|| [0, 1].iter().all(|id| places().contains(&format!("/moved/places/{id}\n"))));
    let other = Scratch::new("etcd-moved-other");
    let said = other.fails(&format!("node --id 1 --arena 64M --directory {}", etcd.address("moved")), 1);
    assert!(said.contains("another cluster has its names at"), "{said}");
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok("down");
    eventually(|| places().trim().is_empty());
}

/// Waits until users are asked for: the password of root, and a user who may do all below `/halite/one`.
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
fn a_cluster_names_over_tls_as_a_user_whose_password_is_in_a_file() {
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
    // Commands are told by the cluster directory.
    scratch.ok(&format!("put a {file} --node 1"));
    assert_eq!(scratch.ok("get a"), "words");
    // What a node says of itself is written again where it hears that it was removed.
    let hears = |etcd: &Etcd| {
        let at = |what| ["--user=root:root-word", what, "/halite/one/places/0"];
        eventually(|| etcd.try_ctl(&at("get")) && !etcd.ctl(&at("get")).is_empty());
        etcd.ctl(&at("del"));
        eventually(|| !etcd.ctl(&at("get")).is_empty());
    };
    hears(&etcd);
    // Its tokens end with it: those who come back say anew who they are.
    etcd.kill();
    etcd.run();
    eventually(|| scratch.run("get a").status.success());
    eventually(|| scratch.run(&format!("put b {file} --node 1")).status.success());
    hears(&etcd);
    // Certificates are replaced under nodes that run.
    etcd.renew_certs();
    eventually(|| scratch.run(&format!("put c {file} --node 1")).status.success());
    hears(&etcd);
    scratch.ok("down");
}

#[test]
fn wrong_certificates_users_and_files_are_told_apart() {
    let scratch = Scratch::new("etcd-refused");
    let Some(etcd) = Etcd::start_with_tls(&scratch) else { return };
    with_users(&etcd);
    let right = scratch.write("right", b"pass:word");
    let wrong = scratch.write("wrong", b"password");
    let empty = scratch.write("empty", b"\n");
    let (right, wrong, empty) = (right.to_str().unwrap(), wrong.to_str().unwrap(), empty.to_str().unwrap());
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
        (tls("ca.pem", "client.key", "client.key"), EtcdFault::File, "no certificate"),
        (tls("ca.pem", "client.pem", "client.pem"), EtcdFault::File, "no private key"),
        (tls("ca.pem", "none.pem", "client.key"), EtcdFault::File, "No such file"),
    ] {
        check(format!("etcd://salt@{at}/halite/one?{query}&password-file={right}"), fault, word);
    }
    let as_salt =
        |prefix: &str, file: &str| format!("etcd://salt@{at}/halite/{prefix}?{good}&password-file={file}");
    check(as_salt("one", wrong), EtcdFault::User, "authentication failed");
    check(as_salt("one", empty), EtcdFault::File, "its first line");
    check(as_salt("one", "/nowhere"), EtcdFault::File, "/nowhere: No such file");
    check(as_salt("two", right), EtcdFault::User, "permission denied");
    check(format!("etcd://nobody:x@{at}/halite/one?{good}"), EtcdFault::User, "authentication failed");
    check(format!("etcd://{at}/halite/one?{good}"), EtcdFault::User, "user name is empty");
    // Without TLS, where it is expected, and the other way round.
    check(format!("etcd://salt:pass:word@{at}/halite/one"), EtcdFault::Unreachable, "?ca=FILE");
    let plain = Scratch::new("etcd-plain");
    let plain = Etcd::start(&plain).unwrap();
    check(format!("etcd://127.0.0.1:{}/one?{good}", plain.port), EtcdFault::Unreachable, "without TLS");
    check(format!("etcd://u:p@127.0.0.1:{}/one", plain.port), EtcdFault::User, "not enabled");
    let nobody = ClosedPort::new();
    check(format!("etcd://{nobody}/one"), EtcdFault::Unreachable, "refused");
    check("etcd://nowhere.invalid:1/one".to_owned(), EtcdFault::Unreachable, "nowhere.invalid");
}

/// What failed, where, and what to do, each once: as a command on a terminal, a node that others wait for, and the log of one tell it.
#[test]
fn what_is_wrong_with_etcd_is_told_once_with_what_to_do() {
    let scratch = Scratch::new("etcd-once");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let at = ClosedPort::new();
    let asked = [
        (format!("etcd://{at}/x"), "does not answer", "Connection refused", "see that etcd runs"),
        (
            "etcd://nowhere.invalid:1/x".to_owned(),
            "does not answer",
            "failed to lookup",
            "see that etcd runs",
        ),
        (
            format!("etcd://u:p@127.0.0.1:{}/x", etcd.port),
            "refuses the user",
            "not enabled",
            "see that the user exists",
        ),
        (
            format!("etcd://{at}/x?ca=/nowhere"),
            "cannot be asked without a file",
            "/nowhere: No such file",
            "put the file there",
        ),
    ];
    for (address, fault, why, remedy) in asked {
        for line in ["node --id 0", "up --nodes 1 --detach"] {
            let said = scratch.fails(&format!("{line} --arena 64M --directory {address}"), 1);
            for part in [fault, why, remedy, "cannot join"] {
                assert_eq!(said.matches(part).count(), 1, "{part}: {said}");
            }
        }
    }
}

/// One of several that takes questions and never answers, or whose name leads nowhere, is passed over.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn an_etcd_of_which_one_node_hangs_is_asked_by_another() {
    let scratch = Scratch::new("etcd-passed-over");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    // Whose connections the system takes, and nobody reads.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute_port = mute.local_addr().unwrap().port();
    for first in [format!("127.0.0.1:{mute_port}"), "nowhere.invalid:1".to_owned()] {
        let address = format!("etcd://{first},127.0.0.1:{}/over", etcd.port);
        let only = node(&scratch.cluster(), 0, Some(&address));
        let session = only.blocking_session();
        eventually(|| session.alloc(Some("a"), 4096, Placement::Local, ANYBODY).is_ok());
        assert_eq!(session.stat("a").unwrap().home, NodeId(0));
    }
}

/// Processes of their own, with the load of commands and of an application in this one.
#[test]
fn names_are_moved_to_etcd_by_one_command_under_load_and_nobody_notices() {
    let scratch = Scratch::new("etcd-move");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.ok("up --nodes 3 --arena 64M --detach");
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    for index in 0..5 {
        scratch.ok(&format!("put before-{index} {file} --node {}", index % 3));
    }
    assert_eq!(scratch.ok("directory show"), "names are at node 0\n");
    let app = application(&scratch.cluster());
    let (is_over, first) = (AtomicBool::new(false), std::sync::Barrier::new(3));
    let made = std::thread::scope(|scope| {
        let worker = |thread: u32| {
            let (session, is_over, first) = (app.blocking_session(), &is_over, &first);
            move || {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let (name, on) = (format!("{thread}-{count}"), Placement::On(NodeId(count % 3)));
                    let lh = session.alloc(Some(&name), 4096, on, ANYBODY).expect("names are given");
                    session.write(lh, 0, &count.to_le_bytes()).unwrap();
                    assert_eq!(session.stat(&name).expect("names are found").home, NodeId(count % 3));
                    // One in four stays.
                    match count % 4 {
                        0 => session.unmap(lh).unwrap(),
                        _ => session.free(lh).expect("names are given up"),
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
        let session = app.blocking_session();
        let address = etcd.address("moved");
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let said = scratch.ok(&format!("directory move {address}"));
            assert!(said.contains("names are at etcd://"), "{said}");
            assert!(session.stat("before-4").is_ok());
            for index in 0..20 {
                let name = format!("after-{index}");
                session.alloc(Some(&name), 4096, Placement::On(NodeId(index % 3)), ANYBODY).unwrap();
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        let made = workers.map(|worker| worker.join().unwrap());
        moved.unwrap();
        made
    });
    assert_eq!(scratch.ok("directory show"), format!("names are at {}\n", etcd.address("moved")));
    let keys = etcd.ctl(&["get", "--prefix", "/moved/names/", "--keys-only"]);
    let mut names: Vec<&str> = keys.lines().filter_map(|key| key.strip_prefix("/moved/names/")).collect();
    names.sort_unstable();
    let stayed = made
        .iter()
        .enumerate()
        .flat_map(|(thread, made)| (0..*made).step_by(4).map(move |count| format!("{thread}-{count}")));
    let mut wanted: Vec<String> = stayed.collect();
    wanted.extend((0..5).map(|index| format!("before-{index}")));
    wanted.extend((0..20).map(|index| format!("after-{index}")));
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    // To do it again does no harm, and names do without node 0 now.
    assert!(scratch.ok(&format!("directory move {}", etcd.address("moved"))).starts_with("0 names"));
    let said = scratch.fails(&format!("directory move {}", etcd.address("elsewhere")), 1);
    assert!(said.contains("they are at"), "{said}");
    Process::open(scratch.pid(0)).kill();
    scratch.ok(&format!("put more {file} --node 1"));
    assert_eq!(scratch.ok("get before-1"), "words");
    eventually(|| scratch.fails("get before-0", 1).contains("lost with node 0"));
    drop(app);
    scratch.ok("down");
}

#[test]
fn names_stay_at_node_0_where_etcd_is_not_to_be_had() {
    let scratch = Scratch::new("etcd-stay");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.ok("up --nodes 2 --arena 64M --detach");
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("put a {file} --node 1"));
    let nobody = ClosedPort::new();
    for (address, why) in [
        (format!("etcd://{nobody}/x"), "does not answer"),
        (format!("etcd://u:p@127.0.0.1:{}/x", etcd.port), "password-file"),
        (format!("etcd://127.0.0.1:{}/x?ca=/nowhere", etcd.port), "/nowhere"),
    ] {
        let said = scratch.fails(&format!("directory move {address}"), 1);
        assert!(said.contains(why), "{said}");
    }
    // Another cluster has its names there.
    let other = Scratch::new("etcd-stay-other");
    other.ok(&format!("up --nodes 1 --arena 64M --detach --directory {}", etcd.address("taken")));
    eventually(|| etcd.ctl(&["get", "--prefix", "/taken/homes/"]).contains("lives"));
    let said = scratch.fails(&format!("directory move {}", etcd.address("taken")), 1);
    assert!(said.contains("another cluster"), "{said}");
    other.ok("down");
    assert_eq!(scratch.ok("directory show"), "names are at node 0\n");
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok(&format!("put b {file} --node 0"));
    scratch.ok("down");
}

/// What `halite doctor` finds about etcd, the worst first.
fn doctor(scratch: &Scratch, address: &str) -> (String, String) {
    let output = scratch.run(&format!("doctor --json --arena 64M --directory {address}"));
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let found = found.into_iter().find(|finding| finding["check"] == "etcd").expect("etcd is looked at");
    let word = |key: &str| found[key].as_str().unwrap().to_owned();
    (word("severity"), word("found"))
}

#[test]
fn doctor_finds_an_etcd_that_is_well_away_full_or_does_not_know_the_user() {
    let scratch = Scratch::new("etcd-doctor");
    let Some(mut etcd) = Etcd::start_with(&scratch, &["--quota-backend-bytes=200000"]) else { return };
    let (severity, found) = doctor(&scratch, &etcd.address("well"));
    assert!(severity == "ok" && found.contains("version 3."), "{severity}: {found}");
    let nobody = ClosedPort::new();
    let two = format!("etcd://{nobody},127.0.0.1:{}/well", etcd.port);
    let (severity, found) = doctor(&scratch, &two);
    assert!(severity == "warning" && found.contains("cannot be asked"), "{severity}: {found}");
    // It fills up, and a cluster that is there is told so: what is mapped goes on.
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&etcd.address("full"))));
    let session = nodes[0].blocking_session();
    let lh = session.alloc(Some("mapped"), 4096, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let filler = scratch.write("filler", &vec![b'x'; 100_000]);
    let filler = std::fs::read_to_string(filler).unwrap();
    let fill = |key: usize| etcd.try_ctl(&["put", &format!("/filler/{key}"), &filler]);
    assert!((0..100).any(|key| !fill(key)), "it has a quota");
    let (severity, found) = doctor(&scratch, &etcd.address("full"));
    assert!(severity == "error" && found.contains("no room left"), "{severity}: {found}");
    let alloc = |name: &str| session.alloc(Some(name), 4096, Placement::Local, ANYBODY);
    assert_eq!(alloc("new").map_err(|error| error.cause), Err(RegionCause::DirectoryOut));
    session.write(lh, 0, b"goes on").unwrap();
    session.alloc(None, 4096, Placement::Local, ANYBODY).unwrap();
    // It can still be read.
    assert_eq!(nodes[1].blocking_session().stat("mapped").unwrap().home, NodeId(1));
    let other = application(&scratch.cluster());
    assert_eq!(other.blocking_session().stat("mapped").unwrap().home, NodeId(1));
    drop(other);
    // Room is made, and names are given again.
    etcd.ctl(&["del", "--prefix", "/filler/"]);
    let status = etcd.ctl(&["endpoint", "status", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    etcd.ctl(&["compact", &revision]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    eventually(|| alloc("new").is_ok());
    let (severity, found) = doctor(&scratch, &etcd.address("full"));
    assert!(severity == "ok", "{severity}: {found}");
    // Nobody may ask any more who does not say who he is.
    with_users(&etcd);
    let (severity, found) = doctor(&scratch, &etcd.address("full"));
    assert!(severity == "error" && found.contains("refuses the user"), "{severity}: {found}");
    drop(nodes);
    etcd.kill();
    let (severity, found) = doctor(&scratch, &etcd.address("full"));
    assert!(severity == "error" && found.contains("does not answer"), "{severity}: {found}");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn an_etcd_that_hangs_costs_new_names_and_is_noticed_when_it_goes_on() {
    let scratch = Scratch::new("etcd-hangs");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&etcd.address("hangs"))));
    let session = nodes[0].blocking_session();
    let lh = session.alloc(Some("mapped"), 4096, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let etcd_process = Process::open(etcd.pid());
    etcd_process.stop();
    let alloc = |name: &str| {
        session.alloc(Some(name), 4096, Placement::Local, ANYBODY).map(|_| ()).map_err(|error| error.cause)
    };
    let shows = |line: &str| nodes[0].metrics().to_string().lines().any(|said| said == line);
    assert!(shows("halite_directory_ready 1"));
    assert_eq!(alloc("new"), Err(RegionCause::DirectoryOut));
    assert!(shows("halite_directory_ready 0"), "who watches sees it");
    session.write(lh, 0, b"goes on").unwrap();
    etcd_process.resume();
    // etcd may have carried the claim out late: the node takes it back, and the name is free.
    eventually(|| alloc("new").is_ok());
    assert!(shows("halite_directory_ready 1"));
    assert_eq!(alloc("mapped"), Err(RegionCause::NameTaken));
    drop(nodes);
}

/// A name is given late, and all that is mapped goes on meanwhile; an etcd that takes longer than a question may is as good as none.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn an_etcd_that_takes_two_seconds_to_answer_gives_names_and_one_that_takes_four_does_not() {
    let scratch = Scratch::new("etcd-slow");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let slow = Slow::before(&etcd);
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&slow.address("slow"))));
    let session = nodes[0].blocking_session();
    let lh = session.alloc(Some("mapped"), 4096, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let alloc = |name: &str| {
        session.alloc(Some(name), 4096, Placement::Local, ANYBODY).map(|_| ()).map_err(|error| error.cause)
    };
    let accesses_during = |job: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let job = scope.spawn(job);
            let mut count = 0_u64;
            while !job.is_finished() {
                session.write(lh, 0, &count.to_le_bytes()).expect("what is mapped is not concerned");
                count += 1;
            }
            count
        })
    };
    slow.take(Duration::from_secs(2));
    assert!(accesses_during(&|| assert_eq!(alloc("late"), Ok(()))) > 1000);
    assert_eq!(nodes[1].blocking_session().stat("late").unwrap().home, NodeId(0));
    slow.take(Duration::from_secs(4));
    assert!(accesses_during(&|| assert_eq!(alloc("never"), Err(RegionCause::DirectoryOut))) > 1000);
    let said = scratch.fails(&format!("node --id 2 --arena 64M --directory {}", slow.address("slow")), 1);
    assert!(said.contains("does not answer"), "{said}");
    slow.take(Duration::ZERO);
    // It was carried out all the same, taken back, and is free.
    eventually(|| alloc("never").is_ok());
    assert_eq!(alloc("late"), Err(RegionCause::NameTaken));
}

/// What the detached nodes have told, each in its file.
fn logs(scratch: &Scratch) -> String {
    let files = std::fs::read_dir(scratch.cluster().join("logs")).unwrap().flatten();
    files.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect()
}

/// The key that a node keeps of its own incarnation.
fn home_key(etcd: &Etcd, prefix: &str, node: u32) -> String {
    let keys = etcd.ctl(&["get", "--prefix", &format!("/{prefix}/homes/{node}."), "--keys-only"]);
    keys.lines().find(|line| !line.is_empty()).expect("it has one").to_owned()
}

#[test]
fn a_living_node_of_which_somebody_writes_that_it_has_ended_keeps_its_names_and_mends_its_key() {
    let scratch = Scratch::new("etcd-ended");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("up --nodes 2 --arena 64M --detach --directory {}", etcd.address("ended")));
    scratch.ok(&format!("put a {file} --node 1"));
    let key = home_key(&etcd, "ended", 1);
    for edit in ["ended killed 7", "hello"] {
        etcd.ctl(&["put", &key, edit]);
        assert_eq!(scratch.ok("get a"), "words", "{edit}");
        assert!(scratch.fails(&format!("put a {file} --node 0"), 1).contains("exists already"), "{edit}");
        assert!(!scratch.ok("ls").contains("lost with"), "{edit}: {}", scratch.ok("ls"));
        // It is noticed by itself within 10 s, and at once where the node is asked for a name.
        scratch.ok(&format!("put {} {file} --node 1", &edit[..5]));
        eventually(|| etcd.ctl(&["get", &key, "--print-value-only"]).trim() == "lives");
    }
    let told = logs(&scratch);
    assert_eq!(told.matches("was written over with").count(), 2, "{told}");
    assert!(told.contains(&key) && !told.contains("restored"), "{told}");
    scratch.ok("down");
}

#[test]
fn a_name_that_was_written_over_is_listed_as_damaged_and_removed_by_rm() {
    let scratch = Scratch::new("etcd-damaged");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("up --nodes 2 --arena 64M --detach --directory {}", etcd.address("damaged")));
    for name in ["a", "b"] {
        scratch.ok(&format!("put {name} {file} --node 1"));
    }
    etcd.ctl(&["put", "/damaged/names/a", "hello"]);
    let said = scratch.fails("get a", 1);
    assert!(said.contains("/damaged/names/a") && said.contains("halite rm"), "{said}");
    let said = scratch.fails(&format!("put a {file} --node 0"), 1);
    assert!(said.contains("/damaged/names/a"), "{said}");
    assert!(scratch.ok("ls").contains("damaged in etcd"), "{}", scratch.ok("ls"));
    let listed = scratch.json("ls --json");
    assert!(listed.iter().any(|row| row["name"] == "a" && row["damaged"] == true), "{listed:?}");
    assert!(listed.iter().any(|row| row["name"] == "b"), "{listed:?}");
    let output = scratch.run("rm a");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("/damaged/names/a"), "{said}");
    assert!(scratch.fails("rm a", 1).contains("no such region"));
    // A second name for another one.
    let of_b = etcd.ctl(&["get", "/damaged/names/b", "--print-value-only"]);
    etcd.ctl(&["put", "/damaged/names/alias", of_b.trim()]);
    let output = scratch.run("rm alias");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("which stays"), "{said}");
    assert_eq!(scratch.ok("get b"), "words");
    scratch.ok(&format!("put a {file} --node 0"));
    assert_eq!(scratch.ok("get a"), "words");
    scratch.ok("down");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_name_that_an_older_etcd_has_again_is_freed_and_the_restoring_is_told() {
    let scratch = Scratch::new("etcd-older");
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    scratch.ok(&format!("up --nodes 2 --arena 64M --detach --directory {}", etcd.address("older")));
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
    // Nodes write again what it lacks.  A name that it has again is freed by the next `rm` or `put` of that name.
    eventually(|| names().contains("/older/names/since\n"));
    assert!(logs(&scratch).contains("etcd was restored to what it was before"), "{}", logs(&scratch));
    let output = scratch.run("rm a");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("there is not any more"), "{said}");
    scratch.ok(&format!("put b {file} --node 0"));
    assert!(scratch.fails(&format!("put stays {file} --node 0"), 1).contains("exists already"));
    for name in ["b", "stays", "since"] {
        assert_eq!(scratch.ok(&format!("get {name}")), "words");
    }
    assert!(!names().contains("/older/names/a\n"));
    scratch.ok("down");
}

/// A cluster whose regions were freed leaves nothing, however many commands it has seen; one with regions says with whom they were lost.
#[test]
fn the_last_down_leaves_no_key_of_an_incarnation_that_no_name_tells_of() {
    let scratch = Scratch::new("etcd-nothing");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file").display().to_string();
    let homes = || etcd.ctl(&["get", "--prefix", "/nothing/homes/"]);
    for stays in [false, true] {
        scratch.ok(&format!("up --nodes 2 --arena 64M --detach --directory {}", etcd.address("nothing")));
        scratch.ok(&format!("put a {file} --node 1"));
        assert_eq!(scratch.ok("get a"), "words");
        if !stays {
            scratch.ok("rm a");
        }
        scratch.ok("down");
        assert_eq!(homes().lines().count(), if stays { 2 } else { 0 }, "{}", homes());
    }
    assert!(homes().contains("ended left"), "{}", homes());
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_key_edited_by_hand_harms_its_name_alone_and_an_emptied_etcd_is_told_all_names_again() {
    let scratch = Scratch::new("etcd-edited");
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    let nodes = [0, 1].map(|id| node(&scratch.cluster(), id, Some(&etcd.address("edited"))));
    let session = nodes[0].blocking_session();
    for name in ["a", "b"] {
        session.alloc(Some(name), 4096, Placement::On(NodeId(1)), ANYBODY).unwrap();
    }
    etcd.ctl(&["put", "/edited/names/a", "hello"]);
    // Who has used it knows its home; who has not asks etcd.
    assert!(nodes[1].blocking_session().stat("a").is_err());
    assert_eq!(session.stat("b").unwrap().home, NodeId(1));
    // Another etcd with nothing in it, as after a backup that was too old.
    etcd.forget_all();
    let told = || etcd.ctl(&["get", "--prefix", "/edited/names/", "--keys-only"]);
    eventually(|| ["a", "b"].iter().all(|name| told().contains(&format!("/edited/names/{name}\n"))));
    for name in ["a", "b"] {
        assert_eq!(nodes[1].blocking_session().stat(name).unwrap().home, NodeId(1));
    }
    let taken = session.alloc(Some("a"), 4096, Placement::Local, ANYBODY).map_err(|error| error.cause);
    assert_eq!(taken, Err(RegionCause::NameTaken));
    drop(nodes);
}

/// One command to a store, as a client of Redis gives it; the first line of its reply.
fn ask(client: &mut TcpStream, args: &[&[u8]]) -> String {
    write!(client, "*{}\r\n", args.len()).unwrap();
    for arg in args {
        write!(client, "${}\r\n", arg.len()).unwrap();
        client.write_all(arg).unwrap();
        client.write_all(b"\r\n").unwrap();
    }
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_store_keeps_what_it_has_while_etcd_is_away_and_takes_more_when_that_is_back() {
    let scratch = Scratch::new("etcd-store");
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    scratch.ok(&format!("up --nodes 2 --arena 64M --detach --directory {}", etcd.address("store")));
    let mut run = Running::start(&scratch, "run kv --listen 127.0.0.1:0 --json");
    let told: Value = serde_json::from_str(&run.line()).unwrap();
    let mut client = TcpStream::connect(told["address"].as_str().unwrap()).unwrap();
    let numbers: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    for key in &numbers {
        assert_eq!(ask(&mut client, &[b"SET", key.as_bytes(), b"7"]), "+OK");
        assert_eq!(ask(&mut client, &[b"INCR", key.as_bytes()]), ":8");
    }
    let value = vec![b'v'; 80 << 10];
    let fill = |client: &mut TcpStream| {
        (0..60).for_each(|key| {
            assert_eq!(ask(client, &[b"SET", format!("fill{key}").as_bytes(), &value]), "+OK")
        })
    };
    let has_second_parts = || ["0/h1", "1/h1"].map(|part| scratch.ok("ls --json").contains(part));
    fill(&mut client);
    assert_eq!(has_second_parts(), [true; 2]);
    etcd.kill();
    let set = |client: &mut TcpStream, number: usize| {
        let key = format!("long{number}");
        let reply = ask(client, &[b"SET", key.as_bytes(), &value]);
        assert!(reply == "+OK" || reply.starts_with("-TRYAGAIN "), "{reply}");
        reply == "+OK"
    };
    let taken = (0..1000).take_while(|number| set(&mut client, *number)).count();
    assert!(taken < 1000, "it takes memory without a name");
    // What it has is there, and changes.
    for key in &numbers {
        assert_eq!(ask(&mut client, &[b"INCR", key.as_bytes()]), ":9");
    }
    // Memory that it gives back is freed when that is possible.
    assert_eq!(ask(&mut client, &[b"FLUSHALL"]), "+OK");
    etcd.run();
    for key in &numbers {
        while ask(&mut client, &[b"SET", key.as_bytes(), b"7"]) != "+OK" {}
    }
    assert_eq!(has_second_parts(), [false; 2], "they were given back");
    fill(&mut client);
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code(), Some(0));
    assert_eq!(scratch.ok("ls --json"), "");
    scratch.ok("down");
}

#[test]
fn a_host_with_another_secret_takes_no_number_however_often_it_is_started() {
    let scratch = Scratch::new("etcd-stranger");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    for name in ["secret", "other"] {
        scratch.ok(&format!("secret new {}", scratch.file(name).display()));
    }
    let start = |own: &Scratch, secret: &str, id: &str| {
        let (secret, directory) = (scratch.file(secret), etcd.address("stranger"));
        own.command(&format!(
            "node {id} --arena 64M --listen 127.0.0.1:0 --secret-file {} --directory {directory}",
            secret.display()
        ))
    };
    let mut first = Running::of(start(&scratch, "secret", "--id 0"));
    assert!(first.line().contains("node 0 ready"));
    let numbers = || etcd.ctl(&["get", "/stranger/numbers"]);
    let before = numbers();
    let stranger = Scratch::new("etcd-other-secret");
    for _ in 0..2 {
        let output = start(&stranger, "other", "").output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains("the secret of its cluster is another one"), "{complaint}");
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!(numbers(), before);
    let second = Scratch::new("etcd-same-secret");
    let mut node = Running::of(start(&second, "secret", ""));
    assert!(node.line().contains("node 1 ready"));
    for running in [&mut node, &mut first] {
        running.signal(Signal::TERM);
        running.wait();
    }
}

#[test]
fn while_another_host_founds_the_cluster_nobody_does_and_a_founding_key_written_by_hand_keeps_nobody_away() {
    let scratch = Scratch::new("etcd-founding");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.ok(&format!("secret new {}", scratch.file("secret").display()));
    let secret = scratch.file("secret").display().to_string();
    let line = |id: &str| {
        let directory = etcd.address("founding");
        format!("node {id} --arena 64M --listen 127.0.0.1:0 --secret-file {secret} --directory {directory}")
    };
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).expect("lease ID granted with TTL");
    etcd.ctl(&["put", "/founding/founding", "192.0.2.1:7000", "--lease", lease]);
    let complaint = scratch.fails(&line("--id 0"), 1);
    assert!(complaint.contains("the host at 192.0.2.1:7000 is founding the cluster"), "{complaint}");
    // One without a lease would be there for ever.
    etcd.ctl(&["put", "/founding/founding", "hello"]);
    let mut node = Running::of(scratch.command(&line("")));
    assert!(node.line().contains("node 0 ready"));
    node.signal(Signal::TERM);
    node.wait();
}
