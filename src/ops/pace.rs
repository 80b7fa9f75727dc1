//! How fast a bulk change may go.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::Rate;

/// With which part of its rate a ramp begins.
const RAMP_BEGINS_WITH: f64 = 0.1;

/// A rate, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Never more than this.
    pub rate: Rate,
    /// Begins with a tenth of the rate and rises evenly to all of it in this time; at once when absent. Those who work
    /// on what comes back may need time to warm up.
    pub ramp: Option<Duration>,
}

impl From<Rate> for Pace {
    fn from(rate: Rate) -> Self {
        Pace { rate, ramp: None }
    }
}

impl Pace {
    /// The time that `count` take when so much time has passed since the first.
    fn time_for(self, count: u64, passed: Duration) -> Duration {
        let time = self.rate.time_for(count);
        let risen = self.ramp.map_or(1.0, |ramp| passed.as_secs_f64() / ramp.as_secs_f64());
        if risen < 1.0 { time.div_f64(RAMP_BEGINS_WITH + (1.0 - RAMP_BEGINS_WITH) * risen) } else { time }
    }
}

/// Holds back a bulk change so that it keeps to a pace. What a slow store loses is not made up for later: the rate
/// is a ceiling at every moment.
#[derive(Debug)]
pub(super) struct Pacer {
    pace: Option<Pace>,
    begun_at: Option<Instant>,
    free_at: Option<Instant>,
}

impl Pacer {
    pub(super) fn new(pace: Option<Pace>) -> Self {
        Pacer { pace, begun_at: None, free_at: None }
    }

    /// Waits until `count` more may be changed. The first call does not wait.
    pub(super) async fn wait(&mut self, count: u64) {
        let Some(pace) = self.pace else { return };
        let now = Instant::now();
        let start = self.free_at.map_or(now, |free_at| free_at.max(now));
        tokio::time::sleep_until(start).await;
        let begun_at = *self.begun_at.get_or_insert(start);
        self.free_at = start.checked_add(pace.time_for(count, start - begun_at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(rate: &str, ramp: Option<Duration>) -> Pacer {
        Pacer::new(Some(Pace { rate: rate.parse().unwrap(), ramp }))
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_what_went_before_and_never_for_the_first() {
        let begin = Instant::now();
        let mut pacer = pacer("10/s", None);
        pacer.wait(5).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        pacer.wait(1).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_time_is_not_made_up_for() {
        let mut pacer = pacer("10/s", None);
        pacer.wait(1).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        pacer.wait(1).await;
        let begin = Instant::now();
        pacer.wait(1).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(100));
    }

    /// Of 10/s, as many as passed in each of the seconds.
    #[tokio::test(start_paused = true)]
    async fn a_ramp_rises_from_a_tenth_of_the_rate_to_all_of_it() {
        let mut pacer = pacer("100/s", Some(Duration::from_secs(10)));
        let begin = Instant::now();
        let mut passed = [0; 15];
        loop {
            pacer.wait(1).await;
            match passed.get_mut(begin.elapsed().as_secs() as usize) {
                Some(second) => *second += 1,
                None => break,
            }
        }
        assert!((12..=20).contains(&passed[0]), "{passed:?}");
        assert!((52..=62).contains(&passed[5]), "{passed:?}");
        assert!(passed.windows(2).all(|pair| pair[0] <= pair[1] + 1), "{passed:?}");
        assert!(passed[11..].iter().all(|&second| (99..=101).contains(&second)), "{passed:?}");
    }

    #[test]
    fn a_ramp_of_no_time_is_none() {
        let pace = Pace { rate: "10/s".parse().unwrap(), ramp: Some(Duration::ZERO) };
        assert_eq!(pace.time_for(1, Duration::ZERO), Duration::from_millis(100));
    }
}
