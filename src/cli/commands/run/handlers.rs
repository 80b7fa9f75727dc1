//! From the arguments and the handlers file to what the worker subscribes to.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::Args;
use super::strangers::Strangers;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::table::{Cell, Column};
use crate::cli::render::time::Times;
use crate::config::handlers::{self as config, HandlerConfig, HandlersError, HandlersFile, Run};
use crate::dispatch::Subscription;
use crate::handler::{Command, ExitCodes, Identity, InvalidIdentity, Meaning, ShellHandler, Stdin};
use crate::model::TypePattern;

/// The handlers of a worker, with what they run.
pub(super) struct Handlers {
    /// What stands before an error about them.
    origin: String,
    handlers: Vec<CommandHandler>,
}

struct CommandHandler {
    id: String,
    /// None means whatever comes.
    types: Vec<TypePattern>,
    command: Command,
    on_dead: Option<Command>,
    shown: String,
    subscription: Subscription,
}

impl Handlers {
    /// Reads what the arguments name.
    ///
    /// # Errors
    /// Names the file, handler and key that cannot be used.
    pub(super) fn of(args: &Args) -> CliResult<Handlers> {
        if let Some(path) = &args.file {
            let file = HandlersFile::load(path)?;
            let handlers = file.handlers.into_iter().map(|config| from_file(config, path, args));
            let handlers = handlers.collect::<CliResult<_>>()?;
            return Ok(Handlers { origin: format!("{}: ", path.display()), handlers });
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
        Ok(Handlers { origin: String::new(), handlers: named.into_iter().chain(inline).collect() })
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

    /// Those who watch for event types that a handler is not meant for.
    pub(super) fn strangers(&self) -> Strangers {
        let meant = |handler: &CommandHandler| (handler.id.clone(), handler.types.clone());
        Strangers::beyond(self.handlers.iter().map(meant).collect::<HashMap<_, _>>())
    }

    pub(super) fn into_subscriptions(self) -> Vec<Subscription> {
        self.handlers.into_iter().map(|handler| handler.subscription).collect()
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
    CommandHandler { id, types, command, on_dead: None, shown, subscription }
}

fn from_file(config: HandlerConfig, path: &Path, args: &Args) -> CliResult<CommandHandler> {
    let surroundings = Surroundings::of(&config, path)?;
    let (command, shown) = surroundings.command(&config.run);
    let on_dead = config.on_dead.as_ref().map(|run| surroundings.command(run).0);
    let work = ShellHandler::new(command.clone())
        .stdin(match config.stdin {
            config::Stdin::Json => Stdin::Json,
            config::Stdin::Payload => Stdin::Payload,
            config::Stdin::CloudEvents { source } => Stdin::CloudEvents { source },
        })
        .exit_codes(exit_codes(&config.exit_codes));
    let subscription = with_defaults(Subscription::new(&*config.id, work), args);
    let subscription = given(config.concurrency, subscription, Subscription::concurrency);
    let subscription = given(config.timeout, subscription, Subscription::timeout);
    let subscription = given(config.lease, subscription, Subscription::lease);
    let subscription = given(config.kill_after, subscription, Subscription::kill_after);
    let subscription = given(config.max_attempts, subscription, Subscription::max_attempts);
    let subscription = given(config.retry, subscription, Subscription::retry);
    let subscription = given(on_dead.clone().map(ShellHandler::new), subscription, Subscription::on_dead);
    Ok(CommandHandler { id: config.id, types: config.types, command, on_dead, shown, subscription })
}

fn exit_codes(config: &config::ExitCodes) -> ExitCodes {
    let meanings =
        [(&config.done, Meaning::Done), (&config.bury, Meaning::Bury), (&config.retry, Meaning::Retry)];
    let each =
        meanings.into_iter().flat_map(|(codes, meaning)| codes.iter().map(move |code| (*code, meaning)));
    each.fold(ExitCodes::default(), |codes, (code, meaning)| codes.with(code, meaning))
}

/// Where and as whom a handler's commands run.
struct Surroundings<'c> {
    config: &'c HandlerConfig,
    identity: Option<Identity>,
}

impl<'c> Surroundings<'c> {
    fn of(config: &'c HandlerConfig, path: &Path) -> CliResult<Self> {
        let refuse = |field, reason| HandlersError::Invalid {
            path: path.to_owned(),
            handler: config.id.clone(),
            field,
            reason,
        };
        let (user, group) = (config.user.as_deref(), config.group.as_deref());
        let identity = (user.is_some() || group.is_some()).then(|| Identity::find(user, group)).transpose();
        let identity = identity.map_err(|InvalidIdentity { field, reason }| refuse(field, reason))?;
        let is_root = nix::unistd::geteuid().is_root() && user.is_none();
        if config.nice.is_some_and(|nice| nice < 0) && !is_root {
            return Err(refuse("nice", "only root's commands can have less than 0".to_owned()).into());
        }
        Ok(Surroundings { config, identity })
    }

    /// The command, and how it is shown.
    fn command(&self, run: &Run) -> (Command, String) {
        let (command, shown) = match run {
            Run::Command { program, arguments } => {
                let shown = [std::slice::from_ref(program), arguments].concat().join(" ");
                (Command::argv(program, arguments), shown)
            }
            Run::Shell(line) => (Command::shell(line), line.clone()),
        };
        let command = command.workdir(&self.config.workdir);
        let command = self.config.env.iter().fold(command, |command, (name, value)| command.env(name, value));
        let command = self.config.inherit_env.iter().fold(command, Command::inherit_env);
        let command = match &self.identity {
            Some(identity) => command.run_as(identity.clone()),
            None => command,
        };
        (self.config.nice.filter(|nice| *nice != 0).into_iter().fold(command, Command::nice), shown)
    }
}

fn with_defaults(subscription: Subscription, args: &Args) -> Subscription {
    let subscription = given(args.timeout, subscription, Subscription::timeout);
    let subscription = given(args.lease, subscription, Subscription::lease);
    given(args.max_attempts.map(NonZeroU32::get), subscription, Subscription::max_attempts)
}

/// Sets what is given.
fn given<T>(
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
    concurrency: usize,
    #[serde(serialize_with = "as_text")]
    timeout: Duration,
    #[serde(serialize_with = "as_text")]
    lease: Duration,
    max_attempts: u32,
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
            concurrency: limits.concurrency,
            timeout: limits.timeout,
            lease: limits.lease,
            max_attempts: limits.max_attempts,
        }
    }
}

impl Record for HandlerRecord<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::words("HANDLER"),
        Column::words("TYPES").folds(2, "types"),
        Column::number("AT ONCE"),
        Column::number("TIMEOUT").folds(1, "timeout"),
        Column::number("LEASE").folds(0, "lease"),
        Column::number("ATTEMPTS"),
        Column::free_text("COMMAND").folds(3, ""),
    ];
    const FIELDS: &'static [&'static str] =
        &["handler", "types", "command", "concurrency", "timeout", "lease", "maxAttempts"];

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
        ]
    }

    fn cells(&self, _times: &Times) -> Vec<Cell> {
        let [handler, types, command, concurrency, timeout, lease, attempts] =
            <[String; 7]>::try_from(self.values()).unwrap_or_default();
        [handler, types, concurrency, timeout, lease, attempts, command].into_iter().map(Cell::new).collect()
    }
}
