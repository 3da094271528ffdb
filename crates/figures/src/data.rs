//! Published figures, parsed from the files in `data/`.

use std::sync::LazyLock;

use serde::Deserialize;

/// A published figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name, such as `lite-4`: the paper, and the number of the figure.
    pub id: String,
    /// Title: the quantity that the figure shows.
    pub title: String,
    /// The paper, and the number of the figure in it.
    pub source: String,
    /// Description of the workload of the simulated threads.
    pub workload: String,
    /// The plots of the figure.
    #[serde(rename = "panel")]
    pub panels: Vec<Panel>,
}

/// One plot of a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, in the order of the legend.
    #[serde(rename = "line")]
    pub lines: Vec<Line>,
}

/// An axis of a plot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Quantity, with its unit in brackets.
    pub label: String,
    /// Scale of the axis; the same as in the paper.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios.
    Log,
}

/// One published line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Name of the hardware profile, if the line is simulated on an adapter.
    pub profile: Option<String>,
    /// Name of the profile of sockets, if a formula models the line.
    pub sockets: Option<String>,
    /// The reason why the line is not simulated, if it is not.
    pub published_only: Option<String>,
    /// Error of the published values, in percent: 5 if they were read off a linear axis, 20 if off a logarithmic axis.
    pub reading_percent: f64,
    /// Values of x at which the paper's text prints the published value. These points have no reading error.
    #[serde(default)]
    pub printed: Vec<f64>,
    /// Values of x to which the profile was fitted.
    #[serde(default)]
    pub fitted_at: FittedAt,
    /// Published points: x and y.
    pub points: Vec<[f64; 2]>,
    /// Explanations of predicted points that miss the published value.
    #[serde(default, rename = "miss")]
    pub misses: Vec<Miss>,
}

/// The points of a line to which the profile was fitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum FittedAt {
    /// The points at these values of x.
    Some(Vec<f64>),
    /// All points; in the file, the string `all`.
    All(String),
}

impl Default for FittedAt {
    fn default() -> FittedAt {
        FittedAt::Some(Vec::new())
    }
}

/// Explanation of predicted points that miss their published values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Miss {
    /// Values of x of the points that `why` explains.
    pub at: Vec<f64>,
    /// The reason, in one sentence.
    pub why: String,
}

impl Line {
    /// Returns true if the profile was fitted to the point at `x`.
    pub fn is_fitted(&self, x: f64) -> bool {
        match &self.fitted_at {
            FittedAt::Some(at) => at.contains(&x),
            FittedAt::All(_) => true,
        }
    }

    /// Returns the reading error of the published point at `x`, in percent.
    pub fn reading_percent(&self, x: f64) -> f64 {
        if self.printed.contains(&x) { 0.0 } else { self.reading_percent }
    }
}

/// Texts of all figures, in the order of the page.
const TEXTS: [&str; 9] = [
    include_str!("../data/lite-4.toml"),
    include_str!("../data/lite-5.toml"),
    include_str!("../data/lite-6.toml"),
    include_str!("../data/lite-7.toml"),
    include_str!("../data/lite-8.toml"),
    include_str!("../data/lite-10.toml"),
    include_str!("../data/star-1.toml"),
    include_str!("../data/slow-2.toml"),
    include_str!("../data/slow-3.toml"),
];

static FIGURES: LazyLock<Vec<Figure>> =
    LazyLock::new(|| TEXTS.iter().map(|text| toml::from_str(text).expect("a test reads it")).collect());

impl Figure {
    /// Returns all figures.
    pub fn all() -> &'static [Figure] {
        &FIGURES
    }

    /// Returns the figure with this name; `None` if there is none.
    pub fn named(id: &str) -> Option<&'static Figure> {
        Figure::all().iter().find(|figure| figure.id == id)
    }

    /// Returns the lines of all panels.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.panels.iter().flat_map(|panel| &panel.lines)
    }
}
