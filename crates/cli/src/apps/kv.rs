//! `halite run kv`: a key-value store, served to Redis clients until it is stopped.
//!
//! Each worker owns a shard. The first worker also serves the clients: it executes requests to its own shard, and calls
//! the owners of the other shards.

use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use halite::{Function, NodeId, Permissions, RegionCause};
use halite_apps::kv::redis::{CLIENTS_MAX, Clock, Server, ServerControl};
use halite_apps::kv::{Eviction, KvError, Local, MemoryLimit, Store};
use serde::{Deserialize, Serialize};

use super::ClusterArgs;
use super::pool::WorkerPool;
use super::shards::{self, Shard};
use super::worker::{self, Request, Worker, reply, reply_failure};
use crate::bytes::ByteCount;
use crate::child;
use crate::limits;
use crate::output::{self, UsageError};
use crate::scratch;
use crate::signals::{Listener, SignalWaiter, Wake};
use crate::threads;

/// Arguments of `halite run kv`
#[derive(Args, Clone, Debug)]
pub struct KvArgs {
    /// Address for clients; port 0: the system chooses. Clients of other hosts need a password
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "HOST:PORT")]
    listen: String,
    /// File with the password that clients must give by AUTH; only its owner may access it [default: no password]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Maximum number of client connections
    #[arg(long, default_value_t = CLIENTS_MAX as u64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    clients_max: u64,
    /// Maximum memory of keys and values, for example 512M; the shards have equal parts [default: all of their memory]
    #[arg(long, value_name = "BYTES")]
    maxmemory: Option<ByteCount>,
    /// What happens at that limit, or when a shard's memory is full: noeviction, allkeys-random or volatile-ttl
    #[arg(long, default_value_t, value_name = "POLICY")]
    maxmemory_policy: Eviction,
    /// Name of the store, which is removed at the end [default: halite-run-kv- and a random number]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// The task of one worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    pub(super) name: String,
    number: usize,
    is_replacement: bool,
    /// Address for clients; `None` for workers without clients.
    listen: Option<String>,
    password: Option<Vec<u8>>,
    clients_max: usize,
    maxmemory: u64,
    maxmemory_policy: String,
}

/// The printed result.
#[derive(Serialize, Debug)]
struct Serving {
    app: &'static str,
    address: SocketAddr,
    nodes: usize,
    fabric: Option<&'static str>,
    metrics: Vec<SocketAddr>,
}

/// The functions of the shards.
const FUNCTION: Function = Function(0x6b76_0100);

pub fn run(dir: Option<&Path>, args: &KvArgs) -> anyhow::Result<()> {
    shards::check(&args.cluster)?;
    let password = args.password_file.as_deref().map(read_password).transpose()?;
    require_password(&args.listen, password.is_some())?;
    // The listener comes first, so that no signal is lost. A second signal ends the process at once.
    let mut signals = SignalWaiter::listen().context("cannot listen for signals")?;
    let on_second_signal = || {
        // The workers would use the directory that is removed.
        child::kill_all();
        scratch::remove_own();
    };
    Listener::spawn(|_| {}, on_second_signal).context("cannot listen for signals")?;
    WorkerPool::start_without_signal_handler(dir, &args.cluster)?
        .run(|pool| serve(pool, dir.is_none(), args, password, &mut signals))
}

/// Maximum length of a password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 512;

/// Reads the first line of a file that only its owner may access.
fn read_password(path: &Path) -> anyhow::Result<Vec<u8>> {
    let refused = |why: String| UsageError(format!("--password-file {}: {why}", path.display()));
    let unreadable = |error: io::Error| refused(error.to_string());
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(refused(format!("other users may access the file (mode {mode:04o}; use 600)")).into());
    }
    let mut bytes = Vec::new();
    file.take(PASSWORD_BYTES_MAX + 2).read_to_end(&mut bytes).map_err(unreadable)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let password = line.strip_suffix(b"\r").unwrap_or(line);
    match password.len() as u64 {
        1..=PASSWORD_BYTES_MAX => Ok(password.to_vec()),
        0 => Err(refused("its first line, the password, is empty".to_owned()).into()),
        _ => Err(refused(format!("the password has more than {PASSWORD_BYTES_MAX} bytes")).into()),
    }
}

/// Fails if clients of other hosts could connect without a password.
fn require_password(listen: &str, has_password: bool) -> Result<(), UsageError> {
    // The worker reports an address that cannot be resolved.
    let mut addresses = listen.to_socket_addrs().into_iter().flatten();
    if has_password || addresses.all(|address| address.ip().to_canonical().is_loopback()) {
        return Ok(());
    }
    let why = "clients of other hosts could do everything; give a password with --password-file FILE";
    Err(UsageError(format!("--listen {listen}: {why}")))
}

fn serve(
    pool: &mut WorkerPool,
    is_own: bool,
    args: &KvArgs,
    password: Option<Vec<u8>>,
    signals: &mut SignalWaiter,
) -> anyhow::Result<()> {
    let name = super::run_name(args.name.as_deref(), "kv");
    pool.claim(&name)?;
    let workers = pool.len();
    let mut nodes = Vec::new();
    let task = |number, is_replacement| {
        Request::Task(worker::Task::Kv(Task {
            name: name.clone(),
            number,
            is_replacement,
            listen: (number == 0).then(|| args.listen.clone()),
            password: password.clone().filter(|_| number == 0),
            clients_max: args.clients_max as usize,
            maxmemory: args.maxmemory.map_or(0, |bytes| bytes.0),
            maxmemory_policy: args.maxmemory_policy.to_string(),
        }))
    };
    for number in 0..workers {
        // Each worker creates its shard and returns its node.
        nodes.push(pool.request::<u32>(number, &task(number, false))?);
        pool.set_regions_name(&name);
    }
    let address = pool.request(0, &Request::Nodes(nodes.clone()))?;
    let fabric = is_own.then(|| args.cluster.fabric().name());
    let serving = Serving { app: "kv", address, nodes: workers, fabric, metrics: pool.metrics.clone() };
    if args.cluster.json {
        output::print_json(&serving)?;
    } else {
        let metrics = pool.metrics.iter().map(|at| format!("metrics at http://{at}/metrics\n"));
        let metrics: String = metrics.collect();
        output::print(&format!("{metrics}serving Redis clients at {address}; ctrl-C stops it\n"))?;
    }
    while signals.wait() == Wake::Child {
        while let Some((number, why)) = pool.replace_ended(&args.cluster)? {
            output::note(&format!("{why}; another process takes its place, without its keys"));
            nodes[number] = pool.request(number, &task(number, true))?;
            pool.request::<()>(0, &Request::Nodes(nodes.clone()))?;
        }
    }
    // Clients must leave before the shards do.
    pool.request(0, &Request::Clear)
}

// The workers' side.

/// Executes the task of a worker, and reports the result to the parent process.
pub fn work(worker: &Worker, task: &Task) -> anyhow::Result<()> {
    let &Task { number, is_replacement, .. } = task;
    let shard =
        Shard { name: &task.name, number, functions: FUNCTION, is_replacement, outlives_memory: true };
    let clock = shards::clock();
    shards::serve_during(worker, &shard, clock.clone(), |shard| run_task(worker, task, shard, clock))
}

fn run_task(worker: &Worker, task: &Task, shard: (usize, Local), clock: Clock) -> anyhow::Result<()> {
    let session = &worker.session;
    reply(&worker.node.0)?;
    let Some(listen) = &task.listen else {
        // The owner serves the shard until the parent process ends.
        while worker.next().is_some() {}
        return Ok(());
    };
    let Some(Request::Nodes(nodes)) = worker.next() else { return worker::parent_ended() };
    let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
    let creating = Store::create(session.as_async(), &task.name, &nodes, FUNCTION, Permissions::empty());
    let store =
        session.block_on(creating).with_context(|| format!("cannot create the store {:?}", task.name))?;
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen at {listen}"))?;
    let clients_max = limits::max_clients(task.clients_max)?;
    let limit = MemoryLimit { bytes: task.maxmemory, eviction: task.maxmemory_policy.parse()? };
    let server = Server::new(session.clone(), listener, store, vec![shard], clock, clients_max)?;
    let mut server = server.with_limit(limit);
    if let Some(password) = &task.password {
        server = server.with_password(password);
    }
    let (control, address) = (server.control(), server.address());
    std::thread::scope(|scope| {
        let serving = threads::spawn_in(scope, || {
            if let Err(error) = server.run() {
                // The parent process notices the exit status in any case; the message is optional.
                let _ = reply_failure(&error.into());
                std::process::exit(1);
            }
        })?;
        let last = handle_requests(worker, task, address, &control);
        control.stop();
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if last?.is_some() { reply(&()) } else { Ok(()) }
    })
}

/// Sends the address to the parent process, and executes its requests until it ends the service.
fn handle_requests(
    worker: &Worker,
    task: &Task,
    address: SocketAddr,
    control: &ServerControl,
) -> anyhow::Result<Option<Request>> {
    reply(&address)?;
    loop {
        match worker.next() {
            Some(Request::Nodes(nodes)) => {
                place_shards(worker, task, &nodes)?;
                control.reopen();
                reply(&())?;
            }
            line => return Ok(line),
        }
    }
}

/// Records the nodes of the shards, after some have changed.
fn place_shards(worker: &Worker, task: &Task, nodes: &[u32]) -> anyhow::Result<()> {
    let session = &worker.session;
    let place_all = || {
        nodes.iter().enumerate().try_for_each(|(shard, node)| {
            session.block_on(Store::place(session.as_async(), &task.name, shard, NodeId(*node)))
        })
    };
    let placed = match place_all() {
        // The list of nodes was lost with the node that held it.
        Err(KvError::Region(error)) if matches!(error.cause(), RegionCause::Lost(_)) => {
            let nodes: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
            let creating =
                Store::create(session.as_async(), &task.name, &nodes, FUNCTION, Permissions::empty());
            session.block_on(creating).map(drop)
        }
        placed => placed,
    };
    placed.context("cannot record the new node of a shard")
}
