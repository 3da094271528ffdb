//! The simulated figures, as `docs/figures.md` shows them.

use std::sync::LazyLock;

use halite_figures::{Figure, Shown, show, summary};
use halite_sim::Profile;

/// The figures that take less than a second in a release build.
const SHORT: [&str; 6] = ["lite-6", "lite-7", "lite-8", "lite-10", "slow-2", "slow-3"];

static SHOWN: LazyLock<Vec<Shown>> = LazyLock::new(|| simulate(&SHORT));

fn simulate(ids: &[&str]) -> Vec<Shown> {
    let figures: Vec<_> = ids.iter().map(|id| Figure::named(id).expect("it exists")).collect();
    show(&figures, None, |_, _| {}).expect("built-in profiles are valid")
}

/// The document is the golden table: a change of the model or of the tier that moves a point also changes it. The long
/// figures are left out.
#[test]
fn the_document_shows_what_is_simulated() {
    let document = include_str!("../../../docs/figures.md");
    for shown in &*SHOWN {
        for point in &shown.points {
            let row = format!("| {} | {} |", point.line, point.cells().join(" | "));
            assert!(document.contains(&row), "{}: {row}\nwrite docs/figures.md anew", shown.figure.id);
        }
    }
}

#[test]
fn a_figure_is_the_same_twice() {
    assert_eq!(simulate(&["lite-6"])[0].points, SHOWN[0].points);
}

#[test]
fn each_miss_is_explained() {
    for shown in &*SHOWN {
        for point in shown.points.iter().filter(|point| point.misses(10.0)) {
            assert!(shown.why(point).is_some(), "{}: {} at {}", shown.figure.id, point.line, point.x);
        }
    }
}

#[test]
fn lines_of_the_data_are_simulated_or_say_why_not() {
    for shown in &*SHOWN {
        for line in shown.figure.lines() {
            let is_simulated =
                shown.points.iter().any(|point| point.line == line.name && point.simulated.is_some());
            assert_ne!(is_simulated, line.published_only.is_some(), "{}: {}", shown.figure.id, line.name);
        }
        assert!(shown.svg().starts_with("<svg"));
    }
    assert!(summary(&SHOWN).predicted > 40);
}

#[test]
fn another_profile_replaces_those_of_the_figure() {
    let figure = Figure::named("lite-6").expect("it exists");
    let own = Profile::named("connectib-fdr").expect("it exists");
    let with = show(&[figure], Some(&own), |_, _| {}).expect("the profile is valid").remove(0);
    let verbs = with.points.iter().find(|point| point.line == "verbs").expect("a line");
    assert!(verbs.simulated.is_some_and(|us| us < 1.5), "{verbs:?}");
}
