//! Scenarios of clusters in which each node is a process that can be killed, stopped and started at any moment.

mod calls;
mod churn;
mod cluster;
mod directory_dies;
mod freeing;
pub mod hosts;
mod idle;
mod locks_die;
mod movers_die;
mod moving;
mod owner_dies;
mod pattern;
mod role;
mod stopped;
mod stripes;

/// The program of the processes in scenarios. [`cluster::Process::start`] runs it.
#[test]
#[ignore = "scenarios start it, and send commands to its standard input"]
fn node_process() {
    role::run();
}
