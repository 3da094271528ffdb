//! Any message on the socket on which two ends set up a connection is refused, or is the same after encoding and
//! decoding.

#![no_main]

use halite_providers::roce::check_greeting;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_greeting(bytes));
