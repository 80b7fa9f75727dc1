//! `check`: thresholds for monitoring, which has exit codes of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use super::check_report::{Finding, Report};
use crate::cli::args::values::{duration, name};
use crate::cli::context::Context;
use crate::cli::docs::Docs;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::config::OutputFormat;
use crate::ops::{self, Reading, Scope, Severity, Threshold, Thresholds};

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl check --dead-warn 1 --dead-crit 100 --oldest-warn 5m --oldest-crit 1h",
            "A line for Nagios, Icinga and their kind.",
        ),
        ("relayctl check --handler mailer --pending-crit 10000", "One handler, with a threshold of its own."),
        (
            "relayctl check --per-handler --format prometheus --outfile /var/lib/node_exporter/relayctl.prom",
            "Numbers of each handler for the textfile collector, from cron.",
        ),
    ],
    exits: &[Exit::Warning, Exit::Critical, Exit::Unknown],
};

/// The mode of an --outfile: whoever runs the exporter can read it.
#[cfg(unix)]
const READABLE: u32 = 0o644;

/// Compare the state with thresholds, for monitoring
///
/// A threshold is reached by its own value: --dead-warn 1 warns of the first dead delivery. Thresholds hold for all deliveries
/// together, for those of each --handler, or, with --per-handler, for each handler that there is.
///
/// This command alone has the exit codes of monitoring: 0 ok, 1 warning, 2 critical, 3 unknown, which is whatever kept it
/// from finding out, a slip on the command line included. With --outfile the report goes into a file, which is replaced as a
/// whole; when the store could not be asked, the file says that. A command line or configuration that is not understood
/// leaves it as it is: look at its time, too.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only deliveries of this handler; may be given more than once
    #[arg(long = "handler", value_name = "HANDLER", value_parser = name, conflicts_with = "per_handler")]
    handlers: Vec<String>,

    /// Look at each handler by itself
    #[arg(long)]
    per_handler: bool,

    /// How the report is written; by default nagios, and json with -o json
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,

    /// Write the report to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    outfile: Option<PathBuf>,

    /// Warn from this many dead deliveries on
    #[arg(long, value_name = "N", help_heading = "Thresholds")]
    dead_warn: Option<u64>,

    /// Critical from this many dead deliveries on
    #[arg(long, value_name = "N", help_heading = "Thresholds")]
    dead_crit: Option<u64>,

    /// Warn from this many waiting deliveries on
    #[arg(long, value_name = "N", help_heading = "Thresholds")]
    pending_warn: Option<u64>,

    /// Critical from this many waiting deliveries on
    #[arg(long, value_name = "N", help_heading = "Thresholds")]
    pending_crit: Option<u64>,

    /// Warn when the oldest unfinished delivery has been due for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Thresholds")]
    oldest_warn: Option<Duration>,

    /// Critical when the oldest unfinished delivery has been due for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Thresholds")]
    oldest_crit: Option<Duration>,

    /// Warn from this many leases on that ran out and that nobody took over
    #[arg(long, value_name = "N", help_heading = "Thresholds")]
    expired_warn: Option<u64>,

    /// Critical from this many leases on that ran out and that nobody took over
    #[arg(long, value_name = "N", help_heading = "Thresholds")]
    expired_crit: Option<u64>,
}

/// How the report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line with performance data, as plugins of Nagios write it
    Nagios,
    /// Metrics in the text format of Prometheus
    Prometheus,
    /// One JSON document; durations are in milliseconds
    Json,
}

impl Args {
    fn scope(&self) -> Scope {
        match (self.per_handler, self.handlers.is_empty()) {
            (true, _) => Scope::EachHandler,
            (false, true) => Scope::All,
            (false, false) => Scope::Handlers(self.handlers.clone()),
        }
    }

    fn thresholds(&self) -> Thresholds {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Thresholds {
            dead: Threshold { warn: self.dead_warn, crit: self.dead_crit },
            pending: Threshold { warn: self.pending_warn, crit: self.pending_crit },
            expired: Threshold { warn: self.expired_warn, crit: self.expired_crit },
            oldest: Threshold { warn: self.oldest_warn.map(millis), crit: self.oldest_crit.map(millis) },
        }
    }

    fn format(&self, output: OutputFormat) -> Format {
        self.format.unwrap_or(if output.is_machine() { Format::Json } else { Format::Nagios })
    }
}

/// Runs `check`.
///
/// # Errors
/// When the report cannot be written. Whatever else goes wrong is told in the report, and as an error.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let found = find_out(context, args).await;
    let finding = match &found {
        Ok(readings) => Finding::Readings(readings),
        Err(error) => Finding::Unknown(error.message().unwrap_or_default()),
    };
    let report = Report { finding, location: location(context).await, at: context.now() };
    let text = match args.format(context.ui().format()) {
        Format::Nagios => report.nagios(),
        Format::Prometheus => report.prometheus(),
        Format::Json => report.json(),
    };
    let written = match &args.outfile {
        Some(file) => replace(file, &text),
        None => context.ui().print(&text),
    };
    match written {
        Err(error) if error.is_broken_pipe() => {}
        written => written?,
    }
    Ok(match found?.iter().map(|reading| reading.status).max().unwrap_or_default() {
        Severity::Ok => Exit::Done,
        Severity::Warning => Exit::Warning,
        Severity::Critical => Exit::Critical,
    })
}

async fn find_out(context: &Context, args: &Args) -> CliResult<Vec<Reading>> {
    let thresholds = args.thresholds();
    if thresholds.is_empty() && args.format(context.ui().format()) == Format::Nagios {
        return Err(CliError::usage("`check` has no threshold, and would always be ok")
            .with_hint("add one, such as --dead-crit 1 or --oldest-warn 5m"));
    }
    // An outbox that is not there has no dead deliveries either.
    context.require_schema().await?;
    let store = context.store().await?;
    Ok(ops::check(store.as_ref(), &args.scope(), &thresholds, context.now()).await?)
}

async fn location(context: &Context) -> Option<String> {
    context.store_if_open().map(|store| store.location())
}

/// Gives `file` this content, at once and as a whole: nobody reads half of it, and it is there whatever happens.
fn replace(file: &Path, text: &str) -> CliResult {
    let unwritable = || format!("cannot write {}", file.display());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".relayctl-check-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(READABLE));
    let mut beside = builder.tempfile_in(folder).with_context(unwritable)?;
    beside.write_all(text.as_bytes()).and_then(|()| beside.as_file().sync_all()).with_context(unwritable)?;
    beside.persist(file).map_err(|error| error.error).with_context(unwritable)?;
    Ok(())
}
