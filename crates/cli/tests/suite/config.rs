//! Settings and their sources, as `halite config` shows them.

use crate::support;

use support::{Running, Scratch, children, eventually};

/// Returns the value of a key in `config --json`, and its source.
fn setting(rows: &[serde_json::Value], key: &str) -> (Option<String>, String) {
    let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    (row["value"].as_str().map(str::to_owned), row["source"].as_str().unwrap().to_owned())
}

fn rows(output: &std::process::Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn flags_override_variables_and_the_file() {
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
    assert_eq!(setting(&rows, "full_mesh_nodes_max"), (Some("64".into()), "default".into()));
    let table = scratch.ok(&format!("config --config {}", file.display()));
    assert!(table.lines().any(|line| line.starts_with("arena") && line.contains(" 2G ")), "{table}");
}

#[test]
fn unknown_keys_and_variables_get_a_suggestion() {
    let scratch = Scratch::new("unknown");
    let file = scratch.write("halite.toml", b"metric = '127.0.0.1:9464'\n");
    let complaint = scratch.fails(&format!("config --config {}", file.display()), 2);
    assert!(complaint.contains("unknown key \"metric\"; did you mean \"metrics\"?"), "{complaint}");

    let output = scratch.command("config --json").env("HALITE_ARENNA", "1G").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(rows(&output).len() > 10, "the other settings are shown anyway");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("unknown variable HALITE_ARENNA; did you mean HALITE_ARENA?"), "{complaint}");

    // Other commands warn and continue; they ignore variables that resemble no known one.
    let command = |variable: &str| {
        let output = scratch.command("sim list").env(variable, "1").output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(command("HALITE_ARENNA").contains("did you mean HALITE_ARENA?"));
    assert_eq!(command("HALITE_SOAK_SEED"), "");
}

/// A value that no command accepts is an error, even if the command that reads it would not use it.
#[test]
fn invalid_values_are_refused_with_their_source() {
    let scratch = Scratch::new("refused");
    for (key, value, allowed) in [
        ("arena", "'8Q'", "a number of bytes such as 4096, 64K, 8G or 1.5MiB"),
        ("metrics", "'nowhere'", "an address with a port"),
        ("nodes", "-3", "-3 is not in"),
        ("directory", "'etcd://u:secret@x'", "HOST:PORT"),
    ] {
        let text = format!("{key} = {value}\n");
        let file = scratch.write("halite.toml", text.as_bytes());
        for line in ["config", "ls", "node --id 0"] {
            let message = scratch.fails(&format!("{line} --config {}", file.display()), 2);
            let is_complete = message.contains(key)
                && message.contains(file.to_str().unwrap())
                && message.contains(allowed);
            assert!(is_complete && !message.contains("secret"), "{line}, {text}: {message}");
        }
        let variable = format!("HALITE_{}", key.to_uppercase());
        let value = value.trim_matches('\'');
        let output = scratch.command("config --json").env(&variable, value).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && message.contains(&variable),
            "{variable}={value}: {message}"
        );
        assert!(message.contains(allowed) && !message.contains("secret"), "{variable}={value}: {message}");
    }
    // A flag, or a variable that a command reads, does not show a password either.
    let wrong = "etcd://u:secret@x";
    let by_flag = scratch.run(&format!("node --id 0 --directory {wrong}"));
    let by_variable = scratch.command("node --id 0").env("HALITE_DIRECTORY", wrong).output().unwrap();
    let by_word = scratch.run(&format!("directory move {wrong}"));
    for (output, who) in [(by_flag, "--directory"), (by_variable, "HALITE_DIRECTORY"), (by_word, "ETCD")] {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_complete =
            message.contains(who) && message.contains("HOST:PORT") && !message.contains("secret");
        assert!(output.status.code() == Some(2) && is_complete, "{message}");
    }
}

#[test]
fn password_of_etcd_is_hidden() {
    let scratch = Scratch::new("config-password");
    for line in ["config", "config --json"] {
        let mut command = scratch.command(line);
        let output = command.env("HALITE_DIRECTORY", "etcd://u:hunter2@127.0.0.1:1/x").output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.contains("etcd://127.0.0.1:1/x") && !shown.contains("hunter2"), "{shown}");
    }
}

/// The network tests show what a node then does.
#[test]
fn congestion_control_applies_to_all_nodes_of_a_command() {
    let command_line = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has_flag = |command: &str, by: &str, pid: u32| {
        let line = command_line(pid).replace('\0', " ");
        line.contains(&format!(" {command} ")) && line.contains(&format!("--congestion {by}"))
    };
    let scratch = Scratch::new("congestion");
    let file = scratch.write("halite.toml", b"congestion = 'loss'\n");
    let in_file = format!("run log --writers 1 --readers 1 --seconds 1000 --config {}", file.display());
    // The cluster of the first command serves the others.
    let mut running = Vec::new();
    for (line, variable, command, count, by) in [
        ("up --nodes 2 --arena 64M --congestion delay", "grant", "node", 2, "delay"),
        ("perf write_lat -n 1000000000", "delay", "perf-server", 1, "delay"),
        (&in_file, "", "run-worker", 2, "loss"),
    ] {
        let mut started = scratch.command(line);
        match variable {
            "" => &mut started,
            variable => started.env("HALITE_CONGESTION", variable),
        };
        let mut started = Running::of(started);
        let started_children =
            |pid| children(pid).into_iter().filter(|pid| has_flag(command, by, *pid)).count();
        while command == "node" && !started.line().contains("ctrl-C") {}
        eventually(|| started_children(started.pid()) == count);
        running.push(started);
    }
    // Those that use the cluster end first.
    while running.pop().is_some() {}
}
