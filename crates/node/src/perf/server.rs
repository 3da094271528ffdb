//! The other end: a process that owns the memory, plays ping-pong, and tells checksums of what it sees.
//!
//! It does as it is told by lines of JSON on its standard input, and answers each by a line.

use std::io::{self, BufRead};
use std::path::Path;

use anyhow::Context;
use halite::{Config, Node, NodeId, Permissions, blocking};
use serde::{Deserialize, Serialize};

use super::args::ServerArgs;
use super::barriers;
use super::cores::{Cores, pin};
use super::echo::{CallShape, Echo};
use super::measure::process_cpu;
use super::messages;
use super::pairs::{self, Game, Partner};
use super::pingpong::{self, Table};
use crate::output;
use crate::signals;

/// The node of the other process.
pub const CLIENT: NodeId = NodeId(1);

/// What the server can be told.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub enum Request {
    /// Make the regions of a ping-pong and map those of the client.
    Open {
        /// Pairs of threads.
        threads: usize,
        /// Bytes of each region.
        bytes: u64,
    },
    /// Play; `Ready` is answered when the threads may be led, `Errors` in the end.
    Play {
        /// Which game.
        game: Game,
        /// Pairs of threads.
        threads: usize,
        /// Bytes of each turn.
        size: u64,
        /// How many there are.
        turns: u64,
    },
    /// Serve functions until [`Request::EndServing`].
    Serve(CallShape),
    /// End them, and tell the `Errors`.
    EndServing,
    /// Tell how much processor time the process has used.
    Cpu,
    /// Tell the checksum of the first bytes of a region.
    Checksum {
        /// Its name.
        name: String,
        /// How many bytes.
        len: u64,
    },
}

/// What the server answers.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub enum Reply {
    /// It is done, or can begin.
    Ready,
    /// How often the data was not what it should be.
    Errors(u64),
    /// Processor time of the process, in nanoseconds.
    CpuNs(u64),
    /// A checksum as of [`checksum`].
    Checksum(u64),
    /// It could not be done.
    Failed(String),
}

/// The checksum by which both ends compare what they see.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Runs the server until its standard input ends.
pub fn serve(dir: &Path, args: &ServerArgs) -> anyhow::Result<()> {
    signals::die_with(args.parent)?;
    let cores = Cores::available(args.cores).context("cannot see which cores there are")?;
    // Before the node starts its threads, so that they stay there, too.
    pin(cores.of_server(0)).context("cannot stay on the server's core")?;
    let config = Config {
        dir: dir.to_owned(),
        node: Some(NodeId(0)),
        arena_bytes: args.arena,
        providers: vec![args.fabric],
        ..Config::default()
    };
    let node = Node::embedded(config).context("cannot run the server's node")?;
    answer(Reply::Ready)?;
    let session = node.blocking_session();
    let mut server = Server { node, session, cores, table: None, echo: None };
    for line in io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("cannot read what to do")?;
        let reply = server.handle(request).unwrap_or_else(|error| Reply::Failed(format!("{error:#}")));
        answer(reply)?;
    }
    let Server { node, session, .. } = server;
    drop(session);
    node.leave();
    Ok(())
}

fn answer(reply: Reply) -> anyhow::Result<()> {
    Ok(output::print_json(&reply)?)
}

struct Server {
    node: Node,
    session: blocking::Session,
    cores: Cores,
    table: Option<Table>,
    echo: Option<Echo>,
}

impl Server {
    fn handle(&mut self, request: Request) -> anyhow::Result<Reply> {
        match request {
            Request::Open { threads, bytes } => {
                let sides = [pingpong::SERVER, pingpong::CLIENT];
                self.table = Some(Table::new(&self.session, sides, threads, bytes, || Ok(()))?);
                Ok(Reply::Ready)
            }
            Request::Play { game, threads, size, turns } => match game {
                Game::Writes => {
                    let table = self.table.as_ref().context("no regions to play on")?;
                    self.follow(table.players(&self.session, size)?, turns)
                }
                Game::Messages => {
                    self.follow(messages::correspondents(&self.session, CLIENT, threads, size)?, turns)
                }
                Game::Barrier => {
                    let sessions = (0..threads).map(|_| self.node.blocking_session());
                    self.follow(barriers::members(sessions.collect()), turns)
                }
            },
            Request::Serve(shape) => {
                self.echo = Some(Echo::begin(&self.session, &self.cores, shape)?);
                Ok(Reply::Ready)
            }
            Request::EndServing => {
                let echo = self.echo.take().context("no functions are served")?;
                echo.end().map(Reply::Errors)
            }
            Request::Cpu => Ok(Reply::CpuNs(u64::try_from(process_cpu().as_nanos())?)),
            Request::Checksum { name, len } => {
                let lh = self.session.map(&name, Permissions::READ)?;
                let mut bytes = vec![0; usize::try_from(len)?];
                self.session.read(lh, 0, &mut bytes)?;
                self.session.unmap(lh)?;
                Ok(Reply::Checksum(checksum(&bytes)))
            }
        }
    }

    fn follow<P: Partner>(&self, partners: Vec<P>, turns: u64) -> anyhow::Result<Reply> {
        answer(Reply::Ready)?;
        pairs::follow(partners, turns, &self.cores).map(Reply::Errors)
    }
}
