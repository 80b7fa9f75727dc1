//! A token bucket: how many deliveries of a handler may start now, so that they keep to a rate.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::Rate;

/// It holds a tenth of a second's worth at the most, and at least one: starts come evenly. Kept as the time at which it
/// will be full, so that nothing is lost to rounding.
#[derive(Debug)]
pub(super) struct Bucket {
    capacity: u32,
    each: Duration,
    full_at: Instant,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        let capacity = u32::try_from(rate.burst()).unwrap_or(u32::MAX);
        let each = rate.time_for(1).max(Duration::from_nanos(1));
        Bucket { capacity, each, full_at: now }
    }

    /// One with another rate. What has to be waited for is waited for, but no longer than until the new one is full.
    pub(super) fn with_rate(&self, rate: Rate, now: Instant) -> Self {
        let new = Bucket::new(rate, now);
        Bucket { full_at: self.full_at.min(now + new.each * new.capacity), ..new }
    }

    /// How many may start now.
    pub(super) fn tokens(&self, now: Instant) -> usize {
        let missing = self.full_at.saturating_duration_since(now).as_nanos().div_ceil(self.each.as_nanos());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        self.capacity.saturating_sub(missing) as usize
    }

    /// One starts.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.each;
    }

    /// When the next one may start, unless that is now.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        (self.tokens(now) == 0).then(|| self.full_at - self.each * (self.capacity - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: &str) -> (Bucket, Instant) {
        let now = Instant::now();
        (Bucket::new(rate.parse().unwrap(), now), now)
    }

    #[test]
    fn starts_come_evenly() {
        let (mut bucket, mut now) = bucket("10/s");
        let began = now;
        for _ in 0..25 {
            now = bucket.next_at(now).unwrap_or(now);
            assert_eq!(bucket.tokens(now), 1);
            bucket.take(now);
            assert_eq!(bucket.tokens(now), 0);
        }
        assert_eq!(now - began, Duration::from_millis(2_400));
    }

    #[test]
    fn another_rate_lets_nothing_start_that_the_old_one_would_not() {
        let (mut slow, now) = bucket("1/m");
        slow.take(now);
        let quick = slow.with_rate("100/s".parse().unwrap(), now);
        assert_eq!((quick.tokens(now), quick.next_at(now)), (0, Some(now + Duration::from_millis(10))));
        let (mut quick, now) = bucket("100/s");
        quick.take(now);
        let slow = quick.with_rate("1/m".parse().unwrap(), now);
        assert_eq!((slow.tokens(now), slow.next_at(now)), (0, Some(now + Duration::from_millis(10))));
    }

    #[test]
    fn an_odd_rate_never_goes_beyond_itself() {
        let (mut bucket, began) = bucket("7/m");
        let mut now = began;
        for _ in 0..=7_000 {
            now = bucket.next_at(now).unwrap_or(now);
            bucket.take(now);
        }
        let late = now - began - Duration::from_secs(59_999);
        assert!(late <= Duration::from_secs(1), "{late:?}");
        assert!(bucket.next_at(now).unwrap() > now);
    }

    #[test]
    fn it_fills_up_to_a_tenth_of_a_second() {
        let (mut bucket, now) = bucket("100/s");
        assert_eq!(bucket.tokens(now), 10);
        (0..10).for_each(|_| bucket.take(now));
        let later = |millis| now + Duration::from_millis(millis);
        assert_eq!(
            [0, 9, 10, 25, 99, 100, 5_000].map(|millis| bucket.tokens(later(millis))),
            [0, 0, 1, 2, 9, 10, 10]
        );
        assert_eq!((bucket.next_at(now), bucket.next_at(later(10))), (Some(later(10)), None));
    }
}
