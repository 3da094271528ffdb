//! Test suites over the public API: conformance of every fabric.
//!
//! Applications do not link this crate.  The suite is a library, so that each provider, present or future, passes the same functions.

pub mod conformance;
