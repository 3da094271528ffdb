//! Plots as SVG.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::{Shift, combinators::IntoLogRange};
use plotters::prelude::*;

/// A plot of lines.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines of the plot.
    pub series: Vec<Series>,
    /// Names of the sections of the horizontal axis, each with its begin.
    pub marks: Vec<(f64, &'static str)>,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Quantity, with its unit in brackets.
    pub label: String,
    /// True for a logarithmic scale.
    pub is_log: bool,
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Number of the colour. Lines of one colour share an entry in the legend.
    pub colour: usize,
    /// True for a dashed line with hollow marks.
    pub is_dashed: bool,
    /// Points: x and y. A logarithmic axis shows only points with a positive value.
    pub points: Vec<[f64; 2]>,
}

/// One row of [`ratios`]: a ratio and its range.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// Description of the compared operation.
    pub name: String,
    /// Minimum, median and maximum.
    pub values: [f64; 3],
}

/// Width of an image, and height of a plot without its legend, in pixels. Text stays legible if the image is scaled to
/// a width of 390 pixels.
const WIDTH: u32 = 480;
const HEIGHT: u32 = 330;
/// Height of a line of the legend, in pixels.
const LEGEND_LINE: u32 = 22;
/// Sizes of text in pixels.
const SMALL: u32 = 17;
const LARGE: u32 = 19;
const COLOURS: [RGBColor; 11] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xc6, 0x28, 0x28),
    RGBColor(0x2e, 0x7d, 0x32),
    RGBColor(0x7b, 0x4f, 0xa8),
    RGBColor(0xb3, 0x5c, 0x00),
    RGBColor(0x00, 0x83, 0x8f),
    RGBColor(0x6d, 0x4c, 0x41),
    RGBColor(0xad, 0x14, 0x57),
    RGBColor(0x45, 0x5a, 0x64),
    RGBColor(0x9e, 0x9d, 0x24),
    RGBColor(0x00, 0x00, 0x00),
];

/// Draws the plots one below the other on a white background, and returns the SVG.
pub fn svg(plots: &[Plot]) -> String {
    let mut text = String::new();
    let heights: Vec<u32> = plots.iter().map(|plot| HEIGHT + legend_lines(plot) * LEGEND_LINE).collect();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, heights.iter().sum())).into_drawing_area();
        draw_all(&root, plots, &heights).expect("writing to a string cannot fail");
    }
    text
}

/// Draws the ratios as rows on one logarithmic axis with a line at 1, and returns the SVG. A row whose values are not
/// all positive and finite shows only its name.
pub fn ratios(title: &str, rows: &[Ratio]) -> String {
    let is_shown = |row: &&Ratio| row.values.iter().all(|value| value.is_finite() && *value > 0.0);
    let shown = rows.iter().filter(is_shown).flat_map(|row| row.values);
    let reach = shown.map(|value| value.log10().abs()).fold(0.5, f64::max);
    let height = HEADER + rows.len() as u32 * LEGEND_LINE;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw_ratios(&root, title, rows, reach).expect("writing to a string cannot fail");
    }
    text
}

/// Height of title and axis in [`ratios`], and width of the names, in pixels.
const HEADER: u32 = 60;
const NAMES: i32 = 270;

fn draw_ratios<'a>(root: &Area<'a>, title: &str, rows: &[Ratio], reach: f64) -> DrawResult<'a> {
    root.fill(&WHITE)?;
    let width = f64::from(WIDTH as i32 - NAMES - 24);
    let at = |value: f64| NAMES + ((value.log10() / reach + 1.0) / 2.0 * width) as i32;
    let (top, bottom) = (HEADER as i32 - 10, HEADER as i32 + rows.len() as i32 * LEGEND_LINE as i32);
    let text = |text: &str, x, y| Text::new(text.to_owned(), (x, y), ("sans-serif", SMALL));
    root.draw(&Text::new(title.to_owned(), (8, 6), ("sans-serif", LARGE)))?;
    let edge = 10_f64.powf(reach);
    for (value, mix) in [(1.0 / edge, 0.15), (1.0, 0.6), (edge, 0.15)] {
        root.draw(&PathElement::new([(at(value), top), (at(value), bottom)], BLACK.mix(mix)))?;
        root.draw(&text(&short(value), at(value) - 8, top - 18))?;
    }
    for (index, row) in rows.iter().enumerate() {
        let y = HEADER as i32 + index as i32 * LEGEND_LINE as i32 + 8;
        root.draw(&text(&row.name, 8, y - 8))?;
        let [min, median, max] = row.values;
        if row.values.iter().all(|value| value.is_finite() && *value > 0.0) {
            root.draw(&PathElement::new([(at(min), y), (at(max), y)], COLOURS[0].stroke_width(2)))?;
            root.draw(&Circle::new((at(median), y), 4, COLOURS[0].filled()))?;
        }
    }
    root.present()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw_all<'a>(root: &Area<'a>, plots: &[Plot], heights: &[u32]) -> DrawResult<'a> {
    root.fill(&WHITE)?;
    let mut rest = root.clone();
    for (plot, height) in plots.iter().zip(heights) {
        let (area, below) = rest.split_vertically(*height);
        rest = below;
        let (chart, legend) = area.split_vertically(HEIGHT);
        let (x, y) = (range(plot, plot.x.is_log, 0), range(plot, plot.y.is_log, 1));
        match (plot.x.is_log, plot.y.is_log) {
            (true, true) => draw(&chart, plot, (x.0..x.1).log_scale(), (y.0..y.1).log_scale())?,
            (true, false) => draw(&chart, plot, (x.0..x.1).log_scale(), y.0..y.1)?,
            (false, true) => draw(&chart, plot, x.0..x.1, (y.0..y.1).log_scale())?,
            (false, false) => draw(&chart, plot, x.0..x.1, y.0..y.1)?,
        }
        draw_legend(&legend, plot)?;
    }
    root.present()
}

fn draw<'a, X, Y>(area: &Area<'a>, plot: &Plot, x: X, y: Y) -> DrawResult<'a>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, ("sans-serif", LARGE))
        .margin(8)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .label_style(("sans-serif", SMALL))
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let top = range(plot, plot.y.is_log, 1).1;
    let upright = ("sans-serif", SMALL).into_font().transform(FontTransform::Rotate90);
    let style = upright.color(&BLACK.mix(0.5));
    let names = plot.marks.iter().filter(|(x, _)| is_drawn(plot, *x, top));
    let lines = names.clone().map(|(x, _)| PathElement::new([(*x, 0.0), (*x, top)], BLACK.mix(0.15)));
    chart.draw_series(lines)?;
    // A rotated text lies to the left of its position.
    let beside = (SMALL as i32 + 2, 4);
    chart.draw_series(
        names.map(|(x, name)| EmptyElement::at((*x, top)) + Text::new(*name, beside, style.clone())),
    )?;
    for series in &plot.series {
        let colour = colour(series);
        let points = series.points.iter().map(|[x, y]| (*x, *y)).filter(|(x, y)| is_drawn(plot, *x, *y));
        let points: Vec<(f64, f64)> = points.collect();
        let line = points.iter().copied();
        if series.is_dashed {
            chart.draw_series(DashedLineSeries::new(line, 5, 4, colour.stroke_width(1)))?;
            let mark = |point| Circle::new(point, 5, colour.stroke_width(1));
            chart.draw_series(points.into_iter().map(mark))?;
        } else {
            chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
        }
    }
    Ok(())
}

fn draw_legend<'a>(area: &Area<'a>, plot: &Plot) -> DrawResult<'a> {
    for (index, series) in legend(plot).enumerate() {
        let (column, row) = (index as i32 % 2, index as i32 / 2);
        let (x, y) = (24 + column * (WIDTH as i32 / 2 - 12), 10 + row * LEGEND_LINE as i32);
        let colour = colour(series);
        if series.is_dashed {
            area.draw(&PathElement::new([(x, y), (x + 6, y)], colour.stroke_width(1)))?;
            area.draw(&PathElement::new([(x + 16, y), (x + 22, y)], colour.stroke_width(1)))?;
            area.draw(&Circle::new((x + 11, y), 5, colour.stroke_width(1)))?;
        } else {
            area.draw(&PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)))?;
            area.draw(&Circle::new((x + 11, y), 3, colour.filled()))?;
        }
        let text = Text::new(series.name.clone(), (x + 30, y - 8), ("sans-serif", SMALL));
        area.draw(&text)?;
    }
    Ok(())
}

/// Returns the lines of the legend: one of each colour, a solid line if the colour has one.
fn legend(plot: &Plot) -> impl Iterator<Item = &Series> {
    let is_shown = |(index, series): &(usize, &Series)| {
        let mut others = plot.series.iter().enumerate().filter(|(_, other)| other.colour == series.colour);
        let first_solid = others.clone().find(|(_, other)| !other.is_dashed);
        first_solid.or(others.next()).is_some_and(|(shown, _)| shown == *index)
    };
    plot.series.iter().enumerate().filter(is_shown).map(|(_, series)| series)
}

fn legend_lines(plot: &Plot) -> u32 {
    legend(plot).count().div_ceil(2) as u32
}

fn colour(series: &Series) -> RGBColor {
    COLOURS[series.colour % COLOURS.len()]
}

fn is_drawn(plot: &Plot, x: f64, y: f64) -> bool {
    x.is_finite() && y.is_finite() && (x > 0.0 || !plot.x.is_log) && (y > 0.0 || !plot.y.is_log)
}

/// Returns the range of an axis, with a margin.
fn range(plot: &Plot, is_log: bool, axis: usize) -> (f64, f64) {
    let points = plot.series.iter().flat_map(|series| &series.points);
    let values = points.filter(|[x, y]| is_drawn(plot, *x, *y)).map(|point| point[axis]);
    let (low, high) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    match (low <= high, is_log) {
        (false, _) => (1.0, 10.0),
        (true, true) => (low / 1.5, high * 1.5),
        (true, false) => (0.0, (high * 1.08).max(f64::MIN_POSITIVE)),
    }
}

/// Formats a number of an axis with at most two decimals.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = format!("{scaled:.2}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}
