//! The two ends of a measurement: this process, and a server in a process of its own or a node that runs
//! already.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use halite::{Config, Node, NodeId, blocking};

use super::cores::{Cores, pin};
use super::job::Job;
use super::scratch::Scratch;
use super::server::{CLIENT, Reply, Request};
use crate::control::{self, GRACE, Target};
use crate::output;

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

    /// A session of its own, as another process would have.
    pub fn another_session(&self) -> blocking::Session {
        self.node.blocking_session()
    }

    /// The server; none at a node that runs already.
    pub fn server(&mut self) -> Option<&mut Server> {
        self.server.as_mut()
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
pub struct Server {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(dir: &Path, job: &Job) -> anyhow::Result<Server> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.arg("--dir").arg(dir).arg("perf-server");
        command.args([
            "--parent",
            &std::process::id().to_string(),
            "--arena",
            &job.arena_bytes().to_string(),
            "--cores",
            job.pinning.name(),
        ]);
        // A group of its own: ctrl-C is for us.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot start the server process")?;
        let stdin = child.stdin.take().expect("standard input is piped");
        let stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut server = Server { child, stdin, stdout };
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
        writeln!(self.stdin, "{}", output::json_line(request)).context("the server process has ended")
    }

    /// Waits for the next reply.
    pub fn reply(&mut self) -> anyhow::Result<Reply> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("cannot hear the server process")?;
        if line.is_empty() {
            bail!("the server process has ended");
        }
        match serde_json::from_str(&line).with_context(|| format!("the server process says {line:?}"))? {
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

    fn stop(mut self) -> anyhow::Result<()> {
        control::stop(Target::of_child(0, self.child.id())?.into_iter().collect(), GRACE)?;
        self.child.wait().context("cannot see how the server process ended")?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
