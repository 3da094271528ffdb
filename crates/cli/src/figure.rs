//! `halite figure`: published measurements of adapters beside their simulation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use halite_figures::{Figure, Point, SimulatedFigure, Summary};
use halite_sim::{Profile, ProfileError};
use serde::Serialize;

use crate::output;
use crate::progress;
use crate::table::{Align, Table};
use crate::target::Target;

/// Arguments of `halite figure`
#[derive(Args, Debug)]
pub struct FigureArgs {
    /// A figure, such as lite-4, or `all`
    pub id: String,
    /// Print one JSON object for each figure
    #[arg(long)]
    pub json: bool,
    /// Print a document in Markdown, which refers to the images figures/ID.svg
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Write the plot to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Create this folder with the page index.html and the plot of each figure
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite existing files of --svg and --out
    #[arg(long)]
    pub force: bool,
    /// TOML file with a hardware profile that replaces the profiles of the figures
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// A failure before anything is simulated.
#[derive(Debug, thiserror::Error)]
enum FigureError {
    #[error("there is no figure {id:?}; did you mean {nearest}? The figures are {}", ids().join(", "))]
    Unknown { id: String, nearest: String },
    #[error("--svg takes one figure; use --out DIR for all of them")]
    OneFile,
    #[error("cannot use profile {}: {cause}", path.display())]
    Profile { path: PathBuf, cause: ProfileError },
}

/// Number of characters of an unknown id that the error shows.
const ID_CHARS_SHOWN: usize = 40;

/// One object of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    figure: &'a str,
    title: &'a str,
    source: &'a str,
    points: &'a [Point],
    summary: Summary,
}

pub fn run(args: &FigureArgs) -> anyhow::Result<()> {
    let figures = find_figures(&args.id)?;
    let own = args.profile.as_deref().map(profile).transpose()?;
    if args.svg.is_some() && figures.len() > 1 {
        return Err(FigureError::OneFile.into());
    }
    let target = Target::new(args.svg.as_deref(), args.out.as_deref(), args.force)?;
    let bar = progress::steps("simulating");
    let name = args.profile.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    let simulated =
        halite_figures::simulate(&figures, own.as_ref().map(|own| (name.as_str(), own)), |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        })?;
    bar.finish_and_clear();
    if let [one] = simulated.as_slice() {
        target.write_svg(|| one.svg())?;
    }
    let plots = simulated.iter().map(|simulated| (simulated.figure.id.as_str(), simulated.svg()));
    target.write_page(plots, || halite_figures::page(&simulated))?;
    if args.markdown {
        output::print(&halite_figures::markdown(&simulated))?;
    } else if args.json {
        simulated.iter().try_for_each(|simulated| output::print_json(&report(simulated)))?;
    } else {
        output::print(&text(&simulated))?;
    }
    Ok(())
}

fn ids() -> Vec<&'static str> {
    Figure::all().iter().map(|figure| figure.id.as_str()).collect()
}

fn find_figures(id: &str) -> Result<Vec<&'static Figure>, FigureError> {
    if id == "all" {
        return Ok(Figure::all().iter().collect());
    }
    let nearest = || {
        let distance = |other: &&str| strsim::damerau_levenshtein(id, other);
        ids().into_iter().min_by_key(distance).unwrap_or("all").to_owned()
    };
    let shortened = || match id.char_indices().nth(ID_CHARS_SHOWN) {
        Some((end, _)) => format!("{}...", &id[..end]),
        None => id.to_owned(),
    };
    let unknown = || FigureError::Unknown { id: shortened(), nearest: nearest() };
    Ok(vec![Figure::named(id).ok_or_else(unknown)?])
}

fn profile(path: &Path) -> anyhow::Result<Profile> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read profile {}", path.display()))?;
    let refused = |cause| FigureError::Profile { path: path.to_owned(), cause };
    Ok(Profile::from_toml(&text).map_err(refused)?)
}

fn report(simulated: &SimulatedFigure) -> Report<'_> {
    let figure = simulated.figure;
    Report {
        figure: &figure.id,
        title: &figure.title,
        source: &figure.source,
        points: &simulated.points,
        summary: halite_figures::summary(std::slice::from_ref(simulated)),
    }
}

/// Formats the points of figures as tables.
fn text(figures: &[SimulatedFigure]) -> String {
    let mut text = String::new();
    for simulated in figures {
        let figure = simulated.figure;
        text += &format!("{}: {} ({})\n", figure.id, figure.title, figure.source);
        let right = |heading| (heading, Align::Right);
        let mut table = Table::new(&[
            ("line", Align::Left),
            right("x"),
            right("published"),
            right("simulated"),
            ("error", Align::Left),
        ]);
        for point in &simulated.points {
            let mut row = vec![point.line.to_owned()];
            row.extend(point.cells());
            table.row(row);
        }
        text += &format!("{table}\n");
        for note in simulated.failures() {
            text += &format!("{note}\n");
        }
    }
    text + &halite_figures::counts(figures) + "\n"
}
