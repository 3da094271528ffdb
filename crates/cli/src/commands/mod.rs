//! Runs the commands. Most commands have a file in this folder. `doctor`, `figure`, `perf`, `sim` and `run` (`apps`) are separate
//! modules of the crate.

mod access;
mod config;
mod directory;
mod down;
mod drain;
mod explain;
mod forget;
mod get;
mod ls;
mod mv;
mod node;
mod put;
mod regions;
mod rm;
mod secret;
mod set;
mod stat;
mod status;
mod top;
mod up;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use halite::{Config, blocking, cluster_dir};

use crate::args::{Arguments, Command};
use crate::{apps, client, diagnostics, doctor, figure, output, perf, sim};

/// Runs the command; returns its exit status.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let log = diagnostics::requested_filter(&arguments);
    let is_given = arguments.dir.is_some();
    let dir: PathBuf = arguments.dir.unwrap_or_else(|| Config::default().dir);
    if !is_given
        && let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(|runtime| !runtime.is_empty())
        && !dir.starts_with(&runtime)
    {
        let (runtime, dir) = (Path::new(&runtime).display(), dir.display());
        output::note(&format!("{runtime} (XDG_RUNTIME_DIR) belongs to another user; using {dir}"));
    }
    let done = match arguments.command {
        Command::Up(args) => up::run(&dir, &args, log),
        Command::Node(args) => return node::run(&dir, &args),
        Command::Down(args) => down::run(&dir, &args),
        Command::Status(args) => return status::run(&dir, &args),
        Command::Top(args) => top::run(&dir, &args),
        Command::Drain(args) => return drain::run(&dir, &args),
        Command::Directory(command) => directory::run(&dir, &command),
        Command::Set(command) => set::run(&dir, &command),
        Command::Forget(args) => forget::run(&dir, &args),
        Command::Put(args) => put::run(&dir, &args),
        Command::Get(args) => get::run(&dir, &args),
        Command::Ls(args) => ls::run(&dir, &args),
        Command::Stat(args) => stat::run(&dir, &args),
        Command::Explain(args) => explain::run(&dir, &args),
        Command::Rm(args) => rm::run(&dir, &args),
        Command::Mv(args) => mv::run(&dir, &args),
        Command::Grant(args) => access::grant(&dir, &args),
        Command::Revoke(args) => access::revoke(&dir, &args),
        Command::Config(args) => {
            let unknown = arguments.unknown.iter().map(ToString::to_string);
            config::run(&dir, &args, arguments.settings, unknown.chain(arguments.refused).collect())
        }
        Command::Doctor(args) => return doctor::run(&dir, &args),
        Command::Secret(args) => secret::run(&args),
        Command::Perf(args) => perf::run(is_given.then_some(dir.as_path()), &args),
        Command::Figure(args) => figure::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Run(args) => {
            // `HALITE_DIR` may be set for later use, so it counts only if a cluster runs there.
            let uses_dir = arguments.dir_is_flag || is_given && is_running(&dir);
            apps::run(uses_dir.then_some(dir.as_path()), &args)
        }
        Command::RunWorker(args) => apps::work(&dir, &args),
        Command::RunSweep(args) => apps::sweep(&dir, &args),
        Command::PerfFanInServer(args) => perf::serve_fan_in(&args),
        Command::PerfServer(args) => perf::serve(&dir, &args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Returns true if a cluster runs in `dir`.
fn is_running(dir: &Path) -> bool {
    if client::belongs_to_other_user(dir) {
        return blocking::Session::attach(dir).is_ok();
    }
    cluster_dir::nodes(dir).is_ok_and(|nodes| nodes.iter().any(|node| node.alive))
}
