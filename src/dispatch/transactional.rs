//! An attempt inside a transaction of the store, which also completes the delivery.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::attempt::Conclusion;
use super::executor::Held;
use crate::clock::Clock;
use crate::handler::{Outcome, TransactionalError, TransactionalHandler};
use crate::model::{Envelope, Failure, FailureKind, Lease};
use crate::store::{Fenced, Result, StoreError, Transaction};

/// Runs the handler and commits its writes with the completion, or neither.
pub(super) fn attempt(
    handler: Arc<dyn TransactionalHandler>,
    envelope: Envelope,
    held: &Held,
) -> impl Future<Output = Conclusion> + Send + use<> {
    let (store, clock) = (held.surroundings.store.clone(), held.surroundings.clock.clone());
    let work = Arc::new(TransactionWork { handler, envelope, lease: held.lease.clone(), clock });
    async move {
        let result = store.transaction(&mut |transaction| work.clone().run(transaction)).await;
        result.map_or_else(|error| conclusion_of(&error), |()| Conclusion::Committed)
    }
}

struct TransactionWork {
    handler: Arc<dyn TransactionalHandler>,
    envelope: Envelope,
    lease: Lease,
    clock: Arc<dyn Clock>,
}

impl TransactionWork {
    fn run(self: Arc<Self>, transaction: &mut dyn Transaction) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.handler.handle(&self.envelope, transaction).await.map_err(abort)?;
            match transaction.complete(&self.lease, self.clock.now()).await? {
                Fenced::Applied => Ok(()),
                Fenced::LeaseLost => Err(StoreError::aborted(Abort::LeaseLost)),
            }
        })
    }
}

/// Why the transaction was aborted, on its way through the store.
#[derive(Clone, Debug)]
pub(super) enum Abort {
    Failed(Failure),
    LeaseLost,
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Abort::Failed(failure) => f.write_str(&failure.message),
            Abort::LeaseLost => f.write_str("the lease was lost"),
        }
    }
}

impl std::error::Error for Abort {}

/// Errors of the store go on as they are, so that it can repeat the transaction after a conflict.
fn abort(error: TransactionalError) -> StoreError {
    match error {
        TransactionalError::Store(error) => error,
        TransactionalError::Failed(failure) => StoreError::aborted(Abort::Failed(failure)),
    }
}

fn conclusion_of(error: &StoreError) -> Conclusion {
    match error.source().and_then(|source| source.downcast_ref::<Abort>()) {
        Some(Abort::LeaseLost) => Conclusion::LeaseLost(None),
        Some(Abort::Failed(failure)) if failure.kind == FailureKind::Rejected => {
            Conclusion::Outcome(Outcome::Rejected(failure.clone()))
        }
        Some(Abort::Failed(failure)) => Conclusion::Outcome(Outcome::Failed(failure.clone())),
        None => Conclusion::Outcome(Outcome::failed(error.to_string())),
    }
}
