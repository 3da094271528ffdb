//! Requests to etcd and its replies: transactions over keys, as in its v3 interface.

/// A condition; if one fails, the transaction takes the other branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The key exists.
    Present(String),
    /// The key was last written at that revision.
    WrittenAt(String, u64),
    /// The key holds that value.
    Holds(String, String),
}

/// A step of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write a key.
    Put(String, String),
    /// Remove it.
    Delete(String),
    /// Read it.
    Get(String),
    /// Read keys that begin with `prefix`, in order, after `after` if given, at most `limit`.
    List {
        /// The prefix.
        prefix: String,
        /// The key to start after.
        after: Option<String>,
        /// Maximum number.
        limit: usize,
    },
}

/// An atomic transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// The steps if all conditions hold.
    pub then: Vec<Step>,
    /// The steps otherwise.
    pub otherwise: Vec<Step>,
}

impl Transaction {
    /// Whether a branch writes, and so needs space.
    pub fn writes(&self, is_so: bool) -> bool {
        let branch = if is_so { &self.then } else { &self.otherwise };
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
    /// The revision of its last write.
    pub written_at: u64,
}

/// The result of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Whether all conditions held.
    pub is_so: bool,
    /// The pairs that each step of the branch read.
    pub read: Vec<Vec<Pair>>,
    /// The revision of the store.
    pub revision: u64,
    /// The cluster id of the store.
    pub cluster: u64,
}

/// Why a transaction failed, or has an unknown result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreFailure {
    /// Whether it may have been executed, or may yet be.
    pub may_be_done: bool,
    /// Whether the store is out of space: it can still be read.
    pub is_full: bool,
    /// The cause, for display.
    pub reason: String,
}
