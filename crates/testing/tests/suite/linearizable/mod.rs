//! Records concurrent operations of many sessions on words and locks, and checks that they are linearizable: some order
//! must explain all results, with each operation between its begin and its end.
//!
//! The checker is `todc-utils`, by [`halite_trials::linearizability`].

mod locks;
mod recorder;
mod words;
