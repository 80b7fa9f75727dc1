//! The log of a worker on standard error: a calm line for each outcome, for people or as JSON.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::render::json;
use super::render::text::{fit, visible};
use super::ui::{Meaning, StatusLine, Verbosity};
use crate::clock::{Clock, Skew};
use crate::config::redact;
use crate::dispatch::{Counts, DispatchEvent, Finished, FoundCrashed, OnDeadFailed, Resubscription, Verdict};
use crate::handler::Outcome;
use crate::handler::lines::{ChildNews, ChildNote};
use crate::model::{Failure, Pause, Status, Timestamp, short_duration};

/// The columns that an error takes in a line for people; the store has all of it.
const ERROR_COLUMNS: usize = 160;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of words.
    #[default]
    Human,
    /// A JSON object a line; fields are only ever added.
    Json,
}

/// How much an entry matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Why a worker goes on with the handlers that it has.
#[derive(Debug)]
pub enum Unchanged {
    /// The new ones cannot be used: what is wrong with which.
    Refused(String),
    /// It was not even tried.
    Ignored(&'static str),
}

/// Where and how a worker's events are written.
#[derive(Debug)]
pub struct Log {
    /// How.
    pub format: LogFormat,
    /// How much.
    pub verbosity: Verbosity,
    /// Whether in colours.
    pub has_color: bool,
    /// The time of the entries: the worker's, so that they can be compared with what the store shows and with the logs of
    /// other hosts.
    pub clock: Arc<dyn Clock>,
    /// Whose entries they are: the worker as it holds leases, `host:pid`.
    pub owner: String,
    /// What stays below the entries.
    pub status_line: Option<StatusLine>,
}

/// Troubles that may come in great numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// An attempt failed, and another one follows.
    Retrying,
    /// A delivery was given up.
    Dead,
    /// A lease was lost.
    LeaseLost,
}

impl Log {
    /// Writes an entry to standard error. A closed standard error is nobody's concern.
    pub fn write(&self, event: &DispatchEvent) {
        if let Some(line) = self.line(event, self.clock.now()) {
            self.put(&line);
        }
    }

    /// Writes for people that there were so many more troubles of a handler than have an entry of their own.
    pub fn more(&self, handler: &str, trouble: Trouble, count: u64) {
        let (meaning, word) = words_for_trouble(trouble);
        let rest = format!("{}  and {count} more like this", visible(handler));
        self.put(&self.human_line(self.clock.now(), meaning, word, &rest));
    }

    /// Writes where the worker can be watched.
    pub fn listening(&self, address: SocketAddr) {
        if self.verbosity >= Verbosity::Normal {
            let now = self.clock.now();
            let line = match self.format {
                LogFormat::Human => {
                    self.human_line(now, Meaning::Plain, "metrics", &format!("http://{address}/metrics"))
                }
                LogFormat::Json => self.json_line(JsonEvent::Listening { address }, Level::Info, now),
            };
            self.put(&line);
        }
    }

    /// Writes a warning to standard error.
    pub fn warn(&self, text: &str) {
        let now = self.clock.now();
        let line = match self.format {
            LogFormat::Human => self.human_line(now, Meaning::Warning, "warning", &visible(text)),
            LogFormat::Json => self.json_line(JsonEvent::Warning { message: text }, Level::Warn, now),
        };
        self.put(&line);
    }

    fn put(&self, line: &str) {
        match &self.status_line {
            Some(status_line) => status_line.say(line),
            None => drop(io::stderr().write_all(line.as_bytes())),
        }
    }

    /// Writes why the worker goes on with the handlers that it has, although it was told to read their file again.
    pub fn write_unchanged(&self, unchanged: &Unchanged) {
        self.put(&self.unchanged_line(unchanged, self.clock.now()));
    }

    fn unchanged_line(&self, unchanged: &Unchanged, now: Timestamp) -> String {
        match (self.format, unchanged) {
            (LogFormat::Human, Unchanged::Refused(error)) => {
                let rest = format!("{}; the handlers stay as they were", one_line(error));
                self.human_line(now, Meaning::Error, "refused", &rest)
            }
            (LogFormat::Human, Unchanged::Ignored(why)) => {
                self.human_line(now, Meaning::Warning, "ignored", &format!("SIGHUP, as {why}"))
            }
            (LogFormat::Json, Unchanged::Refused(error)) => {
                self.json_line(JsonEvent::ReloadRefused { error: redact(error) }, Level::Error, now)
            }
            (LogFormat::Json, Unchanged::Ignored(why)) => {
                self.json_line(JsonEvent::ReloadIgnored { reason: why }, Level::Warn, now)
            }
        }
    }

    /// Writes what a child has to say to standard error.
    pub fn write_note(&self, note: &ChildNote) {
        if let Some(line) = self.note_line(note, self.clock.now()) {
            self.put(&line);
        }
    }

    fn note_line(&self, note: &ChildNote, now: Timestamp) -> Option<String> {
        let level = if matches!(note.what, ChildNews::Said(_)) { Level::Info } else { Level::Warn };
        let line = match self.format {
            LogFormat::Human => {
                let meaning = if level == Level::Info { Meaning::Muted } else { Meaning::Warning };
                let rest =
                    format!("{} [{}]  {}", visible(&note.handler), note.pid, words_for_news(&note.what));
                self.human_line(now, meaning, "child", &rest)
            }
            LogFormat::Json => self.json_line(json_note(note), level, now),
        };
        (level >= self.least()).then_some(line)
    }

    fn least(&self) -> Level {
        match self.verbosity {
            Verbosity::Quiet => Level::Warn,
            Verbosity::Normal => Level::Info,
            Verbosity::Verbose => Level::Debug,
        }
    }

    fn line(&self, event: &DispatchEvent, now: Timestamp) -> Option<String> {
        let level = level_of(event);
        let line = match self.format {
            LogFormat::Human => {
                let (meaning, word, rest) = words_for(event, now);
                self.human_line(now, meaning, word, &rest)
            }
            LogFormat::Json => self.json_line(json_event(event), level, now),
        };
        (level >= self.least()).then_some(line)
    }

    fn human_line(&self, now: Timestamp, meaning: Meaning, word: &str, rest: &str) -> String {
        let time = Meaning::Muted.paint(&seconds(now), self.has_color);
        let word = meaning.paint(&format!("{word:<10}"), self.has_color);
        format!("{time} {word} {}\n", redact(rest))
    }

    fn json_line(&self, event: JsonEvent<'_>, level: Level, now: Timestamp) -> String {
        let mut line = Vec::new();
        // Writing into memory cannot fail.
        let _ = json::write_line(&mut line, &JsonEntry { time: now, level, owner: &self.owner, event });
        String::from_utf8(line).unwrap_or_default()
    }
}

fn level_of(event: &DispatchEvent) -> Level {
    match event {
        DispatchEvent::Ready
        | DispatchEvent::Claimed { .. }
        | DispatchEvent::HandedBack { .. }
        | DispatchEvent::CallFailed { .. } => Level::Debug,
        DispatchEvent::StoreFailing { .. }
        | DispatchEvent::StoreStillFailing { .. }
        | DispatchEvent::WakeUpsLost { .. }
        | DispatchEvent::PausesUnknown { .. }
        | DispatchEvent::ClockDiffers { .. }
        | DispatchEvent::TimeStepped { .. }
        | DispatchEvent::BreakerOpened { .. }
        | DispatchEvent::FoundCrashed(_)
        | DispatchEvent::OnDeadFailed(_) => Level::Warn,
        DispatchEvent::Finished(finished) => match finished.verdict {
            Verdict::Completed | Verdict::Released | Verdict::Snoozed { .. } => Level::Info,
            Verdict::Retrying { .. } | Verdict::LeaseLost { .. } => Level::Warn,
            Verdict::Dead { .. } => Level::Error,
        },
        DispatchEvent::Started { .. }
        | DispatchEvent::StoreRecovered { .. }
        | DispatchEvent::Paused { .. }
        | DispatchEvent::Resumed { .. }
        | DispatchEvent::BreakerHalfOpened { .. }
        | DispatchEvent::BreakerClosed { .. }
        | DispatchEvent::Resubscribed(_)
        | DispatchEvent::Draining { .. }
        | DispatchEvent::Stopping { .. }
        | DispatchEvent::Stopped { .. } => Level::Info,
    }
}

// ---- for people ----------------------------------------------------------------------------------------------------

/// What an event means, in a word, and the rest of its line.
fn words_for(event: &DispatchEvent, now: Timestamp) -> (Meaning, &'static str, String) {
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

fn words_for_news(news: &ChildNews) -> String {
    match news {
        ChildNews::Said(line) => fit(&visible(line), ERROR_COLUMNS),
        ChildNews::LeftOut(count) => format!("{count} lines were left out"),
        ChildNews::Replaced(why) => format!("is replaced: {}", one_line(why)),
    }
}

fn words_for_trouble(trouble: Trouble) -> (Meaning, &'static str) {
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
fn one_line(message: &str) -> String {
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
fn seconds(time: Timestamp) -> String {
    let text = time.to_string();
    text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}

// ---- as JSON -------------------------------------------------------------------------------------------------------

#[derive(Serialize)]
struct JsonEntry<'a> {
    time: Timestamp,
    level: Level,
    owner: &'a str,
    #[serde(flatten)]
    event: JsonEvent<'a>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum JsonEvent<'a> {
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
struct JsonCounts {
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
struct JsonTrouble<'a> {
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
struct JsonFinished<'a> {
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

fn json_event(event: &DispatchEvent) -> JsonEvent<'_> {
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

fn json_note(note: &ChildNote) -> JsonEvent<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::dispatch::Timing;
    use crate::model::FailureKind;
    use crate::store::{ErrorKind, StoreError};

    const NOW: Timestamp = Timestamp::from_millis(1_764_528_000_120);

    fn log(format: LogFormat, verbosity: Verbosity) -> Log {
        Log {
            format,
            verbosity,
            has_color: false,
            clock: Arc::new(ManualClock::at(NOW)),
            status_line: None,
            owner: "host:17".into(),
        }
    }

    fn finished(verdict: Verdict) -> DispatchEvent {
        DispatchEvent::Finished(Box::new(Finished {
            delivery_id: "d-1".into(),
            event_id: "e-1".into(),
            event_type: "order.placed.v1".into(),
            handler: "projector".into(),
            key: Some("order-17".into()),
            sequence: Some(3),
            attempt: 2,
            max_attempts: 5,
            elapsed: Duration::from_millis(41),
            timing: Some(Timing { waited: Duration::from_millis(120), ran: Duration::from_millis(37) }),
            verdict,
        }))
    }

    fn failure(message: &str) -> Failure {
        Failure::new(FailureKind::Failed, message)
    }

    fn every_event() -> Vec<DispatchEvent> {
        let at = NOW.saturating_add(Duration::from_secs(4));
        let counts = Counts { claimed: 4, completed: 2, retried: 1, dead: 1, ..Counts::default() };
        let error =
            Arc::new(StoreError::new(ErrorKind::Unavailable, "no answer from mongodb://u:hunter2@h/"));
        vec![
            DispatchEvent::Started {
                owner: "host:17".into(),
                handlers: vec!["projector".into(), "mailer".into()],
            },
            DispatchEvent::Ready,
            DispatchEvent::Claimed { handler: "projector".into(), count: 4 },
            finished(Verdict::Completed),
            finished(Verdict::Retrying { at, failure: failure("exit status 3: no route to host") }),
            finished(Verdict::Dead {
                failure: failure("exit status 1: Traceback:\n  line 1\n  line 2\nKeyError: 'id'"),
            }),
            finished(Verdict::Snoozed { until: at }),
            finished(Verdict::Released),
            DispatchEvent::FoundCrashed(Box::new(FoundCrashed {
                delivery_id: "d-1".into(),
                event_type: "order.placed.v1".into(),
                handler: "projector".into(),
                attempt: 1,
                message: "worker elsewhere:1 died".into(),
            })),
            DispatchEvent::OnDeadFailed(Box::new(OnDeadFailed {
                delivery_id: "d-1".into(),
                event_type: "order.placed.v1".into(),
                handler: "projector".into(),
                error: "exit status 1".into(),
            })),
            finished(Verdict::LeaseLost { unrecorded: Some(Outcome::Succeeded) }),
            DispatchEvent::HandedBack { handler: "projector".into(), count: 3, lost: 1 },
            DispatchEvent::CallFailed { error: error.clone() },
            DispatchEvent::StoreFailing { error: error.clone() },
            DispatchEvent::StoreStillFailing { error, lasting: Duration::from_secs(420) },
            DispatchEvent::StoreRecovered { after: Duration::from_secs(12) },
            DispatchEvent::Draining { running: 1, grace: Duration::from_secs(30) },
            DispatchEvent::Stopping { running: 2 },
            DispatchEvent::Stopped { counts },
        ]
    }

    fn lines(log: &Log) -> String {
        every_event().iter().filter_map(|event| log.line(event, NOW)).collect()
    }

    #[test]
    fn people_get_a_calm_line_for_each_outcome() {
        insta::assert_snapshot!(lines(&log(LogFormat::Human, Verbosity::Normal)), @r#"
        2025-11-30T18:40:00Z started    for projector, mailer as host:17
        2025-11-30T18:40:00Z completed  projector  order.placed.v1  d-1  41ms
        2025-11-30T18:40:00Z retrying   projector  order.placed.v1  d-1  attempt 2 of 5, again in 4s: exit status 3: no route to host
        2025-11-30T18:40:00Z dead       projector  order.placed.v1  d-1  attempt 2 of 5: exit status 1: Traceback: … KeyError: 'id'
        2025-11-30T18:40:00Z snoozed    projector  order.placed.v1  d-1  again in 4s; the attempt is not counted
        2025-11-30T18:40:00Z released   projector  order.placed.v1  d-1  the attempt is not counted
        2025-11-30T18:40:00Z crashed    projector  order.placed.v1  d-1  attempt 1: worker elsewhere:1 died
        2025-11-30T18:40:00Z on dead    projector  order.placed.v1  d-1  exit status 1
        2025-11-30T18:40:00Z lease lost projector  order.placed.v1  d-1  attempt 2 of 5 succeeded, but that could not be recorded
        2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; trying again
        2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; still trying after 7m
        2025-11-30T18:40:00Z store      answers again after 12s
        2025-11-30T18:40:00Z draining   waiting up to 30s for 1 delivery; a second signal stops now
        2025-11-30T18:40:00Z stopping   2 deliveries
        2025-11-30T18:40:00Z stopped    2 completed, 1 to be tried again, 1 dead
        "#);
    }

    #[test]
    fn programs_get_an_object_for_each_outcome() {
        insta::assert_snapshot!(lines(&log(LogFormat::Json, Verbosity::Verbose)), @r#"
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"started","handlers":["projector","mailer"]}
        {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"ready"}
        {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"claimed","handler":"projector","count":4}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"finished","outcome":"completed","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"finished","outcome":"retrying","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41,"retryAt":"2025-11-30T18:40:04.120Z","kind":"failed","error":"exit status 3: no route to host"}
        {"time":"2025-11-30T18:40:00.120Z","level":"error","owner":"host:17","event":"finished","outcome":"dead","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41,"kind":"failed","error":"exit status 1: Traceback:\n  line 1\n  line 2\nKeyError: 'id'"}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"finished","outcome":"snoozed","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41,"retryAt":"2025-11-30T18:40:04.120Z"}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"finished","outcome":"released","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"crashed","deliveryId":"d-1","type":"order.placed.v1","handler":"projector","attempt":1,"error":"worker elsewhere:1 died"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"on-dead-failed","deliveryId":"d-1","type":"order.placed.v1","handler":"projector","error":"exit status 1"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"finished","outcome":"lease-lost","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41}
        {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"handed-back","handler":"projector","count":3,"lost":1}
        {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"call-failed","kind":"unavailable","error":"no answer from mongodb://u:***@h/"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"store-failing","error":"no answer from mongodb://u:***@h/"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"store-still-failing","error":"no answer from mongodb://u:***@h/","lastingMs":420000}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"store-recovered","afterMs":12000}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"draining","running":1,"graceMs":30000}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"stopping","running":2}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"stopped","claimed":4,"completed":2,"retried":1,"dead":1,"released":0,"leaseLost":0,"snoozed":0,"crashed":0}
        "#);
    }

    /// The names in the entry of an event, in order.
    fn fields_of(event: &DispatchEvent) -> String {
        let line = log(LogFormat::Json, Verbosity::Verbose).line(event, NOW).unwrap();
        let entry: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        entry.keys().cloned().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_outcome_has_the_documented_fields() {
        const ALL: &str = "time level owner event outcome deliveryId eventId type handler key sequence attempt maxAttempts \
                           waitedMs ranMs elapsedMs";
        let at = NOW;
        let with = |more: &str| format!("{ALL}{more}");
        let unrecorded = |outcome| Verdict::LeaseLost { unrecorded: outcome };
        let expected = [
            (Verdict::Completed, with("")),
            (Verdict::Released, with("")),
            (Verdict::Snoozed { until: at }, with(" retryAt")),
            (Verdict::Retrying { at, failure: failure("no") }, with(" retryAt kind error")),
            (Verdict::Dead { failure: failure("no") }, with(" kind error")),
            (unrecorded(None), with("")),
            (unrecorded(Some(Outcome::Succeeded)), with("")),
            (unrecorded(Some(Outcome::failed("no"))), with(" kind error")),
        ];
        for (verdict, fields) in expected {
            assert_eq!(fields_of(&finished(verdict.clone())), fields, "{verdict:?}");
        }
        let DispatchEvent::Finished(mut bare) = finished(Verdict::Completed) else { panic!() };
        (bare.key, bare.sequence, bare.timing) = (None, None, None);
        let optional = [" key", " sequence", " waitedMs", " ranMs"];
        let fewer = optional.iter().fold(with(""), |fields, name| fields.replace(name, ""));
        assert_eq!(fields_of(&DispatchEvent::Finished(bare)), fewer);
    }

    /// What holds handlers up.
    fn gate_events() -> Vec<DispatchEvent> {
        let handler = || "projector".to_owned();
        let pause = Pause {
            handler: handler(),
            paused_at: NOW,
            paused_until: Some(NOW.saturating_add(Duration::from_secs(3_600))),
            reason: Some("the shop is closed".into()),
            by: "ana@desk".into(),
        };
        let error = Arc::new(StoreError::new(ErrorKind::Unavailable, "no answer"));
        vec![
            DispatchEvent::Paused { pause: pause.clone() },
            DispatchEvent::Paused { pause: Pause { paused_until: None, reason: None, ..pause } },
            DispatchEvent::Resumed { handler: handler() },
            DispatchEvent::PausesUnknown { error },
            DispatchEvent::BreakerOpened {
                handler: handler(),
                failures: 10,
                pause: Duration::from_secs(30),
                error: "exit status 1: no route".into(),
            },
            DispatchEvent::BreakerHalfOpened { handler: handler() },
            DispatchEvent::BreakerClosed { handler: handler(), after: Duration::from_secs(95) },
        ]
    }

    #[test]
    fn what_holds_handlers_up_is_told() {
        let told = |format| -> String {
            let log = log(format, Verbosity::Normal);
            gate_events().iter().filter_map(|event| log.line(event, NOW)).collect()
        };
        insta::assert_snapshot!(told(LogFormat::Human), @r#"
        2025-11-30T18:40:00Z paused     projector until 2025-11-30T19:40:00Z by ana@desk: the shop is closed
        2025-11-30T18:40:00Z paused     projector by ana@desk
        2025-11-30T18:40:00Z resumed    projector
        2025-11-30T18:40:00Z store      no answer; pauses stay as they were
        2025-11-30T18:40:00Z breaker    projector  10 failures in a row, a rest of 30s: exit status 1: no route
        2025-11-30T18:40:00Z breaker    projector  one at a time may try
        2025-11-30T18:40:00Z breaker    projector  closed after 1m
        "#);
        insta::assert_snapshot!(told(LogFormat::Json), @r#"
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"paused","handler":"projector","pausedAt":"2025-11-30T18:40:00.120Z","pausedUntil":"2025-11-30T19:40:00.120Z","reason":"the shop is closed","by":"ana@desk"}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"paused","handler":"projector","pausedAt":"2025-11-30T18:40:00.120Z","by":"ana@desk"}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"resumed","handler":"projector"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"pauses-unknown","error":"no answer"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"breaker-opened","handler":"projector","failures":10,"pauseMs":30000,"error":"exit status 1: no route"}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"breaker-half-opened","handler":"projector"}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"breaker-closed","handler":"projector","afterMs":95000}
        "#);
    }

    #[test]
    fn what_became_of_a_reload_is_told() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let (added, changed, removed) = (names(&["a", "b"]), names(&["c"]), names(&["d"]));
        let change = Resubscription { added, changed, removed, unchanged: names(&["e", "f"]) };
        let same = Resubscription { unchanged: names(&["e"]), ..Resubscription::default() };
        let refused = "h.toml is not valid: line 3\n  |\nexpected `=` near mongodb://u:hunter2@h/".to_owned();
        let unchanged = [Unchanged::Refused(refused), Unchanged::Ignored("the worker is ending")];
        let told = |format| -> String {
            let log = log(format, Verbosity::Normal);
            let done = [change.clone(), same.clone()].map(DispatchEvent::Resubscribed);
            let done = done.iter().filter_map(|event| log.line(event, NOW));
            done.chain(unchanged.iter().map(|one| log.unchanged_line(one, NOW))).collect()
        };
        insta::assert_snapshot!(told(LogFormat::Human), @r#"
        2025-11-30T18:40:00Z reloaded   added a, b; changed c; removed d; 2 unchanged
        2025-11-30T18:40:00Z reloaded   1 unchanged
        2025-11-30T18:40:00Z refused    h.toml is not valid: line 3 … expected `=` near mongodb://u:***@h/; the handlers stay as they were
        2025-11-30T18:40:00Z ignored    SIGHUP, as the worker is ending
        "#);
        insta::assert_snapshot!(told(LogFormat::Json), @r#"
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"reloaded","added":["a","b"],"changed":["c"],"removed":["d"],"unchanged":["e","f"]}
        {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"reloaded","added":[],"changed":[],"removed":[],"unchanged":["e"]}
        {"time":"2025-11-30T18:40:00.120Z","level":"error","owner":"host:17","event":"reload-refused","error":"h.toml is not valid: line 3\n  |\nexpected `=` near mongodb://u:***@h/"}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"reload-ignored","reason":"the worker is ending"}
        "#);
    }

    #[test]
    fn what_children_say_is_told_with_their_names() {
        let news = [
            ChildNews::Said("hello \u{1b}[2J mongodb://u:hunter2@h/".into()),
            ChildNews::LeftOut(7),
            ChildNews::Replaced("exit status 1: a\nb".into()),
        ];
        let note = |what| ChildNote { handler: "mailer".into(), pid: 17, what };
        let told = |format, verbosity| -> String {
            let log = log(format, verbosity);
            news.iter().filter_map(|what| log.note_line(&note(what.clone()), NOW)).collect()
        };
        assert_eq!(
            told(LogFormat::Human, Verbosity::Normal),
            "2025-11-30T18:40:00Z child      mailer [17]  hello \\x1b[2J mongodb://u:***@h/\n\
             2025-11-30T18:40:00Z child      mailer [17]  7 lines were left out\n\
             2025-11-30T18:40:00Z child      mailer [17]  is replaced: exit status 1: a / b\n"
        );
        assert_eq!(told(LogFormat::Human, Verbosity::Quiet).lines().count(), 2);
        let json = told(LogFormat::Json, Verbosity::Normal);
        let entries: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let events: Vec<_> = entries.iter().map(|entry| entry["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["child-said", "child-lines-left-out", "child-replaced"]);
        assert!(!json.contains("hunter2"));
    }

    #[test]
    fn clocks_that_differ_are_told_also_when_quiet() {
        let skew = |ahead_ms| Skew { ahead_ms, error: Duration::from_millis(2) };
        let events = [
            DispatchEvent::ClockDiffers { skew: skew(600_003) },
            DispatchEvent::ClockDiffers { skew: skew(-1_480) },
            DispatchEvent::TimeStepped { by_ms: 2_500 },
            DispatchEvent::TimeStepped { by_ms: -600_000 },
        ];
        let told = |format| -> String {
            let log = log(format, Verbosity::Quiet);
            events.iter().filter_map(|event| log.line(event, NOW)).collect()
        };
        insta::assert_snapshot!(told(LogFormat::Human), @r#"
        2025-11-30T18:40:00Z clock      this host's clock is 10m ahead of the server's; leases, retries and this log go by the server's
        2025-11-30T18:40:00Z clock      this host's clock is 1s behind the server's; leases, retries and this log go by the server's
        2025-11-30T18:40:00Z clock      the server's went forward by 2.5s: it was set, or another has taken over; leases are renewed, and claims rest until others can have done so
        2025-11-30T18:40:00Z clock      the server's went back by 10m: it was set, or another has taken over; leases are renewed
        "#);
        insta::assert_snapshot!(told(LogFormat::Json), @r#"
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"clock-differs","aheadMs":600003}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"clock-differs","aheadMs":-1480}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"time-stepped","byMs":2500}
        {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"time-stepped","byMs":-600000}
        "#);
    }

    #[test]
    fn a_quiet_worker_tells_its_troubles_only() {
        insta::assert_snapshot!(lines(&log(LogFormat::Human, Verbosity::Quiet)), @r#"
        2025-11-30T18:40:00Z retrying   projector  order.placed.v1  d-1  attempt 2 of 5, again in 4s: exit status 3: no route to host
        2025-11-30T18:40:00Z dead       projector  order.placed.v1  d-1  attempt 2 of 5: exit status 1: Traceback: … KeyError: 'id'
        2025-11-30T18:40:00Z crashed    projector  order.placed.v1  d-1  attempt 1: worker elsewhere:1 died
        2025-11-30T18:40:00Z on dead    projector  order.placed.v1  d-1  exit status 1
        2025-11-30T18:40:00Z lease lost projector  order.placed.v1  d-1  attempt 2 of 5 succeeded, but that could not be recorded
        2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; trying again
        2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; still trying after 7m
        "#);
    }

    #[test]
    fn an_error_stays_on_its_line_and_cannot_reach_the_terminal() {
        assert_eq!(one_line("exit status 1: a\u{1b}[2Jb"), "exit status 1: a\\x1b[2Jb");
        assert_eq!(one_line("one\n\ntwo\n"), "one / two");
        let long = one_line(&"x".repeat(10_000));
        assert!(long.ends_with('…') && long.chars().count() == ERROR_COLUMNS);
        let event = finished(Verdict::Dead { failure: failure("a\u{1b}\nb") });
        let json = log(LogFormat::Json, Verbosity::Normal).line(&event, NOW).unwrap();
        assert_eq!(json.matches('\n').count(), 1);
        assert!(!json.contains('\u{1b}'));
    }
}
