//! Frames: splits messages of any length into frames of limited length, and reassembles them.
//!
//! ```text
//!  message   | ............................................ |
//!  frames    | 0 | part | 0 | part | 1 | last part |            one byte marks the last frame
//! ```
//!
//! The fabric keeps sends between two nodes in order, so frames of different messages never mix.

use crate::message::MESSAGE_BYTES_MAX;

const MORE: u8 = 0;
const LAST: u8 = 1;

/// Splits an encoded message into frames of at most `frame_bytes_max` bytes, which must be at least 2.
pub fn frames(message: &[u8], frame_bytes_max: usize) -> Vec<Vec<u8>> {
    let part_bytes_max =
        frame_bytes_max.checked_sub(1).filter(|bytes| *bytes > 0).expect("frames hold a byte");
    let parts = message.len().div_ceil(part_bytes_max).max(1);
    let mut frames = Vec::with_capacity(parts);
    for index in 0..parts {
        let from = index * part_bytes_max;
        let to = message.len().min(from + part_bytes_max);
        let mut frame = Vec::with_capacity(1 + to - from);
        frame.push(if index + 1 == parts { LAST } else { MORE });
        frame.extend_from_slice(&message[from..to]);
        frames.push(frame);
    }
    frames
}

/// Reassembles messages from the frames of one peer.
#[derive(Debug, Default)]
pub struct Assembler {
    parts: Vec<u8>,
}

/// The error for bytes that are not a valid frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFrame;

impl Assembler {
    /// Handles a frame. Returns the message that the frame completes, or `None` if more frames follow. Fails if the
    /// frame is malformed or the message becomes longer than [`MESSAGE_BYTES_MAX`].
    pub fn handle_frame(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, BadFrame> {
        let (kind, part) = frame.split_first().ok_or(BadFrame)?;
        if *kind > LAST || self.parts.len() + part.len() > MESSAGE_BYTES_MAX {
            return Err(BadFrame);
        }
        self.parts.extend_from_slice(part);
        Ok((*kind == LAST).then(|| std::mem::take(&mut self.parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bad_frames_are_refused() {
        assert_eq!(Assembler::default().handle_frame(&[]), Err(BadFrame));
        assert_eq!(Assembler::default().handle_frame(&[2, 1]), Err(BadFrame));
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8), limit in 2usize..64,
        ) {
            let mut assembler = Assembler::default();
            let mut arrived = Vec::new();
            for message in &messages {
                for frame in frames(message, limit) {
                    prop_assert!(frame.len() <= limit);
                    arrived.extend(assembler.handle_frame(&frame).unwrap());
                }
            }
            prop_assert_eq!(arrived, messages);
        }
    }
}
