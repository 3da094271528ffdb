//! Arbitrary bytes of an attached session are refused, or parse to the same messages in pieces of any size.

#![no_main]

use halite::check_messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_messages(bytes));
