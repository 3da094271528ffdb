//! What is set, as `halite config` tells it.

mod support;

use support::Scratch;

/// A row of `config --json` by its key: the value and where it comes from.
fn setting(rows: &[serde_json::Value], key: &str) -> (Option<String>, String) {
    let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    (row["value"].as_str().map(str::to_owned), row["source"].as_str().unwrap().to_owned())
}

fn rows(output: &std::process::Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_value_is_told_with_its_source_and_flags_go_before_variables_before_the_file() {
    let scratch = Scratch::new("config");
    let file = scratch.write("halite.toml", b"arena = '2G'\nmetrics = '127.0.0.1:9464'\nlog = 'debug'\n");
    let line = format!("config --json --log info --config {}", file.display());
    let output = scratch.command(&line).env("HALITE_ARENA", "3G").env("HALITE_LOG", "warn").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output);
    assert_eq!(setting(&rows, "log"), (Some("info".into()), "--log".into()));
    assert_eq!(setting(&rows, "arena"), (Some("3G".into()), "HALITE_ARENA".into()));
    assert_eq!(setting(&rows, "metrics"), (Some("127.0.0.1:9464".into()), file.display().to_string()));
    assert_eq!(setting(&rows, "dir"), (Some(scratch.cluster().display().to_string()), "--dir".into()));
    assert_eq!(setting(&rows, "address"), (Some("127.0.0.1".into()), "default".into()));
    assert_eq!(setting(&rows, "nodes"), (None, "default".into()));
    let table = scratch.ok(&format!("config --config {}", file.display()));
    assert!(table.lines().any(|line| line.starts_with("arena") && line.contains(" 2G ")), "{table}");
}

#[test]
fn an_unknown_key_or_variable_is_an_error_that_names_the_one_that_is_meant() {
    let scratch = Scratch::new("unknown");
    let file = scratch.write("halite.toml", b"metric = '127.0.0.1:9464'\n");
    let complaint = scratch.fails(&format!("config --config {}", file.display()), 2);
    assert!(complaint.contains("unknown key \"metric\"; did you mean \"metrics\"?"), "{complaint}");

    let output = scratch.command("config --json").env("HALITE_ARENNA", "1G").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(rows(&output).len() > 10, "the rest is told all the same");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("unknown variable HALITE_ARENNA; did you mean HALITE_ARENA?"), "{complaint}");

    // Other commands say so, and go on; of what resembles nothing they say nothing.
    let command = |variable: &str| {
        let output = scratch.command("sim list").env(variable, "1").output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(command("HALITE_ARENNA").contains("did you mean HALITE_ARENA?"));
    assert_eq!(command("HALITE_SOAK_SEED"), "");
}

#[test]
fn the_file_that_the_manual_shows_is_one() {
    let manual = include_str!("../../../docs/operations.md");
    let (_, rest) = manual.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let scratch = Scratch::new("manual");
    let file = scratch.write("halite.toml", text.as_bytes());
    let rows = scratch.json(&format!("config --json --config {}", file.display()));
    let of_file = rows.iter().filter(|row| row["source"] == file.display().to_string().as_str()).count();
    // But for the directory, which the command line says.
    assert_eq!(of_file, text.lines().count() - 1);
}
