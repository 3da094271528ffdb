//! Files in and out of regions, and permissions on regions.

use crate::support;

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use halite::blocking::Session;
use halite::{AttachMode, Config, Fence, Node, NodeId, Permissions, Placement};
use rustix::fs::{FileType, Mode};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use support::{Running, Scratch, after, bytes, check_ok, eventually};

const MIB: usize = 1 << 20;

#[track_caller]
fn check_round_trip(scratch: &Scratch, name: &str, content: &[u8], flags: &str) {
    let from = scratch.write("from", content);
    let into = scratch.file("into");
    scratch.ok(&format!("put {name} {} {flags}", from.display()));
    scratch.ok(&format!("get {name} -o {}", into.display()));
    assert!(std::fs::read(&into).unwrap() == content, "{name}");
    assert!(scratch.run(&format!("get {name}")).stdout == content, "{name}");
    assert!(!has_partial(scratch));
}

/// Returns true if an incomplete file is left.
fn has_partial(scratch: &Scratch) -> bool {
    let mut entries = std::fs::read_dir(scratch.file("")).unwrap();
    entries.any(|entry| entry.unwrap().file_name().to_str().unwrap().ends_with(".partial"))
}

fn names(scratch: &Scratch) -> Vec<String> {
    let regions = scratch.json("ls --json");
    regions.iter().map(|region| region["name"].as_str().unwrap().to_owned()).collect()
}

fn holders(region: &Value) -> Vec<u64> {
    region["nodes"].as_array().unwrap().iter().map(|share| share["node"].as_u64().unwrap()).collect()
}

#[test]
fn files_of_all_sizes_round_trip() {
    let scratch = Scratch::new("sizes");
    let _up = scratch.up(2);
    for (name, len) in [("empty", 0), ("byte", 1), ("piece", MIB), ("ragged", 9 * MIB + 12_345)] {
        check_round_trip(&scratch, name, &bytes(len), "");
    }
    assert_eq!(names(&scratch), ["byte", "empty", "piece", "ragged"]);
    check_round_trip(&scratch, "there", &bytes(3 * MIB), "--node 1");
    assert_eq!(holders(&scratch.json("stat there --json")[0]), [1]);
    check_round_trip(&scratch, "everywhere", &bytes(20 * MIB), "--spread");
    assert_eq!(holders(&scratch.json("stat everywhere --json")[0]), [0, 1]);
}

#[test]
fn put_reads_a_pipe() {
    let scratch = Scratch::new("stdin");
    let _up = scratch.up(2);
    // The content has up to three parts of increasing size.
    for (index, len) in [0, 16 * MIB, 50 * MIB + 7].into_iter().enumerate() {
        let content = bytes(len);
        let mut put = scratch.command(&format!("put piped-{index} -")).stdin(Stdio::piped()).spawn().unwrap();
        put.stdin.take().unwrap().write_all(&content).unwrap();
        assert!(put.wait().unwrap().success());
        assert!(scratch.run(&format!("get piped-{index}")).stdout == content, "{len} bytes");
    }
    scratch.ok("put made-up /proc/self/status --spread");
    assert!(scratch.ok("get made-up").contains("halite"));
}

/// Returns the bytes of regions on all nodes.
fn used(scratch: &Scratch) -> u64 {
    let of = |key: &str| -> u64 {
        scratch.json("status --json").iter().map(|row| row[key].as_u64().unwrap_or(0)).sum()
    };
    of("bytes_used") + of("bytes_quarantined")
}

#[test]
fn put_checks_cluster_and_name_first() {
    let scratch = Scratch::new("checked");
    // No bytes come from this pipe, and its other end stays open.
    let (silent, _writer) = rustix::pipe::pipe().unwrap();
    let fails = |line: &str| {
        let put = scratch.command(line).stdin(silent.try_clone().unwrap()).output().unwrap();
        assert_eq!(put.status.code(), Some(1));
        String::from_utf8(put.stderr).unwrap()
    };
    assert!(fails("put new -").contains("there is no cluster"));
    let _up = scratch.up(1);
    check_round_trip(&scratch, "taken", b"salt", "");
    assert!(fails("put taken -").contains("exists already"));
    let long = "n".repeat(256);
    assert!(fails(&format!("put {long} -")).contains("the maximum is 255"));
    let unnamed = scratch.command("put").args(["", "-"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&unnamed.stderr).contains("give a name of 1 to 255 bytes"),
        "{unnamed:?}"
    );
}

#[test]
fn explain_shows_the_data_path() {
    let scratch = Scratch::new("explain");
    let _up = scratch.up(2);
    check_round_trip(&scratch, "region", &bytes(9 * MIB), "--spread");
    let message = &scratch.json("explain region --json")[0];
    let pieces = message["pieces"].as_array().unwrap();
    assert_eq!(pieces.len(), 2);
    let path_of = |node: usize| (&pieces[node]["path"], &pieces[node]["provider"]);
    assert_eq!(
        (path_of(0), path_of(1)),
        ((&"local".into(), &Value::Null), (&"direct".into(), &"shm".into()))
    );
    let text = scratch.ok("explain region");
    assert!(text.contains("read: loads; write: stores") && text.contains("mapped here"), "{text}");
    assert!(scratch.ok("explain 1").starts_with("node 1: alive, connected\n"));
    check_round_trip(&scratch, "1", b"salt", "");
    assert_eq!(scratch.json("explain 1 --region --json")[0]["name"], "1");
    let complaint = scratch.fails("explain 7", 1);
    assert_eq!(complaint, "halite: cannot explain node 7: node 7 is not in the cluster\n");
}

#[test]
fn fragmented_arena_reports_its_largest_piece() {
    let scratch = Scratch::new("pieces");
    scratch.ok("up --nodes 1 --arena 16M --detach");
    let file = scratch.write("file", &bytes(1_000_000)).display().to_string();
    let names = || (0..).map(|number| format!("r{number}"));
    let count =
        names().take_while(|name| scratch.run(&format!("put {name} {file}")).status.success()).count();
    names().take(count).step_by(2).for_each(|name| drop(scratch.ok(&format!("rm {name}"))));
    let file = scratch.write("file", &bytes(6_000_000)).display().to_string();
    let complaint = scratch.fails(&format!("put large {file}"), 1);
    assert!(complaint.contains("are free, in pieces of at most 1"), "{complaint}");
    assert!(!complaint.contains("--spread"), "no chunk fits into a piece: {complaint}");
    let doctor = String::from_utf8(scratch.run("doctor --arena 16M").stdout).unwrap();
    assert!(doctor.contains("warning  pieces: node 0 has "), "{doctor}");
    let status = String::from_utf8(scratch.run("status").stderr).unwrap();
    assert!(status.contains("free, in pieces of at most "), "{status}");
    scratch.ok("down");
}

#[test]
fn removed_region_does_not_exist() {
    let scratch = Scratch::new("remove");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", b"salt", "");
    scratch.ok("rm region");
    assert_eq!(names(&scratch), Vec::<String>::new());
    for line in ["get region", "stat region", "mv region --to 0", "grant region bob r", "explain region"] {
        scratch.fails_with(line, 1, "region");
    }
    assert_eq!(scratch.fails("rm region", 1), "halite: cannot remove \"region\": there is no such region\n");
}

#[test]
fn interrupted_put_leaves_nothing() {
    let scratch = Scratch::new("ended-put");
    let _up = scratch.up(2);
    for (signal, status) in [(Signal::KILL, None), (Signal::INT, Some(130))] {
        let mut put = scratch.command("put half -").stdin(Stdio::piped()).spawn().unwrap();
        put.stdin.as_mut().unwrap().write_all(&bytes(20 * MIB)).unwrap();
        assert!(used(&scratch) > 0, "half of the region has been allocated");
        assert_eq!(names(&scratch), Vec::<String>::new());
        rustix::process::kill_process(Pid::from_child(&put), signal).unwrap();
        // The standard input of `put` stays open until it has ended.
        let _stdin = put.stdin.take();
        assert_eq!(put.wait().unwrap().code(), status);
        eventually(|| used(&scratch) == 0);
    }
    check_round_trip(&scratch, "half", b"whole", "");
}

#[test]
fn permissions_are_granted_and_revoked() {
    let scratch = Scratch::new("grant");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", b"salt", "");
    let of = |who: &str| {
        let region = &scratch.json("stat region --json")[0];
        let grants = region["grants"].as_array().unwrap();
        let found = grants.iter().find(|grant| grant["who"] == who);
        found.map(|grant| grant["permissions"].as_str().unwrap().to_owned())
    };
    scratch.ok("grant region bob rw");
    assert_eq!(of("bob").as_deref(), Some("rw"));
    scratch.ok("revoke region bob w");
    assert_eq!(of("bob").as_deref(), Some("r"));
    scratch.ok("grant region bob none");
    assert_eq!(of("bob").as_deref(), Some("none"));
    scratch.ok("grant region everyone r");
    assert_eq!(scratch.json("stat region --json")[0]["everyone"], "r");

    // Another principal can only use what was granted.
    let node = join(&scratch, "eve");
    let session = node.blocking_session();
    assert!(session.map("region", Permissions::READ).is_ok());
    assert!(session.map("region", Permissions::WRITE).is_err());
}

/// A table hides blanks at the end of a cell.
#[test]
fn names_with_blanks_are_quoted() {
    let scratch = Scratch::new("blanks");
    let _up = scratch.up(1);
    let session = Session::attach(scratch.cluster()).unwrap();
    let names = [" ", "a b", "' '"];
    for name in names {
        session.alloc(Some(name), 8, Placement::Local, Permissions::empty()).unwrap();
    }
    let listed = scratch.ok("ls");
    for shown in ["\n' '  ", "\na b  ", "\n''\\'' '\\'''  "] {
        assert!(listed.contains(shown), "{shown:?}: {listed}");
    }
    assert_eq!(self::names(&scratch), [" ", "' '", "a b"]);
}

#[test]
fn move_continues_without_its_client() {
    let scratch = Scratch::new("hurried-move");
    let _up = scratch.up(2);
    // The name contains shell metacharacters; the message contains a command to paste.
    let name = "it's$(it)";
    check_round_trip(&scratch, name, &bytes(20 * MIB), "--node 0");
    let (mapper, mut mv, mut text) = interrupt_move(&scratch, name);
    let (pid, mut expect) = (Pid::from_child(&mv), |expected: &str| expect_line(&mut text, expected));
    // A second signal that follows at once is not taken for a second request.
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while !is_done.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(30) {
                // The move may have ended; then only this test waits for it.
                let _ = rustix::process::kill_process(pid, Signal::INT);
                std::thread::yield_now();
            }
        });
        expect(r"keeps moving to node 1; `halite stat 'it'\''s$(it)'`");
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(mv.wait().unwrap().code(), Some(130));
    mapper.signal(Signal::CONT);
    // The next move is queued behind the current one.
    scratch.ok(&format!("mv {name} --to 1"));
    assert_eq!(holders(&scratch.json(&format!("stat {name} --json"))[0]), [1]);
}

#[test]
fn interrupted_mv_ends_without_progress() {
    let scratch = Scratch::new("stalled-move");
    let node = |id| {
        let (dir, attach) = (scratch.cluster(), Some(AttachMode::Owner));
        // The stopped mapper holds up the move for longer than the command waits.
        let fence = Fence::Never;
        let config = Config { dir, node: Some(NodeId(id)), attach, fence, ..Config::default() };
        Node::embedded(config).unwrap()
    };
    let _nodes = [node(0), node(1)];
    check_round_trip(&scratch, "region", &bytes(20 * MIB), "--node 0");
    let (mapper, mut mv, mut text) = interrupt_move(&scratch, "region");
    expect_line(
        &mut text,
        "no byte has moved for 5 s; \"region\" keeps moving to node 1; `halite stat region` shows its place",
    );
    assert_eq!(mv.wait().unwrap().code(), Some(130));
    mapper.signal(Signal::CONT);
}

/// Starts a move to node 1, which waits for a stopped mapper, and interrupts it once.
fn interrupt_move(scratch: &Scratch, name: &str) -> (Running, Child, BufReader<ChildStderr>) {
    let mut mapper = Running::start(scratch, &format!("--embed get {name}"));
    mapper.byte();
    mapper.signal(Signal::STOP);
    let mut mv = scratch.command(&format!("mv {name} --to 1")).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = BufReader::new(mv.stderr.take().unwrap());
    let pid = Pid::from_child(&mv);
    while !catches(pid, Signal::INT) {
        assert!(mv.try_wait().unwrap().is_none(), "the move ended before it could be interrupted");
        std::thread::yield_now();
    }
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    expect_line(&mut text, "waiting until it is there");
    (mapper, mv, text)
}

#[track_caller]
fn expect_line(text: &mut BufReader<ChildStderr>, expected: &str) {
    let mut line = String::new();
    text.read_line(&mut line).unwrap();
    assert!(line.contains(expected), "{line}");
}

/// Returns true if a process catches a signal, according to its mask in `/proc`.
fn catches(pid: Pid, signal: Signal) -> bool {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn closed_standard_streams_are_errors() {
    let scratch = Scratch::new("closed");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", b"salt", "");
    let shell = |line: &str| {
        let halite = env!("CARGO_BIN_EXE_halite");
        let script = format!("exec {halite} --dir {} {line}", scratch.cluster().display());
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    for line in ["get region >&-", "ls >&-", "status >&-", "up --nodes 1 >&-"] {
        let output = shell(line);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(complaint.contains("standard output is closed"), "{line}: {complaint}");
    }
    let into = scratch.file("closed-but-not-needed");
    check_ok("2>&-", &shell("get region 2>&-"));
    check_ok("-o", &shell(&format!("get region -o {} >&-", into.display())));
    assert_eq!(std::fs::read(into).unwrap(), b"salt");
}

#[test]
fn get_writes_to_any_kind_of_file() {
    let scratch = Scratch::new("kinds");
    let _up = scratch.up(1);
    let content = bytes(3 * MIB);
    check_round_trip(&scratch, "region", &content, "");
    let fifo = scratch.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut get = scratch.command(&format!("get region -o {}", fifo.display())).spawn().unwrap();
    assert!(std::fs::read(&fifo).unwrap() == content);
    assert!(get.wait().unwrap().success());
    assert!(scratch.run("get region -o /dev/stdout").stdout == content);

    // A link to a file elsewhere.
    let old = scratch.write("old", b"old");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("old", scratch.file("link")).unwrap();
    scratch.ok(&format!("get region -o {}", scratch.file("link").display()));
    assert!(std::fs::read(&old).unwrap() == content);
    assert_eq!(std::fs::metadata(&old).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(std::fs::symlink_metadata(scratch.file("link")).unwrap().is_symlink());
    assert!(!has_partial(&scratch));
}

#[test]
fn get_keeps_read_only_files() {
    let scratch = Scratch::new("read-only");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", b"salt", "");
    let kept = scratch.write("kept", b"old");
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o444)).unwrap();
    let get = scratch.command(&format!("get region -o {}", kept.display()));
    // The superuser can write to read-only files, unless that capability is dropped.
    let ordinary = match rustix::process::getuid().is_root() {
        true => r#"exec setpriv --inh-caps=-all --bounding-set=-dac_override,-dac_read_search "$0" "$@""#,
        false => "true",
    };
    let output = after(ordinary, &get).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("kept: Permission denied"), "{complaint}");
    assert_eq!(std::fs::read(&kept).unwrap(), b"old");
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(after(ordinary, &get).status().unwrap().success());
    assert_eq!(std::fs::read(&kept).unwrap(), b"salt");
}

fn join(scratch: &Scratch, principal: &str) -> Node {
    let principal = (!principal.is_empty()).then(|| principal.to_owned());
    Node::embedded(Config { dir: scratch.cluster(), arena_bytes: 0, principal, ..Config::default() }).unwrap()
}

#[test]
fn failed_put_leaves_nothing() {
    let scratch = Scratch::new("failed-put");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "taken", b"salt", "");
    let file = scratch.write("file", &bytes(100));
    let file = file.display();
    let complaint = scratch.fails(&format!("put taken {file}"), 1);
    assert!(complaint.contains("exists already") && complaint.contains("halite rm"), "{complaint}");
    scratch.fails_with("put new /nonexistent", 1, "/nonexistent");
    scratch.fails_with("put new /", 1, "directory");
    scratch.fails_with(&format!("put new {file} --node 9"), 1, "node 9");

    // The file is larger than the arena: its length alone is enough to refuse it.
    let huge = std::fs::File::create(scratch.file("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    scratch.fails_with(&format!("put new {}", scratch.file("huge").display()), 1, "no space");

    // The kernel reports a length of 4096 bytes for a shorter file: `put` notices this only after it has made the
    // region.
    scratch.fails_with("put new /sys/kernel/mm/transparent_hugepage/enabled", 1, "became shorter");
    assert_eq!(names(&scratch), ["taken"]);
    assert_eq!(scratch.run("get taken").stdout, b"salt");
}

#[test]
fn failed_get_leaves_nothing() {
    let scratch = Scratch::new("failed-get");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", &bytes(3 * MIB), "");
    let complaint = scratch.fails("get region -o /dev/full", 1);
    assert!(complaint.contains("/dev/full") && complaint.contains("No space"), "{complaint}");
    scratch.fails_with("get region -o /", 1, "directory");
    scratch.fails_with("get region -o /nonexistent/file", 1, "/nonexistent/file");
    assert!(
        scratch
            .fails(&format!("get missing -o {}", scratch.file("missing").display()), 1)
            .contains("missing")
    );
    assert!(!scratch.file("missing").exists() && !has_partial(&scratch));
}

#[test]
fn get_detects_changed_bytes() {
    let scratch = Scratch::new("corrupt");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", &bytes(2 * MIB), "");
    let node = join(&scratch, "");
    let session = node.blocking_session();
    let lh = session.map("region", Permissions::READ | Permissions::WRITE).unwrap();
    let mut byte = [0];
    session.read(lh, MIB as u64 + 17, &mut byte).unwrap();
    session.write(lh, MIB as u64 + 17, &[!byte[0]]).unwrap();

    let into = scratch.file("damaged");
    scratch.fails_with(&format!("get region -o {}", into.display()), 1, "damaged");
    assert!(!into.exists() && !has_partial(&scratch));
    scratch.fails("get region", 1);

    session.write(lh, MIB as u64 + 17, &byte).unwrap();
    scratch.ok(&format!("get region -o {}", into.display()));
}

#[test]
fn get_copies_unverified_regions_with_a_note() {
    let scratch = Scratch::new("foreign");
    let _up = scratch.up(1);
    let node = join(&scratch, "");
    let session = node.blocking_session();
    for (name, len) in [("short", 5u64), ("long", 5000)] {
        let lh = session.alloc(Some(name), len, halite::Placement::Anywhere, Permissions::empty()).unwrap();
        session.write(lh, 0, b"brine").unwrap();
        let output = scratch.run(&format!("get {name}"));
        check_ok(name, &output);
        let mut expected = b"brine".to_vec();
        expected.resize(len as usize, 0);
        assert_eq!(output.stdout, expected);
        assert!(String::from_utf8_lossy(&output.stderr).contains("not verified"));
    }
}

/// Expects that `ls` lists names of more than one page, while other names come, go, and move to another node.
#[test]
fn ls_lists_each_name_once() {
    let scratch = Scratch::new("pages");
    let _up = scratch.up(2);
    let session = Session::attach(scratch.cluster()).unwrap();
    let alloc = |name: &str, node: u32| {
        let placement = halite::Placement::On(NodeId(node));
        session.alloc(Some(name), 64, placement, Permissions::READ).unwrap()
    };
    let staying: Vec<String> = (0..2500).map(|index| format!("name {index:04}")).collect();
    let handles: Vec<_> =
        staying.iter().zip(0..).map(|(name, index)| alloc(name, u32::from(index % 3 == 0))).collect();
    let going: Vec<_> = (0..100).map(|index| alloc(&format!("name {:04}a", 25 * index), 0)).collect();
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = session.list_page(after.as_deref()).unwrap();
        assert!(page.regions.len() <= 1024 && page.unreachable.is_empty());
        listed.extend(page.regions.into_iter().filter_map(|region| region.name));
        let Some(next) = page.next else { break };
        if after.is_none() {
            going.iter().for_each(|lh| session.free(*lh).unwrap());
            for index in 0..100 {
                alloc(&format!("name {:04}b", 25 * index), 1);
            }
            handles.iter().step_by(40).for_each(|lh| session.move_to(*lh, NodeId(1)).unwrap());
        }
        after = Some(next);
    }
    let is_staying = |name: &&String| !name.ends_with(['a', 'b']);
    assert!(listed.is_sorted() && listed.iter().filter(is_staying).eq(&staying));

    // A dropped future loses no page.
    let (mut pages, mut count) = (session.as_async().list_pages(), 0);
    loop {
        let polled = pin!(pages.next()).poll(&mut Context::from_waker(Waker::noop()));
        let page = match polled {
            Poll::Ready(page) => page,
            Poll::Pending => session.block_on(pages.next()),
        };
        let Some(page) = page.unwrap() else { break };
        count += page.regions.len();
    }
    assert_eq!(count, 2600);

    assert!(names(&scratch).iter().filter(is_staying).eq(&staying));
    let text = scratch.ok("ls");
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!((rows.len(), rows[0].split_whitespace().next()), (1 + 2600, Some("name")));
    assert!(rows[1..].iter().all(|row| row.starts_with("name ") && row.len() == rows[1].len()));
}

#[test]
fn listed_names_cannot_control_the_terminal() {
    let scratch = Scratch::new("control");
    let _up = scratch.up(1);
    let file = scratch.write("file", b"salt").display().to_string();
    let name = "gpj.\u{202e}\u{200b}\u{feff}\n\u{1b}[31m é";
    assert!(scratch.command("put").args([name, &file]).output().unwrap().status.success());
    let shown = "gpj.\\u{202e}\\u{200b}\\u{feff}\\n\\u{1b}[31m é";
    for line in ["ls", "stat"] {
        let mut command = scratch.command(line);
        let output = command.args((line == "stat").then_some(name)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(shown), "{line}: {text}");
    }
}
