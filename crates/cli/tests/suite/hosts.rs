//! Clusters of several hosts, as a user at a shell sees them: hosts that share no directory, but a secret.

use crate::support;

use std::path::Path;

use rustix::process::Signal;
use support::{Process, Running, Scratch, bytes, eventually};

/// A node of a host of its own, and where others dial it.
struct Host {
    // It ends before its directory is removed.
    node: Running,
    scratch: Scratch,
    address: String,
}

impl Host {
    /// Starts node `id`, by `join` if there is a cluster already.
    fn start(id: u32, secret: &Path, join: Option<&str>) -> Host {
        let scratch = Scratch::new(&format!("host-{id}"));
        let join = join.map(|address| format!(" --join {address}")).unwrap_or_default();
        let line = format!(
            "node --id {id} --arena 64M --listen 127.0.0.1:0 --secret-file {}{join}",
            secret.display()
        );
        let mut node = Running::start(&scratch, &line);
        let said = node.line();
        let (_, address) = said.split_once("dialled at ").unwrap_or_else(|| panic!("{said}"));
        let address = address.trim().to_owned();
        Host { node, scratch, address }
    }
}

/// A secret, and three hosts, of which the last joined by one that is not the first.
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
fn what_is_put_on_one_host_is_got_and_moved_from_others() {
    let (own, [first, second, third]) = three("hosts");
    for host in [&first, &second, &third] {
        let nodes = host.scratch.nodes();
        assert_eq!(nodes.len(), 3, "{nodes:?}");
        assert!(
            nodes.iter().all(|row| row["state"] == "alive" && row["provider"] == "shm+roce"),
            "{nodes:?}"
        );
    }
    let file = own.write("model", &bytes(1_000_000));
    first.scratch.ok(&format!("put model {} --node 2", file.display()));
    second.scratch.ok("mv model --to 1");
    let copy = own.file("copy");
    third.scratch.ok(&format!("get model -o {}", copy.display()));
    assert!(std::fs::read(copy).unwrap() == bytes(1_000_000));
    let explained = third.scratch.ok("explain model");
    assert!(explained.contains("node 1: 1000032 bytes in 1 piece"), "{explained}");
}

#[test]
fn a_host_that_is_lost_is_unreachable_until_its_number_comes_back() {
    let (own, [first, second, mut third]) = three("hosts-lost");
    Process::open(third.node.pid()).kill();
    third.node.wait();
    eventually(|| second.scratch.nodes()[2]["state"] == "unreachable");
    let file = own.write("model", &bytes(1000));
    second.scratch.ok(&format!("put model {} --node 0", file.display()));
    let back = Host::start(2, &own.file("secret"), Some(&first.address));
    eventually(|| second.scratch.nodes()[2]["state"] == "alive");
    let copy = own.file("copy");
    back.scratch.ok(&format!("get model -o {}", copy.display()));
    assert!(std::fs::read(copy).unwrap() == bytes(1000));
}

#[test]
fn who_may_not_join_or_cannot_is_told_why() {
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
    assert!(complaint.contains("the secret of its cluster is another one"), "{complaint}");
    let complaint = join(&format!("--join 127.0.0.1:1 --secret-file {}", secret.display()));
    assert!(complaint.contains("no connection to 127.0.0.1:1: Connection refused"), "{complaint}");
    let complaint = join(&format!("--join {} --secret-file /nowhere", first.address));
    assert!(complaint.contains("cannot read the secret in /nowhere"), "{complaint}");
    let complaint =
        join(&format!("--join {} --fabric shm --secret-file {}", first.address, secret.display()));
    assert!(complaint.contains("nodes of several hosts need roce: shm ends at the host"), "{complaint}");
    first.node.signal(Signal::INT);
    assert!(first.node.wait().success());
}

/// `--found` is for node 0, with all other hosts in `--join`: then it founds only where none of them runs a node.
#[test]
fn who_is_to_found_and_cannot_know_whether_somebody_is_there_is_told_so() {
    let own = Scratch::new("hosts-founding");
    own.ok(&format!("secret new {}", own.file("secret").display()));
    let line = |id: u32| {
        let secret = own.file("secret");
        format!("node --id {id} --arena 64M --listen 127.0.0.1:0 --secret-file {} --found", secret.display())
    };
    let scratch = Scratch::new("hosts-blind");
    let complaint = scratch.fails(&line(0), 1);
    assert!(complaint.contains("is told of no other host; name all others (--join)"), "{complaint}");
    // Another node goes on, for one configuration serves all hosts.
    let complaint = scratch.fails(&format!("{} --join 127.0.0.1:1", line(7)), 1);
    assert!(complaint.contains("WARN node 7 founds no cluster, though it is told to"), "{complaint}");
    assert!(complaint.contains("no connection to 127.0.0.1:1: Connection refused"), "{complaint}");
}

#[test]
fn who_names_no_number_is_given_one_that_nobody_had_also_by_a_restarted_directory() {
    let own = Scratch::new("hosts-numbers");
    own.ok(&format!("secret new {}", own.file("secret").display()));
    let start = |scratch: &Scratch, listen: &str, join: &str| {
        let secret = own.file("secret");
        let mut node = Running::start(
            scratch,
            &format!("node --arena 64M --listen {listen} --secret-file {}{join}", secret.display()),
        );
        let said = node.line();
        let words: Vec<&str> = said.split_whitespace().collect();
        (words[1].parse::<u32>().unwrap(), words.last().unwrap().to_string(), node)
    };
    let founder = Scratch::new("hosts-founder");
    let (number, address, mut first) = start(&founder, "127.0.0.77:0", "");
    assert_eq!(number, 0);
    let join = format!(" --join {address}");
    let [one, two, three, four] = [1, 2, 3, 4].map(|host| Scratch::new(&format!("hosts-numbered-{host}")));
    // Nor does a number go to who cannot start.
    for (wrong, why) in [
        ("--arena 1048576G --listen 127.0.0.1:0".to_owned(), "arena"),
        (format!("--arena 64M --listen 127.0.0.1:0 --metrics {address}"), "metrics"),
        (format!("--arena 64M --listen {address}"), "no other host can dial"),
        ("--arena 64M --listen 127.0.0.1:0 --fabric shm".to_owned(), "shm ends at the host"),
    ] {
        let secret = own.file("secret");
        let complaint = one.fails(&format!("node {wrong} --secret-file {}{join}", secret.display()), 1);
        assert!(complaint.contains(why), "{complaint}");
    }
    let (number, _, mut gone) = start(&one, "127.0.0.1:0", &join);
    assert_eq!(number, 1);
    let (number, _, _stays) = start(&two, "127.0.0.1:0", &join);
    assert_eq!(number, 2);
    gone.kill();
    let (number, _, _stays_too) = start(&three, "127.0.0.1:0", &join);
    assert_eq!(number, 3);
    first.kill();
    let (number, _, _first) = start(&founder, &address, "");
    assert_eq!(number, 0);
    let (number, _, _last) = start(&four, "127.0.0.1:0", &join);
    assert_eq!(number, 4);
    eventually(|| two.nodes().iter().filter(|row| row["state"] == "alive").count() == 4);
}

#[test]
fn nodes_of_one_host_share_memory_and_reach_others_over_udp() {
    let (own, [first, second, _third]) = three("hosts-mixed");
    let beside = format!(
        "node --id 3 --arena 64M --listen 127.0.0.1:0 --secret-file {} --join {}",
        own.file("secret").display(),
        second.address
    );
    let mut beside = Running::start(&first.scratch, &beside);
    assert!(beside.line().starts_with("node 3 ready"));
    let way = |host: &Host, node: u32| {
        let told = host.scratch.json(&format!("explain {node} --json")).remove(0);
        (told["capabilities"]["provider"].clone(), told["provider_reason"].as_str().unwrap().to_owned())
    };
    for node in [0, 3] {
        assert_eq!(
            way(&first, node),
            ("shm".into(), "it is on this host, and in this cluster directory".to_owned())
        );
    }
    for (host, node) in [(&first, 1), (&second, 0), (&second, 3)] {
        assert_eq!(
            way(host, node),
            ("roce".into(), "it is on this host, in another cluster directory".to_owned())
        );
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
fn a_secret_is_replaced_while_nodes_run() {
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
        // One host after the other, as their owners come by.
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
