//! Children that answer in lines: one that stays for one delivery after the other, and batches.
//!
//! # Line mode
//! A [`LinesHandler`] starts a child when a delivery needs one, and keeps it. For each delivery the child gets the event's
//! envelope as one line of JSON on stdin, and writes one line of JSON to stdout:
//!
//! | answer | meaning |
//! |---|---|
//! | `{"id": ID, "ok": true}` | done |
//! | `{"id": ID, "error": TEXT}` | failed, tried again later |
//! | `{"id": ID, "error": TEXT, "retry_after": "30s"}` | the same, and when; a number means seconds |
//! | `{"id": ID, "snooze": "10m"}` | put off; no attempt is spent, and nothing went wrong |
//! | `{"id": ID, "error": TEXT, "dead": true}` | no attempt can succeed: dead at once |
//!
//! `ID` is the envelope's `deliveryId`. stdout belongs to the answers: a line that is none, an unknown `ID`, a second
//! answer, or more than 1 MiB without an end of line mean that the child is broken. Then what it has in flight has failed,
//! the child is killed, and the next delivery gets a new one, after a pause that grows from 100 ms to 30 s until a child
//! answers again. The same goes for a child that dies. A delivery that is to stop while it waits for a child is given
//! back, without an attempt spent.
//!
//! What a child writes to stderr is told line by line as [`ChildNote`]s, and its end explains a death. A time-out, a lost
//! lease or the worker's end send TERM to the whole process group of the child that has the delivery, and KILL after a
//! grace, since nobody knows what state it is in. Children that wait when the worker ends find the end of their input.
//!
//! # Batches
//! With [`BatchLimits`] a child gets an array of up to so many envelopes, and answers with an array or with a line for
//! each. Deliveries that are handled at the same time share a batch; a child that is free waits some milliseconds for more
//! of them. Each answer counts for itself: where one is missing, only its delivery has failed. A [`BatchHandler`] does
//! that with a process for each batch, whose input ends behind the array; its exit status counts for those that it did
//! not answer, and is the verdict on all, as it is for a [`ShellHandler`](super::ShellHandler), if it answered none.

mod answer;
mod batch;
mod collector;
mod conversation;
mod crew;
mod keeper;
mod note;
mod restarts;
mod splitter;
mod talk;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use self::batch::{Batch, Item};
use self::collector::Collector;
use self::crew::{Crew, Request};
use self::keeper::Ended;
use self::note::Notes;
use self::talk::Style;
use super::shell::command::Prepared;
use super::shell::describe;
use super::{Closing, Command, ExitCodes, Handler, HandlerContext, Outcome};
use crate::model::Envelope;
pub use note::{ChildNews, ChildNote};

/// What is kept of a child's last words.
const LAST_WORDS_BYTES: usize = 4 * 1024;

/// How deliveries are gathered into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// How many deliveries a batch holds at the most.
    pub size: usize,
    /// How many batches are under way at once, each with a child of its own. The handler should be given `size` times as
    /// many deliveries at once.
    pub at_once: usize,
}

/// Has deliveries handled by children that stay; see the [module](self) for the protocol.
#[derive(Debug)]
pub struct LinesHandler(Children);

/// Has batches of deliveries handled by a process each; see the [module](self) for the protocol.
#[derive(Debug)]
pub struct BatchHandler(Children);

impl LinesHandler {
    /// As many children of `command` as there are deliveries at once, each with one delivery at a time. What they inherit
    /// of this process' environment is fixed here.
    pub fn new(command: Command) -> Self {
        LinesHandler(Children::new(command, Style::Lasting, None))
    }

    /// Children that get several deliveries at a time.
    pub fn in_batches(command: Command, limits: BatchLimits) -> Self {
        LinesHandler(Children::new(command, Style::Lasting, Some(limits)))
    }

    /// Tells what the children write to stderr, and when one is replaced between two deliveries. What comes faster than it
    /// is read is left out, and counted.
    pub fn notes(self, sender: mpsc::Sender<ChildNote>) -> Self {
        LinesHandler(self.0.notes(sender))
    }
}

impl BatchHandler {
    /// A process of `command` for each batch. What it inherits of this process' environment is fixed here.
    pub fn new(command: Command, limits: BatchLimits) -> Self {
        BatchHandler(Children::new(command, Style::Once, Some(limits)))
    }

    /// Gives other meanings to exit codes.
    pub fn exit_codes(mut self, exit_codes: ExitCodes) -> Self {
        self.0.exit_codes = exit_codes;
        self
    }

    /// Tells what the processes write to stderr. What comes faster than it is read is left out, and counted.
    pub fn notes(self, sender: mpsc::Sender<ChildNote>) -> Self {
        BatchHandler(self.0.notes(sender))
    }
}

#[async_trait]
impl Handler for LinesHandler {
    async fn handle(&self, envelope: &Envelope, context: &HandlerContext) -> Outcome {
        self.0.handle(envelope, context).await
    }

    async fn close(&self, closing: &Closing) {
        self.0.crew().close(closing).await;
    }
}

#[async_trait]
impl Handler for BatchHandler {
    async fn handle(&self, envelope: &Envelope, context: &HandlerContext) -> Outcome {
        self.0.handle(envelope, context).await
    }
}

/// What both have in common. Nothing is begun before the first delivery, as only then there is a runtime for sure.
#[derive(Debug)]
struct Children {
    command: Prepared,
    style: Style,
    exit_codes: ExitCodes,
    limits: Option<BatchLimits>,
    notes: Notes,
    crew: OnceLock<Arc<Crew>>,
    collector: OnceLock<Collector>,
}

/// An envelope as it is written, and what is needed of it besides.
struct Written {
    id: String,
    handler: String,
    json: Vec<u8>,
}

impl Children {
    fn new(command: Command, style: Style, limits: Option<BatchLimits>) -> Self {
        let command = Prepared::new(command);
        let (exit_codes, crew, collector) = Default::default();
        Children { command, style, exit_codes, limits, notes: Notes::default(), crew, collector }
    }

    fn notes(self, sender: mpsc::Sender<ChildNote>) -> Self {
        Children { notes: Notes::to(sender), ..self }
    }

    fn crew(&self) -> &Arc<Crew> {
        let (command, exit_codes, notes) =
            (self.command.clone(), self.exit_codes.clone(), self.notes.clone());
        let crew = || Arc::new(Crew::new(command, self.style, exit_codes, notes));
        self.crew.get_or_init(crew)
    }

    async fn handle(&self, envelope: &Envelope, context: &HandlerContext) -> Outcome {
        let json = match serde_json::to_vec(envelope) {
            Ok(json) => json,
            Err(error) => return Outcome::failed(format!("the envelope cannot be written: {error}")),
        };
        let (id, handler) = (envelope.delivery_id.to_string(), envelope.handler.clone());
        let written = Written { id, handler, json };
        match self.limits {
            Some(limits) => {
                let collector = self.collector.get_or_init(|| Collector::start(self.crew().clone(), limits));
                collector.handle(written, context).await
            }
            None => self.handle_alone(written, context).await,
        }
    }

    async fn handle_alone(&self, written: Written, context: &HandlerContext) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        let Written { id, handler, json: mut input } = written;
        input.push(b'\n');
        let batch = Batch::told_at_once(vec![Item::new(id, context.clone(), reply)]);
        self.crew().serve(Request { handler, input, batch }).await;
        outcome.await.unwrap_or(Outcome::Released)
    }
}

/// `exit status 3: the last words`.
fn message_of(ended: &Ended) -> String {
    let (what, last_words) = (describe(ended.status), ended.stderr.text(LAST_WORDS_BYTES));
    if last_words.is_empty() { what } else { format!("{what}: {last_words}") }
}
