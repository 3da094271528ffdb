//! Rules for manifests under `deploy/`: they are YAML, and what they give to `halite node` are flags that it has.

use yaml_rust2::{Yaml, YamlLoader};

use crate::Finding;

/// What is wrong with the manifest at `path`; `arguments` is the source of the command line.
pub fn findings(path: &str, text: &str, arguments: &str) -> Vec<Finding> {
    let documents = match YamlLoader::load_from_str(text) {
        Ok(documents) => documents,
        Err(error) => return vec![Finding::new(path, format!("is no YAML: {error}"))],
    };
    let mut findings = Vec::new();
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
}
