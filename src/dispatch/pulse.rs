//! What a worker shows of itself at any moment, beside its events: that its loop turns, what runs, and whether anything
//! keeps it from its work.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::short_duration;

/// How often the loop turns at the least.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(1);

/// A loop that has not turned for so long is stuck. Far above what a busy machine needs for one turn.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// A store that owes an answer for so long does not answer. The worker itself is more patient: it waits for a failover.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// What a turn of the loop shows.
#[derive(Clone, Debug)]
pub(super) struct Vitals {
    pub(super) beat_at: Instant,
    pub(super) stage: Stage,
    /// The store has been failing since.
    pub(super) failing_since: Option<Instant>,
    /// The oldest question that the store has not answered.
    pub(super) asked_at: Option<Instant>,
    /// Nobody reads the worker's events, so that nothing new starts.
    pub(super) is_unread: bool,
    /// The handlers that it works for; others after a change of its subscriptions.
    pub(super) handlers: Arc<[String]>,
    /// How many deliveries of each of them run.
    pub(super) running: Vec<usize>,
}

/// How far a worker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has not heard from its store yet.
    Starting,
    Working,
    /// It takes on nothing new.
    Draining,
}

/// The worker's side.
#[derive(Debug)]
pub(super) struct Heart {
    vitals: watch::Sender<Vitals>,
}

impl Heart {
    pub(super) fn new(handlers: Vec<String>) -> Self {
        let vitals = Vitals {
            beat_at: Instant::now(),
            stage: Stage::Starting,
            failing_since: None,
            asked_at: None,
            is_unread: false,
            running: vec![0; handlers.len()],
            handlers: handlers.into(),
        };
        Heart { vitals: watch::Sender::new(vitals) }
    }

    /// Shows what a turn of the loop finds.
    pub(super) fn beat(&self, show: impl FnOnce(&mut Vitals)) {
        self.vitals.send_modify(show);
    }

    pub(super) fn pulse(&self) -> Pulse {
        Pulse { vitals: self.vitals.subscribe() }
    }
}

/// What a worker shows of itself. It can be looked at from anywhere and at any time, and costs the worker nothing.
#[derive(Clone, Debug)]
pub struct Pulse {
    vitals: watch::Receiver<Vitals>,
}

/// What keeps a worker from its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It has not heard from its store yet.
    #[error("the worker starts: it has not heard from the store yet")]
    Starting,
    /// Its loop has not turned for so long.
    #[error("the worker is stuck: its loop has not turned for {}", short_duration(*.0))]
    Stuck(Duration),
    /// The store has been failing, or owes an answer, for so long.
    #[error("the store has not answered for {}", short_duration(*.0))]
    StoreSilent(Duration),
    /// Nobody reads its events.
    #[error("nothing new starts: the worker's log is not read")]
    Unread,
    /// It drains: it takes on nothing new.
    #[error("the worker drains")]
    Draining,
    /// It has ended.
    #[error("the worker has ended")]
    Ended,
}

impl Pulse {
    /// The handlers that it works for now.
    pub fn handlers(&self) -> Arc<[String]> {
        self.vitals.borrow().handlers.clone()
    }

    /// How many deliveries of each of these handlers run.
    pub fn running(&self) -> Vec<(String, usize)> {
        let vitals = self.vitals.borrow();
        vitals.handlers.iter().cloned().zip(vitals.running.iter().copied()).collect()
    }

    /// Whether the loop of the worker turns: `Err` with [`Obstacle::Stuck`] or [`Obstacle::Ended`] when it does not.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_alive(&self) -> Result<(), Obstacle> {
        if self.vitals.has_changed().is_err() {
            return Err(Obstacle::Ended);
        }
        let still_for = self.vitals.borrow().beat_at.elapsed();
        if still_for < STUCK_AFTER { Ok(()) } else { Err(Obstacle::Stuck(still_for)) }
    }

    /// Whether the worker takes on deliveries. What holds its handlers back (pauses, breakers, rates) is no obstacle.
    ///
    /// # Errors
    /// What keeps it from that.
    pub fn check_ready(&self) -> Result<(), Obstacle> {
        self.check_alive()?;
        let vitals = self.vitals.borrow();
        let silent_since = vitals.asked_at.filter(|since| since.elapsed() >= SILENT_AFTER);
        let silent_since = vitals.failing_since.into_iter().chain(silent_since).min();
        match (vitals.stage, silent_since) {
            (Stage::Draining, _) => Err(Obstacle::Draining),
            (_, Some(since)) => Err(Obstacle::StoreSilent(since.elapsed())),
            (Stage::Starting, None) => Err(Obstacle::Starting),
            (Stage::Working, None) if vitals.is_unread => Err(Obstacle::Unread),
            (Stage::Working, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn working() -> (Heart, Pulse) {
        let heart = Heart::new(vec!["mail".into()]);
        let pulse = heart.pulse();
        assert_eq!(pulse.check_ready(), Err(Obstacle::Starting));
        heart.beat(|vitals| vitals.stage = Stage::Working);
        assert_eq!(pulse.check_ready(), Ok(()));
        (heart, pulse)
    }

    #[tokio::test(start_paused = true)]
    async fn a_heart_that_stands_still_is_stuck_until_it_beats_again() {
        let (heart, pulse) = working();
        advance(STUCK_AFTER - Duration::from_millis(1)).await;
        assert_eq!(pulse.check_alive(), Ok(()));
        advance(Duration::from_millis(1)).await;
        assert_eq!(pulse.check_alive(), Err(Obstacle::Stuck(STUCK_AFTER)));
        assert_eq!(pulse.check_ready(), Err(Obstacle::Stuck(STUCK_AFTER)));
        heart.beat(|vitals| vitals.beat_at = Instant::now());
        assert_eq!((pulse.check_alive(), pulse.check_ready()), (Ok(()), Ok(())));
        drop(heart);
        assert_eq!(pulse.check_alive(), Err(Obstacle::Ended));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_is_silent_when_it_fails_or_owes_an_answer_for_long() {
        let (heart, pulse) = working();
        heart.beat(|vitals| vitals.asked_at = Some(Instant::now()));
        advance(4 * SECOND).await;
        assert_eq!(pulse.check_ready(), Ok(()));
        advance(SECOND).await;
        assert_eq!(pulse.check_ready(), Err(Obstacle::StoreSilent(5 * SECOND)));
        heart.beat(|vitals| vitals.asked_at = None);
        assert_eq!(pulse.check_ready(), Ok(()));
        heart.beat(|vitals| vitals.failing_since = Some(Instant::now() - SECOND));
        assert_eq!(pulse.check_ready(), Err(Obstacle::StoreSilent(SECOND)));
        assert_eq!(pulse.check_alive(), Ok(()));
        heart.beat(|vitals| vitals.stage = Stage::Draining);
        assert_eq!(pulse.check_ready(), Err(Obstacle::Draining));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_nobody_reads_is_not_ready() {
        let (heart, pulse) = working();
        heart.beat(|vitals| vitals.is_unread = true);
        assert_eq!(pulse.check_ready(), Err(Obstacle::Unread));
    }
}
