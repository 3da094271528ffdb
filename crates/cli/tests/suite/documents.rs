//! Each shell block in the documents can be pasted as a whole: it succeeds, and changes no file of the user.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Scratch, inventory};

/// Blocks behind `<!-- run: NAME -->` that this test does not run: the gate runs the README's two commands as an
/// ordinary user; developers run the blocks that build or take minutes.
const EXCLUDED: [&str; 3] = ["main", "test", "by hand"];

/// Marker of blocks that name ports, or an etcd at its default port: they run in a separate network.
const OWN_NETWORK: &str = "own network";

/// A fenced block.
struct Block {
    /// Document and line.
    place: String,
    /// Name in the block's `run` marker, if it has one.
    marker: Option<String>,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn documents() -> Vec<PathBuf> {
    let mut found = markdown_in(&root());
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        found.extend(markdown_in(&folder));
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(entries.filter(|path| path.is_dir()));
    }
    found
}

fn markdown_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Returns the fenced blocks of a document in this language.
fn blocks(path: &Path, text: &str, language: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut marker, mut block) = (None, None::<Block>);
    for (number, line) in text.lines().enumerate() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(found)) => {
                let place = format!("{}:{}", path.strip_prefix(root()).unwrap().display(), number + 1);
                let marker = marker.take().filter(|_| found == language);
                block = Some(Block { place, marker, text: String::new() });
                if found != language {
                    block.as_mut().expect("it was just begun").place.clear();
                }
            }
            (None, None) => {
                let found = line.trim().strip_prefix("<!-- run: ").and_then(|rest| rest.strip_suffix(" -->"));
                marker = found.map(str::to_owned).or(marker.filter(|_| line.trim().is_empty()));
            }
            (Some(_), Some(_)) => blocks.extend(block.take().filter(|block| !block.place.is_empty())),
            (Some(block), None) => block.text.extend([line, "\n"]),
        }
    }
    blocks
}

fn all_blocks(language: &str) -> Vec<Block> {
    let of = |path: &PathBuf| blocks(path, &std::fs::read_to_string(path).unwrap(), language);
    documents().iter().flat_map(of).collect()
}

/// Creates a folder with files whose names a careless document might overwrite.
fn user_folder(scratch: &Scratch) -> PathBuf {
    let folder = scratch.file("folder");
    std::fs::create_dir_all(folder.join("logs")).unwrap();
    for name in ["NAME", "FILE", "NODE", "N", "DIR", "users", "copy", "node-3.lock", "node-3.py", "logs/a"] {
        std::fs::write(folder.join(name), format!("the user's {name}")).unwrap();
    }
    // Files that blocks may name, as in a fresh clone.
    let copied = Command::new("cp").arg("-r").arg(root().join("plans")).arg(&folder).status().unwrap();
    assert!(copied.success());
    folder
}

/// Runs each block behind `prelude` in this shell, as a user pastes it; checks that no file of the user has changed.
fn run_blocks(name: &str, shell: &[&str], prelude: &str, blocks: &[Block]) {
    let scratch = Scratch::new(name);
    let folder = user_folder(&scratch);
    std::fs::create_dir(scratch.file("tmp")).unwrap();
    let before = inventory(&folder);
    let program = Path::new(env!("CARGO_BIN_EXE_halite")).parent().unwrap();
    let path = std::env::join_paths(
        [program.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let path = path.unwrap();
    for block in blocks {
        // Processes that a block starts end with it, even if it fails.
        let cleanup =
            "trap 'if [ -d \"${HALITE_DIR:-}\" ]; then halite down --all >/dev/null 2>&1; fi' EXIT\n";
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).args(["-eu", "-c", &(prelude.to_owned() + cleanup + &block.text)]);
        command.current_dir(&folder).stdin(Stdio::null());
        command.env("PATH", &path).env("HALITE_DIR", scratch.cluster()).env("TMPDIR", scratch.file("tmp"));
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {}: {message}", block.place, output.status);
        assert!(!message.contains("not found"), "{}: {message}", block.place);
        assert_eq!(inventory(&folder), before, "{}", block.place);
    }
    assert!(blocks.len() >= 3, "only {} blocks were found", blocks.len());
}

/// Returns the blocks that run unchanged: those of the README, or of all other documents.
fn unchanged_blocks(of_readme: bool) -> Vec<Block> {
    let mut blocks = all_blocks("sh");
    blocks.retain(|block| match block.marker.as_deref() {
        None => block.place.starts_with("README.md:") == of_readme,
        Some(marker) => {
            let is_run = EXCLUDED.contains(&marker) || marker == OWN_NETWORK;
            assert!(is_run, "{}: nothing runs blocks marked {marker:?}", block.place);
            false
        }
    });
    blocks
}

#[test]
fn readme_blocks_run() {
    run_blocks("readme", &["sh"], "", &unchanged_blocks(true));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn blocks_of_other_documents_run() {
    run_blocks("documents", &["sh"], "", &unchanged_blocks(false));
}

/// Configures the loopback interface, and starts an etcd that ends with its shell.
const HOST_WITH_ETCD: &str = r#"
ip link set lo up
setpriv --pdeathsig KILL etcd --data-dir "$(mktemp -d)" >/dev/null 2>&1 &
until ETCDCTL_API=3 etcdctl endpoint health >/dev/null 2>&1; do sleep 0.1; done
"#;

#[test]
#[ignore = "slow: .ci/deep slow"]
fn blocks_with_own_network_run() {
    let mut blocks = all_blocks("sh");
    blocks.retain(|block| block.marker.as_deref() == Some(OWN_NETWORK));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let lacks = |tool: &&str| !std::env::split_paths(&path).any(|folder| folder.join(tool).exists());
    let missing = ["ip", "unshare", "setpriv", "etcd", "etcdctl", "curl"].into_iter().find(lacks);
    let is_root = rustix::process::geteuid().is_root();
    if missing.is_some() || !is_root {
        assert!(
            std::env::var_os("HALITE_NETWORK").is_none(),
            "a network is required, and cannot be created: {missing:?}"
        );
        return println!("left out: networks need root, and {missing:?}");
    }
    run_blocks("documents-network", &["unshare", "--net", "sh"], HOST_WITH_ETCD, &blocks);
}
