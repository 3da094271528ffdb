//! Stories of key-value stores, over nodes of this process.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{FUNCTION, MIB, SetAtEnd, Shards, wait_until_lost};
use halite::{Function, NodeId, Permissions, RegionCause, blocking};
use halite_apps::kv::{Expires, KEY_BYTES_MAX, KvError, Only, SetOptions, Store, VALUE_BYTES_MAX, When};

const IF_ABSENT: SetOptions = SetOptions { only: Only::IfAbsent, expires: Expires::Never };
const IF_PRESENT: SetOptions = SetOptions { only: Only::IfPresent, expires: Expires::Never };

fn after(ms: u64) -> SetOptions {
    SetOptions { expires: Expires::After { ms }, ..SetOptions::default() }
}

/// A store of two nodes.
trait Stored {
    fn store(&self, node: usize) -> Client;
    fn end(self);
}

impl Stored for Shards {
    fn store(&self, node: usize) -> Client {
        let (session, store) = self.open(node);
        Client { session, store }
    }

    fn end(self) {
        let client = self.store(0);
        client.session.block_on(client.store.close()).unwrap();
        for (_, owner) in self.owners {
            owner.join().unwrap().unwrap();
        }
    }
}

/// A store, and the session that waits for it.
struct Client {
    session: blocking::Session,
    store: Store,
}

impl Client {
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.session.block_on(self.store.get(key)).unwrap()
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> bool {
        self.session.block_on(self.store.set(key, value, options)).unwrap()
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        assert!(self.set(key, value, SetOptions::default()));
    }

    /// Sets that value under one key after the other until there is no room.
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

    fn time_left(&mut self, key: &[u8]) -> Option<Option<u64>> {
        self.session.block_on(self.store.time_left(key)).unwrap()
    }

    fn keys(&mut self, count: u64) -> Vec<Vec<u8>> {
        let (mut from, mut keys) = (0, Vec::new());
        loop {
            let (next, some) = self.session.block_on(self.store.scan(from, count)).unwrap();
            keys.extend(some);
            from = next;
            if from == 0 {
                return keys;
            }
        }
    }
}

/// Found with redis-cli, which was told that there was no memory.
#[test]
fn what_is_to_expire_at_once_goes_also_where_the_store_is_full() {
    let shards = Shards::new(4 * MIB);
    let mut client = shards.store(0);
    // Of both shards, of which one is full.
    for key in client.fill(&[7; 1000]) {
        let expired = client.session.block_on(client.store.expire(&key, Expires::After { ms: 0 }));
        assert_eq!((expired.unwrap(), client.get(&key)), (true, None));
    }
}

#[test]
fn what_one_sets_others_read() {
    let shards = Shards::new(64 * MIB);
    let (mut one, mut two) = (shards.store(0), shards.store(1));
    for number in 0..100u32 {
        let key = number.to_string();
        assert_eq!(two.get(key.as_bytes()), None);
        one.put(key.as_bytes(), format!("value {number}").as_bytes());
        assert_eq!(two.get(key.as_bytes()), Some(format!("value {number}").into_bytes()));
        two.put(key.as_bytes(), b"");
        assert_eq!(one.get(key.as_bytes()), Some(Vec::new()));
    }
    assert_eq!(one.count(), 100);
    for number in 0..100u32 {
        assert!(one.delete(number.to_string().as_bytes()));
        assert!(!two.delete(number.to_string().as_bytes()));
        assert_eq!(two.get(number.to_string().as_bytes()), None);
    }
    assert_eq!(one.count(), 0);
    shards.end();
}

#[test]
fn conditions_decide_what_is_set_and_the_old_value_comes_back() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    assert!(!one.set(b"key", b"1", IF_PRESENT));
    assert_eq!(one.get(b"key"), None);
    assert!(one.set(b"key", b"1", IF_ABSENT));
    assert!(!one.set(b"key", b"2", IF_ABSENT));
    assert_eq!(one.get(b"key"), Some(b"1".to_vec()));
    assert!(one.set(b"key", b"2", IF_PRESENT));
    let swap = |one: &mut Client, value: &[u8], options| {
        one.session.block_on(one.store.swap(b"key", value, options)).unwrap()
    };
    assert_eq!(swap(&mut one, b"3", IF_ABSENT), Some(b"2".to_vec()));
    assert_eq!(swap(&mut one, b"3", SetOptions::default()), Some(b"2".to_vec()));
    assert_eq!(one.get(b"key"), Some(b"3".to_vec()));
    one.delete(b"key");
    assert_eq!(swap(&mut one, b"4", IF_PRESENT), None);
    assert_eq!(one.get(b"key"), None);
    shards.end();
}

#[test]
fn numbers_are_added_to_and_values_appended_to() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(1);
    let add = |one: &mut Client, number| one.session.block_on(one.store.add(b"number", number));
    assert_eq!(add(&mut one, 5).unwrap(), 5);
    assert_eq!(add(&mut one, -7).unwrap(), -2);
    assert_eq!(one.get(b"number"), Some(b"-2".to_vec()));
    one.put(b"number", i64::MAX.to_string().as_bytes());
    assert!(matches!(add(&mut one, 1), Err(KvError::Overflow)));
    for text in ["one", "", "+1", "01", "-0", " 1", "-", "9223372036854775808"] {
        one.put(b"number", text.as_bytes());
        assert!(matches!(add(&mut one, 1), Err(KvError::NotANumber)), "{text}");
        assert_eq!(one.get(b"number"), Some(text.as_bytes().to_vec()));
    }
    let append =
        |one: &mut Client, value: &[u8]| one.session.block_on(one.store.append(b"tail", value)).unwrap();
    assert_eq!(append(&mut one, b"abc"), 3);
    assert_eq!(append(&mut one, b"de"), 5);
    assert_eq!(one.get(b"tail"), Some(b"abcde".to_vec()));
    shards.end();
}

#[test]
fn keys_expire_by_the_clock_of_their_owner() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    for key in [&b"a"[..], b"b", b"c", b"d"] {
        one.set(key, b"value", after(100));
        assert_eq!((one.get(key), one.time_left(key)), (Some(b"value".to_vec()), Some(Some(100))));
    }
    shards.now_ms.store(100, Ordering::Relaxed);
    assert_eq!((one.get(b"a"), one.time_left(b"a")), (Some(b"value".to_vec()), Some(Some(1))));
    // One is kept for ever, one longer, and one is set anew.
    let expire =
        |one: &mut Client, key: &[u8], expires| one.session.block_on(one.store.expire(key, expires)).unwrap();
    assert!(expire(&mut one, b"b", Expires::Never));
    assert!(expire(&mut one, b"c", Expires::After { ms: 50 }));
    one.put(b"d", b"another");
    shards.now_ms.store(101, Ordering::Relaxed);
    assert_eq!((one.get(b"a"), one.time_left(b"a")), (None, None));
    assert_eq!((one.get(b"b"), one.time_left(b"b")), (Some(b"value".to_vec()), Some(None)));
    assert_eq!(one.get(b"d"), Some(b"another".to_vec()));
    assert_eq!(one.count(), 3);
    shards.now_ms.store(150, Ordering::Relaxed);
    // Nobody asks for it by name, and it is not counted.
    assert_eq!(one.count(), 2);
    assert!(!expire(&mut one, b"c", Expires::Never));
    // Of conditions, the owner sees whether they hold.
    let expire_when = |one: &mut Client, expires, when| {
        one.session.block_on(one.store.expire_when(b"d", expires, when)).unwrap()
    };
    let after = |ms| Expires::After { ms };
    assert!(!expire_when(&mut one, Expires::Never, When::Expiring));
    assert!(!expire_when(&mut one, after(10), When::Later), "for ever is later");
    assert!(expire_when(&mut one, after(10), When::KeptForEver));
    assert!(
        !expire_when(&mut one, after(20), When::KeptForEver)
            && !expire_when(&mut one, after(20), When::Sooner)
    );
    assert!(expire_when(&mut one, after(20), When::Later) && expire_when(&mut one, after(5), When::Sooner));
    assert_eq!(one.time_left(b"d"), Some(Some(5)));
    assert!(expire_when(&mut one, Expires::Never, When::Expiring));
    assert_eq!(one.time_left(b"d"), Some(None));
    // What is appended to goes when it would have gone.
    one.set(b"e", b"value", SetOptions { expires: after(10), ..SetOptions::default() });
    one.session.block_on(one.store.append(b"e", b"s")).unwrap();
    assert_eq!(one.time_left(b"e"), Some(Some(10)));
    assert!(expire(&mut one, b"e", Expires::After { ms: 0 }));
    assert_eq!(one.get(b"e"), None);
    shards.end();
}

#[test]
fn a_store_grows_while_it_is_read() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    one.put(b"first", b"stays");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut two = shards.store(1);
            while !done.load(Ordering::Relaxed) {
                assert_eq!(two.get(b"first"), Some(b"stays".to_vec()));
            }
        });
        let _done = SetAtEnd(&done);
        for number in 0..1_500u32 {
            one.put(&number.to_le_bytes(), &number.to_le_bytes());
        }
    });
    let mut two = shards.store(1);
    for number in 0..1_500u32 {
        assert_eq!(two.get(&number.to_le_bytes()), Some(number.to_le_bytes().to_vec()));
    }
    assert_eq!(two.count(), 1_501);
    shards.end();
}

/// Blocks are used anew all the time, for this key and for others.
#[test]
fn a_value_that_changes_all_the_time_is_read_whole_and_never_goes_back() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    let value = |number: u64| {
        let len = 8 * (1 + number as usize % 40);
        number.to_le_bytes().iter().copied().cycle().take(len).collect::<Vec<u8>>()
    };
    one.put(b"key", &value(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|node| {
                let (shards, done) = (&shards, &done);
                scope.spawn(move || {
                    let (mut two, mut last) = (shards.store(node), 0);
                    loop {
                        // It reads once more when all is written.
                        let is_last = done.load(Ordering::Relaxed);
                        let found = two.get(b"key").expect("it is always there");
                        let number = u64::from_le_bytes(*found.first_chunk().unwrap());
                        assert_eq!(found, value(number), "it is torn");
                        assert!(number >= last, "{number} was read after {last}");
                        last = number;
                        if is_last {
                            return last;
                        }
                    }
                })
            })
            .collect();
        let all_done = SetAtEnd(&done);
        for number in 1..2_000 {
            one.put(b"key", &value(number));
            one.put(b"other", &value(number + 1));
        }
        drop(all_done);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
    });
    shards.end();
}

#[test]
fn long_keys_and_values_come_back_and_longer_ones_are_refused() {
    let shards = Shards::new(64 * MIB);
    let (mut one, mut two) = (shards.store(0), shards.store(1));
    let (key, value) = (vec![b'k'; KEY_BYTES_MAX], vec![b'v'; VALUE_BYTES_MAX]);
    one.put(&key, &value);
    assert_eq!(two.get(&key), Some(value.clone()));
    let error = one.session.block_on(one.store.append(&key, b"1")).unwrap_err();
    assert!(matches!(error, KvError::TooLong { what: "value", .. }), "{error}");
    let long = vec![0; VALUE_BYTES_MAX + 1];
    let error = one.session.block_on(one.store.set(b"key", &long, SetOptions::default())).unwrap_err();
    assert!(matches!(error, KvError::TooLong { what: "value", len: 1048577, max: 1048576 }), "{error}");
    let error = one.session.block_on(one.store.get(&long[..KEY_BYTES_MAX + 1])).unwrap_err();
    assert!(matches!(error, KvError::TooLong { what: "key", .. }), "{error}");
    assert_eq!(two.get(&key), Some(value));
    shards.end();
}

#[test]
fn a_store_without_room_says_so_and_goes_on_once_there_is_some() {
    let shards = Shards::new(16 * MIB);
    let mut one = shards.store(0);
    let value = vec![7; 100_000];
    let kept = one.fill(&value);
    assert!(kept.len() > 80, "{} of 100 kB in two arenas of 16 MiB", kept.len());
    assert!(kept.iter().all(|key| one.get(key).as_ref() == Some(&value)));
    kept.iter().for_each(|key| assert!(one.delete(key)));
    kept.iter().for_each(|key| one.put(key, &value));
    shards.end();
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn memory_of_short_values_serves_long_ones_and_the_other_way_round() {
    let shards = Shards::new(8 * MIB);
    let mut one = shards.store(0);
    let mut first = 0;
    for (round, len) in [1 << 10, 64 << 10, 3000, 200_000, 1 << 10].into_iter().enumerate() {
        let value = vec![round as u8; len];
        let kept = one.fill(&value);
        assert!(kept.iter().all(|key| one.get(key).as_ref() == Some(&value)));
        let bytes = kept.len() * len;
        first = first.max(bytes);
        assert!(2 * bytes > first, "{bytes} bytes of values of {len}, and {first} of shorter ones before");
        // A few of those that are side by side make room for one that is longer.
        let (some, rest) = kept.split_at(kept.len() / 12);
        some.iter().for_each(|key| assert!(one.delete(key)));
        one.put(b"longer", &vec![0; some.len() * len / 4]);
        assert!(one.delete(b"longer"));
        // Nobody clears the store.
        rest.iter().for_each(|key| assert!(one.delete(key)));
    }
    shards.end();
}

/// Found with a store that long values had filled, and left: the table of many short ones found no room.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn memory_that_values_have_left_serves_a_larger_table() {
    let shards = Shards::new(4 * MIB);
    let mut one = shards.store(0);
    let long = one.fill(&[7; 500_000]);
    long.iter().for_each(|key| assert!(one.delete(key)));
    let short = one.fill(&[7; 8]);
    assert!(short.len() > 40_000, "{} long ones, {} short ones", long.len(), short.len());
    assert_eq!(one.get(&short[9]).as_deref(), Some(&[7; 8][..]));
    shards.end();
}

#[test]
fn a_store_that_is_cleared_gives_all_memory_back_and_nobody_sees_a_key_again_that_is_gone() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    let empty = shards.cluster.bytes_used();
    for _ in 0..3 {
        (0..5_000u32).for_each(|number| one.put(&number.to_le_bytes(), b"value"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut two, mut is_gone) = (shards.store(1), [false; 100]);
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
    let mut two = shards.store(1);
    assert_eq!(two.get(b"again").as_deref(), Some(&b"there"[..]));
    // A table that has not grown stays where it is.
    one.session.block_on(one.store.clear()).unwrap();
    assert_eq!(two.get(b"again"), None);
    shards.end();
}

#[test]
fn a_scan_finds_each_key_also_while_the_store_grows() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    let name = |number: u32| format!("key {number}").into_bytes();
    let expected: BTreeSet<Vec<u8>> = (0..300).map(name).collect();
    expected.iter().for_each(|key| one.put(key, b""));
    let keys = one.keys(10);
    assert_eq!((keys.len(), keys.into_iter().collect::<BTreeSet<_>>()), (300, expected.clone()));
    let (mut from, mut seen, mut rounds) = (0, BTreeSet::new(), 0);
    loop {
        let (next, keys) = one.session.block_on(one.store.scan(from, 10)).unwrap();
        seen.extend(keys);
        from = next;
        // It grows faster than it is gone through at first, and no more in the end.
        (0..30).filter(|_| rounds < 20).for_each(|number| one.put(&name(1000 + 100 * rounds + number), b""));
        rounds += 1;
        if from == 0 {
            break;
        }
    }
    assert!(rounds > 20 && expected.is_subset(&seen));
    one.session.block_on(one.store.clear()).unwrap();
    assert_eq!((one.count(), one.keys(10)), (0, Vec::new()));
    one.put(b"after", b"that");
    assert_eq!(one.get(b"after"), Some(b"that".to_vec()));
    shards.end();
}

#[test]
fn nothing_is_left_of_a_store_that_is_closed() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    (0..1000u32).for_each(|number| one.put(&number.to_le_bytes(), &[1; 100]));
    assert!(shards.cluster.bytes_used() > 0);
    one.session.block_on(one.store.close()).unwrap();
    let Shards { cluster, owners, .. } = shards;
    owners.into_iter().for_each(|(_, owner)| owner.join().unwrap().unwrap());
    let session = cluster.session(0);
    let status = session.status().unwrap();
    assert!(status.iter().all(|node| node.bytes_used == 0 && node.regions == 0), "{status:?}");
    let error = session.block_on(Store::open(session.as_async(), "store")).err().unwrap();
    assert!(matches!(&error, KvError::Region(error) if *error.cause() == RegionCause::NotFound), "{error}");
}

/// Several requests in one call are such whose answers are short: else a short call would be answered by the whole store, or end its owner.
#[test]
fn who_asks_for_several_things_at_once_gets_no_values_and_ends_no_owner() {
    let shards = Shards::new(64 * MIB);
    shards.store(0).put(b"salt", b"crystals");
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
        // Six that make no sense there, and that there is no such key.
        let kinds: Vec<u8> = answer[9..].chunks(13).map(|part| part[4]).collect();
        assert_eq!((answer[0], kinds), (1, vec![6, 6, 6, 6, 6, 6, 2]));
    }
    assert_eq!(shards.store(1).get(b"salt").as_deref(), Some(&b"crystals"[..]));
    shards.end();
}

#[test]
fn what_is_no_store_is_refused() {
    let shards = Shards::new(64 * MIB);
    let session = shards.cluster.session(0);
    for (name, len) in [("short", 100), ("zeros", 512)] {
        session.alloc(Some(name), len, halite::Placement::Local, Permissions::empty()).unwrap();
        let error = session.block_on(Store::open(session.as_async(), name)).err().unwrap();
        assert!(matches!(error, KvError::NotAStore { .. }), "{error}");
    }
    let creating = Store::create(session.as_async(), "none", &[], FUNCTION, Permissions::empty());
    assert!(matches!(session.block_on(creating).err().unwrap(), KvError::NotAStore { value: 0, .. }));
    shards.end();
}

#[test]
fn keys_of_an_owner_that_has_gone_are_told_so_and_others_stay() {
    let mut shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    let names: Vec<Vec<u8>> = (0..50u32).map(|number| number.to_le_bytes().to_vec()).collect();
    names.iter().for_each(|key| one.put(key, key));
    shards.cluster.nodes.pop().unwrap().leave();
    shards.owners.pop().unwrap().1.join().unwrap().unwrap();
    wait_until_lost(&one.session, "store/1");
    let mut outcomes = BTreeMap::new();
    for key in &names {
        let got = one.session.block_on(one.store.get(key));
        let set = one.session.block_on(one.store.set(key, b"new", SetOptions::default()));
        let is_here = set.is_ok();
        assert!(!is_here || got.unwrap() == Some(key.clone()), "what is here stays");
        *outcomes.entry(is_here).or_insert(0) += 1;
    }
    assert!(outcomes.len() == 2, "{outcomes:?}");
}

#[test]
fn what_is_read_together_is_what_is_read_alone() {
    let shards = Shards::new(64 * MIB);
    let mut one = shards.store(0);
    let key = |number: u32| number.to_le_bytes().to_vec();
    for number in 0..300 {
        one.set(&key(number), &vec![number as u8; number as usize * 7], SetOptions::default());
    }
    (0..300).step_by(10).for_each(|number| assert!(one.set(&key(number), b"soon", after(10_000))));
    (0..300).step_by(7).for_each(|number| assert!(one.delete(&key(number))));
    let mut other = shards.store(1);
    let keys: Vec<Vec<u8>> = (0..310).map(key).collect();
    let alone: Vec<_> = keys.iter().map(|key| other.get(key)).collect();
    assert!(alone.iter().filter(|value| value.is_none()).count() > 40);
    // Of a client that has seen nothing yet, and one of which the tables have been replaced.
    for client in [&mut shards.store(1), &mut one] {
        let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        assert_eq!(client.session.block_on(client.store.get_many(&slices)).unwrap(), alone);
    }
    let long = vec![0; KEY_BYTES_MAX + 1];
    let refused = one.session.block_on(one.store.get_many(&[b"key", &long]));
    assert!(matches!(refused, Err(KvError::TooLong { .. })));
    drop(other);
    shards.end();
}
