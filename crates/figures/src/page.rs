//! Figures for readers: plots, a page, and a table in Markdown.

use std::fmt::Write;

use crate::data::{Axis, Panel, Scale};
use crate::plot::{self, Plot, Series};
use crate::shown::{Point, Shown, summary};

const KEY: &str = "Hollow marks and dashed lines are published, filled marks and solid lines simulated.";
const ABOUT: &str = "Each figure shows published measurements of RDMA adapters beside a simulation of the same experiment. \
The simulation is Halite's: its own code runs where a figure is of LITE, on a model of the adapter in virtual time. \
No value is measured on this machine. Fitted points are those from which a value of a profile was taken; the model \
and the other values were chosen with all figures at hand, so predictions are not blind. \
The explanations of misses are conjectures: none was tested. The simulated error counts as a miss if it exceeds 10 % plus the error with which \
the published value was read off the paper's plot.";

impl Shown {
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
        Plot { title: self.figure.title.clone(), x: axis(&panel.x), y: axis(&panel.y), series }
    }

    /// Lists lines that are drawn as published only, and misses, each with its explanation.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for line in self.figure.lines() {
            if let Some(why) = &line.published_only {
                notes.push(format!("{}: published only. {why}", line.name));
            }
            for miss in &line.misses {
                let missed = |point: &&Point| point.line == line.name && point.misses(10.0);
                let at: Vec<String> = self
                    .points
                    .iter()
                    .filter(missed)
                    .filter(|point| miss.at.contains(&point.x))
                    .map(|point| number(point.x))
                    .collect();
                if !at.is_empty() {
                    notes.push(format!("{} at {}: {}", line.name, at.join(", "), miss.why));
                }
            }
        }
        notes
    }
}

/// A part of a page: a plot, its points as a table, and remarks.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Name, to which links within the page refer; shown before the heading, unless the heading contains it.
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
    /// Remarks below the plot.
    pub notes: Vec<String>,
}

/// Returns a page as one HTML file without references to others. Texts may contain any characters.
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
        let class = if row.iter().any(|cell| cell == MISS) { " class=\"miss\"" } else { "" };
        format!("<tr{class}>{}</tr>\n", cells("td", row))
    };
    let is_named = !title.to_lowercase().contains(id.as_str());
    let name = if is_named { format!("<code>{}</code> ", escaped(id)) } else { String::new() };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let table: String = rows.iter().map(row).collect();
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul>\n{notes}</ul>\n") };
    format!(
        "<section id=\"{0}\">\n<h2>{name}{1}</h2>\n<p>{2}</p>\n<div class=\"row\"><div class=\"card\">{svg}</div>\n\
         <div class=\"scroll\"><table><tr>{3}</tr>\n{table}</table></div></div>\n{notes}</section>\n",
        escaped(id),
        escaped(title),
        escaped(text),
        cells("th", &head),
    )
}

/// Returns the page with all figures.
pub fn page(figures: &[Shown]) -> String {
    let section = |shown: &Shown| Section {
        id: shown.figure.id.clone(),
        title: shown.figure.title.clone(),
        text: format!("{}. {} {KEY}", shown.figure.source, shown.figure.workload),
        svg: shown.svg(),
        head: vec!["line", "x", "published", "simulated", "error", ""],
        rows: shown
            .points
            .iter()
            .map(|point| [point.line.to_owned()].into_iter().chain(point.cells()).collect())
            .collect(),
        notes: shown.notes(),
    };
    let sections: Vec<Section> = figures.iter().map(section).collect();
    html("Published figures, simulated", &[ABOUT, &counts(figures)], &sections)
}

/// Mark of a predicted point that misses the published value.
const MISS: &str = "miss";

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:0 auto;padding:16px;background:#f6f7f9;color:#1b1f24}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem}\
.row{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}\
.card{background:#fff;border-radius:8px;padding:4px;width:520px;max-width:100%;box-sizing:border-box}\
.card svg{display:block;width:100%;height:auto}\
.scroll{overflow-x:auto;flex:1 1 360px;max-width:100%}\
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\
th,td{padding:2px 10px 2px 0;text-align:left;white-space:nowrap}\
.miss td{font-weight:600}\
small{color:#6a737d}\
@media(prefers-color-scheme:dark){body{background:#16191d;color:#e3e6ea}small{color:#9aa4af}}";

/// Returns the document `docs/figures.md`, which refers to the images in `docs/figures/`.
pub fn markdown(figures: &[Shown]) -> String {
    let mut text =
        format!("# Published figures, simulated\n\n{ABOUT}\n\n{}\n\n{KEY}\n\n{COMMANDS}", counts(figures));
    for shown in figures {
        let figure = shown.figure;
        let mut add = |line: &str| writeln!(text, "{line}").expect("writing to a string cannot fail");
        add(&format!("\n## {}: {}\n", figure.id, figure.title));
        add(&format!("{}. {}\n", figure.source, figure.workload));
        add(&format!("![{}](figures/{}.svg)\n", figure.title, figure.id));
        add("| line | x | published | simulated | error | |\n|---|---:|---:|---:|---:|---|");
        for point in &shown.points {
            let [x, published, simulated, error, mark] = point.cells();
            add(&format!("| {} | {x} | {published} | {simulated} | {error} | {mark} |", point.line));
        }
        let notes = shown.notes();
        if !notes.is_empty() {
            add("");
        }
        notes.iter().for_each(|note| add(&format!("- {note}")));
    }
    text
}

const COMMANDS: &str = "\
These commands write this file and its images; `halite figure all --out DIR` also writes a page with all of them:

<!-- run: by hand -->
```sh
cargo run --release -p halite-cli -- figure all --markdown > docs/figures.md
cargo run --release -p halite-cli -- figure all --out docs/figures --force
```
";

/// Returns the sentence that sums up the errors of figures.
pub fn counts(figures: &[Shown]) -> String {
    let counts = summary(figures);
    let percent = |part: usize| (100 * part).checked_div(counts.predicted).unwrap_or(100);
    format!(
        "{} points are fitted: a value of a profile was chosen for them. {} points are predicted: {} ({} %) lie \
         within 10 % plus their reading error, {} ({} %) within 25 % plus their reading error.",
        counts.fitted,
        counts.predicted,
        counts.within_10,
        percent(counts.within_10),
        counts.within_25,
        percent(counts.within_25),
    )
}

impl Point {
    /// Formats the point for a table: x, published value, simulated value, error and a mark.
    pub fn cells(&self) -> [String; 5] {
        let mark = match self.simulated {
            None => "published only",
            Some(_) if self.fitted => "fitted",
            Some(_) if self.misses(10.0) => MISS,
            Some(_) => "",
        };
        let percent = |error: f64| {
            let rounded = (error * 100.0).round() as i64;
            if rounded == 0 { "0 %".to_owned() } else { format!("{rounded:+} %") }
        };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let (simulated, error) = (self.simulated.map(number), self.error.map(percent));
        [number(self.x), number(self.published), or_dash(simulated), or_dash(error), mark.to_owned()]
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
