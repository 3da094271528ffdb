//! MapReduce.

pub mod table;
pub mod words;
