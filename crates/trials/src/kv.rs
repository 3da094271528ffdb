//! The key-value store of `halite-apps`: each node serves one, which sessions of all nodes read and change.
//! [`history`] defines the valid results.

mod history;
mod values;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use halite::{CallCause, Driven, Function, NodeId, Permissions};
use halite_apps::kv::{Expires, KvError, Only, Owner, SetOptions, Store, When};
use halite_sim::HostId;

use crate::actor::{Actor, pick};
use crate::harness::{Harness, PRINCIPALS};
use crate::judge::{access_may_follow_fault, may_follow_fault};
use history::{History, Operation};
use values::{ENTRY_BYTES, Value};

/// Function of the owners, apart from those of [`crate::calls`].
const FUNCTION: Function = Function(900);
/// Prefix of the stores' names.
const PREFIX: &str = "kv-";
/// Number of keys of a store in use; few, so that sessions compete.
const KEYS: usize = 3;
/// Number of keys that no session uses. They fill the table, so that a few more keys make it grow.
const FILLER_KEYS: u64 = 90;
const TIMEOUT: Duration = Duration::from_micros(400);
/// Maximum lifetime of keys that expire, in microseconds.
const LIFETIME_US_MAX: u64 = 60;
/// Interval at which a node checks whether it must end.
const CHECK_INTERVAL: Duration = Duration::from_micros(20);

#[derive(Debug, Default)]
pub(crate) struct Kv {
    /// All stores that were created so far.
    stores: Vec<StoreState>,
    /// Index of the current store of each node.
    current: BTreeMap<u32, usize>,
    last_token: u64,
}

#[derive(Debug)]
struct StoreState {
    name: String,
    /// Histories of all keys so far.
    histories: Vec<History>,
    /// Indices in `histories` of the keys in use.
    used: [usize; KEYS],
}

/// The stores that a session has opened.
#[derive(Default)]
pub(crate) struct OpenStores {
    stores: BTreeMap<usize, Store>,
}

/// A key: the indices of a store and of a history.
#[derive(Clone, Copy, Debug)]
struct Key {
    store: usize,
    number: usize,
}

impl Key {
    fn bytes(self) -> Vec<u8> {
        format!("key {}", self.number).into_bytes()
    }
}

/// Checks the histories of all keys, after all sessions have ended.
pub(crate) fn check(harness: &Harness) {
    for (store, served) in harness.kv.borrow().stores.iter().enumerate() {
        for (number, history) in served.histories.iter().enumerate() {
            if !history.has_order() {
                let done = history.describe();
                harness
                    .judge
                    .report_violation(format!("key {number} of store {store}: no order explains {done}"));
            }
        }
    }
}

/// Returns true if a region belongs to a store.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Starts a store on a node that has just joined, if the plan uses stores.
pub(crate) fn serve(harness: &Rc<Harness>, node: u32, driven: &Driven) {
    if harness.plan.work.kv == 0 || !harness.sessions_continue() {
        return;
    }
    let session = driven.session_of(PRINCIPALS[0]).expect("the principal's name is valid");
    let (shared, host) = (harness.clone(), harness.host(node));
    let name = format!("{PREFIX}{node}-{}", harness.incarnation(node));
    harness.world.spawn(Some(host), format!("store of node {node}"), async move {
        let begin_ns = shared.world.now_ns();
        if let Err(error) = run_store(&shared, node, host, name, session).await {
            let is_explained = fault_explains(&shared, &error);
            shared.judge.expect(is_explained, || {
                format!("the owner of node {node}, from {begin_ns} ns: {error}, without a known cause")
            });
        }
    });
}

/// Serves a store while sessions work.
async fn run_store(
    harness: &Rc<Harness>,
    node: u32,
    host: HostId,
    name: String,
    session: halite::Session,
) -> Result<(), KvError> {
    let everyone = Permissions::READ | Permissions::WRITE;
    let owner = Owner::create(&session, &name, 0, FUNCTION, everyone).await?;
    let (stopper, clock) = (owner.stopper(), harness.world.clock(host));
    let ended: Rc<std::cell::Cell<bool>> = Rc::default();
    let (shared, is_over) = (harness.clone(), ended.clone());
    harness.world.spawn(Some(host), format!("owner of node {node}"), async move {
        // The store counts microseconds as its milliseconds.
        let run = owner.run(move || clock.now_ns() / 1000).await;
        is_over.set(true);
        if let Err(error) = run {
            let is_explained = fault_explains(&shared, &error) || !shared.sessions_continue();
            shared.judge.expect(is_explained, || format!("the owner of node {node} ended: {error}"));
        }
    });
    let mut store =
        Store::create(&session, &name, &[NodeId(node)], FUNCTION, everyone).await?.with_timeout(TIMEOUT);
    for filler in 0..FILLER_KEYS {
        store.set(format!("filler {filler}").as_bytes(), b"", SetOptions::default()).await?;
    }
    {
        let mut kv = harness.kv.borrow_mut();
        let histories = (0..KEYS).map(|_| History::default()).collect();
        kv.stores.push(StoreState { name: name.clone(), histories, used: std::array::from_fn(|key| key) });
        let number = kv.stores.len() - 1;
        kv.current.insert(node, number);
    }
    while harness.sessions_continue() || harness.working_sessions() > 0 {
        harness.world.sleep(Some(host), CHECK_INTERVAL).await;
    }
    stopper.stop();
    while !ended.get() {
        harness.world.sleep(Some(host), CHECK_INTERVAL).await;
    }
    // If the map fails, the leak check frees the head.
    if let Ok(head) = session.map(&name, Permissions::MASTER).await {
        let _ = session.free(head).await;
    }
    Ok(())
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let node = actor.random.below(actor.harness.nodes().into()) as u32;
    let Some(store) = actor.harness.kv.borrow().current.get(&node).copied() else { return };
    if !actor.kv.stores.contains_key(&store) {
        return open(actor, store).await;
    }
    let key = choose_key(actor, store);
    match pick(&mut actor.random, &[10, 6, 2, 3, 3, 2, 1]) {
        0 => get(actor, key).await,
        1 => swap(actor, key, Only::Always).await,
        2 => swap(actor, key, Only::IfAbsent).await,
        3 => swap(actor, key, Only::IfPresent).await,
        4 => append(actor, key).await,
        5 => delete(actor, key).await,
        _ => expire(actor, key).await,
    }
}

/// Chooses a key of a store. Replaces a key whose history is too long to be checked.
fn choose_key(actor: &mut Actor, store: usize) -> Key {
    let slot = actor.random.index(KEYS);
    let mut kv = actor.harness.kv.borrow_mut();
    let served = &mut kv.stores[store];
    if served.histories[served.used[slot]].is_full() {
        served.histories.push(History::default());
        served.used[slot] = served.histories.len() - 1;
    }
    Key { store, number: served.used[slot] }
}

async fn open(actor: &mut Actor, store: usize) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let name = actor.harness.kv.borrow().stores[store].name.clone();
    match actor.attempt("open a store", Store::open(&session, &name)).await {
        Some(Ok(opened)) => {
            actor.kv.stores.insert(store, opened.with_timeout(TIMEOUT));
        }
        Some(Err(error)) => {
            actor.expect_reason(fault_explains(&actor.harness, &error), begin_ns, &error);
        }
        None => {}
    }
}

/// Returns true if a fault may cause this error.
fn fault_explains(harness: &Harness, error: &KvError) -> bool {
    let can_follow_fault = match error {
        KvError::Full => return true,
        KvError::Ended | KvError::NoDirectory => true,
        KvError::Region(error) => may_follow_fault(error.cause()),
        KvError::Access(error) => access_may_follow_fault(&error.cause),
        KvError::Call(error) => matches!(
            error.cause,
            CallCause::PeerDown
                | CallCause::NotMet
                | CallCause::UnknownNode
                | CallCause::UnknownFunction
                | CallCause::Timeout
                | CallCause::NodeClosed(_)
                | CallCause::ServerClosed
                | CallCause::Draining
                | CallCause::NoReply
        ),
        _ => false,
    };
    can_follow_fault && !harness.is_fault_free()
}

/// Returns true if the operation may have been executed, or may be later, despite the error.
fn may_have_run(error: &KvError) -> bool {
    match error {
        KvError::Call(error) => error.may_have_run,
        _ => false,
    }
}

/// An operation in progress: its key, its index in the history, and its start.
struct Pending {
    key: Key,
    index: usize,
    begin_ns: u64,
}

fn with_history<T>(actor: &Actor, key: Key, f: impl FnOnce(&mut History) -> T) -> T {
    f(&mut actor.harness.kv.borrow_mut().stores[key.store].histories[key.number])
}

fn begin(actor: &Actor, key: Key, operation: Operation) -> Pending {
    actor.trace(format_args!("concerns key {} of store {}: {operation:?}", key.number, key.store));
    let begin_ns = actor.now_ns();
    let index = with_history(actor, key, |history| history.begin(begin_ns, operation));
    Pending { key, index, begin_ns }
}

impl Pending {
    /// Records the end of an operation; `complete` adds the result to it.
    fn end<T>(
        self,
        actor: &mut Actor,
        result: Option<Result<T, KvError>>,
        complete: impl FnOnce(T) -> Operation,
    ) {
        let Pending { key, index, begin_ns } = self;
        match result {
            Some(Ok(result)) => {
                let (operation, end_ns) = (complete(result), actor.now_ns());
                actor.trace(format_args!("has done {operation:?}"));
                with_history(actor, key, |history| history.end(index, end_ns, operation));
            }
            Some(Err(error)) => {
                if !may_have_run(&error) {
                    with_history(actor, key, |history| history.forget(index));
                }
                actor.expect_reason(fault_explains(&actor.harness, &error), begin_ns, &error);
                actor.kv.stores.remove(&key.store);
            }
            None => {}
        }
    }
}

/// Takes the open store, which [`put_store`] puts back.
fn take_store(actor: &mut Actor, key: Key) -> Store {
    actor.kv.stores.remove(&key.store).expect("the store is open")
}

fn put_store(actor: &mut Actor, key: Key, store: Store) {
    actor.kv.stores.insert(key.store, store);
}

async fn get(actor: &mut Actor, key: Key) {
    let (mut store, text) = (take_store(actor, key), key.bytes());
    let pending = begin(actor, key, Operation::Nothing);
    let result = actor.attempt("get a key", store.get(&text)).await;
    put_store(actor, key, store);
    let Some(found) = parse_found(actor, &pending, result) else { return };
    pending.end(actor, found, |found| Operation::Get { found });
}

/// Returns the value that was read; records a violation if no session wrote it.
fn parse_found(
    actor: &Actor,
    pending: &Pending,
    result: Option<Result<Option<Vec<u8>>, KvError>>,
) -> Option<Option<Result<Option<Value>, KvError>>> {
    match result {
        Some(Ok(Some(bytes))) => match Value::parse(&bytes) {
            Some(value) => Some(Some(Ok(Some(value)))),
            None => {
                let what = format_args!("{} bytes were read that no session wrote as one value", bytes.len());
                actor.expect(false, pending.begin_ns, what);
                None
            }
        },
        Some(Ok(None)) => Some(Some(Ok(None))),
        Some(Err(error)) => Some(Some(Err(error))),
        None => Some(None),
    }
}

fn new_token(actor: &Actor) -> u64 {
    let mut kv = actor.harness.kv.borrow_mut();
    kv.last_token += 1;
    kv.last_token
}

async fn swap(actor: &mut Actor, key: Key, only: Only) {
    let (mut store, text, token) = (take_store(actor, key), key.bytes(), new_token(actor));
    // Some values are long, and land in pieces; few of the longest fit into the first part of a heap.
    let entries = match actor.random.between(0, 15) {
        0..4 => actor.random.between(20, 150),
        4 => actor.random.between(300, 1000),
        _ => 1,
    };
    let bytes = values::bytes(token, entries);
    let new = Value::parse(&bytes).expect("the value is well-formed");
    let lifetime_us = actor.random.chance(1, 5).then(|| actor.random.between(1, LIFETIME_US_MAX));
    let expires = lifetime_us.map_or(Expires::Never, |ms| Expires::After { ms });
    let expiry = lifetime_us.map(|_| token);
    let pending = begin(actor, key, Operation::Swap { new, only, expiry, found: None });
    let expiry_index = lifetime_us
        .map(|us| with_history(actor, key, |history| history.begin_expiry(pending.begin_ns, us, token)));
    let result = actor.attempt("set a key", store.swap(&text, &bytes, SetOptions { only, expires })).await;
    put_store(actor, key, store);
    let Some(found) = parse_found(actor, &pending, result) else { return };
    end_expiry(actor, key, expiry_index, lifetime_us, &found);
    pending.end(actor, found, |found| Operation::Swap { new, only, expiry, found: Some(found) });
}

/// Sets the latest time of an expiry, if its start is known.
fn end_expiry<T>(
    actor: &Actor,
    key: Key,
    expiry_index: Option<usize>,
    lifetime_us: Option<u64>,
    result: &Option<Result<T, KvError>>,
) {
    let (Some(index), Some(us), Some(Ok(_))) = (expiry_index, lifetime_us, result) else { return };
    with_history(actor, key, |history| history.end_expiry(index, actor.now_ns(), us));
}

async fn append(actor: &mut Actor, key: Key) {
    let (mut store, text, token) = (take_store(actor, key), key.bytes(), new_token(actor));
    let pending = begin(actor, key, Operation::Append { token, len: None });
    let bytes = values::bytes(token, 1);
    let result = actor.attempt("append to a key", store.append(&text, &bytes)).await;
    put_store(actor, key, store);
    pending.end(actor, result, |len| Operation::Append { token, len: Some(len / ENTRY_BYTES as u64) });
}

async fn delete(actor: &mut Actor, key: Key) {
    let (mut store, text) = (take_store(actor, key), key.bytes());
    let pending = begin(actor, key, Operation::Delete { was: None });
    let result = actor.attempt("delete a key", store.delete(&text)).await;
    put_store(actor, key, store);
    pending.end(actor, result, |was| Operation::Delete { was: Some(was) });
}

async fn expire(actor: &mut Actor, key: Key) {
    let (mut store, text, token) = (take_store(actor, key), key.bytes(), new_token(actor));
    let us = actor.random.below(LIFETIME_US_MAX);
    let pending = begin(actor, key, Operation::Expire { expiry: token, was: None });
    let expiry_index = with_history(actor, key, |history| history.begin_expiry(pending.begin_ns, us, token));
    let expiring = store.expire_when(&text, Expires::After { ms: us }, When::Always);
    let result = actor.attempt("let a key expire", expiring).await;
    put_store(actor, key, store);
    end_expiry(actor, key, Some(expiry_index), Some(us), &result);
    pending.end(actor, result, |was| Operation::Expire { expiry: token, was: Some(was) });
}
