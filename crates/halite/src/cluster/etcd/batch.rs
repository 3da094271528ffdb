//! Batches of transactions: etcd gets each batch as one request, and writes it to its disk once.
//!
//! etcd evaluates all comparisons of a transaction, including those of nested transactions, before it writes. So in a
//! batch, no transaction writes a key that another transaction compares. The result is then the same as if the
//! transactions ran one after the other.

use std::collections::BTreeSet;

use halite_tier::directory::{Compare, Step, Transaction};

/// Maximum number of transactions per batch; etcd's limit is 128 operations.
const MEMBERS_MAX: usize = 64;

/// The keys that the transactions of a batch read, write or compare.
#[derive(Default)]
pub(super) struct Batch {
    written: BTreeSet<String>,
    read: BTreeSet<String>,
    count: usize,
}

impl Batch {
    /// Adds the transaction if it may be sent in the same request as the others. Returns true if it was added.
    pub(super) fn take(&mut self, transaction: &Transaction) -> bool {
        let Some((written, read)) = keys_of(transaction) else {
            // Such a transaction is sent alone, or in another batch.
            let is_first = self.count == 0;
            self.count += if is_first { MEMBERS_MAX } else { 0 };
            return is_first;
        };
        let is_independent = self.count < MEMBERS_MAX
            && written.iter().all(|key| !self.written.contains(*key) && !self.read.contains(*key))
            && read.iter().all(|key| !self.written.contains(*key));
        if is_independent {
            self.written.extend(written.into_iter().cloned());
            self.read.extend(read.into_iter().cloned());
            self.count += 1;
        }
        is_independent
    }
}

/// Returns the keys that a transaction may write, and the keys that it compares; `None` if it compares ranges of keys.
fn keys_of(transaction: &Transaction) -> Option<(Vec<&String>, Vec<&String>)> {
    let mut read: Vec<&String> = transaction
        .compares
        .iter()
        .map(|compare| match compare {
            Compare::Absent(key)
            | Compare::Present(key)
            | Compare::WrittenAt(key, _)
            | Compare::Holds(key, _) => key,
        })
        .collect();
    let mut written = Vec::new();
    for step in transaction.then.iter().chain(&transaction.otherwise) {
        match step {
            Step::Put(key, _) | Step::Delete(key) => written.push(key),
            Step::Get(key) => read.push(key),
            Step::List { .. } => return None,
        }
    }
    Some((written, read))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Transaction {
        Transaction {
            compares: vec![Compare::Absent(name.to_owned()), Compare::WrittenAt("fence".to_owned(), 7)],
            then: vec![Step::Put(name.to_owned(), "us".to_owned())],
            otherwise: vec![Step::Get(name.to_owned()), Step::Get("fence".to_owned())],
        }
    }

    fn reading(step: Step) -> Transaction {
        Transaction { then: vec![step], ..Transaction::default() }
    }

    #[test]
    fn dependent_claims_share_no_batch() {
        let mut batch = Batch::default();
        assert!(batch.take(&claim("a")) && batch.take(&claim("b")));
        assert!(!batch.take(&claim("a")), "etcd refuses to write a key twice");
        let fence = Transaction {
            then: vec![Step::Put("fence".to_owned(), String::new())],
            ..Transaction::default()
        };
        assert!(!batch.take(&fence), "an earlier transaction compares the key");
        assert!(!batch.take(&reading(Step::Get("b".to_owned()))));
        assert!(batch.take(&reading(Step::Get("c".to_owned()))));
        assert!(!batch.take(&claim("c")), "an earlier transaction of the batch reads the key");
    }
}
