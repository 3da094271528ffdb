//! An encrypted stream of messages between two nodes that know the cluster's secret.
//!
//! ```text
//!   dialling end                                    answering end
//!   "HLT" version  | hello with its first message ─>  one of its secrets must decrypt the hello
//!                  <── hello with its first message | "HLT" version
//!   message: up to 64 KiB ─────────────────────────>  decryption proves that the sender knows the secret
//! ```
//!
//! Frames are `kind u8 | length u16, little-endian | bytes`. The hellos follow the Noise pattern NNpsk0. Each hello
//! contains the first message of its end, so this message costs no extra round trip. Each channel has its own keys. An
//! attacker that learns the secret later cannot decrypt earlier messages, except the first message of the dialling end.
//!
//! An attacker can replay a recorded hello with the first message inside, but cannot decrypt the answer. So the
//! dialling end counts as *proven* only from its second message on ([`Channel::is_proven`]), and its first message must
//! have no lasting effect.
//!
//! If a hello's header gives a length above the maximum, the channel fails before it reads the rest.

use std::collections::VecDeque;

use snow::{Builder, HandshakeState, TransportState};

use super::secret::{Secret, Secrets};

/// Maximum length of the first message of an end, in bytes. This limits the memory that an unauthenticated sender can
/// make this node use.
pub const FIRST_BYTES_MAX: usize = 2048;

/// Maximum length of a message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX - TAG_BYTES;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: &[u8; 3] = b"HLT";
const VERSION: u8 = 2;
const PREFACE_BYTES: usize = MAGIC.len() + 1;
const HEADER_BYTES: usize = 3;
const FRAME_BYTES_MAX: usize = u16::MAX as usize;
const TAG_BYTES: usize = 16;
/// An ephemeral key, and the tag of the first message.
const HELLO_BYTES: usize = 32 + TAG_BYTES;
const HELLO_BYTES_MAX: usize = HELLO_BYTES + FIRST_BYTES_MAX;

const KIND_HELLO: u8 = 1;
const KIND_MESSAGE: u8 = 2;
const KIND_REFUSED: u8 = 3;

/// The reason why a channel failed. The caller must ignore all further bytes of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadChannel {
    /// The other end is a program that does not speak this protocol.
    #[error("the other end does not speak Halite's control protocol; is this the address of a Halite node?")]
    Stranger,
    /// The other end uses another version of the protocol.
    #[error(
        "the other end speaks version {theirs} of the control protocol, and this process version {VERSION}; use one release"
    )]
    Version {
        /// Version of the protocol that the other end uses.
        theirs: u8,
    },
    /// The two ends have different secrets.
    #[error("the cluster of the other end has another secret; use one secret file on all hosts of a cluster")]
    Secret,
    /// A message was altered in transit, so this end cannot decrypt it.
    #[error("a message of the other end was altered in transit; connect again")]
    Damaged,
    /// The system provides no random numbers.
    #[error("the system provides no random numbers for keys: getrandom failed")]
    NoRandomness,
}

/// One end of an encrypted message stream.
pub struct Channel {
    state: ChannelState,
    /// The dialling end uses the first secret. The answering end tries each secret on the hello.
    secrets: Secrets,
    /// Received bytes that have not been parsed.
    received: Vec<u8>,
    /// True once the other end has sent its version.
    has_version: bool,
    /// True if the other end has proven that it knows the secret and that its messages are no replay.
    is_proven: bool,
    /// Messages to send once the handshake is complete.
    queued: VecDeque<Vec<u8>>,
    /// Bytes to write to the stream.
    output: Vec<u8>,
}

enum ChannelState {
    /// The dialling end waits until its caller sends the first message.
    Dialling(Box<HandshakeState>),
    /// The dialling end has sent its hello, and waits for the answer.
    Dialled(Box<HandshakeState>),
    /// The answering end waits for a hello.
    Answering,
    /// The answering end has received a valid hello, and waits until its caller sends the first message.
    HelloReceived(Box<HandshakeState>),
    Up(Box<TransportState>),
    Broken(BadChannel),
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            ChannelState::Dialling(_) => "dialling",
            ChannelState::Dialled(_) => "dialled",
            ChannelState::Answering => "answering",
            ChannelState::HelloReceived(_) => "hello received",
            ChannelState::Up(_) => "up",
            ChannelState::Broken(_) => "broken",
        };
        f.debug_struct("Channel").field("state", &state).finish()
    }
}

impl Channel {
    /// Creates the dialling end of a channel. The first call of [`Channel::send`] produces the hello, with the message
    /// inside.
    pub fn dial(secrets: Secrets) -> Result<Channel, BadChannel> {
        let hello = noise(secrets.first(), |builder| builder.build_initiator())?;
        Ok(Channel::new(ChannelState::Dialling(Box::new(hello)), secrets))
    }

    /// Creates the answering end of a channel, which waits for a hello that one of the secrets decrypts.
    pub fn answer(secrets: Secrets) -> Channel {
        Channel::new(ChannelState::Answering, secrets)
    }

    fn new(state: ChannelState, secrets: Secrets) -> Channel {
        let output = [&MAGIC[..], &[VERSION]].concat();
        let (received, queued) = Default::default();
        Channel { state, secrets, received, has_version: false, is_proven: false, queued, output }
    }

    /// Queues a message. Panics if it is longer than [`MESSAGE_BYTES_MAX`] or, for the first message of an end, longer
    /// than [`FIRST_BYTES_MAX`].
    pub fn send(&mut self, message: &[u8]) {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "a message is longer than {MESSAGE_BYTES_MAX} bytes");
        match std::mem::replace(&mut self.state, ChannelState::Answering) {
            ChannelState::Dialling(hello) => self.send_hello(hello, message, ChannelState::Dialled),
            ChannelState::HelloReceived(hello) => self.send_hello(hello, message, up),
            state => {
                self.state = state;
                self.queued.push_back(message.to_vec());
            }
        }
        self.send_queued();
    }

    /// Sends the hello with the first message inside.
    fn send_hello(
        &mut self,
        mut hello: Box<HandshakeState>,
        message: &[u8],
        then: impl FnOnce(Box<HandshakeState>) -> ChannelState,
    ) {
        assert!(message.len() <= FIRST_BYTES_MAX, "a first message is longer than {FIRST_BYTES_MAX} bytes");
        let mut bytes = [0; HELLO_BYTES_MAX];
        self.state = match hello.write_message(message, &mut bytes) {
            Ok(len) => {
                self.push_frame(KIND_HELLO, &bytes[..len]);
                then(hello)
            }
            Err(_) => ChannelState::Broken(BadChannel::NoRandomness),
        };
    }

    /// Returns true once the other end has proven that it knows the secret. Messages that arrive earlier may be a
    /// replay.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Returns the bytes to write to the stream. The caller then reports the number of bytes written by
    /// [`Channel::sent`].
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Removes the first `len` bytes of the output, which the caller has written to the stream.
    pub fn sent(&mut self, len: usize) {
        self.output.drain(..len);
    }

    /// Appends bytes read from the stream; [`Channel::next_message`] decrypts them.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Returns the maximum number of bytes to read from the stream next, so that at most one whole frame is buffered.
    pub fn wanted(&self) -> usize {
        let bytes_max = match self.state {
            ChannelState::Up(_) => HEADER_BYTES + FRAME_BYTES_MAX,
            _ => PREFACE_BYTES + HEADER_BYTES + HELLO_BYTES_MAX,
        };
        bytes_max.saturating_sub(self.received.len())
    }

    /// Decrypts and returns the next message; returns `None` if more bytes are needed. After an error, the channel is
    /// unusable.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, BadChannel> {
        loop {
            let step = match self.state {
                ChannelState::Broken(why) => return Err(why),
                _ if !self.has_version => self.parse_version(),
                _ => self.parse_frame(),
            };
            match step {
                Ok(Step::NeedsBytes) => return Ok(None),
                Ok(Step::Continue) => {}
                Ok(Step::Message(message)) => return Ok(Some(message)),
                Err(why) => {
                    self.state = ChannelState::Broken(why);
                    return Err(why);
                }
            }
        }
    }

    fn parse_version(&mut self) -> Result<Step, BadChannel> {
        let len = self.received.len().min(MAGIC.len());
        if self.received[..len] != MAGIC[..len] {
            return Err(BadChannel::Stranger);
        }
        let Some(&theirs) = self.received.get(MAGIC.len()) else { return Ok(Step::NeedsBytes) };
        if theirs != VERSION {
            return Err(BadChannel::Version { theirs });
        }
        self.received.drain(..PREFACE_BYTES);
        self.has_version = true;
        Ok(Step::Continue)
    }

    fn parse_frame(&mut self) -> Result<Step, BadChannel> {
        let Some(&[kind, low, high]) = self.received.first_chunk() else { return Ok(Step::NeedsBytes) };
        let len = usize::from(u16::from_le_bytes([low, high]));
        let is_expected = match (&self.state, kind) {
            (ChannelState::Up(_), KIND_MESSAGE) => len >= TAG_BYTES,
            (ChannelState::Dialled(_) | ChannelState::Answering, KIND_HELLO) => {
                (HELLO_BYTES..=HELLO_BYTES_MAX).contains(&len)
            }
            (ChannelState::Dialled(_), KIND_REFUSED) => len == 0,
            _ => false,
        };
        if !is_expected {
            return Err(if self.is_up() { BadChannel::Damaged } else { BadChannel::Stranger });
        }
        if self.received.len() < HEADER_BYTES + len {
            return Ok(Step::NeedsBytes);
        }
        let frame: Vec<u8> = self.received.drain(..HEADER_BYTES + len).skip(HEADER_BYTES).collect();
        match (&mut self.state, kind) {
            (_, KIND_REFUSED) => Err(BadChannel::Secret),
            (ChannelState::Up(state), _) => {
                let mut message = vec![0; frame.len()];
                let len = state.read_message(&frame, &mut message).map_err(|_| BadChannel::Damaged)?;
                message.truncate(len);
                self.is_proven = true;
                Ok(Step::Message(message))
            }
            (ChannelState::Dialled(hello), _) => {
                let first = open_hello(hello, &frame).ok_or(BadChannel::Secret)?;
                if let ChannelState::Dialled(hello) =
                    std::mem::replace(&mut self.state, ChannelState::Answering)
                {
                    self.state = up(hello);
                }
                self.is_proven = true;
                self.send_queued();
                Ok(Step::Message(first))
            }
            (ChannelState::Answering, _) => self.handle_hello(&frame),
            (ChannelState::Dialling(_) | ChannelState::HelloReceived(_), _) => Err(BadChannel::Stranger),
            (ChannelState::Broken(why), _) => Err(*why),
        }
    }

    /// Accepts the hello if one of this end's secrets decrypts it. Answers at once if a message is queued.
    fn handle_hello(&mut self, frame: &[u8]) -> Result<Step, BadChannel> {
        for secret in self.secrets.all() {
            let mut hello = noise(secret, |builder| builder.build_responder())?;
            if let Some(first) = open_hello(&mut hello, frame) {
                self.state = ChannelState::HelloReceived(Box::new(hello));
                if let Some(answer) = self.queued.pop_front() {
                    self.send(&answer);
                }
                return Ok(Step::Message(first));
            }
        }
        self.push_frame(KIND_REFUSED, &[]);
        Err(BadChannel::Secret)
    }

    fn is_up(&self) -> bool {
        matches!(self.state, ChannelState::Up(_))
    }

    fn send_queued(&mut self) {
        while let ChannelState::Up(state) = &mut self.state
            && let Some(message) = self.queued.pop_front()
        {
            let mut frame = vec![0; message.len() + TAG_BYTES];
            // Encryption fails only after 2^64 messages.
            match state.write_message(&message, &mut frame) {
                Ok(len) => self.push_frame(KIND_MESSAGE, &frame[..len]),
                Err(_) => self.state = ChannelState::Broken(BadChannel::Damaged),
            }
        }
    }

    fn push_frame(&mut self, kind: u8, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).expect("a frame has at most 65535 bytes");
        self.output.push(kind);
        self.output.extend(len.to_le_bytes());
        self.output.extend(bytes);
    }
}

/// The result of parsing the received bytes.
enum Step {
    NeedsBytes,
    /// The bytes had no message; more may follow.
    Continue,
    Message(Vec<u8>),
}

/// Returns the first message, which is inside the hello; `None` if the secret does not decrypt it.
fn open_hello(hello: &mut HandshakeState, frame: &[u8]) -> Option<Vec<u8>> {
    let mut first = vec![0; frame.len()];
    let len = hello.read_message(frame, &mut first).ok()?;
    first.truncate(len);
    Some(first)
}

/// Returns the state of a channel whose two hellos are complete.
fn up(hello: Box<HandshakeState>) -> ChannelState {
    match hello.into_transport_mode() {
        Ok(state) => ChannelState::Up(Box::new(state)),
        Err(_) => ChannelState::Broken(BadChannel::Damaged),
    }
}

/// Creates the state of a handshake with this secret.
fn noise(
    secret: &Secret,
    build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, BadChannel> {
    let pattern = PATTERN.parse().expect("snow supports the pattern");
    let builder =
        Builder::new(pattern).psk(0, secret.bytes()).and_then(|builder| builder.prologue(&[VERSION]));
    builder.and_then(build).map_err(|_| BadChannel::NoRandomness)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret() -> Secret {
        Secret::new().unwrap()
    }

    /// Moves the output of one end to the other, byte by byte; returns the messages that arrive.
    fn transfer(from: &mut Channel, to: &mut Channel) -> Result<Vec<Vec<u8>>, BadChannel> {
        let mut messages = Vec::new();
        for byte in from.output().to_vec() {
            from.sent(1);
            to.receive(&[byte]);
            messages.extend(to.next_message()?);
        }
        Ok(messages)
    }

    /// Returns two ends after their handshake.
    fn pair() -> (Channel, Channel) {
        let secrets = Secrets::from(secret());
        let (mut one, mut two) = (Channel::dial(secrets.clone()).unwrap(), Channel::answer(secrets));
        handshake(&mut one, &mut two);
        (one, two)
    }

    fn handshake(one: &mut Channel, two: &mut Channel) {
        one.send(b"ping");
        assert_eq!(transfer(one, two), Ok(vec![b"ping".to_vec()]));
        two.send(b"pong");
        assert_eq!(transfer(two, one), Ok(vec![b"pong".to_vec()]));
    }

    #[test]
    fn messages_arrive_encrypted_and_in_order() {
        let (mut one, mut two) = pair();
        let long = vec![7; MESSAGE_BYTES_MAX];
        one.send(b"swordfish");
        one.send(&long);
        assert!(!one.output().windows(9).any(|bytes| bytes == b"swordfish"));
        assert_eq!(transfer(&mut one, &mut two), Ok(vec![b"swordfish".to_vec(), long]));
        two.send(b"");
        assert_eq!(transfer(&mut two, &mut one), Ok(vec![vec![]]));
    }

    #[test]
    fn both_secrets_are_accepted_during_a_replacement() {
        let (old, new) = (secret(), secret());
        for dialled_with in [&old, &new] {
            let mut one = Channel::dial(dialled_with.clone().into()).unwrap();
            let mut two = Channel::answer(Secrets::of([new.clone(), old.clone()]));
            handshake(&mut one, &mut two);
        }
    }

    #[test]
    fn a_replayed_hello_is_not_proven() {
        let secrets = Secrets::from(secret());
        let (mut one, mut two) = (Channel::dial(secrets.clone()).unwrap(), Channel::answer(secrets.clone()));
        one.send(b"ping");
        let recorded = one.output().to_vec();
        assert_eq!(transfer(&mut one, &mut two), Ok(vec![b"ping".to_vec()]));
        two.send(b"pong");
        let answer = two.output().to_vec();
        assert_eq!(transfer(&mut two, &mut one), Ok(vec![b"pong".to_vec()]));
        one.send(b"do this");
        let second = one.output().to_vec();
        let mut replayed = Channel::answer(secrets);
        replayed.receive(&recorded);
        assert_eq!(replayed.next_message(), Ok(Some(b"ping".to_vec())), "a replayed hello is valid");
        replayed.send(b"pong");
        assert_ne!(replayed.output(), answer, "each channel has its own keys");
        replayed.receive(&second);
        assert_eq!(replayed.next_message(), Err(BadChannel::Damaged), "a later message cannot be replayed");
        assert!(!replayed.is_proven());
    }

    #[test]
    fn a_message_before_the_answer_breaks_the_channel() {
        let mut two = Channel::answer(secret().into());
        let mut one = Channel::dial(two.secrets.clone()).unwrap();
        one.send(b"ping");
        transfer(&mut one, &mut two).unwrap();
        two.receive(b"\x02\x30\x00");
        assert_eq!(two.next_message(), Err(BadChannel::Stranger));
    }

    proptest! {
        // Few cases: each creates a pair of keys.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_altered_bit_is_detected(at in 0usize..40, bit in 0u8..8) {
            let (mut one, mut two) = pair();
            one.send(b"twenty bytes of text");
            let mut bytes = one.output().to_vec();
            bytes[at % (HEADER_BYTES + 20 + TAG_BYTES)] ^= 1 << bit;
            two.receive(&bytes);
            // A corrupt length can make the frame seem incomplete.
            prop_assert_ne!(two.next_message().map(|message| message.is_some()), Ok(true));
        }

        #[test]
        fn an_unauthenticated_sender_occupies_memory_for_at_most_one_hello(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let mut channel = Channel::answer(secret().into());
            for byte in [&b"HLT\x02\x01\x30\x08"[..], &bytes].concat() {
                let wanted = channel.wanted();
                if wanted == 0 || channel.next_message().is_err() {
                    break;
                }
                channel.receive(&[byte]);
                prop_assert!(channel.received.len() <= PREFACE_BYTES + HEADER_BYTES + HELLO_BYTES_MAX);
            }
        }
    }
}
