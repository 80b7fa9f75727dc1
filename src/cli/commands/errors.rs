//! `errors`: what failed, grouped by what it has in common.

use serde::Serialize;

use super::bulk::{count_of, deliveries};
use super::list::{NAMED_CORRUPT, left_out};
use crate::cli::args::filter::FilterArgs;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::table::{Cell, Column};
use crate::cli::render::time::Times;
use crate::cli::ui::Meaning;
use crate::model::Status;
use crate::ops::{ErrorGroup, ErrorGroups, MAX_GROUPS, error_groups};

/// How often progress is shown.
const PROGRESS_EVERY: u64 = 1_000;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl errors",
            "What do the dead deliveries have in common, and how many are there of each kind?",
        ),
        ("relayctl errors --handler projector --since 1h", "Those of one handler, of the last hour."),
        ("relayctl errors --status pending", "What fails, and is tried again."),
        ("relayctl list --status dead --group g1-3f0b9c2d7a5e8146", "The deliveries of one group."),
        ("relayctl requeue --group g1-3f0b9c2d7a5e8146 --rate 50/s", "Bring one group back, gently."),
    ],
    exits: STORE_EXITS,
};

/// Group errors by handler and by what they have in common
///
/// Two errors are alike when they differ in values only: numbers and their units, identifiers, times, addresses, paths and
/// what is quoted become `<n>`, `<id>`, `<hex>`, `<time>`, `<addr>`, `<path>` and `<str>`. The first line of an error counts, or the last
/// one of a Python traceback and of an output whose beginning was cut off. Looked at are dead deliveries, or those of the
/// --status that is given which have failed.
///
/// The identifier of a group stays the same in later releases: `g1-` and 16 hexadecimal digits of the SHA-256 of the
/// handler's name, a zero byte, and the error as it is shown. `--group` of list, requeue and bury filters by it.
///
/// FIRST and LAST are when the first and the last of them failed, SAMPLE is that last one. The largest group comes first.
/// Formats: table, json (one array), jsonl, csv, ids (the groups). More than 10000 groups are not told apart, and the rest is
/// counted.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,

    /// At most this many groups
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// Runs `errors`.
///
/// # Errors
/// Those of the store and of standard output.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let found = look(context, args).await?;
    if found.examined == 0 {
        context.require_schema().await?;
    }
    let limit = if args.all { MAX_GROUPS } else { usize::try_from(args.limit).unwrap_or(MAX_GROUPS) };
    let shown = &found.groups[..limit.min(found.groups.len())];
    let mut listing = Listing::new(context.ui(), context.times());
    shown.iter().try_for_each(|group| listing.write(&Row::of(group)))?;
    listing.finish()?;
    tell_what_is_left(context, &found, shown.len());
    match found.unreadable {
        0 => Ok(Exit::Done),
        unreadable => Err(left_out(unreadable)),
    }
}

async fn look(context: &Context, args: &Args) -> CliResult<ErrorGroups> {
    let store = context.store().await?;
    let ui = context.ui();
    let mut progress = ui.progress("looked at", None);
    let mut named = 0;
    let groups = error_groups(
        store.as_ref(),
        args.filter.resolve(context.now()),
        |count| {
            if count % PROGRESS_EVERY == 0 {
                progress.add(PROGRESS_EVERY);
            }
        },
        |error| {
            named += 1;
            if named <= NAMED_CORRUPT {
                ui.warn(&error.to_string());
            }
        },
    );
    Ok(groups.await?)
}

fn tell_what_is_left(context: &Context, found: &ErrorGroups, shown: usize) {
    let ui = context.ui();
    if found.groups.is_empty() {
        ui.note("no delivery that was looked at has failed");
    }
    let more = found.groups.len() - shown;
    if more > 0 {
        let groups = count_of(more as u64, "more group", "more groups");
        let those = found.groups[shown..].iter().map(|group| group.count).sum();
        ui.note(&format!(
            "there are {groups}, of {}: add --all, or narrow with a condition",
            deliveries(those)
        ));
    }
    if found.beyond > 0 {
        let beyond = deliveries(found.beyond);
        ui.warn(&format!(
            "{beyond} belong to other groups than the first {MAX_GROUPS} that were met, and are not counted; narrow with a condition"
        ));
    }
}

/// A group in a listing.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(skip)]
    id: String,
    #[serde(flatten)]
    group: &'a ErrorGroup,
}

impl<'a> Row<'a> {
    fn of(group: &'a ErrorGroup) -> Self {
        Row { id: group.group.to_string(), group }
    }
}

impl Record for Row<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::words("GROUP"),
        Column::number("COUNT").folds(5, "count "),
        Column::words("HANDLER").folds(4, ""),
        Column::words("FIRST").folds(2, "first "),
        Column::words("LAST").folds(3, "last "),
        Column::words("SAMPLE").folds(1, "sample "),
        Column::free_text("ERROR").folds(0, ""),
    ];

    const FIELDS: &'static [&'static str] =
        &["group", "handler", "count", "firstSeenAt", "lastSeenAt", "sampleId", "error"];

    fn id(&self) -> &str {
        &self.id
    }

    fn values(&self) -> Vec<String> {
        let group = self.group;
        vec![
            self.id.clone(),
            group.handler.clone(),
            group.count.to_string(),
            group.first_seen_at.to_string(),
            group.last_seen_at.to_string(),
            group.sample_id.to_string(),
            group.error.clone(),
        ]
    }

    fn cells(&self, times: &Times) -> Vec<Cell> {
        let group = self.group;
        vec![
            Cell::new(&self.id),
            Cell::new(group.count.to_string()).meaning(Meaning::Status(Status::Dead)),
            Cell::new(&group.handler),
            Cell::new(times.show(group.first_seen_at)),
            Cell::new(times.show(group.last_seen_at)),
            Cell::new(group.sample_id.as_str()),
            Cell::new(&group.error),
        ]
    }
}
