//! What is done with a delivery: the [`Handler`] trait, its transactional sibling, and commands.
//!
//! A handler says what became of one attempt and nothing more. When it is tried again, when it is given up, and
//! whether its lease still holds is for the dispatcher to know.

mod context;
mod function;
mod guard;
pub mod lines;
pub mod operations;
pub mod shell;
mod wait;

use async_trait::async_trait;

use crate::model::{Envelope, Failure, FailureKind};
use crate::store::{StoreError, Transaction};

pub use context::{AttemptControl, Closing, HandlerContext, Stop, StopReason};
pub use function::{FnHandler, handler_fn};
pub use guard::{Guard, stand_guard};
pub use lines::{BatchHandler, BatchLimits, LinesHandler};
pub use operations::{NumberedOperation, Operation, OperationRules, Preparation, PreparingHandler};
pub use shell::{
    Command, ExitCodes, Identity, InvalidIdentity, Meaning, ShellHandler, ShellTransaction, Stdin,
};
pub use wait::{InvalidWait, LONGEST_WAIT, Wait};

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work is done.
    Succeeded,
    /// It is not, and a later attempt may succeed.
    Failed(Failure),
    /// The same, and the handler knows when: its back-off does not apply. A time more than [`LONGEST_WAIT`] away is ignored.
    RetryAfter {
        /// What went wrong.
        failure: Failure,
        /// When to try again.
        wait: Wait,
    },
    /// It is too early: put off for a second at least, without spending the attempt. A time more than [`LONGEST_WAIT`]
    /// away is a failure instead.
    Snoozed(Wait),
    /// It is not, and no attempt ever will: the delivery is dead at once.
    Rejected(Failure),
    /// It was not tried, or was interrupted from outside: given back without spending the attempt.
    Released,
}

impl Outcome {
    /// A failure that a later attempt may overcome.
    pub fn failed(message: impl Into<String>) -> Self {
        Outcome::Failed(Failure::new(FailureKind::Failed, message))
    }

    /// A failure that no attempt can overcome, such as a payload that makes no sense.
    pub fn rejected(message: impl Into<String>) -> Self {
        Outcome::Rejected(Failure::new(FailureKind::Rejected, message))
    }
}

impl<E: std::fmt::Display> From<Result<(), E>> for Outcome {
    /// An error is a failure that a later attempt may overcome; its text, with that of its causes where the error type
    /// writes them for `{:#}`, is the message.
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Outcome::Succeeded,
            Err(error) => Outcome::failed(format!("{error:#}")),
        }
    }
}

/// Does the work of one handler.
///
/// Deliveries come at least once: a worker that dies after the work and before the outcome was recorded leaves it to
/// another attempt. A handler therefore makes its work repeatable, with the event id as the natural key, or is
/// [transactional](TransactionalHandler), or [prepares](PreparingHandler) what a transaction does.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Makes one attempt.
    ///
    /// When the context asks it to stop, it should end soon; what is still running at the time that the context
    /// names is dropped. A panic is a failed attempt.
    async fn handle(&self, envelope: &Envelope, context: &HandlerContext) -> Outcome;

    /// Ends what outlives an attempt, such as children that stay. The worker calls it once, at its end or when it has been
    /// given another handler instead, when no attempt of it runs any more.
    async fn close(&self, _closing: &Closing) {}
}

/// Is told once of each delivery of a handler that this worker has given up, after that was recorded: to alert someone, say.
///
/// A worker that dies in that moment tells no one, and what an operator buries is not told.
#[async_trait]
pub trait DeadLetterHandler: Send + Sync {
    /// Tells of a delivery that is dead because of `failure`. The payload is null where the event is not there any more.
    ///
    /// # Errors
    /// Why that did not work; it is logged, and changes nothing.
    async fn dead(
        &self,
        envelope: &Envelope,
        failure: &Failure,
        context: &HandlerContext,
    ) -> Result<(), String>;
}

/// Does the work of one handler inside a transaction of the store, which also completes the delivery: both are
/// committed together or not at all.
///
/// The lease is not renewed meanwhile, since a renewal would conflict with the completion; the work has to end before
/// the lease does.
#[async_trait]
pub trait TransactionalHandler: Send + Sync {
    /// Makes one attempt. It may run more than once for one attempt: after a conflict the whole transaction is
    /// repeated. What it does outside the transaction is not undone.
    ///
    /// # Errors
    /// Any error aborts the transaction. Errors of the store have to be passed on as they are, so that a conflict
    /// can be told from a failure.
    async fn handle(
        &self,
        envelope: &Envelope,
        transaction: &mut dyn Transaction,
    ) -> Result<(), TransactionalError>;
}

/// Why a transactional handler did not succeed.
#[derive(Debug)]
pub enum TransactionalError {
    /// The store failed, or something else was faster; conflicts are repeated by the store.
    Store(StoreError),
    /// The work failed. The kind [`FailureKind::Rejected`] means that no attempt can succeed.
    Failed(Failure),
}

impl From<StoreError> for TransactionalError {
    fn from(error: StoreError) -> Self {
        TransactionalError::Store(error)
    }
}

impl From<Failure> for TransactionalError {
    fn from(failure: Failure) -> Self {
        TransactionalError::Failed(failure)
    }
}
