//! Requests to etcd and its replies: transactions over keys, as in etcd's v3 API.

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The key exists.
    Present(String),
    /// The key was last written at this revision.
    WrittenAt(String, u64),
    /// The key holds this value.
    Holds(String, String),
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write a key and its value.
    Put(String, String),
    /// Remove a key.
    Delete(String),
    /// Read a key.
    Get(String),
    /// Read, in order, at most `limit` keys that begin with `prefix`. If `after` is given, read only keys that sort
    /// after `after`.
    List {
        /// The prefix of the keys to read.
        prefix: String,
        /// The key after which the list starts; `None` to start at the first key.
        after: Option<String>,
        /// Maximum number of keys to read.
        limit: usize,
    },
}

/// An atomic transaction: etcd checks the conditions, and executes one of two lists of steps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// The conditions, all of which must hold for `then`.
    pub compares: Vec<Compare>,
    /// Steps to execute if all conditions hold.
    pub then: Vec<Step>,
    /// Steps to execute if any condition fails.
    pub otherwise: Vec<Step>,
}

impl Step {
    /// Reads the first `limit` keys that begin with `prefix`.
    pub(super) fn list(prefix: String, limit: usize) -> Step {
        Step::List { prefix, after: None, limit }
    }
}

impl Compare {
    /// The key was not written after `pair` was read.
    pub(super) fn unchanged(pair: &Pair) -> Compare {
        Compare::WrittenAt(pair.key.clone(), pair.written_at)
    }

    /// The key is still as it was `found`: absent, or last written at that revision.
    pub(super) fn still(key: &str, found: Option<&Pair>) -> Compare {
        found.map_or_else(|| Compare::Absent(key.to_owned()), Compare::unchanged)
    }
}

impl Transaction {
    /// Returns a transaction without conditions.
    pub(super) fn read(then: Vec<Step>) -> Transaction {
        Transaction { then, ..Transaction::default() }
    }

    /// Returns a transaction that does nothing if a condition fails.
    pub(super) fn when(compares: Vec<Compare>, then: Vec<Step>) -> Transaction {
        Transaction { compares, then, otherwise: Vec::new() }
    }

    /// Returns true if a branch writes a key, and so needs space in the store. The branch is `then` if `succeeded` is true,
    /// else `otherwise`.
    pub fn writes(&self, succeeded: bool) -> bool {
        let branch = if succeeded { &self.then } else { &self.otherwise };
        branch.iter().any(|step| matches!(step, Step::Put(..)))
    }
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The revision at which the key was last written.
    pub written_at: u64,
}

/// The result of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// True if all conditions held, so that etcd executed `then`, and false if it executed `otherwise`.
    pub succeeded: bool,
    /// The pairs that each step of the executed branch read.
    pub read: Vec<Vec<Pair>>,
    /// The revision of the store after the transaction.
    pub revision: u64,
    /// The id of the etcd cluster that executed the transaction.
    pub cluster: u64,
}

impl Stored {
    /// Returns the pairs that this step read.
    pub(super) fn pairs(&self, step: usize) -> &[Pair] {
        self.read.get(step).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the first pair that this step read.
    pub(super) fn first(&self, step: usize) -> Option<&Pair> {
        self.pairs(step).first()
    }
}

/// The reason why a transaction failed, or why its result is unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreFailure {
    /// True if etcd may have executed the transaction, or may still do so.
    pub may_be_done: bool,
    /// True if etcd is out of space, so that nodes can only read from it.
    pub is_full: bool,
    /// True if this node knows another way to etcd, which has not failed recently.
    pub has_others: bool,
    /// The cause of the failure, for display.
    pub reason: String,
}
