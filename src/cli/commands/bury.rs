//! `bury`: pending and processing deliveries given up.

use tokio_util::sync::CancellationToken;

use super::bulk::Verb;
use super::selection::{self, Command, SelectionArgs};
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::store::Repair;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl bury 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a", "Give up one delivery."),
        (
            "relayctl bury --key order-17 --reason 'order was cancelled'",
            "Give up what waits for a key, and say why.",
        ),
        ("relayctl bury --type 'legacy.*' --until 30d -n", "See what a bury would change."),
    ],
    exits: BULK_EXITS,
};

/// Give up pending and processing deliveries
///
/// A buried delivery is dead: no worker takes it, and it does not block its key any more. A worker that is running it
/// finds its lease lost, and what it reports is not recorded. `relayctl requeue` brings it back.
///
/// A filter selects what is pending or processing when the command is given; --status narrows that to one of the two.
/// The command says how many it is about and asks; without a terminal, or when the output is meant for a program, it
/// needs --yes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Why; recorded as the last error of each delivery; by default it says who buried it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    selection: SelectionArgs,
}

/// Runs `bury`.
///
/// # Errors
/// Those that come before anything was changed.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    let reason = args.reason.clone().unwrap_or_else(|| format!("buried by {}", operator()));
    let command_at = |now| Command {
        name: "bury",
        verb: Verb { infinitive: "bury", past: "buried" },
        repair: Repair::Bury { reason: reason.clone() },
        reason: Some(&reason),
        now,
    };
    selection::run(context, &args.selection, command_at, stop).await
}

/// Who gives the command: `user@host`, as far as the system knows.
fn operator() -> String {
    let uid = nix::unistd::getuid();
    let user =
        nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    match host {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}
