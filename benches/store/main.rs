//! What the store and the worker cost, each beside its floor: the raw writes of the driver on the same documents.
//!
//! Every figure is a ratio within one run. Subject and floor take turns on the same server, so that a slow machine or a
//! busy neighbour slows both. `dev/bench` starts a server and runs this; `--help` tells the rest.

mod answering;
mod data;
mod harness;
mod published;
mod report;
mod rows;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use harness::{Lab, load_average};
use report::{Finding, Report};
use rows::{SCENARIOS, Scenario};

/// Measure claims, the worker, purge and append beside what the raw writes of the driver cost.
#[derive(Debug, Parser)]
#[command(name = "dev/bench", after_help = "See dev/bench --help for the server and the machine.")]
struct Arguments {
    /// Rows to measure: a name, or what several names begin with; all when none is given
    names: Vec<String>,
    /// Fewer repetitions and less data, and only the rows that have a bound
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a row instead of the table
    #[arg(long)]
    json: bool,
    /// Exit with 1 when a bound does not hold or a row failed
    #[arg(long)]
    check: bool,
    /// List the rows with their bounds and measure nothing
    #[arg(long)]
    list: bool,
    /// Be the child of the row `lines`: answer each line of stdin
    #[arg(long, hide = true)]
    answer_lines: bool,
    /// What `cargo bench` passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.answer_lines {
        return answering::answer_lines().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    match run(&arguments).await {
        Ok(all_hold) if all_hold || !arguments.check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "dev/bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every bound holds.
async fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.list {
        report::list(SCENARIOS)?;
        return Ok(true);
    }
    check_names(&arguments.names)?;
    let lab = Lab::open(&uri()?, arguments.quick, arguments.names.clone()).await?;
    let mut report = Report::begin(&lab, arguments.json).await?;
    for scenario in SCENARIOS.iter().filter(|scenario| lab.wants_any(scenario.rows)) {
        for finding in measure(&lab, scenario).await {
            report.add(finding)?;
        }
    }
    let all_hold = report.end()?;
    lab.close().await;
    Ok(all_hold)
}

/// Measures the rows of one scenario, and clears away its data however it ended.
async fn measure(lab: &Lab, scenario: &Scenario) -> Vec<Finding> {
    let began = std::time::Instant::now();
    let result = (scenario.run)(lab).await;
    let cleared = lab.clear().await;
    let result = result.and_then(|measured| cleared.map(|()| measured));
    let (load, seconds) = (load_average(), began.elapsed().as_secs_f64());
    let wanted = scenario.rows.iter().filter(|row| lab.wants(row.name));
    let finding = |row| Finding::of(row, &result, load, seconds);
    wanted.map(finding).collect()
}

fn check_names(names: &[String]) -> Result<()> {
    let rows = || SCENARIOS.iter().flat_map(|scenario| scenario.rows);
    match names.iter().find(|name| !rows().any(|row| row.name.starts_with(name.as_str()))) {
        Some(name) => bail!("no row begins with `{name}`; --list shows them"),
        None => Ok(()),
    }
}

fn uri() -> Result<String> {
    let variables = ["RELAYCTL_BENCH_MONGODB_URI", "RELAYCTL_TEST_MONGODB_URI"];
    let uri = variables.iter().find_map(|name| std::env::var(name).ok().filter(|uri| !uri.is_empty()));
    uri.context("RELAYCTL_BENCH_MONGODB_URI names no replica set; run dev/bench, which starts one")
}
