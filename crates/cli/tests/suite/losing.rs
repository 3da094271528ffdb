//! What is lost, and how a user at a shell is told.

use crate::support;

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{Process, Running, Scratch, eventually};

/// Whether a text has a time of day in it, behind `before` and followed by `after`.
fn tells_time(text: &str, before: &str, after: &str) -> bool {
    let is_time = |rest: &str| {
        let time = rest.as_bytes().get(..8).unwrap_or_default();
        let fits = |(at, byte): (usize, &u8)| if at % 3 == 2 { *byte == b':' } else { byte.is_ascii_digit() };
        time.len() == 8 && time.iter().enumerate().all(fits) && rest[8..].starts_with(after)
    };
    text.match_indices(before).any(|(at, _)| is_time(&text[at + before.len()..]))
}

#[test]
fn a_region_whose_node_died_is_told_as_lost_until_it_is_freed_or_put_anew() {
    let scratch = Scratch::new("lost");
    let _up = scratch.up(3);
    let text = scratch.write("text", b"salt");
    for name in ["salt", "pepper", "sugar"] {
        scratch.ok(&format!("put {name} {} --node 2", text.display()));
    }
    Process::open(scratch.pid(2)).kill();
    eventually(|| scratch.states() == ["alive", "alive", "dead"]);
    for command in ["get salt", "stat salt", "mv salt --to 1", "explain salt"] {
        let complaint = scratch.fails(command, 1);
        assert!(tells_time(&complaint, ": lost with node 2 (exited ", ")"), "{command}: {complaint}");
    }
    let list = scratch.ok("ls");
    assert!(tells_time(&list, "salt    lost with node 2 (exited ", ")"), "{list}");
    let lost = scratch.json("ls --json");
    assert_eq!(lost.len(), 3, "{lost:?}");
    assert_eq!((&lost[1]["name"], &lost[1]["lost"]["node"]), (&"salt".into(), &2.into()), "{lost:?}");
    assert_eq!(lost[1]["lost"]["cause"], "exited");
    assert_eq!(lost[1]["lost"]["incarnation"], scratch.nodes()[2]["incarnation"]);

    scratch.ok("rm salt");
    assert!(scratch.fails("get salt", 1).contains("there is no such region"));
    scratch.ok(&format!("put pepper {} --node 1", text.display()));
    assert_eq!(scratch.ok("get pepper"), "salt");
    let names: Vec<_> = scratch.json("ls --json").iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["pepper", "sugar"]);
}

#[test]
fn status_tells_since_when_a_node_is_dead_until_it_is_forgotten() {
    let scratch = Scratch::new("forget");
    let _up = scratch.up(3);
    let text = scratch.write("text", b"salt");
    scratch.ok(&format!("put salt {} --node 2", text.display()));
    scratch.ok("status");
    assert!(scratch.fails("forget 2", 1).contains("only dead nodes"), "it lives");
    assert!(scratch.fails("forget 77", 1).contains("node 77 is not in the cluster"));

    Process::open(scratch.pid(2)).kill();
    eventually(|| scratch.states() == ["alive", "alive", "dead"]);
    let output = scratch.run("status");
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{table}");
    assert!(tells_time(&table, "  exited ", "\n"), "{table}");
    assert_eq!(scratch.nodes()[2]["lost"]["cause"], "exited");

    scratch.ok("forget 2");
    assert_eq!(scratch.states(), ["alive", "alive"]);
    assert_eq!(scratch.ok("ls").lines().count(), 1);
    assert!(scratch.fails("stat salt", 1).contains("there is no such region"));
    assert!(!scratch.entries().iter().any(|name| name.starts_with("node-2.")));
    assert!(scratch.fails("forget 2", 1).contains("node 2 is not in the cluster"));

    // The number is as good as new.
    let again = format!("node --id 2 --arena 64M --parent {}", std::process::id());
    let mut node = Running::start(&scratch, &again);
    assert!(node.line().starts_with("node 2 ready"));
    assert_eq!(scratch.states(), ["alive"; 3]);
}

#[test]
fn a_stopped_node_is_reported_as_killed_by_any_process() {
    let scratch = Scratch::new("stopped-node");
    let _up = scratch.up(3);
    let text = scratch.write("text", b"salt");
    scratch.ok(&format!("put salt {} --node 2", text.display()));
    let (pid, node) = (scratch.pid(2), Process::open(scratch.pid(2)));
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    // The others find that its lease is over at about the same time, and either may kill it.
    node.await_end();
    eventually(|| scratch.fails("get salt", 1).contains(", killed)"));
    let complaint = scratch.fails("get salt", 1);
    assert!(tells_time(&complaint, "lost with node 2 (exited ", ", killed)"), "{complaint}");
    assert_eq!(scratch.nodes()[2]["lost"]["cause"], "killed");
    let why = scratch.ok("explain 2");
    assert!(
        why.contains("it was killed ") && why.contains(" s ago, silent for longer than its lease"),
        "{why}"
    );
}

#[test]
fn a_first_node_that_does_not_answer_is_not_well() {
    let scratch = Scratch::new("silent-first");
    let _up = scratch.up(2);
    let first = Pid::from_raw(scratch.pid(0) as i32).unwrap();
    assert_eq!(scratch.run("status").status.code(), Some(0));
    kill_process(first, Signal::STOP).unwrap();
    // Nobody can join, and if this takes long, the other node kills it meanwhile.
    let output = scratch.run("status --json");
    let rows = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{rows}");
    let row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert!(["silent", "dead"].contains(&row["state"].as_str().unwrap()), "{rows}");
}

#[test]
fn bytes_that_were_lost_with_a_part_of_a_region_are_told() {
    let scratch = Scratch::new("part");
    let _up = scratch.up(2);
    let text = scratch.write("text", &support::bytes(10 << 20));
    scratch.ok(&format!("put salt {} --spread", text.display()));
    let whole = scratch.json("stat salt --json").remove(0);
    assert_eq!((&whole["home"], &whole["lost"]), (&json!(0), &json!([])));
    Process::open(scratch.pid(1)).kill();
    eventually(|| scratch.json("stat salt --json")[0]["lost"] == json!([whole["nodes"][1]]));
    // A successor of the node does not have them.
    let again = format!("node --id 1 --arena 64M --parent {}", std::process::id());
    let mut node = Running::start(&scratch, &again);
    assert!(node.line().starts_with("node 1 ready"));
    let row = scratch.json("ls --json").remove(0);
    assert_eq!(row["nodes"], json!([whole["nodes"][0]]));
    assert_eq!(row["lost"], json!([whole["nodes"][1]]));
    assert!(scratch.ok("stat salt").contains(" bytes with node 1, which is gone"));
    let list = scratch.ok("ls");
    assert!(list.contains("  0; ") && list.contains(" lost  "), "{list}");
    let complaint = scratch.fails("get salt", 1);
    assert!(
        complaint.contains("of its bytes are lost with nodes that are gone, such as node 1"),
        "{complaint}"
    );
}

#[test]
fn who_connects_and_is_refused_is_told_in_the_log_and_who_only_looks_is_not() {
    let scratch = Scratch::new("refused");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let address = SocketAddrUnix::new(scratch.cluster().join("node-0.shm.sock")).unwrap();
    let connect = || {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        net::connect(&socket, &address).unwrap();
        socket
    };
    drop(connect());
    let stranger = connect();
    net::send(&stranger, b"nonsense", SendFlags::NOSIGNAL).unwrap();
    // It is answered, and then hung up on.
    while net::recv(&stranger, &mut [0_u8; 4096][..], RecvFlags::empty()).is_ok_and(|(_, len)| len > 0) {}
    let log = || std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap();
    eventually(|| log().contains("was refused: "));
    let log = log();
    let refusals: Vec<&str> = log.lines().filter(|line| line.contains("was refused: ")).collect();
    assert!(refusals.len() == 1 && refusals[0].contains(" WARN "), "{log}");
}

/// How many refusals the log has in lines of their own, and how many it counts as left out.
fn refusals(log: &str) -> (usize, usize) {
    let told = log.lines().filter(|line| line.contains("was refused: ")).count();
    let counts = log
        .lines()
        .filter_map(|line| line.split_once(" more that connected were refused")?.0.split(' ').next_back());
    (told, counts.map(|count| count.parse::<usize>().unwrap()).sum())
}

const STRANGERS: usize = 400;

#[track_caller]
fn check_flood(log: impl Fn() -> String) {
    // The count is told when the while is over in which the first few were.
    eventually(|| {
        let (told, left_out) = refusals(&log());
        told + left_out >= STRANGERS
    });
    let (told, left_out) = refusals(&log());
    assert_eq!(told + left_out, STRANGERS, "each is told, or counted");
    assert!(told <= STRANGERS / 4, "{told} lines");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_flood_of_strangers_writes_a_few_lines_and_how_many_there_were() {
    let scratch = Scratch::new("flood");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let address = SocketAddrUnix::new(scratch.cluster().join("node-0.shm.sock")).unwrap();
    for _ in 0..STRANGERS {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let stranger = socket.unwrap();
        net::connect(&stranger, &address).unwrap();
        net::send(&stranger, b"nonsense", SendFlags::NOSIGNAL).unwrap();
        while net::recv(&stranger, &mut [0_u8; 4096][..], RecvFlags::empty()).is_ok_and(|(_, len)| len > 0) {}
    }
    check_flood(|| std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap());
    scratch.ok("down");
}

/// A node that other hosts may dial, and where; its log is a file of the scratch directory.
fn founder(scratch: &Scratch) -> (Running, String) {
    let secret = scratch.file("secret");
    scratch.ok(&format!("secret new {}", secret.display()));
    let line = format!("node --id 0 --arena 64M --listen 127.0.0.1:0 --secret-file {}", secret.display());
    let mut command = scratch.command(&line);
    command.stderr(File::create(scratch.file("log")).unwrap());
    let mut node = Running::of(command);
    let said = node.line();
    let (_, address) = said.split_once("dialled at ").unwrap_or_else(|| panic!("{said}"));
    (node, address.trim().to_owned())
}

/// Connects, says what makes no sense, and waits until the node hangs up.
fn trespass(address: &str) {
    let mut stranger = TcpStream::connect(address).unwrap();
    // It is hung up on, perhaps with what it has not said yet.
    let _ = stranger.write_all(&[b'x'; 256]);
    let _ = stranger.read_to_end(&mut Vec::new());
}

#[test]
fn a_secret_that_cannot_be_read_is_logged_once_until_it_can() {
    let scratch = Scratch::new("unreadable");
    let (_node, address) = founder(&scratch);
    let allow =
        |mode| std::fs::set_permissions(scratch.file("secret"), Permissions::from_mode(mode)).unwrap();
    let told = || {
        let log = std::fs::read_to_string(scratch.file("log")).unwrap();
        log.matches("those that were known before are used").count()
    };
    for times in 1..=2 {
        allow(0o644);
        (0..20).for_each(|_| trespass(&address));
        eventually(|| told() >= times);
        assert_eq!(told(), times);
        allow(0o600);
        trespass(&address);
    }
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_flood_of_strangers_from_other_hosts_does_so_too() {
    let scratch = Scratch::new("flood-tcp");
    let (_node, address) = founder(&scratch);
    (0..STRANGERS).for_each(|_| trespass(&address));
    check_flood(|| std::fs::read_to_string(scratch.file("log")).unwrap());
    assert_eq!(scratch.states(), ["alive"]);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn strangers_for_whom_there_is_no_place_are_told_in_a_few_lines_too() {
    let scratch = Scratch::new("crowd-tcp");
    let (_node, address) = founder(&scratch);
    let mut crowd: Vec<TcpStream> = (0..STRANGERS).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // Those who have a place are hung up on when their time is over, which is told at debug alone.
    crowd.iter_mut().for_each(|stranger| drop(stranger.read_to_end(&mut Vec::new())));
    let told = || refusals(&std::fs::read_to_string(scratch.file("log")).unwrap());
    eventually(|| told().0 + told().1 >= STRANGERS * 9 / 10);
    assert!(told().0 <= STRANGERS / 4, "{told:?} lines", told = told());
    assert_eq!(scratch.states(), ["alive"]);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_stopped_application_is_told_why_it_is_killed_and_so_is_the_log_of_who_does_it() {
    let scratch = Scratch::new("stopped");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let text = scratch.write("text", "salt\n".repeat(1 << 20).as_bytes());
    scratch.ok(&format!("put region {}", text.display()));
    let complaints = scratch.file("complaints");
    let mut command = scratch.command("get region");
    command.stderr(File::create(&complaints).unwrap());
    // Nobody reads on, so that it waits with most of its bytes unwritten.
    let mut application = Running::of(command);
    application.byte();
    let pid = application.pid();
    application.signal(Signal::STOP);

    let status = application.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::KILL.as_raw()));
    let told = std::fs::read_to_string(&complaints).unwrap();
    assert!(told.starts_with("halite: this process was stopped or silent for "), "{told:?}");
    assert!(told.contains("; node 0 kills it since it could wake in the middle of a write"), "{told:?}");
    // Who asks is answered when the log has been written.
    scratch.ok("status");
    let log = std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap();
    for (level, what) in [("WARN", "silent for"), ("WARN", "is killed"), ("INFO", "has exited, killed")] {
        let is_told = |line: &str| {
            line.contains(level) && line.contains(&format!("(process {pid})")) && line.contains(what)
        };
        assert!(log.lines().any(is_told), "{what}: {log}");
    }
}
