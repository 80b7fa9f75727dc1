//! Many events, one JSON object a line.

use std::num::NonZeroU32;
use std::ops::ControlFlow;

use tokio_util::sync::CancellationToken;

use super::Receivers;
use super::input::Input;
use super::told::Telling;
use crate::cli::commands::bulk::{before_any_change, count_of, with_progress};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::model::Appended;
use crate::ops::{Control, PublishPlan, PublishReport, Stopped, silent};

/// Publishes the events of `input`.
///
/// # Errors
/// Those that come before anything was published; later ones are part of the report.
pub async fn publish(
    context: &Context,
    batch_size: NonZeroU32,
    receivers: &Receivers,
    input: &Input,
    stop: &CancellationToken,
) -> CliResult<Exit> {
    let prepare = async {
        let reader = input.open().await?;
        context.require_schema().await?;
        Ok((reader, &**context.store().await?))
    };
    let (reader, store) = before_any_change(stop, prepare).await?;
    let handlers_of = |event_type: &str| receivers.of_type(event_type);
    let plan = PublishPlan { batch_size: batch_size.get() as usize, handlers_of: &handlers_of };
    let mut telling = Telling::new(context);
    let mut untold = None;
    let mut sink = |appended: &[Appended]| match telling.tell(appended) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            untold = Some(error);
            ControlFlow::Break(())
        }
    };
    let work = async |control: Control<'_>| plan.publish_lines(store, reader, &mut sink, &control).await;
    // Where each event is shown on the terminal that is progress enough, and a bar would tear it.
    let is_shown = context.ui().format().is_machine() && context.ui().output_is_terminal();
    let report = if is_shown {
        work(Control { clock: context.clock(), cancel: stop, progress: &silent }).await
    } else {
        let lines = input.count_lines().await;
        with_progress(context, stop, "published", lines, work).await
    };
    if untold.is_none() && (report.stopped.is_none() || report.lines > 0) {
        untold = telling.end(&sentence(&report)).err();
    }
    Ok(conclude(context, report, input, untold))
}

fn sentence(report: &PublishReport) -> String {
    let published = format!("Published {}", count_of(report.created, "event", "events"));
    match report.existing {
        0 => format!("{published}."),
        existing => format!("{published}; {existing} had been published before."),
    }
}

/// Says on standard error why the stream was not published to its end, and where to go on.
fn conclude(context: &Context, report: PublishReport, input: &Input, untold: Option<CliError>) -> Exit {
    let (written, next) = (report.lines, report.next_line);
    let error = match report.stopped {
        None | Some(Stopped::Declined) => untold,
        Some(stopped) => Some(explain(stopped, input)),
    };
    let Some(error) = error else { return Exit::Done };
    let exit = match error.exit() {
        Exit::Interrupted => Exit::Interrupted,
        _ if written > 0 => Exit::Partial,
        exit => exit,
    };
    context.ui().report(&error.with_hint(where_to_go_on(written, next, input)));
    exit
}

/// Why a stream was not read to its end.
pub fn explain(stopped: Stopped, input: &Input) -> CliError {
    let place = format!("in {}", input.name());
    match stopped {
        Stopped::Interrupted => CliError::interrupted(),
        Stopped::Refused { first, last, error } => {
            let lines =
                if first == last { format!("line {first}") } else { format!("lines {first} to {last}") };
            let cause = CliError::from(error);
            let message = format!("{place}, {lines}: {}", cause.message().unwrap_or_default());
            cause.within(message)
        }
        stopped => CliError::failed(format!("{place}, {stopped}")),
    }
}

fn where_to_go_on(written: u64, next: u64, input: &Input) -> String {
    if written == 0 {
        return "nothing was published".to_owned();
    }
    let done = format!("the lines before line {next} are published");
    match input {
        Input::File(path) => {
            let file = shell_word(&path.to_string_lossy());
            format!(
                "{done}; go on, with the same options, by: tail -n +{next} {file} | relayctl publish --jsonl -"
            )
        }
        Input::Text(_) | Input::Standard => format!("{done}; go on with line {next}"),
    }
}

/// `text` as one word of a shell's command line.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(shell_word("a/b-1.jsonl"), "a/b-1.jsonl");
        assert_eq!(shell_word("my events.jsonl"), "'my events.jsonl'");
        assert_eq!(shell_word("it's; rm -rf"), r"'it'\''s; rm -rf'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn a_hint_says_where_to_go_on() {
        assert_eq!(where_to_go_on(0, 1, &Input::Standard), "nothing was published");
        let stream = where_to_go_on(5, 6, &Input::Standard);
        assert_eq!(stream, "the lines before line 6 are published; go on with line 6");
    }
}
