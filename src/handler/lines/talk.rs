//! One request to a child, from its first byte to the last answer.

use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::answer::shown;
use super::batch::{Batch, Stops};
use super::conversation::{Conversation, MAX_LINE_BYTES, Moved};
use super::keeper::Ended;
use crate::handler::{Stop, StopReason};

/// How long a child that closed its stdout has to end by itself.
const AFTER_SILENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// How a child is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// For one request after the other: it answers and waits for the next.
    Lasting,
    /// For one request: it ends behind it.
    Once,
}

/// How a request ended.
pub(super) enum Fate {
    /// Everything is answered, and the child waits for more.
    Answered,
    /// Everything is answered, but the child cannot be asked again.
    Disordered(String),
    /// The child was gone before it read anything.
    Untouched,
    /// The child wrote what makes no sense.
    Broken(String),
    /// The child ended. `None` when the runtime shuts down.
    Ended(Option<Arc<Ended>>),
    /// A delivery was to stop, and the child was stopped with it.
    Stopped(StopReason, Option<Arc<Ended>>),
}

/// A request under way.
pub(super) struct Talk<'t> {
    pub(super) child: &'t mut Conversation,
    pub(super) batch: &'t mut Batch,
    pub(super) style: Style,
    left: &'t [u8],
    is_deaf: bool,
    stops: Stops,
}

impl<'t> Talk<'t> {
    pub(super) fn new(
        child: &'t mut Conversation,
        batch: &'t mut Batch,
        style: Style,
        input: &'t [u8],
    ) -> Self {
        let stops = batch.stops();
        Talk { child, batch, style, left: input, is_deaf: false, stops }
    }

    /// Writes the request and hears the answers. What is not answered when it returns is for the caller.
    pub(super) async fn run(mut self) -> Fate {
        let length = self.left.len();
        loop {
            if let Some(fate) = self.fate_when_answered() {
                return fate;
            }
            let moved = tokio::select! {
                biased;
                moved = self.child.step(self.left) => moved,
                (id, stop) = self.stops.next() => match self.batch.is_untold(&id) {
                    true => return self.stop(stop).await,
                    false => continue,
                },
            };
            match moved {
                Moved::Written(count) => self.wrote(count),
                Moved::Deaf if self.is_untouched(length) => return Fate::Untouched,
                Moved::Deaf => (self.left, self.is_deaf) = (&[], true),
                Moved::Read => {
                    if let Err(broken) = self.hear_lines() {
                        return Fate::Broken(broken);
                    }
                }
                Moved::Silent | Moved::Ended => return self.end(matches!(moved, Moved::Silent)).await,
            }
        }
    }

    fn wrote(&mut self, count: usize) {
        self.left = &self.left[count..];
        if self.left.is_empty() && self.style == Style::Once {
            self.child.close_input();
        }
    }

    fn is_untouched(&self, length: usize) -> bool {
        self.style == Style::Lasting && self.child.is_proven && self.left.len() == length
    }

    /// What to make of a lasting child when there is nothing more to wait for. One that runs once is waited for.
    fn fate_when_answered(&mut self) -> Option<Fate> {
        if self.style == Style::Once || !self.batch.is_answered() {
            return None;
        }
        self.child.is_proven |= self.batch.has_answers();
        if self.is_deaf || !self.left.is_empty() {
            return Some(Fate::Disordered("answered before it had read the whole line".to_owned()));
        }
        // Whatever else it said is found when it is to be used again.
        Some(Fate::Answered)
    }

    fn hear_lines(&mut self) -> Result<(), String> {
        while !self.batch.is_answered() || self.style == Style::Once {
            match self.child.next_line() {
                Ok(Some(line)) => self.batch.hear(&line)?,
                Ok(None) => break,
                Err(too_long) => {
                    let limit = MAX_LINE_BYTES / 1024;
                    return Err(format!("wrote a line of more than {limit} KiB: {}", shown(&too_long.0)));
                }
            }
        }
        Ok(())
    }

    /// Hears what was said last, which may lack the end of its line.
    async fn hear_the_rest(&mut self) -> Result<(), String> {
        self.child.read_last_words().await;
        self.hear_lines()?;
        let rest = self.child.take_rest();
        if rest.is_empty() { Ok(()) } else { self.batch.hear(&rest) }
    }

    /// The child says no more.
    async fn end(mut self, is_silent: bool) -> Fate {
        if let Err(broken) = self.hear_the_rest().await {
            return Fate::Broken(broken);
        }
        if !is_silent {
            return Fate::Ended(self.child.ended().await);
        }
        match self.style {
            Style::Once => self.await_end().await,
            Style::Lasting => match timeout(AFTER_SILENCE, self.child.ended()).await {
                Ok(ended) => Fate::Ended(ended),
                Err(_) => Fate::Broken("closed its stdout".to_owned()),
            },
        }
    }

    /// A child may go on working after its last word, as long as its deliveries may.
    async fn await_end(mut self) -> Fate {
        loop {
            let (id, stop) = tokio::select! {
                biased;
                ended = self.child.ended() => return Fate::Ended(ended),
                stop = self.stops.next() => stop,
            };
            if self.batch.is_untold(&id) {
                return self.stop(stop).await;
            }
        }
    }

    /// Ends the child. Answers that come within its grace count, unless it ran out of time.
    async fn stop(mut self, stop: Stop) -> Fate {
        self.child.order_end(stop.kill_at);
        let ended = if matches!(stop.reason, StopReason::TimedOut(_)) {
            self.child.ended().await
        } else {
            // The keeper kills it in the end, so that this ends as well.
            while matches!(self.child.step(&[]).await, Moved::Read) && self.hear_lines().is_ok() {}
            let ended = self.child.ended().await;
            // What makes no sense now is of no concern: the child is gone.
            let _ = self.hear_the_rest().await;
            ended
        };
        Fate::Stopped(stop.reason, ended)
    }
}

/// Kills what cannot be used any more, and waits until nothing of it is left.
pub(super) async fn discard(child: &mut Conversation) -> Option<Arc<Ended>> {
    child.end_by(Instant::now()).await
}
