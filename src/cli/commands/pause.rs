//! `pause`: nothing of a handler is claimed any more, by the whole fleet.

use serde::Serialize;

use super::bulk::{Told, tell};
use crate::cli::args::values::name;
use crate::cli::args::when::UntilArg;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::text::visible;
use crate::cli::render::time::Times;
use crate::model::Pause;
use crate::ops::{self, PauseReport};

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl pause mailer --reason 'the mail server is down'",
            "Stop mails until somebody resumes them.",
        ),
        ("relayctl pause mailer --until 30m", "Stop them for half an hour."),
        ("relayctl pause mailer --until 2026-03-01T06:00:00Z", "Stop them until six."),
        ("relayctl stats", "See what is paused, since when, by whom and why."),
    ],
    exits: STORE_EXITS,
};

/// Pause a handler for the whole fleet
///
/// Every relayctl worker obeys within a second, or within its --poll-interval if that is longer: what runs goes on, what
/// was claimed ahead is handed back, and nothing more of the handler is claimed. Deliveries that are published meanwhile
/// wait. Workers of other implementations take no notice.
///
/// Pausing a handler that is paused replaces the end and the reason; saying the same again changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The handler
    #[arg(value_name = "HANDLER", value_parser = name)]
    handler: String,

    /// When it resumes by itself: RFC 3339 with an offset, or after how long (30m, 2h, 7d); otherwise never
    #[arg(long, value_name = "TIME", value_parser = UntilArg::parse)]
    until: Option<UntilArg>,

    /// Why; shown to whoever looks at the handler
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Change nothing, and tell what would change
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// The report for programs.
#[derive(Serialize)]
struct Document<'a> {
    changed: bool,
    #[serde(flatten)]
    pause: &'a Pause,
}

/// Runs `pause`.
///
/// # Errors
/// When the end has passed already, and those of the store.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    context.require_writable("pause")?;
    context.require_schema().await?;
    let wanted = wanted(context, args)?;
    let store = context.store().await?;
    let report = ops::pause(store.as_ref(), wanted.clone(), args.dry_run).await?;
    let pause = report.now.as_ref().unwrap_or(&wanted);
    let sentence = sentence(&report, pause, args.dry_run, &context.times());
    let told = Told { command: "pause", dry_run: args.dry_run, reason: None, sentence };
    tell(context, &told, &Document { changed: report.changed, pause }, None)?;
    if !ops::is_known(store.as_ref(), &args.handler).await? {
        let (handler, location) = (visible(&args.handler), store.location());
        context.ui().warn(&format!("there is no delivery of a handler `{handler}` in {location}, so far"));
    }
    Ok(Exit::Done)
}

fn wanted(context: &Context, args: &Args) -> CliResult<Pause> {
    let now = context.now();
    let paused_until = args.until.map(|until| until.resolve(now));
    if let Some(until) = paused_until.filter(|until| *until <= now) {
        return Err(CliError::usage(format!("--until {until} has passed already")).with_hint(
            "a duration is counted from now, such as --until 30m; without --until it lasts until resume",
        ));
    }
    let (handler, reason) = (args.handler.clone(), args.reason.clone());
    Ok(Pause { handler, paused_at: now, paused_until, reason, by: author() })
}

/// Who gives the command: `user@host`.
fn author() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.name);
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    format!("{}@{}", user.as_deref().unwrap_or("unknown"), host.as_deref().unwrap_or("unknown"))
}

fn sentence(report: &PauseReport, pause: &Pause, dry_run: bool, times: &Times) -> String {
    let handler = visible(&pause.handler);
    let until = match pause.paused_until {
        Some(until) => format!("until {until}"),
        None => "until it is resumed".to_owned(),
    };
    let since = || times.show(pause.paused_at);
    match (&report.before, report.changed, dry_run) {
        (_, false, _) => format!("{handler} is paused already, since {}, {until}; nothing changed.", since()),
        (None, true, false) => format!("Paused {handler} {until}."),
        (None, true, true) => format!("Would pause {handler} {until}."),
        (Some(_), true, false) => format!("{handler} is paused, since {}, and now {until}.", since()),
        (Some(_), true, true) => format!("{handler} is paused, since {}, and would be {until}.", since()),
    }
}

/// What holds a handler up, in words: `since 3m ago, until in 27m, by ana@desk: the shop is closed`.
pub fn described(pause: &Pause, times: &Times) -> String {
    let until = pause.paused_until.map(|until| format!(", until {}", times.show(until))).unwrap_or_default();
    let reason = pause.reason.as_deref().map(|reason| format!(": {}", visible(reason))).unwrap_or_default();
    format!("since {}{until}, by {}{reason}", times.show(pause.paused_at), visible(&pause.by))
}
