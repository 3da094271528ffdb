//! Test suites over the public API. They are a library, so that the same cases run over every fabric. Applications do
//! not link this crate.

pub mod conformance;
