//! How a worker that runs is given other handlers.

use std::collections::HashSet;

use tokio::sync::{mpsc, oneshot};

use super::subscription::Subscription;
use crate::model::InvalidInput;

/// Asks a worker for something while it runs.
#[derive(Clone, Debug)]
pub struct DispatcherHandle {
    requests: mpsc::UnboundedSender<Request>,
}

/// What a worker is asked.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kept: Vec<String>,
    pub(super) new: Vec<Subscription>,
    pub(super) reply: oneshot::Sender<Result<Resubscription, ResubscribeError>>,
}

/// What has become of a worker's handlers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resubscription {
    /// Those that it did not have before.
    pub added: Vec<String>,
    /// Those that it has no more.
    pub removed: Vec<String>,
    /// Those that it has with another subscription.
    pub changed: Vec<String>,
    /// Those that are as they were.
    pub unchanged: Vec<String>,
}

impl Resubscription {
    /// Whether all is as it was.
    pub fn is_empty(&self) -> bool {
        [&self.added, &self.removed, &self.changed].iter().all(|names| names.is_empty())
    }
}

/// Why a worker has the handlers that it had.
#[derive(Debug, thiserror::Error)]
pub enum ResubscribeError {
    /// The new ones make no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// It takes on nothing new any more.
    #[error("the worker is ending")]
    Ending,
}

impl DispatcherHandle {
    pub(super) fn new(requests: mpsc::UnboundedSender<Request>) -> Self {
        DispatcherHandle { requests }
    }

    /// Gives the worker the handlers of these names, as they are, and new ones, and takes all others from it. A new one of
    /// a name that it has is a change.
    ///
    /// No lease is dropped. What runs goes on under the subscription that it began with, to its recorded outcome, and takes
    /// one of the slots of a changed handler. What was claimed ahead for a handler that is removed or changed is handed back.
    /// When nothing runs under an old subscription any more, its handler is [closed](crate::handler::Handler::close).
    ///
    /// A handler that is kept keeps everything. A changed one keeps its pause, its rate as far as it is used up, and its
    /// circuit breaker, of which the policy is the new one; an open breaker lets one delivery try at once. What then ends
    /// under the old subscription says nothing to it.
    ///
    /// Requests are done in their order, each as a whole. One to a worker that does not run yet waits until it does.
    ///
    /// # Errors
    /// When the handlers make no sense, as with [`Dispatcher::new`](super::Dispatcher::new), or one that is to be kept is
    /// not there, and when the worker drains or has ended. Nothing has changed then.
    pub async fn resubscribe(
        &self,
        kept: Vec<String>,
        new: Vec<Subscription>,
    ) -> Result<Resubscription, ResubscribeError> {
        check(&kept, &new)?;
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { kept, new, reply }).map_err(|_| ResubscribeError::Ending)?;
        answer.await.unwrap_or(Err(ResubscribeError::Ending))
    }
}

/// Makes sure that a worker can have these handlers.
pub(super) fn check(kept: &[String], new: &[Subscription]) -> Result<(), InvalidInput> {
    if kept.is_empty() && new.is_empty() {
        return Err(InvalidInput::new("handlers", "there has to be at least one"));
    }
    new.iter().try_for_each(Subscription::check)?;
    let mut seen = HashSet::new();
    let mut names = kept.iter().map(String::as_str).chain(new.iter().map(Subscription::handler));
    match names.find(|name| !seen.insert(*name)) {
        Some(twice) => Err(InvalidInput::new(format!("handler {twice}"), "is there twice")),
        None => Ok(()),
    }
}
