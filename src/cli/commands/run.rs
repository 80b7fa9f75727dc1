//! `run`: a worker that hands deliveries to commands.

mod audience;
mod calm;
mod from_file;
pub mod guard;
mod handlers;
mod init;
mod reload;
mod signals;
mod strangers;
mod subscribed;
mod supervisor;
mod tally;
#[cfg(test)]
mod testing;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::cli::args::values::{address, duration, name};
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::log::{Log, LogFormat};
use crate::dispatch::{Counts, DispatchEvent, DispatchOptions, Dispatcher, Signals, StopWhen};
use crate::handler::Guard;
use crate::handler::lines::ChildNote;
use crate::model::TypePattern;
use crate::monitor::{Monitor, Server};
use crate::store::{Store, StoreError};

use audience::Audience;
use handlers::{Handlers, NOTES_QUEUE};
use reload::Reloader;
use strangers::Strangers;
use subscribed::Subscribed;
use supervisor::pat_watchdog;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl run projector -- ./project.sh", "Hand the deliveries of one handler to a command."),
        (
            "relayctl run --handler 'mailer=./mail.sh' --handler 'audit=cat >> audit.jsonl' --concurrency 4",
            "Run several handlers, four deliveries at a time.",
        ),
        (
            "relayctl run --handlers handlers.toml --log-format json",
            "Run what a file describes, as a service.",
        ),
        (
            "relayctl run --handlers handlers.toml --check",
            "Check the file and its commands, and run nothing.",
        ),
        (
            "relayctl run -q --once projector -- ./project.sh",
            "From cron: work off what is due, and tell troubles.",
        ),
    ],
    exits: BULK_EXITS,
};

/// How long a worker waits for a server once it runs: longer than a failover takes.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many events may wait to be logged.
const LOG_QUEUE: usize = 256;

/// Be a worker: hand deliveries to commands
///
/// The command gets the event as one line of JSON on stdin, and small facts in its environment (RELAY_EVENT_ID,
/// RELAY_EVENT_TYPE, RELAY_KEY, RELAY_ATTEMPT, ...). Nothing of an event is ever put into a command line. Of the
/// worker's environment it gets PATH, HOME, USER, LANG, LC_*, TZ and TMPDIR, and never the store's URL.
///
/// Its exit status decides: 0 is done; 65 and 78 mean that no attempt can succeed, and the delivery is dead at once;
/// any other is tried again, later and later, until the attempts are used up. The end of stderr is kept as the reason.
/// With 75, the last line of stdout may say when to try again: "retry-after: 30s", or "snooze: 10m", which is no failure and
/// costs no attempt. A handlers file can give other meanings to exit codes, another form to stdin, and a command for what dies.
///
/// What the command leaves running in the background is ended with it.
///
/// A handler of a file may keep its command (mode = "lines"): it gets line after line and answers each with one of its own,
/// which is many times as fast. It may also take several events at a time (batch = 100). See examples/handlers/lines.toml.
///
/// With --once, --until-empty or --max-deliveries the exit status is 3 when a delivery died, so that a script can tell.
///
/// A handler of a file may be transactional: each line that its command writes to stdout is an operation, an event to
/// publish or a write to a collection, and all of them are done in one transaction with the completion, or none is.
///
/// A worker takes the deliveries that name one of its handlers, of whatever type. Leases are renewed while a command
/// runs; when a worker dies, another one takes over as soon as they have run out. Until then the commands of a worker that was
/// killed, or stopped for longer than a lease lasts, are killed by its guard, a second process that runs beside it.
///
/// A handler that fails 10 times in a row is left alone by this worker for 30s, and longer each time that a single delivery
/// tries in vain, up to 10m; the handlers file can say otherwise, and set a rate. What `relayctl pause` paused is not
/// taken at all. --once ends without waiting for either; --until-empty waits.
///
/// Leases, retries and the log go by the clock of the store's server. That this host's own clock differs is warned about, and
/// changes nothing.
///
/// SIGTERM or SIGINT: take on nothing new, let commands end by themselves for as long as --grace says, then stop them.
/// A second signal stops them at once. Deliveries whose command was stopped are given back without losing an attempt.
///
/// SIGHUP: read the handlers file again and go on with what it says. What runs ends as it began. A file that cannot be used is
/// refused, and the log says why. Without a file, and once the worker drains, it is ignored.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["handler", "inline", "file"]))]
pub struct Args {
    /// The handler whose deliveries go to the command behind --
    #[arg(value_name = "HANDLER", value_parser = name, requires = "argv")]
    handler: Option<String>,

    /// The command and its arguments, which no shell looks at
    #[arg(value_name = "ARGV", last = true, requires = "handler")]
    argv: Vec<OsString>,

    /// A handler and the line that `sh -c` runs for it; may be given more than once
    #[arg(long = "handler", value_name = "ID=SHELL", value_parser = inline)]
    inline: Vec<(String, String)>,

    /// A file that describes handlers: see examples/handlers/handlers.toml
    #[arg(long = "handlers", value_name = "FILE")]
    file: Option<PathBuf>,

    /// The event types that HANDLER is meant for; may be given more than once
    ///
    /// Deliveries name their handler, and it gets all of them: one of another type was addressed to it all the same. It
    /// runs, and the first of each such type is warned about.
    #[arg(long = "type", value_name = "PATTERN", requires = "handler")]
    types: Vec<TypePattern>,

    /// End when nothing is due any more
    #[arg(long, group = "end")]
    once: bool,

    /// End when nothing of these handlers is unfinished, delayed retries included
    #[arg(long, group = "end")]
    until_empty: bool,

    /// End after this many deliveries
    #[arg(long, value_name = "N", group = "end")]
    max_deliveries: Option<NonZeroU64>,

    /// How many deliveries run at once over all handlers; by default as many as the handlers' own limits allow
    ///
    /// For handlers that are given here, and not in a file, it is also their own limit, which is 1 by default.
    #[arg(long, value_name = "N")]
    concurrency: Option<NonZeroUsize>,

    /// How long one attempt may take; 30s by default
    ///
    /// This and the next two are for handlers that do not say otherwise in their file.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// How long a lease lasts: so long after a worker died, another one takes over at the latest; 60s by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,

    /// After how many attempts a delivery is dead, unless its event says otherwise; 5 by default
    #[arg(long, value_name = "N")]
    max_attempts: Option<NonZeroU32>,

    /// How long commands may go on after the first signal
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    grace: Duration,

    /// The longest pause between two looks for work
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    poll_interval: Duration,

    /// Answer HTTP here: /metrics for Prometheus, /healthz and /readyz; such as 127.0.0.1:9187, or :9187 for all addresses
    ///
    /// Port 0 takes a free one, which the log tells. There is no password and no TLS: choose an address that only those
    /// reach who may know. /healthz is 200 while the worker's loop turns; /readyz is 200 while the store answers and
    /// the worker takes on deliveries; both say in one line why not. During a drain all of them go on answering.
    /// The depth of the queues is read from the store when /metrics is asked for, at most every 15s, and never for more than
    /// a twentieth of the time; until there is an answer, /metrics tells the one before.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    metrics: Option<SocketAddr>,

    /// How the log on standard error is written
    ///
    /// On a terminal, human is one line of numbers with the troubles above it: three of a kind within 10s, and then how
    /// many more there were. With -v, and where standard error is no terminal, each outcome has a line.
    ///
    /// json is an object a line, with time, level, owner (this worker, as host:pid) and event. An outcome is the event
    /// "finished", with outcome (completed, retrying, dead, snoozed, released or lease-lost), deliveryId, eventId, type, handler,
    /// attempt, maxAttempts and elapsedMs; with key and sequence where there is a key; with waitedMs (from when it was
    /// due) and ranMs where its command was started; with retryAt where it is tried again; with kind and error where it
    /// failed. Fields are only ever added.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,

    /// Check the handlers and their commands and list them, without connecting to anything
    #[arg(long)]
    check: bool,
}

fn inline(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((id, line)) if !line.trim().is_empty() => Ok((name(id)?, line.to_owned())),
        _ => Err("write ID=SHELL, such as 'mailer=./mail.sh'".to_owned()),
    }
}

impl Args {
    fn stop_when(&self) -> StopWhen {
        match self.max_deliveries {
            Some(limit) => StopWhen::Deliveries(limit.get()),
            None if self.once => StopWhen::NothingDue,
            None if self.until_empty => StopWhen::NothingUnfinished,
            None => StopWhen::Never,
        }
    }

    fn options(&self, guard: Option<Guard>) -> DispatchOptions {
        DispatchOptions {
            owner: owner(),
            concurrency: self.concurrency.map(NonZeroUsize::get),
            poll_interval: self.poll_interval,
            grace: self.grace,
            stop_when: self.stop_when(),
            guard,
        }
    }
}

/// Who holds the leases: `host:pid`.
fn owner() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    format!("{}:{}", host.as_deref().unwrap_or("unknown"), std::process::id())
}

/// Runs `run`.
///
/// # Errors
/// When the handlers cannot be used, or the store cannot be opened; later, only when the worker was to end by itself
/// and the store keeps failing.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    // One that comes before the worker is there waits for it.
    let hang_ups = signals::hang_ups()?;
    let handlers = Handlers::of(args, &Subscribed::default())?;
    handlers.check_commands()?;
    if args.check {
        return handlers.list(context);
    }
    context.require_writable("run")?;
    if init::is_first_process()
        && let Some(exit) = init::run_worker().await?
    {
        return Ok(exit);
    }
    let signals = signals::listen()?;
    let listener = listen(args).await?;
    let opened = signals.drain.run_until_cancelled(open(context)).await;
    let store = opened.unwrap_or_else(|| Err(CliError::interrupted()))?;
    handlers.check_writes(&*store)?;
    work(context, args, handlers, Doors { store, listener, hang_ups }, signals).await
}

/// What a worker has opened before it begins.
struct Doors {
    store: Arc<dyn Store>,
    /// Where those ask who watch it.
    listener: Option<TcpListener>,
    /// The signals to read the handlers file again.
    hang_ups: Signal,
}

/// Takes the address for those who watch, before anything else begins.
async fn listen(args: &Args) -> CliResult<Option<TcpListener>> {
    let Some(address) = args.metrics else { return Ok(None) };
    let listener = Server::listen(address).await.map_err(|error| {
        CliError::from(anyhow::Error::new(error).context(format!("cannot listen on {address} for --metrics")))
            .with_hint("another worker may have it: choose another port, or port 0 for any free one")
    })?;
    Ok(Some(listener))
}

async fn open(context: &Context) -> CliResult<Arc<dyn Store>> {
    let store = context.patient_store(PATIENCE).await?;
    context.require_schema().await?;
    Ok(store.clone())
}

async fn work(
    context: &Context,
    args: &Args,
    handlers: Handlers,
    doors: Doors,
    signals: Signals,
) -> CliResult<Exit> {
    let Doors { store, listener, hang_ups } = doors;
    let log = Arc::new(log(context, args));
    let ((sender, events), (note_sender, notes)) = (mpsc::channel(LOG_QUEUE), mpsc::channel(NOTES_QUEUE));
    let strangers = Strangers::beyond(handlers.subscribed());
    let reloader = Reloader::new(args, store.clone(), &handlers, note_sender, log.clone());
    let (dispatcher, own_notes) = dispatcher(context, args, handlers, store.clone(), &log)?;
    reloader.listen(own_notes);
    let reloading = reloader.run(dispatcher.handle(), signals.drain.clone(), hang_ups);
    let reloading = AbortOnDropHandle::new(tokio::spawn(reloading));
    let monitor = Arc::new(Monitor::new(dispatcher.pulse(), store, Arc::new(context.clock().clone())));
    let server = serve(listener, &monitor, &log);
    let monitor = server.as_ref().map(|_| monitor);
    let audience = Audience::new(log.clone(), strangers, dispatcher.pulse(), monitor);
    let _patting = pat_watchdog(dispatcher.pulse());
    let mut listening = listen_to(audience, events, log, notes);
    let counts = dispatcher.run(signals.clone(), sender).await;
    drop(reloading);
    while listening.join_next().await.is_some() {}
    if let Some(server) = server {
        server.stop().await;
    }
    let counts = counts.map_err(cannot_go_on)?;
    if signals.stop.is_cancelled() {
        return Ok(Exit::Interrupted);
    }
    Ok(exit_of(args.stop_when(), &counts))
}

/// Standard error can block, as when a terminal is paused: the worker must not.
fn listen_to(
    audience: Audience,
    events: mpsc::Receiver<DispatchEvent>,
    log: Arc<Log>,
    notes: mpsc::Receiver<ChildNote>,
) -> JoinSet<()> {
    let (mut listening, runtime) = (JoinSet::new(), Handle::current());
    listening.spawn_blocking(move || write_notes(&log, notes));
    listening.spawn_blocking(move || audience.listen(events, &runtime));
    listening
}

/// The worker, and what its children have to say.
fn dispatcher(
    context: &Context,
    args: &Args,
    handlers: Handlers,
    store: Arc<dyn Store>,
    log: &Arc<Log>,
) -> CliResult<(Dispatcher, mpsc::Receiver<ChildNote>)> {
    let origin = handlers.origin();
    let (subscriptions, notes) = handlers.into_subscriptions();
    let (clock, options) = (context.clock().clone(), args.options(guard::start(log)));
    let dispatcher = Dispatcher::new(store, Arc::new(clock.clone()), subscriptions, options)
        .map_err(|error| CliError::usage(format!("{origin}{error}")))?;
    Ok((dispatcher.keeping_time(clock), notes))
}

fn log(context: &Context, args: &Args) -> Log {
    let ui = context.ui();
    Log {
        format: args.log_format,
        verbosity: ui.verbosity(),
        has_color: ui.error_has_color(),
        clock: Arc::new(context.clock().clone()),
        owner: owner(),
        status_line: (args.log_format == LogFormat::Human).then(|| ui.status_line()).flatten(),
    }
}

fn cannot_go_on(error: Arc<StoreError>) -> CliError {
    let error = Arc::try_unwrap(error);
    CliError::from(error.unwrap_or_else(|shared| StoreError::new(shared.kind(), shared.to_string())))
}

/// Begins to answer those who watch, and tells where.
fn serve(listener: Option<TcpListener>, monitor: &Arc<Monitor>, log: &Log) -> Option<Server> {
    let listener = listener?;
    if let Ok(address) = listener.local_addr() {
        log.listening(address);
    }
    Some(Server::start(listener, monitor.clone()))
}

fn write_notes(log: &Log, mut notes: mpsc::Receiver<ChildNote>) {
    while let Some(note) = notes.blocking_recv() {
        log.write_note(&note);
    }
}

/// A run that ends by itself belongs to a script, which wants to know whether something needs a person. What is tried
/// again, or went to another worker, does not.
fn exit_of(stop_when: StopWhen, counts: &Counts) -> Exit {
    if stop_when != StopWhen::Never && counts.dead > 0 { Exit::Partial } else { Exit::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_an_id_and_a_line() {
        let pair = |id: &str, line: &str| Ok((id.to_owned(), line.to_owned()));
        assert_eq!(inline("mailer=./mail.sh"), pair("mailer", "./mail.sh"));
        assert_eq!(inline("a=b=c"), pair("a", "b=c"));
        for text in ["mailer", "=x", "mailer=", "mailer= "] {
            assert!(inline(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_script_learns_whether_all_went_well() {
        let counts = Counts { completed: 3, ..Counts::default() };
        assert_eq!(exit_of(StopWhen::NothingDue, &counts), Exit::Done);
        assert_eq!(exit_of(StopWhen::NothingDue, &Counts { retried: 1, ..counts }), Exit::Done);
        assert_eq!(exit_of(StopWhen::Deliveries(4), &Counts { dead: 1, ..counts }), Exit::Partial);
        assert_eq!(exit_of(StopWhen::Never, &Counts { dead: 1, ..counts }), Exit::Done);
    }
}
