//! Buffers of the user whose pages are absent: the first access of Halite to a page waits until a thread has provided
//! it, and that thread uses the same node.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::Dir;
use halite::blocking::Session;
use halite::{
    Config, Function, Lh, Node, NodeId, Permissions, Placement, Port, ReadOp, ServeOptions, WriteOp,
};
use halite_mem::{LentPages, PagedError};

/// Numbers of pages: bytes that fit into one message, and bytes that do not.
const COUNTS: [usize; 2] = [5, 150];
const PAGE: usize = 4096;
const FUNCTION: Function = Function(7);
const PORT: Port = Port(7);
/// Numbers of operations that are tried: all but sends, and sends.
const OPERATIONS: usize = 20;
const SENDS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes that provided pages have.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4096) as u8).collect()
}

/// Returns absent pages. Their bytes come from the region `origin` of another node. `None` where the system refuses.
fn absent(session: &Session, pages: usize, provided: &Arc<AtomicUsize>) -> Option<LentPages> {
    let provided = provided.clone();
    let (session, origin) = (session.clone(), session.map("origin", Permissions::READ).unwrap());
    let provide = move |page: usize, bytes: &mut [u8]| {
        session.read(origin, (page * bytes.len()) as u64, bytes).unwrap();
        provided.fetch_add(1, Ordering::Relaxed);
    };
    match LentPages::new(pages, provide) {
        Err(why @ (PagedError::Refused | PagedError::Unsupported)) => {
            eprintln!("skipped: {why}");
            None
        }
        made => Some(made.unwrap()),
    }
}

/// Hands absent pages to each operation of a session that takes a buffer.
fn use_everywhere(nodes: &[Node; 2]) {
    COUNTS.into_iter().for_each(|count| use_pages(nodes, count));
}

fn use_pages(nodes: &[Node; 2], count: usize) {
    let len = count * PAGE;
    let [far, near] = nodes.each_ref().map(Node::blocking_session);
    let origin = far.alloc(Some("origin"), len as u64, Placement::Local, Permissions::all()).unwrap();
    far.write(origin, 0, &pattern(len)).unwrap();
    let target = far.alloc(Some("target"), len as u64, Placement::Local, Permissions::all()).unwrap();
    let provided = Arc::default();
    let Some(mut pages) = absent(&near, count, &provided) else { return };
    let lh = near.map("target", Permissions::all()).unwrap();
    let expected = pattern(len);
    // Checks that an operation has stored the pattern in the region, and clears the region.
    let stored = |what: &str| {
        let mut bytes = vec![0; len];
        far.read(target, 0, &mut bytes).unwrap();
        assert!(bytes == expected, "{what}");
        far.fill(target, 0, len as u64, 0).unwrap();
    };

    near.write(lh, 0, &pages).unwrap();
    stored("write");
    pages.discard().unwrap();
    near.write_vectored(lh, 0, &[IoSlice::new(&pages[..5000]), IoSlice::new(&pages[5000..])]).unwrap();
    stored("write_vectored");
    pages.discard().unwrap();
    let parts = [0, 3000, len - 3000, len].map(|at| at as u64);
    let batch: Vec<WriteOp> = parts
        .windows(2)
        .map(|part| WriteOp { lh, offset: part[0], from: &pages[part[0] as usize..part[1] as usize] })
        .collect();
    near.write_batch(&batch).unwrap();
    stored("write_batch");
    pages.discard().unwrap();
    let watch = far.watch(target).unwrap();
    near.write_notify(lh, 0, &pages, 1).unwrap();
    watch.recv().unwrap();
    stored("write_notify");
    pages.discard().unwrap();
    let (mut pages, outcome) = near.post_write(lh, 0, pages).wait();
    outcome.unwrap();
    stored("post_write");

    far.write(target, 0, &vec![5; len]).unwrap();
    read_into(&near, lh, &mut pages);
    pages.discard().unwrap();
    let (mut pages, outcome) = near.post_read(lh, 0, pages).wait();
    outcome.unwrap();
    assert!(pages.iter().all(|byte| *byte == 5), "post_read");

    call_with(nodes, &near, &mut pages);
    send_from(&far, &near, &mut pages);
    // Each of the operations has found all pages absent.
    assert_eq!(provided.load(Ordering::Relaxed), OPERATIONS * count + SENDS * COUNTS[0]);
    drop(pages);
    near.unmap(lh).unwrap();
    far.free(origin).unwrap();
    far.free(target).unwrap();
}

fn read_into(near: &Session, lh: Lh, pages: &mut LentPages) {
    let check = |what: &str, pages: &LentPages| assert!(pages.iter().all(|byte| *byte == 5), "{what}");
    pages.discard().unwrap();
    near.read(lh, 0, pages).unwrap();
    check("read", pages);
    pages.discard().unwrap();
    let (one, other) = pages.split_at_mut(5000);
    near.read_vectored(lh, 0, &mut [IoSliceMut::new(one), IoSliceMut::new(other)]).unwrap();
    check("read_vectored", pages);
    pages.discard().unwrap();
    let (one, other) = pages.split_at_mut(3000);
    let mut batch = [ReadOp { lh, offset: 0, into: one }, ReadOp { lh, offset: 3000, into: other }];
    near.read_batch(&mut batch).unwrap();
    check("read_batch", pages);
}

/// Uses absent pages as inputs and answers of calls. The server adds 1 to each byte.
fn call_with(nodes: &[Node; 2], near: &Session, pages: &mut LentPages) {
    let (node, len) = (NodeId(0), pages.len());
    let far = nodes[0].blocking_session();
    let servers = [
        far.serve(FUNCTION, ServeOptions::default()).unwrap(),
        far.serve_named("add", ServeOptions::default()).unwrap(),
    ];
    let expected: Vec<u8> = pattern(len).iter().map(|byte| byte.wrapping_add(1)).collect();
    std::thread::scope(|scope| {
        for server in &servers {
            scope.spawn(|| {
                while let Ok(call) = server.recv() {
                    let answer: Vec<u8> = call.input().iter().map(|byte| byte.wrapping_add(1)).collect();
                    call.reply(&answer).unwrap();
                }
            });
        }
        let fresh = |what: &str, answer: Vec<u8>| {
            assert!(answer == expected, "{what}");
        };
        pages.discard().unwrap();
        fresh("call", near.call(node, FUNCTION, pages, TIMEOUT).unwrap());
        pages.discard().unwrap();
        fresh("call_named", near.call_named("add", pages, TIMEOUT).unwrap());
        pages.discard().unwrap();
        fresh("call_many", near.call_many(&[node], FUNCTION, pages, TIMEOUT).remove(0).unwrap());
        pages.discard().unwrap();
        let pending = near.post_call(node, FUNCTION, pages, len, TIMEOUT).unwrap();
        fresh("post_call", pending.answer().unwrap());
        pages.discard().unwrap();
        let inputs = [&pages[..300], &pages[300..600], &pages[600..]];
        let posted = near.post_calls(node, FUNCTION, &inputs, len, TIMEOUT);
        let answers = posted.into_iter().flat_map(|pending| pending.unwrap().answer().unwrap()).collect();
        fresh("post_calls", answers);
        let input = pattern(len);
        pages.discard().unwrap();
        assert_eq!(near.call_into(node, FUNCTION, &input, pages, TIMEOUT).unwrap(), len);
        fresh("call_into", pages.to_vec());
        pages.discard().unwrap();
        let pending = near.post_call(node, FUNCTION, &input, len, TIMEOUT).unwrap();
        assert_eq!(pending.answer_into(pages).unwrap(), len);
        fresh("answer_into", pages.to_vec());
        pages.discard().unwrap();
        let pending = near.post_call(node, FUNCTION, &input, len, TIMEOUT).unwrap();
        assert_eq!(pending.lend_answer().unwrap().copy_to(0, pages), len);
        fresh("lend_answer", pages.to_vec());
        servers.iter().for_each(|server| server.close());
    });

    // Absent pages as answers: the near node serves.
    let server = near.serve(FUNCTION, ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            (0..3).map(|_| far.call(NodeId(1), FUNCTION, b"", TIMEOUT).unwrap()).collect::<Vec<_>>()
        });
        pages.discard().unwrap();
        server.recv().unwrap().reply(pages).unwrap();
        let call = server.recv().unwrap();
        pages.discard().unwrap();
        let call = server.reply_and_recv(call, pages).unwrap();
        pages.discard().unwrap();
        server.reply_all([(call, &pages[..])]).into_iter().for_each(|replied| replied.unwrap());
        for answer in calls.join().unwrap() {
            assert!(answer == pattern(pages.len()), "an answer from absent pages");
        }
    });
}

fn send_from(far: &Session, near: &Session, pages: &mut LentPages) {
    // A longer message would wait until this thread receives it.
    let (node, len) = (NodeId(0), COUNTS[0] * PAGE);
    let mailbox = far.open_port(PORT, ServeOptions::default()).unwrap();
    pages.discard().unwrap();
    near.send(node, PORT, &pages[..len]).unwrap();
    assert!(mailbox.recv().unwrap().bytes == pattern(pages.len())[..len], "send");
    pages.discard().unwrap();
    near.try_send(node, PORT, &pages[..len]).unwrap();
    assert!(mailbox.recv().unwrap().bytes == pattern(pages.len())[..len], "try_send");
    pages.discard().unwrap();
    let mut sender = near.sender(node, PORT);
    sender.send(&pages[..len]).unwrap();
    sender.flush().unwrap();
    assert!(mailbox.recv().unwrap().bytes == pattern(pages.len())[..len], "Sender::send");
}

#[test]
fn absent_pages_are_buffers_of_every_operation_between_processes() {
    let dir = Dir::new();
    use_everywhere(&[0, 1].map(|node| dir.join(node)));
}

#[test]
fn absent_pages_are_buffers_of_every_posted_operation() {
    let dir = Dir::new();
    use_everywhere(&[0, 1].map(|node| dir.join_posted(node)));
}

#[test]
fn absent_pages_are_buffers_of_every_operation_over_udp() {
    let dir = Dir::new();
    let join = |node| {
        let providers = vec![halite::Provider::Roce];
        dir.try_join(Config { providers, ..dir.config(node) }).expect("the node joins")
    };
    use_everywhere(&[0, 1].map(join));
}
