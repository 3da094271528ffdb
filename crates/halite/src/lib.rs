//! Named, permissioned, movable memory, shared between processes.
//!
//! A [`Node`] joins the cluster of a directory. Its [`Session`]s allocate regions, map them by name, and read and write
//! their bytes on any node of the cluster.
//!
//! ```
//! use std::time::Duration;
//!
//! use halite::{Config, Function, Node, NodeId, Permissions, Placement, ServeOptions};
//!
//! # let dir = std::env::temp_dir().join(format!("halite-doc-{}", std::process::id()));
//! // Usually the nodes are in two processes; two nodes in one process work just as well.
//! let first = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
//! let second = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(1)), ..Config::default() })?;
//!
//! // The first node allocates a region in its own memory, which others may read and write ...
//! let here = first.blocking_session();
//! let everyone = Permissions::READ | Permissions::WRITE;
//! let lh = here.alloc(Some("notes"), 1 << 20, Placement::Local, everyone)?;
//! here.write(lh, 0, b"salt")?;
//!
//! // ... and the second node maps the region by its name.
//! let there = second.blocking_session();
//! let notes = there.map("notes", Permissions::READ | Permissions::WRITE)?;
//! let mut bytes = [0; 4];
//! there.read(notes, 0, &mut bytes)?;
//! assert_eq!(&bytes, b"salt");
//!
//! // The bytes may move to the other node; handles stay valid.
//! here.move_to(lh, NodeId(1))?;
//! there.write(notes, 4, b"water")?;
//! assert_eq!(here.stat("notes")?.home, NodeId(1));
//! here.free(lh)?;
//!
//! // A function is called by its node and number; a call may be posted, and its answer taken later.
//! let server = there.serve(Function(7), ServeOptions::default())?;
//! let pending = here.post_call(NodeId(1), Function(7), b"salt", 64, Duration::from_secs(10))?;
//! let call = server.recv()?;
//! let shout = call.input().to_ascii_uppercase();
//! call.reply(&shout)?;
//! assert_eq!(pending.answer()?, b"SALT");
//! # drop(server);
//! # drop((first, second));
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | for | see |
//! |---|---|
//! | regions | [`Session::alloc`], [`Session::map`], [`Session::read`], [`Session::write`], [`Session::move_to`], [`Session::grant`] |
//! | fills, copies and atomics, without moving the bytes to the caller | [`Session::fill`], [`Session::copy`], [`Session::fetch_add`], [`Session::compare_swap`] |
//! | calls | [`Session::serve`], [`Session::call`], [`Session::post_calls`], [`Session::call_many`]; with values instead of bytes: [`typed`] |
//! | servers and calls by name | [`Session::serve_named`], [`Session::call_named`], [`Session::servers`] |
//! | messages, and notifications of writes | [`Session::open_port`], [`Session::send`], [`Session::sender`], [`Session::write_notify`], [`Session::watch`] |
//! | reads and writes that start now and are awaited later | [`Session::post_read`], [`Session::post_write`] |
//! | waiting until a peer writes a word | [`Session::wait_until`], [`Session::progress`] |
//! | priorities of operations that share a link | [`Session::with_priority`], [`Node::set_qos`] |
//! | locks and barriers | [`Session::lock`], [`Session::barrier`] |
//! | threads instead of tasks | [`blocking`] |
//! | sessions of processes that are no nodes | [`Session::attach`], [`Config::attach`] |
//!
//! A region's bytes are lost with the node that holds them. Applications must replicate data that has to survive.

#![forbid(unsafe_code)]

mod attach;
mod cluster;
mod driver;
mod error;
mod metrics;
mod node;
mod posted;
mod rpc;
mod runtime;
mod session;

pub use cluster::cluster_dir;
pub use cluster::config::{
    AttachMode, BadEtcdAddress, BadPrincipalRule, Config, Congestion, EPHEMERAL_NODE_MIN, EtcdAddress,
    EtcdHealth, Fence, Hosts, NodeId, PrincipalRule, Provider, ResponderMode, UnixName,
};
pub use cluster::networks::NodeIdentity;
pub use driver::drained::DrainedNode;
pub use error::{
    AccessCause, AccessError, AttachError, BarrierCause, BarrierError, BatchError, CallCause, CallError,
    CopyEnd, CopyError, CopySide, EtcdError, EtcdFault, JoinError, ListedRegions, LockCause, LockError, Lost,
    LostRegion, NamedCallCause, NamedCallError, NotifyCause, NotifyError, RegionCause, RegionError,
    ReplyCause, ReplyError, SendCause, SendError, ServeCause, ServeError, UnreachableRegion,
};
pub use halite_fabric::Atomics;
pub use halite_tier::effect::NamedServer;
pub use halite_tier::message::{
    Drained, Leftover, LeftoverCause, Loss, LossCause, NAME_BYTES_MAX, NodeState, NodeStatus, Reach,
    RegionInfo,
};
pub use halite_tier::news::Over;
pub use halite_tier::permissions::Permissions;
pub use halite_tier::qos::{BadQos, Policy, Priority, Qos};
pub use halite_tier::quota::{Amounts, Quota, QuotaExceeded};
pub use metrics::{AttachedSession, Family, MetricKind, Metrics, PrincipalUse};
pub use node::Node;
pub use node::driven::{Driven, Step};
pub use rpc::ServeOptions;
pub use runtime::env::Env;
pub use session::access::posted::Posted;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use session::attached::wire::check_messages;
pub use session::buffer::Buffer;
pub use session::calls::{Answer, Call, Function, Mailbox, Message, PendingCall, Port, Sender, Server};
pub use session::explain::{
    AccessPath, PathExplained, PeerCapabilities, PeerExplained, PeerSeen, PieceExplained, QosExplained,
    RegionExplained, Verbs,
};
pub use session::lock::Guard;
pub use session::qos::{QosError, QosNow};
pub use session::watch::{NOTIFICATIONS_MAX, Notification, Watch};
pub use session::{
    AllocOptions, Lh, NamesMoved, Placement, REGION_BYTES_MAX, ReadOp, RegionPages, Session, SwapOp, Who,
    WriteOp,
};
pub use session::{blocking, typed};
