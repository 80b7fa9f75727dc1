//! What is worth a line of its own while a status line tells the numbers: troubles, but not the same one all the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cli::log::Trouble;
use crate::dispatch::{DispatchEvent, Verdict};

/// Within this time, no more than so many troubles of a kind have a line of their own.
const WINDOW: Duration = Duration::from_secs(10);
const TOLD: u64 = 3;

/// Keeps a flood from the terminal.
#[derive(Debug, Default)]
pub(super) struct Calm {
    windows: BTreeMap<(String, Trouble), Window>,
}

/// Troubles of one kind since a time.
#[derive(Debug)]
struct Window {
    since: Instant,
    count: u64,
}

/// Troubles that had no line of their own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct More {
    pub(super) handler: String,
    pub(super) trouble: Trouble,
    pub(super) count: u64,
}

impl Calm {
    /// Whether an event has a line of its own.
    pub(super) fn admits(&mut self, event: &DispatchEvent, now: Instant) -> bool {
        let DispatchEvent::Finished(finished) = event else { return true };
        let trouble = match finished.verdict {
            Verdict::Completed | Verdict::Released | Verdict::Snoozed { .. } => return false,
            Verdict::Retrying { .. } => Trouble::Retrying,
            Verdict::Dead { .. } => Trouble::Dead,
            Verdict::LeaseLost { .. } => Trouble::LeaseLost,
        };
        let key = (finished.handler.clone(), trouble);
        let window = self.windows.entry(key).or_insert(Window { since: now, count: 0 });
        window.count += 1;
        window.count <= TOLD
    }

    /// What had no line in the windows that are over.
    pub(super) fn take_over(&mut self, now: Instant) -> Vec<More> {
        let is_over = |window: &Window| now.saturating_duration_since(window.since) >= WINDOW;
        let (over, open) =
            std::mem::take(&mut self.windows).into_iter().partition(|(_, window)| is_over(window));
        self.windows = open;
        more_of(over)
    }

    /// What had no line at all.
    pub(super) fn take_all(&mut self) -> Vec<More> {
        more_of(std::mem::take(&mut self.windows))
    }
}

fn more_of(windows: BTreeMap<(String, Trouble), Window>) -> Vec<More> {
    let more = windows.into_iter().filter_map(|((handler, trouble), window)| {
        let count = window.count.checked_sub(TOLD).filter(|count| *count > 0)?;
        Some(More { handler, trouble, count })
    });
    more.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::model::{Failure, FailureKind, Timestamp};

    fn finished(handler: &str, verdict: Verdict) -> DispatchEvent {
        testing::finished(handler, "t", verdict)
    }

    fn retrying() -> Verdict {
        Verdict::Retrying { at: Timestamp::EPOCH, failure: Failure::new(FailureKind::Failed, "no") }
    }

    fn more(handler: &str, trouble: Trouble, count: u64) -> More {
        More { handler: handler.into(), trouble, count }
    }

    #[test]
    fn successes_have_no_line_and_other_news_always_do() {
        let (mut calm, now) = (Calm::default(), Instant::now());
        assert!(!calm.admits(&finished("mail", Verdict::Completed), now));
        assert!(!calm.admits(&finished("mail", Verdict::Released), now));
        assert!((0..10).all(|_| calm.admits(&DispatchEvent::Ready, now)));
        assert_eq!(calm.take_all(), []);
    }

    #[test]
    fn of_a_flood_a_few_have_a_line_and_the_others_are_counted() {
        let (mut calm, now) = (Calm::default(), Instant::now());
        let admitted = |calm: &mut Calm, handler, verdict: Verdict, now| {
            (0..100).filter(|_| calm.admits(&finished(handler, verdict.clone()), now)).count()
        };
        assert_eq!(admitted(&mut calm, "mail", retrying(), now), 3);
        assert_eq!(admitted(&mut calm, "print", retrying(), now), 3);
        let lost = Verdict::LeaseLost { unrecorded: None };
        assert!(calm.admits(&finished("mail", lost), now + WINDOW / 2));
        assert_eq!(calm.take_over(now + WINDOW - Duration::from_millis(1)), []);
        let over = [more("mail", Trouble::Retrying, 97), more("print", Trouble::Retrying, 97)];
        assert_eq!(calm.take_over(now + WINDOW), over);
        assert_eq!(admitted(&mut calm, "mail", retrying(), now + WINDOW), 3);
        assert_eq!(calm.take_all(), [more("mail", Trouble::Retrying, 97)]);
        assert_eq!(calm.take_all(), []);
    }
}
