//! Test suites over the public API, as a library, so that every provider passes the same functions. Applications do not
//! link this crate.

pub mod conformance;
