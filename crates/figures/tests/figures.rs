//! The simulated figures, and their plots. The gate also compares all figures with `docs/figures.md`.

use std::sync::LazyLock;

use halite_figures::plot::{Axis, Plot, Ratio, Series, ratios, svg};
use halite_figures::{Figure, SimulatedFigure, simulate, summary};
use halite_sim::Profile;

/// The figures whose simulation takes less than a second in a release build.
const SHORT: [&str; 6] = ["lite-6", "lite-7", "lite-8", "lite-10", "slow-2", "slow-3"];

static SIMULATED: LazyLock<Vec<SimulatedFigure>> =
    LazyLock::new(|| simulate(&figures(&SHORT), None, |_, _| {}).expect("built-in profiles are valid"));

fn figures(ids: &[&str]) -> Vec<&'static Figure> {
    ids.iter().map(|id| Figure::named(id).expect("it exists")).collect()
}

#[test]
fn each_miss_is_explained() {
    for simulated in &*SIMULATED {
        for point in simulated.points.iter().filter(|point| point.misses(10.0)) {
            assert!(
                simulated.explanation(point).is_some(),
                "{}: {} at {}",
                simulated.figure.id,
                point.line,
                point.x
            );
        }
    }
}

#[test]
fn lines_without_a_simulation_give_a_reason() {
    for simulated in &*SIMULATED {
        for line in simulated.figure.lines() {
            let is_simulated =
                simulated.points.iter().any(|point| point.line == line.name && point.simulated.is_some());
            assert_ne!(is_simulated, line.published_only.is_some(), "{}: {}", simulated.figure.id, line.name);
        }
        assert!(simulated.svg().starts_with("<svg"));
    }
    assert!(summary(&SIMULATED).predicted > 40);
}

#[test]
fn a_given_profile_replaces_the_figures_own() {
    for name in Profile::NAMES {
        let given = Profile::named(name).expect("it exists");
        let [figure] = simulate_with_profile(name, &given, &["lite-6"]).try_into().expect("one figure");
        assert!(figure.points.iter().all(|point| !point.fitted), "{name}");
        let verbs = figure.points.iter().filter(|point| point.line == "verbs");
        assert!(verbs.clone().all(|point| point.simulated.is_some()), "{name}: {:?}", figure.failures());
        let tier = figure.points.iter().filter(|point| point.line == "LITE, user");
        assert!(tier.clone().all(|point| point.simulated.is_some() == given.processor.is_some()), "{name}");
    }
}

/// A simulation with an unsuitable profile neither panics nor runs for ever.
#[test]
fn an_unsuitable_profile_gives_a_reason() {
    let unsuitable = [
        ("keys_max", 1),
        ("inline_bytes_max", 0),
        ("queue_depth", 1),
        ("send_bytes_max", 256),
        ("wire_ns", 1_000_000_000),
        ("bandwidth_bytes_per_us", 1),
        ("retransmit_ns", 1_000),
        ("fetch_ns", 1_000_000_000),
        ("clock_mhz", 1),
    ];
    let text = Profile::toml("cx3-40g").expect("it exists");
    for (field, value) in unsuitable {
        let given = text.replace(&format!("\n{field} ="), &format!("\n{field} = {value} #"));
        let given = Profile::from_toml(&given).unwrap_or_else(|error| panic!("{field} = {value}: {error}"));
        for figure in simulate_with_profile(field, &given, &["lite-6", "lite-10"]) {
            for point in &figure.points {
                assert!(point.simulated.is_none_or(|value| value > 0.0), "{field} = {value}: {point:?}");
            }
        }
    }
}

fn simulate_with_profile(name: &str, given: &Profile, ids: &[&str]) -> Vec<SimulatedFigure> {
    simulate(&figures(ids), Some((name, given)), |_, _| {}).expect("built-in profiles are valid")
}

#[test]
fn a_logarithmic_axis_omits_points_without_a_logarithm() {
    let series = |points: &[[f64; 2]]| Series {
        name: "salt".to_owned(),
        colour: 0,
        is_dashed: false,
        points: points.to_vec(),
    };
    let axis = |label: &str, is_log| Axis { label: label.to_owned(), is_log };
    let plot = |points: &[[f64; 2]]| Plot {
        title: "title".to_owned(),
        x: axis("bytes", true),
        y: axis("us", false),
        series: vec![series(points)],
        marks: vec![(8.0, "section")],
    };
    let image = svg(&[plot(&[[0.0, 1.0], [8.0, 2.0], [64.0, 3.0]])]);
    for text in ["salt", "title", "bytes", "us", "section"] {
        assert!(image.contains(text), "{text}");
    }
    assert_eq!(image.matches("<circle").count(), 3, "two points, and the mark in the legend");
    assert!(svg(&[plot(&[])]).contains("title"), "a plot may be empty");
}

#[test]
fn a_ratio_without_a_logarithm_shows_only_its_name() {
    let row = |name: &str, median| Ratio { name: name.to_owned(), values: [0.5, median, 2.0] };
    let image = ratios("ratios", &[row("one", 1.0), row("zero", 0.0), row("infinite", f64::INFINITY)]);
    assert!(["one", "zero", "infinite"].iter().all(|name| image.contains(name)));
    assert_eq!(image.matches("<circle").count(), 1);
}
