//! A channel accepts no message from a peer without the secret, buffers none of its data, and detects every change to
//! the bytes between two peers with the secret.
//!
//! The first byte selects the test. The rest are the bytes of the peer without the secret, or changes: position, then
//! mask, repeated.

#![no_main]

use std::sync::LazyLock;

use halite_providers::secure::{Channel, Secret, Secrets};
use libfuzzer_sys::fuzz_target;

static SECRETS: LazyLock<Secrets> = LazyLock::new(|| Secret::new().expect("there are random numbers").into());

/// Passes bytes of a peer without the secret to a channel.
fn receive_without_secret(bytes: &[u8]) {
    let mut channel = Channel::answer(SECRETS.clone());
    let mut left = bytes;
    loop {
        match channel.next_message() {
            Ok(Some(message)) => panic!("{message:?} was accepted from a peer without the secret"),
            Ok(None) if left.is_empty() => return,
            Err(_) => return,
            Ok(None) => {}
        }
        let (piece, rest) = left.split_at(left.len().min(channel.wanted()).min(1 + left.len() / 2));
        assert!(!piece.is_empty(), "a channel without a message requests no more bytes");
        channel.receive(piece);
        left = rest;
    }
}

/// Connects two peers with the secret, and changes bytes between them.
fn tamper(bytes: &[u8]) {
    const SENT: [&[u8]; 2] = [b"first", b"second"];
    let mut one = Channel::dial(SECRETS.clone()).expect("there are random numbers");
    let mut two = Channel::answer(SECRETS.clone());
    SENT.iter().for_each(|message| one.send(message));
    SENT.iter().for_each(|message| two.send(message));
    let mut changes = bytes.chunks_exact(2);
    let mut received = [0; 2];
    for _ in 0..2 {
        received[1] += transfer(&mut one, &mut two, &mut changes, &SENT[received[1]..]);
        received[0] += transfer(&mut two, &mut one, &mut changes, &SENT[received[0]..]);
    }
}

/// Moves bytes between two channels, with up to two changes. Returns the number of received messages.
fn transfer(
    from: &mut Channel,
    to: &mut Channel,
    changes: &mut std::slice::ChunksExact<'_, u8>,
    expected: &[&[u8]],
) -> usize {
    let mut bytes = from.output().to_vec();
    from.sent(bytes.len());
    for change in changes.by_ref().take(2) {
        if let Some(byte) = bytes.get_mut(usize::from(change[0])) {
            *byte ^= change[1];
        }
    }
    to.receive(&bytes);
    let mut received = 0;
    while let Ok(Some(message)) = to.next_message() {
        assert_eq!(Some(&&message[..]), expected.get(received), "the received message was not sent");
        received += 1;
    }
    received
}

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((kind, bytes)) if kind % 2 == 0 => receive_without_secret(bytes),
        Some((_, bytes)) => tamper(bytes),
        None => {}
    }
});
