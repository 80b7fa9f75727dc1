//! `stats`: how much of everything there is.

use std::io::Write as _;

use clap::ValueEnum;

use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::print_document;
use crate::cli::render::table::{Cell, Column, write_table};
use crate::cli::render::time::Times;
use crate::cli::ui::Meaning;
use crate::config::OutputFormat;
use crate::model::{HandlerStatistics, Statistics, Status, Timestamp};

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl stats", "How much is waiting, running, done and dead, for each handler."),
        ("relayctl stats -o json | jq .dead", "One number, for a script."),
        ("relayctl stats -o csv", "A line for each handler, for a spreadsheet."),
    ],
    exits: STORE_EXITS,
};

/// Count deliveries by handler and status
///
/// PARKED are those of the pending that wait behind a long blocked key. OLDEST DUE is when the unfinished delivery that
/// is due first is due, or was. Formats: table; json and jsonl (one document with the totals and `handlers`); csv
/// (a line for each handler); ids (the names of the handlers).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to group by
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    by: GroupBy,
}

/// What statistics are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GroupBy {
    /// The handler.
    #[default]
    Handler,
}

/// Runs `stats`.
///
/// # Errors
/// Those of the store and of standard output.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let statistics = context.store().await?.statistics().await?;
    if statistics.total == 0 {
        context.require_schema().await?;
    }
    match args.by {
        GroupBy::Handler => print(context, &statistics)?,
    }
    Ok(Exit::Done)
}

fn print(context: &Context, statistics: &Statistics) -> CliResult {
    let ui = context.ui();
    match ui.format() {
        OutputFormat::Json | OutputFormat::Jsonl => print_document(ui, statistics),
        OutputFormat::Csv | OutputFormat::Ids => {
            let mut listing = Listing::new(ui, context.times());
            statistics.handlers.iter().try_for_each(|handler| listing.write(handler))?;
            listing.finish()
        }
        OutputFormat::Table if statistics.total == 0 => {
            ui.note("there are no deliveries");
            Ok(())
        }
        OutputFormat::Table => {
            let mut rows: Vec<Vec<Cell>> =
                statistics.handlers.iter().map(|handler| handler.cells(&context.times())).collect();
            rows.push(total(statistics).cells(&context.times()));
            let mut output = ui.output();
            write_table(&mut output, HandlerStatistics::COLUMNS, &rows, ui.canvas())
                .and_then(|()| output.flush())
                .map_err(CliError::output)
        }
    }
}

/// The totals in the shape of a row.
fn total(statistics: &Statistics) -> HandlerStatistics {
    HandlerStatistics {
        handler: "(all)".to_owned(),
        total: statistics.total,
        pending: statistics.pending,
        processing: statistics.processing,
        completed: statistics.completed,
        dead: statistics.dead,
        parked: statistics.parked,
        oldest_due_at: statistics.oldest_due_at,
    }
}

impl Record for HandlerStatistics {
    const COLUMNS: &'static [Column] = &[
        Column::words("HANDLER"),
        Column::number("PENDING").folds(5, "pending "),
        Column::number("PARKED").folds(1, "parked "),
        Column::number("PROCESSING").folds(4, "processing "),
        Column::number("COMPLETED").folds(2, "completed "),
        Column::number("DEAD").folds(6, "dead "),
        Column::number("TOTAL").folds(0, "total "),
        Column::words("OLDEST DUE").folds(3, "oldest due "),
    ];

    const FIELDS: &'static [&'static str] =
        &["handler", "total", "pending", "processing", "completed", "dead", "parked", "oldestDueAt"];

    fn id(&self) -> &str {
        &self.handler
    }

    fn values(&self) -> Vec<String> {
        let counts = [self.total, self.pending, self.processing, self.completed, self.dead, self.parked];
        let due = self.oldest_due_at.map(|due| due.to_string()).unwrap_or_default();
        let counts = counts.iter().map(u64::to_string);
        std::iter::once(self.handler.clone()).chain(counts).chain([due]).collect()
    }

    fn cells(&self, times: &Times) -> Vec<Cell> {
        let count = |number: u64| Cell::new(number.to_string());
        vec![
            Cell::new(&self.handler),
            count(self.pending),
            count(self.parked),
            count(self.processing),
            count(self.completed),
            alarming(self.dead),
            count(self.total),
            Cell::maybe(self.oldest_due_at.map(|due: Timestamp| times.show(due))),
        ]
    }
}

fn alarming(dead: u64) -> Cell {
    let meaning = if dead == 0 { Meaning::Plain } else { Meaning::Status(Status::Dead) };
    Cell::new(dead.to_string()).meaning(meaning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::table::Canvas;
    use crate::config::TimeStyle;

    fn drawn(width: usize) -> String {
        let now = Timestamp::from_millis(10_000_000);
        let projector = HandlerStatistics {
            handler: "projector".into(),
            total: 1_000_012,
            pending: 7,
            completed: 1_000_000,
            dead: 5,
            oldest_due_at: Some(Timestamp::from_millis(9_000_000)),
            ..HandlerStatistics::default()
        };
        let mailer = HandlerStatistics { handler: "確認メール".into(), ..HandlerStatistics::default() };
        let statistics = Statistics::from_handlers(vec![projector, mailer]);
        let times = Times { style: TimeStyle::Relative, now };
        let mut rows: Vec<Vec<Cell>> = statistics.handlers.iter().map(|h| h.cells(&times)).collect();
        rows.push(total(&statistics).cells(&times));
        let mut bytes = Vec::new();
        let canvas = Canvas { width: Some(width), has_color: false };
        write_table(&mut bytes, HandlerStatistics::COLUMNS, &rows, canvas).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn eighty_columns_hold_everything() {
        insta::assert_snapshot!(drawn(80), @r#"
        HANDLER     PENDING  PARKED  PROCESSING  COMPLETED  DEAD    TOTAL  OLDEST DUE
        projector         7       0           0    1000000     5  1000012  16m ago
        確認メール        0       0           0          0     0        0
        (all)             7       0           0    1000000     5  1000012  16m ago
        "#);
    }

    #[test]
    fn forty_columns_fold() {
        insta::assert_snapshot!(drawn(40), @r#"
        HANDLER     PENDING  PROCESSING  DEAD
        projector         7           0     5
            parked 0  completed 1000000
            total 1000012  oldest due 16m ago
        確認メール        0           0     0
            parked 0  completed 0  total 0
        (all)             7           0     5
            parked 0  completed 1000000
            total 1000012  oldest due 16m ago
        "#);
    }

    #[test]
    fn csv_fields_are_named_like_the_json() {
        let json = serde_json::to_value(HandlerStatistics::default()).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, HandlerStatistics::FIELDS);
        assert_eq!(HandlerStatistics::default().values().len(), names.len());
    }
}
