//! The command line as a whole: global options, and one variant for each command.

use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};

use super::args::values::duration;
use super::commands::{
    backfill, bury, check, completions, errors, explain, export, import, keys, list, man, pause, publish,
    purge, recover, requeue, resume, run, setup, show, stats,
};
use super::context::Context;
use super::docs::Docs;
use super::error::CliResult;
use super::exit::Exit;
use super::interrupt::Interrupts;
use super::ui::{ColorWhen, UiOptions, Verbosity};
use crate::config::{Flags, OutputFormat, Secret, TimeStyle};

/// The examples and exit codes of the whole.
pub const DOCS: Docs = Docs {
    examples: &[
        ("export RELAYCTL_STORE='mongodb://db1,db2,db3/shop?replicaSet=rs0'", "Say where the store is."),
        ("relayctl stats", "See how much is waiting, running, done and dead."),
        ("relayctl list --status dead --handler projector", "See what failed for good."),
        ("relayctl requeue 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a", "Run a dead delivery again."),
        ("relayctl run projector --type 'order.*' -- ./project.sh", "Hand events to a command."),
    ],
    exits: super::docs::BULK_EXITS,
};

/// The operator's command line and worker for a transactional outbox on MongoDB.
///
/// A service writes an event in the same transaction as its business data. Each event becomes one delivery per
/// handler. relayctl sets up and checks the store, shows what is waiting, running, done and dead, repairs it, and
/// can itself be the worker that hands deliveries to shell commands.
#[derive(Debug, Parser)]
#[command(
    name = "relayctl",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_long_help = DOCS.after_help()
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes, before or after its name.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME
    ///
    /// Other users of this machine can see the arguments of a command. A URL with a password belongs into
    /// RELAYCTL_STORE or into a profile, which can also take it from a file (store_file) or a command (store_command).
    /// [environment: RELAYCTL_STORE]
    #[arg(long, value_name = "URL", global = true, value_parser = secret)]
    pub store: Option<Secret>,

    /// The database; by default the one in the URL [environment: RELAYCTL_DATABASE]
    #[arg(long, value_name = "NAME", global = true)]
    pub database: Option<String>,

    /// What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]
    #[arg(long, value_name = "PREFIX", global = true)]
    pub prefix: Option<String>,

    /// The profile to use from the configuration file [environment: RELAYCTL_PROFILE]
    ///
    /// The file is $XDG_CONFIG_HOME/relayctl/config.toml, by default ~/.config/relayctl/config.toml. A flag wins over
    /// this profile, this profile over the environment, and the environment over a profile that is not named here.
    #[arg(long, value_name = "NAME", global = true)]
    pub profile: Option<String>,

    /// How data is written to standard output; by default as a table
    #[arg(short, long, value_name = "FORMAT", global = true, value_enum, hide_possible_values = false)]
    pub output: Option<OutputFormat>,

    /// Say nothing but errors and warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say more about how things are done
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// How times are shown in tables; by default relative to now
    #[arg(long, value_name = "STYLE", global = true, value_enum)]
    pub time: Option<TimeStyle>,

    /// When to use colours
    #[arg(long, value_name = "WHEN", global = true, value_enum, default_value_t)]
    pub color: ColorWhen,

    /// How long to look for the server
    #[arg(long, value_name = "DURATION", global = true, default_value = "5s", value_parser = duration)]
    pub connect_timeout: Duration,

    /// Answer every question with yes
    #[arg(short, long, global = true)]
    pub yes: bool,
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

impl GlobalArgs {
    /// What the flags say about settings.
    pub fn flags(&self) -> Flags {
        Flags {
            store: self.store.clone(),
            database: self.database.clone(),
            prefix: self.prefix.clone(),
            profile: self.profile.clone(),
            output: self.output,
            time: self.time,
        }
    }

    /// What the flags say about the terminal.
    pub fn ui_options(&self, format: OutputFormat) -> UiOptions {
        let verbosity = match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, _) => Verbosity::Verbose,
        };
        UiOptions { color: self.color, verbosity, format, assume_yes: self.yes }
    }
}

/// The commands. Each has a file of its own, with its arguments and what it does.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "a process has one of these")]
pub enum Command {
    #[command(after_long_help = setup::DOCS.after_help())]
    Setup(setup::Args),
    #[command(after_long_help = publish::DOCS.after_help())]
    Publish(publish::Args),
    #[command(after_long_help = list::DOCS.after_help())]
    List(list::Args),
    #[command(after_long_help = show::DOCS.after_help())]
    Show(show::Args),
    #[command(after_long_help = explain::DOCS.after_help())]
    Explain(explain::Args),
    #[command(after_long_help = errors::DOCS.after_help())]
    Errors(errors::Args),
    #[command(after_long_help = stats::DOCS.after_help())]
    Stats(stats::Args),
    #[command(after_long_help = check::DOCS.after_help())]
    Check(check::Args),
    #[command(after_long_help = requeue::DOCS.after_help())]
    Requeue(requeue::Args),
    #[command(after_long_help = bury::DOCS.after_help())]
    Bury(bury::Args),
    #[command(after_long_help = purge::DOCS.after_help())]
    Purge(purge::Args),
    #[command(after_long_help = keys::DOCS.after_help())]
    Keys(keys::Args),
    #[command(after_long_help = recover::DOCS.after_help())]
    Recover(recover::Args),
    #[command(after_long_help = export::DOCS.after_help())]
    Export(export::Args),
    #[command(after_long_help = import::DOCS.after_help())]
    Import(import::Args),
    #[command(after_long_help = backfill::DOCS.after_help())]
    Backfill(backfill::Args),
    #[command(after_long_help = pause::DOCS.after_help())]
    Pause(pause::Args),
    #[command(after_long_help = resume::DOCS.after_help())]
    Resume(resume::Args),
    #[command(after_long_help = run::DOCS.after_help())]
    Run(run::Args),
    #[command(after_long_help = completions::DOCS.after_help())]
    Completions(completions::Args),
    #[command(after_long_help = man::DOCS.after_help())]
    Man(man::Args),
}

impl Command {
    /// Runs the command.
    ///
    /// Those that only read have nothing to tell when a signal comes, and end at once. Those that change many things
    /// stop between two steps and report. `run` has its own way.
    pub async fn run(&self, context: &Context) -> CliResult<Exit> {
        if let Command::Run(args) = self {
            return run::run(context, args).await;
        }
        let interrupts = Interrupts::listen()?;
        let stop = interrupts.requested();
        match self {
            Command::Run(args) => run::run(context, args).await,
            Command::Setup(args) => interrupts.stops(setup::run(context, args)).await,
            Command::List(args) => {
                interrupts.stops_when_insisted(list::run(context, args, &interrupts)).await
            }
            Command::Show(args) => interrupts.stops(show::run(context, args)).await,
            Command::Explain(args) => interrupts.stops(explain::run(context, args)).await,
            Command::Errors(args) => interrupts.stops(errors::run(context, args)).await,
            Command::Stats(args) => interrupts.stops(stats::run(context, args)).await,
            Command::Check(args) => interrupts.stops(check::run(context, args)).await,
            Command::Completions(args) => completions::run(context, args),
            Command::Man(args) => man::run(context, args),
            Command::Publish(args) => interrupts.stops_when_insisted(publish::run(context, args, stop)).await,
            Command::Requeue(args) => interrupts.stops_when_insisted(requeue::run(context, args, stop)).await,
            Command::Bury(args) => interrupts.stops_when_insisted(bury::run(context, args, stop)).await,
            Command::Purge(args) => interrupts.stops_when_insisted(purge::run(context, args, stop)).await,
            Command::Keys(args) => interrupts.stops_when_insisted(keys::run(context, args, stop)).await,
            Command::Recover(args) => interrupts.stops(recover::run(context, args)).await,
            Command::Export(args) => {
                interrupts.stops_when_insisted(export::run(context, args, &interrupts)).await
            }
            Command::Import(args) => interrupts.stops_when_insisted(import::run(context, args, stop)).await,
            Command::Backfill(args) => {
                interrupts.stops_when_insisted(backfill::run(context, args, stop)).await
            }
            Command::Pause(args) => interrupts.stops(pause::run(context, args)).await,
            Command::Resume(args) => interrupts.stops(resume::run(context, args)).await,
        }
    }
}

/// The examples and exit codes of the command with this name, such as `relayctl-list`; those of a subcommand are its
/// command's.
pub fn docs_of(name: &str) -> &'static Docs {
    match name.split('-').nth(1) {
        Some("setup") => &setup::DOCS,
        Some("publish") => &publish::DOCS,
        Some("list") => &list::DOCS,
        Some("show") => &show::DOCS,
        Some("explain") => &explain::DOCS,
        Some("errors") => &errors::DOCS,
        Some("stats") => &stats::DOCS,
        Some("check") => &check::DOCS,
        Some("requeue") => &requeue::DOCS,
        Some("bury") => &bury::DOCS,
        Some("purge") => &purge::DOCS,
        Some("keys") => &keys::DOCS,
        Some("recover") => &recover::DOCS,
        Some("export") => &export::DOCS,
        Some("import") => &import::DOCS,
        Some("backfill") => &backfill::DOCS,
        Some("pause") => &pause::DOCS,
        Some("resume") => &resume::DOCS,
        Some("run") => &run::DOCS,
        Some("completions") => &completions::DOCS,
        Some("man") => &man::DOCS,
        _ => &DOCS,
    }
}
