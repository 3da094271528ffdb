//! Tests of logs, over nodes of this process.

use crate::common;

use std::collections::BTreeMap;

use common::{Cluster, MIB, wait_until_lost};
use halite::{NodeId, blocking};
use halite_apps::log::{Entry, Follower, Log, LogError, Options, Writer};

/// Short segments, so that tests reach their ends.
const SHORT: Options =
    Options { slot_bytes: 32, segment_slots: 16, nodes: Vec::new(), everyone: halite::Permissions::empty() };
/// Longer than any timeout, in ns.
const LONG_NS: u64 = 1_000_000_000;

/// A clock that advances by more than any timeout each time it is read.
struct LeapingClock(u64);

impl LeapingClock {
    fn next(&mut self) -> u64 {
        self.0 += LONG_NS;
        self.0
    }
}

fn create(session: &blocking::Session, options: &Options) -> Log {
    session.block_on(Log::create(session.as_async(), "log", options)).unwrap()
}

fn open(session: &blocking::Session) -> Log {
    session.block_on(Log::open(session.as_async(), "log")).unwrap()
}

fn records_of(entry: Entry<'_>) -> Vec<String> {
    entry.records().map(|record| String::from_utf8(record.to_vec()).unwrap()).collect()
}

/// Polls the follower until it has returned `enough` entries, while time passes.
fn follow(session: &blocking::Session, follower: &mut Follower, enough: usize) -> Vec<String> {
    let (mut seen, mut clock) = (Vec::new(), LeapingClock(0));
    for _ in 0..10_000 {
        session.block_on(follower.poll(clock.next(), |entry| seen.extend(records_of(entry)))).unwrap();
        if seen.len() >= enough {
            break;
        }
    }
    seen
}

#[test]
fn a_skipped_writer_appends_at_the_end() {
    let cluster = Cluster::new(64 * MIB);
    let session = cluster.session(0);
    let mut idle = Writer::new(create(&session, &SHORT), 8);
    let mut busy = Writer::new(open(&session), 1);
    let mut follower = session.block_on(Follower::from_start(open(&session))).unwrap();
    session.block_on(idle.append(b"first")).unwrap();
    session.block_on(busy.append(b"second")).unwrap();
    assert_eq!(follow(&session, &mut follower, 2), ["first", "second"], "seven slots were skipped");
    let last = session.block_on(idle.append(b"third")).unwrap();
    assert!(last >= 9, "{last}: its earlier slots are void");
    assert_eq!(follow(&session, &mut follower, 1), ["third"]);
}

#[test]
fn records_of_any_length_are_read_completely() {
    let cluster = Cluster::new(64 * MIB);
    let session = cluster.session(1);
    let mut writer = Writer::new(create(&session, &SHORT), 3);
    // A segment holds 16 slots of 24 bytes.
    let lens: Vec<usize> = (0..=384).step_by(7).chain([383, 384]).collect();
    let record =
        |len: usize| (0..len).map(|at| char::from(b'a' + ((at + len) % 26) as u8)).collect::<String>();
    for &len in &lens {
        session.block_on(writer.append(record(len).as_bytes())).unwrap();
    }
    let error = session.block_on(writer.append(&[0; 385])).unwrap_err();
    assert!(matches!(error, LogError::TooLong { len: 385, max: 384 }), "{error}");
    session.block_on(writer.close()).unwrap();
    let mut follower = session.block_on(Follower::from_start(open(&session))).unwrap();
    let seen = follow(&session, &mut follower, lens.len());
    assert_eq!(seen, lens.iter().map(|len| record(*len)).collect::<Vec<_>>());
}

#[test]
fn a_transaction_is_one_entry() {
    let cluster = Cluster::new(64 * MIB);
    let session = cluster.session(0);
    let mut writer = Writer::new(create(&session, &SHORT), 1);
    session.block_on(writer.append_all(&[b"debit 7", b"", b"credit 7 to another account"])).unwrap();
    session.block_on(writer.append_all(&[])).unwrap();
    let mut follower = session.block_on(Follower::from_start(open(&session))).unwrap();
    let mut entries = Vec::new();
    while session.block_on(follower.poll(0, |entry| entries.push(records_of(entry)))).unwrap() > 0 {}
    assert_eq!(entries, [vec!["debit 7", "", "credit 7 to another account"], vec![]]);
}

#[test]
fn a_full_log_accepts_records_after_a_trim() {
    let cluster = Cluster::new(MIB);
    let session = cluster.session(0);
    let options = Options { segment_slots: 8192, ..SHORT };
    let mut writer = Writer::new(create(&session, &options), 64);
    let mut slow = session.block_on(Follower::from_start(open(&session))).unwrap();
    let mut appended = BTreeMap::new();
    let error = loop {
        let number = appended.len();
        match session.block_on(writer.append(&number.to_le_bytes())) {
            Ok(position) => assert!(appended.insert(position, number).is_none()),
            Err(error) => break error,
        }
    };
    let LogError::Full { first } = error else { panic!("{error}") };
    let mut follower = session.block_on(Follower::from_start(open(&session))).unwrap();
    let mut seen = BTreeMap::new();
    let mut note = |entry: Entry<'_>| {
        let record = entry.records().next().unwrap();
        seen.insert(entry.position, usize::from_le_bytes(record.try_into().unwrap()));
    };
    while session.block_on(follower.poll(0, &mut note)).unwrap() > 0 {}
    assert_eq!((seen, follower.position()), (appended, first));
    assert!(session.block_on(open(&session).trim(follower.position())).unwrap() > 0);
    session.block_on(writer.append(b"there is room")).unwrap();
    let error = session.block_on(slow.poll(0, |_| panic!("the records were trimmed"))).unwrap_err();
    assert!(matches!(error, LogError::Trimmed { first } if first > 0), "{error}");
}

/// The directory may be unavailable for some seconds, such as while etcd restarts.
#[test]
fn without_the_directory_only_new_segments_fail() {
    let mut cluster = Cluster::new(64 * MIB);
    let session = cluster.session(1);
    let mut writer = Writer::new(create(&session, &Options { nodes: vec![NodeId(1)], ..SHORT }), 1);
    let mut follower = session.block_on(Follower::from_start(open(&session))).unwrap();
    let mut late = session.block_on(Follower::from_start(open(&session))).unwrap();
    let mut cleaner = open(&session);
    let append = |writer: &mut Writer, number: u32| session.block_on(writer.append(&number.to_le_bytes()));
    let poll_count = |follower: &mut Follower| {
        let mut seen = 0;
        let polled = session.block_on(follower.poll(0, |entry| seen += entry.records().count()));
        polled.map(|_| seen)
    };
    let is_no_directory = |error| matches!(error, LogError::NoDirectory(_));
    // The first segment, and a part of the second, which the follower has mapped.
    (0..20).for_each(|number| assert_eq!(append(&mut writer, number).unwrap(), u64::from(number)));
    assert_eq!([poll_count(&mut follower).unwrap(), poll_count(&mut follower).unwrap()], [16, 4]);
    cluster.without_directory(|| {
        // The second segment can be used to its end; the third could not be allocated when the second was half full,
        // nor when it is needed.
        (20..32).for_each(|number| assert_eq!(append(&mut writer, number).unwrap(), u64::from(number)));
        assert!(is_no_directory(append(&mut writer, 32).unwrap_err()));
        assert_eq!(poll_count(&mut follower).unwrap(), 12);
        assert!(is_no_directory(poll_count(&mut late).unwrap_err()));
        assert!(is_no_directory(session.block_on(cleaner.trim(16)).unwrap_err()));
        assert!(is_no_directory(session.block_on(Log::open(session.as_async(), "log")).err().unwrap()));
    });
    // None of the refused records is in the log, and no follower has to skip their slots.
    assert_eq!(append(&mut writer, 32).unwrap(), 32);
    assert_eq!(
        follow(&session, &mut follower, 1),
        [String::from_utf8(32u32.to_le_bytes().to_vec()).unwrap()]
    );
    assert_eq!(poll_count(&mut late).unwrap(), 16);
    assert_eq!(session.block_on(cleaner.trim(16)).unwrap(), 1);
    session.block_on(cleaner.free()).unwrap();
    assert_eq!(cluster.bytes_used(), 0);
}

#[test]
fn followers_skip_a_segment_of_a_lost_node() {
    let mut cluster = Cluster::new(64 * MIB);
    let session = cluster.session(0);
    let options = Options { nodes: vec![NodeId(0), NodeId(1)], ..SHORT };
    let mut writer = Writer::new(create(&session, &options), 1);
    for number in 0..20u8 {
        session.block_on(writer.append(&[number])).unwrap();
    }
    cluster.nodes.pop().unwrap().leave();
    wait_until_lost(&session, "log/1");
    let position = session.block_on(writer.append(b"late")).unwrap();
    assert_eq!(position, 32, "the rest of the lost segment is skipped");
    let mut follower = session.block_on(Follower::from_start(open(&session))).unwrap();
    let mut seen = Vec::new();
    let lost = loop {
        match session.block_on(follower.poll(0, |entry| seen.extend(entry.records().map(<[u8]>::to_vec)))) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let LogError::Lost { segment: 1, node: NodeId(1), next } = lost else { panic!("{lost}") };
    assert_eq!(seen.len(), 16);
    follower.skip_to(next);
    session.block_on(follower.poll(0, |entry| seen.extend(entry.records().map(<[u8]>::to_vec)))).unwrap();
    assert_eq!(seen.last().map(Vec::as_slice), Some(&b"late"[..]));
}
