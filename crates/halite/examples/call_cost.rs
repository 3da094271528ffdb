//! What a call costs between two processes on two processors: `cargo run --release -p halite --example call_cost`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use halite::{Config, Function, Node, NodeId, ServeOptions};
use rustix::thread::{CpuSet, sched_setaffinity};

const ECHO: Function = Function(1);
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
    for _ in 0..5 {
        let mut samples = Vec::new();
        for _ in 0..100 {
            let begin = Instant::now();
            for _ in 0..1000 {
                session.call_into(NodeId(1), ECHO, b"12345678", &mut output, PATIENCE).unwrap();
            }
            samples.push(begin.elapsed().as_nanos() as f64 / 1000.0);
        }
        samples.sort_by(f64::total_cmp);
        println!("round trip of 8 B: median {:.1} ns, least {:.1} ns", samples[50], samples[0]);
    }
    drop(server.stdin.take());
    let _ = server.kill();
    let _ = server.wait();
    drop(node);
    let _ = std::fs::remove_dir_all(dir);
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
