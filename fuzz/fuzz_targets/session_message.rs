//! Any bytes at the socket of an attached session are refused, or hold the same messages however they are cut.

#![no_main]

use halite::check_messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_messages(bytes));
