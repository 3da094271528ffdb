//! The public API over UDP.

use lab::conformance::embedded::Roce;

lab::conformance_suite!(Roce);
