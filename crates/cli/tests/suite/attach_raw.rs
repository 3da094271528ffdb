//! Clients that write the messages of attached sessions by themselves, unlike the library.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use halite::blocking::Session;
use halite::{AttachError, CallCause, Function, NodeId, Permissions, Placement, ServeOptions};

use rustix::process::Uid;

use crate::attach::{VERSION, as_user, connect, hello, message, shared_memory};
use crate::support::{Running, Scratch, eventually};

const LONG: Duration = Duration::from_secs(3600);

/// First bytes of requests: their kinds.
const ALLOC: u8 = 1;
const MAP: u8 = 2;
const BUFFER: u8 = 53;
const WATCH: u8 = 54;
const SERVE: u8 = 55;
const OPEN_PORT: u8 = 57;
const END: u8 = 59;
const RECV_NOTIFICATION: u8 = 61;
const RECV_CALLS: u8 = 63;
const RECV_MESSAGE: u8 = 67;
/// 64 requests of together 1 KiB, from all callers.
const OPTIONS: &[u8] = &[64, 0x80, 0x08, 0, 0];

/// A client that uses the socket only.
struct Raw {
    stream: UnixStream,
    last: u64,
    replies: BTreeMap<u64, Vec<u8>>,
}

impl Raw {
    fn attach(scratch: &Scratch) -> Raw {
        let mut raw = Raw { stream: connect(scratch), last: 0, replies: BTreeMap::new() };
        raw.stream.write_all(&hello(VERSION)).unwrap();
        raw.reply(0);
        raw
    }

    /// Sends a request, and returns its id.
    fn send(&mut self, kind: u8, fields: &[u8]) -> u64 {
        self.last += 1;
        self.stream.write_all(&message(self.last, &[&[kind], fields].concat())).unwrap();
        self.last
    }

    /// Returns the body of a reply.
    fn reply(&mut self, id: u64) -> Vec<u8> {
        loop {
            if let Some(reply) = self.replies.remove(&id) {
                return reply;
            }
            let mut header = [0; 12];
            self.stream.read_exact(&mut header).unwrap();
            let (len, of) = header.split_first_chunk().unwrap();
            let mut body = vec![0; u32::from_le_bytes(*len) as usize];
            self.stream.read_exact(&mut body).unwrap();
            self.replies.insert(u64::from_le_bytes(of.try_into().unwrap()), body);
        }
    }

    /// Sends a request that must succeed, and returns its result.
    fn ask(&mut self, kind: u8, fields: &[u8]) -> Vec<u8> {
        let id = self.send(kind, fields);
        let reply = self.reply(id);
        assert_eq!(reply[0], 0, "kind {kind}: {reply:?}");
        reply[1..].to_vec()
    }
}

#[test]
fn an_object_that_ends_during_its_receive_ends_the_receive() {
    let scratch = Scratch::new("ends");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let polite = Session::attach(scratch.cluster()).unwrap();
    let used = || {
        let principals = polite.principals().unwrap();
        principals.iter().map(|of| of.used.of(halite::Quota::Services)).sum::<u64>()
    };
    let mut raw = Raw::attach(&scratch);
    // The handle of a region of 64 bytes.
    let lh = raw.ask(ALLOC, &[0, 64, 0, 0, 0]);
    let opened = [(SERVE, [&[7], OPTIONS].concat()), (OPEN_PORT, [&[7], OPTIONS].concat()), (WATCH, lh)];
    let receives = [RECV_CALLS, RECV_MESSAGE, RECV_NOTIFICATION];
    for ((open, fields), receive) in opened.into_iter().zip(receives) {
        let object = raw.ask(open, &fields);
        let received = raw.send(receive, &[&object[..], &[1][..usize::from(receive == RECV_CALLS)]].concat());
        let ended = raw.send(END, &object);
        raw.reply(ended);
        assert_eq!(raw.reply(received)[0], 1, "kind {receive} failed");
    }
    assert_eq!(used(), 0);
    let called = polite.call(NodeId(0), Function(7), b"", LONG).unwrap_err();
    assert_eq!(called.cause, CallCause::UnknownFunction);
    scratch.ok("down");
}

#[test]
fn descriptors_that_a_user_does_not_receive_leave_room_for_another_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act as several users");
        return;
    }
    let (nobody, daemon) = (65_534, 1);
    let scratch = Scratch::new("flight");
    chown(scratch.file(""), Some(nobody), None).unwrap();
    let mut node = Command::new("prlimit");
    let as_nobody = as_user(nobody, &scratch.command("node --id 0 --arena 64M --attach-mode 0666"));
    node.arg("--nofile=256:256").arg(as_nobody.get_program()).args(as_nobody.get_args()).env_clear();
    let _node = Running::of(node);
    eventually(|| UnixStream::connect(scratch.cluster().join("attach/node-0.sock")).is_ok());

    // The attacker reads nothing, and half of its sessions end: the node finds an invalid message.
    let opened = message(1, &[BUFFER, 64]);
    let attack: Vec<u8> = [hello(VERSION), opened.repeat(16), message(2, &[0xFF])].concat();
    let clients: Vec<UnixStream> = (0..100)
        .map(|round| {
            let mut stream = connect(&scratch);
            // The node ends sessions while they send.
            let _ = stream.write_all(&attack[..attack.len() - 13 * (round % 2)]);
            stream
        })
        .collect();
    // The node has handled all of them once it has handled a later one.
    Raw::attach(&scratch);
    let output = as_user(daemon, &scratch.command("explain 0")).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("memory shared with node 0"), "{shown}{output:?}");
    // The same user's next clients get shared memory once the others have ended.
    drop(clients);
    eventually(|| {
        let session = Session::attach(scratch.cluster()).unwrap();
        session.explain_peer(NodeId(0)).unwrap().requests_by.is_some_and(|by| by.contains("memory shared"))
    });
}

#[test]
fn a_cancel_directly_behind_the_line_of_a_call_ends_the_call() {
    let scratch = Scratch::new("cancels");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let polite = Session::attach(scratch.cluster()).unwrap();
    // Takes no calls.
    let _server = polite.serve(Function(7), ServeOptions::default()).unwrap();
    let mut stream = connect(&scratch);
    stream.write_all(&hello(VERSION)).unwrap();
    let [requests, replies] = shared_memory(&stream);

    const SLOT: u64 = 3;
    // A call of function 7 of node 0, without input; the timeout is long.
    let mut line = [0_u64; 8];
    line[0] = SLOT << 24 | 8 << 16 | 1;
    line[1..4].copy_from_slice(&[7, u64::from(u32::MAX) << 32, u64::MAX]);
    let line: Vec<u8> = line.into_iter().flat_map(u64::to_le_bytes).collect();
    rustix::io::pwrite(&requests, &line, 64).unwrap();
    let cancel = message(1 << 63 | SLOT, &[0]);
    stream.write_all(&[message(u64::MAX, &[]), cancel].concat()).unwrap();
    eventually(|| word(&replies, 64 * (1 + SLOT)) & 0xFFFF == 1);
    scratch.ok("down");
}

#[test]
fn a_client_attaches_only_to_a_listener_of_the_directorys_owner() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act as several users");
        return;
    }
    const THEIRS: u32 = 65_534;
    let scratch = Scratch::new("strangers");
    scratch.ok("up --nodes 1 --arena 64M --detach --attach-mode 0666");
    let refused = |dir: &Path| Session::attach(dir).unwrap_err();
    let sockets = scratch.cluster().join("attach");
    // A user's directory, where the socket is a link to another user's.
    let theirs = scratch.file("theirs");
    std::fs::create_dir_all(theirs.join("attach")).unwrap();
    symlink(sockets.join("node-0.sock"), theirs.join("attach/node-0.sock")).unwrap();
    chown(&theirs, Some(THEIRS), None).unwrap();
    let expected = AttachError::Stranger { dir: theirs.clone(), uid: 0, owner: THEIRS };
    assert_eq!(refused(&theirs).to_string(), expected.to_string());
    // Another user has put a socket into the owner's directory.
    let listener = UnixListener::bind(scratch.file("socket")).unwrap();
    let linked = scratch.file("linked");
    std::fs::create_dir_all(linked.join("attach")).unwrap();
    symlink(scratch.file("socket"), linked.join("attach/node-0.sock")).unwrap();
    chown(&linked, Some(THEIRS), None).unwrap();
    assert!(matches!(refused(&linked), AttachError::Stranger { .. }));
    // A node of an older version.
    chown(&linked, Some(0), None).unwrap();
    let older = std::thread::spawn(move || {
        // The first connection is the stranger's, which has ended.
        for mut node in listener.incoming().take(2).flatten() {
            let _ = node.write_all(&hello(VERSION - 1));
        }
    });
    let expected = AttachError::OtherVersion { dir: linked.clone(), theirs: VERSION - 1, ours: VERSION };
    assert_eq!(refused(&linked).to_string(), expected.to_string());
    older.join().unwrap();
    // A link instead of the folder of sockets, or of the directory.
    for (dir, link) in [("folder", "folder/attach"), ("whole", "whole")] {
        let link = scratch.file(link);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(if dir == "whole" { scratch.cluster() } else { sockets.clone() }, &link).unwrap();
        let refused = refused(&scratch.file(dir));
        assert!(matches!(refused, AttachError::Io { .. }), "{refused}");
    }
    // The default directory of a user is another user's.
    let uid = 3_000_000_000 + std::process::id();
    let default = PathBuf::from(format!("/tmp/halite-{uid}"));
    std::fs::create_dir(&default).unwrap();
    let refused = as_thread_of(uid, || Session::attach(&default)).unwrap_err();
    std::fs::remove_dir(&default).unwrap();
    assert!(matches!(refused, AttachError::ForeignDefault { owner: 0, .. }), "{refused}");
    scratch.ok("down");
}

/// The longest of a user's turns is about one slice of one of its sessions, and not one of each.
#[test]
#[ignore = "measures: .ci/deep slow"]
fn many_busy_sessions_do_not_slow_another_user_down() {
    const SESSIONS: usize = 64;
    const LINES: usize = 32;
    const LEN: usize = 1 << 20;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act as several users");
        return;
    }
    let scratch = Scratch::new("many");
    scratch.ok("up --nodes 1 --arena 128M --detach --attach-mode 0666");
    let owner = Session::attach(scratch.cluster()).unwrap();
    owner.alloc(Some("word"), 8, Placement::Local, Permissions::READ).unwrap();
    owner.alloc(Some("long"), LEN as u64, Placement::Local, Permissions::READ).unwrap();
    let polite = as_thread_of(1, || Session::attach(scratch.cluster())).unwrap();
    let word_of = polite.map("word", Permissions::READ).unwrap();

    let mut sessions: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let mut raw = Raw { stream: connect(&scratch), last: 0, replies: BTreeMap::new() };
            raw.stream.write_all(&hello(VERSION)).unwrap();
            let [requests, replies] = shared_memory(&raw.stream);
            let lh = numbers(&raw.ask(MAP, b"\x04long\x01"));
            let buffer = numbers(&raw.ask(BUFFER, &[0x80, 0x80, 0x40]));
            for slot in 0..LINES as u64 {
                // A read of the whole region into the buffer.
                let head = slot << 24 | 6 << 16 | 1;
                let line = [head, lh[1] << 32 | lh[0], lh[2], 0, buffer[0], 0, LEN as u64, 0];
                let line: Vec<u8> = line.into_iter().flat_map(u64::to_le_bytes).collect();
                rustix::io::pwrite(&requests, &line, 64 * (1 + slot)).unwrap();
            }
            (raw, replies)
        })
        .collect();
    for (raw, _) in &mut sessions {
        raw.stream.write_all(&message(u64::MAX, &[])).unwrap();
    }
    // Reads while the first session's next line is executed, slice by slice. Only the most count, because other
    // processes may take the core from the reader.
    let (mut reads, mut most, mut lines) = (0, 0, 0);
    while lines < LINES as u64 {
        polite.read(word_of, 0, &mut [0; 8]).unwrap();
        reads += 1;
        if word(&sessions[0].1, 64 * (1 + lines)) & 0xFFFF == 1 {
            (most, reads, lines) = (most.max(reads), 0, lines + 1);
        }
    }
    // One read after a slice of every session would be as many as a line has slices.
    let slices = LEN / (64 << 10);
    assert!(most >= 4 * slices, "{most} reads during {slices} slices of each of {SESSIONS} sessions");
    scratch.ok("down");
}

/// Runs `attach` as another user of this host: the kernel reports the user of the thread that connects.
fn as_thread_of<T: Send>(uid: u32, attach: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let (root, other) = (Uid::ROOT, Uid::from_raw(uid));
        rustix::thread::set_thread_res_uid(other, other, root).expect("root may act as another user");
        attach()
    };
    std::thread::scope(|scope| scope.spawn(act).join()).expect("the thread does not panic")
}

/// Returns the numbers in a reply, each of which has seven bits per byte.
fn numbers(bytes: &[u8]) -> Vec<u64> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7F));
    bytes.split_inclusive(|byte| byte & 0x80 == 0).map(number).collect()
}

/// Returns a word of shared memory.
fn word(memory: &OwnedFd, at: u64) -> u64 {
    let mut word = [0; 8];
    rustix::io::pread(memory, &mut word, at).unwrap();
    u64::from_le_bytes(word)
}
