//! Examples and exit codes of each command, in the help and on the manual pages.

use std::fmt::Write as _;

use super::exit::Exit;

/// What the help of a command says beyond its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Docs {
    /// What to type, and what it does.
    pub examples: &'static [(&'static str, &'static str)],
    /// The exit codes, besides 0 and 2, which every command has. Where `Unknown` is among them, it stands for 2 too.
    pub exits: &'static [Exit],
}

/// The exits of a command that works on the store.
pub const STORE_EXITS: &[Exit] = &[Exit::Failed, Exit::Unavailable, Exit::Misconfigured, Exit::Interrupted];

/// The exits of a command that changes many things.
pub const BULK_EXITS: &[Exit] =
    &[Exit::Failed, Exit::Partial, Exit::Unavailable, Exit::Misconfigured, Exit::Interrupted];

impl Docs {
    /// All exit codes, in order.
    pub fn exits(&self) -> Vec<Exit> {
        let common: &[Exit] =
            if self.exits.contains(&Exit::Unknown) { &[Exit::Done] } else { &[Exit::Done, Exit::Usage] };
        let mut exits = [self.exits, common].concat();
        exits.sort_unstable();
        exits
    }

    /// The text below the arguments in the long help.
    pub fn after_help(&self) -> String {
        let mut text = String::from("Examples:\n");
        for (command, meaning) in self.examples {
            let _ = writeln!(text, "  {command}\n      {meaning}");
        }
        text.push_str("\nExit status:\n");
        for exit in self.exits() {
            let _ = writeln!(text, "  {:>3}  {}", exit.code(), exit.meaning());
        }
        text
    }
}
