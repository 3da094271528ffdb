//! Sessions of this process that are attached to nodes in other processes.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use halite::blocking::Session;
use halite::{
    AccessCause, AttachError, CallCause, Function, NodeId, Permissions, Placement, Priority, QosError,
    ReadOp, RegionCause, ServeOptions, Who, WriteOp,
};

use fastrand::Rng;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};

use crate::support::{Process, Running, Scratch, bytes, eventually};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn attach_skips_a_stopped_node() {
    let scratch = Scratch::new("silent");
    scratch.ok("up --nodes 2 --detach");
    let stopped = Process::open(scratch.pid(0));
    stopped.stop();
    let session = Session::attach(scratch.cluster()).unwrap();
    assert_eq!(session.node(), NodeId(1));
    let shown = scratch.run("status --principals");
    let text = String::from_utf8(shown.stderr).unwrap();
    assert!(text.contains("node 0 ") && text.contains("shows no principals"), "{text}");
    // The other node kills it after a lease.
    stopped.end();
}

#[test]
fn attach_does_not_wait_behind_others_for_a_stopped_node() {
    let scratch = Scratch::new("backlog");
    scratch.ok("up --nodes 1 --detach");
    let node = Process::open(scratch.pid(0));
    node.stop();
    let address = SocketAddrUnix::new(scratch.cluster().join("attach/node-0.sock")).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let waiting = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::connect(&socket, &address).map(|()| socket)
    };
    let held: Vec<_> = std::iter::from_fn(|| waiting().ok()).collect();
    let refused = Session::attach(scratch.cluster()).unwrap_err();
    assert!(matches!(refused, AttachError::Silent { .. }), "{refused}");
    drop(held);
    node.end();
}

#[test]
fn attached_session_uses_a_cluster() {
    let scratch = Scratch::new("attach");
    let refused = Session::attach(scratch.cluster()).unwrap_err();
    assert!(matches!(refused, AttachError::NoNode { .. }), "{refused}");
    scratch.ok("up --nodes 2 --detach");
    let session = Session::attach(scratch.cluster()).unwrap();

    // Bytes of any length, on either node.
    let content = bytes(3 << 20);
    let rights = Permissions::READ | Permissions::WRITE;
    let lh = session.alloc(Some("salt"), 4 << 20, Placement::On(NodeId(1)), rights).unwrap();
    session.write(lh, 1, &content).unwrap();
    let other = Session::attach_to(scratch.cluster(), NodeId(1)).unwrap();
    let theirs = other.map("salt", Permissions::READ).unwrap();
    let mut read = vec![0; content.len()];
    other.read(theirs, 1, &mut read).unwrap();
    assert!(read == content);
    let (mut one, mut two) = ([0; 4], [0; 4]);
    session
        .write_batch(&[WriteOp { lh, offset: 0, from: b"p" }, WriteOp { lh, offset: 1, from: b"inch" }])
        .unwrap();
    let reads = &mut [ReadOp { lh, offset: 0, into: &mut one }, ReadOp { lh, offset: 1, into: &mut two }];
    session.read_batch(reads).unwrap();
    assert_eq!((&one, &two), (b"pinc", b"inch"));
    session.fill(lh, 0, 8, 0).unwrap();
    assert_eq!((session.fetch_add(lh, 0, 5).unwrap(), session.compare_swap(lh, 0, 5, 9).unwrap()), (0, 5));
    session.copy(lh, 64, lh, 0, 8).unwrap();
    assert_eq!(other.wait_until(theirs, 64, |word| word == 9).unwrap(), 9);

    // The same permissions, names and errors as those of nodes.
    assert_eq!(other.write(theirs, 0, b"x").unwrap_err().to_string(), {
        let missing = Permissions::WRITE;
        let cause = AccessCause::PermissionDenied { missing };
        let region = other.explain(theirs).unwrap().region;
        format!("cannot write 1 byte at offset 0 of region {region}: {cause}")
    });
    session.revoke(lh, Who::Everyone, rights).unwrap();
    assert_eq!(session.list().unwrap()[0].name.as_deref(), Some("salt"));
    assert_eq!(other.read(lh, 0, &mut one).unwrap_err().cause, AccessCause::ForeignHandle);
    assert_eq!(session.status().unwrap().len(), 2);

    // Calls between attached sessions, and a command that is a node.
    let server = session.serve(Function(7), ServeOptions::default()).unwrap();
    let pending = other.post_call(NodeId(0), Function(7), b"salt", 64, LONG).unwrap();
    let call = server.recv().unwrap();
    let shout = call.input().to_ascii_uppercase();
    call.reply(&shout).unwrap();
    assert_eq!(pending.answer().unwrap(), b"SALT");
    assert!(scratch.ok("ls").contains("salt"));

    // The program lists the sessions of each node.
    let listed = |node: usize| scratch.nodes()[node]["sessions"].clone();
    assert_eq!(
        (listed(0)[0]["pid"].as_u64(), listed(0).as_array().map(Vec::len)),
        (Some(std::process::id().into()), Some(1))
    );
    assert_eq!(listed(1)[0]["operations"], 0);
    let status = scratch.ok("status");
    assert!(status.contains("requests by") && status.contains("shared memory"), "{status}");

    // What a session holds ends with it.
    let held = session.lock("till").unwrap().keep();
    drop((server, session));
    assert!(other.lock("till").unwrap().token() > held);
    wait_for_session_end(&other);

    // A node that ends fails the operations of its sessions at once.
    let waiting = std::thread::spawn({
        let (session, cluster) = (other.clone(), scratch.cluster());
        move || {
            (session.wait_until(theirs, (4 << 20) - 8, |word| word != 0), Session::attach(cluster).is_ok())
        }
    });
    Process::open(scratch.pid(1)).kill();
    let (ended, is_served) = waiting.join().unwrap();
    assert_eq!(ended.unwrap_err().cause, AccessCause::NodeClosed(NodeId(1)));
    assert!(is_served, "the other node accepts sessions");
    assert_eq!(other.map("salt", Permissions::READ).unwrap_err().cause, RegionCause::NodeClosed(NodeId(1)));
    scratch.ok("down");
}

/// The user `nobody` of this host, and its number.
const OTHER: (&str, u32) = ("nobody", 65_534);

/// Returns a command that another user of this host runs.
pub(crate) fn as_user(id: u32, command: &Command) -> Command {
    let mut other = Command::new("setpriv");
    other.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"]);
    other.arg(command.get_program()).args(command.get_args()).env_clear().stdin(Stdio::null());
    other
}

/// Runs a command as another user of this host; returns its output and its error message.
fn run_as_other(scratch: &Scratch, line: &str) -> (bool, String, String) {
    let output = as_user(OTHER.1, &scratch.command(line)).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn other_user_needs_grants() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act as two users");
        return;
    }
    let scratch = Scratch::new("users");
    scratch.ok("up --nodes 1 --detach");
    let (_, _, complaint) = run_as_other(&scratch, "ls");
    assert!(complaint.contains("--attach-mode 0666"), "{complaint}");
    scratch.ok("down");

    scratch.ok("up --nodes 1 --detach --attach-mode 0666 --quotas region_bytes=64M,waits=7");
    let notes = scratch.write("notes", b"for all eyes");
    scratch.ok(&format!("put notes {}", notes.display()));
    scratch.ok(&format!("put diary {}", notes.display()));
    scratch.ok(&format!("grant notes {} r", OTHER.0));
    assert_eq!(run_as_other(&scratch, "get notes"), (true, "for all eyes".into(), String::new()));
    for refused in ["get diary", "rm notes", "mv notes --to 0", "grant diary nobody r"] {
        let (is_done, _, complaint) = run_as_other(&scratch, refused);
        assert!(!is_done && complaint.contains("permission denied"), "{refused}: {complaint}");
    }
    // Commands that show the cluster, and applications, work for other users, too.
    for (line, wanted) in [
        ("status", "alive"),
        ("top --once", "alive"),
        ("explain notes", "node 0"),
        ("explain 0", "node 0"),
        ("doctor", "1 node answers"),
        ("status --principals", "0 of 7"),
        ("run log --writers 1 --readers 1 --size 16 --seconds 0.1", "verified"),
        ("run wordcount /etc/passwd --top 1", "verified"),
    ] {
        let (_, shown, complaint) = run_as_other(&scratch, line);
        assert!(shown.contains(wanted), "{line}: {shown}{complaint}");
    }
    let (_, shown, _) = run_as_other(&scratch, "status --principals --json");
    let used: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let of = (&used["principal"], &used["used"]["sessions"], &used["max"]["region_bytes"]);
    assert_eq!(of, (&OTHER.0.into(), &1.into(), &(64 << 20).into()));
    let huge = scratch.write("huge", &vec![7; 65 << 20]);
    let (_, _, complaint) = run_as_other(&scratch, &format!("put huge {}", huge.display()));
    assert!(complaint.contains("quota `region_bytes` of 67108864 bytes"), "{complaint}");
    // Nothing else in the directory is open to other users: not its list, and no file or socket but the one.
    for path in [scratch.cluster(), scratch.cluster().join("attach/node-0.sock")] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if path == scratch.cluster() { 0o711 } else { 0o666 }, "{}", path.display());
    }
    for entry in std::fs::read_dir(scratch.cluster()).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, if entry.file_name() == "attach" { 0o055 } else { 0 }, "{:?}", entry.file_name());
    }
    for alone in ["--embed ls", "drain 0", "forget 0", "down"] {
        let (is_done, _, complaint) = run_as_other(&scratch, alone);
        assert!(!is_done && complaint.contains("belongs to user 0"), "{alone}: {complaint}");
    }
    // After the node is killed, its user starts another one.
    Process::open(scratch.pid(0)).kill();
    let (_, _, complaint) = run_as_other(&scratch, "ls");
    assert!(complaint.contains("user 0: only this user can start one"), "{complaint}");
    scratch.ok("up --nodes 1 --detach --attach-mode 0666");
    assert!(run_as_other(&scratch, "status --json").0);
    scratch.ok("down");
    assert_eq!(std::fs::metadata(scratch.cluster()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn low_priority_principal_cannot_use_high_priority() {
    let scratch = Scratch::new("low");
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    scratch.ok(&format!("up --nodes 2 --arena 64M --detach --low-priority batch,{}", user.trim()));
    let session = Session::attach(scratch.cluster()).unwrap();
    let low = session.with_priority(Priority::Low).unwrap();
    for session in [&session, &low] {
        assert_eq!(session.with_priority(Priority::High).err(), Some(QosError::HighDenied));
        assert_eq!(session.explain_peer(NodeId(1)).unwrap().qos.priority, Priority::Low);
    }
    let text = scratch.write("text", b"salt");
    scratch.fails_with(&format!("--priority high put text {}", text.display()), 1, "`low_priority`");
    scratch.ok(&format!("--priority low put text {}", text.display()));
    assert_eq!(scratch.ok("get text"), "salt");
    scratch.fails_with("set qos hw-sep --node 7", 1, "node 7 does not run on this host");
    scratch.fails_with("set qos hw-sep --node 0", 1, "`--rate`");
    scratch.ok("set qos hw-sep --node 0 --rate 2M");
    scratch.ok("set qos hw-sep --node 0");
    let explained = scratch.ok("explain text");
    assert!(explained.contains("priority: low, under policy hw-sep of node 0"), "{explained}");
    scratch.ok("down");
}

#[test]
fn killed_client_leaves_no_mapping() {
    let scratch = Scratch::new("killed");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let text = scratch.write("text", "salt\n".repeat(1 << 20).as_bytes());
    scratch.ok(&format!("put region {}", text.display()));
    let mappings = || scratch.nodes()[0]["mappings"].as_u64().unwrap();
    // The test does not read the output, so the client holds a handle while most of the bytes are unwritten.
    let mut client = Running::start(&scratch, "get region");
    assert_eq!(client.line(), "salt\n");
    assert_eq!(mappings(), 1);
    client.kill();
    eventually(|| mappings() == 0);
    scratch.ok("down");
}

/// A message of an attached session: length of the body, id, body.
pub(crate) fn message(id: u64, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], &id.to_le_bytes(), body].concat()
}

/// The first message of an attached session.
pub(crate) fn hello(version: u16) -> Vec<u8> {
    message(0, &[b"halite\0s".as_slice(), &version.to_le_bytes()].concat())
}

/// Connects to the socket for sessions of node 0.
pub(crate) fn connect(scratch: &Scratch) -> UnixStream {
    let stream = UnixStream::connect(scratch.cluster().join("attach/node-0.sock")).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Numbers of rounds: so many, or as many as fit into the seconds in `HALITE_GARBAGE_S` (`.ci/deep garbage`).
fn rounds(usual: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("HALITE_GARBAGE_S").ok().map(|seconds| seconds.parse().unwrap());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |&round| until.map_or(round < usual, |until| Instant::now() < until))
}

#[test]
fn garbage_on_a_socket_ends_only_its_session() {
    /// Number of kinds of requests, and the kind that drains the node.
    const REQUESTS: u8 = 74;
    const DRAIN: u8 = 16;
    let scratch = Scratch::new("garbage");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let polite = Session::attach(scratch.cluster()).unwrap();
    let lh = polite.alloc(Some("salt"), 4096, Placement::Local, Permissions::all()).unwrap();
    let connect = || connect(&scratch);
    // An old version gets the node's version, and then the end.
    let mut old = connect();
    old.write_all(&hello(0)).unwrap();
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    let version = answer.last_chunk().map(|version| u16::from_le_bytes(*version)).unwrap();
    assert_eq!(answer, hello(version));

    let mut random = Rng::with_seed(40);
    for round in rounds(400) {
        let mut stream = connect();
        let mut sent = if round % 4 > 0 { hello(version) } else { Vec::new() };
        for id in 0..random.u64(1..8) {
            let mut body: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            // Mostly requests that exist, with few bytes that are far from zero.
            body.iter_mut().skip(1).for_each(|byte| *byte = if random.bool() { *byte % 3 } else { *byte });
            if let Some(kind) = body.first_mut() {
                *kind %= REQUESTS;
                // The node's own user may send the request to drain it.
                if *kind == DRAIN {
                    *kind = 0;
                }
            }
            sent.extend(message(id, &body));
        }
        if round % 4 == 3 {
            sent.truncate(random.usize(0..sent.len()));
        }
        // The node may have ended the connection already.
        let _ = stream.write_all(&sent);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // A message that claims more than any message has ends its connection, too.
    let mut long = connect();
    long.write_all(&[&hello(version)[..], &[0xFF; 12]].concat()).unwrap();
    long.read_to_end(&mut Vec::new()).unwrap();
    // So does a wake-up, which has no body.
    let mut wake = connect();
    wake.write_all(&[hello(version), message(u64::MAX, b"body")].concat()).unwrap();
    wake.read_to_end(&mut Vec::new()).unwrap();
    // Connections that never say hello make room for others.
    let mut silent: Vec<_> = (0..300).map(|_| connect()).collect();
    silent[0].read_to_end(&mut Vec::new()).unwrap();
    drop(Session::attach(scratch.cluster()).unwrap());

    polite.write(lh, 0, b"still here").unwrap();
    assert_eq!(
        polite.list().unwrap().iter().filter(|region| region.name.as_deref() == Some("salt")).count(),
        1
    );
    scratch.ok("down");
}

/// Version of the protocol of sessions.
pub(crate) const VERSION: u16 = 10;

/// A socket that blocks its last closer for minutes, because its peer does not read.
fn lingering_socket() -> (TcpListener, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(600))).unwrap();
    (listener, stream)
}

#[test]
fn descriptors_from_clients_do_not_block_the_node() {
    let scratch = Scratch::new("descriptors");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let polite = Session::attach(scratch.cluster()).unwrap();
    let lh = polite.alloc(None, 4096, Placement::Local, Permissions::all()).unwrap();
    let hello = hello(VERSION);
    let pid = scratch.pid(0);
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let open_before = open();
    let send = |before: &[u8], fd: OwnedFd| {
        let mut stream = connect(&scratch);
        stream.write_all(before).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&stream, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
        stream
    };
    let (_listener, lingering) = lingering_socket();
    // Until the node runs again, it closes nothing: its reference to the descriptor becomes the last one.
    let node = Process::open(pid);
    node.stop();
    let mut stream = send(b"", lingering.into());
    node.resume();
    let _ = stream.read_to_end(&mut Vec::new());
    // More than the descriptors that the node closes meanwhile: each instead of a hello, or after one.
    for round in 0..40 {
        let before = &hello[..hello.len() * (round % 2)];
        let _ = send(before, File::open("/dev/null").unwrap().into()).read_to_end(&mut Vec::new());
        polite.write(lh, 0, b"still here").unwrap();
    }
    eventually(|| open() <= open_before);
    scratch.ok("down");
}

#[test]
fn long_operations_do_not_starve_other_sessions() {
    const LEN: u64 = 64 << 20;
    let scratch = Scratch::new("turns");
    scratch.ok("up --nodes 1 --arena 128M --detach");
    let [polite, greedy] = [0, 1].map(|_| Session::attach(scratch.cluster()).unwrap());
    let lh = greedy.alloc(Some("filled"), LEN, Placement::Local, Permissions::all()).unwrap();
    let seen = polite.map("filled", Permissions::READ).unwrap();
    let mut fills: Vec<_> = (0..100).map(|_| Box::pin(greedy.as_async().fill(lh, 0, LEN, 1))).collect();
    let mut continue_all = || {
        fills.retain_mut(|fill| fill.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        fills.len()
    };
    continue_all();
    (0..20).for_each(|_| polite.read(seen, 0, &mut [0]).unwrap());
    assert!(continue_all() > 0, "all fills ended before 20 reads of another session");
    while continue_all() > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    scratch.ok("down");
}

/// Waits until the function of an ended session is free.
fn wait_for_session_end(other: &Session) {
    eventually(|| other.call(NodeId(0), Function(7), b"", LONG).is_err_and(|error| !error.may_have_run));
}

/// Says hello, and returns the memory that the node shares: that of requests, and that of replies.
pub(crate) fn shared_memory(stream: &UnixStream) -> [OwnedFd; 2] {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut hello = [0; 4096];
    let parts = &mut [IoSliceMut::new(&mut hello)];
    rustix::net::recvmsg(stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights.collect::<Vec<_>>()),
        _ => None,
    });
    rights.unwrap().try_into().unwrap()
}

#[test]
fn garbage_in_shared_memory_ends_only_its_session() {
    let scratch = Scratch::new("memory");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let polite = Session::attach(scratch.cluster()).unwrap();
    let lh = polite.alloc(None, 4096, Placement::Local, Permissions::all()).unwrap();
    // Some of the calls reach a function of another session.
    let server = polite.serve(Function(1), ServeOptions::default()).unwrap();
    let serving = std::thread::spawn({
        let server = server.clone();
        move || {
            let mut call = server.recv();
            while let Ok(received) = call {
                call = server.reply_and_recv(received, b"salt");
            }
        }
    });
    let hello = hello(VERSION);
    let wake = message(u64::MAX, &[]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut random = Rng::with_seed(41);
    for round in rounds(100) {
        let mut stream = connect(&scratch);
        stream.write_all(&hello).unwrap();
        let [requests, replies] = shared_memory(&stream);
        // The size is fixed, and replies are the node's.
        let len = rustix::fs::fstat(&requests).unwrap().st_size as u64;
        for fd in [&requests, &replies] {
            assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
            assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
        }
        assert_eq!(rustix::io::pwrite(&replies, &[1; 64], 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::fallocate(&replies, punch, 0, 4096), Err(Errno::PERM));

        // A thread changes lines and data all the time, while the node serves them.
        let racing = std::thread::spawn({
            let (fd, mut random) = (requests.try_clone().unwrap(), Rng::with_seed(round));
            move || {
                for _ in 0..200 {
                    let line: Vec<u8> = (0..64).map(|_| random.u8(..)).collect();
                    rustix::io::pwrite(&fd, &line, 64 * random.u64(0..64)).unwrap();
                    rustix::io::pwrite(&fd, &line, random.u64(4096..len - 64)).unwrap();
                }
            }
        });
        for request in 0..32_u64 {
            // Mostly requests that exist, in the lines where the node looks for them.
            let kind = u64::from(random.u8(0..11)) << 16 | random.u64(0..34) << 24;
            let lens = u64::from(random.u16(..)) << 32 | (random.u64(0..2) * u64::from(random.u16(..))) << 48;
            let mut line = (1 | kind | lens).to_le_bytes().to_vec();
            // Short words are valid numbers and lengths of calls.
            let is_short = random.bool();
            line.extend((8..64).map(|at| if is_short && at % 8 != 0 { 0 } else { random.u8(..3) }));
            rustix::io::pwrite(&requests, &line, 64 * (1 + request)).unwrap();
            if random.u8(..) < 30 {
                let _ = rustix::fs::fallocate(&requests, punch, 0, len);
            }
            let _ = stream.write_all(&wake);
            let number = random.u64(..);
            assert_eq!(polite.fetch_add(lh, 0, number).unwrap(), polite.fetch_add(lh, 8, number).unwrap());
        }
        racing.join().unwrap();
    }
    let content = bytes(4096);
    polite.write(lh, 0, &content).unwrap();
    let mut read = vec![0; content.len()];
    polite.read(lh, 0, &mut read).unwrap();
    assert!(read == content);
    assert_eq!(polite.call(NodeId(0), Function(1), b"", LONG).unwrap(), b"salt");
    server.close();
    serving.join().unwrap();
    scratch.ok("down");
}

/// Returns the address range of each mapping of this process with this name.
fn mapped(name: &str) -> Vec<Range<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (begin, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        u64::from_str_radix(begin, 16).unwrap()..u64::from_str_radix(end, 16).unwrap()
    };
    maps.lines().filter(|line| line.contains(name)).map(range).collect()
}

/// Returns the memory of this process.
fn memory() -> File {
    File::options().read(true).write(true).open("/proc/self/mem").unwrap()
}

/// Returns a word of this process; `None` if it is not mapped.
fn word(memory: &File, at: u64) -> Option<u64> {
    let mut word = [0; 8];
    memory.read_exact_at(&mut word, at).ok().map(|()| u64::from_le_bytes(word))
}

/// Returns the address of the mapping with this name that has a line which contains the word `mark`, and the index of the
/// line. Sessions of other tests have such mappings, too, and may end meanwhile.
fn line_with(mark: u64, name: &str) -> (u64, u64) {
    let memory = memory();
    let is_marked =
        |line: u64| (0..8).any(|index| word(&memory, line + 8 * index).is_some_and(|word| word == mark));
    let find =
        |range: Range<u64>| Some((range.start, (1..=32).find(|line| is_marked(range.start + 64 * line))?));
    mapped(name).into_iter().find_map(find).unwrap()
}

/// A client that changes the memory which its own session shares with the node.
#[test]
fn a_node_refuses_accesses_outside_of_a_buffer() {
    const LEN: usize = 100_000;
    const MARK: u64 = 0x6D61_726B;
    let scratch = Scratch::new("buffers");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let polite = Session::attach(scratch.cluster()).unwrap();
    let theirs = polite.alloc(None, LEN as u64, Placement::Local, Permissions::all()).unwrap();
    let session = Session::attach(scratch.cluster()).unwrap();
    let lh = session.alloc(None, LEN as u64, Placement::Local, Permissions::all()).unwrap();
    session.fetch_add(lh, 0, MARK).unwrap();
    assert_eq!(session.fetch_add(lh, 0, 0).unwrap(), MARK);
    let (requests, replies) = (line_with(MARK, "halite-requests").0, line_with(MARK, "halite-replies").0);
    let mut buffer = session.buffer(LEN).unwrap();
    buffer.fill(7);
    session.write(lh, 0, &buffer).unwrap();

    // The line of that write is the last one with its kind.
    let memory = memory();
    let word = |at| word(&memory, at).unwrap();
    let last = (1..=32).rev().find(|line| word(requests + 64 * line) >> 16 & 0xFF == 7).unwrap();
    let line: Vec<u64> = (0..8).map(|at| word(requests + 64 * last + 8 * at)).collect();
    let [id, at, len] = [line[4], line[5], line[6]];
    assert_eq!((at, len), (0, LEN as u64));

    let (max, end) = (u64::MAX, LEN as u64);
    let wrong = [
        [id, end, 1],
        [id, 1, end],
        [id, 0, 0],
        [id, max, 1],
        [id, 1, max],
        [id, max, max],
        [id, 0, 1 << 63],
        [id ^ 1, 0, 8],
        [0, 0, 8],
    ];
    for (slot, words) in (20..).zip(wrong) {
        let mut line = line.clone();
        // Behind the next line, which the session itself writes.
        let place = last + 2 + slot - 20;
        assert!(place <= 32, "the session has used few lines");
        line[0] = line[0] & !(0xFF << 24) | slot << 24;
        // Reads and writes.
        line[0] ^= (slot & 1) << 16;
        line[4..7].copy_from_slice(&words);
        let line: Vec<u8> = line.into_iter().flat_map(u64::to_le_bytes).collect();
        memory.write_all_at(&line, requests + 64 * place).unwrap();
    }
    assert_eq!(session.len(lh).unwrap(), LEN as u64);
    for slot in 20..20 + wrong.len() as u64 {
        let reply = replies + 64 * (1 + slot);
        eventually(|| word(reply) & 0xFFFF == 1);
        // The status of a reply with a body, which refuses the access.
        assert_eq!((word(reply) >> 16 & 0xFF, word(reply + 8) & 0xFFFF), (2, 1), "slot {slot}");
    }
    assert!(buffer.iter().all(|byte| *byte == 7));
    polite.write(theirs, 0, &buffer).unwrap();
    scratch.ok("down");
}

/// The node ends the objects of such a session in several rounds.
#[test]
fn a_session_that_the_node_ends_frees_all_its_functions() {
    const UNKNOWN: Function = Function(0xC0_FFEE);
    let scratch = Scratch::new("objects");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let [other, ending] = [0, 1].map(|_| Session::attach(scratch.cluster()).unwrap());
    let functions = || (0..100).map(Function);
    let _servers: Vec<_> =
        functions().map(|function| ending.serve(function, ServeOptions::default()).unwrap()).collect();
    let is_unknown = |session: &Session, function| {
        let called = session.call(NodeId(0), function, b"", LONG);
        called.is_err_and(|error| *error.cause() == CallCause::UnknownFunction)
    };
    assert!(is_unknown(&ending, UNKNOWN));

    // The line of that call is the session's last one.
    let memory = memory();
    let (lines, last) = line_with(UNKNOWN.0.into(), "halite-requests");
    // An invalid line, behind the next line, which the session itself writes.
    let lap = word(&memory, lines + 64 * last).unwrap() & 0xFFFF;
    let invalid: u64 = (0xFF << 16) + lap + (last + 1) / 32;
    memory.write_all_at(&invalid.to_le_bytes(), lines + 64 * (1 + (last + 1) % 32)).unwrap();
    let _ = ending.call(NodeId(0), UNKNOWN, b"", LONG);
    eventually(|| functions().all(|function| is_unknown(&other, function)));
    scratch.ok("down");
}
