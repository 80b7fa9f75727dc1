//! `explain`: why a delivery or a key does not move, and what would help.

use serde::Serialize;

use super::explanation::{Help, Telling, help};
use super::show::missing;
use crate::cli::args::values::name;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::cli::render::listing::Listing;
use crate::cli::render::print_document;
use crate::cli::render::text::visible;
use crate::cli::ui::Meaning;
use crate::config::OutputFormat;
use crate::model::{Delivery, DeliveryId};
use crate::ops;
use crate::ops::explain::{Explanation, Facts, Found, facts_of, facts_of_head};
use crate::store::Store;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl explain 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a",
            "Why does this delivery not run, and what would help?",
        ),
        ("relayctl explain --handler projector --key order-17", "What holds up this key?"),
        (
            "relayctl explain 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a -o json | jq -r '.findings[].code'",
            "The findings alone, for a script.",
        ),
    ],
    exits: STORE_EXITS,
};

/// Explain why a delivery runs or does not, and what would help
///
/// Says whether it is due, what blocks it and what blocks that, under whose lease it runs, whether it is parked, whether
/// its handler is paused, left alone by a worker, or run by nobody, and how many wait behind it. Ends with the commands
/// that would help, as they can be pasted into a shell.
///
/// Workers do not register anywhere. Nobody seems to run a handler when there is no live lease, no report of a breaker, and
/// no outcome of the last 15 minutes among the deliveries created last and those due first.
///
/// Formats: table (text for people), json and jsonl (`{handler, key?, delivery, blockers, findings, commands}`, where each
/// finding has a `code`; the delivery is null where nothing of a key is unfinished), csv and ids (the delivery, and behind
/// it those that block it).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The delivery's id
    #[arg(value_name = "ID", value_parser = name, required_unless_present = "handler")]
    id: Option<String>,

    /// Explain the first unfinished delivery of this handler and --key
    #[arg(long, value_name = "HANDLER", value_parser = name, conflicts_with = "id", requires = "key")]
    handler: Option<String>,

    /// The ordering key
    #[arg(long, value_name = "KEY", value_parser = name, conflicts_with = "id", requires = "handler")]
    key: Option<String>,
}

/// What is told to a program.
#[derive(Serialize)]
struct Document<'a> {
    handler: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    delivery: Option<&'a Delivery>,
    blockers: &'a [Delivery],
    findings: &'a [Found],
    commands: &'a [Help],
}

/// Runs `explain`.
///
/// # Errors
/// When there is no such delivery, and those of the store and of standard output.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let store = &**context.store().await?;
    let facts = match (&args.id, &args.handler, &args.key) {
        (Some(id), _, _) => facts_of_id(context, store, id).await?,
        (None, Some(handler), Some(key)) => match facts_of_head(store, handler, key, context.now()).await? {
            Some(facts) => facts,
            None => return nothing_unfinished(context, store, handler, key).await,
        },
        // The command line refuses the others.
        (None, _, _) => return Ok(Exit::Usage),
    };
    let explanation = ops::explain::explain(&facts);
    tell(context, &explanation, &help(&explanation, context.given()))?;
    Ok(Exit::Done)
}

async fn facts_of_id(context: &Context, store: &dyn Store, id: &str) -> CliResult<Facts> {
    match store.get(&DeliveryId::from(id)).await? {
        Some(delivery) => Ok(facts_of(store, delivery, context.now()).await?),
        None => {
            context.require_schema().await?;
            Err(missing(id, &store.location()))
        }
    }
}

/// Nothing of the key is unfinished. That nobody ever published for the handler may be a slip of the pen.
async fn nothing_unfinished(
    context: &Context,
    store: &dyn Store,
    handler: &str,
    key: &str,
) -> CliResult<Exit> {
    context.require_schema().await?;
    let ui = context.ui();
    match ui.format() {
        OutputFormat::Table => ui.print(&format!(
            "Nothing of key {} is unfinished for handler {}.\n",
            visible(key),
            visible(handler)
        ))?,
        OutputFormat::Json | OutputFormat::Jsonl => {
            let key = Some(key);
            let nothing =
                Document { handler, key, delivery: None, blockers: &[], findings: &[], commands: &[] };
            print_document(ui, &nothing)?;
        }
        OutputFormat::Csv | OutputFormat::Ids => {
            Listing::<Delivery>::new(ui, context.times()).finish()?;
        }
    }
    if !ops::is_known(store, handler).await? {
        let (handler, location) = (visible(handler), store.location());
        ui.warn(&format!("there is no delivery of a handler `{handler}` in {location}"));
    }
    Ok(Exit::Done)
}

fn tell(context: &Context, explanation: &Explanation, commands: &[Help]) -> CliResult {
    let ui = context.ui();
    let Explanation { delivery, blockers, findings, .. } = explanation;
    match ui.format() {
        OutputFormat::Table => ui.print(&text(context, explanation, commands))?,
        OutputFormat::Json | OutputFormat::Jsonl => {
            let (handler, key) = (delivery.handler.as_str(), delivery.key.as_deref());
            let delivery = Some(delivery);
            print_document(ui, &Document { handler, key, delivery, blockers, findings, commands })?;
        }
        OutputFormat::Csv | OutputFormat::Ids => {
            let mut listing = Listing::new(ui, context.times());
            std::iter::once(delivery).chain(blockers).try_for_each(|delivery| listing.write(delivery))?;
            listing.finish()?;
        }
    }
    if context.given().hides_store() && !commands.is_empty() {
        ui.note("the --store that you gave may hold a password, and is left out of the commands");
    }
    Ok(())
}

fn text(context: &Context, explanation: &Explanation, commands: &[Help]) -> String {
    let ui = context.ui();
    let heading = |text: &str| ui.paint(Meaning::Heading, text);
    let mut lines = vec![heading(&format!("Delivery {}", visible(explanation.delivery.id.as_str())))];
    lines.push(format!("  {}", place(&explanation.delivery)));
    lines.push(String::new());
    lines.extend(Telling::new(ui, context.times()).lines(explanation));
    if !commands.is_empty() {
        lines.extend([String::new(), heading("What would help")]);
        for Help { purpose, command } in commands {
            lines.extend([format!("  To {purpose}:"), format!("    {command}")]);
        }
    }
    lines.join("\n") + "\n"
}

/// Which delivery it is: `order.placed.v1 for projector, key order-17, sequence 3`.
fn place(delivery: &Delivery) -> String {
    let mut place = format!("{} for {}", visible(&delivery.event_type), visible(&delivery.handler));
    place.extend(delivery.key.as_deref().map(|key| format!(", key {}", visible(key))));
    place.extend(delivery.sequence.map(|sequence| format!(", sequence {sequence}")));
    place
}
