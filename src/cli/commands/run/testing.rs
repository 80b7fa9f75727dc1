//! What the tests of those who hear a worker share.

use std::time::Duration;

use crate::dispatch::{DispatchEvent, Finished, Verdict};

/// A delivery that the worker is done with.
pub(super) fn finished(handler: &str, event_type: &str, verdict: Verdict) -> DispatchEvent {
    DispatchEvent::Finished(Box::new(Finished {
        delivery_id: "d".into(),
        event_id: "e".into(),
        event_type: event_type.into(),
        handler: handler.into(),
        key: None,
        sequence: None,
        attempt: 1,
        max_attempts: 5,
        elapsed: Duration::ZERO,
        timing: None,
        verdict,
    }))
}
