//! `show`: everything about one delivery.

use std::fmt::Write as _;

use serde::Serialize;

use super::explanation::{Help, Telling as Sentences, help};
use crate::cli::args::values::name;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::delivery::tries;
use crate::cli::render::json;
use crate::cli::render::listing::Listing;
use crate::cli::render::print_document;
use crate::cli::render::text::visible;
use crate::cli::render::time::Times;
use crate::cli::ui::{Meaning, Ui};
use crate::config::OutputFormat;
use crate::model::{Delivery, DeliveryId, Event, Lane, Pause, Status, TrippedBreaker};
use crate::ops::explain::{Explanation, Finding, Found, explain, facts_of};
use crate::store::Store;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl show 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a",
            "Why does this delivery not run, and what happened to it?",
        ),
        (
            "relayctl show 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a -o json | jq .event.payload",
            "Its payload alone.",
        ),
    ],
    exits: STORE_EXITS,
};

/// Show one delivery with its event, its history, and what blocks it
///
/// Formats: table (text for people), json and jsonl (`{delivery, event, blockedBy?, paused?, breakers?, findings}`, where the
/// event is null if it is gone and the findings are those of `explain`), csv (the delivery's fields), ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The delivery's id
    #[arg(value_name = "ID", value_parser = name)]
    id: String,
}

/// What is known about one delivery.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Story {
    delivery: Delivery,
    event: Option<Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_by: Option<Delivery>,
    /// The pause of its handler, while it is unfinished.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<Pause>,
    /// The workers that leave its handler alone, while it is unfinished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    breakers: Vec<TrippedBreaker>,
    /// Why it runs or does not.
    findings: Vec<Found>,
    #[serde(skip)]
    explanation: Explanation,
    #[serde(skip)]
    commands: Vec<Help>,
}

/// Runs `show`.
///
/// # Errors
/// When there is no such delivery, and those of the store and of standard output.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let store = context.store().await?;
    let Some(delivery) = store.get(&DeliveryId::from(args.id.as_str())).await? else {
        context.require_schema().await?;
        return Err(missing(&args.id, &store.location()));
    };
    let story = story_of(context, store.as_ref(), delivery).await?;
    let ui = context.ui();
    match ui.format() {
        OutputFormat::Table => ui.print(&Telling { ui, times: context.times() }.tell(&story))?,
        OutputFormat::Json | OutputFormat::Jsonl => print_document(ui, &story)?,
        OutputFormat::Csv | OutputFormat::Ids => {
            let mut listing = Listing::new(ui, context.times());
            listing.write(&story.delivery)?;
            listing.finish()?;
        }
    }
    Ok(Exit::Done)
}

/// There is no delivery of this id.
pub fn missing(id: &str, location: &str) -> CliError {
    CliError::failed(format!("there is no delivery `{id}` in {location}")).with_hint(
        "if this is an event's id, look with `relayctl list --event ID`; a finished delivery may have been purged",
    )
}

async fn story_of(context: &Context, store: &dyn Store, delivery: Delivery) -> CliResult<Story> {
    let event = store.events(std::slice::from_ref(&delivery.event_id)).await?.pop();
    let facts = facts_of(store, delivery, context.now()).await?;
    let explanation = explain(&facts);
    Ok(Story {
        blocked_by: explanation.blockers.first().cloned(),
        paused: facts.controls.pauses.into_iter().next(),
        breakers: facts.controls.breakers,
        findings: explanation.findings.clone(),
        commands: help(&explanation, context.given()),
        explanation,
        event,
        delivery: facts.delivery,
    })
}

/// Turns a story into text for a terminal.
struct Telling<'a> {
    ui: &'a Ui,
    times: Times,
}

impl Telling<'_> {
    fn tell(&self, story: &Story) -> String {
        let mut text = String::new();
        self.heading(&mut text, &format!("Delivery {}", story.delivery.id));
        self.facts(&mut text, &self.delivery_facts(&story.delivery));
        self.situation(&mut text, story);
        self.event(&mut text, story);
        self.history(&mut text, &story.delivery);
        text
    }

    fn heading(&self, text: &mut String, heading: &str) {
        let _ = writeln!(text, "{}", self.ui.paint(Meaning::Heading, &visible(heading)));
    }

    /// Names and values in two columns; what is absent is left out.
    fn facts(&self, text: &mut String, facts: &[(&str, Option<String>)]) {
        let given = || facts.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let columns = given().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in given() {
            let _ = writeln!(text, "  {name:columns$}  {}", visible(value));
        }
    }

    fn delivery_facts(&self, delivery: &Delivery) -> Vec<(&'static str, Option<String>)> {
        let time = |instant| self.times.show(instant);
        let parked = if delivery.lane == Lane::Parked { ", parked" } else { "" };
        let requeues = (delivery.requeues > 0).then(|| delivery.requeues.to_string());
        vec![
            ("status", Some(format!("{}{parked}", delivery.status))),
            ("handler", Some(delivery.handler.clone())),
            ("event", Some(delivery.event_id.to_string())),
            ("type", Some(delivery.event_type.clone())),
            ("key", delivery.key.clone()),
            ("sequence", delivery.sequence.map(|number| number.to_string())),
            ("attempts", Some(tries(delivery).replace('/', " of "))),
            ("requeues", requeues),
            ("created", Some(time(delivery.created_at))),
            ("updated", Some(time(delivery.updated_at))),
            ("due", delivery.due_at.filter(|_| delivery.status == Status::Pending).map(time)),
            ("lease ends", delivery.lease_expires_at.map(time)),
            ("lease owner", delivery.lease_owner.clone()),
            ("completed", delivery.completed_at.map(time)),
            ("last error", delivery.last_error.clone().filter(|_| delivery.errors.is_empty())),
        ]
    }

    /// Why it runs or does not, and what would help: `explain` in short.
    fn situation(&self, text: &mut String, story: &Story) {
        text.push('\n');
        let mut explanation = story.explanation.clone();
        explanation.findings.retain(|found| !matches!(found.finding, Finding::WorkerSeen { .. }));
        for line in Sentences::new(self.ui, self.times).lines(&explanation) {
            let _ = writeln!(text, "{line}");
        }
        for Help { purpose, command } in &story.commands {
            let _ = writeln!(text, "To {purpose}: {command}");
        }
    }

    fn event(&self, text: &mut String, story: &Story) {
        text.push('\n');
        let Some(event) = &story.event else {
            self.heading(text, "Event");
            let _ = writeln!(
                text,
                "  It is not in the store any more. A worker buries this delivery as orphaned."
            );
            return;
        };
        self.heading(text, &format!("Event {}", event.id));
        self.facts(
            text,
            &[
                ("created", Some(self.times.show(event.created_at))),
                ("correlation id", event.correlation_id.clone()),
                ("causation id", event.causation_id.clone()),
                ("aggregate id", event.aggregate_id.clone()),
            ],
        );
        self.document(text, "headers", &event.headers);
        if let Some(metadata) = &event.metadata {
            self.document(text, "metadata", metadata);
        }
        self.document(text, "payload", &event.payload);
    }

    /// An indented document; an empty one is not worth a line.
    fn document(&self, text: &mut String, name: &str, document: &serde_json::Value) {
        if document.as_object().is_some_and(serde_json::Map::is_empty) && name != "payload" {
            return;
        }
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        let _ = json::write_pretty(&mut bytes, document);
        let _ = writeln!(text, "  {name}");
        for line in String::from_utf8_lossy(&bytes).lines() {
            let _ = writeln!(text, "    {line}");
        }
    }

    fn history(&self, text: &mut String, delivery: &Delivery) {
        if delivery.errors.is_empty() {
            return;
        }
        text.push('\n');
        self.heading(text, "Failures, latest last");
        for error in &delivery.errors {
            let attempt = match error.attempt {
                0 => "before any attempt".to_owned(),
                attempt => format!("attempt {attempt}"),
            };
            let kind = visible(error.kind.as_str());
            let _ = writeln!(text, "  {}  {attempt}  {kind}", self.times.show(error.at));
            for line in error.message.lines() {
                let _ = writeln!(text, "    {}", visible(line));
            }
        }
    }
}
