//! Arbitrary bytes are refused, or decode to a greeting of a connection that survives encoding and decoding.

#![no_main]

use halite_providers::roce::check_greeting;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_greeting(bytes));
