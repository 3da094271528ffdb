//! Lost regions, and the messages of commands about them.

use crate::support;

use std::fs::File;

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use serde_json::json;
use support::{Process, Running, Scratch, eventually};

/// Returns true if the text contains a time of day between `before` and `after`.
fn contains_time(text: &str, before: &str, after: &str) -> bool {
    let is_time = |rest: &str| {
        let time = rest.as_bytes().get(..8).unwrap_or_default();
        let fits = |(at, byte): (usize, &u8)| if at % 3 == 2 { *byte == b':' } else { byte.is_ascii_digit() };
        time.len() == 8 && time.iter().enumerate().all(fits) && rest[8..].starts_with(after)
    };
    text.match_indices(before).any(|(at, _)| is_time(&text[at + before.len()..]))
}

#[test]
fn region_of_a_dead_node_is_lost() {
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
        assert!(contains_time(&complaint, ": lost with node 2 (exited ", ")"), "{command}: {complaint}");
    }
    let list = scratch.ok("ls");
    assert!(contains_time(&list, "salt    lost with node 2 (exited ", ")"), "{list}");
    let lost = scratch.json("ls --json");
    assert_eq!(lost.len(), 3, "{lost:?}");
    assert_eq!((&lost[1]["name"], &lost[1]["lost"]["node"]), (&"salt".into(), &2.into()), "{lost:?}");
    assert_eq!(lost[1]["lost"]["cause"], "exited");

    scratch.ok("rm salt");
    scratch.fails_with("get salt", 1, "there is no such region");
    scratch.ok(&format!("put pepper {} --node 1", text.display()));
    assert_eq!(scratch.ok("get pepper"), "salt");
    let names: Vec<_> = scratch.json("ls --json").iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["pepper", "sugar"]);
}

#[test]
fn status_shows_a_dead_node_until_forget() {
    let scratch = Scratch::new("forget");
    let _up = scratch.up(3);
    let text = scratch.write("text", b"salt");
    scratch.ok(&format!("put salt {} --node 2", text.display()));
    assert!(
        scratch.fails("forget 2", 1).contains("it runs as process"),
        "a running node cannot be forgotten"
    );
    scratch.fails_with("forget 77", 1, "node 77 is not in the cluster");

    Process::open(scratch.pid(2)).kill();
    eventually(|| scratch.states() == ["alive", "alive", "dead"]);
    assert!(contains_time(&String::from_utf8(scratch.run("status").stdout).unwrap(), "  exited ", "\n"));
    assert_eq!(scratch.nodes()[2]["lost"]["cause"], "exited");

    scratch.ok("forget 2");
    assert_eq!(scratch.states(), ["alive", "alive"]);
    scratch.fails_with("stat salt", 1, "there is no such region");
    assert!(!scratch.entries().iter().any(|name| name.starts_with("node-2.")));
    scratch.fails_with("forget 2", 1, "node 2 is not in the cluster");
}

#[test]
fn lost_chunks_are_shown() {
    let scratch = Scratch::new("part");
    let _up = scratch.up(2);
    let text = scratch.write("text", &support::bytes(10 << 20));
    scratch.ok(&format!("put salt {} --spread", text.display()));
    let whole = scratch.json("stat salt --json").remove(0);
    assert_eq!((&whole["home"], &whole["lost"]), (&json!(0), &json!([])));
    Process::open(scratch.pid(1)).kill();
    eventually(|| scratch.json("stat salt --json")[0]["lost"] == json!([whole["nodes"][1]]));
    // A new incarnation of the node does not hold the lost parts.
    let again = format!("node --id 1 --arena 64M --parent {}", std::process::id());
    let mut node = Running::start(&scratch, &again);
    assert!(node.line().starts_with("node 1 ready"));
    let row = scratch.json("ls --json").remove(0);
    assert_eq!(row["nodes"], json!([whole["nodes"][0]]));
    assert_eq!(row["lost"], json!([whole["nodes"][1]]));
    assert!(scratch.ok("stat salt").contains(" bytes with node 1, which is gone"));
    scratch.fails_with("get salt", 1, "of its bytes are lost with nodes that are gone, such as node 1");
}

#[test]
fn refused_connections_are_logged() {
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
    // The node answers the connection, then closes it.
    while net::recv(&stranger, &mut [0_u8; 4096][..], RecvFlags::empty()).is_ok_and(|(_, len)| len > 0) {}
    let log = || std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap();
    eventually(|| log().contains("refused the connection of a process: "));
    let log = log();
    let refusals: Vec<&str> =
        log.lines().filter(|line| line.contains("refused the connection of a process: ")).collect();
    assert!(refusals.len() == 1 && refusals[0].contains(" WARN "), "{log}");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn killed_application_and_log_report_the_reason() {
    let scratch = Scratch::new("stopped");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let text = scratch.write("text", "salt\n".repeat(1 << 20).as_bytes());
    scratch.ok(&format!("put region {}", text.display()));
    let complaints = scratch.file("complaints");
    let mut command = scratch.command("--embed get region");
    command.stderr(File::create(&complaints).unwrap());
    // The test does not read the output, so the application blocks with most of its bytes unwritten.
    let mut application = Running::of(command);
    application.byte();
    let pid = application.pid();
    application.signal(Signal::STOP);

    let status = application.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::KILL.as_raw()));
    let message = std::fs::read_to_string(&complaints).unwrap();
    assert!(message.starts_with("halite: this process was stopped or silent for "), "{message:?}");
    assert!(
        message.contains("; node 0 kills it, because it could resume in the middle of a write"),
        "{message:?}"
    );
    // The node writes to its log before it answers the application.
    scratch.ok("status");
    let log = std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap();
    for (level, what) in
        [("WARN", "silent for"), ("WARN", "killing node"), ("INFO", "has exited: it was killed")]
    {
        let is_logged = |line: &str| {
            line.contains(level) && line.contains(&format!("(process {pid})")) && line.contains(what)
        };
        assert!(log.lines().any(is_logged), "{what}: {log}");
    }
}
