//! Executes requests on the client's session in the node.

use std::cell::Cell;
use std::rc::Rc;

use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;
use halite_tier::qos::Priority;
use halite_tier::quota::{Quota, QuotaExceeded};
use serde::Serialize;

use super::desk::{Counted, Desk, Object, WATCH_BYTES};
use crate::error::{
    AccessError, BatchError, CallCause, CallError, NamedCallCause, NamedCallError, RegionCause, RegionError,
    ReplyError, ServeError,
};
use crate::rpc::ServeOptions;
use crate::session::attached::buffers::object;
use crate::session::attached::wire::{self, BATCH_MAX, Request, SLICE_BYTES};
use crate::session::calls::served::Received;
use crate::session::calls::{Call, Function, Message, Port, Server};
use crate::session::qos::QosError;
use crate::session::{Lh, ReadOp, Session, WriteOp};

/// Maximum number of requests in the queue of an attached session's function or port.
const QUEUED_MAX: usize = 65_536;
/// Maximum total length of these requests, in bytes: one reply must hold the inputs of all calls, with a description of
/// each.
const QUEUED_BYTES_MAX: usize = wire::PAYLOAD_BYTES_MAX - wire::REQUEST_BYTES_MAX;
/// The same maximum for users other than the node's own: together 1 GiB with the default quota of services.
const QUEUED_BYTES_OF_OTHERS_MAX: usize = 4 << 20;

/// Maximum number of callers that an attached session's function or port may name. They use memory of the node.
const CALLERS_MAX: usize = 4096;

/// Executes the request that begins at `begin` of `bytes`, and returns the reply. Returns `None` if the request is
/// malformed; the connection then ends.
pub(super) async fn carry_out(desk: Rc<Desk>, id: u64, bytes: Vec<u8>, begin: usize) -> Option<Vec<u8>> {
    let reply = carry_out_body(&desk, id, &bytes[begin..]).await;
    desk.spares.give_back(bytes);
    reply
}

async fn carry_out_body(desk: &Desk, id: u64, body: &[u8]) -> Option<Vec<u8>> {
    let (priority, request, data) = wire::decode_request(body)?;
    let session = desk.session(priority);
    // Frequent operations first; the others are boxed, because a future is as large as its largest operation.
    match request {
        Request::Read { lh, offset, len } => read(desk, session, id, lh, offset, len).await,
        Request::Write { lh, offset } => {
            slice(data.len())?;
            Some(reply(id, &session.write(lh, offset, data).await))
        }
        Request::FetchAdd { lh, offset, add } => Some(reply(id, &session.fetch_add(lh, offset, add).await)),
        Request::CompareSwap { lh, offset, expected, new } => {
            Some(reply(id, &session.compare_swap(lh, offset, expected, new).await))
        }
        request => Box::pin(carry_out_counted(desk, priority, id, request, data)).await,
    }
}

/// Returns a reply with a result.
fn reply(id: u64, result: &impl Serialize) -> Vec<u8> {
    wire::message(id, result, &[])
}

/// Checks the length of the data of one request.
fn slice(len: usize) -> Option<()> {
    (len <= SLICE_BYTES).then_some(())
}

async fn read(desk: &Desk, session: &Session, id: u64, lh: Lh, offset: u64, len: u32) -> Option<Vec<u8>> {
    slice(len as usize)?;
    let head = wire::message(id, &Ok::<(), AccessError>(()), &[]);
    let mut message = desk.spares.take(head.len() + len as usize);
    message.extend_from_slice(&head);
    let begin = message.len();
    message.resize(begin + len as usize, 0);
    match session.read(lh, offset, &mut message[begin..]).await {
        Ok(()) => {
            wire::finish(&mut message, id);
            Some(message)
        }
        failed => Some(reply(id, &failed)),
    }
}

/// Executes a request if the quotas have room for the objects that it creates.
async fn carry_out_counted(
    desk: &Desk,
    priority: Priority,
    id: u64,
    request: Request<'_>,
    data: &[u8],
) -> Option<Vec<u8>> {
    let mut places = Vec::new();
    if let Request::Serve { options, .. }
    | Request::ServeNamed { options, .. }
    | Request::OpenPort { options, .. } = &request
        && let Some(callers) = options.callers.as_ref().filter(|callers| callers.len() > CALLERS_MAX)
    {
        let (asked, max) = (callers.len() as u64, CALLERS_MAX as u64);
        return Some(wire::refused(id, QuotaExceeded { quota: Quota::Objects, asked, max }));
    }
    for (quota, amount) in quotas_of(&request) {
        match desk.reserve(*quota, *amount) {
            Ok(place) => places.push(place),
            Err(exceeded) => return Some(wire::refused(id, exceeded)),
        }
    }
    let ends_object = request.is_release() || matches!(request, Request::Reply(_));
    let reply = carry_out_other(desk, priority, id, request, data).await;
    if ends_object {
        desk.recount();
    }
    reply
}

/// Returns the quotas that must have room for the objects that a request creates, and how much room.
fn quotas_of(request: &Request<'_>) -> &'static [(Quota, u64)] {
    match request {
        Request::Serve { .. } | Request::ServeNamed { .. } | Request::OpenPort { .. } => {
            &[(Quota::Objects, 1), (Quota::Services, 1)]
        }
        Request::Alloc { .. }
        | Request::Map { .. }
        | Request::Lock { .. }
        | Request::CreateLock { .. }
        | Request::CreateBarrier { .. }
        | Request::Barrier { .. }
        | Request::OpenSender { .. }
        | Request::RecvCalls { .. }
        | Request::TryRecvCall(_) => &[(Quota::Objects, 1)],
        Request::Buffer(_) => &[(Quota::Objects, 1)],
        Request::Watch(_) => &[(Quota::Objects, 1), (Quota::Memory, WATCH_BYTES)],
        Request::WaitWord { .. } => &[(Quota::Waits, 1)],
        _ => &[],
    }
}

async fn carry_out_other(
    desk: &Desk,
    priority: Priority,
    id: u64,
    request: Request<'_>,
    data: &[u8],
) -> Option<Vec<u8>> {
    let session = desk.session(priority);
    Some(match request {
        Request::Alloc { name, len, options } => reply(id, &session.alloc_with(name, len, options).await),
        Request::Map { name, wanted } => reply(id, &session.map(name, wanted).await),
        Request::Unmap(lh) => reply(id, &session.unmap(lh).await),
        Request::Free(lh) => reply(id, &session.free(lh).await),
        Request::Grant { lh, who, permissions } => reply(id, &session.grant(lh, who, permissions).await),
        Request::Revoke { lh, who, permissions } => reply(id, &session.revoke(lh, who, permissions).await),
        Request::Seal(lh) => reply(id, &session.seal(lh).await),
        Request::MoveTo { lh, node } => reply(id, &session.move_to(lh, node).await),
        Request::SetName { lh, name } => reply(id, &session.set_name(lh, name).await),
        Request::Stat(name) => reply(id, &session.stat(name).await),
        Request::StatHandle(lh) => reply(id, &session.stat_handle(lh).await),
        Request::ListPage(after) => reply(id, &session.list_page(after).await),
        Request::ListLost => reply(id, &session.list_lost().await),
        Request::ForgetName(name) => reply(id, &session.forget_name(name).await),
        Request::ForgetNode(node) => match desk.is_owner {
            true => reply(id, &session.forget_node(node).await),
            false => reply(id, &Err::<(), _>(reserved("forget", node))),
        },
        Request::Drain { node, within, destroy } => match desk.is_owner {
            true => reply(id, &session.drain(node, within, destroy).await),
            false => reply(id, &Err::<(), _>(reserved("drain", node))),
        },
        Request::SetQos(qos) => match desk.is_owner {
            true => reply(id, &session.set_qos(qos).await),
            false => reply(id, &Err::<(), _>(QosError::NotOwner)),
        },
        Request::Qos => reply(id, &session.qos().await),
        Request::Reach { node, owner } => reply(id, &session.reach(node, owner).await),
        Request::Status => reply(id, &session.status().await),
        Request::Len(lh) => reply(id, &session.len(lh)),
        Request::Check { lh, wanted, offset, len } => {
            let operation = if wanted == Permissions::READ { "read" } else { "write" };
            reply(id, &session.check(operation, lh, wanted, offset, len).await)
        }
        Request::ReadBatch(places) => read_batch(session, id, &places).await?,
        Request::WriteBatch(places) => write_batch(session, id, &places, data).await?,
        Request::Fill { lh, offset, len, byte } => reply(id, &session.fill(lh, offset, len, byte).await),
        Request::Copy { to, to_offset, from, from_offset, len } => {
            reply(id, &session.copy(to, to_offset, from, from_offset, len).await)
        }
        Request::SwapWhile { lh, swaps } => reply(id, &session.compare_swap_while(lh, &swaps).await),
        Request::WaitWord { lh, offset, not } => {
            reply(id, &session.wait_until(lh, offset, |word| Some(word) != not).await)
        }
        Request::Barrier { name, participants, timeout } => {
            reply(id, &session.barrier(name, participants, timeout).await)
        }
        Request::CreateBarrier { name, everyone } => reply(id, &session.create_barrier(name, everyone).await),
        Request::GrantBarrier { name, who, permissions } => {
            reply(id, &session.grant_barrier(name, who, permissions).await)
        }
        Request::RevokeBarrier { name, who, permissions } => {
            reply(id, &session.revoke_barrier(name, who, permissions).await)
        }
        Request::FreeBarrier(name) => reply(id, &session.free_barrier(name).await),
        Request::Lock { name, wait } => reply(id, &session.take_and_keep(name, wait).await),
        Request::CheckLock { name, token } => reply(id, &session.check_token(name, token)),
        Request::Unlock { name, token } => reply(id, &session.unlock_token(name, token).await),
        Request::CreateLock { name, everyone } => reply(id, &session.create_lock(name, everyone).await),
        Request::GrantLock { name, who, permissions } => {
            reply(id, &session.grant_lock(name, who, permissions).await)
        }
        Request::RevokeLock { name, who, permissions } => {
            reply(id, &session.revoke_lock(name, who, permissions).await)
        }
        Request::FreeLock(name) => reply(id, &session.free_lock(name).await),
        Request::Notify { lh, offset, len, value } => {
            reply(id, &session.notify_of(lh, offset, len, value).await)
        }
        Request::Explain(lh) => reply(id, &session.explain(lh).await),
        Request::ExplainPeer(node) => reply(id, &session.explain_peer(node).await),
        Request::Seen(node) => reply(id, &Ok::<_, RegionError>(session.seen(node))),
        Request::Sessions => {
            let mut sessions = session.sessions().await;
            if let Ok(sessions) = &mut sessions
                && !desk.is_owner
            {
                sessions.retain(|session| session.principal == desk.principal());
            }
            reply(id, &sessions)
        }
        Request::Principals => {
            let mut principals = session.principals().await;
            if let Ok(principals) = &mut principals
                && !desk.is_owner
            {
                principals.retain(|used| used.principal == desk.principal());
            }
            reply(id, &principals)
        }
        Request::Servers(name) => reply(id, &session.servers(name).await),
        request => return calls(desk, priority, id, request, data).await,
    })
}

/// Calls, messages and objects.
async fn calls(
    desk: &Desk,
    priority: Priority,
    id: u64,
    request: Request<'_>,
    data: &[u8],
) -> Option<Vec<u8>> {
    let session = desk.session(priority);
    Some(match request {
        Request::Call { node, function, answer_bytes_max, timeout } => {
            let function = Function(function);
            // No room is reserved for the answer, because a client must not reserve much of the node's memory.
            let max = answer_bytes_max.map_or(wire::PAYLOAD_BYTES_MAX, |max| max as usize);
            let max = max.min(wire::PAYLOAD_BYTES_MAX);
            match desk.embedded(priority).call_for_client(node, function, data, max, timeout).await {
                Ok(bytes) => match desk.admit_answer(bytes.len()) {
                    Ok(()) => wire::message(id, &Ok::<(), CallError>(()), &[&bytes]),
                    Err(exceeded) => reply(id, &Err::<(), _>(unanswered(node, function.0, exceeded))),
                },
                Err(error) => reply(id, &Err::<(), CallError>(error)),
            }
        }
        Request::CallNamed { name, timeout } => match session.call_named(name, data, timeout).await {
            Ok(bytes) if bytes.len() > wire::PAYLOAD_BYTES_MAX => {
                let (len, max) = (bytes.len() as u64, wire::PAYLOAD_BYTES_MAX as u64);
                let cause = CallCause::ReplyTooLong { len, max };
                let error = CallError { node: NodeId::FIRST, function: 0, cause, may_have_run: true };
                let cause = NamedCallCause::Call(error);
                reply(id, &Err::<(), _>(NamedCallError { name: name.to_owned(), cause }))
            }
            Ok(bytes) => match desk.admit_answer(bytes.len()) {
                Ok(()) => wire::message(id, &Ok::<(), NamedCallError>(()), &[&bytes]),
                Err(exceeded) => {
                    let cause = NamedCallCause::Call(unanswered(NodeId::FIRST, 0, exceeded));
                    reply(id, &Err::<(), _>(NamedCallError { name: name.to_owned(), cause }))
                }
            },
            Err(error) => reply(id, &Err::<(), _>(error)),
        },
        Request::Send { node, port, waits: true } => reply(id, &session.send(node, Port(port), data).await),
        Request::Send { node, port, waits: false } => {
            reply(id, &session.try_send(node, Port(port), data).await)
        }
        Request::Buffer(len) => {
            let failed = |cause| RegionError { operation: "allocate", object: object(len), cause };
            match desk.open_buffer(len) {
                Err(RegionCause::Quota(exceeded)) => wire::refused(id, exceeded),
                opened => reply(id, &opened.map_err(failed)),
            }
        }
        Request::Watch(lh) => match session.watch(lh).await {
            Ok(watch) => opened(desk, id, Object::Watch(desk.counted(watch, Quota::Memory, WATCH_BYTES)))?,
            Err(error) => reply(id, &Err::<(), _>(error)),
        },
        Request::Serve { function, options } => {
            match session.serve(Function(function), bounded(desk, options)) {
                Ok(server) => opened(desk, id, Object::Server(desk.counted(server, Quota::Services, 1)))?,
                Err(error) => reply(id, &Err::<(), _>(error)),
            }
        }
        Request::ServeNamed { name, options } => {
            match session.serve_named(name, bounded(desk, options)).await {
                Ok(server) => opened(desk, id, Object::Server(desk.counted(server, Quota::Services, 1)))?,
                Err(error) => reply(id, &Err::<(), _>(error)),
            }
        }
        Request::OpenPort { port, options } => match session.open_port(Port(port), bounded(desk, options)) {
            Ok(mailbox) => opened(desk, id, Object::Mailbox(desk.counted(mailbox, Quota::Services, 1)))?,
            Err(error) => reply(id, &Err::<(), _>(error)),
        },
        Request::OpenSender { node, port } => {
            let sender = session.sender(node, Port(port));
            opened(desk, id, Object::Sender(Rc::new(Cell::new(Some(sender)))))?
        }
        Request::End(object) => {
            desk.end(object);
            reply(id, &())
        }
        Request::Close(object) => {
            desk.close(object)?;
            reply(id, &Ok::<(), ServeError>(()))
        }
        Request::RecvNotification(watch) => reply(id, &desk.watch(watch)?.recv().await),
        Request::TryRecvNotification(watch) => reply(id, &desk.watch(watch)?.try_recv()),
        Request::RecvCalls { server, max } => {
            let server = desk.server(server)?;
            let max = max.min(BATCH_MAX as u64).min(desk.account.room(Quota::Objects)).max(1);
            match server.recv_many(max as usize).await {
                Ok(calls) => received(desk, id, calls, false)?,
                Err(error) => reply(id, &Err::<(), _>(error)),
            }
        }
        Request::TryRecvCall(server) => match desk.server(server)?.try_recv() {
            Ok(Some(call)) => received(desk, id, vec![call], true)?,
            Ok(None) => reply(id, &Ok::<Option<()>, ServeError>(None)),
            Err(error) => reply(id, &Err::<(), _>(error)),
        },
        Request::Reply(call) => match desk.take_direct(call) {
            Some(direct) => reply(id, &direct.answer(data)),
            None => reply(id, &desk.take_call(call)?.reply(data)),
        },
        Request::IsWanted(call) => reply(id, &Ok::<bool, ReplyError>(desk.is_wanted(call)?)),
        Request::RecvMessage(mailbox) => match desk.mailbox(mailbox)?.recv().await {
            Ok(Message { from, node, bytes }) => {
                wire::message(id, &Ok::<_, ServeError>((from, node)), &[&bytes])
            }
            Err(error) => reply(id, &Err::<(), _>(error)),
        },
        Request::TryRecvMessage(mailbox) => match desk.mailbox(mailbox)?.try_recv() {
            Ok(Some(Message { from, node, bytes })) => {
                wire::message(id, &Ok::<_, ServeError>(Some((from, node))), &[&bytes])
            }
            Ok(None) => reply(id, &Ok::<Option<()>, ServeError>(None)),
            Err(error) => reply(id, &Err::<(), _>(error)),
        },
        Request::Publish(sender) => {
            let mut borrowed = desk.sender(sender)?;
            reply(id, &borrowed.sender().send(data).await)
        }
        Request::Flush(sender) => {
            let mut borrowed = desk.sender(sender)?;
            reply(id, &borrowed.sender().flush().await)
        }
        _ => return None,
    })
}

/// Receives one call of a function.
pub(super) async fn receive(desk: Rc<Desk>, id: u64, server: Rc<Counted<Server>>) -> Option<Vec<u8>> {
    let _place = match desk.reserve(Quota::Objects, 1) {
        Ok(place) => place.without_recount(),
        Err(exceeded) => return Some(wire::refused(id, exceeded)),
    };
    match server.recv_many(1).await {
        Ok(calls) => {
            let reply = received(&desk, id, calls, false);
            desk.recount();
            reply
        }
        Err(error) => Some(reply(id, &Err::<(), _>(error))),
    }
}

/// Answers a call. Returns `None` if the object is no call.
pub(super) fn answer_call(desk: &Desk, call: u64, output: &[u8]) -> Option<Result<(), ReplyError>> {
    let answered = desk.take_call(call)?.reply(output);
    desk.recount();
    Some(answered)
}

/// Returns the error of a call whose answer the node cannot keep for the client.
pub(super) fn unanswered(node: NodeId, function: u32, exceeded: QuotaExceeded) -> CallError {
    CallError { node, function, cause: CallCause::Quota(exceeded), may_have_run: true }
}

/// Limits the queue of a function or port, because it uses memory of the node.
fn bounded(desk: &Desk, options: ServeOptions) -> ServeOptions {
    let requests_max = options.requests_max.min(QUEUED_MAX);
    let bytes_max = if desk.is_owner { QUEUED_BYTES_MAX } else { QUEUED_BYTES_OF_OTHERS_MAX };
    ServeOptions { requests_max, bytes_max: options.bytes_max.min(bytes_max), ..options }
}

/// Stores a new object, and returns the reply with its id.
fn opened(desk: &Desk, id: u64, object: Object) -> Option<Vec<u8>> {
    Some(reply(id, &Ok::<u64, RegionError>(desk.keep(object)?)))
}

/// Stores received calls, and returns the reply with their inputs and ids.
fn received(desk: &Desk, id: u64, calls: Vec<Call>, is_option: bool) -> Option<Vec<u8>> {
    let mut told = Vec::with_capacity(calls.len());
    let inputs: usize = calls.iter().map(|call| call.input().len()).sum();
    let mut data = Vec::with_capacity(inputs);
    for mut call in calls {
        let (caller, node, len) = (call.caller().to_owned(), call.node(), call.input().len() as u32);
        data.extend_from_slice(call.input());
        // The client has the input; a call that waits for its answer keeps little memory.
        call.forget_input();
        told.push(Received { call: desk.keep(Object::Call(Rc::new(call)))?, caller, node, len });
    }
    Some(match is_option {
        true => wire::message(id, &Ok::<_, ServeError>(Some(told)), &[&data]),
        false => wire::message(id, &Ok::<_, ServeError>(told), &[&data]),
    })
}

/// Returns the error of an operation that only the user who runs the node may request.
fn reserved(operation: &'static str, node: NodeId) -> RegionError {
    let cause = RegionCause::PermissionDenied { missing: Permissions::MASTER };
    RegionError { operation, object: format!("node {node}"), cause }
}

async fn read_batch(session: &Session, id: u64, places: &[(Lh, u64, u32)]) -> Option<Vec<u8>> {
    let total: usize = places.iter().map(|(_, _, len)| *len as usize).sum();
    slice(total)?;
    let mut bytes = vec![0; total];
    let mut rest = &mut bytes[..];
    let mut ops = Vec::with_capacity(places.len());
    for (lh, offset, len) in places {
        let (into, behind) = rest.split_at_mut(*len as usize);
        rest = behind;
        ops.push(ReadOp { lh: *lh, offset: *offset, into });
    }
    let failed = session.read_batch(&mut ops).await.err();
    // The bytes of the reads before the one that failed are valid.
    let done = failed.as_ref().map_or(places.len(), |error| error.index);
    let valid: usize = places[..done].iter().map(|(_, _, len)| *len as usize).sum();
    Some(wire::message(id, &Ok::<Option<BatchError>, BatchError>(failed), &[&bytes[..valid]]))
}

async fn write_batch(session: &Session, id: u64, places: &[(Lh, u64, u32)], data: &[u8]) -> Option<Vec<u8>> {
    slice(data.len())?;
    let mut rest = data;
    let mut ops = Vec::with_capacity(places.len());
    for (lh, offset, len) in places {
        let (from, behind) = rest.split_at_checked(*len as usize)?;
        rest = behind;
        ops.push(WriteOp { lh: *lh, offset: *offset, from });
    }
    rest.is_empty().then_some(())?;
    Some(reply(id, &session.write_batch(&ops).await))
}
