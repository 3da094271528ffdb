//! `halite figure`: simulated figures, their files, and refusals.

use crate::support;

use serde_json::Value;
use support::Scratch;

#[test]
fn figure_has_points_and_a_plot() {
    let scratch = Scratch::new("figure");
    let svg = scratch.file("plot.svg");
    let reports = scratch.json(&format!("figure lite-6 --json --svg {}", svg.display()));
    let points = reports[0]["points"].as_array().expect("points");
    let point = points.iter().find(|point| point["line"] == "verbs" && point["x"] == 512.0).expect("a point");
    assert_eq!(point["published"], 2.11);
    let (simulated, error) = (point["simulated"].as_f64().unwrap(), point["error"].as_f64().unwrap());
    assert!((simulated / 2.11 - 1.0 - error).abs() < 1e-9, "{point}");
    assert_eq!(point["fitted"], true);
    let tcp = points.iter().find(|point| point["line"] == "TCP").expect("a point");
    assert_eq!(tcp["simulated"], Value::Null);
    let plot = std::fs::read_to_string(&svg).unwrap();
    assert!(plot.contains("latency [us]") && plot.contains("LITE, kernel"), "{plot}");
}

#[test]
fn page_is_not_overwritten() {
    let scratch = Scratch::new("figure-page");
    let dir = scratch.file("page");
    let line = format!("figure slow-3 --out {}", dir.display());
    scratch.ok(&line);
    let page = std::fs::read_to_string(dir.join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("13264") && !page.contains("http://cdn"), "{page}");
    assert!(dir.join("slow-3.svg").exists());
    let complaint = scratch.fails(&line, 1);
    assert!(complaint.contains("exists; --force overwrites it"), "{complaint}");
    scratch.ok(&format!("{line} --force"));
}

#[test]
fn unknown_figures_and_bad_profiles_are_refused() {
    let scratch = Scratch::new("figure-refused");
    let refused = |line: &str, reason: &str| {
        scratch.fails_with(&format!("figure {line}"), 1, reason);
    };
    refused("lite-9", "did you mean lite-4? The figures are lite-4,");
    refused("star1", "did you mean star-1?");
    refused("all --svg plot.svg", "--svg takes one figure");
    refused("lite-6 --profile missing.toml", "cannot read profile missing.toml");
    let cx3 = include_str!("../../../sim/profiles/cx3-40g.toml");
    let bad = scratch.write("bad.toml", cx3.replace("cached_keys =", "cached_keys = 0 #").as_bytes());
    refused(&format!("lite-6 --profile {}", bad.display()), "adapter.cached_keys is 0; it must be between 1");
    let lacking = scratch.write("lacking.toml", cx3.replace("packet_ns =", "# packet_ns =").as_bytes());
    refused(&format!("lite-6 --profile {}", lacking.display()), "packet_ns");
    refused(&format!("lite-6 --out {}/page", bad.display()), "cannot write");
}
