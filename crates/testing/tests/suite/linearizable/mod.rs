//! What many sessions do to words and locks at once is recorded, and a checker looks for an order of the operations that
//! explains all answers and that none of them contradicts by when it began and ended.
//!
//! The checker ([`halite_trials::linearizability`] has it, and what is right) is not ours; that it refuses what is
//! wrong is shown here too.

mod locks;
mod recorder;
mod words;
