//! `import`: what an export wrote, into this store.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use super::bulk::{Told, before_any_change, count_of, deliveries, tell, with_progress};
use super::publish::input::Input;
use super::publish::stream::explain;
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::ops::{Control, HandlerChange, ImportPlan, ImportReport, Refusal, Stopped};

/// Lines that are refused and told one by one; the rest is counted.
const NAMED_REFUSALS: u64 = 20;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl import outbox.jsonl -n", "See what an import would do."),
        ("relayctl import outbox.jsonl", "Store it; what is there already stays as it is."),
        (
            "relayctl export --status dead --handler projector | relayctl --profile lab import - --reset",
            "Try dead deliveries again in another store.",
        ),
        (
            "relayctl import dead.jsonl --handler projector=projector-v2 --reset",
            "Give the deliveries of one handler to another.",
        ),
    ],
    exits: BULK_EXITS,
};

/// Store what an export wrote
///
/// Events and deliveries become what they were, to the last field: status, attempts, errors, times, and their place in their
/// key. Only a delivery that was processing becomes pending, as its lease was given by another store, and the attempt that
/// was under way is given back. Which collections it goes into is said by --database and --prefix.
///
/// Importing twice changes nothing: a delivery that is there already stays, wherever it is in its life by now, and there is
/// never a second one of an event for a handler. An id that stands for something else here is refused, and so is a place in a
/// key that another event has here: histories that grew apart have no order between them. A line that is refused leaves the
/// others alone. Counters of keys are raised to what was imported, so that new events come behind.
///
/// Lines are imported in transactions of --batch-size, in their order. What is imported can be claimed at once: earlier
/// deliveries of a key are in before later ones as an export writes them, and where several files or --reset are involved,
/// pausing the handlers meanwhile keeps their keys in order.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the lines; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Make them deliveries for this handler; OLD=NEW, which may be given more than once, only those for OLD
    ///
    /// Such a delivery gets another id, always the same one, so that importing twice changes nothing here either.
    #[arg(long = "handler", value_name = "[OLD=]NEW", value_parser = change)]
    handlers: Vec<Change>,

    /// Start each delivery from the beginning: pending, due now, without attempts; its errors are kept
    #[arg(long)]
    reset: bool,

    /// Keep status and attempts; this is the default
    #[arg(long, conflicts_with = "reset")]
    keep_attempts: bool,

    /// Import this many lines in one transaction
    #[arg(long, value_name = "N", default_value = "100")]
    batch_size: NonZeroU32,

    /// Only say what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// One `--handler`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    old: Option<String>,
    new: String,
}

fn change(text: &str) -> Result<Change, String> {
    let name = crate::cli::args::values::name;
    match text.split_once('=') {
        Some((old, new)) => Ok(Change { old: Some(name(old)?), new: name(new)? }),
        None => Ok(Change { old: None, new: name(text)? }),
    }
}

/// What all of them mean together.
fn changes(each: &[Change]) -> CliResult<HandlerChange> {
    if let [Change { old: None, new }] = each {
        return Ok(HandlerChange::All(new.clone()));
    }
    let mut changes = BTreeMap::new();
    for Change { old, new } in each {
        let Some(old) = old else {
            return Err(CliError::usage(format!(
                "--handler {new} is for all deliveries, and cannot stand beside another"
            ))
            .with_hint("write OLD=NEW for each handler that changes"));
        };
        if changes.insert(old.clone(), new.clone()).is_some() {
            return Err(CliError::usage(format!("--handler says twice what becomes of {old}")));
        }
    }
    Ok(if changes.is_empty() { HandlerChange::None } else { HandlerChange::Each(changes) })
}

/// Runs `import`.
///
/// # Errors
/// Those that come before anything was imported; later ones are part of the report.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    let plan = ImportPlan {
        batch_size: args.batch_size.get() as usize,
        handlers: changes(&args.handlers)?,
        reset: args.reset,
        dry_run: args.dry_run,
    };
    if !args.dry_run {
        context.require_writable("import")?;
    }
    let input = Input::of_path(&args.file);
    let prepare = async {
        let reader = input.open().await?;
        context.require_schema().await?;
        Ok((reader, &**context.store().await?))
    };
    let (reader, store) = before_any_change(stop, prepare).await?;
    let mut refusals = Refusals { context, refused: 0 };
    let mut refuse = |refusal: Refusal<'_>| refusals.tell(refusal);
    let work = async |control: Control<'_>| plan.import_lines(store, reader, &mut refuse, &control).await;
    let report = with_progress(context, stop, "imported", input.count_lines().await, work).await;
    refusals.end();
    finish(context, args, report, &input)
}

/// Lines that were refused, of which people are told the first.
struct Refusals<'a> {
    context: &'a Context,
    refused: u64,
}

impl Refusals<'_> {
    fn tell(&mut self, Refusal { line, reason }: Refusal<'_>) {
        self.refused += 1;
        if self.refused <= NAMED_REFUSALS {
            self.context.ui().warn(&format!("line {line}: {reason}"));
        }
    }

    fn end(self) {
        let more = self.refused.saturating_sub(NAMED_REFUSALS);
        if more > 0 {
            self.context.ui().warn(&format!("{more} more lines were refused"));
        }
    }
}

fn finish(context: &Context, args: &Args, report: ImportReport, input: &Input) -> CliResult<Exit> {
    let error = report.stopped.as_ref().and_then(|stopped| match stopped {
        Stopped::Interrupted => None,
        stopped => Some(stopped.to_string()),
    });
    let sentence = sentence(&report, args.dry_run);
    tell(
        context,
        &Told { command: "import", dry_run: args.dry_run, reason: None, sentence },
        &report,
        error,
    )?;
    Ok(conclude(context, report, input))
}

fn sentence(report: &ImportReport, dry_run: bool) -> String {
    let done = &report.deliveries;
    let verb = if dry_run { "Would import" } else { "Imported" };
    let mut sentence = format!("{verb} {}", deliveries(done.changed));
    if report.events > 0 {
        sentence += &format!(" with {}", count_of(report.events, "new event", "new events"));
    }
    if done.skipped > 0 {
        sentence += &format!("; {} there already", done.skipped);
    }
    if done.failed > 0 {
        sentence += &format!("; {} refused", done.failed);
    }
    sentence + "."
}

/// Says on standard error why it did not come to its end, and with which code it ends. What was there already counts as
/// done: to import again is how one goes on.
fn conclude(context: &Context, report: ImportReport, input: &Input) -> Exit {
    let done = &report.deliveries;
    let has_some = done.changed + done.skipped > 0;
    let Some(stopped) = report.stopped else {
        return match (done.failed, has_some) {
            (0, _) => Exit::Done,
            (_, true) => Exit::Partial,
            (_, false) => Exit::Failed,
        };
    };
    let error = explain(stopped, input).with_hint("what was imported stays; run it again to go on");
    let exit = match error.exit() {
        Exit::Interrupted => Exit::Interrupted,
        _ if has_some => Exit::Partial,
        exit => exit,
    };
    context.ui().report(&error);
    exit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::BulkReport;

    fn read(texts: &[&str]) -> Result<HandlerChange, Exit> {
        let each: Vec<Change> = texts.iter().map(|text| change(text).unwrap()).collect();
        changes(&each).map_err(|error| error.exit())
    }

    #[test]
    fn a_handler_is_for_all_or_for_those_of_another() {
        let pair = |old: &str, new: &str| (old.to_owned(), new.to_owned());
        assert_eq!(read(&[]), Ok(HandlerChange::None));
        assert_eq!(read(&["new"]), Ok(HandlerChange::All("new".into())));
        let each = HandlerChange::Each(BTreeMap::from([pair("a", "b"), pair("c", "d=e")]));
        assert_eq!(read(&["a=b", "c=d=e"]), Ok(each));
        assert_eq!(read(&["a", "b=c"]), Err(Exit::Usage));
        assert_eq!(read(&["a", "b"]), Err(Exit::Usage));
        assert_eq!(read(&["a=b", "a=c"]), Err(Exit::Usage));
        assert!(change("=a").is_err() && change("a=").is_err() && change("").is_err());
    }

    #[test]
    fn an_import_in_a_sentence() {
        let told = |changed, skipped, failed, events, dry_run| {
            let deliveries =
                BulkReport { changed, skipped, failed, ..BulkReport::about(changed + skipped + failed) };
            sentence(&ImportReport { deliveries, events, stopped: None }, dry_run)
        };
        assert_eq!(told(3, 0, 0, 2, false), "Imported 3 deliveries with 2 new events.");
        assert_eq!(told(1, 2, 0, 0, false), "Imported 1 delivery; 2 there already.");
        assert_eq!(told(0, 2, 1, 0, false), "Imported 0 deliveries; 2 there already; 1 refused.");
        assert_eq!(told(3, 0, 0, 1, true), "Would import 3 deliveries with 1 new event.");
    }
}
