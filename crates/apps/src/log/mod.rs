//! A log with many writers and many followers. All of them use one-sided operations; no thread serves the log.
//!
//! ```text
//!  NAME      | slot and segment lengths, nodes | reserved (a fetch-add) | first kept, first not freed |
//!  NAME/0    | word, record | word, record | word, rec.. | word, ..ord | void | ...       one region per segment,
//!  NAME/1    | word, record |    0         |                                              on each node in turn
//! ```
//!
//! Each slot begins with a word, which is 0 at first. A writer reserves slots by a fetch-add, writes its record after
//! their words, and makes it visible by a compare-swap of the first slot's word from 0. A follower reads slots in
//! order. If the word of a reserved slot stays 0 for too long, the follower swaps it to *void* and continues. The
//! writer's own compare-swap then fails, and the writer reserves other slots. So a skipped record never becomes visible
//! later. [`Log::trim`] frees segments that are no longer needed.
//!
//! A record is visible when [`Writer::append`] returns. All followers see the records in the same order, each once.
//! Records are lost with the node that holds their segment; there is no second copy.
//!
//! ```
//! use halite::{Config, Node, NodeId};
//! use halite_apps::log::{Follower, Log, Options, Writer};
//!
//! # let dir = std::env::temp_dir().join(format!("halite-doc-log-{}", std::process::id()));
//! # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
//! let session = node.blocking_session();
//! session.block_on(async {
//!     let session = session.as_async();
//!     let mut writer = Writer::new(Log::create(session, "audit", &Options::default()).await?, 1);
//!     writer.append(b"opened").await?;
//!     let mut follower = Follower::from_start(Log::open(session, "audit").await?).await?;
//!     let mut seen = Vec::new();
//!     follower.poll(0, |entry| seen.extend(entry.records().map(<[u8]>::to_vec))).await?;
//!     assert_eq!(seen, [b"opened"]);
//!     Ok::<(), halite_apps::log::LogError>(())
//! })?;
//! # drop(session);
//! # drop(node);
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod follower;
mod handle;
mod layout;
mod run;
mod trim;
mod writer;

pub use error::LogError;
pub use follower::{Entry, Follower};
pub use handle::{Log, Options};
pub use writer::Writer;
