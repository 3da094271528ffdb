//! The values of profiles that were fitted to published points, read from comments in the files of the profiles.

use std::collections::BTreeSet;

use halite_sim::Profile;

use crate::simulated::SimulatedFigure;
use crate::sockets::Sockets;

/// A value of a profile that was fitted to points of the figures.
pub(crate) struct Fitted {
    profile: String,
    parameter: String,
    value: String,
    /// The points to which the value was fitted, as the comment in the file names them.
    points: String,
}

impl Fitted {
    /// Formats the value for a table: profile, parameter, value, unit and points.
    pub(crate) fn cells(&self) -> [String; 5] {
        let Fitted { profile, parameter, value, points } = self;
        [profile.clone(), parameter.clone(), value.clone(), unit(parameter).to_owned(), points.clone()]
    }
}

/// Returns the fitted values of the profiles that these figures use.
pub(crate) fn values(figures: &[SimulatedFigure]) -> Vec<Fitted> {
    let mut files: Vec<(&str, &str)> = Vec::new();
    for line in figures.iter().flat_map(|simulated| simulated.figure.lines()) {
        let is_replaced = figures.iter().any(|simulated| simulated.profile.is_some());
        let adapter = line.profile.as_deref().filter(|_| !is_replaced);
        let adapter = adapter.and_then(|name| Some((name, Profile::toml(name).ok()?)));
        let sockets = line.sockets.as_deref().and_then(|name| Some((name, Sockets::toml(name)?)));
        files.extend([adapter, sockets].into_iter().flatten());
    }
    let mut seen = BTreeSet::new();
    files.retain(|(name, _)| seen.insert(*name));
    files
        .into_iter()
        .flat_map(|(name, file)| file.lines().filter_map(move |line| parse_line(name, line)))
        .collect()
}

/// Parses a line `parameter = value # fitted: points`, or `# fitted with another: points`. Returns `None` for all other
/// lines.
fn parse_line(profile: &str, line: &str) -> Option<Fitted> {
    let (assignment, comment) = line.split_once('#')?;
    let (parameter, value) = assignment.split_once('=')?;
    let points = comment.trim().strip_prefix("fitted")?;
    Some(Fitted {
        profile: profile.to_owned(),
        parameter: parameter.trim().to_owned(),
        value: value.trim().replace('_', ""),
        points: points.trim_start_matches(':').trim().to_owned(),
    })
}

/// Returns the unit with which the name of a parameter ends, or "entries".
fn unit(parameter: &str) -> &'static str {
    const UNITS: [(&str, &str); 7] = [
        ("_ns_per_kib", "ns/KiB"),
        ("_bytes_per_us", "B/us"),
        ("_per_kilocycle", "per 1,000 cycles"),
        ("cycles_per_window", "cycles"),
        ("_ns", "ns"),
        ("_bytes", "B"),
        ("_mhz", "MHz"),
    ];
    let known = UNITS.iter().find(|(ending, _)| parameter.ends_with(ending));
    known.map_or("entries", |(_, unit)| unit)
}
