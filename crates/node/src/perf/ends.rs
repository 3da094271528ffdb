//! The two ends of a measurement: this process, and a server in a process of its own or a node that runs
//! already.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use halite::{Config, Node, NodeId, blocking};

use super::args::name_of;
use super::cores::{Cores, pin};
use super::job::Job;
use super::server::{CLIENT, Reply, Request};
use crate::coworker::Coworker;
use crate::output;
use crate::scratch::Scratch;

/// This end, and what is known of the other.  Fields are dropped in this order: first we leave the cluster.
pub struct Ends {
    /// Our session.
    pub session: blocking::Session,
    /// The node at the other end.
    pub peer: NodeId,
    /// The cores to measure on.
    pub cores: Cores,
    node: Node,
    server: Option<Server>,
    _scratch: Option<Scratch>,
}

impl Ends {
    /// Joins the cluster in `dir` if the job names a peer, else starts a private one.
    pub fn open(dir: Option<&Path>, job: &Job) -> anyhow::Result<Ends> {
        let cores = Cores::available(job.pinning).context("cannot see which cores there are")?;
        if cores.are_too_few() {
            output::note("both ends share the only core there is: times include the switches between them");
        }
        let Some(peer) = job.peer else {
            let scratch = Scratch::create()?;
            let server = Server::start(scratch.path(), job)?;
            let node = join(&cores, scratch.path(), Some(CLIENT), job.client_arena_bytes())?;
            return Ok(Ends::new(node, NodeId(0), cores, Some(server), Some(scratch)));
        };
        let dir = dir.map_or_else(|| Config::default().dir, Path::to_owned);
        let node = join(&cores, &dir, None, 0)?;
        Ok(Ends::new(node, NodeId(peer), cores, None, None))
    }

    fn new(node: Node, peer: NodeId, cores: Cores, server: Option<Server>, scratch: Option<Scratch>) -> Ends {
        Ends { session: node.blocking_session(), peer, cores, node, server, _scratch: scratch }
    }

    /// By what the server is reached.
    pub fn provider(&self) -> anyhow::Result<&'static str> {
        let peer = self.session.explain_peer(self.peer).context("cannot see how the other end is reached")?;
        let capabilities = peer.capabilities.context("the other end is not connected")?;
        Ok(capabilities.provider)
    }

    /// Sessions of their own, as other processes would have.
    pub fn sessions(&self, count: usize) -> Vec<blocking::Session> {
        (0..count).map(|_| self.node.blocking_session()).collect()
    }

    /// The server; none at a node that runs already.
    pub fn server(&mut self) -> Option<&mut Server> {
        self.server.as_mut()
    }

    /// The server of those workloads that need one.
    pub fn own_server(&mut self) -> anyhow::Result<&mut Server> {
        self.server().context("this test needs a server of our own")
    }

    /// Leaves, then stops the server; tells what went wrong.
    pub fn close(self) -> anyhow::Result<()> {
        let Ends { node, server, _scratch, .. } = self;
        node.leave();
        server.map_or(Ok(()), Server::stop)
    }
}

/// Runs the client's node, its threads where the client's first thread is.  Not before the server has been started,
/// for that would inherit our core.
fn join(cores: &Cores, dir: &Path, node: Option<NodeId>, arena_bytes: u64) -> anyhow::Result<Node> {
    pin(cores.of_client(0)).context("cannot stay on the client's core")?;
    let config = Config { dir: dir.to_owned(), node, arena_bytes, ..Config::default() };
    Node::embedded(config).with_context(|| format!("cannot join the cluster in {}", dir.display()))
}

/// The server process.  Dropping it ends it.
pub struct Server(Coworker);

impl Server {
    fn start(dir: &Path, job: &Job) -> anyhow::Result<Server> {
        let (arena, cores) = (job.arena_bytes().to_string(), name_of(&job.pinning));
        let flags = ["--arena", &arena, "--cores", &cores, "--fabric", job.fabric].map(str::to_owned);
        let mut server = Server(Coworker::start("the server process", dir, "perf-server", &flags)?);
        server.expect(Reply::Ready)?;
        Ok(server)
    }

    /// Sends a request, and waits for a reply that is `expected`.
    pub fn ask(&mut self, request: &Request, expected: Reply) -> anyhow::Result<()> {
        self.send(request)?;
        self.expect(expected)
    }

    /// Sends a request.
    pub fn send(&mut self, request: &Request) -> anyhow::Result<()> {
        self.0.send(request)
    }

    /// Waits for the next reply.
    pub fn reply(&mut self) -> anyhow::Result<Reply> {
        match self.0.receive()? {
            Reply::Failed(why) => bail!("the server process failed: {why}"),
            reply => Ok(reply),
        }
    }

    /// Waits for the next reply, which must be `expected`.
    pub fn expect(&mut self, expected: Reply) -> anyhow::Result<()> {
        match self.reply()? {
            reply if reply == expected => Ok(()),
            other => bail!("the server process says {other:?} instead of {expected:?}"),
        }
    }

    /// Waits until it tells how often something was not what it should have been.
    pub fn errors(&mut self) -> anyhow::Result<u64> {
        match self.reply()? {
            Reply::Errors(errors) => Ok(errors),
            other => bail!("the server process says {other:?} instead of how it went"),
        }
    }

    /// The processor time that its process has used.
    pub fn cpu(&mut self) -> anyhow::Result<Duration> {
        self.send(&Request::Cpu)?;
        match self.reply()? {
            Reply::CpuNs(ns) => Ok(Duration::from_nanos(ns)),
            other => bail!("the server process says {other:?} instead of its processor time"),
        }
    }

    fn stop(self) -> anyhow::Result<()> {
        self.0.stop()
    }
}
