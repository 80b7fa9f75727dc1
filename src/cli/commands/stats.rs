//! `stats`: how much of everything there is.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::print_document;
use crate::cli::render::table::{Canvas, Cell, Column, write_table};
use crate::cli::render::time::Times;
use crate::cli::ui::Meaning;
use crate::config::OutputFormat;
use crate::model::{Controls, HandlerStatistics, Pause, Statistics, Status, Timestamp, TrippedBreaker};
use crate::ops;

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
/// is due first is due, or was. Handlers that are held up are listed below: paused ones, and those that a worker leaves
/// alone for a while because they kept failing.
///
/// Formats: table; json and jsonl (one document with the totals and `handlers`, each with `paused` and `breakers`); csv (a
/// line for each handler); ids (the names of the handlers).
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
    let store = context.store().await?;
    let statistics = store.statistics().await?;
    if statistics.total == 0 {
        context.require_schema().await?;
    }
    let report = Report::of(statistics, ops::controls(store.as_ref(), context.now()).await?);
    match args.by {
        GroupBy::Handler => print(context, &report)?,
    }
    Ok(Exit::Done)
}

/// The statistics, with what holds handlers up.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    total: u64,
    pending: u64,
    processing: u64,
    completed: u64,
    dead: u64,
    parked: u64,
    oldest_due_at: Option<Timestamp>,
    handlers: Vec<HandlerReport>,
}

/// The statistics of one handler, with what holds it up.
#[derive(Debug, Default, Serialize)]
struct HandlerReport {
    #[serde(flatten)]
    counts: HandlerStatistics,
    paused: Option<Pause>,
    breakers: Vec<TrippedBreaker>,
}

impl Report {
    /// Handlers that are held up have an entry also when they have no delivery.
    fn of(statistics: Statistics, controls: Controls) -> Report {
        let Statistics { total, pending, processing, completed, dead, parked, oldest_due_at, handlers } =
            statistics;
        let counted = handlers.into_iter().map(|counts| (counts.handler.clone(), counts));
        let mut counted: BTreeMap<String, HandlerStatistics> = counted.collect();
        let pauses = controls.pauses.iter().map(|pause| &pause.handler);
        for handler in pauses.chain(controls.breakers.iter().map(|breaker| &breaker.handler)) {
            let nothing = || HandlerStatistics { handler: handler.clone(), ..HandlerStatistics::default() };
            counted.entry(handler.clone()).or_insert_with(nothing);
        }
        let report = |counts: HandlerStatistics| HandlerReport {
            paused: controls.pause_of(&counts.handler).cloned(),
            breakers: controls.breakers_of(&counts.handler).into_iter().cloned().collect(),
            counts,
        };
        let handlers = counted.into_values().map(report).collect();
        Report { total, pending, processing, completed, dead, parked, oldest_due_at, handlers }
    }
}

fn print(context: &Context, report: &Report) -> CliResult {
    let ui = context.ui();
    match ui.format() {
        OutputFormat::Json | OutputFormat::Jsonl => print_document(ui, report),
        OutputFormat::Csv | OutputFormat::Ids => {
            let mut listing = Listing::new(ui, context.times());
            report.handlers.iter().try_for_each(|handler| listing.write(handler))?;
            listing.finish()
        }
        OutputFormat::Table if report.handlers.is_empty() => {
            ui.note("there are no deliveries");
            Ok(())
        }
        OutputFormat::Table => {
            let mut output = ui.output();
            draw(&mut output, report, &context.times(), ui.canvas())
                .and_then(|()| output.flush())
                .map_err(CliError::output)
        }
    }
}

/// The counts, and below them what holds handlers up, if anything does.
fn draw(output: &mut impl Write, report: &Report, times: &Times, canvas: Canvas) -> io::Result<()> {
    let mut rows: Vec<Vec<Cell>> = report.handlers.iter().map(|handler| handler.cells(times)).collect();
    rows.push(total(report).cells(times));
    write_table(output, HandlerReport::COLUMNS, &rows, canvas)?;
    let holds: Vec<Vec<Cell>> = report.handlers.iter().flat_map(|handler| holds(handler, times)).collect();
    if holds.is_empty() {
        return Ok(());
    }
    output.write_all(b"\n")?;
    write_table(output, HOLD_COLUMNS, &holds, canvas)
}

const HOLD_COLUMNS: &[Column] = &[
    Column::words("HELD UP"),
    Column::words("HOW"),
    Column::words("SINCE").folds(1, "since "),
    Column::words("UNTIL").folds(3, "until "),
    Column::words("BY").folds(2, "by "),
    Column::free_text("WHY").folds(0, ""),
];

fn holds(handler: &HandlerReport, times: &Times) -> Vec<Vec<Cell>> {
    let name = || Cell::new(&handler.counts.handler);
    let pause = handler.paused.iter().map(|pause| {
        let until = pause.paused_until.map(|until| times.show(until));
        vec![
            name(),
            Cell::new("paused").meaning(Meaning::Warning),
            Cell::new(times.show(pause.paused_at)),
            Cell::new(until.unwrap_or_else(|| "resumed".to_owned())),
            Cell::new(&pause.by),
            Cell::maybe(pause.reason.as_deref()),
        ]
    });
    let breakers = handler.breakers.iter().map(|breaker| {
        let is_probing = breaker.probe_at <= times.now;
        let error = breaker.last_error.lines().next().unwrap_or_default();
        vec![
            name(),
            Cell::new(if is_probing { "breaker half-open" } else { "breaker open" })
                .meaning(Meaning::Warning),
            Cell::new(times.show(breaker.opened_at)),
            Cell::new(times.show(breaker.probe_at.max(times.now))),
            Cell::new(&breaker.worker),
            Cell::new(format!("{} failures in a row: {error}", breaker.failures)),
        ]
    });
    pause.chain(breakers).collect()
}

/// The totals in the shape of a row.
fn total(statistics: &Report) -> HandlerReport {
    let counts = HandlerStatistics {
        handler: "(all)".to_owned(),
        total: statistics.total,
        pending: statistics.pending,
        processing: statistics.processing,
        completed: statistics.completed,
        dead: statistics.dead,
        parked: statistics.parked,
        oldest_due_at: statistics.oldest_due_at,
    };
    HandlerReport { counts, ..HandlerReport::default() }
}

impl Record for HandlerReport {
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

    const FIELDS: &'static [&'static str] = &[
        "handler",
        "total",
        "pending",
        "processing",
        "completed",
        "dead",
        "parked",
        "oldestDueAt",
        "paused",
        "breakers",
    ];

    fn id(&self) -> &str {
        &self.counts.handler
    }

    /// A pause is shown by its beginning, and breakers by their number.
    fn values(&self) -> Vec<String> {
        let HandlerStatistics { total, pending, processing, completed, dead, parked, .. } = self.counts;
        let counts = [total, pending, processing, completed, dead, parked].map(|count| count.to_string());
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
        let due = time(self.counts.oldest_due_at);
        let paused = time(self.paused.as_ref().map(|pause| pause.paused_at));
        let rest = [due, paused, self.breakers.len().to_string()];
        std::iter::once(self.counts.handler.clone()).chain(counts).chain(rest).collect()
    }

    fn cells(&self, times: &Times) -> Vec<Cell> {
        let count = |number: u64| Cell::new(number.to_string());
        let counts = &self.counts;
        vec![
            Cell::new(&counts.handler),
            count(counts.pending),
            count(counts.parked),
            count(counts.processing),
            count(counts.completed),
            alarming(counts.dead),
            count(counts.total),
            Cell::maybe(counts.oldest_due_at.map(|due: Timestamp| times.show(due))),
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
    use crate::config::TimeStyle;

    fn drawn(width: usize) -> String {
        drawn_with(width, Controls::default())
    }

    fn drawn_with(width: usize, controls: Controls) -> String {
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
        let mut bytes = Vec::new();
        let canvas = Canvas { width: Some(width), has_color: false };
        draw(&mut bytes, &Report::of(statistics, controls), &times, canvas).unwrap();
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

    /// A handler that is paused, and one without deliveries that two workers leave alone.
    fn controls() -> Controls {
        let at = |seconds: i64| Timestamp::from_millis(10_000_000 + seconds * 1_000);
        let pause = Pause {
            handler: "projector".into(),
            paused_at: at(-180),
            paused_until: Some(at(1_620)),
            reason: Some("the shop is closed".into()),
            by: "ana@desk".into(),
        };
        let breaker = |worker: &str, probe_at| TrippedBreaker {
            handler: "billing".into(),
            worker: worker.into(),
            opened_at: at(-70),
            probe_at,
            failures: 12,
            last_error: "exit status 1: no route to host\nand more".into(),
            expires_at: at(60),
        };
        Controls { pauses: vec![pause], breakers: vec![breaker("a:1", at(20)), breaker("b:2", at(-5))] }
    }

    #[test]
    fn what_is_held_up_stands_below() {
        insta::assert_snapshot!(drawn_with(120, controls()), @r#"
        HANDLER     PENDING  PARKED  PROCESSING  COMPLETED  DEAD    TOTAL  OLDEST DUE
        billing           0       0           0          0     0        0
        projector         7       0           0    1000000     5  1000012  16m ago
        確認メール        0       0           0          0     0        0
        (all)             7       0           0    1000000     5  1000012  16m ago

        HELD UP    HOW                SINCE   UNTIL   BY        WHY
        billing    breaker open       1m ago  in 20s  a:1       12 failures in a row: exit status 1: no route to host
        billing    breaker half-open  1m ago  now     b:2       12 failures in a row: exit status 1: no route to host
        projector  paused             3m ago  in 27m  ana@desk  the shop is closed
        "#);
        insta::assert_snapshot!(drawn_with(60, controls()), @r#"
        HANDLER     PENDING  PROCESSING  COMPLETED  DEAD  OLDEST DUE
        billing           0           0          0     0
            parked 0  total 0
        projector         7           0    1000000     5  16m ago
            parked 0  total 1000012
        確認メール        0           0          0     0
            parked 0  total 0
        (all)             7           0    1000000     5  16m ago
            parked 0  total 1000012

        HELD UP    HOW                SINCE   UNTIL   BY
        billing    breaker open       1m ago  in 20s  a:1
            12 failures in a row: exit status 1: no route to host
        billing    breaker half-open  1m ago  now     b:2
            12 failures in a row: exit status 1: no route to host
        projector  paused             3m ago  in 27m  ana@desk
            the shop is closed
        "#);
    }

    #[test]
    fn csv_fields_are_named_like_the_json() {
        let json = serde_json::to_value(HandlerReport::default()).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, HandlerReport::FIELDS);
        assert_eq!(HandlerReport::default().values().len(), names.len());
    }
}
