//! Behaviour of the program where the limits of the host are low.

use crate::cgroup;
use crate::support;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use cgroup::Cgroup;
use rustix::process::Signal;
use support::{Running, Scratch, after};

/// Runs a command in a shell that has first lowered its limits by `ulimit`.
#[track_caller]
fn run_with_ulimit(scratch: &Scratch, ulimit: &str, line: &str) -> (Option<i32>, String, String) {
    let script = format!("{ulimit} || exit 99; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_halite"), "--dir"]);
    command.arg(scratch.cluster()).args(line.split_whitespace()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn too_many_nodes_error_names_the_maximum() {
    let scratch = Scratch::new("descriptors");
    let (status, _, complaint) = run_with_ulimit(&scratch, "ulimit -n 100", "up --nodes 64 --detach");
    assert_eq!(status, Some(1), "{complaint}");
    assert!(complaint.contains("hard limit here is 100"), "{complaint}");
    assert!(complaint.contains("10 nodes work"), "{complaint}");
    assert!(!scratch.cluster().exists());
}

#[test]
fn nodes_raise_the_soft_descriptor_limit() {
    let scratch = Scratch::new("soft");
    let (status, _, complaint) =
        run_with_ulimit(&scratch, "ulimit -Sn 20", "up --nodes 4 --arena 16M --detach");
    assert_eq!(status, Some(0), "{complaint}");
    assert_eq!(scratch.states(), ["alive"; 4]);
    scratch.ok("down");
}

#[test]
fn descriptor_shortage_names_the_limit() {
    let scratch = Scratch::new("few");
    for limit in 8.. {
        let (status, _, complaint) =
            run_with_ulimit(&scratch, &format!("ulimit -n {limit}"), "perf read_lat -n 10");
        if status == Some(0) {
            break;
        }
        let names_it = [format!("of {limit} are in use"), format!("the limit of {limit} descriptors")];
        assert!(names_it.iter().any(|name| complaint.contains(name)), "{limit}: {complaint}");
    }
}

/// Runs a command in a control group of at most `threads` threads. Returns `None` if this user cannot create one.
fn run_in_cgroup(scratch: &Scratch, threads: u32, line: &str) -> Option<Output> {
    let group = Cgroup::of_threads("threads", threads)?;
    let output = group.wrap(&scratch.command(line)).output().unwrap();
    if output.status.success() && line.starts_with("up") {
        assert_eq!(scratch.states(), ["alive"; 2], "{threads} threads: {output:?}");
        scratch.ok("down");
    }
    Some(output)
}

#[track_caller]
fn check_names_limit(threads: u32, output: &Output) {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{threads} threads: {complaint}");
    let text = format!("the maximum of {threads} threads is reached; raise pids.max of the control group");
    assert!(complaint.contains(&text) && !complaint.contains("panicked"), "{complaint}");
}

#[test]
fn thread_shortage_names_the_limit() {
    let scratch = Scratch::new("threads");
    // Either all nodes run, or `up` fails: no node reports that it is ready and ends.
    let up = "up --nodes 2 --arena 16M --detach";
    for threads in 2.. {
        let Some(output) = run_in_cgroup(&scratch, threads, up) else {
            return println!("skipped: this user cannot limit the number of threads");
        };
        if output.status.success() {
            break;
        }
        check_names_limit(threads, &output);
    }
    check_names_limit(24, &run_in_cgroup(&scratch, 24, "perf rpc_lat -t 64").unwrap());
    let doctor = String::from_utf8(run_in_cgroup(&scratch, 9, "doctor").unwrap().stdout).unwrap();
    assert!(doctor.contains("error    threads: "), "{doctor}");
}

#[test]
fn nproc_shortage_names_the_limit() {
    if rustix::process::geteuid().is_root() {
        return println!("skipped: the limit does not apply to root");
    }
    let scratch = Scratch::new("nproc");
    let perf = scratch.command("perf rpc_lat -t 64");
    // The threads of all processes of the user count.
    let mut command = Command::new("prlimit");
    command.arg("--nproc=24").arg(perf.get_program()).args(perf.get_args()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("the maximum of 24 threads is reached; raise RLIMIT_NPROC"), "{complaint}");
}

/// Starts `run kv` under each limit from `first` on, up to the one with which it serves a client and ends by a signal.
/// With a lower limit it must fail, and name the limit.
fn find_sufficient_limit(
    scratch: &Scratch,
    first: u32,
    limit: &str,
    under: impl Fn(u32, &Command) -> Command,
) {
    for count in first.. {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.args(["run", "kv", "--listen", "127.0.0.1:0", "--arena", "16M"]);
        command.env("TMPDIR", scratch.file("."));
        let mut command = under(count, &command);
        command.stdin(Stdio::null()).stderr(std::fs::File::create(scratch.file("stderr")).unwrap());
        let mut run = Running::of(command);
        let Some(text) = run.line_if_any() else {
            let complaint = std::fs::read_to_string(scratch.file("stderr")).unwrap();
            assert!(complaint.contains(limit) && !complaint.contains("panicked"), "{count}: {complaint}");
            continue;
        };
        let at = text.split_whitespace().find_map(|word| word.strip_suffix(';')).unwrap();
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 7];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
        run.signal(Signal::INT);
        assert!(run.wait().success());
        return;
    }
}

#[test]
fn store_without_threads_or_descriptors_fails_at_start() {
    let scratch = Scratch::new("store");
    find_sufficient_limit(&scratch, 24, "descriptors", |count, command| {
        after(&format!("ulimit -n {count}"), command)
    });
    if Cgroup::of_threads("store", 1).is_none() {
        return println!("skipped: this user cannot limit the number of threads");
    }
    let groups = RefCell::new(Vec::new());
    find_sufficient_limit(&scratch, 9, "threads is reached", |count, command| {
        let group = Cgroup::of_threads(&format!("store-{count}"), count).unwrap();
        let wrapped = group.wrap(command);
        groups.borrow_mut().push(group);
        wrapped
    });
}

#[test]
fn full_disk_permits_rm_and_drain() {
    let scratch = Scratch::new("disk");
    // The disk exists only in the mount namespace of the shell.
    let script = "set -e
        mount -t tmpfs -o size=256k none \"$1\" || { echo skipped; exit 0; }
        halite() { bin=$1; dir=$2; shift 2; \"$bin\" --dir \"$dir/cluster\" \"$@\"; }
        halite \"$0\" \"$1\" up --nodes 2 --arena 64M --detach
        trap 'halite \"$0\" \"$1\" down' EXIT
        echo text | halite \"$0\" \"$1\" put region -
        dd if=/dev/zero of=\"$1/rest\" bs=1k 2>/dev/null || true
        halite \"$0\" \"$1\" status
        halite \"$0\" \"$1\" rm region
        halite \"$0\" \"$1\" drain 1
        halite \"$0\" \"$1\" doctor | grep '^warning  disk:'";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_halite")]);
    std::fs::create_dir(scratch.file("full")).unwrap();
    let output = command.arg(scratch.file("full")).stdin(Stdio::null()).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    if output.stdout == b"skipped\n" || complaint.starts_with("unshare: ") {
        return println!("skipped: this user cannot mount: {complaint}");
    }
    assert!(output.status.success(), "{output:?}");
    assert!(complaint.contains("is full: 0 B and"), "{complaint}");
}
