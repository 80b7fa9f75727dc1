//! `completions`: what a shell needs to complete this command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::app::Cli;
use crate::cli::context::Context;
use crate::cli::docs::Docs;
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl completions bash > ~/.local/share/bash-completion/completions/relayctl",
            "Install them for bash.",
        ),
        ("relayctl completions zsh > ~/.zfunc/_relayctl", "Install them for zsh, with ~/.zfunc in fpath."),
        ("relayctl completions fish > ~/.config/fish/completions/relayctl.fish", "Install them for fish."),
    ],
    exits: &[Exit::Failed],
};

/// Print the completions of a shell
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs `completions`.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "relayctl", &mut script);
    context.ui().print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
