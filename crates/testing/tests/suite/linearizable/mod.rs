//! What many sessions do to words and locks at once is recorded, and a checker looks for an order of the operations that
//! explains all answers and that none of them contradicts by when it began and ended.
//!
//! The checker is `todc-utils`, by [`halite_trials::linearizability`].

mod locks;
mod recorder;
mod words;
