//! SIGHUP: the handlers file is read again, and the worker goes on with what it says.
//!
//! Everything that a start checks is checked again, in a thread of its own, since a file can be slow. What the worker has
//! stays until all of it is well. Signals that come meanwhile are one: the file is read once more behind it.

use std::sync::Arc;

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::Args;
use super::handlers::Handlers;
use super::subscribed::Subscribed;
use crate::cli::error::{CliError, CliResult};
use crate::cli::log::{Log, Unchanged};
use crate::config::handlers::HandlersFile;
use crate::dispatch::{DispatcherHandle, ResubscribeError};
use crate::handler::lines::ChildNote;
use crate::store::Store;

/// Reads the handlers file again whenever it is told to.
pub(super) struct Reloader {
    args: Args,
    store: Arc<dyn Store>,
    /// What the worker's handlers are made of; `None` where the command line gave them.
    file: Option<HandlersFile>,
    subscribed: Subscribed,
    notes: mpsc::Sender<ChildNote>,
    log: Arc<Log>,
}

/// A worker, and when it takes on nothing new any more.
struct Worker {
    handle: DispatcherHandle,
    draining: CancellationToken,
}

const NO_FILE: Unchanged = Unchanged::Ignored("there is no handlers file to read again");

const ENDING: Unchanged = Unchanged::Ignored("the worker is ending");

impl Reloader {
    /// For a worker that begins with these handlers. What children have to say goes to `notes`.
    pub(super) fn new(
        args: &Args,
        store: Arc<dyn Store>,
        handlers: &Handlers,
        notes: mpsc::Sender<ChildNote>,
        log: Arc<Log>,
    ) -> Self {
        let subscribed = handlers.subscribed();
        subscribed.replace(handlers.types());
        Reloader { args: args.clone(), store, file: handlers.file(), subscribed, notes, log }
    }

    /// Obeys until it is dropped.
    pub(super) async fn run(
        mut self,
        handle: DispatcherHandle,
        draining: CancellationToken,
        mut hang_ups: Signal,
    ) {
        let worker = Worker { handle, draining };
        while hang_ups.recv().await.is_some() {
            if let Err(unchanged) = self.reload(&worker).await {
                let log = self.log.clone();
                // Standard error can block.
                let _ = spawn_blocking(move || log.write_unchanged(&unchanged)).await;
            }
        }
    }

    /// Passes on what the children of these handlers have to say.
    pub(super) fn listen(&self, mut notes: mpsc::Receiver<ChildNote>) {
        let sender = self.notes.clone();
        tokio::spawn(async move {
            while let Some(note) = notes.recv().await {
                let _ = sender.send(note).await;
            }
        });
    }

    async fn reload(&mut self, worker: &Worker) -> Result<(), Unchanged> {
        let Some(file) = &self.file else { return Err(NO_FILE) };
        let read = worker.draining.run_until_cancelled(self.read()).await.ok_or(ENDING)?;
        let mut next = read.map_err(|error| Unchanged::Refused(words_for(&error)))?;
        let kept = next.leave_out(file);
        self.put_in_force(worker, next, kept).await
    }

    /// The handlers of the file, with every check that a start makes. A file that cannot be read to its end takes a thread
    /// with it, and nothing else.
    async fn read(&self) -> CliResult<Handlers> {
        let (args, store) = (self.args.clone(), self.store.clone());
        let subscribed = self.subscribed.clone();
        let reading = spawn_blocking(move || {
            let handlers = Handlers::of(&args, &subscribed)?;
            handlers.check_commands()?;
            handlers.check_writes(&*store)?;
            Ok(handlers)
        });
        reading.await.unwrap_or_else(|error| Err(CliError::failed(error.to_string())))
    }

    /// Gives the worker those that are new, beside those that it keeps.
    async fn put_in_force(
        &mut self,
        worker: &Worker,
        new: Handlers,
        kept: Vec<String>,
    ) -> Result<(), Unchanged> {
        let (origin, file) = (new.origin(), new.file());
        // Before the worker knows them, so that none of them finds its siblings unknown when it publishes.
        let former = self.subscribed.replace(new.types());
        let (subscriptions, notes) = new.into_subscriptions();
        if let Err(error) = worker.handle.resubscribe(kept, subscriptions).await {
            self.subscribed.replace(former);
            return Err(match error {
                ResubscribeError::Invalid(error) => Unchanged::Refused(format!("{origin}{error}")),
                ResubscribeError::Ending => ENDING,
            });
        }
        self.file = file;
        self.listen(notes);
        Ok(())
    }
}

/// What happened, to what, and why.
fn words_for(error: &CliError) -> String {
    error.message().into_iter().chain(error.causes()).collect::<Vec<_>>().join(": ")
}
