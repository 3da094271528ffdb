//! Transactions that are sent as one: they wait for one write of etcd's disk, and cost one request.
//!
//! etcd looks at all compares of a transaction before it writes anything, also at those of transactions inside.  So those alone go together of
//! which none writes what another looks at: then it is as if they had come one behind the other.

use std::collections::BTreeSet;

use halite_tier::directory::{Compare, Step, Transaction};

/// Most in a batch: etcd takes 128 steps.
const MEMBERS_MAX: usize = 64;

/// What a batch touches so far.
#[derive(Default)]
pub(super) struct Batch {
    written: BTreeSet<String>,
    seen: BTreeSet<String>,
    count: usize,
}

impl Batch {
    /// Whether the transaction may go with those that are in it, and is in it now.
    pub(super) fn take(&mut self, transaction: &Transaction) -> bool {
        let Some((written, seen)) = touched(transaction) else {
            // It goes alone, or not with these.
            let is_first = self.count == 0;
            self.count += if is_first { MEMBERS_MAX } else { 0 };
            return is_first;
        };
        let is_apart = self.count < MEMBERS_MAX
            && written.iter().all(|key| !self.written.contains(*key) && !self.seen.contains(*key))
            && seen.iter().all(|key| !self.written.contains(*key));
        if is_apart {
            self.written.extend(written.into_iter().cloned());
            self.seen.extend(seen.into_iter().cloned());
            self.count += 1;
        }
        is_apart
    }
}

/// Keys that a transaction may write, and those that it looks at; `None` if it looks at more than single keys.
fn touched(transaction: &Transaction) -> Option<(Vec<&String>, Vec<&String>)> {
    let mut seen: Vec<&String> = transaction
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
            Step::Get(key) => seen.push(key),
            Step::List { .. } => return None,
        }
    }
    Some((written, seen))
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
        assert!(!batch.take(&claim("a")), "etcd takes no key twice");
        let fence = Transaction {
            then: vec![Step::Put("fence".to_owned(), String::new())],
            ..Transaction::default()
        };
        assert!(!batch.take(&fence), "claims look at it as it is before");
        assert!(!batch.take(&reading(Step::Get("b".to_owned()))));
        assert!(batch.take(&reading(Step::Get("c".to_owned()))));
        assert!(!batch.take(&claim("c")), "somebody looks at what is before");
    }
}
