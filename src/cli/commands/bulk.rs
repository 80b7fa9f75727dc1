//! What the commands that change many things have in common: asking, progress, the report, and the exit code.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::print_document;
use crate::cli::ui::Verbosity;
use crate::ops::{BulkReport, Control, Verdict, classify};

/// A number of things: `1 delivery`, `12 deliveries`.
pub fn count_of(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A number of deliveries.
pub fn deliveries(count: u64) -> String {
    count_of(count, "delivery", "deliveries")
}

/// Runs `work`, which changes nothing yet, until it ends or a signal asks to stop.
///
/// # Errors
/// Those of `work`, and the interruption.
pub async fn before_any_change<T>(
    stop: &CancellationToken,
    work: impl Future<Output = CliResult<T>>,
) -> CliResult<T> {
    stop.run_until_cancelled(work).await.unwrap_or_else(|| Err(CliError::interrupted()))
}

/// Makes sure that the change is wanted. `question` is asked only where there is something to change; whether somebody
/// can be asked at all is looked at in any case, so that a script without `--yes` fails the first time it is tried.
///
/// # Errors
/// When the answer is no, or nobody can be asked and there was no `--yes`.
pub fn ask(context: &Context, question: &str, matched: u64) -> CliResult {
    if matched == 0 && context.ui().can_ask() {
        return Ok(());
    }
    context.confirm(question)
}

/// Runs `work` while its progress is shown; `done` says what happens to things, such as `requeued`.
pub async fn with_progress<T>(
    context: &Context,
    stop: &CancellationToken,
    done: &str,
    total: Option<u64>,
    work: impl AsyncFnOnce(Control<'_>) -> T,
) -> T {
    let progress = Mutex::new(context.ui().progress(done, total));
    let show = |count: u64| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        let more = count.saturating_sub(progress.done());
        progress.add(more);
    };
    work(Control { clock: context.clock(), cancel: stop, progress: &show }).await
}

/// A report as a program reads it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, R: Serialize> {
    command: &'a str,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(flatten)]
    report: &'a R,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What is told about a change.
#[derive(Debug)]
pub struct Told<'a> {
    /// The command, as in `requeue`.
    pub command: &'a str,
    /// Whether nothing was to be changed.
    pub dry_run: bool,
    /// Why it was made, if the user said so.
    pub reason: Option<&'a str>,
    /// What happened, in a sentence for people.
    pub sentence: String,
}

/// Tells what happened: `report` to a program, the sentence to people.
///
/// # Errors
/// When standard output cannot be written. That its reader went away changes nothing about what was done, and so
/// nothing about the exit code.
pub fn tell(context: &Context, told: &Told<'_>, report: &impl Serialize, error: Option<String>) -> CliResult {
    let ui = context.ui();
    let Told { command, dry_run, reason, ref sentence } = *told;
    let printed = if ui.format().is_machine() {
        print_document(ui, &Document { command, dry_run, reason, report, error })
    } else {
        match ui.verbosity() {
            Verbosity::Quiet => Ok(()),
            _ => ui.print(&format!("{sentence}\n")),
        }
    };
    match printed {
        Err(error) if error.is_broken_pipe() => Ok(()),
        printed => printed,
    }
}

/// Reports the error that a change met, if any, and says with which code the command ends.
pub fn conclude(context: &Context, report: BulkReport) -> Exit {
    let verdict = classify(&report);
    let error = report.error.map(CliError::from);
    if let Some(error) = &error {
        context.ui().report(error);
    }
    match verdict {
        _ if report.interrupted => {
            context.ui().warn("interrupted; what was done before stays done");
            Exit::Interrupted
        }
        Verdict::Done => Exit::Done,
        Verdict::Partly => Exit::Partial,
        Verdict::Failed => error.map_or(Exit::Failed, |error| error.exit()),
    }
}

/// The text of the error that a change met.
pub fn error_text(report: &BulkReport) -> Option<String> {
    report.error.as_ref().map(ToString::to_string)
}

/// How a change is spoken of.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// As in "Would requeue".
    pub infinitive: &'static str,
    /// As in "Requeued".
    pub past: &'static str,
}

impl Verb {
    /// What a change did to deliveries, or would do to at most `limit` of them.
    pub fn sentence(self, report: &BulkReport, dry_run: bool, limit: Option<u64>) -> String {
        if report.matched == 0 && report.failed == 0 {
            return format!("Nothing to {}.", self.infinitive);
        }
        let applicable = report.matched.saturating_sub(report.skipped);
        let (start, affected) = if dry_run {
            let would = limit.map_or(applicable, |limit| limit.min(applicable));
            (format!("Would {}", self.infinitive), would)
        } else {
            (capitalised(self.past), report.changed)
        };
        let amount = if affected == report.matched {
            deliveries(affected)
        } else {
            format!("{affected} of {}", deliveries(report.matched))
        };
        let remarks: String = remarks(report, dry_run).iter().map(|remark| format!("; {remark}")).collect();
        format!("{start} {amount}{remarks}.")
    }

    /// As in "Requeue 12 deliveries?".
    pub fn request(self) -> String {
        capitalised(self.infinitive)
    }
}

fn remarks(report: &BulkReport, dry_run: bool) -> Vec<String> {
    let by_id = report.items.is_some();
    let mut remarks = Vec::new();
    if report.skipped > 0 {
        let why = if by_id { "" } else { " (changed meanwhile)" };
        remarks.push(format!("{} skipped{why}", report.skipped));
    }
    if report.failed > 0 {
        remarks.push(format!("{} failed", report.failed));
    }
    let left = report.matched.saturating_sub(report.done());
    if left > 0 && !dry_run && !by_id {
        remarks.push(format!("{left} left as they are"));
    }
    remarks
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEUE: Verb = Verb { infinitive: "requeue", past: "requeued" };

    fn report(matched: u64, changed: u64, skipped: u64, failed: u64) -> BulkReport {
        BulkReport { changed, skipped, failed, ..BulkReport::about(matched) }
    }

    #[test]
    fn a_change_in_a_sentence() {
        let told = |report: &BulkReport| REQUEUE.sentence(report, false, None);
        assert_eq!(told(&report(0, 0, 0, 0)), "Nothing to requeue.");
        assert_eq!(told(&report(1, 1, 0, 0)), "Requeued 1 delivery.");
        assert_eq!(told(&report(12, 12, 0, 0)), "Requeued 12 deliveries.");
        assert_eq!(
            told(&report(12, 9, 2, 1)),
            "Requeued 9 of 12 deliveries; 2 skipped (changed meanwhile); 1 failed."
        );
        assert_eq!(told(&report(12, 9, 0, 0)), "Requeued 9 of 12 deliveries; 3 left as they are.");
    }

    #[test]
    fn a_change_by_id_in_a_sentence() {
        let by_id = |report: BulkReport| BulkReport { items: Some(Vec::new()), ..report };
        assert_eq!(
            REQUEUE.sentence(&by_id(report(3, 2, 1, 1)), false, None),
            "Requeued 2 of 3 deliveries; 1 skipped; 1 failed."
        );
        assert_eq!(
            REQUEUE.sentence(&by_id(report(0, 0, 0, 1)), false, None),
            "Requeued 0 deliveries; 1 failed."
        );
        assert_eq!(
            REQUEUE.sentence(&by_id(report(3, 0, 1, 0)), true, None),
            "Would requeue 2 of 3 deliveries; 1 skipped."
        );
    }

    #[test]
    fn a_dry_run_in_a_sentence() {
        let would = |matched, limit| REQUEUE.sentence(&report(matched, 0, 0, 0), true, limit);
        assert_eq!(would(0, None), "Nothing to requeue.");
        assert_eq!(would(12, None), "Would requeue 12 deliveries.");
        assert_eq!(would(12, Some(5)), "Would requeue 5 of 12 deliveries.");
        assert_eq!(would(2, Some(5)), "Would requeue 2 deliveries.");
    }

    #[test]
    fn a_document_is_flat() {
        let document = Document {
            command: "requeue",
            dry_run: false,
            reason: None,
            report: &report(3, 2, 1, 0),
            error: None,
        };
        assert_eq!(
            serde_json::to_string(&document).unwrap(),
            r#"{"command":"requeue","dryRun":false,"matched":3,"changed":2,"skipped":1,"failed":0,"interrupted":false}"#
        );
    }
}
