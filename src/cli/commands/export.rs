//! `export`: deliveries with their events, to be imported again.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::bulk::{Told, deliveries, tell};
use crate::cli::args::filter::FilterArgs;
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::interrupt::Interrupts;
use crate::cli::render::json;
use crate::cli::render::text::visible;
use crate::cli::ui::{Output, Progress};
use crate::model::ExportLine;
use crate::store::{ErrorKind, StoreError};

/// Deliveries that cannot be exported and are named one by one; the rest is counted.
const NAMED_FAILURES: u64 = 10;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl export --file outbox.jsonl", "Everything, into a file that is complete or not there."),
        (
            "relayctl export --status dead --handler projector > dead.jsonl",
            "What died, to look into elsewhere.",
        ),
        (
            "relayctl export --key order-17 | relayctl --prefix lab_ import -",
            "The history of one key, for another set of collections.",
        ),
        ("relayctl export --since 1d | gzip > today.jsonl.gz", "In constant memory, whatever the size."),
    ],
    exits: BULK_EXITS,
};

/// Write deliveries with their events as JSON lines
///
/// Each line is one delivery: {version, event: {...}, delivery: {...}, types?: {...}}. All fields that are stored are there,
/// exact to the last digit and in their order, under the names that list and show use. A value of a type that JSON lacks
/// (an object id, a date, a decimal) stands as relaxed extended JSON, and `types` says that it is one, by JSON pointer:
/// without an entry there, {"$oid": "..."} is an object with a member $oid. `types` also has numbers that are stored in
/// another width than usual. `relayctl import` makes the same documents of it.
///
/// All conditions that are given have to hold. Lines come by key, in the order of their sequence; those without a key come
/// first. What is created after the command began stays out. While workers are busy an export is no picture of one
/// moment: each line is true when it is written, and no delivery comes twice.
///
/// The output is always JSON lines, whatever --output says. Handle it with care: payloads and errors are in it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write to this file, which gets its name once it is complete; by default to standard output
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Replace the file if it is there
    #[arg(long, requires = "file")]
    force: bool,

    // Last, as what follows would stand under its heading in the help.
    #[command(flatten)]
    filter: FilterArgs,
}

/// Runs `export`.
///
/// # Errors
/// Those of the store and of the output. What was written before one are whole lines; a file is not left behind.
pub async fn run(context: &Context, args: &Args, interrupts: &Interrupts) -> CliResult<Exit> {
    let sink = Sink::open(context, args)?;
    let open = async {
        context.require_schema().await?;
        context.store().await
    };
    let store = interrupts.stops(open).await?;
    let now = context.now();
    let mut lines = store.export(&args.filter.resolve(now), now);
    let progress = args.file.is_some().then(|| context.ui().progress("exported", None));
    let mut pour = Pour { context, sink, progress, report: Report::default() };
    let result = pour_all(&mut lines, &mut pour, interrupts).await;
    drop(lines);
    pour.end(result)
}

async fn pour_all(
    lines: &mut BoxStream<'_, Result<ExportLine, StoreError>>,
    pour: &mut Pour<'_>,
    interrupts: &Interrupts,
) -> CliResult {
    loop {
        // Whoever reads along sees each line as soon as the store has no further one at hand.
        let line = match lines.next().now_or_never() {
            Some(line) => line,
            None => {
                pour.sink.flush()?;
                interrupts.stops(async { Ok(lines.next().await) }).await?
            }
        };
        if !pour.take(line)? {
            return Ok(());
        }
    }
}

/// What an export did.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Lines that were written.
    exported: u64,
    /// Deliveries that could not be written as a line.
    failed: u64,
}

/// Lines on their way from the store to the output.
struct Pour<'a> {
    context: &'a Context,
    sink: Sink,
    progress: Option<Progress<'a>>,
    report: Report,
}

impl Pour<'_> {
    /// Takes what the store yielded next; says whether to go on.
    fn take(&mut self, line: Option<Result<ExportLine, StoreError>>) -> CliResult<bool> {
        match line {
            None => return Ok(false),
            Some(Ok(line)) => {
                self.sink.write(&line)?;
                self.report.exported += 1;
                self.progress.iter_mut().for_each(|progress| progress.add(1));
            }
            Some(Err(error)) if error.kind() == ErrorKind::Corrupt => {
                self.report.failed += 1;
                if self.report.failed <= NAMED_FAILURES {
                    self.context.ui().warn(&error.to_string());
                }
            }
            Some(Err(error)) => return Err(error.into()),
        }
        Ok(true)
    }

    fn end(self, result: CliResult) -> CliResult<Exit> {
        let Pour { context, mut sink, progress, report } = self;
        drop(progress);
        if let Err(error) = result {
            // The error that ended it matters more than one of the lines that are still on their way.
            let _ = sink.flush();
            return Err(error);
        }
        match sink.keep()? {
            Some(path) => tell_file(context, &path, &report)?,
            None if report.exported + report.failed == 0 => context.ui().note("no delivery matches"),
            None => {}
        }
        match report.failed {
            0 => return Ok(Exit::Done),
            1 => context.ui().report(&CliError::failed("a delivery could not be exported, and is left out")),
            failed => context.ui().report(&CliError::failed(format!(
                "{failed} deliveries could not be exported, and are left out"
            ))),
        }
        Ok(if report.exported > 0 { Exit::Partial } else { Exit::Failed })
    }
}

fn tell_file(context: &Context, path: &Path, report: &Report) -> CliResult {
    let file = visible(&path.to_string_lossy());
    let sentence = format!("Exported {} to {file}.", deliveries(report.exported));
    tell(context, &Told { command: "export", dry_run: false, reason: None, sentence }, report, None)
}

/// Where lines are written to.
enum Sink {
    Standard(Output),
    /// A file beside the one that it becomes.
    File {
        beside: BufWriter<NamedTempFile>,
        path: PathBuf,
        replaces: bool,
    },
}

impl Sink {
    fn open(context: &Context, args: &Args) -> CliResult<Sink> {
        let Some(path) = &args.file else { return Ok(Sink::Standard(context.ui().output())) };
        if !args.force && path.symlink_metadata().is_ok() {
            return Err(in_the_way(path));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let beside = tempfile::Builder::new().prefix(".relayctl-export-").tempfile_in(folder);
        let beside = beside.with_context(|| format!("cannot create a file in {}", folder.display()))?;
        Ok(Sink::File { beside: BufWriter::new(beside), path: path.clone(), replaces: args.force })
    }

    fn write(&mut self, line: &ExportLine) -> CliResult {
        match self {
            Sink::Standard(output) => json::write_line(output, line).map_err(CliError::output),
            Sink::File { beside, path, .. } => {
                Ok(json::write_line(beside, line).with_context(|| unwritable(path))?)
            }
        }
    }

    fn flush(&mut self) -> CliResult {
        match self {
            Sink::Standard(output) => output.flush().map_err(CliError::output),
            Sink::File { .. } => Ok(()),
        }
    }

    /// Ends it; the file gets its name. It is on the disk by then, so that a crash leaves it whole or leaves none.
    fn keep(self) -> CliResult<Option<PathBuf>> {
        let (beside, path, replaces) = match self {
            Sink::Standard(mut output) => return output.flush().map(|()| None).map_err(CliError::output),
            Sink::File { beside, path, replaces } => (beside, path, replaces),
        };
        let beside = beside.into_inner().map_err(|error| error.into_error());
        let beside = beside.and_then(|beside| beside.as_file().sync_all().map(|()| beside));
        let beside = beside.with_context(|| unwritable(&path))?;
        let kept = if replaces { beside.persist(&path) } else { beside.persist_noclobber(&path) };
        match kept {
            Ok(_) => Ok(Some(path)),
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Err(in_the_way(&path)),
            Err(error) => Err(anyhow::Error::new(error.error).context(unwritable(&path)).into()),
        }
    }
}

fn unwritable(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn in_the_way(path: &Path) -> CliError {
    CliError::failed(format!("{} is there already, and nothing was written", path.display()))
        .with_hint("name another file, or add --force to replace it")
}
