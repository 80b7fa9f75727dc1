//! What the log says to people.

use std::time::Duration;

use super::{ERROR_COLUMNS, Trouble};
use crate::cli::render::text::{fit, visible};
use crate::cli::ui::Meaning;
use crate::clock::Skew;
use crate::dispatch::{Counts, DispatchEvent, Finished, FoundCrashed, OnDeadFailed, Resubscription, Verdict};
use crate::handler::Outcome;
use crate::handler::lines::ChildNews;
use crate::model::{Pause, Status, Timestamp, short_duration};

/// What an event means, in a word, and the rest of its line.
pub(super) fn words_for(event: &DispatchEvent, now: Timestamp) -> (Meaning, &'static str, String) {
    match event {
        DispatchEvent::Started { owner, handlers } => {
            (Meaning::Plain, "started", format!("for {} as {owner}", visible(&handlers.join(", "))))
        }
        DispatchEvent::Ready => (Meaning::Muted, "ready", "the store answers".to_owned()),
        DispatchEvent::Claimed { handler, count } => {
            (Meaning::Muted, "claimed", format!("{}  {}", visible(handler), deliveries(*count)))
        }
        DispatchEvent::Finished(finished) => {
            let (meaning, word, detail) = words_for_verdict(finished, now);
            let Finished { handler, event_type, delivery_id, .. } = &**finished;
            let subject = [handler, event_type, delivery_id.as_str()].map(visible).join("  ");
            (meaning, word, format!("{subject}  {detail}"))
        }
        DispatchEvent::HandedBack { handler, count, .. } => {
            let rest = format!("{}  {} claimed ahead", visible(handler), deliveries(*count));
            (Meaning::Muted, "released", rest)
        }
        DispatchEvent::FoundCrashed(found) => {
            let FoundCrashed { handler, event_type, delivery_id, attempt, message } = &**found;
            let subject = [handler, event_type, delivery_id.as_str()].map(visible).join("  ");
            (Meaning::Warning, "crashed", format!("{subject}  attempt {attempt}: {}", one_line(message)))
        }
        DispatchEvent::OnDeadFailed(failed) => {
            let OnDeadFailed { handler, event_type, delivery_id, error } = &**failed;
            let subject = [handler, event_type, delivery_id.as_str()].map(visible).join("  ");
            (Meaning::Warning, "on dead", format!("{subject}  {}", one_line(error)))
        }
        DispatchEvent::CallFailed { error } => (Meaning::Muted, "store", one_line(&error.to_string())),
        DispatchEvent::WakeUpsLost { error } => {
            let rest = format!("{}; looking for work every so often instead", one_line(&error.to_string()));
            (Meaning::Warning, "store", rest)
        }
        DispatchEvent::StoreFailing { error } => {
            (Meaning::Warning, "store", format!("{}; trying again", one_line(&error.to_string())))
        }
        DispatchEvent::StoreStillFailing { error, lasting } => {
            let (error, lasting) = (one_line(&error.to_string()), short_duration(*lasting));
            (Meaning::Warning, "store", format!("{error}; still trying after {lasting}"))
        }
        DispatchEvent::StoreRecovered { after } => {
            (Meaning::Plain, "store", format!("answers again after {}", short_duration(*after)))
        }
        DispatchEvent::Paused { pause } => (Meaning::Plain, "paused", words_for_pause(pause)),
        DispatchEvent::Resumed { handler } => (Meaning::Plain, "resumed", visible(handler)),
        DispatchEvent::PausesUnknown { error } => {
            let rest = format!("{}; pauses stay as they were", one_line(&error.to_string()));
            (Meaning::Warning, "store", rest)
        }
        DispatchEvent::BreakerOpened { handler, failures, pause, error } => {
            let (handler, pause) = (visible(handler), elapsed(*pause));
            let rest =
                format!("{handler}  {failures} failures in a row, a rest of {pause}: {}", one_line(error));
            (Meaning::Warning, "breaker", rest)
        }
        DispatchEvent::BreakerHalfOpened { handler } => {
            (Meaning::Plain, "breaker", format!("{}  one at a time may try", visible(handler)))
        }
        DispatchEvent::BreakerClosed { handler, after } => {
            let rest = format!("{}  closed after {}", visible(handler), short_duration(*after));
            (Meaning::Plain, "breaker", rest)
        }
        DispatchEvent::ClockDiffers { skew } => (Meaning::Warning, "clock", words_for_skew(skew)),
        DispatchEvent::TimeStepped { by_ms } => (Meaning::Warning, "clock", words_for_step(*by_ms)),
        DispatchEvent::Resubscribed(change) => (Meaning::Plain, "reloaded", words_for_change(change)),
        DispatchEvent::Draining { running: 0, .. } => (Meaning::Plain, "draining", "nothing runs".to_owned()),
        DispatchEvent::Draining { running, grace } => {
            let rest = format!(
                "waiting up to {} for {}; a second signal stops now",
                short_duration(*grace),
                deliveries(*running)
            );
            (Meaning::Plain, "draining", rest)
        }
        DispatchEvent::Stopping { running } => (Meaning::Warning, "stopping", deliveries(*running)),
        DispatchEvent::Stopped { counts } => (Meaning::Plain, "stopped", summary(counts)),
    }
}

pub(super) fn words_for_news(news: &ChildNews) -> String {
    match news {
        ChildNews::Said(line) => fit(&visible(line), ERROR_COLUMNS),
        ChildNews::LeftOut(count) => format!("{count} lines were left out"),
        ChildNews::Replaced(why) => format!("is replaced: {}", one_line(why)),
    }
}

pub(super) fn words_for_trouble(trouble: Trouble) -> (Meaning, &'static str) {
    match trouble {
        Trouble::Retrying => (Meaning::Status(Status::Pending), "retrying"),
        Trouble::Dead => (Meaning::Status(Status::Dead), "dead"),
        Trouble::LeaseLost => (Meaning::Warning, "lease lost"),
    }
}

fn words_for_verdict(finished: &Finished, now: Timestamp) -> (Meaning, &'static str, String) {
    let attempt = format!("attempt {} of {}", finished.attempt, finished.max_attempts);
    match &finished.verdict {
        Verdict::Completed => (Meaning::Status(Status::Completed), "completed", elapsed(finished.elapsed)),
        Verdict::Retrying { at, failure } => {
            let pause = elapsed(at.since(now));
            let (meaning, word) = words_for_trouble(Trouble::Retrying);
            (meaning, word, format!("{attempt}, again in {pause}: {}", one_line(&failure.message)))
        }
        Verdict::Dead { failure } => {
            let (meaning, word) = words_for_trouble(Trouble::Dead);
            (meaning, word, format!("{attempt}: {}", one_line(&failure.message)))
        }
        Verdict::Snoozed { until } => {
            let detail = format!("again in {}; the attempt is not counted", elapsed(until.since(now)));
            (Meaning::Muted, "snoozed", detail)
        }
        Verdict::Released => (Meaning::Muted, "released", "the attempt is not counted".to_owned()),
        Verdict::LeaseLost { unrecorded } => {
            let detail = match unrecorded {
                Some(Outcome::Succeeded) => format!("{attempt} succeeded, but that could not be recorded"),
                Some(
                    Outcome::Failed(failure)
                    | Outcome::Rejected(failure)
                    | Outcome::RetryAfter { failure, .. },
                ) => {
                    format!("{attempt}, not recorded: {}", one_line(&failure.message))
                }
                Some(Outcome::Released | Outcome::Snoozed(_)) | None => attempt,
            };
            let (meaning, word) = words_for_trouble(Trouble::LeaseLost);
            (meaning, word, detail)
        }
    }
}

fn words_for_pause(pause: &Pause) -> String {
    let until = pause.paused_until.map(|until| format!(" until {}", seconds(until))).unwrap_or_default();
    let reason = pause.reason.as_deref().map(|reason| format!(": {}", one_line(reason))).unwrap_or_default();
    format!("{}{until} by {}{reason}", visible(&pause.handler), visible(&pause.by))
}

fn words_for_skew(skew: &Skew) -> String {
    format!("this host's clock is {skew}; leases, retries and this log go by the server's")
}

fn words_for_step(by_ms: i64) -> String {
    let (direction, then) =
        if by_ms < 0 { ("back", "") } else { ("forward", ", and claims rest until others can have done so") };
    let by = elapsed(Duration::from_millis(by_ms.unsigned_abs()));
    format!(
        "the server's went {direction} by {by}: it was set, or another has taken over; leases are renewed{then}"
    )
}

fn words_for_change(change: &Resubscription) -> String {
    let unchanged = change.unchanged.len();
    let named = [("added", &change.added), ("changed", &change.changed), ("removed", &change.removed)];
    let named = named.into_iter().filter(|(_, names)| !names.is_empty());
    let named = named.map(|(word, names)| format!("{word} {}", visible(&names.join(", "))));
    let rest = (unchanged > 0 || change.is_empty()).then(|| format!("{unchanged} unchanged"));
    named.chain(rest).collect::<Vec<_>>().join("; ")
}

/// The first and the last line of an error: the first says how it ended, the last one usually what is wrong.
pub(super) fn one_line(message: &str) -> String {
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let line = match (lines.next_back(), lines.next()) {
        (None, _) => first.to_owned(),
        (Some(last), None) => format!("{first} / {last}"),
        (Some(last), Some(_)) => format!("{first} … {last}"),
    };
    fit(&visible(&line), ERROR_COLUMNS)
}

fn summary(counts: &Counts) -> String {
    let all = [
        (counts.completed, "completed"),
        (counts.retried, "to be tried again"),
        (counts.dead, "dead"),
        (counts.snoozed, "snoozed"),
        (counts.released, "released"),
        (counts.lease_lost, "with a lost lease"),
        (counts.crashed, "after a crash"),
    ];
    let some: Vec<_> =
        all.iter().filter(|(count, _)| *count > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if some.is_empty() { "nothing was due".to_owned() } else { some.join(", ") }
}

fn deliveries(count: usize) -> String {
    if count == 1 { "1 delivery".to_owned() } else { format!("{count} deliveries") }
}

/// `41ms`, `1.2s`, `3m`.
fn elapsed(duration: Duration) -> String {
    match duration.as_millis() {
        0..1_000 => format!("{}ms", duration.as_millis()),
        1_000..10_000 => format!("{:.1}s", duration.as_secs_f64()).replace(".0s", "s"),
        _ => short_duration(duration),
    }
}

/// An instant in UTC, to the second.
pub(super) fn seconds(time: Timestamp) -> String {
    let text = time.to_string();
    text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}
