//! Tests of key-value stores, over nodes of this process.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{FUNCTION, MIB, SetAtEnd, Shards};
use halite::{Function, NodeId, blocking};
use halite_apps::kv::{Expires, KvError, SetOptions, Store};

/// Opens a store in a session of a node.
fn open(shards: &Shards, node: usize) -> Client {
    let (session, store) = shards.open(node);
    Client { session, store }
}

fn end(shards: Shards) {
    let client = open(&shards, 0);
    client.session.block_on(client.store.close()).unwrap();
    for (_, owner) in shards.owners {
        owner.join().unwrap().unwrap();
    }
}

/// A store, and the session on which it blocks.
struct Client {
    session: blocking::Session,
    store: Store,
}

impl Client {
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.session.block_on(self.store.get(key)).unwrap()
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        assert!(self.session.block_on(self.store.set(key, value, SetOptions::default())).unwrap());
    }

    /// Sets this value under one key after the other until the store is full.
    fn fill(&mut self, value: &[u8]) -> Vec<[u8; 4]> {
        let mut kept = Vec::new();
        loop {
            let key = (kept.len() as u32).to_le_bytes();
            match self.session.block_on(self.store.set(&key, value, SetOptions::default())) {
                Ok(_) => kept.push(key),
                Err(KvError::Full) => return kept,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.session.block_on(self.store.delete(key)).unwrap()
    }

    fn count(&mut self) -> u64 {
        self.session.block_on(self.store.count()).unwrap()
    }
}

/// An expiry of 0 ms needs no memory.
#[test]
fn keys_of_a_full_store_expire_at_once() {
    let shards = Shards::new(4 * MIB);
    let mut client = open(&shards, 0);
    // These keys belong to both shards, of which one is full.
    for key in client.fill(&[7; 1000]) {
        let expired = client.session.block_on(client.store.expire(&key, Expires::After { ms: 0 }));
        assert_eq!((expired.unwrap(), client.get(&key)), (true, None));
    }
}

#[test]
fn a_full_store_accepts_values_after_removals() {
    let shards = Shards::new(16 * MIB);
    let mut one = open(&shards, 0);
    let value = vec![7; 100_000];
    let kept = one.fill(&value);
    assert!(kept.len() > 80, "{} of 100 kB in two arenas of 16 MiB", kept.len());
    assert!(kept.iter().all(|key| one.get(key).as_ref() == Some(&value)));
    kept.iter().for_each(|key| assert!(one.delete(key)));
    kept.iter().for_each(|key| one.put(key, &value));
    end(shards);
}

#[test]
fn a_cleared_store_frees_all_memory() {
    let shards = Shards::new(64 * MIB);
    let mut one = open(&shards, 0);
    let empty = shards.cluster.bytes_used();
    for _ in 0..3 {
        (0..5_000u32).for_each(|number| one.put(&number.to_le_bytes(), b"value"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut two, mut is_gone) = (open(&shards, 1), [false; 100]);
                while !done.load(Ordering::Relaxed) {
                    for (number, is_gone) in (0u32..).zip(&mut is_gone) {
                        let value = two.get(&number.to_le_bytes());
                        assert!(value.is_none() || !*is_gone && value.as_deref() == Some(b"value"));
                        *is_gone = value.is_none();
                    }
                }
            });
            let _done = SetAtEnd(&done);
            one.session.block_on(one.store.clear()).unwrap();
        });
        assert_eq!((one.count(), shards.cluster.bytes_used()), (0, empty));
    }
    one.put(b"again", b"there");
    let mut two = open(&shards, 1);
    assert_eq!(two.get(b"again").as_deref(), Some(&b"there"[..]));
    end(shards);
}

/// A call may contain several requests only if their answers are short: otherwise the answer to a short call could be
/// the whole store, or terminate its owner.
#[test]
fn batches_execute_only_requests_with_short_answers() {
    let shards = Shards::new(64 * MIB);
    open(&shards, 0).put(b"salt", b"crystals");
    let session = shards.cluster.session(1);
    let request = |op: u8, key: &[u8], value: &[u8]| {
        let store = xxhash_rust::xxh3::xxh3_64(b"store").to_le_bytes();
        [&[op][..], &store, &[0; 16], &(key.len() as u32).to_le_bytes(), key, value].concat()
    };
    let part = |request: Vec<u8>| [&(request.len() as u32).to_le_bytes()[..], &request].concat();
    let (get, scan, clear, close, take) = (0, 7, 9, 10, 11);
    let several = [get, scan, clear, close, take].map(|op| part(request(op, b"salt", b"")));
    let nested = part(request(13, b"", &several[3]));
    let [delete, cut] = [part(request(2, b"none", b"")), vec![9, 0, 0, 0, 1]];
    let input = request(13, b"", &[several.concat(), nested, delete, cut].concat());
    for number in [0, 1] {
        let function = Function(FUNCTION.0 + number);
        let answer = session.call(NodeId(number), function, &input, Duration::from_secs(30)).unwrap();
        // Six requests that are not allowed there, and one for a key that does not exist.
        let kinds: Vec<u8> = answer[9..].chunks(13).map(|part| part[4]).collect();
        assert_eq!((answer[0], kinds), (1, vec![6, 6, 6, 6, 6, 6, 2]));
    }
    assert_eq!(open(&shards, 1).get(b"salt").as_deref(), Some(&b"crystals"[..]));
    end(shards);
}
