//! Clusters of several hosts, from a shell: the hosts share a secret, but no directory.

use crate::support;

use std::path::Path;

use rustix::process::Signal;
use support::{Running, Scratch, bytes};

/// A node on a host with its own cluster directory, and the address at which others dial it.
struct Host {
    // The node ends before its directory is removed.
    node: Running,
    scratch: Scratch,
    address: String,
}

impl Host {
    /// Starts node `id`, which joins through `join` if a cluster exists.
    fn start(id: u32, secret: &Path, join: Option<&str>) -> Host {
        let scratch = Scratch::new(&format!("host-{id}"));
        let join = join.map(|address| format!(" --join {address}")).unwrap_or_default();
        let line = format!(
            "node --id {id} --arena 64M --listen 127.0.0.1:0 --secret-file {}{join}",
            secret.display()
        );
        let mut node = Running::start(&scratch, &line);
        let text = node.line();
        let (_, address) = text.split_once("dialled at ").unwrap_or_else(|| panic!("{text}"));
        let address = address.trim().to_owned();
        Host { node, scratch, address }
    }
}

/// Creates a secret and three hosts; the last one joins through the second.
fn three(name: &str) -> (Scratch, [Host; 3]) {
    let own = Scratch::new(name);
    own.ok(&format!("secret new {}", own.file("secret").display()));
    let secret = own.file("secret");
    let first = Host::start(0, &secret, None);
    let second = Host::start(1, &secret, Some(&first.address));
    let third = Host::start(2, &secret, Some(&second.address));
    (own, [first, second, third])
}

#[test]
fn refused_join_reports_the_reason() {
    let own = Scratch::new("hosts-refused");
    for name in ["secret", "other"] {
        own.ok(&format!("secret new {}", own.file(name).display()));
    }
    let (secret, other) = (own.file("secret"), own.file("other"));
    let mut first = Host::start(0, &secret, None);
    let join = |flags: &str| {
        let scratch = Scratch::new("hosts-stranger");
        scratch.fails(&format!("node --id 5 --arena 64M --listen 127.0.0.1:0 {flags}"), 1)
    };
    let complaint = join(&format!("--join {} --secret-file {}", first.address, other.display()));
    assert!(complaint.contains("the cluster of the other end has another secret"), "{complaint}");
    let complaint = join(&format!("--join 127.0.0.1:1 --secret-file {}", secret.display()));
    assert!(complaint.contains("no connection to 127.0.0.1:1: Connection refused"), "{complaint}");
    let several = "nosuch.invalid:7000,127.0.0.1:1";
    let complaint = join(&format!("--join {several} --secret-file {}", secret.display()));
    for part in ["no connection to 127.0.0.1:1", "cannot resolve nosuch.invalid:7000 of --join"] {
        assert!(complaint.contains(part), "{complaint}");
    }
    // A name that does not resolve is skipped if another address answers.
    let _second = Host::start(1, &secret, Some(&format!("nosuch.invalid:7000,{}", first.address)));
    let complaint = join(&format!("--join {} --secret-file /nowhere", first.address));
    assert!(complaint.contains("cannot read the secret in /nowhere"), "{complaint}");
    let complaint =
        join(&format!("--join {} --fabric shm --secret-file {}", first.address, secret.display()));
    assert!(complaint.contains("nodes of several hosts need roce; shm is for one host"), "{complaint}");
    first.node.signal(Signal::INT);
    assert!(first.node.wait().success());
}

#[test]
fn shm_within_a_host_and_udp_between_hosts() {
    let (own, [first, second, _third]) = three("hosts-mixed");
    let beside = format!(
        "node --id 3 --arena 64M --listen 127.0.0.1:0 --secret-file {} --join {}",
        own.file("secret").display(),
        second.address
    );
    let mut beside = Running::start(&first.scratch, &beside);
    assert!(beside.line().starts_with("node 3 ready"));
    for (host, node, why) in [(&first, 3, "this"), (&first, 1, "another"), (&second, 3, "another")] {
        let text = host.scratch.json(&format!("explain {node} --json")).remove(0);
        let provider = if why == "this" { "shm" } else { "roce" };
        assert_eq!(text["capabilities"]["provider"], provider, "{text}");
        assert!(text["provider_reason"].as_str().unwrap().contains(&format!("in {why} cluster directory")));
    }
    let file = own.write("model", &bytes(100_000));
    first.scratch.ok(&format!("put model {} --node 3", file.display()));
    let explained = first.scratch.ok("explain model");
    assert!(explained.contains("over shm: direct"), "{explained}");
    let copy = own.file("copy");
    second.scratch.ok(&format!("get model -o {}", copy.display()));
    assert!(std::fs::read(copy).unwrap() == bytes(100_000));
}

#[test]
fn secret_is_rotated_while_nodes_run() {
    let own = Scratch::new("hosts-rotated");
    let file = |name: &str| own.file(name);
    for name in ["old", "new"] {
        own.ok(&format!("secret new {}", file(name).display()));
    }
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    let (old, new) = (text("old"), text("new"));
    std::fs::copy(file("old"), file("first")).unwrap();
    std::fs::copy(file("old"), file("second")).unwrap();
    let first = Host::start(0, &file("first"), None);
    let second = Host::start(1, &file("second"), Some(&first.address));
    let joins = |name: &str| {
        let scratch = Scratch::new("hosts-rotated-late");
        let flags =
            format!("--listen 127.0.0.1:0 --secret-file {} --join {}", file(name).display(), second.address);
        let mut node = scratch.command(&format!("node --arena 64M --parent {} {flags}", std::process::id()));
        let mut node = Running::of({
            node.stderr(std::process::Stdio::null());
            node
        });
        node.line().contains("ready")
    };
    assert!(joins("old") && !joins("new"));
    for secrets in [format!("{old}{new}"), format!("{new}{old}")] {
        // Replaces the secret on one host after the other.
        for host in ["first", "second"] {
            std::fs::write(file(host), &secrets).unwrap();
            assert!(first.scratch.nodes()[..2].iter().all(|row| row["state"] == "alive"));
        }
        assert!(joins("old") && joins("new"));
    }
    for host in ["first", "second"] {
        std::fs::write(file(host), &new).unwrap();
    }
    assert!(joins("new") && !joins("old"));
    assert!(second.scratch.nodes().iter().filter(|row| row["state"] == "alive").count() >= 2);
}
