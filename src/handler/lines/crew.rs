//! The children of one handler: who is free, who is started, and what a death means for the deliveries in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until};

use super::batch::Batch;
use super::conversation::Conversation;
use super::keeper::Ended;
use super::message_of;
use super::note::{ChildNews, Notes};
use super::restarts::Restarts;
use super::talk::{Fate, Style, Talk, discard};
use crate::handler::shell::command::Prepared;
use crate::handler::shell::{drain_begins, is_interruption};
use crate::handler::{Closing, ExitCodes, Meaning, Outcome, StopReason};
use crate::model::{Failure, FailureKind};

/// The children of one handler.
#[derive(Debug)]
pub(super) struct Crew {
    command: Prepared,
    style: Style,
    exit_codes: ExitCodes,
    notes: Notes,
    idle: Mutex<Vec<Conversation>>,
    restarts: Mutex<Restarts>,
}

/// The deliveries of a batch, as they are written to a child.
pub(super) struct Request {
    pub(super) handler: String,
    pub(super) input: Vec<u8>,
    pub(super) batch: Batch,
}

impl Crew {
    pub(super) fn new(command: Prepared, style: Style, exit_codes: ExitCodes, notes: Notes) -> Self {
        Crew { command, style, exit_codes, notes, idle: Mutex::default(), restarts: Mutex::default() }
    }

    pub(super) fn style(&self) -> Style {
        self.style
    }

    /// Has the deliveries of a request handled, and gives each its outcome.
    pub(super) async fn serve(&self, request: Request) {
        let Request { handler, input, mut batch } = request;
        loop {
            batch.release_stopped();
            let mut child = match self.child_for(&handler, &mut batch).await {
                Ok(Some(child)) => child,
                Ok(None) => return batch.conclude(|_| Outcome::Released),
                Err(why) => return batch.conclude(|_| Outcome::failed(why.clone())),
            };
            batch.guard(child.pid());
            let fate = Talk::new(&mut child, &mut batch, self.style, &input).run().await;
            if let Fate::Untouched = fate {
                self.replace(&handler, child, None).await;
                continue;
            }
            return self.settle(&handler, child, fate, batch).await;
        }
    }

    /// A child that is free, or a new one. `None` when there is nothing to do any more.
    ///
    /// # Errors
    /// Says why none can be started.
    async fn child_for(&self, handler: &str, batch: &mut Batch) -> Result<Option<Conversation>, String> {
        while !batch.is_answered() {
            if let Some(child) = self.take_idle(handler).await {
                return Ok(Some(child));
            }
            let now = Instant::now();
            let Some(until) = lock(&self.restarts).wait_until(now).filter(|_| self.is_lasting()) else {
                return self.start(handler).map(Some);
            };
            tokio::select! {
                () = sleep_until(until) => {}
                () = batch.release_next() => {}
            }
        }
        Ok(None)
    }

    fn is_lasting(&self) -> bool {
        self.style == Style::Lasting
    }

    fn start(&self, handler: &str) -> Result<Conversation, String> {
        Conversation::start(&self.command, handler, &self.notes).map_err(|error| {
            lock(&self.restarts).failed(Instant::now());
            self.command.command().explain_spawn_error(&error)
        })
    }

    /// One that answered before and waits for more. Those that do not any more are cleared away.
    async fn take_idle(&self, handler: &str) -> Option<Conversation> {
        loop {
            let mut child = lock(&self.idle).pop()?;
            match child.disorder() {
                None => return Some(child),
                Some(disorder) => self.replace(handler, child, Some(disorder)).await,
            }
        }
    }

    /// Clears a child away that came to grief between two deliveries: none of them is to blame.
    async fn replace(&self, handler: &str, mut child: Conversation, disorder: Option<String>) {
        let ended = discard(&mut child).await;
        let why = disorder.or_else(|| ended.map(|ended| message_of(&ended)));
        let news = ChildNews::Replaced(why.unwrap_or_else(|| "ended".to_owned()));
        self.notes.tell(handler, child.pid(), news);
    }

    /// Draws the conclusions for what is not answered, and for the child.
    async fn settle(&self, handler: &str, mut child: Conversation, fate: Fate, batch: Batch) {
        if batch.has_answers() {
            lock(&self.restarts).succeeded();
        }
        match fate {
            Fate::Answered => {
                lock(&self.idle).push(child);
                batch.conclude(|_| Outcome::Released);
            }
            Fate::Disordered(why) => {
                batch.conclude(|_| Outcome::Released);
                self.replace(handler, child, Some(why)).await;
            }
            Fate::Untouched => batch.conclude(|_| Outcome::Released),
            Fate::Broken(why) => {
                lock(&self.restarts).failed(Instant::now());
                let ended = discard(&mut child).await;
                let message = with_last_words(&why, ended.as_deref());
                batch.conclude(|_| Outcome::failed(message.clone()));
            }
            Fate::Ended(ended) if batch.was_ended_by_guard(ended.as_deref()) => {
                conclude_stopped(StopReason::LeaseEnding, ended.as_deref(), batch);
            }
            Fate::Ended(ended) => self.settle_ended(ended, batch).await,
            Fate::Stopped(reason, ended) => conclude_stopped(reason, ended.as_deref(), batch),
        }
    }

    async fn settle_ended(&self, ended: Option<Arc<Ended>>, batch: Batch) {
        let Some(ended) = ended else { return batch.conclude(|_| Outcome::Released) };
        let is_drained = match batch.any_context() {
            Some(context) if is_interruption(ended.status) => drain_begins(context).await,
            _ => false,
        };
        if self.is_lasting() && !is_drained {
            lock(&self.restarts).failed(Instant::now());
        }
        let message = message_of(&ended);
        let meaning = ended.status.and_then(|status| self.exit_codes.meaning_of(status.code()?));
        let is_last_word = self.style == Style::Once && !batch.has_answers();
        batch.conclude(|_| match meaning {
            _ if is_drained => Outcome::Released,
            Some(Meaning::Bury) if is_last_word => Outcome::rejected(message.clone()),
            Some(Meaning::Done) => Outcome::failed(format!("ended without an answer: {message}")),
            _ => Outcome::failed(message.clone()),
        });
    }

    /// Ends the children that wait for more: their input ends, which they should take as a farewell; those that stay get
    /// TERM, and in the end KILL.
    pub(super) async fn close(&self, closing: &Closing) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        join_all(idle.into_iter().map(|child| part_from(child, closing))).await;
    }
}

async fn part_from(mut child: Conversation, closing: &Closing) {
    child.close_input();
    tokio::select! {
        _ = child.ended_unheard() => return,
        () = closing.patience() => {}
    }
    child.end_by(Instant::now() + closing.kill_after).await;
}

fn conclude_stopped(reason: StopReason, ended: Option<&Ended>, batch: Batch) {
    let count = batch.len();
    batch.conclude(|item| {
        // Nobody knows which of them kept the child so long: the time-out is that of all.
        let timed_out = |reason: StopReason| matches!(reason, StopReason::TimedOut(_)).then_some(reason);
        let own = item.context.stop_requested().map(|stop| stop.reason);
        match own.and_then(timed_out).or(timed_out(reason)) {
            Some(reason) => {
                let what = match count {
                    1 => reason.to_string(),
                    _ => format!("{reason} in a batch of {count}"),
                };
                Outcome::Failed(Failure::new(FailureKind::Timeout, with_last_words(&what, ended)))
            }
            None => Outcome::Released,
        }
    });
}

/// `what: the last words`.
fn with_last_words(what: &str, ended: Option<&Ended>) -> String {
    let last_words = ended.map(|ended| ended.stderr.text(super::LAST_WORDS_BYTES)).unwrap_or_default();
    if last_words.is_empty() { what.to_owned() } else { format!("{what}: {last_words}") }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
