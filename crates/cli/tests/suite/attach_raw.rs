//! Attached sessions whose clients write their own messages, as no session of the library does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use halite::blocking::Session;
use halite::{CallCause, Function, NodeId};

use crate::attach::{VERSION, connect, hello, message};
use crate::support::Scratch;

const LONG: Duration = Duration::from_secs(3600);

/// First bytes of requests: their kinds.
const ALLOC: u8 = 1;
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
