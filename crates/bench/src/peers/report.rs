//! The table of results: as text for terminals, and as Markdown.

use halite_figures::plot::{self, Ratio};

use super::probe::{Probe, ProbeError, Sample};
use super::rows::{Row, Source, Target, probes};
use super::spread::Spread;

struct MeasuredRow {
    topic: &'static str,
    name: String,
    unit: &'static str,
    ours: Option<Spread>,
    peer: &'static str,
    theirs: Option<Spread>,
    ratio: Option<Spread>,
    target: Option<Target>,
}

/// The results of all rows.
pub struct Report {
    lines: Vec<MeasuredRow>,
    rounds: u32,
    is_smoke: bool,
    machine: Vec<String>,
}

impl Report {
    /// Creates the report from `samples[round][probe]`, with probes in the order of [`probes`].
    pub fn new(
        rows: &[Row],
        samples: &[Vec<Sample>],
        rounds: u32,
        is_smoke: bool,
        machine: Vec<String>,
    ) -> Result<Report, ProbeError> {
        let probes = probes(rows);
        let lines = rows.iter().map(|row| MeasuredRow::new(row, &probes, samples));
        let lines = lines.collect::<Result<_, _>>()?;
        Ok(Report { lines, rounds, is_smoke, machine })
    }

    /// Returns the table for a terminal.
    pub fn text(&self) -> String {
        let mut cells = vec![HEADINGS.map(str::to_owned)];
        cells.extend(self.lines.iter().map(MeasuredRow::cells));
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        let mut text = format!("{}\n", self.note());
        for row in &cells {
            let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns a description of the machine, and one table per topic, for a document.
    pub fn markdown(&self) -> String {
        let mut text = format!("{} {}.\n", self.note(), self.machine.join("; "));
        for lines in self.lines.chunk_by(|line, next| line.topic == next.topic) {
            text.push_str(&format!("\n## {}\n\n", lines[0].topic));
            text.push_str(&format!("| {} |\n|{}\n", HEADINGS.join(" | "), "---|".repeat(COLUMNS)));
            for line in lines {
                text.push_str(&format!("| {} |\n", line.cells().join(" | ")));
            }
        }
        text
    }

    /// Draws the ratios of all rows that have one, as an SVG image.
    pub fn svg(&self) -> String {
        let drawn = |line: &MeasuredRow| {
            let Spread { median, min, max } = line.ratio?;
            Some(Ratio { name: format!("{} / {}", line.name, line.peer), values: [min, median, max] })
        };
        let rows: Vec<Ratio> = self.lines.iter().filter_map(drawn).collect();
        plot::ratios("Halite over its peers: median and range", &rows)
    }

    fn note(&self) -> String {
        let smoke = if self.is_smoke { "Smoke run: the figures are not measurements. " } else { "" };
        format!(
            "{smoke}Medians of {} alternating rounds with their range; each ratio (Halite / peer) is within one round.",
            self.rounds
        )
    }
}

const COLUMNS: usize = 7;
const HEADINGS: [&str; COLUMNS] = ["operation", "unit", "Halite", "peer", "peer's figure", "ratio", "target"];

impl MeasuredRow {
    fn new(row: &Row, probes: &[Probe], samples: &[Vec<Sample>]) -> Result<MeasuredRow, ProbeError> {
        let ours = series(row.ours.as_ref(), probes, samples)?;
        let theirs = series(row.theirs.as_ref(), probes, samples)?;
        let ratios = ours.as_ref().zip(theirs.as_ref()).map(|(ours, theirs)| {
            let pairs = ours.iter().zip(theirs);
            pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<f64>>()
        });
        let spread = |values: Option<Vec<f64>>| values.map(|values| Spread::of(&values));
        Ok(MeasuredRow {
            topic: row.topic,
            name: row.name.clone(),
            unit: row.unit,
            ours: spread(ours),
            peer: row.peer,
            theirs: spread(theirs),
            ratio: spread(ratios),
            target: row.target,
        })
    }

    fn cells(&self) -> [String; COLUMNS] {
        let shown =
            |spread: &Option<Spread>| spread.map_or_else(|| "-".to_owned(), |spread| spread.to_string());
        [
            self.name.clone(),
            self.unit.to_owned(),
            shown(&self.ours),
            if self.peer.is_empty() { "-".to_owned() } else { self.peer.to_owned() },
            shown(&self.theirs),
            shown(&self.ratio),
            self.target.map_or_else(|| "-".to_owned(), |target| self.target_text(target)),
        ]
    }

    fn target_text(&self, target: Target) -> String {
        let wanted = match target {
            Target::RatioAtMost(bound) => format!("at most {bound:.2}"),
            Target::RatioAtLeast(bound) => format!("at least {bound:.2}"),
            Target::AtMost(bound) => format!("at most {bound} {}", self.unit),
            Target::AtLeast(bound) => format!("at least {bound} {}", self.unit),
        };
        format!("{wanted}: {}", self.verdict())
    }

    /// Compares the median with the target.
    fn verdict(&self) -> &'static str {
        let is_met = match self.target {
            Some(Target::RatioAtMost(bound)) => self.ratio.map(|ratio| ratio.median <= bound),
            Some(Target::RatioAtLeast(bound)) => self.ratio.map(|ratio| ratio.median >= bound),
            Some(Target::AtMost(bound)) => self.ours.map(|ours| ours.median <= bound),
            Some(Target::AtLeast(bound)) => self.ours.map(|ours| ours.median >= bound),
            None => None,
        };
        match is_met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "-",
        }
    }
}

/// Returns the figure of `source` in each round.
fn series(
    source: Option<&Source>,
    probes: &[Probe],
    samples: &[Vec<Sample>],
) -> Result<Option<Vec<f64>>, ProbeError> {
    let Some(source) = source else {
        return Ok(None);
    };
    let index =
        probes.iter().position(|probe| *probe == source.probe).expect("probes come from the same rows");
    samples.iter().map(|round| source.value(&round[index])).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::rows::Figure;

    fn probe(iterations: u64) -> Probe {
        Probe::PingPong { iterations }
    }

    fn source(iterations: u64) -> Option<Source> {
        Some(Source { probe: probe(iterations), figure: Figure::Latency })
    }

    fn report(target: Target) -> Report {
        let row = Row {
            topic: "Throws",
            name: "throw".to_owned(),
            unit: "us",
            ours: source(1),
            peer: "other",
            theirs: source(2),
            target: Some(target),
        };
        let sample = |latency_us| Sample { latency_us: Some(latency_us), ..Sample::default() };
        // The machine was half as fast in the second round. This does not change the ratios within a round.
        let samples = [vec![sample(1.0), sample(2.0)], vec![sample(2.0), sample(4.0)]];
        Report::new(&[row], &samples, 2, false, vec!["kernel: Linux".to_owned()])
            .expect("the samples have all figures")
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let text = report(Target::RatioAtMost(0.5)).text();
        let line = text.lines().last().unwrap();
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = [
            "throw",
            "us",
            "1.50 [1.00..2.00]",
            "other",
            "3.00 [2.00..4.00]",
            "0.500 [0.500..0.500]",
            "at most 0.50: met",
        ];
        assert_eq!(cells, expected);
    }

    #[test]
    fn the_verdict_compares_the_median_with_the_target() {
        assert_eq!(report(Target::RatioAtLeast(0.51)).lines[0].verdict(), "missed");
        assert_eq!(report(Target::RatioAtMost(0.49)).lines[0].verdict(), "missed");
        assert_eq!(report(Target::AtMost(1.4)).lines[0].verdict(), "missed");
        assert_eq!(report(Target::AtMost(1.5)).lines[0].verdict(), "met");
        assert_eq!(report(Target::AtLeast(1.5)).lines[0].verdict(), "met");
        assert_eq!(report(Target::AtLeast(1.6)).lines[0].verdict(), "missed");
    }

    #[test]
    fn markdown_names_the_machine_and_the_topic() {
        let text = report(Target::AtMost(1.0)).markdown();
        assert!(text.contains(" kernel: Linux.\n\n## Throws\n\n"), "{text}");
        assert!(text.contains("| throw | us | 1.50 [1.00..2.00] | other |"), "{text}");
    }
}
