//! What is done once about a delivery that has become dead.
//!
//! It happens behind the recorded outcome, in a task of its own: it needs no slot and no lease, and nothing about the
//! delivery depends on it. A drain waits for it as for what runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backoff::Backoff;
use super::event::{Finished, OnDeadFailed, Verdict};
use super::executor::Surroundings;
use super::health;
use super::subscription::{OnDead, Subscription};
use crate::handler::StopReason;
use crate::model::{Address, Envelope, Failure, Timestamp};
use crate::store::{ErrorKind, Store};

/// How long past its KILL what was told is waited for.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// Tells the subscription's handler of a delivery that is dead. `None` where nobody has to be told.
pub(super) fn tell(
    subscription: &Arc<Subscription>,
    finished: &Finished,
    surroundings: &Surroundings,
) -> Option<impl Future<Output = Option<Box<OnDeadFailed>>> + Send + use<>> {
    let (on_dead, Verdict::Dead { failure }) = (subscription.on_dead.clone()?, &finished.verdict) else {
        return None;
    };
    let telling = Telling {
        on_dead,
        timeout: subscription.timeout,
        kill_after: subscription.kill_after,
        finished: finished.clone(),
        failure: failure.clone(),
        surroundings: surroundings.clone(),
    };
    Some(async move {
        let result = telling.run().await;
        let Finished { delivery_id, event_type, handler, .. } = telling.finished;
        result.err().map(|error| Box::new(OnDeadFailed { delivery_id, event_type, handler, error }))
    })
}

struct Telling {
    on_dead: OnDead,
    timeout: Duration,
    kill_after: Duration,
    finished: Finished,
    failure: Failure,
    surroundings: Surroundings,
}

impl Telling {
    async fn run(&self) -> Result<(), String> {
        let stopping = &self.surroundings.stopping;
        let begin = async {
            let turn = self.on_dead.turn.acquire().await;
            let envelope = timeout(self.timeout, self.envelope()).await;
            (turn, envelope.map_err(|_| "its event could not be read".to_owned()))
        };
        let begun = stopping.run_until_cancelled(begin).await;
        let (_turn, envelope) = begun.ok_or("the worker ended before it could be told")?;
        self.tell(&envelope?).await
    }

    async fn tell(&self, envelope: &Envelope) -> Result<(), String> {
        let Surroundings { clock, stopping, .. } = &self.surroundings;
        let ends_at = clock.now().saturating_add(self.timeout);
        let gone_at = Instant::now() + self.timeout + self.kill_after + AFTER_KILL;
        let control = self.surroundings.control(ends_at, gone_at);
        let context = control.context();
        let mut work = self.on_dead.handler.dead(envelope, &self.failure, &context);
        let reason = tokio::select! {
            result = &mut work => return result,
            () = sleep(self.timeout) => StopReason::TimedOut(self.timeout),
            () = stopping.cancelled() => StopReason::Shutdown,
        };
        let kill_at = Instant::now() + self.kill_after;
        control.stop(reason, kill_at);
        timeout_at(kill_at + AFTER_KILL, work).await.unwrap_or_else(|_| Err(reason.to_string()))
    }

    /// The event as its handler knew it. Asks until the store has answered; what cannot be found or understood is left out.
    async fn envelope(&self) -> Envelope {
        let mut pause = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let store: &dyn Store = &*self.surroundings.store;
        loop {
            match health::answer(store.events(std::slice::from_ref(&self.finished.event_id))).await {
                Ok(mut events) => return self.envelope_of(events.pop()),
                Err(error) if error.kind() == ErrorKind::Corrupt => return self.envelope_of(None),
                Err(_) => sleep(pause.next()).await,
            }
        }
    }

    fn envelope_of(&self, event: Option<crate::model::Event>) -> Envelope {
        let finished = self.finished.clone();
        let event = event.unwrap_or_else(|| crate::model::Event {
            id: finished.event_id.clone(),
            event_type: finished.event_type.clone(),
            payload: Value::Null,
            headers: Value::Object(Map::new()),
            key: finished.key.clone(),
            sequence: finished.sequence,
            correlation_id: None,
            causation_id: None,
            aggregate_id: None,
            metadata: None,
            created_at: Timestamp::EPOCH,
        });
        let to = Address {
            delivery_id: finished.delivery_id,
            handler: finished.handler,
            attempt: finished.attempt,
            max_attempts: finished.max_attempts,
        };
        Envelope::addressed(event, to)
    }
}
