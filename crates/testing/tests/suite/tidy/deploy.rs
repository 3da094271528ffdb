//! Rules for manifests under `deploy/`: they are YAML, what they give to `halite node` are flags that it has, and what they rely on is so: what is
//! named is there, nodes have as long to leave as they take, and memory is enough.  Whether each key is one of Kubernetes or of Compose,
//! `.ci/manifests` asks their schemas.

use yaml_rust2::{Yaml, YamlLoader};

use super::Finding;

/// What is wrong with the manifest at `path`; `arguments` is the source of the command line.
pub fn findings(path: &str, text: &str, arguments: &str) -> Vec<Finding> {
    let documents = match YamlLoader::load_from_str(text) {
        Ok(documents) => documents,
        Err(error) => return vec![Finding::new(path, format!("is no YAML: {error}"))],
    };
    let mut findings: Vec<Finding> = documents
        .iter()
        .flat_map(|document| match document["kind"].as_str() {
            Some("StatefulSet") => stateful_set(document, &documents),
            _ if !document["services"].is_badvalue() => compose(document),
            _ => Vec::new(),
        })
        .map(|what| Finding::new(path, what))
        .collect();
    for words in documents.iter().flat_map(commands).filter(|words| words.starts_with("halite ")) {
        for flag in words.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
            let name = flag.split('=').next().unwrap_or_default().replace('-', "_");
            if !arguments.contains(&format!("pub {name}:")) {
                findings.push(Finding::new(path, format!("`halite` has no flag --{flag}")));
            }
        }
    }
    findings
}

/// How long a node takes to leave, in seconds, unless it is told.
const DRAIN_WITHIN_S: i64 = 25;
/// What it takes beside that, at least.
const LEAVE_S: i64 = 10;
/// What a node has beside its arena.
const REST_MIB: u64 = 512;

/// What is wrong with a StatefulSet of nodes, of `all` that is applied with it.
fn stateful_set(set: &Yaml, all: &[Yaml]) -> Vec<String> {
    let mut wrong = Vec::new();
    let pod = &set["spec"]["template"];
    let (spec, labels) = (&pod["spec"], &pod["metadata"]["labels"]);
    let mut hold = |is_so: bool, what: &str| wrong.extend((!is_so).then(|| what.to_owned()));
    hold(set["apiVersion"].as_str() == Some("apps/v1"), "a StatefulSet is of apps/v1");
    hold(&set["spec"]["selector"]["matchLabels"] == labels, "the selector is not that of the pods");
    let service = set["spec"]["serviceName"].as_str();
    let is_it = |document: &&Yaml| {
        document["kind"].as_str() == Some("Service") && document["metadata"]["name"].as_str() == service
    };
    let found = all.iter().find(is_it);
    hold(found.is_some(), "there is no service of that name");
    if let Some(service) = found {
        hold(
            service["spec"]["clusterIP"].as_str() == Some("None"),
            "the service is not headless, so that pods have no names",
        );
        hold(&service["spec"]["selector"] == labels, "the service is not that of the pods");
        let early = service["spec"]["publishNotReadyAddresses"].as_bool();
        hold(
            early == Some(true),
            "nodes do not find each other before they are ready (publishNotReadyAddresses)",
        );
    }
    hold(
        all.iter().any(|document| {
            document["kind"].as_str() == Some("PodDisruptionBudget")
                && document["spec"]["maxUnavailable"].as_i64() == Some(1)
                && &document["spec"]["selector"]["matchLabels"] == labels
        }),
        "more than one node may be taken away at a time (PodDisruptionBudget)",
    );
    hold(
        set["spec"]["podManagementPolicy"].as_str() == Some("OrderedReady"),
        "nodes start all at once: node 0 has to be there for the others",
    );
    let volumes = names(&spec["volumes"]);
    for container in items(&spec["initContainers"]).chain(items(&spec["containers"])) {
        for mount in items(&container["volumeMounts"]) {
            let name = mount["name"].as_str().unwrap_or_default();
            hold(volumes.contains(&name), &format!("no volume is called {name:?}"));
        }
    }
    for container in items(&spec["containers"]).filter(|container| node_command(container).is_some()) {
        let command = node_command(container).unwrap_or_default();
        let grace = spec["terminationGracePeriodSeconds"].as_i64();
        let drain =
            flag(&command, "drain-within").and_then(|word| word.parse().ok()).unwrap_or(DRAIN_WITHIN_S);
        hold(
            grace.is_some_and(|grace| grace >= drain + LEAVE_S),
            "a node has not as long to leave as it takes",
        );
        let (limits, requests) = (&container["resources"]["limits"], &container["resources"]["requests"]);
        let arena = flag(&command, "arena").and_then(mebibytes);
        let memory = limits["memory"].as_str().and_then(mebibytes);
        hold(
            arena.zip(memory).is_some_and(|(arena, memory)| memory >= arena + REST_MIB),
            "the memory limit is less than the arena and what a node has beside it",
        );
        hold(
            requests["memory"] == limits["memory"],
            "memory of a node can be evicted: request and limit differ",
        );
        hold(
            container["securityContext"]["capabilities"]["drop"][0].as_str() == Some("ALL"),
            "a node needs no capability, and has some",
        );
        let ports = names(&container["ports"]);
        for probe in ["readinessProbe", "livenessProbe"] {
            let port = container[probe]["httpGet"]["port"].as_str().unwrap_or_default();
            hold(ports.contains(&port), &format!("{probe} asks a port that there is not"));
        }
    }
    let has_node = items(&spec["containers"]).any(|container| node_command(container).is_some());
    hold(has_node, "no container runs a node");
    wrong
}

/// What is wrong with a Compose file of nodes.
fn compose(file: &Yaml) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut hold = |is_so: bool, what: String| wrong.extend((!is_so).then_some(what));
    let services = entries(&file["services"]);
    let mut addresses = Vec::new();
    for (name, service) in &services {
        // What is merged into it by `<<` is what it does not say itself.
        let of = |key: &str| match &service[key] {
            Yaml::BadValue => service["<<"][key].clone(),
            own => own.clone(),
        };
        for (kind, key) in [("secrets", "secrets"), ("services", "depends_on")] {
            for needed in items(&of(key)).filter_map(Yaml::as_str) {
                let is_there = !file[kind][needed].is_badvalue();
                hold(is_there, format!("{name}: {kind} has no {needed:?}"));
            }
        }
        for (network, there) in entries(&of("networks")) {
            hold(
                !file["networks"][network].is_badvalue(),
                format!("{name}: there is no network {network:?}"),
            );
            let address = there["ipv4_address"].as_str().unwrap_or_default().to_owned();
            hold(!addresses.contains(&address), format!("{name}: {address:?} is another one's"));
            addresses.push(address);
        }
        let Some(command) = node_command(service) else { continue };
        let grace = of("stop_grace_period");
        let grace = grace.as_str().and_then(|text| text.strip_suffix('s')?.parse::<i64>().ok());
        let drain =
            flag(&command, "drain-within").and_then(|word| word.parse().ok()).unwrap_or(DRAIN_WITHIN_S);
        hold(
            grace.is_some_and(|grace| grace >= drain + LEAVE_S),
            format!("{name} has not as long to leave as it takes"),
        );
        let memory = of("mem_limit").as_str().and_then(mebibytes);
        let arena = flag(&command, "arena").and_then(mebibytes);
        hold(
            arena.zip(memory).is_some_and(|(arena, memory)| memory >= arena + REST_MIB),
            format!("{name}: mem_limit is less than the arena and what a node has beside it"),
        );
        hold(of("cap_drop")[0].as_str() == Some("ALL"), format!("{name} needs no capability, and has some"));
        let own = addresses.last().cloned().unwrap_or_default();
        let listen = flag(&command, "listen").unwrap_or_default();
        hold(
            listen.split(':').next() == Some(&own),
            format!("{name} listens at {listen:?}, and is at {own:?}"),
        );
    }
    wrong
}

/// The command line of a container that runs a node.
fn node_command(container: &Yaml) -> Option<String> {
    commands(&container["command"]).into_iter().find(|words| words.contains("halite node"))
}

/// What follows a flag on a command line.
fn flag<'w>(command: &'w str, name: &str) -> Option<&'w str> {
    let mut words = command.split_whitespace().map(|word| word.trim_matches('"'));
    words.find(|word| word.strip_prefix("--") == Some(name))?;
    words.next()
}

fn mebibytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "M" | "Mi" | "m" => 1,
        "G" | "Gi" | "g" => 1024,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()? * unit)
}

fn items(list: &Yaml) -> impl Iterator<Item = &Yaml> {
    list.as_vec().into_iter().flatten()
}

fn names(list: &Yaml) -> Vec<&str> {
    items(list).filter_map(|item| item["name"].as_str()).collect()
}

fn entries(hash: &Yaml) -> Vec<(&str, &Yaml)> {
    let entries = hash.as_hash().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.as_str()?, value))).collect()
}

/// The command lines in a document: lists of words, and what a shell is given.
fn commands(document: &Yaml) -> Vec<String> {
    match document {
        Yaml::Array(items) => {
            let words: Vec<&str> = items.iter().filter_map(Yaml::as_str).collect();
            let inside = items.iter().flat_map(commands);
            inside.chain([words.join(" ")]).collect()
        }
        Yaml::Hash(entries) => entries.values().flat_map(commands).collect(),
        Yaml::String(text) => text.find("halite node ").map(|at| text[at..].to_owned()).into_iter().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: &str = "pub id: Option<u32>,\n pub drain_within: u32,";

    #[test]
    fn flags_that_are_not_there_and_what_is_no_yaml_are_found() {
        let of = |text| findings("deploy/x.yaml", text, ARGUMENTS);
        assert_eq!(of("command: [halite, node, --id, '1', --drain-within=3]"), []);
        assert_eq!(of("a: { command: [halite, node, --idd, '1'] }").len(), 1);
        assert_eq!(of("command: [sh, -c, 'exec halite node --id 1 --nothing']").len(), 1);
        assert_eq!(of("command: [etcd, --data-dir=/data]"), []);
        assert_eq!(of("a: [b").len(), 1);
    }

    const ALL_FLAGS: &str = "pub id: pub dir: pub arena: pub listen: pub join: pub secret_file: pub directory: pub metrics: pub drain_within: pub log_format:";

    /// Each change of what stands in the tree is found.
    #[track_caller]
    fn check(text: &str, changes: &[(&str, &str)]) {
        assert_eq!(findings("deploy/x.yaml", text, ALL_FLAGS), []);
        for (from, to) in changes {
            assert!(text.contains(from), "{from}");
            let changed = text.replacen(from, to, 1);
            assert!(
                !findings("deploy/x.yaml", &changed, ALL_FLAGS).is_empty(),
                "{from} for {to} is not found"
            );
        }
    }

    #[test]
    fn what_a_stateful_set_relies_on_is_looked_at() {
        check(
            include_str!("../../../../../deploy/kubernetes.yaml"),
            &[
                ("serviceName: halite", "serviceName: elsewhere"),
                ("clusterIP: None", "clusterIP: 10.0.0.1"),
                ("publishNotReadyAddresses: true", "publishNotReadyAddresses: false"),
                ("maxUnavailable: 1", "maxUnavailable: 2"),
                ("podManagementPolicy: OrderedReady", "podManagementPolicy: Parallel"),
                ("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30"),
                ("- { name: run, mountPath: /run/halite }", "- { name: ran, mountPath: /run/halite }"),
                ("limits: { memory: 2560Mi }", "limits: { memory: 2Gi }"),
                ("requests: { cpu: \"1\", memory: 2560Mi }", "requests: { cpu: \"1\", memory: 1Gi }"),
                (
                    "port: metrics }\n            periodSeconds: 2",
                    "port: metric }\n            periodSeconds: 2",
                ),
                ("--drain-within 45", "--drain-within 55"),
                ("--arena 2G", "--arena 4G"),
                ("labels: { app: halite }\n      annotations", "labels: { app: other }\n      annotations"),
            ],
        );
    }

    #[test]
    fn what_a_compose_file_relies_on_is_looked_at() {
        check(
            include_str!("../../../../../deploy/compose.yaml"),
            &[
                ("secrets: [halite]", "secrets: [other]"),
                ("depends_on: [etcd]", "depends_on: [consul]"),
                ("stop_grace_period: 40s", "stop_grace_period: 10s"),
                ("mem_limit: 3g", "mem_limit: 2g"),
                ("cap_drop: [ALL]", "cap_drop: [NET_RAW]"),
                ("ipv4_address: 10.77.0.12", "ipv4_address: 10.77.0.11"),
                ("\"10.77.0.11:7000\", --join", "\"10.77.0.99:7000\", --join"),
            ],
        );
    }
}
