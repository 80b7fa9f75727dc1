//! One attempt under way: the handler's task, its time-out, and its lease, which is renewed as long as it runs.

use std::any::Any;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::executor::{Held, LAST_TRY};
use super::prepared;
use super::subscription::{Subscription, Work};
use super::tempo::Tempo;
use super::transactional;
use crate::handler::{AttemptControl, NumberedOperation, Outcome, Preparation, StopReason};
use crate::model::{Envelope, Event, Failure, FailureKind, Timestamp};
use crate::store::{self, Fenced, StoreError};

/// How an attempt ended, before that is recorded.
#[derive(Debug)]
pub(super) enum Conclusion {
    /// With an outcome.
    Outcome(Outcome),
    /// Recorded already, together with the handler's own writes.
    Committed,
    /// Somebody else has the delivery now; what the handler said counts for nothing.
    LeaseLost(Option<Outcome>),
}

/// Makes an attempt.
pub(super) async fn make(
    held: &mut Held,
    subscription: &Subscription,
    event: Arc<Event>,
    time_steps: watch::Receiver<()>,
) -> Conclusion {
    let tempo = subscription.tempo();
    let stop_by = held.leased_until - tempo.stop_before_expiry();
    let Some(time_left) = stop_by.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    else {
        // The store took so long that the lease is nearly over.
        return Conclusion::Outcome(Outcome::Released);
    };
    Attempt::begin(held, subscription, event, time_left, time_steps).run().await
}

struct Attempt<'h> {
    held: &'h mut Held,
    tempo: Tempo,
    lease: Duration,
    control: AttemptControl,
    work: AbortOnDropHandle<Ended>,
    timeout: Duration,
    times_out_at: Instant,
    /// `None` where the lease cannot be renewed.
    renew_at: Option<Instant>,
    renewal: Option<BoxFuture<'static, Renewal>>,
    /// Changes when the time by which the lease was asked for turns out to be another: others may take it for over.
    time_steps: watch::Receiver<()>,
    abandon_at: Option<Instant>,
    is_lease_lost: bool,
    is_committing: bool,
}

/// How a part of the work ended.
enum Ended {
    Concluded(Conclusion),
    /// What is to be done in a transaction that completes the delivery.
    Prepared(Vec<NumberedOperation>),
}

/// A renewal that was answered.
struct Renewal {
    asked_at: Instant,
    expires_at: Timestamp,
    result: Result<Fenced, Arc<StoreError>>,
}

/// What can happen to an attempt.
enum Step {
    Ended(Result<Ended, JoinError>),
    Abandon,
    Renewed(Renewal),
    Stop(StopReason),
    Renew,
}

impl<'h> Attempt<'h> {
    fn begin(
        held: &'h mut Held,
        subscription: &Subscription,
        event: Arc<Event>,
        time_left: Duration,
        time_steps: watch::Receiver<()>,
    ) -> Self {
        let (now, tempo) = (Instant::now(), subscription.tempo());
        let expires_at = held.delivery.lease_expires_at.unwrap_or_default();
        let gone_at = held.leased_until - tempo.guard_before_expiry();
        let control = held.surroundings.control(expires_at, gone_at);
        let envelope = Envelope::new(Arc::unwrap_or_clone(event), &held.delivery, held.max_attempts);
        let work = tokio::spawn(work_of(subscription, envelope, &control, held));
        let (timeout, renew_at) = match &subscription.work {
            Work::Plain(_) | Work::Preparing(_) => (subscription.timeout, Some(now + tempo.renew_every)),
            Work::Transactional(_) => (subscription.timeout.min(time_left), None),
        };
        Attempt {
            held,
            tempo,
            lease: subscription.lease,
            control,
            work: AbortOnDropHandle::new(work),
            timeout,
            times_out_at: now + timeout,
            renew_at,
            renewal: None,
            time_steps,
            abandon_at: None,
            is_lease_lost: false,
            is_committing: false,
        }
    }

    async fn run(mut self) -> Conclusion {
        loop {
            match self.next_step().await {
                Step::Ended(Ok(Ended::Prepared(operations))) => {
                    self.answer_renewal().await;
                    if self.is_lease_lost {
                        return Conclusion::LeaseLost(Some(Outcome::Succeeded));
                    }
                    self.commit(operations);
                }
                Step::Ended(result) => return self.conclude(concluded(result)).await,
                Step::Abandon => return self.abandon().await,
                Step::Renewed(renewal) => self.renewed(renewal),
                Step::Stop(reason) => self.stop(reason),
                Step::Renew => self.renew(),
            }
        }
    }

    async fn next_step(&mut self) -> Step {
        let is_stopping = self.abandon_at.is_some();
        let lease_ends_at = self.held.leased_until - self.tempo.stop_before_expiry();
        let renew_at = self.renew_at.filter(|_| self.renewal.is_none());
        let may_renew = renew_at.is_some();
        let timed_out = StopReason::TimedOut(self.timeout);
        tokio::select! {
            biased;
            result = &mut self.work => Step::Ended(result),
            () = sleep_until_some(self.abandon_at) => Step::Abandon,
            renewal = answer_to(&mut self.renewal) => Step::Renewed(renewal),
            () = self.held.surroundings.stopping.cancelled(), if !is_stopping => Step::Stop(StopReason::Shutdown),
            () = sleep_until(self.times_out_at), if !is_stopping => Step::Stop(timed_out),
            () = sleep_until(lease_ends_at), if !is_stopping => Step::Stop(StopReason::LeaseEnding),
            () = sleep_until_some(renew_at), if !is_stopping => Step::Renew,
            Ok(()) = self.time_steps.changed(), if may_renew && !is_stopping => Step::Renew,
        }
    }

    fn stop(&mut self, reason: StopReason) {
        let stop = self.control.stop(reason, Instant::now() + self.tempo.kill_after);
        self.abandon_at.get_or_insert(stop.kill_at + self.tempo.abandon_after_kill());
    }

    fn renew(&mut self) {
        let (settler, lease) = (self.held.surroundings.settler.clone(), self.held.lease.clone());
        let asked_at = Instant::now();
        let expires_at = self.held.surroundings.clock.now().saturating_add(self.lease);
        self.renewal = Some(Box::pin(async move {
            let result = settler.settle(&lease, store::Outcome::ExtendLease { expires_at }).await;
            Renewal { asked_at, expires_at, result }
        }));
    }

    fn renewed(&mut self, renewal: Renewal) {
        self.renewal = None;
        match renewal.result {
            Ok(Fenced::Applied) => {
                self.held.leased_until = renewal.asked_at + self.lease;
                self.control.set_lease_expires_at(renewal.expires_at);
                self.control.extend_guard(self.held.leased_until - self.tempo.guard_before_expiry());
                self.renew_at = Some(renewal.asked_at + self.tempo.renew_every);
            }
            Ok(Fenced::LeaseLost) => {
                self.is_lease_lost = true;
                self.stop(StopReason::LeaseLost);
            }
            Err(_) => self.renew_at = Some(Instant::now() + self.tempo.retry_renewal_after),
        }
    }

    /// The handler has ended, and the transaction begins. The lease is not renewed meanwhile: a renewal would wait for the
    /// transaction, or conflict with its completion.
    fn commit(&mut self, operations: Vec<NumberedOperation>) {
        let now = Instant::now();
        let ends_at = self.held.leased_until - self.tempo.stop_before_expiry();
        self.renew_at = None;
        self.timeout = ends_at.saturating_duration_since(now);
        self.times_out_at = ends_at;
        self.is_committing = true;
        let work = prepared::commit(operations, self.held);
        self.work = AbortOnDropHandle::new(tokio::spawn(async move { Ended::Concluded(work.await) }));
    }

    /// A renewal that is still under way is waited for: it may say that the lease is lost.
    async fn answer_renewal(&mut self) {
        if let Some(renewal) = self.renewal.take()
            && let Ok(renewal) = timeout(LAST_TRY, renewal).await
        {
            self.renewed(renewal);
        }
    }

    /// The handler has ended.
    async fn conclude(mut self, conclusion: Conclusion) -> Conclusion {
        self.answer_renewal().await;
        match conclusion {
            Conclusion::Outcome(outcome) if self.is_lease_lost => Conclusion::LeaseLost(Some(outcome)),
            other => other,
        }
    }

    /// The handler does not end by itself.
    async fn abandon(mut self) -> Conclusion {
        self.work.abort();
        // It may have ended in this very moment, with a commit perhaps.
        let result = timeout(self.tempo.abandon_after_kill(), &mut self.work).await;
        if let Ok(Ok(Ended::Concluded(conclusion))) = result {
            return self.conclude(conclusion).await;
        }
        let outcome = match self.control.context().stop_requested().map(|stop| stop.reason) {
            Some(reason @ StopReason::TimedOut(_)) => {
                let what = if self.is_committing { "the transaction " } else { "" };
                Outcome::Failed(Failure::new(FailureKind::Timeout, format!("{what}{reason}")))
            }
            _ => Outcome::Released,
        };
        self.conclude(Conclusion::Outcome(outcome)).await
    }
}

/// What the handler does, or its transaction as a whole.
fn work_of(
    subscription: &Subscription,
    envelope: Envelope,
    control: &AttemptControl,
    held: &Held,
) -> BoxFuture<'static, Ended> {
    let context = control.context();
    match subscription.work.clone() {
        Work::Plain(handler) => Box::pin(async move {
            Ended::Concluded(Conclusion::Outcome(handler.handle(&envelope, &context).await))
        }),
        Work::Transactional(handler) => {
            let work = transactional::attempt(handler, envelope, held);
            Box::pin(async move { Ended::Concluded(work.await) })
        }
        Work::Preparing(handler) => Box::pin(async move {
            match handler.prepare(&envelope, &context).await {
                Preparation::Ready(operations) => Ended::Prepared(operations),
                Preparation::Ended(outcome) => Ended::Concluded(Conclusion::Outcome(outcome)),
            }
        }),
    }
}

fn concluded(result: Result<Ended, JoinError>) -> Conclusion {
    match result {
        Ok(Ended::Concluded(conclusion)) => conclusion,
        // It was told apart before: nothing is committed, and nothing was spent.
        Ok(Ended::Prepared(_)) => Conclusion::Outcome(Outcome::Released),
        Err(error) => Conclusion::Outcome(outcome_of_broken_task(error)),
    }
}

fn outcome_of_broken_task(error: JoinError) -> Outcome {
    match error.try_into_panic() {
        Ok(panic) => Outcome::failed(format!("the handler panicked: {}", panic_message(&*panic))),
        // The runtime is shutting down.
        Err(_) => Outcome::Released,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

async fn sleep_until_some(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn answer_to(renewal: &mut Option<BoxFuture<'static, Renewal>>) -> Renewal {
    match renewal {
        Some(renewal) => renewal.await,
        None => pending().await,
    }
}
