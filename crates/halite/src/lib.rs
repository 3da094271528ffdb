//! Named, permissioned, movable memory that processes share.
//!
//! A [`Node`] joins a cluster directory; its [`Session`]s make regions, map them by name and copy bytes in and
//! out, wherever those are.
//!
//! ```
//! use halite::{Config, Node, NodeId, Permissions, Placement};
//!
//! # let dir = std::env::temp_dir().join(format!("halite-doc-{}", std::process::id()));
//! // Usually two processes; two nodes in one work just as well.
//! let first = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
//! let second = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(1)), ..Config::default() })?;
//!
//! // One makes a region on its own node, for others to read and write ...
//! let here = first.blocking_session();
//! let everyone = Permissions::READ | Permissions::WRITE;
//! let lh = here.alloc(Some("notes"), 1 << 20, Placement::Local, everyone)?;
//! here.write(lh, 0, b"salt")?;
//!
//! // ... and the other maps it by its name.
//! let there = second.blocking_session();
//! let notes = there.map("notes", Permissions::READ | Permissions::WRITE)?;
//! let mut bytes = [0; 4];
//! there.read(notes, 0, &mut bytes)?;
//! assert_eq!(&bytes, b"salt");
//!
//! // The bytes may move to the other node; handles stay as they are.
//! here.move_to(lh, NodeId(1))?;
//! there.write(notes, 4, b"water")?;
//! assert_eq!(here.stat("notes")?.home, NodeId(1));
//! here.free(lh)?;
//! # drop((first, second));
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Bytes die with the node that holds them: replication belongs to the application.

#![forbid(unsafe_code)]

mod access;
mod alarm;
mod atomic;
mod barrier;
pub mod blocking;
pub mod cluster_dir;
mod config;
mod driven;
mod driver;
mod error;
mod explain;
mod jobs;
mod keeper;
mod leaving;
mod lock;
mod machine;
mod member;
mod memory;
mod node;
mod outbox;
mod posted;
mod rpc;
mod session;
mod surroundings;
mod ticket;
mod turns;
pub mod typed;
mod wait;
mod watch;

pub use config::{Config, EPHEMERAL_NODE_MIN, Fence, NodeId};
pub use driven::{Driven, Step};
pub use error::{
    AccessCause, AccessError, BarrierCause, BarrierError, BatchError, CopyEnd, CopyError, CopySide,
    JoinError, LockCause, LockError, NotifyCause, NotifyError, RegionCause, RegionError,
};
pub use explain::{AccessPath, PeerExplained, PieceExplained, RegionExplained, Verbs};
pub use halite_tier::message::{NAME_BYTES_MAX, NodeState, NodeStatus, RegionInfo};
pub use halite_tier::permissions::Permissions;
pub use lock::Guard;
pub use node::{Node, Seat};
pub use rpc::{
    Answer, Call, CallCause, CallError, Function, Mailbox, Message, PendingCall, Port, ReplyCause,
    ReplyError, SendCause, SendError, ServeCause, ServeError, ServeOptions, Server,
};
pub use session::{Lh, Placement, REGION_BYTES_MAX, ReadOp, Session, Who, WriteOp};
pub use surroundings::Surroundings;
pub use watch::{NOTIFICATIONS_MAX, Notification, Watch};
