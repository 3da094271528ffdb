//! Whatever comes over the socket by which two ends meet is understood, and says the same when it is said again, or is refused.

#![no_main]

use halite_providers::roce::check_greeting;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_greeting(bytes));
