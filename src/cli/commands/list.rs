//! `list`: deliveries, filtered, sorted and page by page.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use futures_util::{FutureExt as _, StreamExt as _};

use crate::cli::args::filter::FilterArgs;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::interrupt::Interrupts;
use crate::cli::render::listing::Listing;
use crate::model::{Cursor, Delivery, ListQuery, SortBy, Timestamp};
use crate::store::{ErrorKind, StoreError};

/// Corrupt deliveries that are named one by one; the rest is counted.
pub const NAMED_CORRUPT: u64 = 10;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl list --status dead --handler projector", "What failed for good, the oldest first."),
        (
            "relayctl list --status dead --error timeout --sort updated --reverse",
            "The latest time-outs first.",
        ),
        ("relayctl list --overdue 15m", "What should have run a quarter of an hour ago."),
        ("relayctl list --key order-17 --all", "The whole history of one ordering key."),
        (
            "relayctl list --status dead --since 2h -o ids --all | xargs -r relayctl requeue",
            "Hand ids to another command.",
        ),
        ("relayctl list --all -o jsonl > deliveries.jsonl", "Everything, as JSON lines, in constant memory."),
    ],
    exits: STORE_EXITS,
};

/// List deliveries
///
/// All conditions that are given have to hold. Without any, every delivery is listed. A terminal shows what fits, and
/// longer texts end with …; a pipe gets everything. Formats: table, json (one array), jsonl, csv (all but the error
/// history), ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,

    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,

    /// Order by the time of creation, of the last change, or at which they are due
    ///
    /// Finished deliveries are never due, so that `due` lists unfinished ones only.
    #[arg(long, value_name = "ORDER", default_value = "created", value_parser = sort_parser())]
    sort: SortBy,

    /// Latest first
    #[arg(long)]
    reverse: bool,

    /// Go on behind this place, which an earlier listing with the same options printed
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<Cursor>,
}

fn sort_parser() -> impl TypedValueParser<Value = SortBy> {
    let words = [SortBy::Created, SortBy::Updated, SortBy::Due].map(SortBy::as_str);
    PossibleValuesParser::new(words).try_map(|word| word.parse::<SortBy>())
}

impl Args {
    fn limit(&self) -> Option<u64> {
        (!self.all).then_some(self.limit)
    }

    /// One more than the limit is asked for, to know whether there are more.
    fn query(&self, now: Timestamp) -> ListQuery {
        ListQuery {
            filter: self.filter.resolve(now),
            sort: self.sort,
            descending: self.reverse,
            after: self.cursor.clone(),
            limit: self.limit().map(|limit| limit.saturating_add(1)),
            without_history: false,
        }
    }

    /// What can be told before anything is asked of the store.
    fn check(&self, now: Timestamp) -> CliResult {
        self.query(now).check_cursor().map_err(|error| {
            CliError::usage(error.to_string()).with_hint("repeat the options of the listing that printed it")
        })
    }
}

/// Runs `list`.
///
/// # Errors
/// Those of the store and of standard output. What was printed before one is still valid in its format.
pub async fn run(context: &Context, args: &Args, interrupts: &Interrupts) -> CliResult<Exit> {
    args.check(context.now())?;
    let store = interrupts.stops(context.store()).await?;
    let query = args.query(context.now());
    let mut rows = store.list(&query);
    let mut pour = Pour::new(context, args.limit());
    let result = loop {
        // Whoever reads along sees each row as soon as the store has no further one at hand.
        let row = match rows.next().now_or_never() {
            Some(row) => Ok(row),
            None => match pour.listing.flush() {
                Ok(()) => interrupts.stops(async { Ok(rows.next().await) }).await,
                Err(error) => Err(error),
            },
        };
        match row.and_then(|row| pour.take(row)) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    drop(rows);
    pour.end(result, &query).await
}

/// Rows on their way from the store to the screen.
struct Pour<'a> {
    context: &'a Context,
    listing: Listing<Delivery>,
    limit: Option<u64>,
    /// Rows that the store yielded, corrupt ones included.
    seen: u64,
    shown: u64,
    corrupt: u64,
    last: Option<Delivery>,
}

impl<'a> Pour<'a> {
    fn new(context: &'a Context, limit: Option<u64>) -> Self {
        let listing = Listing::new(context.ui(), context.times());
        Pour { context, listing, limit, seen: 0, shown: 0, corrupt: 0, last: None }
    }

    /// Takes what the store yielded next; says whether to go on.
    fn take(&mut self, row: Option<Result<Delivery, StoreError>>) -> CliResult<bool> {
        let Some(row) = row else { return Ok(false) };
        self.seen += 1;
        match row {
            Ok(_) if self.is_full() => {}
            Ok(delivery) => {
                self.listing.write(&delivery)?;
                self.shown += 1;
                self.last = Some(delivery);
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.corrupt += 1;
                if self.corrupt <= NAMED_CORRUPT {
                    self.context.ui().warn(&error.to_string());
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(!self.has_more())
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.shown >= limit)
    }

    fn has_more(&self) -> bool {
        self.limit.is_some_and(|limit| self.seen > limit)
    }

    async fn end(self, result: CliResult, query: &ListQuery) -> CliResult<Exit> {
        if let Err(error) = result {
            // The error that ended it matters more than one of closing it.
            let _ = self.listing.abandon();
            return Err(error);
        }
        if self.seen == 0 && query.after.is_none() {
            self.context.require_schema().await?;
        }
        let (context, has_more) = (self.context, self.has_more());
        self.listing.finish()?;
        if self.seen == 0 {
            context.ui().note(nothing(query));
        }
        let next = self.last.and_then(|last| Cursor::at(&last, query.sort, query.descending));
        if let (true, Some(next)) = (has_more, next) {
            let shown = self.shown;
            context
                .ui()
                .note(&format!("there are more than these {shown}: add --cursor {next} to go on, or --all"));
        }
        match self.corrupt {
            0 => Ok(Exit::Done),
            corrupt => Err(left_out(corrupt)),
        }
    }
}

/// The error of a listing that could not show everything.
pub fn left_out(corrupt: u64) -> CliError {
    CliError::failed(match corrupt {
        1 => "a delivery could not be understood, and is left out".to_owned(),
        _ => format!("{corrupt} deliveries could not be understood, and are left out"),
    })
}

fn nothing(query: &ListQuery) -> &'static str {
    if query.after.is_some() {
        "there are no more deliveries"
    } else if query.filter.is_empty() && query.sort != SortBy::Due {
        "there are no deliveries"
    } else {
        "no delivery matches"
    }
}
