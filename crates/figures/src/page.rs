//! Formats figures: plots in SVG, a page in HTML, and a document in Markdown.

use std::fmt::Write;

use crate::data::{Axis, Line, Panel, Scale};
use crate::fitted;
use crate::plot::{self, Plot, Series};
use crate::simulated::{Point, SimulatedFigure, Summary, summary};

const KEY: &str = "Hollow marks and dashed lines are published, filled marks and solid lines simulated.";
const ABOUT: &str = "\
Each figure shows published measurements of RDMA adapters beside a simulation of the same experiment. The \
simulation is Halite's: figures of LITE run Halite's own code, on a model of the adapter in virtual time. No \
value is measured on this machine. A fitted point is one from which a value of a profile was taken; the model \
and the other values were chosen with all figures known, so predictions are not blind. The explanations of \
misses are conjectures: none was tested. A point is a miss if its simulated error exceeds 10 % plus the error of \
reading the published value off the paper's plot.";

impl SimulatedFigure {
    /// Draws the figure.
    pub fn svg(&self) -> String {
        let plots: Vec<Plot> = self.figure.panels.iter().map(|panel| self.plot(panel)).collect();
        plot::svg(&plots)
    }

    fn plot(&self, panel: &Panel) -> Plot {
        let mut series = Vec::new();
        for (colour, line) in panel.lines.iter().enumerate() {
            let points = || self.points.iter().filter(|point| point.line == line.name);
            let published = points().map(|point| [point.x, point.published]).collect();
            let simulated: Vec<[f64; 2]> =
                points().filter_map(|point| Some([point.x, point.simulated?])).collect();
            let line = |is_dashed, points| Series { name: line.name.clone(), colour, is_dashed, points };
            series.push(line(true, published));
            series.extend((!simulated.is_empty()).then(|| line(false, simulated)));
        }
        let axis = |axis: &Axis| plot::Axis { label: axis.label.clone(), is_log: axis.scale == Scale::Log };
        Plot {
            title: self.figure.title.clone(),
            x: axis(&panel.x),
            y: axis(&panel.y),
            series,
            marks: Vec::new(),
        }
    }

    /// Lists the lines that are not simulated, the points that miss (with the figure's own profiles only), and the
    /// points whose simulation failed, each with the reason.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for line in self.figure.lines() {
            if let Some(reason) = &line.published_only {
                notes.push(format!("{}: published only. {reason}", line.name));
            }
            let explained = if self.profile.is_none() { line.misses.as_slice() } else { &[] };
            for miss in explained {
                let points = self.points_at(line, |point| point.misses(10.0) && miss.at.contains(&point.x));
                notes.extend(points.map(|points| format!("{points}: {}", miss.why)));
            }
        }
        notes.extend(self.failures());
        notes
    }

    /// Lists the points whose simulation failed, each with the reason.
    pub fn failures(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for line in self.figure.lines() {
            let of_line = self.points.iter().filter(|point| point.line == line.name);
            let mut failures: Vec<&String> = of_line.flat_map(|point| &point.failure).collect();
            failures.dedup();
            for reason in failures {
                let points = self.points_at(line, |point| point.failure.as_ref() == Some(reason));
                notes.extend(points.map(|points| format!("{points}: not simulated, because {reason}")));
            }
        }
        notes
    }

    /// Names the points of a line that `is_listed` accepts; `None` if it accepts none.
    fn points_at(&self, line: &Line, is_listed: impl Fn(&Point) -> bool) -> Option<String> {
        let listed = self.points.iter().filter(|point| point.line == line.name && is_listed(point));
        let at: Vec<String> = listed.map(|point| number(point.x)).collect();
        (!at.is_empty()).then(|| format!("{} at {}", line.name, at.join(", ")))
    }
}

/// A part of a page: a plot, its points as a table, and notes.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Name, which is the target of links. The page shows it before the heading, unless the heading contains it.
    pub id: String,
    /// Heading.
    pub title: String,
    /// One paragraph below the heading.
    pub text: String,
    /// The plot, from [`crate::plot::svg`].
    pub svg: String,
    /// Headings of the table.
    pub head: Vec<&'static str>,
    /// Rows of the table.
    pub rows: Vec<Vec<String>>,
    /// Notes below the plot.
    pub notes: Vec<String>,
}

/// Returns a page as one HTML file without references to other files. Escapes all texts except the SVG.
pub fn html(title: &str, paragraphs: &[&str], sections: &[Section]) -> String {
    let paragraph = |text: &&str| format!("<p>{}</p>\n", escaped(text));
    let body: String = paragraphs.iter().map(paragraph).chain(sections.iter().map(section)).collect();
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

fn section(section: &Section) -> String {
    let Section { id, title, text, svg, head, rows, notes } = section;
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}", escaped(cell))).collect()
    };
    let row = |row: &Vec<String>| {
        let class = if row.iter().any(|cell| cell.ends_with(MISS)) { " class=\"miss\"" } else { "" };
        format!("<tr{class}>{}</tr>\n", cells("td", row))
    };
    let is_named = !title.to_lowercase().contains(id.as_str());
    let name = if is_named { format!("<code>{}</code> ", escaped(id)) } else { String::new() };
    let card = if svg.is_empty() { String::new() } else { format!("<div class=\"card\">{svg}</div>") };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let table: String = rows.iter().map(row).collect();
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul>\n{notes}</ul>\n") };
    format!(
        "<section id=\"{0}\">\n<h2>{name}{1}</h2>\n<p>{2}</p>\n<div class=\"row\">{card}\n\
         <div class=\"scroll\"><table><tr>{3}</tr>\n{table}</table></div></div>\n{notes}</section>\n",
        escaped(id),
        escaped(title),
        escaped(text),
        cells("th", &head),
    )
}

/// Returns the page with all figures.
pub fn page(figures: &[SimulatedFigure]) -> String {
    let row = |point: &Point| [point.line.to_owned()].into_iter().chain(point.cells()).collect();
    let section = |simulated: &SimulatedFigure| Section {
        id: simulated.figure.id.clone(),
        title: simulated.figure.title.clone(),
        text: format!("{}. {}", simulated.figure.source, simulated.figure.workload),
        svg: simulated.svg(),
        head: POINTS.to_vec(),
        rows: simulated.points.iter().map(row).collect(),
        notes: simulated.notes(),
    };
    let mut sections: Vec<Section> = figures.iter().map(section).collect();
    let values = fitted::values(figures);
    sections.extend((!values.is_empty()).then(|| Section {
        id: "values".to_owned(),
        title: FITTED.to_owned(),
        text: FITTED_TEXT.to_owned(),
        head: VALUES.to_vec(),
        rows: values.iter().map(|value| value.cells().to_vec()).collect(),
        ..Section::default()
    }));
    html("Published figures, simulated", &[ABOUT, &counts(figures), KEY], &sections)
}

/// Marks in the error column: of predicted points that miss the published value, and of points whose simulation failed.
const MISS: &str = "miss";
const NOT_SIMULATED: &str = "not simulated";

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:0 auto;padding:16px;background:#f6f7f9;color:#1b1f24}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem}\
.row{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}\
.card{background:#fff;border-radius:8px;padding:4px;width:520px;max-width:100%;box-sizing:border-box}\
.card svg{display:block;width:100%;height:auto}\
.scroll{overflow-x:auto;flex:1 1 360px;max-width:100%}\
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\
th,td{padding:2px 10px 2px 0;text-align:left}\
td:nth-child(n+2){white-space:nowrap}\
.miss td{font-weight:600}\
small{color:#6a737d}\
@media(max-width:480px){table{font-size:.74rem}th,td{padding-right:6px}}\
@media(prefers-color-scheme:dark){body{background:#16191d;color:#e3e6ea}small{color:#9aa4af}}";

/// Headings of the tables of points and of fitted values.
const POINTS: [&str; 5] = ["line", "x", "published", "simulated", "error"];
const VALUES: [&str; 5] = ["profile", "parameter", "value", "unit", "fitted to"];
const FITTED: &str = "Fitted values";
const FITTED_TEXT: &str = "These values of the profiles were chosen for single points of the figures; all others have a source of their own, \
which the profiles' files name.";

/// Returns the text of `docs/figures.md`, which refers to the images in `docs/figures/`.
pub fn markdown(figures: &[SimulatedFigure]) -> String {
    let (about, counts) = (wrapped(ABOUT), wrapped(&counts(figures)));
    let mut text = format!("# Published figures, simulated\n\n{about}\n\n{counts}\n\n{KEY}\n\n{COMMANDS}");
    for simulated in figures {
        let figure = simulated.figure;
        let mut add = |line: &str| writeln!(text, "{line}").expect("writing to a string cannot fail");
        add(&format!("\n## {}: {}\n", figure.id, figure.title));
        add(&format!("{}\n", wrapped(&format!("{}. {}", figure.source, figure.workload))));
        add(&format!("![{}](figures/{}.svg)\n", figure.title, figure.id));
        add(&format!("| {} |\n|---|---:|---:|---:|---|", POINTS.join(" | ")));
        for point in &simulated.points {
            add(&format!("| {} | {} |", point.line, point.cells().join(" | ")));
        }
        let notes = simulated.notes();
        if !notes.is_empty() {
            add("");
        }
        notes.iter().for_each(|note| add(&wrapped(&format!("- {note}")).replace('\n', "\n  ")));
    }
    let values = fitted::values(figures);
    if !values.is_empty() {
        let rows: Vec<String> =
            values.iter().map(|value| format!("| {} |", value.cells().join(" | "))).collect();
        let head = VALUES.join(" | ");
        text += &format!(
            "\n## {FITTED}\n\n{}\n\n| {head} |\n|---|---|---:|---|---|\n{}\n",
            wrapped(FITTED_TEXT),
            rows.join("\n")
        );
    }
    text
}

/// Breaks a paragraph into lines of at most 118 characters: 120 with the indent of a list.
fn wrapped(text: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        width += 1 + word.chars().count();
        if width > 119 {
            width = 1 + word.chars().count();
            lines.push('\n');
        } else if !lines.is_empty() {
            lines.push(' ');
        }
        lines.push_str(word);
    }
    lines
}

const COMMANDS: &str = "\
These commands write this file and its images; `halite figure all --out DIR` also writes a page with all of them:

<!-- run: by hand -->
```sh
cargo run --release -p halite-cli -- figure all --markdown > docs/figures.md
cargo run --release -p halite-cli -- figure all --out docs/figures --force && rm docs/figures/index.html
```
";

/// Returns sentences that summarise the errors of figures.
pub fn counts(figures: &[SimulatedFigure]) -> String {
    let Summary { fitted, predicted, within_10, within_25 } = summary(figures);
    let mut text = String::new();
    if let Some(name) = figures.iter().find_map(|figure| figure.profile.as_ref()) {
        text += &format!("The profile {name} replaces those of the figures' adapters. ");
    }
    if fitted > 0 {
        text += &format!("{fitted} points are fitted: a value of a profile was chosen for them. ");
    }
    let percent = |part: usize| (100 * part).checked_div(predicted).unwrap_or(0);
    let within = |points, limit| {
        format!("{points} ({} %) lie within {limit} % plus their reading error", percent(points))
    };
    text + &match predicted {
        0 => "No point is predicted.".to_owned(),
        _ => {
            format!("{predicted} points are predicted: {}, {}.", within(within_10, 10), within(within_25, 25))
        }
    }
}

impl Point {
    /// Formats the point for a table: x, published value with its reading error, simulated value, and error with a
    /// mark.
    pub fn cells(&self) -> [String; 4] {
        let published = match self.reading_percent {
            0.0 => number(self.published),
            percent => format!("{} ±{percent} %", number(self.published)),
        };
        let mark = match self.simulated {
            None if self.failure.is_some() => NOT_SIMULATED,
            None => "published only",
            Some(_) if self.fitted => "fitted",
            Some(_) if self.misses(10.0) => MISS,
            Some(_) => "",
        };
        let percent = |error: f64| {
            let rounded = (error * 100.0).round() as i64;
            if rounded == 0 { "0 %".to_owned() } else { format!("{rounded:+} %") }
        };
        let error = [self.error.map(percent).unwrap_or_default(), mark.to_owned()];
        let error: Vec<String> = error.into_iter().filter(|text| !text.is_empty()).collect();
        let simulated = self.simulated.map_or_else(|| "-".to_owned(), number);
        [number(self.x), published, simulated, error.join(", ")]
    }
}

/// Formats a number with three significant digits, or as an integer if it is large.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
