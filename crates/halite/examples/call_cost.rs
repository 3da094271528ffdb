//! What a call costs between two processes on two processors: `cargo run --release -p halite --example call_cost`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use halite::{Config, Function, Node, NodeId, ServeOptions};
use rustix::thread::{CpuSet, sched_setaffinity};

const ECHO: Function = Function(1);
const CALLS: usize = 200_000;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let mut args = std::env::args().skip(1);
    if let (Some(dir), Some("server")) = (args.next(), args.next().as_deref()) {
        return serve(dir.into());
    }
    let dir = std::env::temp_dir().join(format!("halite-call-cost-{}", std::process::id()));
    pin(1);
    let node =
        Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() }).unwrap();
    let program = std::env::current_exe().unwrap();
    let mut server = Command::new(program).arg(&dir).arg("server").stdin(Stdio::piped()).spawn().unwrap();
    let session = node.blocking_session();
    let mut output = [0; 8];
    while session.call_into(NodeId(1), ECHO, b"12345678", &mut output, PATIENCE).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..std::env::var("ROUNDS").map_or(5, |n| n.parse().unwrap()) {
        let mut samples = Vec::new();
        let mut before = Instant::now();
        for _ in 0..CALLS {
            session.call_into(NodeId(1), ECHO, b"12345678", &mut output, PATIENCE).unwrap();
            let now = Instant::now();
            samples.push((now - before).as_nanos() as u64);
            before = now;
        }
        samples.sort();
        let [least, median, tail] = [0, CALLS / 2, CALLS / 100 * 99].map(|index| samples[index]);
        println!("round trip of 8 B: median {median} ns, least {least} ns, 99 % within {tail} ns");
    }
    for _ in 0..std::env::var("MANY").map_or(3, |n| n.parse().unwrap()) {
        let begin = Instant::now();
        session.block_on(many(session.as_async(), CALLS / 16));
        let ns = begin.elapsed().as_nanos() as f64 / CALLS as f64;
        println!("16 in flight: {:.2} million calls/s", 1e3 / ns);
    }
    for _ in 0..std::env::var("WINDOWS").map_or(3, |n| n.parse().unwrap()) {
        let mut window = std::collections::VecDeque::new();
        let begin = Instant::now();
        for _ in 0..CALLS {
            if window.len() == 16 {
                let oldest: halite::blocking::PendingCall = window.pop_front().unwrap();
                oldest.answer_into(&mut output).unwrap();
            }
            window.push_back(session.post_call(NodeId(1), ECHO, b"12345678", PATIENCE).unwrap());
        }
        let ns = begin.elapsed().as_nanos() as f64 / CALLS as f64;
        println!("window of 16: {:.2} million calls/s", 1e3 / ns);
    }
    drop(server.stdin.take());
    let _ = server.kill();
    let _ = server.wait();
    drop(node);
    let _ = std::fs::remove_dir_all(dir);
}

/// Sixteen tasks, each of which makes so many calls one after the other.
async fn many(session: &halite::Session, calls: usize) {
    let mut tasks: Vec<_> = (0..16).map(|_| Some(Box::pin(several(session, calls)))).collect();
    std::future::poll_fn(|context| {
        for task in &mut tasks {
            if task.as_mut().is_some_and(|task| task.as_mut().poll(context).is_ready()) {
                *task = None;
            }
        }
        match tasks.iter().any(Option::is_some) {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        }
    })
    .await
}

async fn several(session: &halite::Session, calls: usize) {
    let mut output = [0; 8];
    for _ in 0..calls {
        session.call_into(NodeId(1), ECHO, b"12345678", &mut output, PATIENCE).await.unwrap();
    }
}

fn serve(dir: std::path::PathBuf) {
    pin(0);
    let node = Node::embedded(Config { dir, node: Some(NodeId(1)), ..Config::default() }).unwrap();
    let server = node.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let mut call = server.recv().unwrap();
    loop {
        let mut output = [0; 8];
        output.copy_from_slice(call.input());
        call = server.reply_and_recv(call, &output).unwrap();
    }
}

/// The keeper is started from this thread and stays on the same processor.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}
