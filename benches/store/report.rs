//! What was found: one JSON object a row, or a table.

use std::io::Write as _;

use anyhow::Result;
use mongodb::bson::doc;
use serde_json::{Value, json};

use crate::harness::{Lab, load_average, say};
use crate::rows::{Bound, Measured, Row, Scenario};

/// What came of one row.
pub struct Finding {
    row: &'static Row,
    /// Or why there is nothing.
    measured: Result<Measured, String>,
    load: Option<f64>,
    seconds: f64,
}

impl Finding {
    /// The finding for `row`, out of what its scenario measured.
    pub fn of(row: &'static Row, scenario: &Result<Vec<Measured>>, load: Option<f64>, seconds: f64) -> Self {
        let measured = match scenario {
            Ok(rows) => rows
                .iter()
                .find(|measured| measured.name == row.name)
                .cloned()
                .ok_or_else(|| "its scenario did not measure it".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        };
        Finding { row, measured, load, seconds }
    }

    /// `None` without a bound; a row that failed does not hold.
    fn holds(&self) -> Option<bool> {
        let bound = self.row.bound?;
        Some(self.measured.as_ref().is_ok_and(|measured| bound.holds(measured.ratio)))
    }

    fn to_json(&self, is_quick: bool) -> Value {
        let mut line = json!({ "name": self.row.name, "what": self.row.what });
        if let Ok(measured) = &self.measured {
            line["ratio"] = json!(rounded(measured.ratio));
        } else {
            line["ratio"] = Value::Null;
        }
        line["bound"] = self.row.bound.map_or(Value::Null, |bound| json!(bound.limit()));
        line["sense"] = self.row.bound.map_or(Value::Null, |bound| json!(bound.sense()));
        line["holds"] = json!(self.holds());
        match &self.measured {
            Ok(measured) => measured.write_to(&mut line),
            Err(error) => line["error"] = json!(error),
        }
        line["load"] = json!(self.load);
        line["scenarioSeconds"] = json!(rounded(self.seconds));
        line["quick"] = json!(is_quick);
        line
    }

    fn cells(&self) -> [String; 7] {
        let bound =
            self.row.bound.map_or(String::new(), |bound| format!("{} {}", bound.sense(), bound.limit()));
        let holds = match self.holds() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        let [time, floor, ratio, published] = match &self.measured {
            Ok(measured) => measured.cells(),
            Err(_) => ["failed", "", "", ""].map(str::to_owned),
        };
        [self.row.name.to_owned(), time, floor, ratio, bound, holds.to_owned(), published]
    }
}

impl Measured {
    fn write_to(&self, line: &mut Value) {
        line["unit"] = json!(self.unit);
        line["time"] = json!(rounded(self.subject));
        line["floor"] = json!(rounded(self.floor));
        if let Some(published) = self.published {
            line["published"] = json!(rounded(published));
        }
        if let Value::Object(details) = &self.details {
            for (name, value) in details {
                line[name] = value
                    .as_f64()
                    .filter(|_| value.is_f64())
                    .map_or(value.clone(), |number| json!(rounded(number)));
            }
        }
    }

    fn cells(&self) -> [String; 4] {
        let figure = |figure: f64| format!("{} {}", short(figure), self.unit);
        let published = self.published.map_or(String::new(), figure);
        [figure(self.subject), figure(self.floor), format!("{:.2}", self.ratio), published]
    }
}

/// Collects findings; JSON lines are printed as they come.
pub struct Report {
    is_json: bool,
    is_quick: bool,
    /// What it is measured on.
    machine: String,
    findings: Vec<Finding>,
}

impl Report {
    /// Says what it is measured on.
    pub async fn begin(lab: &Lab, is_json: bool) -> Result<Self> {
        let info = lab.client.database("admin").run_command(doc! { "buildInfo": 1 }).await?;
        let version = info.get_str("version").unwrap_or("of unknown version");
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let load = load_average().map_or(String::new(), |load| format!(", load average {load}"));
        let machine = format!("mongod {version}, {cores} cores{load}");
        say(&machine);
        Ok(Report { is_json, is_quick: lab.is_quick, machine, findings: Vec::new() })
    }

    pub fn add(&mut self, finding: Finding) -> Result<()> {
        match &finding.measured {
            Ok(measured) => say(&format!("{}: {:.2}", finding.row.name, measured.ratio)),
            Err(error) => say(&format!("{}: failed: {error}", finding.row.name)),
        }
        if self.is_json {
            writeln!(std::io::stdout(), "{}", finding.to_json(self.is_quick))?;
        }
        self.findings.push(finding);
        Ok(())
    }

    /// Prints the table; returns whether every bound holds.
    pub fn end(self) -> Result<bool> {
        if !self.is_json {
            writeln!(std::io::stdout(), "{}\n", self.machine)?;
            let heading = ["row", "time", "floor", "ratio", "bound", "holds", "published"].map(str::to_owned);
            print_table(heading, self.findings.iter().map(Finding::cells).collect())?;
        }
        Ok(self.findings.iter().all(|finding| finding.holds() != Some(false)))
    }
}

/// Prints the rows that there are.
pub fn list(scenarios: &'static [Scenario]) -> Result<()> {
    let rows = scenarios.iter().flat_map(|scenario| scenario.rows);
    let cells = |row: &Row| {
        let bound = row.bound.map_or(String::new(), |bound| format!("{} {}", bound.sense(), bound.limit()));
        [row.name.to_owned(), bound, row.what.to_owned()]
    };
    print_table(["row", "bound", "what"].map(str::to_owned), rows.map(cells).collect())
}

fn print_table<const N: usize>(heading: [String; N], rows: Vec<[String; N]>) -> Result<()> {
    let lines: Vec<[String; N]> = std::iter::once(heading).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = std::io::stdout().lock();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Three significant places are more than a measurement has.
fn short(figure: f64) -> String {
    match figure.abs() {
        large if large >= 100.0 => format!("{figure:.0}"),
        middle if middle >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

fn rounded(figure: f64) -> f64 {
    (figure * 1_000.0).round() / 1_000.0
}

impl Bound {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtMost(limit) => ratio <= limit,
            Bound::AtLeast(limit) => ratio >= limit,
        }
    }

    fn limit(self) -> f64 {
        match self {
            Bound::AtMost(limit) | Bound::AtLeast(limit) => limit,
        }
    }

    fn sense(self) -> &'static str {
        match self {
            Bound::AtMost(_) => "at most",
            Bound::AtLeast(_) => "at least",
        }
    }
}
