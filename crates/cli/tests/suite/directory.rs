//! What the commands do with a cluster directory that is not as they would have made it: they say so, and touch nothing.

use crate::support;

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FileType, Mode};
use rustix::process::{Pid, Signal};
use support::{MARKER, Process, Running, Scratch};

/// What stands where a file of ours would, and how it gets there.
type Bait = (&'static str, fn(&Path));

/// Commands that look at the directory of a cluster.
const COMMANDS: [&str; 8] = [
    "up --nodes 1",
    "up --nodes 1 --detach",
    "down",
    "down --all",
    "status",
    "ls",
    "put region /etc/hostname",
    "get region",
];

/// Every file below `root` with what it is and holds.
fn inventory(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        let content =
            if kind.is_file() { std::fs::read_to_string(&path).unwrap() } else { format!("{kind:?}") };
        if kind.is_dir() {
            found.extend(inventory(&path));
        }
        found.insert(path, content);
    }
    found
}

fn make_private(dir: &Path) {
    std::fs::DirBuilder::new().mode(0o700).create(dir).unwrap();
}

#[test]
fn a_directory_that_holds_other_things_is_refused_and_nothing_in_it_is_touched() {
    let scratch = Scratch::new("theirs");
    let dir = scratch.cluster();
    make_private(&dir);
    std::fs::create_dir(dir.join("logs")).unwrap();
    for theirs in
        ["logs/a", "logs/node-0.log", "node-3.lock", "node-3.py", "node-3.shm.sock", "join.lock", "NAME"]
    {
        std::fs::write(dir.join(theirs), "theirs").unwrap();
    }
    let before = inventory(&dir);
    for command in COMMANDS {
        let complaint = scratch.fails(command, 1);
        assert!(
            complaint.contains("holds other files") && complaint.contains(MARKER),
            "{command}: {complaint}"
        );
        assert_eq!(inventory(&dir), before, "{command}");
    }
    // Where somebody stands is a directory like any other.
    for command in COMMANDS {
        let mut halite = scratch.command(command);
        let output = halite.env("HALITE_DIR", ".").current_dir(&dir).args(["--dir", "."]).output();
        assert_eq!(output.unwrap().status.code(), Some(1), "{command}");
        assert_eq!(inventory(&dir), before, "{command}");
    }
}

#[test]
fn whatever_lies_beside_the_files_of_a_cluster_outlives_it() {
    let scratch = Scratch::new("beside");
    scratch.ok("up --nodes 2 --arena 64M --detach");
    let dir = scratch.cluster();
    let theirs =
        ["node-3.py", "node-1.shm.sock.bak", "node-01.lock", "logs/a", "logs/node-1.log.old", "data"];
    for name in theirs {
        std::fs::write(dir.join(name), "theirs").unwrap();
    }
    // A node that died leaves files of these names.
    std::fs::write(dir.join("node-3.lock"), "4194305 77\n").unwrap();
    assert_eq!(scratch.states(), ["alive", "alive", "dead"]);
    scratch.ok("down");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    scratch.ok("down");
    for name in theirs {
        assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), "theirs", "{name}");
    }
    assert!(!dir.join("node-3.lock").exists());
}

#[test]
fn the_owner_and_the_mode_are_looked_at_before_anything_is_made() {
    let scratch = Scratch::new("open");
    let dir = scratch.cluster();
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    for command in COMMANDS {
        let complaint = scratch.fails(command, 1);
        assert!(
            complaint.contains("others can enter") && complaint.contains("chmod 700"),
            "{command}: {complaint}"
        );
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{command}");
    }
    // Somebody else has put a link where the directory would be, to one of the caller's.
    let theirs = scratch.file("theirs");
    make_private(&theirs);
    std::fs::remove_dir(&dir).unwrap();
    symlink(&theirs, &dir).unwrap();
    for command in COMMANDS {
        let complaint = scratch.fails(command, 1);
        assert!(complaint.contains("not a directory"), "{command}: {complaint}");
        assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 0, "{command}");
    }
    std::fs::remove_file(&dir).unwrap();
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let scratch = Scratch::new("foreign");
    let dir = scratch.cluster();
    make_private(&dir);
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can give a directory away");
        return;
    }
    rustix::fs::chown(&dir, Some(rustix::fs::Uid::from_raw(65534)), None).unwrap();
    symlink(scratch.write("precious", b"theirs"), dir.join("halite-cluster")).unwrap();
    for command in COMMANDS {
        let complaint = scratch.fails(command, 1);
        assert!(complaint.contains("belongs to user 65534"), "{command}: {complaint}");
    }
    assert_eq!(std::fs::read(scratch.file("precious")).unwrap(), b"theirs");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn links_in_place_of_logs_are_not_followed() {
    let scratch = Scratch::new("links");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    scratch.ok("down");
    let precious = scratch.write("precious", b"theirs");
    let (logs, log) = (scratch.cluster().join("logs"), scratch.cluster().join("logs/node-0.log"));
    std::fs::remove_file(&log).unwrap();
    symlink(&precious, &log).unwrap();
    let complaint = scratch.fails("up --nodes 1 --detach", 1);
    assert!(complaint.contains("node-0.log is a symbolic link"), "{complaint}");

    std::fs::remove_dir_all(&logs).unwrap();
    let elsewhere = scratch.file("elsewhere");
    make_private(&elsewhere);
    std::fs::write(elsewhere.join("node-0.log"), "theirs").unwrap();
    symlink(&elsewhere, &logs).unwrap();
    let complaint = scratch.fails("up --nodes 1 --detach", 1);
    assert!(complaint.contains("not a directory"), "{complaint}");
    assert_eq!(std::fs::read(precious).unwrap(), b"theirs");
    assert_eq!(std::fs::read(elsewhere.join("node-0.log")).unwrap(), b"theirs");
}

#[test]
fn nothing_that_stands_in_place_of_a_file_makes_a_command_hang() {
    let scratch = Scratch::new("hang");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let baits: [Bait; 5] = [
        ("a FIFO", |path| rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
        ("a directory", |path| std::fs::create_dir(path).unwrap()),
        ("a symbolic link", |path| symlink("/dev/zero", path).unwrap()),
        ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
        ("a file that has other names, too", |path| {
            std::fs::hard_link(path.with_file_name("logs/node-0.log"), path).unwrap();
        }),
    ];
    for (what, place) in baits {
        let bait = scratch.cluster().join("node-9.lock");
        place(&bait);
        let kind = std::fs::symlink_metadata(&bait).unwrap().file_type();
        for command in COMMANDS {
            let complaint = scratch.fails(command, 1);
            let expected = format!("{} is {what}", bait.display());
            assert!(complaint.contains(&expected), "{command}: {complaint}");
        }
        assert_eq!(std::fs::symlink_metadata(&bait).unwrap().file_type(), kind);
        if kind.is_dir() { std::fs::remove_dir(&bait).unwrap() } else { std::fs::remove_file(&bait).unwrap() }
    }
    assert_eq!(scratch.states(), ["alive"]);
}

#[test]
fn a_lock_file_that_says_something_else_hides_no_node_and_ends_no_other_process() {
    let scratch = Scratch::new("lies");
    let bystander = bystander();
    for text in ["", "garbage", "0 0\n", &format!("{} 77\n", bystander.pid()), "1 1\n", &"9".repeat(100_000)]
    {
        scratch.ok("up --nodes 2 --arena 64M --detach");
        let nodes = [0, 1].map(|node| Process::open(scratch.pid(node)));
        std::fs::write(scratch.cluster().join("node-1.lock"), text).unwrap();
        let printed = scratch.ok("down");
        assert_eq!(
            printed.lines().filter(|line| line.ends_with("stopped")).count(),
            2,
            "{text:?}: {printed}"
        );
        nodes.iter().for_each(Process::await_end);
    }
    assert!(Process::open(bystander.pid()).lives());
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_node_whose_files_were_removed_is_found_all_the_same_or_said_to_live() {
    let scratch = Scratch::new("removed");
    let remove = |name: &str| std::fs::remove_file(scratch.cluster().join(name)).unwrap();
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let node = Process::open(scratch.pid(0));
    remove("node-0.lock");
    assert_eq!(scratch.states(), ["alive"]);
    scratch.ok("down");
    node.await_end();

    // Without its socket nothing tells for sure which process it is.
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let node = Process::open(scratch.pid(0));
    remove("node-0.shm.sock");
    let complaint = scratch.fails("down", 1);
    assert!(complaint.contains("node 0 lives") && complaint.contains("listens at no socket"), "{complaint}");
    assert_eq!(scratch.states(), ["alive"]);
    node.kill();
    scratch.ok("down");
}

#[test]
fn a_node_in_another_pid_namespace_is_said_to_be_there() {
    let scratch = Scratch::new("namespaces");
    let in_namespace = |inner: &Command| {
        let mut command = Command::new("setpriv");
        // The command ends with `unshare`, and that with the test.
        command.args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]);
        command.arg(inner.get_program()).args(inner.get_args()).env_remove("HALITE_DIR");
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    if !in_namespace(&Command::new("true")).output().is_ok_and(|output| output.status.success()) {
        println!("left out: making a pid namespace takes root, and the programs setpriv and unshare");
        return;
    }
    let mut node = Running::of(in_namespace(&scratch.command("node --id 0 --arena 64M")));
    node.line();
    let output = in_namespace(&scratch.command("down")).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.contains("node 0 lives in") && complaint.contains("another pid namespace"),
        "{complaint}"
    );
    assert!(complaint.contains("no signal from here arrives: run `halite down --dir"), "{complaint}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(scratch.states(), ["alive"]);
    // The outer namespace knows the processes of the inner one.
    assert!(scratch.ok("down").contains("stopped"));
    node.wait();
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_node_without_any_file_is_named_and_not_left_behind() {
    let scratch = Scratch::new("unlisted");
    scratch.ok("up --nodes 3 --arena 64M --detach");
    let pids = [0, 1, 2].map(|node| scratch.pid(node));
    let [first, removed, other] = pids.map(Process::open);
    for name in ["node-1.lock", "node-1.shm.sock", "node-1.shm.lock"] {
        std::fs::remove_file(scratch.cluster().join(name)).unwrap();
    }
    // Each command that stops the rest is told about it, and it keeps its memory.
    for _ in 0..2 {
        let complaint = scratch.fails("down", 1);
        assert!(complaint.contains(&format!("node 1 is process {}", pids[1])), "{complaint}");
        other.await_end();
        assert!(first.lives() && removed.lives());
        assert!(scratch.fails("up --nodes 1", 1).contains("is running in"));
    }
    removed.kill();
    scratch.ok("down");
    first.await_end();
    assert_eq!(scratch.entries(), [MARKER, "logs"]);
}

#[test]
fn what_a_test_started_and_nobody_can_find_any_more_ends_with_it() {
    let scratch = Scratch::new("leaked");
    scratch.ok("up --nodes 2 --arena 64M --detach");
    let nodes = [0, 1].map(|node| Process::open(scratch.pid(node)));
    std::fs::remove_dir_all(scratch.cluster()).unwrap();
    drop(scratch);
    let leaked = nodes.iter().filter(|node| node.lives()).map(Process::kill).count();
    assert_eq!(leaked, 0);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_first_node_that_does_not_answer_is_stopped_by_what_its_files_tell() {
    let scratch = Scratch::new("unasked");
    let _up = scratch.up(1);
    let first = scratch.pid(0);
    let process = Process::open(first);
    rustix::process::kill_process(Pid::from_raw(first as i32).unwrap(), Signal::STOP).unwrap();
    let output = scratch.run("down");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("going by the files alone"), "{output:?}");
    process.await_end();
}

#[test]
fn a_dead_node_whose_number_another_process_has_now_ends_nobody() {
    let scratch = Scratch::new("recycled");
    let bystander = bystander();
    scratch.ok("up --nodes 2 --arena 64M --detach");
    Process::open(scratch.pid(1)).kill();
    std::fs::write(scratch.cluster().join("node-1.lock"), format!("{} 77\n", bystander.pid())).unwrap();
    scratch.ok("down");
    assert!(Process::open(bystander.pid()).lives());
}

#[test]
fn a_name_that_is_kept_from_the_socket_is_an_error_of_the_node() {
    let scratch = Scratch::new("socket");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    scratch.ok("down");
    let socket = scratch.cluster().join("node-0.shm.sock");
    std::fs::write(&socket, "theirs").unwrap();
    let complaint = scratch.fails("up --nodes 1", 1);
    assert!(complaint.contains("node-0.shm.sock is a regular file"), "{complaint}");
    assert_eq!(std::fs::read(&socket).unwrap(), b"theirs");
    std::fs::remove_file(&socket).unwrap();
    let _up = scratch.up(1);
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
}

/// A process that has nothing to do with any cluster.
fn bystander() -> Running {
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped());
    Running::of(command)
}

#[test]
fn numbers_of_applications_are_not_given_out_again() {
    let scratch = Scratch::new("numbers");
    let _up = scratch.up(1);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let text = scratch.write("text", "salt\n".repeat(1 << 20).as_bytes());
        let _ = scratch.run(&format!("put region {}", text.display()));
        let mut application = Running::start(&scratch, "get region");
        application.line();
        let nodes = scratch.json("status --json");
        seen.push(nodes.iter().map(|row| row["node"].as_u64().unwrap()).max().unwrap());
        drop(application);
    }
    assert!(seen[0] >= 1000 && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}
