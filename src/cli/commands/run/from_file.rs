//! From an entry of the handlers file to what the worker subscribes to.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Args;
use super::handlers::{CommandHandler, given, with_defaults};
use super::subscribed::Subscribed;
use crate::cli::error::CliResult;
use crate::config::handlers::{self as config, BreakerConfig, HandlerConfig, HandlersError, Mode, Run};
use crate::dispatch::{BreakerPolicy, Subscription};
use crate::handler::lines::ChildNote;
use crate::handler::{
    BatchHandler, BatchLimits, Command, ExitCodes, Identity, InvalidIdentity, LinesHandler, Meaning,
    OperationRules, ShellHandler, ShellTransaction, Stdin,
};

/// A handlers file, and what else a handler of it is made of.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Where it was read from.
    pub(super) path: &'a Path,
    pub(super) args: &'a Args,
    /// Whom events are for.
    pub(super) subscribed: &'a Subscribed,
    /// Who is told of what children have to say that stay.
    pub(super) notes: &'a mpsc::Sender<ChildNote>,
}

impl Source<'_> {
    /// A handler of the file.
    ///
    /// # Errors
    /// When its commands cannot be run as the file wants it here and by this user.
    pub(super) fn read(self, config: &HandlerConfig) -> CliResult<CommandHandler> {
        let surroundings = Surroundings::of(config, self.path)?;
        let (command, shown) = surroundings.command(&config.run);
        let on_dead = config.on_dead.as_ref().map(|run| surroundings.command(run).0);
        let subscription = with_defaults(self.subscription(config, command.clone()), self.args);
        let subscription = limited(subscription, config);
        let subscription = given(on_dead.clone().map(ShellHandler::new), subscription, Subscription::on_dead);
        let HandlerConfig { id, types, writes, mode, batch, .. } = config.clone();
        Ok(CommandHandler { id, types, command, on_dead, writes, shown, mode, batch, subscription })
    }

    /// The handler with its work, which is of one kind alone: the file refuses any mixture.
    fn subscription(self, config: &HandlerConfig, command: Command) -> Subscription {
        let (id, notes) = (&*config.id, self.notes.clone());
        let limits = config.batch.map(|size| BatchLimits { size, at_once: config.concurrency.unwrap_or(1) });
        match (config.mode, limits, &config.writes) {
            (Mode::Process, None, None) => Subscription::new(id, shell_handler(config, command)),
            (Mode::Process, None, Some(writes)) => {
                let work = shell_handler(config, command);
                Subscription::preparing(id, ShellTransaction::new(work, self.rules(writes.clone())))
            }
            (Mode::Process, Some(limits), _) => {
                let work = BatchHandler::new(command, limits).exit_codes(exit_codes(&config.exit_codes));
                Subscription::new(id, work.notes(notes))
            }
            (Mode::Lines, None, _) => Subscription::new(id, LinesHandler::new(command).notes(notes)),
            (Mode::Lines, Some(limits), _) => {
                Subscription::new(id, LinesHandler::in_batches(command, limits).notes(notes))
            }
        }
    }

    /// A transactional handler's events are for whom the file says by then, unless they say so themselves.
    fn rules(self, writes: Vec<String>) -> OperationRules {
        let subscribed = self.subscribed.clone();
        OperationRules::new(writes, Arc::new(move |event_type: &str| subscribed.subscribers(event_type)))
    }
}

fn shell_handler(config: &HandlerConfig, command: Command) -> ShellHandler {
    let stdin = match &config.stdin {
        config::Stdin::Json => Stdin::Json,
        config::Stdin::Payload => Stdin::Payload,
        config::Stdin::CloudEvents { source } => Stdin::CloudEvents { source: source.clone() },
    };
    ShellHandler::new(command).stdin(stdin).exit_codes(exit_codes(&config.exit_codes))
}

/// The limits that the file gives.
fn limited(subscription: Subscription, config: &HandlerConfig) -> Subscription {
    let subscription = given(deliveries_at_once(config), subscription, Subscription::concurrency);
    let subscription = given(config.timeout, subscription, Subscription::timeout);
    let subscription = given(config.lease, subscription, Subscription::lease);
    let subscription = given(config.kill_after, subscription, Subscription::kill_after);
    let subscription = given(config.max_attempts, subscription, Subscription::max_attempts);
    let subscription = given(config.retry.clone(), subscription, Subscription::retry);
    let subscription = given(config.rate, subscription, Subscription::rate);
    let breaker = config.breaker.map(breaker_policy);
    given(breaker, subscription, |one, policy| one.breaker(policy))
}

/// `concurrency` is that of processes, each of which has a batch.
fn deliveries_at_once(config: &HandlerConfig) -> Option<usize> {
    match config.batch {
        Some(size) => Some(config.concurrency.unwrap_or(1).saturating_mul(size)),
        None => config.concurrency,
    }
}

/// A breaker whose pause alone is given rests no shorter than that later on, either.
fn breaker_policy(config: BreakerConfig) -> Option<BreakerPolicy> {
    let BreakerConfig::On { failures, pause, max } = config else { return None };
    let default = BreakerPolicy::default();
    let pause = pause.unwrap_or(default.pause);
    let failures = failures.unwrap_or(default.failures);
    Some(BreakerPolicy { failures, pause, max: max.unwrap_or(default.max.max(pause)) })
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
