//! The log of a worker on standard error: a calm line for each outcome, for people or as JSON.

mod entries;
#[cfg(test)]
mod tests;
mod words;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;

use self::entries::{JsonEntry, JsonEvent, json_event, json_note};
use self::words::{one_line, seconds, words_for, words_for_news, words_for_trouble};
use super::render::json;
use super::render::text::visible;
use super::ui::{Meaning, StatusLine, Verbosity};
use crate::clock::Clock;
use crate::config::redact;
use crate::dispatch::{DispatchEvent, Verdict};
use crate::handler::lines::{ChildNews, ChildNote};
use crate::model::Timestamp;

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
