//! Why a delivery runs or does not, in sentences, and what would help, as commands.

use serde::Serialize;

use super::pause::described;
use crate::cli::given::Given;
use crate::cli::render::delivery::{tries, when};
use crate::cli::render::text::visible;
use crate::cli::render::time::Times;
use crate::cli::ui::{Meaning, Ui};
use crate::model::{AttemptError, Delivery, DeliveryId, Timestamp, TrippedBreaker};
use crate::ops::explain::{Explanation, Finding, Found, Remedy};

/// A command that would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Help {
    /// What it is for, as in "to run it again".
    pub purpose: String,
    /// The line for a shell.
    pub command: String,
}

/// The commands that carry remedies out, on the store that the user named.
pub fn help(explanation: &Explanation, given: &Given) -> Vec<Help> {
    explanation
        .remedies
        .iter()
        .map(|remedy| Help { purpose: purpose(remedy), command: command(remedy, given) })
        .collect()
}

fn command(remedy: &Remedy, given: &Given) -> String {
    match remedy {
        Remedy::Requeue { id, .. } => {
            given.command([&["requeue"], positional(id.as_str()).as_slice()].concat())
        }
        Remedy::Bury { id } => given.command([&["bury"], positional(id.as_str()).as_slice()].concat()),
        Remedy::BringForward { id } => {
            let id = positional(id.as_str());
            let bury = given.command([["bury", "--reason", "to run it now"].as_slice(), &id].concat());
            format!("{bury} && {}", given.command([&["requeue"], id.as_slice()].concat()))
        }
        Remedy::Resume { handler } => given.command([&["resume"], positional(handler).as_slice()].concat()),
        Remedy::LookAtErrors { handler } => {
            let handler = format!("--handler={handler}");
            given.command(["errors", "--status", "pending", "--status", "dead", &handler])
        }
        Remedy::Recover { handler } => {
            let handler = format!("--handler={handler}");
            given.command(["recover", &handler])
        }
    }
}

/// A value that begins with a dash is no option.
fn positional(value: &str) -> Vec<&str> {
    if value.starts_with('-') { vec!["--", value] } else { vec![value] }
}

fn purpose(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Requeue { behind: 0, .. } => "run it again".to_owned(),
        Remedy::Requeue { behind, .. } => {
            format!(
                "run it again, before the {behind} of its key that wait, unless a worker begins them first"
            )
        }
        Remedy::Recover { handler } => {
            format!("return all of {} whose lease ran out to pending at once", visible(handler))
        }
        Remedy::Resume { handler } => format!("end the pause of {}", visible(handler)),
        Remedy::Bury { .. } => "give up the one that blocks it".to_owned(),
        Remedy::LookAtErrors { handler } => format!("see what fails in {}", visible(handler)),
        Remedy::BringForward { .. } => "make it due now, its attempts counted anew".to_owned(),
    }
}

/// Turns findings into sentences for people.
pub struct Telling<'a> {
    ui: &'a Ui,
    times: Times,
}

impl<'a> Telling<'a> {
    /// In these colours and times.
    pub fn new(ui: &'a Ui, times: Times) -> Self {
        Telling { ui, times }
    }

    /// All that was found, one finding a line or more. What is about a blocker is indented below it.
    pub fn lines(&self, explanation: &Explanation) -> Vec<String> {
        let mut lines = Vec::new();
        for Found { about, finding } in &explanation.findings {
            let is_about_blocker = about.as_ref().is_some_and(|about| *about != explanation.delivery.id);
            let indent = if is_about_blocker { BELOW } else { "" };
            let sentence = self.sentence(finding, about.as_ref(), explanation);
            lines.extend(sentence.lines().map(|line| format!("{indent}{line}")));
        }
        lines
    }

    fn sentence(&self, finding: &Finding, about: Option<&DeliveryId>, explanation: &Explanation) -> String {
        let time = |instant: &Timestamp| self.times.show(*instant);
        let handler = visible(&explanation.delivery.handler);
        match finding {
            Finding::Completed { at } => format!("It is done, completed {}.", time(at)),
            Finding::Dead { at, failure } => self.dead(*at, failure.as_ref()),
            Finding::Delayed { until } => format!("It waits for its time, {}.", time(until)),
            Finding::BackingOff { until, failure } => {
                format!("It waits for its next attempt, {}: {}", time(until), self.failure(failure))
            }
            Finding::Due { since } => format!("It became due {}.", time(since)),
            Finding::Running { worker, held_at, until } => self.running(worker.as_deref(), *held_at, *until),
            Finding::LeaseExpired { worker, at } => self.expired(worker.as_deref(), *at),
            Finding::Parked => PARKED.to_owned(),
            Finding::AttemptsExhausted { max_attempts, .. } => exhausted(*max_attempts, about, explanation),
            Finding::BlockedByEarlier { by } => self.blocked(EARLIER, by, explanation),
            Finding::BlockedByRunning { by } => self.blocked(ANOTHER, by, explanation),
            Finding::NextInLine => NEXT_IN_LINE.to_owned(),
            Finding::Waiting { ahead, behind } => waiting(*ahead, *behind),
            Finding::Paused(pause) => {
                format!("Its handler is paused {}\n  {PAUSED}", described(pause, &self.times))
            }
            Finding::BreakerOpen(breaker) => self.breaker(breaker),
            Finding::WorkerSeen { worker, last_outcome_at } => {
                format!("Handler {handler} is at work{}.", self.sign(worker.as_deref(), *last_outcome_at))
            }
            Finding::NoWorkerSeen { since, examined } => format!(
                "Nobody seems to run handler {handler}: it has no live lease, no report of a breaker, and, among the \
                 {examined} deliveries that were looked at, no outcome since {}.\n  To start a worker: relayctl run --help",
                time(since)
            ),
        }
    }

    fn dead(&self, at: Timestamp, failure: Option<&AttemptError>) -> String {
        let at = self.times.show(at);
        match failure {
            Some(failure) => format!("It is dead since {at}: {}", self.failure(failure)),
            None => format!("It is dead since {at}."),
        }
    }

    fn running(&self, worker: Option<&str>, held_at: Timestamp, until: Timestamp) -> String {
        let worker = worker_named(worker, "A worker", "Worker ");
        let (held_at, until) = (self.times.show(held_at), self.times.show(until));
        format!("{worker} holds it under a live lease, taken or renewed {held_at}, which ends {until}.")
    }

    fn expired(&self, worker: Option<&str>, at: Timestamp) -> String {
        let worker = worker_named(worker, "its worker", "worker ");
        format!("Its lease ran out {}: {worker} died, or was cut off.", self.times.show(at))
    }

    /// What shows that a handler is at work.
    fn sign(&self, worker: Option<&str>, last_outcome_at: Option<Timestamp>) -> String {
        match (worker, last_outcome_at) {
            (Some(worker), _) => format!(": worker {} holds a live lease", visible(worker)),
            (None, Some(at)) => format!(": the latest outcome came {}", self.times.show(at)),
            (None, None) => String::new(),
        }
    }

    /// `attempt 2, 3m ago, timeout: no answer within 30 s`. The first line alone: the history has the rest.
    fn failure(&self, failure: &AttemptError) -> String {
        let attempt = match failure.attempt {
            0 => String::new(),
            attempt => format!("attempt {attempt}, "),
        };
        let (at, kind) = (self.times.show(failure.at), visible(failure.kind.as_str()));
        format!("{attempt}{at}, {kind}: {}", first_line(&failure.message))
    }

    fn blocked(&self, why: &str, by: &DeliveryId, explanation: &Explanation) -> String {
        let other = explanation.delivery_of(by).map(|other| self.summary(other));
        format!("It is blocked: {why}.\n  by  {}", other.unwrap_or_else(|| visible(by.as_str())))
    }

    fn summary(&self, delivery: &Delivery) -> String {
        let status = self.ui.paint(Meaning::Status(delivery.status), delivery.status.as_str());
        format!(
            "{}  {status}, {}, attempts {}, created {}",
            visible(delivery.id.as_str()),
            when(delivery, &self.times),
            tries(delivery),
            self.times.show(delivery.created_at),
        )
    }

    fn breaker(&self, breaker: &TrippedBreaker) -> String {
        format!(
            "Worker {} leaves its handler alone since {}, after {} failures in a row; it tries again {}.\n  {}",
            visible(&breaker.worker),
            self.times.show(breaker.opened_at),
            breaker.failures,
            self.times.show(breaker.probe_at.max(self.times.now)),
            first_line(&breaker.last_error),
        )
    }
}

const PARKED: &str = "It is parked: claims leave it aside until nothing of its key is before it.";
const EARLIER: &str = "an earlier one of its handler and key has to finish first";
const ANOTHER: &str = "another one of its handler and key runs under a live lease";
const NEXT_IN_LINE: &str = "Nothing is in its way: the next claim for its handler takes it.";
const PAUSED: &str = "relayctl workers claim nothing of it.";

/// Where sentences about a blocker begin.
const BELOW: &str = "      ";

fn exhausted(limit: u32, about: Option<&DeliveryId>, explanation: &Explanation) -> String {
    let delivery = about.and_then(|id| explanation.delivery_of(id));
    let attempts = if limit == 1 { "attempt is".to_owned() } else { format!("{limit} attempts are") };
    let then = match delivery {
        Some(delivery) if delivery.status.is_unfinished() => {
            ": the next claim gives it up, and makes no other"
        }
        _ => "",
    };
    format!("Its {attempts} used up{then}.")
}

fn first_line(message: &str) -> String {
    visible(message.lines().next().unwrap_or_default())
}

fn worker_named(name: Option<&str>, unknown: &str, label: &str) -> String {
    name.map_or_else(|| unknown.to_owned(), |name| format!("{label}{}", visible(name)))
}

fn waiting(ahead: u64, behind: u64) -> String {
    let wait = |count| if count == 1 { "waits" } else { "wait" };
    match (ahead, behind) {
        (0, behind) => format!("{behind} of its handler and key {} behind it.", wait(behind)),
        (ahead, 0) => {
            let are = if ahead == 1 { "is" } else { "are" };
            format!("{ahead} of its handler and key {are} before it, and none waits behind it.")
        }
        (ahead, behind) => {
            let are = if ahead == 1 { "is" } else { "are" };
            format!(
                "{ahead} of its handler and key {are} before it, and {behind} {} behind it.",
                wait(behind)
            )
        }
    }
}
