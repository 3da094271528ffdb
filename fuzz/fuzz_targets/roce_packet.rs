//! Arbitrary datagrams are refused, or parse to a packet that survives encoding and parsing.

#![no_main]

use std::sync::OnceLock;

use halite_rnic::wire::{Flow, ICRC_BYTES, Packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static FLOWS: OnceLock<[Flow; 2]> = OnceLock::new();
    let flows = FLOWS.get_or_init(|| {
        [("10.0.0.1:1", "10.0.0.2:2"), ("[::1]:1", "[::2]:2")]
            .map(|(from, to)| Flow::new(from.parse().expect("valid"), to.parse().expect("valid")))
    });
    for flow in flows {
        let _ = flow.open(bytes);
        let _ = flow.open_foreign(bytes);
    }
    if let Ok(packet) = Packet::parse(bytes) {
        let mut again = vec![0; bytes.len() + ICRC_BYTES];
        let len = packet.emit(&mut again);
        assert_eq!(Packet::parse(&again[..len - ICRC_BYTES]), Ok(packet));
        for flow in flows {
            flow.seal(3, &mut again[..len]);
            assert_eq!(flow.open_foreign(&again[..len]).map(|(body, _)| body), flow.open(&again[..len]));
        }
    }
});
