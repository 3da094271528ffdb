//! Whatever a peer says of itself when it connects is either refused or survives being said again.

#![no_main]

use halite_tier::message::{decode_hello, encode_hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = decode_hello(bytes) {
        assert_eq!(decode_hello(&encode_hello(&hello)), Some(hello));
    }
});
