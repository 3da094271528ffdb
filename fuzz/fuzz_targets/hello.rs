//! Arbitrary bytes are refused, or decode to a hello that survives encoding and decoding.

#![no_main]

use halite_tier::hello::Hello;
use halite_tier::ids::NodeId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = Hello::decode(bytes, NodeId(0)) {
        assert_eq!(Hello::decode(&hello.encode(), NodeId(0)), Ok(hello));
    }
});
