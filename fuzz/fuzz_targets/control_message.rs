//! Arbitrary bytes are refused, or decode to a control message that survives encoding and decoding.

#![no_main]

use halite_tier::message::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode(bytes) {
        let again = decode(&encode(&message)).expect("a decoded message can be encoded and decoded");
        assert_eq!(message, again);
    }
});
