//! `publish`: one event, or a stream of them.

pub(super) mod input;
pub(super) mod stream;
mod told;

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::bulk::before_any_change;
use crate::cli::args::values::name;
use crate::cli::args::when::WhenArgs;
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::config::handlers::HandlersFile;
use crate::model::{Appended, EventId, InvalidInput, NewEvent, json, with_handlers};

use input::Input;
use told::Telling;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl publish order.placed.v1 --handler projector --key order-17 --payload '{\"total\": 12}'",
            "Append one event for one handler.",
        ),
        (
            "relayctl publish report.due --handler mailer --payload @report.json --delay 2h",
            "Read the payload from a file.",
        ),
        (
            "relayctl publish --jsonl events.jsonl --handlers handlers.toml",
            "Append many; handlers by subscription.",
        ),
        (
            "generate | relayctl publish --jsonl - --handler projector -o jsonl",
            "Append a stream, and see what became of each.",
        ),
    ],
    exits: BULK_EXITS,
};

/// Append events
///
/// An event is appended in one transaction with a delivery for each of its handlers. Its id makes that idempotent: an
/// event that is there already stays as it is, and only handlers that lack a delivery get one.
///
/// With --jsonl many events are read, one JSON object a line, of these members:
///
/// {type, payload, key?, id?, handlers?: [...], headers?, metadata?, correlationId?, causationId?, aggregateId?,
/// availableAt?, maxAttempts?}
///
/// They are appended in transactions of --batch-size lines. A line that is refused stops the stream: nothing of its batch
/// is written, and the batches before it stay. The message says at which line to start again. To run a stream again
/// from its beginning is safe only where the lines have ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The type of the event, such as order.placed.v1
    #[arg(value_name = "TYPE", value_parser = name, required_unless_present = "jsonl")]
    event_type: Option<String>,

    /// The content: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", default_value = "{}", allow_negative_numbers = true)]
    payload: String,

    /// The ordering key: events of one key reach a handler one at a time, in the order of their commits
    #[arg(long, value_name = "KEY", value_parser = name)]
    key: Option<String>,

    /// The id of the event, which makes it safe to repeat the command; a new one by default
    #[arg(long, value_name = "ID", value_parser = name)]
    id: Option<String>,

    /// A handler that receives the event; may be given more than once
    ///
    /// With --jsonl, the handlers of lines that name none.
    #[arg(long = "handler", value_name = "HANDLER", value_parser = name)]
    handlers: Vec<String>,

    /// A fact about the event that is not part of its content; may be given more than once
    #[arg(long = "header", value_name = "KEY=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    #[command(flatten)]
    when: WhenArgs,

    /// What groups the work of one request
    #[arg(long, value_name = "ID", value_parser = name)]
    correlation_id: Option<String>,

    /// The event or command that caused this one
    #[arg(long, value_name = "ID", value_parser = name)]
    causation_id: Option<String>,

    /// The domain object that it is about
    #[arg(long, value_name = "ID", value_parser = name)]
    aggregate_id: Option<String>,

    /// Anything else to keep with the event: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    metadata: Option<String>,

    /// After how many attempts a delivery of it is dead; by default each handler's own limit
    #[arg(long, value_name = "N")]
    max_attempts: Option<NonZeroU32>,

    /// Take the handlers that subscribe to the type from this file, when none is named
    #[arg(long = "handlers", value_name = "FILE")]
    handlers_file: Option<PathBuf>,

    /// Read many events from this file, one JSON object a line; - is standard input
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["event_type", "payload", "key", "id", "headers", "delay", "at", "correlation_id",
            "causation_id", "aggregate_id", "metadata", "max_attempts"]
    )]
    jsonl: Option<PathBuf>,

    /// With --jsonl, append this many lines in one transaction
    #[arg(long, value_name = "N", default_value = "100", conflicts_with = "event_type")]
    batch_size: NonZeroU32,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// Who receives events that do not say so themselves.
pub(super) struct Receivers {
    named: Vec<String>,
    file: Option<HandlersFile>,
}

impl Receivers {
    fn of(args: &Args) -> CliResult<Receivers> {
        let file = args.handlers_file.as_deref().map(HandlersFile::load).transpose()?;
        Ok(Receivers { named: args.handlers.clone(), file })
    }

    /// Those that the command names, or else those that subscribe.
    fn of_type(&self, event_type: &str) -> Vec<String> {
        match &self.file {
            Some(file) if self.named.is_empty() => {
                file.subscribers(event_type).into_iter().map(str::to_owned).collect()
            }
            _ => self.named.clone(),
        }
    }
}

/// Runs `publish`.
///
/// # Errors
/// Those that come before anything was published; later ones are part of the report.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    context.require_writable("publish")?;
    let receivers = Receivers::of(args)?;
    match &args.jsonl {
        Some(path) => {
            let input = Input::of_path(path);
            stream::publish(context, args.batch_size, &receivers, &input, stop).await
        }
        None => {
            let prepare = async {
                let event = read_event(args, &receivers).await?;
                context.require_schema().await?;
                Ok(NewEvent { available_at: args.when.resolve(context.now()), ..event })
            };
            let event = before_any_change(stop, prepare).await?;
            publish_one(context, event).await
        }
    }
}

async fn publish_one(context: &Context, event: NewEvent) -> CliResult<Exit> {
    let appended = context.store().await?.append(&[event], context.now()).await?;
    let mut telling = Telling::new(context);
    telling.tell(&appended)?;
    let sentences: Vec<String> = appended.iter().map(sentence).collect();
    telling.end(&sentences.join("\n"))?;
    Ok(Exit::Done)
}

fn sentence(appended: &Appended) -> String {
    let id = &appended.id;
    let new: Vec<&str> =
        appended.deliveries.iter().filter(|d| d.created).map(|d| d.handler.as_str()).collect();
    match (appended.created, new.as_slice()) {
        (true, handlers) => format!("Published {id} for {}.", handlers.join(", ")),
        (false, []) => format!("{id} was published before; nothing was changed."),
        (false, handlers) => {
            format!("{id} was published before; added a delivery for {}.", handlers.join(", "))
        }
    }
}

async fn read_event(args: &Args, receivers: &Receivers) -> CliResult<NewEvent> {
    if args.payload == "-" && args.metadata.as_deref() == Some("-") {
        return Err(CliError::usage("payload and metadata cannot both come from standard input"));
    }
    let mut event = NewEvent::new(args.event_type.clone().unwrap_or_default(), Value::Null);
    event.payload = read_json("payload", &args.payload).await?;
    event.metadata = match &args.metadata {
        Some(metadata) => Some(read_json("metadata", metadata).await?),
        None => None,
    };
    event.headers =
        args.headers.iter().cloned().map(|(key, value)| (key, Value::from(value))).collect::<Map<_, _>>();
    event.id = args.id.clone().map(EventId::from);
    event.key.clone_from(&args.key);
    event.correlation_id.clone_from(&args.correlation_id);
    event.causation_id.clone_from(&args.causation_id);
    event.aggregate_id.clone_from(&args.aggregate_id);
    event.max_attempts = args.max_attempts.map(NonZeroU32::get);
    let event = with_handlers(event, &|event_type| receivers.of_type(event_type)).map_err(nobody)?;
    event.checked().map_err(refused)
}

async fn read_json(what: &str, argument: &str) -> CliResult<Value> {
    let text = Input::of_value(argument).read_text(what).await?;
    json::parse(what, &text).map_err(refused)
}

fn refused(error: InvalidInput) -> CliError {
    CliError::usage(format!("the event is refused: {error}"))
}

fn nobody(error: InvalidInput) -> CliError {
    CliError::usage(format!("nobody would receive the event: {error}"))
        .with_hint("name who receives it with --handler, or a file of handlers with --handlers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AppendedDelivery;

    #[test]
    fn a_header_is_a_key_and_a_value() {
        assert_eq!(header("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(header("a="), Ok(("a".to_owned(), String::new())));
        assert!(header("a").is_err() && header("=b").is_err());
    }

    #[test]
    fn what_became_of_an_event_in_a_sentence() {
        let told = |created, handlers: &[(&str, bool)]| {
            let delivery = |&(handler, created): &(&str, bool)| AppendedDelivery {
                id: "d".into(),
                handler: handler.to_owned(),
                created,
            };
            let deliveries = handlers.iter().map(delivery).collect();
            sentence(&Appended { id: "e".into(), created, deliveries })
        };
        assert_eq!(told(true, &[("a", true), ("b", true)]), "Published e for a, b.");
        assert_eq!(told(false, &[("a", false)]), "e was published before; nothing was changed.");
        assert_eq!(
            told(false, &[("a", false), ("b", true)]),
            "e was published before; added a delivery for b."
        );
    }
}
