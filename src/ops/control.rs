//! What every long operation is given from outside.

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::model::Timestamp;

/// The clock that an operation reads, the token that stops it, and who is told how far it has come.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// The source of the instants that are handed to the store.
    pub clock: &'a dyn Clock,
    /// Stops the operation before its next batch; a batch that has begun ends.
    pub cancel: &'a CancellationToken,
    /// Told after each batch how many items have been dealt with so far.
    pub progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl Control<'_> {
    /// The current instant.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether the operation has to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits for `future`, unless the operation is stopped first: `None` then.
    pub(super) async fn unless_cancelled<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            value = future => Some(value),
        }
    }
}

/// The progress callback of those who do not want to know.
pub fn silent(_done: u64) {}
