//! How fast a bulk change may go.

use tokio::time::Instant;

use crate::model::Rate;

/// Holds back a bulk change so that it keeps to a rate. What a slow store loses is not made up for later: the rate
/// is a ceiling at every moment.
#[derive(Debug)]
pub(super) struct Pacer {
    rate: Option<Rate>,
    free_at: Option<Instant>,
}

impl Pacer {
    pub(super) fn new(rate: Option<Rate>) -> Self {
        Pacer { rate, free_at: None }
    }

    /// Waits until `count` more may be changed. The first call does not wait.
    pub(super) async fn wait(&mut self, count: u64) {
        let Some(rate) = self.rate else { return };
        let now = Instant::now();
        let start = self.free_at.map_or(now, |free_at| free_at.max(now));
        tokio::time::sleep_until(start).await;
        self.free_at = start.checked_add(rate.time_for(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_what_went_before_and_never_for_the_first() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(Some(rate("10/s")));
        pacer.wait(5).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        pacer.wait(1).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_time_is_not_made_up_for() {
        let mut pacer = Pacer::new(Some(rate("10/s")));
        pacer.wait(1).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        pacer.wait(1).await;
        let begin = Instant::now();
        pacer.wait(1).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(100));
    }
}
