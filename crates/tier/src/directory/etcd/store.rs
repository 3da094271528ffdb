//! What is asked of etcd, and what it says: transactions over keys, as its v3 interface has them.

/// What is to be so, lest the other branch of a transaction is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// There is no such key.
    Absent(String),
    /// There is one.
    Present(String),
    /// It was last written at that revision.
    WrittenAt(String, u64),
    /// It holds that.
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
    /// Read keys that begin with `prefix`, in order, those behind `after` if that is given, at most `limit` of them.
    List {
        /// How they begin.
        prefix: String,
        /// Behind which, if not from the first.
        after: Option<String>,
        /// How many at most.
        limit: usize,
    },
}

/// All of it happens, or nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// What is looked at.
    pub compares: Vec<Compare>,
    /// What is done if all is so.
    pub then: Vec<Step>,
    /// What is done if not.
    pub otherwise: Vec<Step>,
}

impl Transaction {
    /// Whether a branch takes room.
    pub fn writes(&self, is_so: bool) -> bool {
        let branch = if is_so { &self.then } else { &self.otherwise };
        branch.iter().any(|step| matches!(step, Step::Put(..)))
    }
}

/// A key with what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The key.
    pub key: String,
    /// What it holds.
    pub value: String,
    /// At which revision it was last written.
    pub written_at: u64,
}

/// What has come of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Whether all was as it should be.
    pub is_so: bool,
    /// What each step of the branch has read.
    pub read: Vec<Vec<Pair>>,
    /// The revision of the store.
    pub revision: u64,
    /// Which store it is.
    pub cluster: u64,
}

/// Why nothing is known of what has come of a transaction, or that nothing has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreFailure {
    /// Whether it may have been carried out, or may yet be.
    pub may_be_done: bool,
    /// Whether the store has no room left: it can be read as before.
    pub is_full: bool,
    /// For people.
    pub reason: String,
}
