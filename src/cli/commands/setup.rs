//! `setup`: the collections and indexes.

use serde::Serialize;

use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::print_document;
use crate::cli::render::table::{Cell, Column};
use crate::cli::render::time::Times;
use crate::config::OutputFormat;
use crate::store::{SetupFinding, SetupProblem, SetupReport};

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl setup", "Create what is missing. Safe to run at every deployment."),
        ("relayctl setup --check", "Change nothing; exit 5 unless all is as it has to be."),
        ("relayctl setup --print > outbox.js", "Write a script that mongosh runs, for a migration."),
    ],
    exits: STORE_EXITS,
};

/// Create or check collections and indexes
///
/// What is there already stays as it is. Nothing is ever dropped.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compare only: report what is missing, in the way or not as it has to be, and change nothing
    #[arg(long, conflicts_with = "print")]
    check: bool,

    /// Print a mongosh script that does the same, without connecting to anything
    #[arg(long)]
    print: bool,
}

/// Runs `setup`.
///
/// # Errors
/// Those of the store and of standard output.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    if args.print {
        return print_script(context);
    }
    if args.check {
        return check(context).await;
    }
    context.require_writable("setup")?;
    let store = context.store().await?;
    let report = store.setup().await?;
    print_report(context, &report)?;
    context.ui().note(&format!("{} in {}", summary(&report), store.location()));
    Ok(Exit::Done)
}

fn summary(report: &SetupReport) -> String {
    match (report.created.len(), report.existing.len()) {
        (0, existing) => format!("nothing to do: all {existing} collections and indexes are there"),
        (created, 0) => format!("created {created} collections and indexes"),
        (created, existing) => {
            format!("created {created} collections and indexes, and {existing} were there already,")
        }
    }
}

fn print_report(context: &Context, report: &SetupReport) -> CliResult {
    let ui = context.ui();
    match ui.format() {
        OutputFormat::Json | OutputFormat::Jsonl => print_document(ui, report),
        OutputFormat::Table | OutputFormat::Csv | OutputFormat::Ids => {
            let created = report.created.iter().map(|object| SetupObject { object, state: "created" });
            let existing = report.existing.iter().map(|object| SetupObject { object, state: "existing" });
            let mut listing = Listing::new(ui, context.times());
            created.chain(existing).try_for_each(|object| listing.write(&object))?;
            listing.finish()
        }
    }
}

async fn check(context: &Context) -> CliResult<Exit> {
    let store = context.store().await?;
    let findings = store.check_setup().await?;
    let mut listing = Listing::new(context.ui(), context.times());
    findings.iter().try_for_each(|finding| listing.write(finding))?;
    listing.finish()?;
    match findings.len() {
        0 => {
            context
                .ui()
                .note(&format!("all collections and indexes are as they have to be in {}", store.location()));
            Ok(Exit::Done)
        }
        count => {
            let findings = if count == 1 { "finding" } else { "findings" };
            context.ui().note(&format!(
                "{count} {findings} in {}; `relayctl setup` creates what is missing",
                store.location()
            ));
            Ok(Exit::Misconfigured)
        }
    }
}

fn print_script(context: &Context) -> CliResult<Exit> {
    let settings = context.settings();
    // The database's name is letters, digits, _ and -: it cannot end the string.
    let switch = settings
        .database
        .as_ref()
        .map(|database| format!("db = db.getSiblingDB(\"{}\");\n", database.value))
        .unwrap_or_default();
    let script = crate::store::mongo::setup_script(&settings.prefix.value);
    context.ui().print(&format!("{switch}{script}"))?;
    Ok(Exit::Done)
}

/// One line of the report.
#[derive(Serialize)]
struct SetupObject<'a> {
    object: &'a str,
    state: &'static str,
}

impl Record for SetupObject<'_> {
    const COLUMNS: &'static [Column] = &[Column::words("OBJECT"), Column::words("STATE").folds(0, "")];
    const FIELDS: &'static [&'static str] = &["object", "state"];

    fn id(&self) -> &str {
        self.object
    }

    fn values(&self) -> Vec<String> {
        vec![self.object.to_owned(), self.state.to_owned()]
    }

    fn cells(&self, _times: &Times) -> Vec<Cell> {
        vec![Cell::new(self.object), Cell::new(self.state)]
    }
}

impl Record for SetupFinding {
    const COLUMNS: &'static [Column] = &[
        Column::words("OBJECT"),
        Column::words("PROBLEM").folds(1, ""),
        Column::free_text("DETAIL").folds(0, "").wraps(),
    ];
    const FIELDS: &'static [&'static str] = &["object", "problem", "detail"];

    fn id(&self) -> &str {
        &self.object
    }

    fn values(&self) -> Vec<String> {
        vec![self.object.clone(), word(self.problem), self.detail.clone()]
    }

    fn cells(&self, _times: &Times) -> Vec<Cell> {
        vec![Cell::new(&self.object), Cell::new(word(self.problem)), Cell::new(&self.detail)]
    }
}

/// The word that JSON shows.
fn word(problem: SetupProblem) -> String {
    let word = serde_json::to_value(problem).unwrap_or_default();
    word.as_str().unwrap_or_default().to_owned()
}
