//! Arbitrary bytes of a Redis client are refused, or parse to the same requests in pieces of any size.

#![no_main]

use halite_apps::kv::redis::{Parsed, Parser, ProtocolError};
use libfuzzer_sys::fuzz_target;

/// Parses bytes in pieces of this size. Returns all requests, and the error that ends them, if any.
fn requests(bytes: &[u8], piece_bytes: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let (mut parser, mut begin, mut end, mut found) = (Parser::default(), 0, 0, Vec::new());
    while end < bytes.len() {
        end = bytes.len().min(end + piece_bytes);
        loop {
            let received = &bytes[begin..end];
            match parser.parse(received) {
                Ok(Parsed::Request(len)) => {
                    assert!((1..=received.len()).contains(&len));
                    found.push(parser.args(received).iter().map(<[u8]>::to_vec).collect());
                    begin += len;
                }
                Ok(Parsed::Dropped(len, excess)) => {
                    assert!((1..=received.len()).contains(&len));
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
    for piece_bytes in [1, 3] {
        assert_eq!(requests(bytes, piece_bytes), whole);
    }
});
