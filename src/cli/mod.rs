//! The only room that prints, prompts or exits.

mod app;
mod args;
mod commands;
mod context;
mod docs;
mod error;
mod exit;
mod given;
mod interrupt;
mod log;
mod render;
mod ui;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::config::{self, ProcessEnvironment, redact};

use app::{Cli, Command};
use commands::run::guard;
use context::Context;
use error::CliResult;
use exit::Exit;
use given::Given;
use ui::Ui;

/// Runs the command that the arguments of this process name, and says how it ended.
pub fn main() -> ExitCode {
    if guard::is_asked_for() {
        return guard::stand();
    }
    run(std::env::args_os()).into()
}

fn run(arguments: impl Iterator<Item = OsString>) -> Exit {
    let arguments: Vec<OsString> = arguments.collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && is_check(&arguments) => {
            let _ = explain(&error);
            return Exit::Unknown;
        }
        Err(error) => return explain(&error),
    };
    let exit = execute(&cli);
    if matches!(cli.command, Command::Check(_)) { exit.for_monitoring() } else { exit }
}

/// Whether a command line that is not understood is one of `check`, whose exit codes have other meanings.
fn is_check(arguments: &[OsString]) -> bool {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(arguments);
    matches.is_ok_and(|matches| matches.subcommand_name() == Some("check"))
}

fn execute(cli: &Cli) -> Exit {
    let early_ui = Ui::new(cli.global.ui_options(cli.global.output.unwrap_or_default()));
    let settings = match config::resolve(cli.global.flags(), &ProcessEnvironment, config::config_path()) {
        Ok(settings) => settings,
        Err(error) => return end(&early_ui, Err(error.into())),
    };
    let ui = Ui::new(cli.global.ui_options(settings.output.value));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = anyhow::Error::new(error).context("cannot start the runtime");
            return end(&ui, Err(error.into()));
        }
    };
    let given = Given::of(&cli.global);
    let context = Context::new(ui, settings, given, cli.global.connect_timeout);
    let result = runtime.block_on(async {
        let result = cli.command.run(&context).await;
        context.close().await;
        result
    });
    runtime.shutdown_background();
    end(context.ui(), result)
}

/// Help and version go to standard output, a slip on the command line to standard error.
fn explain(error: &clap::Error) -> Exit {
    let text = error.render();
    if error.use_stderr() {
        let shown = if ui::ColorWhen::Auto.applies_to(&std::io::stderr()) {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        let _ = write!(std::io::stderr(), "{}", redact(&shown));
        return Exit::Usage;
    }
    let shown = if ui::ColorWhen::Auto.applies_to(&std::io::stdout()) {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    let ui = Ui::new(ui::UiOptions::default());
    end(&ui, ui.print(&shown).map(|()| Exit::Done))
}

fn end(ui: &Ui, result: CliResult<Exit>) -> Exit {
    result.unwrap_or_else(|error| {
        ui.report(&error);
        error.exit()
    })
}
