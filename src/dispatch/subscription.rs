//! A handler, and how its deliveries are to be run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::breaker::BreakerPolicy;
use super::tempo::Tempo;
use crate::handler::{Closing, DeadLetterHandler, Handler, PreparingHandler, TransactionalHandler};
use crate::model::{InvalidInput, Rate, RetryPolicy};

/// The shortest lease: below it the pauses of a busy machine look like the death of a worker.
pub const MIN_LEASE: Duration = Duration::from_secs(1);

/// A handler with its limits.
#[derive(Clone)]
pub struct Subscription {
    handler: String,
    pub(super) work: Work,
    pub(super) concurrency: usize,
    pub(super) timeout: Duration,
    pub(super) lease: Duration,
    pub(super) max_attempts: u32,
    pub(super) retry: RetryPolicy,
    pub(super) breaker: Option<BreakerPolicy>,
    pub(super) rate: Option<Rate>,
    pub(super) kill_after: Duration,
    pub(super) on_dead: Option<OnDead>,
}

/// Who is told of dead deliveries, one after the other.
#[derive(Clone)]
pub(super) struct OnDead {
    pub(super) handler: Arc<dyn DeadLetterHandler>,
    pub(super) turn: Arc<Semaphore>,
}

/// The limits of a [`Subscription`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many of its deliveries run at once.
    pub concurrency: usize,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How long a lease lasts.
    pub lease: Duration,
    /// After how many attempts a delivery is dead.
    pub max_attempts: u32,
    /// When its circuit breaker opens, if it has one.
    pub breaker: Option<BreakerPolicy>,
    /// How often an attempt begins at the most.
    pub rate: Option<Rate>,
}

/// What does the work.
#[derive(Clone)]
pub(super) enum Work {
    Plain(Arc<dyn Handler>),
    Transactional(Arc<dyn TransactionalHandler>),
    Preparing(Arc<dyn PreparingHandler>),
}

impl Subscription {
    /// The deliveries of `handler`, handled by `work`: one at a time, within 30 seconds, under leases of 60 seconds, at
    /// most 5 attempts with the default back-off, behind a circuit breaker with the default policy.
    pub fn new(handler: impl Into<String>, work: impl Handler + 'static) -> Self {
        Subscription::with(handler.into(), Work::Plain(Arc::new(work)))
    }

    /// The same, with `work` inside a transaction that also completes the delivery. An attempt ends with its lease
    /// at the latest, as it cannot be renewed meanwhile.
    pub fn transactional(handler: impl Into<String>, work: impl TransactionalHandler + 'static) -> Self {
        Subscription::with(handler.into(), Work::Transactional(Arc::new(work)))
    }

    /// The same, with `work` first and then a transaction, which does what the work has prepared and completes the delivery.
    /// The lease is renewed while the work runs; the time-out is the work's, and the transaction has until the lease
    /// ends.
    pub fn preparing(handler: impl Into<String>, work: impl PreparingHandler + 'static) -> Self {
        Subscription::with(handler.into(), Work::Preparing(Arc::new(work)))
    }

    fn with(handler: String, work: Work) -> Self {
        Subscription {
            handler,
            work,
            concurrency: 1,
            timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            max_attempts: 5,
            retry: RetryPolicy::default(),
            breaker: Some(BreakerPolicy::default()),
            rate: None,
            kill_after: Duration::from_secs(5),
            on_dead: None,
        }
    }

    /// How many of its deliveries run at once.
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.concurrency = limit;
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a lease lasts; it is renewed at a third of it. The time after which another worker takes over from
    /// one that died.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// After how many attempts a delivery is dead, unless it has a limit of its own.
    pub fn max_attempts(mut self, limit: u32) -> Self {
        self.max_attempts = limit;
        self
    }

    /// When a failed attempt is tried again.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// When this worker leaves the handler alone for a while because it keeps failing; never when `None`.
    pub fn breaker(mut self, policy: impl Into<Option<BreakerPolicy>>) -> Self {
        self.breaker = policy.into();
        self
    }

    /// How often an attempt begins at the most, in this worker. They come evenly: no more than a tenth of a second's worth at
    /// once.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// How long an attempt that was asked to stop may take to end before it is ended by force; at most a quarter of the
    /// lease. 5 seconds unless set.
    pub fn kill_after(mut self, kill_after: Duration) -> Self {
        self.kill_after = kill_after;
        self
    }

    /// Is told of each delivery that is given up, one after the other, and has as long for each as an attempt may take.
    pub fn on_dead(mut self, handler: impl DeadLetterHandler + 'static) -> Self {
        self.on_dead = Some(OnDead { handler: Arc::new(handler), turn: Arc::new(Semaphore::new(1)) });
        self
    }

    /// What was set, or is so by default.
    pub fn limits(&self) -> Limits {
        Limits {
            concurrency: self.concurrency,
            timeout: self.timeout,
            lease: self.lease,
            max_attempts: self.max_attempts,
            breaker: self.breaker,
            rate: self.rate,
        }
    }

    /// The handler's id.
    pub fn handler(&self) -> &str {
        &self.handler
    }

    pub(super) fn check(&self) -> Result<(), InvalidInput> {
        let refuse = |setting: &str, reason: String| {
            Err(InvalidInput::new(format!("{setting} of handler {}", self.handler), reason))
        };
        if self.concurrency == 0 {
            return refuse("concurrency", "must be at least 1".into());
        }
        if self.max_attempts == 0 {
            return refuse("max attempts", "must be at least 1".into());
        }
        if self.timeout.is_zero() {
            return refuse("time-out", "must be more than zero".into());
        }
        if self.lease < MIN_LEASE {
            return refuse("lease", format!("must be at least {}", humantime::format_duration(MIN_LEASE)));
        }
        self.breaker.map_or(Ok(()), |policy| match policy {
            BreakerPolicy { failures: 0, .. } => {
                refuse("failures of the breaker", "must be at least 1".into())
            }
            BreakerPolicy { pause, .. } if pause.is_zero() => {
                refuse("pause of the breaker", "must be more than zero".into())
            }
            BreakerPolicy { pause, max, .. } if pause > max => {
                refuse("pause of the breaker", "must not be longer than its longest pause".into())
            }
            _ => Ok(()),
        })
    }

    /// Ends what the handler keeps between attempts.
    pub(super) async fn close(&self, hurry: CancellationToken) {
        if let Work::Plain(handler) = &self.work {
            handler.close(&Closing { hurry, kill_after: self.tempo().kill_after }).await;
        }
    }

    pub(super) fn tempo(&self) -> Tempo {
        let kill_after = match self.work {
            Work::Plain(_) | Work::Preparing(_) => self.kill_after,
            // It is not told to stop: its transaction is dropped.
            Work::Transactional(_) => Duration::ZERO,
        };
        Tempo::of(self.lease, kill_after)
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("handler", &self.handler)
            .field("concurrency", &self.concurrency)
            .field("timeout", &self.timeout)
            .field("lease", &self.lease)
            .field("max_attempts", &self.max_attempts)
            .field("retry", &self.retry)
            .field("breaker", &self.breaker)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}
