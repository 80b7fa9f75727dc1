//! One delivery, from its lease to its recorded outcome: a task of its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::attempt::{self, Conclusion};
use super::backoff::Backoff;
use super::breaker::Ending;
use super::claim::Task;
use super::event::{Finished, Timing, Verdict};
use super::settler::Settler;
use super::subscription::Subscription;
use crate::clock::Clock;
use crate::handler::{AttemptControl, Guard, Outcome, Wait};
use crate::model::{Delivery, Failure, Lease, RetryPolicy, Status, Timestamp};
use crate::store::{self, Claimed, Fenced, Store};

/// How long an outcome may still look for its store when the worker has to end, or its lease has run out.
pub(super) const LAST_TRY: Duration = Duration::from_secs(5);

/// A snooze is never shorter, so that one that is always too early does not spin.
const SHORTEST_SNOOZE: Duration = Duration::from_secs(1);

/// What all executors of a worker share.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settler: Settler,
    /// Ends commands when this process cannot.
    pub(super) guard: Option<Guard>,
    /// Cancelled when the worker drains.
    pub(super) draining: CancellationToken,
    /// Cancelled when what runs has to stop.
    pub(super) stopping: CancellationToken,
}

impl Surroundings {
    /// The control of what may run until `expires_at`, and has to be gone at `gone_at` even where this process cannot see to
    /// it.
    pub(super) fn control(&self, expires_at: Timestamp, gone_at: Instant) -> AttemptControl {
        let draining = self.draining.clone();
        match self.guard.clone() {
            Some(guard) => AttemptControl::guarded(expires_at, draining, guard, gone_at),
            None => AttemptControl::new(expires_at, draining),
        }
    }
}

/// A leased delivery, and what is to be done with it.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) claimed: Claimed,
    pub(super) task: Task,
    pub(super) subscription: Arc<Subscription>,
    pub(super) max_attempts: u32,
    /// The lease holds until then.
    pub(super) leased_until: Instant,
    /// Changes when the time by which it was leased turns out to be another.
    pub(super) time_steps: watch::Receiver<()>,
}

/// A slot that an attempt has taken. Dropping it says that the slot is free.
#[derive(Debug)]
pub(super) struct Slot {
    handler: usize,
    subscription: Arc<Subscription>,
    since: Instant,
    ending: Option<Ending>,
    freed: mpsc::UnboundedSender<Freed>,
    _attempt: TaskTrackerToken,
}

/// A slot that is free again.
#[derive(Clone, Debug)]
pub(super) struct Freed {
    /// The handler's place in the roster.
    pub(super) handler: usize,
    /// What the attempt was made under.
    pub(super) subscription: Arc<Subscription>,
    /// How long the slot was taken.
    pub(super) elapsed: Duration,
    /// How the attempt ended, if that says something about its handler.
    pub(super) ending: Option<Ending>,
}

impl Slot {
    pub(super) fn new(
        handler: usize,
        subscription: Arc<Subscription>,
        attempt: TaskTrackerToken,
        freed: mpsc::UnboundedSender<Freed>,
    ) -> Self {
        Slot { handler, subscription, since: Instant::now(), ending: None, freed, _attempt: attempt }
    }

    /// The attempt ended so.
    fn leave(mut self, conclusion: &Conclusion) {
        self.ending = ending_of(conclusion);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Nobody listens when the worker is gone.
        let (subscription, ending) = (self.subscription.clone(), self.ending.take());
        let elapsed = self.since.elapsed();
        let _ = self.freed.send(Freed { handler: self.handler, subscription, elapsed, ending });
    }
}

/// A delivery under our lease.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    pub(super) delivery: Delivery,
    pub(super) max_attempts: u32,
    /// The lease holds until then; moves on with each renewal.
    pub(super) leased_until: Instant,
    pub(super) surroundings: Surroundings,
}

/// Carries an assignment out and records what became of it. The slot is free as soon as the attempt is over: recording
/// needs none.
pub(super) async fn execute(
    assignment: Assignment,
    slot: Option<Slot>,
    surroundings: Surroundings,
) -> Finished {
    let Assignment {
        claimed: Claimed { lease, delivery },
        task,
        subscription,
        max_attempts,
        leased_until,
        time_steps,
    } = assignment;
    let started = Instant::now();
    let waited = matches!(task, Task::Run(_)).then(|| surroundings.clock.now().since(delivery.available_at));
    let mut held = Held { lease, delivery, max_attempts, leased_until, surroundings };
    let conclusion = match task {
        Task::Run(event) => attempt::make(&mut held, &subscription, event, time_steps).await,
        Task::Fail(failure) => Conclusion::Outcome(Outcome::Failed(failure)),
        Task::Bury(failure) => Conclusion::Outcome(Outcome::Rejected(failure)),
        Task::Release => Conclusion::Outcome(Outcome::Released),
    };
    let timing = waited.map(|waited| Timing { waited, ran: started.elapsed() });
    if let Some(slot) = slot {
        slot.leave(&conclusion);
    }
    let verdict = held.record(conclusion, &subscription.retry).await;
    Finished::new(&held.delivery, max_attempts, started.elapsed(), timing, verdict)
}

/// Gives deliveries back that were leased and not begun; no attempt is spent. Returns the handler of each and what became
/// of it.
pub(super) async fn hand_back(
    unused: Vec<Claimed>,
    until: Instant,
    surroundings: Surroundings,
) -> Vec<(String, Verdict)> {
    let give_back = |Claimed { lease, delivery }: Claimed| {
        let surroundings = surroundings.clone();
        let held = Held { lease, max_attempts: 0, delivery, leased_until: until, surroundings };
        async move {
            let verdict = match held.settle(&store::Outcome::Release).await {
                Fenced::Applied => Verdict::Released,
                Fenced::LeaseLost => Verdict::LeaseLost { unrecorded: None },
            };
            (held.delivery.handler, verdict)
        }
    };
    join_all(unused.into_iter().map(give_back)).await
}

impl Held {
    async fn record(&self, conclusion: Conclusion, retry: &RetryPolicy) -> Verdict {
        let outcome = match conclusion {
            Conclusion::Committed => return Verdict::Completed,
            Conclusion::LeaseLost(unrecorded) => return Verdict::LeaseLost { unrecorded },
            Conclusion::Outcome(outcome) => outcome,
        };
        let now = self.surroundings.clock.now();
        let verdict = self.judge(&outcome, retry, now, fastrand::f64());
        match self.settle(&change_for(&verdict)).await {
            Fenced::Applied => verdict,
            Fenced::LeaseLost => Verdict::LeaseLost { unrecorded: Some(outcome) },
        }
    }

    fn judge(&self, outcome: &Outcome, retry: &RetryPolicy, now: Timestamp, chance: f64) -> Verdict {
        let attempts = self.delivery.attempts;
        match outcome.clone() {
            Outcome::Succeeded => Verdict::Completed,
            Outcome::Released => Verdict::Released,
            Outcome::Snoozed(wait) => match wait.end(now) {
                Some(until) => Verdict::Snoozed { until: until.max(now.saturating_add(SHORTEST_SNOOZE)) },
                None => self.judge(&Outcome::failed(too_far("snooze", wait)), retry, now, chance),
            },
            Outcome::Rejected(failure) => Verdict::Dead { failure },
            Outcome::Failed(failure) | Outcome::RetryAfter { failure, .. }
                if attempts >= self.max_attempts =>
            {
                Verdict::Dead { failure }
            }
            Outcome::RetryAfter { failure: Failure { kind, message }, wait } => match wait.end(now) {
                Some(at) => Verdict::Retrying { at, failure: Failure { kind, message } },
                None => {
                    let noted = Failure::new(kind, format!("{}; {message}", too_far("retry-after", wait)));
                    self.judge(&Outcome::Failed(noted), retry, now, chance)
                }
            },
            Outcome::Failed(failure) => {
                Verdict::Retrying { at: now.saturating_add(retry.delay(attempts, chance)), failure }
            }
        }
    }

    /// Writes a change as long as there is hope.
    async fn settle(&self, change: &store::Outcome) -> Fenced {
        tokio::select! {
            fenced = self.write(change) => fenced,
            () = self.give_up() => Fenced::LeaseLost,
        }
    }

    /// Repeats a change until the store has answered.
    async fn write(&self, change: &store::Outcome) -> Fenced {
        let mut pause = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut in_doubt = false;
        loop {
            match self.surroundings.settler.settle(&self.lease, change.clone()).await {
                Ok(Fenced::LeaseLost) if in_doubt && self.is_recorded(change).await => {
                    return Fenced::Applied;
                }
                Ok(fenced) => return fenced,
                Err(_) => in_doubt = true,
            }
            sleep(pause.next()).await;
        }
    }

    /// Waits until the lease is anybody's, or the worker cannot wait any longer. An expired lease that nobody took
    /// still counts, so that there is time for one try in any case.
    async fn give_up(&self) {
        let last_try = async {
            self.surroundings.stopping.cancelled().await;
            sleep(LAST_TRY).await;
        };
        tokio::select! {
            () = last_try => {}
            () = sleep_until(self.leased_until.max(Instant::now() + LAST_TRY)) => {}
        }
    }

    /// Whether the store shows what an earlier write, of which the answer was lost, would have done.
    async fn is_recorded(&self, change: &store::Outcome) -> bool {
        let Ok(Some(found)) = self.surroundings.store.get(&self.delivery.id).await else { return false };
        match change {
            store::Outcome::Complete => found.status == Status::Completed,
            store::Outcome::Bury { failure } => {
                found.status == Status::Dead && found.last_error.as_ref() == Some(&failure.message)
            }
            store::Outcome::Reschedule { available_at, .. } | store::Outcome::Snooze { available_at } => {
                found.status == Status::Pending && found.available_at == *available_at
            }
            store::Outcome::Release | store::Outcome::ExtendLease { .. } => false,
        }
    }
}

/// What the end of an attempt says about its handler; nothing, when it was stopped or lost before it said anything.
fn ending_of(conclusion: &Conclusion) -> Option<Ending> {
    let outcome = match conclusion {
        Conclusion::Committed => return Some(Ending::Well),
        Conclusion::LeaseLost(None) => return None,
        Conclusion::Outcome(outcome) | Conclusion::LeaseLost(Some(outcome)) => outcome,
    };
    match outcome {
        Outcome::Succeeded => Some(Ending::Well),
        Outcome::Failed(failure) | Outcome::Rejected(failure) | Outcome::RetryAfter { failure, .. } => {
            Some(Ending::Badly { error: failure.message.clone() })
        }
        Outcome::Released | Outcome::Snoozed(_) => None,
    }
}

/// What is said of a wish for a time that is too far away.
fn too_far(wish: &str, wait: Wait) -> String {
    format!("ignored `{wish}: {wait}`, which is more than a year away")
}

fn change_for(verdict: &Verdict) -> store::Outcome {
    match verdict.clone() {
        Verdict::Completed => store::Outcome::Complete,
        Verdict::Retrying { at, failure } => store::Outcome::Reschedule { available_at: at, failure },
        Verdict::Dead { failure } => store::Outcome::Bury { failure },
        Verdict::Snoozed { until } => store::Outcome::Snooze { available_at: until },
        Verdict::Released | Verdict::LeaseLost { .. } => store::Outcome::Release,
    }
}
