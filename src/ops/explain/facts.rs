//! What a store says about a delivery that may not move.

use crate::model::{Controls, Delivery, HandlerActivity, KeyState, Timestamp};
use crate::ops::controls;
use crate::store::{Result, Store};

/// Everything that decides whether a delivery runs. Each fact is read by itself: what moves meanwhile may show in one of
/// them and not yet in another.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When the question was asked.
    pub now: Timestamp,
    /// The delivery.
    pub delivery: Delivery,
    /// What else there is of its handler and key; absent where it has no key.
    pub key: Option<KeyFacts>,
    /// What holds its handler up; nothing once the delivery is finished.
    pub controls: Controls,
    /// Signs that somebody runs its handler; absent once the delivery is finished.
    pub activity: Option<HandlerActivity>,
}

/// What there is of a delivery's handler and key.
#[derive(Clone, Debug)]
pub struct KeyFacts {
    /// What runs and what waits.
    pub state: KeyState,
    /// Unfinished deliveries behind it.
    pub behind: u64,
}

/// The facts about a delivery as it was read just now.
///
/// # Errors
/// Those of the store.
pub async fn facts_of(store: &dyn Store, delivery: Delivery, now: Timestamp) -> Result<Facts> {
    let state = match &delivery.key {
        Some(key) => Some(store.key_state(&delivery.handler, key, now).await?),
        None => None,
    };
    complete(store, delivery, state, now).await
}

/// The facts about the first unfinished delivery of a handler and key; `None` where there is none.
///
/// # Errors
/// Those of the store.
pub async fn facts_of_head(
    store: &dyn Store,
    handler: &str,
    key: &str,
    now: Timestamp,
) -> Result<Option<Facts>> {
    let state = store.key_state(handler, key, now).await?;
    match state.head.clone() {
        Some(head) => complete(store, head, Some(state), now).await.map(Some),
        None => Ok(None),
    }
}

async fn complete(
    store: &dyn Store,
    delivery: Delivery,
    state: Option<KeyState>,
    now: Timestamp,
) -> Result<Facts> {
    let behind = match (&delivery.key, delivery.sequence) {
        (Some(key), Some(sequence)) => store.waiting_behind(&delivery.handler, key, sequence).await?,
        _ => 0,
    };
    let key = state.map(|state| KeyFacts { state, behind });
    if !delivery.status.is_unfinished() {
        return Ok(Facts { now, delivery, key, controls: Controls::default(), activity: None });
    }
    let mut controls = controls(store, now).await?;
    controls.pauses.retain(|pause| pause.handler == delivery.handler);
    controls.breakers.retain(|breaker| breaker.handler == delivery.handler);
    let activity = store.handler_activity(&delivery.handler, now).await?;
    Ok(Facts { now, delivery, key, controls, activity: Some(activity) })
}
