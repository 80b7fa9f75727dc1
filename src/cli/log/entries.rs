//! The entries of the log for programs. Fields are only ever added.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::Level;
use crate::config::redact;
use crate::dispatch::{Counts, DispatchEvent, Finished, Resubscription, Verdict};
use crate::handler::Outcome;
use crate::handler::lines::{ChildNews, ChildNote};
use crate::model::{Failure, Pause, Timestamp};

#[derive(Serialize)]
pub(super) struct JsonEntry<'a> {
    pub(super) time: Timestamp,
    pub(super) level: Level,
    pub(super) owner: &'a str,
    #[serde(flatten)]
    pub(super) event: JsonEvent<'a>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub(super) enum JsonEvent<'a> {
    Started { handlers: &'a [String] },
    Listening { address: SocketAddr },
    Warning { message: &'a str },
    ChildSaid { handler: &'a str, pid: u32, message: String },
    ChildLinesLeftOut { count: u64 },
    ChildReplaced { handler: &'a str, pid: u32, reason: String },
    Ready,
    Claimed { handler: &'a str, count: usize },
    Finished(JsonFinished<'a>),
    Crashed(JsonTrouble<'a>),
    OnDeadFailed(JsonTrouble<'a>),
    HandedBack { handler: &'a str, count: usize, lost: usize },
    CallFailed { kind: &'static str, error: String },
    WakeUpsLost { error: String },
    StoreFailing { error: String },
    StoreStillFailing { error: String, lasting_ms: u64 },
    StoreRecovered { after_ms: u64 },
    Paused(&'a Pause),
    Resumed { handler: &'a str },
    PausesUnknown { error: String },
    BreakerOpened { handler: &'a str, failures: u32, pause_ms: u64, error: String },
    BreakerHalfOpened { handler: &'a str },
    BreakerClosed { handler: &'a str, after_ms: u64 },
    ClockDiffers { ahead_ms: i64 },
    TimeStepped { by_ms: i64 },
    Reloaded { added: &'a [String], changed: &'a [String], removed: &'a [String], unchanged: &'a [String] },
    ReloadRefused { error: String },
    ReloadIgnored { reason: &'a str },
    Draining { running: usize, grace_ms: u64 },
    Stopping { running: usize },
    Stopped(JsonCounts),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JsonCounts {
    claimed: u64,
    completed: u64,
    retried: u64,
    dead: u64,
    released: u64,
    lease_lost: u64,
    snoozed: u64,
    crashed: u64,
}

/// What went wrong about a delivery beside its outcome.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JsonTrouble<'a> {
    delivery_id: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    handler: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    error: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JsonFinished<'a> {
    outcome: &'static str,
    delivery_id: &'a str,
    event_id: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    handler: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<i64>,
    attempt: u32,
    max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ran_ms: Option<u64>,
    elapsed_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn json_event(event: &DispatchEvent) -> JsonEvent<'_> {
    match event {
        DispatchEvent::Started { owner: _, handlers } => JsonEvent::Started { handlers },
        DispatchEvent::Ready => JsonEvent::Ready,
        DispatchEvent::Claimed { handler, count } => JsonEvent::Claimed { handler, count: *count },
        DispatchEvent::Finished(finished) => JsonEvent::Finished(json_finished(finished)),
        DispatchEvent::FoundCrashed(found) => JsonEvent::Crashed(JsonTrouble {
            delivery_id: found.delivery_id.as_str(),
            event_type: &found.event_type,
            handler: &found.handler,
            attempt: Some(found.attempt),
            error: redact(&found.message),
        }),
        DispatchEvent::OnDeadFailed(failed) => JsonEvent::OnDeadFailed(JsonTrouble {
            delivery_id: failed.delivery_id.as_str(),
            event_type: &failed.event_type,
            handler: &failed.handler,
            attempt: None,
            error: redact(&failed.error),
        }),
        DispatchEvent::HandedBack { handler, count, lost } => {
            JsonEvent::HandedBack { handler, count: *count, lost: *lost }
        }
        DispatchEvent::CallFailed { error } => {
            JsonEvent::CallFailed { kind: error.kind().as_str(), error: redact(&error.to_string()) }
        }
        DispatchEvent::WakeUpsLost { error } => JsonEvent::WakeUpsLost { error: redact(&error.to_string()) },
        DispatchEvent::StoreFailing { error } => {
            JsonEvent::StoreFailing { error: redact(&error.to_string()) }
        }
        DispatchEvent::StoreStillFailing { error, lasting } => {
            JsonEvent::StoreStillFailing { error: redact(&error.to_string()), lasting_ms: millis(*lasting) }
        }
        DispatchEvent::StoreRecovered { after } => JsonEvent::StoreRecovered { after_ms: millis(*after) },
        DispatchEvent::Paused { pause } => JsonEvent::Paused(pause),
        DispatchEvent::Resumed { handler } => JsonEvent::Resumed { handler },
        DispatchEvent::PausesUnknown { error } => {
            JsonEvent::PausesUnknown { error: redact(&error.to_string()) }
        }
        DispatchEvent::BreakerOpened { handler, failures, pause, error } => JsonEvent::BreakerOpened {
            handler,
            failures: *failures,
            pause_ms: millis(*pause),
            error: redact(error),
        },
        DispatchEvent::BreakerHalfOpened { handler } => JsonEvent::BreakerHalfOpened { handler },
        DispatchEvent::BreakerClosed { handler, after } => {
            JsonEvent::BreakerClosed { handler, after_ms: millis(*after) }
        }
        DispatchEvent::ClockDiffers { skew } => JsonEvent::ClockDiffers { ahead_ms: skew.ahead_ms },
        DispatchEvent::TimeStepped { by_ms } => JsonEvent::TimeStepped { by_ms: *by_ms },
        DispatchEvent::Resubscribed(Resubscription { added, removed, changed, unchanged }) => {
            JsonEvent::Reloaded { added, changed, removed, unchanged }
        }
        DispatchEvent::Draining { running, grace } => {
            JsonEvent::Draining { running: *running, grace_ms: millis(*grace) }
        }
        DispatchEvent::Stopping { running } => JsonEvent::Stopping { running: *running },
        DispatchEvent::Stopped { counts } => {
            let Counts { claimed, completed, retried, dead, released, lease_lost, snoozed, crashed } =
                *counts;
            JsonEvent::Stopped(JsonCounts {
                claimed,
                completed,
                retried,
                dead,
                released,
                lease_lost,
                snoozed,
                crashed,
            })
        }
    }
}

pub(super) fn json_note(note: &ChildNote) -> JsonEvent<'_> {
    let (handler, pid) = (&*note.handler, note.pid);
    match &note.what {
        ChildNews::Said(line) => JsonEvent::ChildSaid { handler, pid, message: redact(line) },
        ChildNews::LeftOut(count) => JsonEvent::ChildLinesLeftOut { count: *count },
        ChildNews::Replaced(why) => JsonEvent::ChildReplaced { handler, pid, reason: redact(why) },
    }
}

fn json_finished(finished: &Finished) -> JsonFinished<'_> {
    let (outcome, failure, retry_at) = match &finished.verdict {
        Verdict::Completed => ("completed", None, None),
        Verdict::Retrying { at, failure } => ("retrying", Some(failure), Some(*at)),
        Verdict::Dead { failure } => ("dead", Some(failure), None),
        Verdict::Snoozed { until } => ("snoozed", None, Some(*until)),
        Verdict::Released => ("released", None, None),
        Verdict::LeaseLost { unrecorded } => ("lease-lost", unrecorded.as_ref().and_then(failure_of), None),
    };
    JsonFinished {
        outcome,
        delivery_id: finished.delivery_id.as_str(),
        event_id: finished.event_id.as_str(),
        event_type: &finished.event_type,
        handler: &finished.handler,
        key: finished.key.as_deref(),
        sequence: finished.sequence,
        attempt: finished.attempt,
        max_attempts: finished.max_attempts,
        waited_ms: finished.timing.map(|timing| millis(timing.waited)),
        ran_ms: finished.timing.map(|timing| millis(timing.ran)),
        elapsed_ms: millis(finished.elapsed),
        retry_at,
        kind: failure.map(|failure| failure.kind.as_str()),
        error: failure.map(|failure| redact(&failure.message)),
    }
}

fn failure_of(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::Failed(failure) | Outcome::Rejected(failure) | Outcome::RetryAfter { failure, .. } => {
            Some(failure)
        }
        Outcome::Succeeded | Outcome::Released | Outcome::Snoozed(_) => None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
