//! Commands refuse a cluster directory with unexpected files or permissions, and leave the directory unchanged.

use crate::support;

use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FileType, Mode};
use support::{MARKER, Process, Running, Scratch, after, check_ok, inventory};

/// Kind of file in the place of one of the program's files, and a function that creates it.
type FileKind = (&'static str, fn(&Path));

/// Commands that read the cluster directory.
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

fn make_private(dir: &Path) {
    std::fs::DirBuilder::new().mode(0o700).create(dir).unwrap();
}

#[test]
fn directory_with_other_files_is_refused() {
    let scratch = Scratch::new("theirs");
    let dir = scratch.cluster();
    make_private(&dir);
    std::fs::create_dir(dir.join("logs")).unwrap();
    for theirs in
        ["logs/a", "logs/node-0.log", "node-3.lock", "node-3.py", "node-3.shm.sock", "join.lock", "NAME"]
    {
        std::fs::write(dir.join(theirs), "theirs").unwrap();
    }
    check_refused(&scratch, "holds other files", &dir);
}

#[test]
fn down_keeps_files_of_others() {
    let scratch = Scratch::new("beside");
    scratch.ok("up --nodes 2 --arena 64M --detach");
    let dir = scratch.cluster();
    let theirs =
        ["node-3.py", "node-1.shm.sock.bak", "node-01.lock", "logs/a", "logs/node-1.log.old", "data"];
    for name in theirs {
        std::fs::write(dir.join(name), "theirs").unwrap();
    }
    // A node that died leaves files with these names.
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

/// Checks that each command refuses the cluster directory for this reason, and that `root` is unchanged.
#[track_caller]
fn check_refused(scratch: &Scratch, reason: &str, root: &Path) {
    let before = inventory(root);
    for command in COMMANDS {
        scratch.fails_with(command, 1, reason);
        assert_eq!(inventory(root), before, "{command}");
    }
}

#[test]
fn open_directory_is_refused() {
    let scratch = Scratch::new("open");
    std::fs::create_dir(scratch.cluster()).unwrap();
    std::fs::set_permissions(scratch.cluster(), std::fs::Permissions::from_mode(0o755)).unwrap();
    check_refused(&scratch, "other users can enter", &scratch.cluster());
}

#[test]
fn symlink_to_a_directory_is_refused() {
    let scratch = Scratch::new("link");
    let theirs = scratch.file("theirs");
    make_private(&theirs);
    symlink(&theirs, scratch.cluster()).unwrap();
    check_refused(&scratch, "not a directory", &theirs);
    std::fs::remove_file(scratch.cluster()).unwrap();
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn directory_of_another_user_is_refused() {
    let scratch = Scratch::new("foreign");
    make_private(&scratch.cluster());
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can give a directory away");
        return;
    }
    rustix::fs::chown(scratch.cluster(), Some(rustix::fs::Uid::from_raw(65534)), None).unwrap();
    symlink(scratch.write("precious", b"theirs"), scratch.cluster().join(MARKER)).unwrap();
    check_refused(&scratch, "belongs to user 65534", &scratch.cluster());
    assert_eq!(std::fs::read(scratch.file("precious")).unwrap(), b"theirs");
}

#[test]
fn symlinked_logs_are_refused() {
    let scratch = Scratch::new("links");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    scratch.ok("down");
    let precious = scratch.write("precious", b"theirs");
    let (logs, log) = (scratch.cluster().join("logs"), scratch.cluster().join("logs/node-0.log"));
    std::fs::remove_file(&log).unwrap();
    symlink(&precious, &log).unwrap();
    scratch.fails_with("up --nodes 1 --detach", 1, "node-0.log is a symbolic link");

    std::fs::remove_dir_all(&logs).unwrap();
    let elsewhere = scratch.file("elsewhere");
    make_private(&elsewhere);
    std::fs::write(elsewhere.join("node-0.log"), "theirs").unwrap();
    symlink(&elsewhere, &logs).unwrap();
    scratch.fails_with("up --nodes 1 --detach", 1, "not a directory");
    assert_eq!(std::fs::read(precious).unwrap(), b"theirs");
    assert_eq!(std::fs::read(elsewhere.join("node-0.log")).unwrap(), b"theirs");
}

#[test]
fn unexpected_file_types_are_refused() {
    let scratch = Scratch::new("hang");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let kinds: [FileKind; 5] = [
        ("a FIFO", |path| rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
        ("a directory", |path| std::fs::create_dir(path).unwrap()),
        ("a symbolic link", |path| symlink("/dev/zero", path).unwrap()),
        ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
        ("a file with several hard links", |path| {
            std::fs::write(path.with_extension("theirs"), "theirs").unwrap();
            std::fs::hard_link(path.with_extension("theirs"), path).unwrap();
        }),
    ];
    let check = |name: &str, kinds: &[FileKind], commands: &[&str]| {
        let path = scratch.cluster().join(name);
        for (what, place) in kinds {
            let _ = std::fs::remove_file(&path);
            place(&path);
            let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
            for command in commands {
                let complaint = scratch.fails(command, 1);
                let expected = format!("{} is {what}", path.display());
                assert!(complaint.contains(&expected), "{command}: {complaint}");
            }
            assert_eq!(std::fs::symlink_metadata(&path).unwrap().file_type(), kind);
            if kind.is_dir() {
                std::fs::remove_dir(&path).unwrap()
            }
        }
        let _ = std::fs::remove_file(&path);
    };
    check("node-9.lock", &kinds, &COMMANDS);
    assert_eq!(scratch.states(), ["alive"]);
    scratch.ok("down");
    let start = ["up --nodes 1 --detach"];
    // Dead nodes leave sockets.
    check("node-9.shm.sock", &kinds[..3], &start);
    // The marker is last: without it, the directory belongs to no cluster.
    for name in ["join.lock", "next-number", "node-9.shm.lock", "logs/node-9.log", MARKER] {
        check(name, &kinds, &start);
    }
}

#[test]
fn forged_lock_file_stops_no_other_process() {
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

/// Starts a process that belongs to no cluster.
fn bystander() -> Running {
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped());
    Running::of(command)
}

#[test]
fn cluster_without_files_excludes_a_second_one() {
    let scratch = Scratch::new("aged");
    let up = scratch.up(2);
    let pid = scratch.pid(0);
    let clean = |is_old: fn(&str) -> bool| {
        for name in scratch.entries().iter().filter(|name| is_old(name)) {
            std::fs::remove_file(scratch.cluster().join(name)).unwrap();
        }
    };
    // A cleaner removes the files that are not used, but keeps sockets that are.
    clean(|name| name == MARKER || name.ends_with(".lock"));
    let complaint = scratch.fails("up --nodes 1 --arena 64M --detach", 1);
    assert!(complaint.contains(&format!("is running in {}", scratch.cluster().display())), "{complaint}");
    assert!(complaint.contains(&format!("node 0 is process {pid}")), "{complaint}");
    scratch.fails_with("node --id 1 --arena 64M", 1, "already runs as node 1");
    // Commands still reach the nodes, through the sockets.
    assert_eq!(scratch.states(), ["alive"; 2]);
    // Without the sockets, no process reaches the nodes, and they still hold the directory.
    clean(|name| name != "attach");
    for line in ["up --nodes 1 --arena 64M --detach", "node --id 0 --arena 64M"] {
        scratch.fails_with(line, 1, "removed");
    }
    for line in ["status", "doctor --arena 16M"] {
        let text = scratch.run(line);
        let text = String::from_utf8_lossy(&text.stdout) + String::from_utf8_lossy(&text.stderr);
        assert!(text.contains("files of node 0, node 1 are missing"), "{line}: {text}");
    }
    drop(up);
}

/// The logs of a cluster whose other files were removed are no reason to refuse the directory.
#[test]
fn directory_with_only_logs_is_reused() {
    let scratch = Scratch::new("aged-logs");
    let line = "up --nodes 1 --arena 16M --detach";
    scratch.ok(line);
    let removed = scratch.entries().into_iter().map(|name| scratch.cluster().join(name));
    removed.filter(|path| path.is_file()).for_each(|path| std::fs::remove_file(path).unwrap());
    scratch.ok("down");
    assert!(scratch.entries().contains(&"logs".to_owned()));
    scratch.ok(line);
    scratch.ok("down");
    std::fs::remove_file(scratch.cluster().join(MARKER)).unwrap();
    scratch.write("cluster/logs/mine", b"");
    scratch.fails(line, 1);
}

#[test]
fn failed_start_leaves_no_directory() {
    let scratch = Scratch::new("failed");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap();
    for line in [
        format!("up --nodes 1 --arena 16M --metrics {metrics}"),
        format!("node --id 0 --arena 16M --metrics {metrics}"),
        "node --id 1 --arena 16M".to_owned(),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.arg("--dir").arg(scratch.cluster().join("below")).args(line.split(' '));
        assert_eq!(command.output().unwrap().status.code(), Some(1), "{line}");
        assert!(!scratch.cluster().exists(), "{line}");
        // What was there before stays.
        std::fs::create_dir(scratch.cluster()).unwrap();
        std::fs::set_permissions(scratch.cluster(), PermissionsExt::from_mode(0o700)).unwrap();
        scratch.fails(&line, 1);
        std::fs::remove_dir_all(scratch.cluster()).unwrap();
    }
}

#[test]
fn restrictive_umask_makes_usable_directories() {
    let scratch = Scratch::new("umask");
    let up = scratch.command("up --nodes 1 --arena 16M --detach");
    check_ok("up", &after("umask 0777", &up).output().unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let dir = scratch.cluster();
    for (path, expected) in
        [("", 0o700), ("logs", 0o700), ("attach", 0o700), (MARKER, 0o600), ("node-0.lock", 0o600)]
    {
        assert_eq!(mode(&dir.join(path)), expected, "{path}");
    }
    scratch.ok("down");
}

#[test]
fn runtime_directory_of_another_user_is_ignored() {
    let scratch = Scratch::new("xdg");
    // Only root can own files that are not its own; another user has a directory of root's.
    let runtime = scratch.file("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let runtime = match rustix::process::geteuid().is_root() {
        true => {
            std::os::unix::fs::chown(&runtime, Some(65534), None).unwrap();
            runtime
        }
        false => PathBuf::from("/root"),
    };
    let mut config = Command::new(env!("CARGO_BIN_EXE_halite"));
    let output =
        config.args(["status"]).env("XDG_RUNTIME_DIR", &runtime).env_remove("HALITE_DIR").output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    let text = format!("{} (XDG_RUNTIME_DIR) belongs to another user; using /tmp/halite-", runtime.display());
    assert!(complaint.contains(&text), "{complaint}");
}

/// The address of a Unix socket has at most 107 bytes, and a cluster has sockets in two folders.
#[test]
fn cluster_directory_path_may_be_long() {
    for len in [88, 92, 106, 300] {
        let scratch = Scratch::new("long");
        let rest = len - scratch.file("").as_os_str().len();
        let dir = scratch.file(&"d".repeat(rest.min(250))).join("e".repeat(rest.saturating_sub(250)));
        let run = |line: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
            let output = command.arg("--dir").arg(&dir).args(line.split(' ')).output().unwrap();
            check_ok(line, &output)
        };
        run("up --nodes 2 --arena 16M --detach");
        let file = scratch.write("file", b"salt");
        run(&format!("put region {} --node 1", file.display()));
        let (got, explained) = (run("get region"), run("explain region"));
        run("down");
        assert!(got == "salt" && explained.contains("loads"), "{len}: {got}, {explained}");
    }
}
