//! `man`: manual pages, made from the same definitions as the help.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::app::{Cli, docs_of};
use crate::cli::context::Context;
use crate::cli::docs::Docs;
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl man | man -l -", "Read the main page."),
        ("relayctl man /usr/local/share/man/man1", "Install a page for every command."),
    ],
    exits: &[Exit::Failed],
};

/// Print a manual page, or write all of them
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write one page for each command into this directory, which is created if need be
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Runs `man`.
///
/// # Errors
/// When standard output or the files cannot be written.
pub fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    let command = built();
    match &args.directory {
        None => context.ui().print(&page(&command))?,
        Some(directory) => {
            let count = write_all(&command, directory)
                .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
            context.ui().note(&format!("wrote {count} manual pages to {}", directory.display()));
        }
    }
    Ok(Exit::Done)
}

/// The command line with the names of all pages worked out.
fn built() -> clap::Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

fn write_all(command: &clap::Command, directory: &Path) -> io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let mut count = 1;
    std::fs::write(directory.join(Man::new(command.clone()).get_filename()), page(command))?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        count += write_all(subcommand, directory)?;
    }
    Ok(count)
}

/// The page of one command. Its date is left out, so that the same version always makes the same page.
fn page(command: &clap::Command) -> String {
    let man = Man::new(command.clone()).source(format!("relayctl {}", env!("CARGO_PKG_VERSION")));
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = render(&man, command, &mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    match text.strip_prefix(PREAMBLE) {
        Some(rest) => PREAMBLE.to_owned() + &rest.replace(PREAMBLE, ""),
        None => text.into_owned(),
    }
}

/// What each section comes with, and a page needs once.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

fn render(man: &Man, command: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(page)?;
    man.render_name_section(page)?;
    synopsis(command).to_writer(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    let docs = docs_of(command.get_display_name().unwrap_or_else(|| command.get_name()));
    examples(docs).to_writer(page)?;
    exit_status(docs).to_writer(page)
}

/// The usage line of the help. A list of all options would say less.
fn synopsis(command: &clap::Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for line in usage.lines() {
        roff.text([bold(line.trim())]).control("br", []);
    }
    roff
}

fn examples(docs: &Docs) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (command, meaning) in docs.examples {
        roff.control("TP", []).text([bold(*command)]).text([roman(*meaning)]);
    }
    roff
}

fn exit_status(docs: &Docs) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for exit in docs.exits() {
        roff.control("TP", []).text([bold(exit.code().to_string())]).text([roman(exit.meaning())]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(command: &clap::Command, check: &mut dyn FnMut(&clap::Command)) {
        check(command);
        command.get_subcommands().for_each(|subcommand| visit(subcommand, check));
    }

    #[test]
    fn every_page_has_examples_and_exit_status() {
        visit(&built(), &mut |command| {
            let page = page(command);
            for section in [".SH NAME", ".SH SYNOPSIS", ".SH EXAMPLES\n.TP", ".SH \"EXIT STATUS\""] {
                assert!(page.contains(section), "{section} on the page of {}:\n{page}", command.get_name());
            }
        });
    }

    #[test]
    fn a_page_has_one_preamble() {
        assert_eq!(page(&built()).matches(".ds Aq \\(aq").count(), 1);
    }

    #[test]
    fn help_and_pages_tell_the_same() {
        visit(&built(), &mut |command| {
            let name = command.get_display_name().unwrap_or_else(|| command.get_name());
            let help = command.get_after_long_help().map(ToString::to_string);
            assert_eq!(help, Some(docs_of(name).after_help()), "{name}");
        });
    }
}
