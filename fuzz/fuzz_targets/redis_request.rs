//! Any bytes of a Redis client are refused, or parsed to the same requests however they are split into pieces.

#![no_main]

use halite_apps::kv::redis::{Parsed, Parser, ProtocolError};
use libfuzzer_sys::fuzz_target;

/// Returns all requests, and the error that ends them, if any.
fn requests(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let (mut parser, mut begin, mut end, mut found) = (Parser::default(), 0, 0, Vec::new());
    while end < bytes.len() {
        end = bytes.len().min(end + piece);
        loop {
            let there = &bytes[begin..end];
            match parser.parse(there) {
                Ok(Parsed::Request(len)) => {
                    assert!((1..=there.len()).contains(&len));
                    found.push(parser.args(there).iter().map(<[u8]>::to_vec).collect());
                    begin += len;
                }
                Ok(Parsed::Dropped(len, excess)) => {
                    assert!((1..=there.len()).contains(&len));
                    found.extend(excess.map(|excess| vec![excess.to_string().into_bytes()]));
                    begin += len;
                }
                Ok(Parsed::Partial) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

fuzz_target!(|bytes: &[u8]| {
    let whole = requests(bytes, bytes.len().max(1));
    for piece in [1, 3] {
        assert_eq!(requests(bytes, piece), whole);
    }
});
