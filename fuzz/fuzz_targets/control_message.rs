//! Any bytes of a peer are refused, or are a message that is the same after encoding and decoding.

#![no_main]

use halite_tier::message::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode(bytes) {
        let again = decode(&encode(&message)).expect("what was decoded can be encoded and decoded");
        assert_eq!(message, again);
    }
});
