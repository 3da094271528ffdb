//! The soak at a size for every day.  `HALITE_SOAK_OPERATIONS` and `HALITE_SOAK_SEED` change it; for a long one,
//! `lab soak` in a release build is quicker.

use std::process::Command;

#[test]
fn eight_processes_lose_nothing_while_some_of_them_are_killed() {
    let seed = std::env::var("HALITE_SOAK_SEED").unwrap_or_else(|_| "1".to_owned());
    let operations = std::env::var("HALITE_SOAK_OPERATIONS").unwrap_or_else(|_| "32000".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["soak", "--operations", &operations, "--seed", &seed])
        .output()
        .expect("lab runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
}
