//! Messages: sent to the port of each node, whose receiver is sometimes slow. [`ledger`] defines the valid results.

mod ledger;

use std::rc::Rc;
use std::time::Duration;

use halite::{Driven, Mailbox, Message, NodeId, Port, SendCause, SendError, ServeOptions};
use halite_sim::{HostId, Random};

use crate::actor::{Actor, pick};
use crate::futures;
use crate::harness::{Harness, PRINCIPALS};
use ledger::{Ledger, Load, Path};

const PORT: Port = Port(5);
/// Maximum number of messages in a port's queue.
const QUEUED_MAX: usize = 6;
/// Maximum number of messages that a session publishes at a time.
const PUBLISHED_MAX: u64 = 100;
/// Maximum pause of a slow receiver, in microseconds.
const SLOW_US_MAX: u64 = 60;
/// Number of bytes before the filler.
const HEADER_BYTES: usize = 5 * 4 + 8;

#[derive(Debug, Default)]
pub(crate) struct Messages {
    ledger: Ledger,
}

/// Opens the port of a node that has just joined.
pub(crate) fn serve(harness: &Rc<Harness>, node: u32, driven: &Driven) {
    let session = driven.session_of(PRINCIPALS[0]).expect("the principal's name is valid");
    let options = ServeOptions { requests_max: QUEUED_MAX, ..ServeOptions::default() };
    let mailbox = match session.open_port(PORT, options) {
        Ok(mailbox) => mailbox,
        Err(error) => {
            return harness.judge.report_violation(format!("node {node} cannot open its port: {error}"));
        }
    };
    let name = format!("receiver of node {node}");
    let receiver = Receiver {
        harness: harness.clone(),
        host: harness.host(node),
        at: (node, harness.incarnation(node)),
        random: harness.world.random(&format!("{name} in life {}", harness.incarnation(node))),
        mailbox,
    };
    harness.world.spawn(Some(receiver.host), name, receiver.run());
}

/// Checks that all messages have arrived, after all sessions have ended.
pub(crate) fn check(harness: &Harness) {
    let is_alive = |(node, incarnation)| harness.is_up(node) && harness.incarnation(node) == incarnation;
    let missing = harness.messages.borrow().ledger.missing(is_alive);
    if let Some((path, number)) = missing.filter(|_| harness.is_fault_free()) {
        harness.judge.report_violation(format!("message {number} of {path:?} was sent, but never arrived"));
    }
}

struct Receiver {
    harness: Rc<Harness>,
    host: HostId,
    at: (u32, u32),
    random: Random,
    mailbox: Mailbox,
}

impl Receiver {
    async fn run(mut self) {
        let world = self.harness.world.clone();
        let per_mille = self.harness.plan.work.given_up_per_mille;
        loop {
            let next = self.mailbox.recv();
            match futures::run_or_cancel(&world, self.host, &mut self.random, per_mille, next).await {
                Some(Ok(message)) => self.receive(&message),
                Some(Err(_)) => return,
                // A cancelled wait loses no message.
                None => {}
            }
            if self.random.chance(1, 8) && self.harness.sessions_continue() {
                let duration = Duration::from_nanos(self.random.below(SLOW_US_MAX * 1000));
                world.sleep(Some(self.host), duration).await;
            }
        }
    }

    fn receive(&self, message: &Message) {
        let verdict = match parse(&message.bytes) {
            Some((path, number, principal)) => {
                let (node, incarnation) = self.at;
                let is_right = (path.from.0, path.to.0, PRINCIPALS.get(principal as usize).copied())
                    == (message.node.0, node, Some(message.from.as_str()));
                let arrival =
                    self.harness.messages.borrow_mut().ledger.record_arrival(path, incarnation, number);
                let arrival = arrival.map_err(|reason| format!("message {number} of {path:?}: {reason}"));
                if is_right { arrival } else { Err(format!("{path:?} arrived from {:?}", message.node)) }
            }
            None => Err("the bytes of the message differ from those that were sent".to_owned()),
        };
        verdict.unwrap_or_else(|reason| {
            self.harness.judge.report_violation(format!("at {:?} (node, life): {reason}", self.at))
        });
    }
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let to = actor.random.below(actor.harness.nodes().into()) as u32;
    let path = path_to(actor, to);
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let (number, bytes) = begin_message(actor, path);
    let load_before = actor.harness.messages.borrow().ledger.load(path);
    let is_nonblocking = actor.random.chance(1, 3);
    let result = match is_nonblocking {
        true => actor.attempt("try to send", session.try_send(NodeId(to), PORT, &bytes)).await,
        false => actor.attempt("send", session.send(NodeId(to), PORT, &bytes)).await,
    };
    let verdict = match result {
        Some(Ok(())) => {
            actor.harness.messages.borrow_mut().ledger.record_sent(
                path,
                actor.harness.incarnation(to),
                number,
            );
            Ok(())
        }
        Some(Err(error)) => {
            let may_block = is_nonblocking && may_be_full(actor, path, load_before);
            check_failure(actor, path, number, may_block, &error)
                .map_err(|reason| format!("{error}: {reason}"))
        }
        None => Ok(()),
    };
    if let Err(reason) = verdict {
        let now = actor.now_ns();
        actor
            .harness
            .judge
            .report_violation(format!("message {number} of {path:?}, from {begin_ns} to {now} ns: {reason}"));
    }
}

fn path_to(actor: &Actor, node: u32) -> Path {
    let from = (actor.node, actor.incarnation, actor.number);
    Path { from, to: (node, actor.harness.incarnation(node)) }
}

/// Records the start of a message. Returns its number and its bytes.
fn begin_message(actor: &mut Actor, path: Path) -> (u64, Vec<u8>) {
    let len = random_len(actor);
    let number = actor.harness.messages.borrow_mut().ledger.begin(path);
    actor.trace(format_args!("concerns message {number} to node {}", path.to.0));
    (number, emit(path, number, actor.principal as u32, len))
}

/// Publishes several messages to one node, and waits until all are in its port's queue.
pub(crate) async fn publish(actor: &mut Actor) {
    let to = actor.random.below(actor.harness.nodes().into()) as u32;
    let path = path_to(actor, to);
    let begin_ns = actor.now_ns();
    let mut sender = actor.session.sender(NodeId(to), PORT);
    let (mut begun, mut errors) = (Vec::new(), Vec::new());
    let count = 1 + actor.random.below(PUBLISHED_MAX);
    for _ in 0..count {
        let (number, bytes) = begin_message(actor, path);
        match actor.attempt("publish", sender.send(&bytes)).await {
            Some(Ok(())) => begun.push(number),
            Some(Err(error)) => errors.push(error),
            // The message is still delivered.
            None => {}
        }
        if actor.random.chance(1, 4) {
            let duration = Duration::from_nanos(actor.random.below(SLOW_US_MAX * 1000));
            actor.harness.world.clone().sleep(Some(actor.host), duration).await;
        }
    }
    loop {
        match actor.attempt("flush", sender.flush()).await {
            Some(Ok(())) => break,
            Some(Err(error)) => errors.push(error),
            // The outcome of messages that were outstanding at the drop is unknown.
            None => return,
        }
    }
    if errors.is_empty() {
        let incarnation = actor.harness.incarnation(to);
        let ledger = &mut actor.harness.messages.borrow_mut().ledger;
        begun.into_iter().for_each(|number| ledger.record_sent(path, incarnation, number));
        return;
    }
    // An error does not name the message that failed, but all failures have the same cause.
    for error in errors {
        let is_down = matches!(error.cause, SendCause::PeerDown | SendCause::NodeClosed(_));
        if !is_down {
            actor.harness.messages.borrow_mut().ledger.record_departure(path);
        }
        let is_explained = is_down
            || matches!(error.cause, SendCause::NotMet | SendCause::UnknownNode | SendCause::UnknownPort);
        actor.expect_reason(is_explained && !actor.harness.is_fault_free(), begin_ns, &error);
    }
}

/// Returns true if the port may be full. The node may have reserved places for other senders that must retry.
fn may_be_full(actor: &Actor, path: Path, load_before: Load) -> bool {
    actor.harness.messages.borrow().ledger.others_since(path, load_before) >= QUEUED_MAX as u64
}

fn check_failure(
    actor: &Actor,
    path: Path,
    number: u64,
    may_block: bool,
    error: &SendError,
) -> Result<(), String> {
    let ledger = &mut actor.harness.messages.borrow_mut().ledger;
    let is_fault_free = actor.harness.is_fault_free();
    let is_explained = match error.cause {
        SendCause::WouldBlock => may_block,
        SendCause::PeerDown
        | SendCause::NotMet
        | SendCause::UnknownNode
        | SendCause::UnknownPort
        | SendCause::NodeClosed(_) => !is_fault_free,
        _ => false,
    };
    let is_down = matches!(error.cause, SendCause::PeerDown | SendCause::NodeClosed(_));
    if error.may_have_arrived && !is_down {
        return Err("the message cannot have arrived".to_owned());
    }
    if !is_down {
        // A place may be reserved for the message until its port learns that it will not arrive.
        ledger.record_departure(path);
    }
    if !error.may_have_arrived {
        ledger.record_unsent(path, number)?;
    }
    if is_explained { Ok(()) } else { Err("without a known cause".to_owned()) }
}

/// Returns a random message length: one that fits into a ring, or one for which the receiver fetches the bytes.
fn random_len(actor: &mut Actor) -> usize {
    let max = [64, 1000, 4000, 30_000][pick(&mut actor.random, &[10, 5, 2, 1])];
    HEADER_BYTES + actor.random.index(max)
}

/// Creates a message: a header, and filler that derives from the number.
fn emit(path: Path, number: u64, principal: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for field in [path.from.0, path.from.1, path.from.2, path.to.0, path.to.1 << 8 | principal] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(number.to_le_bytes());
    bytes.resize(len, 0);
    for (at, byte) in bytes[HEADER_BYTES..].iter_mut().enumerate() {
        *byte = (number as usize * 31 + at) as u8;
    }
    bytes
}

/// Returns the path, the number and the principal's index; `None` if the message is damaged.
fn parse(bytes: &[u8]) -> Option<(Path, u64, u32)> {
    let field = |at: usize| {
        bytes.get(4 * at..4 * at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4")))
    };
    let (incarnation, principal) = (field(4)? >> 8, field(4)? & 0xff);
    let path = Path { from: (field(0)?, field(1)?, field(2)?), to: (field(3)?, incarnation) };
    let number = u64::from(field(5)?) | u64::from(field(6)?) << 32;
    (bytes == emit(path, number, principal, bytes.len())).then_some((path, number, principal))
}
