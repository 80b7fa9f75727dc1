//! What a store says about a delivery that may not move.

use futures_util::try_join;

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
    let state = async {
        match &delivery.key {
            Some(key) => store.key_state(&delivery.handler, key, now).await.map(Some),
            None => Ok(None),
        }
    };
    let (state, rest) = try_join!(state, rest_of(store, &delivery, now))?;
    Ok(rest.with(delivery, state, now))
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
    let Some(head) = state.head.clone() else { return Ok(None) };
    let rest = rest_of(store, &head, now).await?;
    Ok(Some(rest.with(head, Some(state), now)))
}

/// The facts that are left when the state of the key is known.
struct Rest {
    behind: u64,
    controls: Controls,
    activity: Option<HandlerActivity>,
}

impl Rest {
    fn with(self, delivery: Delivery, state: Option<KeyState>, now: Timestamp) -> Facts {
        let Rest { behind, controls, activity } = self;
        Facts { now, delivery, key: state.map(|state| KeyFacts { state, behind }), controls, activity }
    }
}

async fn rest_of(store: &dyn Store, delivery: &Delivery, now: Timestamp) -> Result<Rest> {
    let behind = async {
        match (&delivery.key, delivery.sequence) {
            (Some(key), Some(sequence)) => store.waiting_behind(&delivery.handler, key, sequence).await,
            _ => Ok(0),
        }
    };
    if !delivery.status.is_unfinished() {
        return Ok(Rest { behind: behind.await?, controls: Controls::default(), activity: None });
    }
    let activity = store.handler_activity(&delivery.handler, now);
    let (behind, mut controls, activity) = try_join!(behind, controls(store, now), activity)?;
    controls.pauses.retain(|pause| pause.handler == delivery.handler);
    controls.breakers.retain(|breaker| breaker.handler == delivery.handler);
    Ok(Rest { behind, controls, activity: Some(activity) })
}
