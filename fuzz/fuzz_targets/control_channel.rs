//! A stranger cannot make a node accept a message or store its data, and changes to bytes between two peers that know
//! the secret are always detected.
//!
//! The first byte selects one of the two tests; the rest are the stranger's bytes, or the changes: position, then
//! mask, repeated.

#![no_main]

use std::sync::LazyLock;

use halite_providers::secure::{Channel, Secret, Secrets};
use libfuzzer_sys::fuzz_target;

static SECRETS: LazyLock<Secrets> = LazyLock::new(|| Secret::new().expect("there are random numbers").into());

/// Passes a stranger's bytes to a channel.
fn stranger(bytes: &[u8]) {
    let mut channel = Channel::answer(SECRETS.clone());
    let mut left = bytes;
    loop {
        match channel.next_message() {
            Ok(Some(message)) => panic!("{message:?} was accepted from a stranger"),
            Ok(None) if left.is_empty() => return,
            Err(_) => return,
            Ok(None) => {}
        }
        let (now, rest) = left.split_at(left.len().min(channel.wanted()).min(1 + left.len() / 2));
        assert!(!now.is_empty(), "a channel without a message wants no more bytes");
        channel.receive(now);
        left = rest;
    }
}

/// Connects two peers that know the secret, and changes bytes between them.
fn between(bytes: &[u8]) {
    const SAID: [&[u8]; 2] = [b"first", b"second"];
    let mut one = Channel::dial(SECRETS.clone()).expect("there are random numbers");
    let mut two = Channel::answer(SECRETS.clone());
    SAID.iter().for_each(|message| one.send(message));
    SAID.iter().for_each(|message| two.send(message));
    let mut changes = bytes.chunks_exact(2);
    let mut heard = [0; 2];
    for _ in 0..2 {
        heard[1] += carry(&mut one, &mut two, &mut changes, &SAID[heard[1]..]);
        heard[0] += carry(&mut two, &mut one, &mut changes, &SAID[heard[0]..]);
    }
}

fn carry(
    from: &mut Channel,
    to: &mut Channel,
    changes: &mut std::slice::ChunksExact<'_, u8>,
    said: &[&[u8]],
) -> usize {
    let mut bytes = from.output().to_vec();
    from.sent(bytes.len());
    for change in changes.by_ref().take(2) {
        if let Some(byte) = bytes.get_mut(usize::from(change[0])) {
            *byte ^= change[1];
        }
    }
    to.receive(&bytes);
    let mut heard = 0;
    while let Ok(Some(message)) = to.next_message() {
        assert_eq!(Some(&&message[..]), said.get(heard), "the message was not sent");
        heard += 1;
    }
    heard
}

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((kind, bytes)) if kind % 2 == 0 => stranger(bytes),
        Some((_, bytes)) => between(bytes),
        None => {}
    }
});
