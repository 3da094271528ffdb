//! Who receives the messages of the soak: none may be lost, doubled, changed, or come out of order.
//!
//! ```text
//!   message:   sender's incarnation │ its node │ receiver's incarnation │ number │ seed │ bytes of that seed
//! ```
//!
//! Numbers count from 1 for each pair of incarnations.

use std::collections::BTreeMap;

use halite::ServeCause;
use halite::blocking::Mailbox;

use super::board::{Board, Note};
use super::talk::bytes;
use super::{Failure, Result, ensure};

const HEADER_WORDS: usize = 5;

/// A message of that header: the sender's incarnation and node, the receiver's incarnation, and the number.
pub fn encode(header: [u64; HEADER_WORDS - 1], seed: u64, len: usize) -> Vec<u8> {
    let mut message: Vec<u8> = header.iter().chain([&seed]).flat_map(|word| word.to_le_bytes()).collect();
    message.extend_from_slice(&bytes(seed, len));
    message
}

/// Receives until the mailbox is closed, and notes on the board what has come.
pub fn receive(mailbox: &Mailbox, board: &Board, incarnation: u64) -> Result<()> {
    let mut heard = BTreeMap::new();
    let mut received = 0;
    loop {
        let message = match mailbox.recv() {
            Ok(message) => message,
            Err(error) if error.cause == ServeCause::Closed => return Ok(()),
            // The sender was killed while its message was fetched.
            Err(error) if error.cause == ServeCause::NodeClosed => continue,
            Err(error) => return Err(Failure(format!("a mailbox: {error}"))),
        };
        let [sender, node, receiver, number] = check(&message.bytes)?;
        ensure!(u64::from(message.node.0) == node, "a message of node {node} came from {:?}", message.node);
        received += 1;
        board.set_note(incarnation, Note::Received, received)?;
        // It may have been meant for the incarnation before this one.
        if receiver == incarnation {
            let last = heard.entry(sender).or_insert(0);
            ensure!(number == *last + 1, "message {number} of incarnation {sender} came after {last}");
            *last = number;
            board.set_note(incarnation, Note::Heard(node as u32), 0)?;
            board.set_note(incarnation, Note::HeardIncarnation(node as u32), sender)?;
            board.set_note(incarnation, Note::Heard(node as u32), number)?;
        }
    }
}

fn check(message: &[u8]) -> Result<[u64; HEADER_WORDS - 1]> {
    ensure!(message.len() >= 8 * HEADER_WORDS, "a message has {} bytes only", message.len());
    let (header, body) = message.split_at(8 * HEADER_WORDS);
    let mut words =
        header.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let [incarnation, node, receiver, number, seed] =
        std::array::from_fn(|_| words.next().expect("five words"));
    ensure!(
        body == bytes(seed, body.len()),
        "message {number} of incarnation {incarnation} is not what was sent"
    );
    Ok([incarnation, node, receiver, number])
}
