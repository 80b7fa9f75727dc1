//! From the arguments and the handlers file to what the worker subscribes to.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

use super::Args;
use super::from_file::Source;
use super::subscribed::{Subscribed, Types};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::table::{Cell, Column};
use crate::cli::render::time::Times;
use crate::config::handlers::{HandlerConfig, HandlersFile, Mode};
use crate::dispatch::{BreakerPolicy, Subscription};
use crate::handler::lines::ChildNote;
use crate::handler::{Command, ShellHandler};
use crate::model::TypePattern;
use crate::store::Store;

/// The handlers of a worker, with what they run.
pub(super) struct Handlers {
    /// What stands before an error about them.
    origin: String,
    /// What they are made of, if that is a file.
    file: Option<HandlersFile>,
    handlers: Vec<CommandHandler>,
    subscribed: Subscribed,
    notes: mpsc::Receiver<ChildNote>,
}

/// How many notes about children may wait to be logged.
pub(super) const NOTES_QUEUE: usize = 256;

/// A handler with its command.
pub(super) struct CommandHandler {
    pub(super) id: String,
    /// None means whatever comes.
    pub(super) types: Vec<TypePattern>,
    pub(super) command: Command,
    /// What is run for a dead one.
    pub(super) on_dead: Option<Command>,
    /// The collections that a transactional one writes to.
    pub(super) writes: Option<Vec<String>>,
    pub(super) shown: String,
    pub(super) mode: Mode,
    pub(super) batch: Option<usize>,
    pub(super) subscription: Subscription,
}

impl Handlers {
    /// Reads what the arguments name. What transactional ones publish is for whom `subscribed` says by then.
    ///
    /// # Errors
    /// Names the file, handler and key that cannot be used.
    pub(super) fn of(args: &Args, subscribed: &Subscribed) -> CliResult<Handlers> {
        let (sender, notes) = mpsc::channel(NOTES_QUEUE);
        if let Some(path) = &args.file {
            let file = HandlersFile::load(path)?;
            let source = Source { path, args, subscribed, notes: &sender };
            let handlers =
                file.handlers.iter().map(|config| source.read(config)).collect::<CliResult<_>>()?;
            let (origin, subscribed) = (format!("{}: ", path.display()), subscribed.clone());
            return Ok(Handlers { origin, file: Some(file), handlers, subscribed, notes });
        }
        let named = args.handler.clone().zip(args.argv.split_first()).map(|(id, (program, arguments))| {
            let shown =
                args.argv.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ");
            on_the_spot(id, args.types.clone(), Command::argv(program, arguments), shown, args)
        });
        let inline = args
            .inline
            .iter()
            .map(|(id, line)| on_the_spot(id.clone(), Vec::new(), Command::shell(line), line.clone(), args));
        let handlers = named.into_iter().chain(inline).collect();
        let (origin, subscribed) = (String::new(), subscribed.clone());
        Ok(Handlers { origin, file: None, handlers, subscribed, notes })
    }

    /// Makes sure that every command is there: one that is not would fail delivery after delivery.
    ///
    /// # Errors
    /// Names the first handler whose command or directory is missing.
    pub(super) fn check_commands(&self) -> CliResult {
        for handler in &self.handlers {
            let refuse =
                |missing| CliError::usage(format!("{}handler {}: {missing}", self.origin, handler.id));
            handler.command.check().map_err(refuse)?;
            if let Some(on_dead) = &handler.on_dead {
                on_dead.check().map_err(|missing| refuse(format!("on_dead: {missing}")))?;
            }
        }
        Ok(())
    }

    /// Makes sure that what transactional handlers may write to can be written to in this store.
    ///
    /// # Errors
    /// Names the first handler that could never succeed.
    pub(super) fn check_writes(&self, store: &dyn Store) -> CliResult {
        for handler in &self.handlers {
            let Some(writes) = handler.writes.as_deref().filter(|writes| !writes.is_empty()) else {
                continue;
            };
            store.check_writes(writes).map_err(|error| {
                CliError::usage(format!("{}handler {}: writes: {error}", self.origin, handler.id))
            })?;
        }
        Ok(())
    }

    /// Writes the handlers to standard output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn list(&self, context: &Context) -> CliResult<Exit> {
        let mut listing = Listing::new(context.ui(), context.times());
        self.handlers.iter().map(CommandHandler::record).try_for_each(|record| listing.write(&record))?;
        listing.finish()?;
        let count = self.handlers.len();
        let all = if count == 1 {
            "the handler and its command are".to_owned()
        } else {
            format!("all {count} handlers and their commands are")
        };
        context.ui().note(&format!("{}{all} as they have to be", self.origin));
        Ok(Exit::Done)
    }

    /// What stands before an error about them: the file that they come from, if any.
    pub(super) fn origin(&self) -> String {
        self.origin.clone()
    }

    /// The file that they are made of, if any.
    pub(super) fn file(&self) -> Option<HandlersFile> {
        self.file.clone()
    }

    /// What transactional ones go by.
    pub(super) fn subscribed(&self) -> Subscribed {
        self.subscribed.clone()
    }

    /// The event types that they are for.
    pub(super) fn types(&self) -> Types {
        match &self.file {
            Some(file) => file.handlers.iter().map(|one| (one.id.clone(), one.types.clone())).collect(),
            None => self.handlers.iter().map(|one| (one.id.clone(), one.types.clone())).collect(),
        }
    }

    /// Leaves out those that are the same in `former`, in every field, and returns their names.
    pub(super) fn leave_out(&mut self, former: &HandlersFile) -> Vec<String> {
        let is_same = |one: &&HandlerConfig| former.handlers.contains(*one);
        let all = self.file.iter().flat_map(|file| &file.handlers);
        let same: Vec<String> = all.filter(is_same).map(|one| one.id.clone()).collect();
        self.handlers.retain(|one| !same.contains(&one.id));
        same
    }

    /// What the worker subscribes to, and what its children have to say.
    pub(super) fn into_subscriptions(self) -> (Vec<Subscription>, mpsc::Receiver<ChildNote>) {
        let subscriptions = self.handlers.into_iter().map(|handler| handler.subscription).collect();
        (subscriptions, self.notes)
    }
}

fn on_the_spot(
    id: String,
    types: Vec<TypePattern>,
    command: Command,
    shown: String,
    args: &Args,
) -> CommandHandler {
    let concurrency = args.concurrency.map(NonZeroUsize::get);
    let subscription = with_defaults(Subscription::new(&*id, ShellHandler::new(command.clone())), args);
    let subscription = given(concurrency, subscription, Subscription::concurrency);
    CommandHandler {
        id,
        types,
        command,
        on_dead: None,
        writes: None,
        shown,
        mode: Mode::Process,
        batch: None,
        subscription,
    }
}

/// What the command line gives for all handlers.
pub(super) fn with_defaults(subscription: Subscription, args: &Args) -> Subscription {
    let subscription = given(args.timeout, subscription, Subscription::timeout);
    let subscription = given(args.lease, subscription, Subscription::lease);
    given(args.max_attempts.map(NonZeroU32::get), subscription, Subscription::max_attempts)
}

/// Sets what is given.
pub(super) fn given<T>(
    value: Option<T>,
    subscription: Subscription,
    set: impl FnOnce(Subscription, T) -> Subscription,
) -> Subscription {
    match value {
        Some(value) => set(subscription, value),
        None => subscription,
    }
}

/// One line of the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HandlerRecord<'a> {
    handler: &'a str,
    types: Vec<String>,
    command: &'a str,
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<usize>,
    concurrency: usize,
    #[serde(serialize_with = "as_text")]
    timeout: Duration,
    #[serde(serialize_with = "as_text")]
    lease: Duration,
    max_attempts: u32,
    breaker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
}

fn as_text<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

impl CommandHandler {
    fn record(&self) -> HandlerRecord<'_> {
        let limits = self.subscription.limits();
        HandlerRecord {
            handler: &self.id,
            types: self.types.iter().map(TypePattern::to_string).collect(),
            command: &self.shown,
            mode: self.mode,
            batch: self.batch,
            concurrency: limits.concurrency,
            timeout: limits.timeout,
            lease: limits.lease,
            max_attempts: limits.max_attempts,
            breaker: limits.breaker.map_or_else(|| "off".to_owned(), words_for_breaker),
            rate: limits.rate.map(|rate| rate.to_string()),
        }
    }
}

/// `10 failures, 30s to 10m`.
fn words_for_breaker(policy: BreakerPolicy) -> String {
    let time = humantime::format_duration;
    format!("{} failures, {} to {}", policy.failures, time(policy.pause), time(policy.max))
}

impl Record for HandlerRecord<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::words("HANDLER"),
        Column::words("TYPES").folds(2, "types"),
        Column::number("AT ONCE"),
        Column::number("RATE").folds(4, "rate "),
        Column::number("TIMEOUT").folds(1, "timeout"),
        Column::number("LEASE").folds(0, "lease"),
        Column::number("ATTEMPTS"),
        Column::words("BREAKER").folds(5, "breaker "),
        Column::free_text("COMMAND").folds(3, ""),
    ];
    const FIELDS: &'static [&'static str] = &[
        "handler",
        "types",
        "command",
        "concurrency",
        "timeout",
        "lease",
        "maxAttempts",
        "breaker",
        "rate",
        "mode",
        "batch",
    ];

    fn id(&self) -> &str {
        self.handler
    }

    fn values(&self) -> Vec<String> {
        let time = |duration| humantime::format_duration(duration).to_string();
        vec![
            self.handler.to_owned(),
            self.types.join(" "),
            self.command.to_owned(),
            self.concurrency.to_string(),
            time(self.timeout),
            time(self.lease),
            self.max_attempts.to_string(),
            self.breaker.clone(),
            self.rate.clone().unwrap_or_default(),
            self.mode.as_str().to_owned(),
            self.batch.map(|size| size.to_string()).unwrap_or_default(),
        ]
    }

    fn cells(&self, _times: &Times) -> Vec<Cell> {
        let [handler, types, command, concurrency, timeout, lease, attempts, breaker, rate, ..] =
            <[String; 11]>::try_from(self.values()).unwrap_or_default();
        [handler, types, concurrency, rate, timeout, lease, attempts, breaker, command]
            .into_iter()
            .map(Cell::new)
            .collect()
    }
}
