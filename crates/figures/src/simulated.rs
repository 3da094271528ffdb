//! Figures with their published and simulated points.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use halite_sim::{Profile, ProfileError};
use serde::Serialize;

use crate::data::{Figure, Line};
use crate::experiments;
use crate::sockets::Sockets;

/// A figure after its simulation.
#[derive(Clone, Debug)]
pub struct SimulatedFigure {
    /// The published figure.
    pub figure: &'static Figure,
    /// The points of the figure, line by line.
    pub points: Vec<Point>,
    /// Name of the profile that replaced the profiles of adapters, if any.
    pub profile: Option<String>,
}

/// A published point and its simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Name of the line.
    pub line: &'static str,
    /// Value on the horizontal axis.
    pub x: f64,
    /// Published value.
    pub published: f64,
    /// Simulated value; `None` if the line is not simulated, or if the simulation failed.
    pub simulated: Option<f64>,
    /// The reason why the simulation failed, if it failed.
    pub failure: Option<String>,
    /// Relative error of the simulated value: 0.1 if the value is 10 % too high.
    pub error: Option<f64>,
    /// Error of the published value from reading the paper's plot, in percent.
    pub reading_percent: f64,
    /// True if the profile was fitted to this point.
    pub fitted: bool,
}

impl Point {
    /// Returns true if the point is predicted (simulated, and not fitted), and its error exceeds `percent` plus the
    /// reading error.
    pub fn misses(&self, percent: f64) -> bool {
        let limit = (percent + self.reading_percent) / 100.0;
        !self.fitted && self.error.is_some_and(|error| error.abs() > limit)
    }
}

/// The number of fitted points, and the numbers of predicted points by error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// Points to which profiles were fitted.
    pub fitted: usize,
    /// Simulated points to which no profile was fitted.
    pub predicted: usize,
    /// Predicted points whose error is at most 10 % plus their reading error.
    pub within_10: usize,
    /// Predicted points whose error is at most 25 % plus their reading error.
    pub within_25: usize,
}

/// Simulates figures on all processors. After each point, calls `report_progress` with the number of finished points and
/// the number of all points. A `replacement`, with its name, replaces the profiles of adapters; the points of adapters
/// then do not count as fitted. Fails if a line names an unknown profile.
pub fn simulate(
    figures: &[&'static Figure],
    replacement: Option<(&str, &Profile)>,
    report_progress: impl Fn(usize, usize) + Sync,
) -> Result<Vec<SimulatedFigure>, ProfileError> {
    let mut jobs = Vec::new();
    for figure in figures {
        for line in figure.lines() {
            let profile = match (&line.profile, replacement) {
                (Some(_), Some((_, replacement))) => Some(replacement.clone()),
                (Some(name), None) => Some(Profile::named(name)?),
                (None, _) => None,
            };
            jobs.extend(line.points.iter().map(|point| (figure, line, profile.clone(), *point)));
        }
    }
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let slots: Mutex<Vec<Option<Point>>> = Mutex::new(vec![None; jobs.len()]);
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some((figure, line, profile, [x, published])) = jobs.get(index) else { return };
            let mut point = point(&figure.id, line, profile.as_ref(), *x, *published);
            point.fitted &= replacement.is_none() || profile.is_none();
            slots.lock().expect("no simulation panics")[index] = Some(point);
            report_progress(finished.fetch_add(1, Relaxed) + 1, jobs.len());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..std::thread::available_parallelism().map_or(1, usize::from) {
            // If the system refuses a thread, the others do its work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut points = slots.into_inner().expect("no simulation panics").into_iter().flatten();
    let with_points = |figure: &&'static Figure| {
        let count = figure.lines().map(|line| line.points.len()).sum();
        let profile = replacement.map(|(name, _)| name.to_owned());
        SimulatedFigure { figure, points: points.by_ref().take(count).collect(), profile }
    };
    Ok(figures.iter().map(with_points).collect())
}

fn point(figure: &str, line: &'static Line, profile: Option<&Profile>, x: f64, published: f64) -> Point {
    let sockets_value = || {
        let sockets = Sockets::named(line.sockets.as_deref()?)?;
        Some(experiments::sockets(&line.name, x, &sockets))
    };
    let (simulated, failure) = match profile {
        Some(profile) => match experiments::adapter(figure, &line.name, x, profile) {
            Ok(simulated) => (Some(simulated), None),
            Err(cause) => (None, Some(cause.to_string())),
        },
        None => (sockets_value(), None),
    };
    Point {
        line: &line.name,
        x,
        published,
        simulated,
        failure,
        error: simulated.map(|simulated| simulated / published - 1.0),
        reading_percent: line.reading_percent(x),
        fitted: simulated.is_some() && line.is_fitted(x),
    }
}

/// Counts the fitted points, and the predicted points by error.
pub fn summary(figures: &[SimulatedFigure]) -> Summary {
    let mut summary = Summary::default();
    for point in figures.iter().flat_map(|figure| &figure.points).filter(|point| point.simulated.is_some()) {
        if point.fitted {
            summary.fitted += 1;
            continue;
        }
        summary.predicted += 1;
        summary.within_10 += usize::from(!point.misses(10.0));
        summary.within_25 += usize::from(!point.misses(25.0));
    }
    summary
}

impl SimulatedFigure {
    /// Returns the explanation of a point that misses; `None` if the data contains none.
    pub fn explanation(&self, point: &Point) -> Option<&str> {
        let line = self.figure.lines().find(|line| line.name == point.line)?;
        line.misses.iter().find(|miss| miss.at.contains(&point.x)).map(|miss| miss.why.as_str())
    }
}
