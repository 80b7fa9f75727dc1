//! A clock that a server sets.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Clock, Host, SystemHost};
use crate::model::{Timestamp, short_duration};

/// The most that the host's monotonic clock and a server's clock move apart in a second: 500 µs, as fast as NTP drives a
/// clock.
const DRIFT_PER_SECOND: Duration = Duration::from_micros(500);

/// Servers tell their time in whole milliseconds.
const RESOLUTION: Duration = Duration::from_millis(1);

/// A difference that people are told of. NTP keeps hosts within some tens of milliseconds.
const NOTABLE: Duration = Duration::from_secs(1);

/// The clock of a server, as well as it can be known here. Clones show the same.
///
/// A measurement asks the server once, and takes what it says for the time in the middle of the round trip: half of that is
/// the most by which it can be wrong. From there the host's monotonic clock goes on, so that the host's own clock, wrong or
/// set in the meantime, has no part in it. Until the first measurement, and with a store that has no clock of its own, it is
/// the host's clock.
///
/// As nobody counts seconds exactly, a measurement loses worth with time. A new one takes its place when it is better, or when
/// the two cannot both be true: then the server's clock was set, or another server has taken over. So the clock can go
/// back, by as much as it was wrong.
#[derive(Clone, Debug)]
pub struct ServerClock {
    host: Arc<dyn Host>,
    anchor: Arc<Mutex<Option<Anchor>>>,
}

impl ServerClock {
    /// The clock of a process that has not asked yet.
    pub fn new() -> Self {
        ServerClock::on(Arc::new(SystemHost))
    }

    /// The same on a host of one's own, for tests.
    pub fn on(host: Arc<dyn Host>) -> Self {
        ServerClock { host, anchor: Arc::default() }
    }

    /// Measures once: `ask` begins to ask the server when it is first polled, and answers what time it is there.
    /// `None` when the store has no clock of its own. Whoever wants a good measurement repeats it, as the best is kept.
    ///
    /// # Errors
    /// Those of `ask`; the clock goes on as it was.
    pub async fn measure<E>(
        &self,
        ask: impl Future<Output = Result<Option<Timestamp>, E>>,
    ) -> Result<Option<Reading>, E> {
        let asked_at = self.host.elapsed();
        let Some(time) = ask.await? else { return Ok(None) };
        let anchor = Anchor::between(asked_at, self.host.elapsed(), time);
        let stepped_by_ms = self.take(anchor);
        Ok(self.skew().map(|skew| Reading { skew, stepped_by_ms }))
    }

    /// How far the host's clock is from the server's now; `None` before the first measurement.
    pub fn skew(&self) -> Option<Skew> {
        let anchor = (*self.anchor())?;
        let elapsed = self.host.elapsed();
        let ahead_ms = self.host.wall().as_millis().saturating_sub(anchor.time_at(elapsed).as_millis());
        Some(Skew { ahead_ms, error: anchor.error_at(elapsed) })
    }

    /// Keeps the better one of the last measurement and this; returns by how much the time stepped, if it did.
    fn take(&self, new: Anchor) -> Option<i64> {
        let mut kept = self.anchor();
        let Some(old) = *kept else {
            *kept = Some(new);
            return None;
        };
        let apart_ms = new.time.as_millis().saturating_sub(old.time_at(new.at).as_millis());
        let in_doubt = old.error_at(new.at) + new.error_at(new.at);
        let is_step = Duration::from_millis(apart_ms.unsigned_abs()) > in_doubt;
        if is_step || new.error_at(new.at) <= old.error_at(new.at) {
            *kept = Some(new);
        }
        is_step.then_some(apart_ms)
    }

    fn anchor(&self) -> MutexGuard<'_, Option<Anchor>> {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ServerClock {
    fn default() -> Self {
        ServerClock::new()
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        let anchor = *self.anchor();
        anchor.map_or_else(|| self.host.wall(), |anchor| anchor.time_at(self.host.elapsed()))
    }
}

/// What the server's clock showed when the host's monotonic clock showed something.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    time: Timestamp,
    at: Duration,
    half_trip: Duration,
}

impl Anchor {
    fn between(asked_at: Duration, answered_at: Duration, time: Timestamp) -> Self {
        let half_trip = answered_at.saturating_sub(asked_at) / 2;
        Anchor { time, at: asked_at + half_trip, half_trip }
    }

    fn time_at(&self, elapsed: Duration) -> Timestamp {
        self.time.saturating_add(elapsed.saturating_sub(self.at))
    }

    /// The most by which [`time_at`](Self::time_at) is wrong.
    fn error_at(&self, elapsed: Duration) -> Duration {
        let drift = DRIFT_PER_SECOND.mul_f64(elapsed.saturating_sub(self.at).as_secs_f64());
        self.half_trip + RESOLUTION + drift
    }
}

/// What is known after a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How far the host's clock is from the server's.
    pub skew: Skew,
    /// By how many milliseconds the server's time stepped forward, or back where it is negative, since the measurement before,
    /// beyond what the two leave in doubt. `None` when it did not.
    pub stepped_by_ms: Option<i64>,
}

/// How far the clock of this host is from that of the store's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// Milliseconds that the host's clock is ahead of the server's; negative when it is behind.
    pub ahead_ms: i64,
    /// The most by which that is wrong.
    pub error: Duration,
}

impl Skew {
    /// Whether people should know: the two differ by more than a second for certain.
    pub fn is_notable(&self) -> bool {
        Duration::from_millis(self.ahead_ms.unsigned_abs()) > NOTABLE + self.error
    }
}

impl fmt::Display for Skew {
    /// `10m ahead of the server's` or `2s behind the server's`, to follow the words "this host's clock is".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.ahead_ms < 0 { "behind" } else { "ahead of" };
        // Rounded: what is off by ten minutes should not be told as nine because of a millisecond.
        let seconds = self.ahead_ms.unsigned_abs().saturating_add(500) / 1_000;
        write!(f, "{} {direction} the server's", short_duration(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_764_528_000_000);
    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const MINUTES: i64 = 60_000;

    /// A host and a server, each with a clock that is off by so many milliseconds, in a world where time passes by hand.
    #[derive(Debug, Default)]
    struct World {
        passed_us: AtomicU64,
        host_ms: AtomicI64,
        server_ms: AtomicI64,
    }

    impl World {
        fn new() -> (Arc<World>, ServerClock) {
            let world = Arc::new(World::default());
            (world.clone(), ServerClock::on(world))
        }

        fn pass(&self, time: Duration) {
            self.passed_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        }

        fn shown(&self, off_ms: &AtomicI64) -> Timestamp {
            let passed = START.saturating_add(self.elapsed());
            Timestamp::from_millis(passed.as_millis() + off_ms.load(Ordering::Relaxed))
        }

        fn server(&self) -> Timestamp {
            self.shown(&self.server_ms)
        }

        /// A measurement with so long a way to the server, and back.
        async fn measure(&self, clock: &ServerClock, there: Duration, back: Duration) -> Reading {
            let ask = async {
                self.pass(there);
                let time = self.server();
                self.pass(back);
                Ok::<_, Infallible>(Some(time))
            };
            clock.measure(ask).await.unwrap().expect("the server has a clock")
        }
    }

    impl Host for World {
        fn wall(&self) -> Timestamp {
            self.shown(&self.host_ms)
        }

        fn elapsed(&self) -> Duration {
            Duration::from_micros(self.passed_us.load(Ordering::Relaxed))
        }
    }

    /// Milliseconds that the clock is ahead of the server's.
    fn wrong_by(world: &World, clock: &ServerClock) -> i64 {
        clock.now().as_millis() - world.server().as_millis()
    }

    #[tokio::test]
    async fn it_is_the_hosts_clock_until_a_server_was_asked() {
        let (world, clock) = World::new();
        world.host_ms.store(10 * MINUTES, Ordering::Relaxed);
        let refused = clock.measure(async { Err::<Option<Timestamp>, _>("no answer") }).await;
        assert_eq!(refused, Err("no answer"));
        assert_eq!(clock.measure(async { Ok::<_, Infallible>(None) }).await, Ok(None));
        assert_eq!((clock.now(), clock.skew()), (world.wall(), None));
    }

    #[tokio::test]
    async fn a_host_clock_that_is_wrong_or_jumps_changes_nothing() {
        for off in [10 * MINUTES, -10 * MINUTES] {
            let (world, clock) = World::new();
            world.host_ms.store(off, Ordering::Relaxed);
            let reading = world.measure(&clock, MILLI, MILLI).await;
            assert_eq!((reading.skew.ahead_ms, reading.stepped_by_ms), (off, None));
            assert_eq!(clock.now(), world.server());
            world.host_ms.store(-3 * off, Ordering::Relaxed);
            world.pass(SECOND * 3_600);
            assert_eq!(clock.now(), world.server());
            assert_eq!(clock.skew().unwrap().ahead_ms, -3 * off);
            assert_eq!(world.measure(&clock, MILLI, MILLI).await.stepped_by_ms, None);
        }
    }

    #[tokio::test]
    async fn half_the_round_trip_bounds_the_error() {
        for (there, back) in [(0, 400), (400, 0), (130, 270), (1, 1)] {
            let (world, clock) = World::new();
            let reading = world.measure(&clock, MILLI * there, MILLI * back).await;
            let bound = MILLI * ((there + back) / 2 + 1);
            assert!(reading.skew.error >= bound && reading.skew.error < bound + MILLI, "{reading:?}");
            let wrong = Duration::from_millis(wrong_by(&world, &clock).unsigned_abs());
            assert!(wrong <= reading.skew.error, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn the_best_measurement_is_kept_for_as_long_as_it_is_the_best() {
        let (world, clock) = World::new();
        world.measure(&clock, MILLI * 100, MILLI * 300).await;
        assert_eq!(wrong_by(&world, &clock), -100);
        world.measure(&clock, MILLI, MILLI).await;
        assert_eq!(wrong_by(&world, &clock), 0);
        let worse = world.measure(&clock, MILLI * 10, MILLI * 30).await;
        assert_eq!((wrong_by(&world, &clock), worse.stepped_by_ms), (0, None));
        // By now it may have drifted by more than the worse one is in doubt.
        world.pass(SECOND * 60);
        world.measure(&clock, MILLI * 10, MILLI * 30).await;
        assert_eq!(wrong_by(&world, &clock), -10);
    }

    #[tokio::test]
    async fn drift_is_no_step() {
        let (world, clock) = World::new();
        world.measure(&clock, MILLI, MILLI).await;
        for _ in 0..10 {
            world.pass(SECOND * 10);
            world.server_ms.fetch_add(4, Ordering::Relaxed);
            let reading = world.measure(&clock, MILLI, MILLI).await;
            assert_eq!((wrong_by(&world, &clock), reading.stepped_by_ms), (0, None));
        }
    }

    #[tokio::test]
    async fn a_server_whose_clock_is_another_is_followed_at_once() {
        for off in [10 * MINUTES, -10 * MINUTES, 2_000] {
            let (world, clock) = World::new();
            world.measure(&clock, MILLI, MILLI).await;
            world.server_ms.store(off, Ordering::Relaxed);
            // Also by a measurement that is worse than the one before.
            let reading = world.measure(&clock, MILLI * 100, MILLI * 100).await;
            assert_eq!((reading.stepped_by_ms, wrong_by(&world, &clock)), (Some(off), 0));
        }
    }

    #[tokio::test]
    async fn a_process_that_was_stopped_while_it_asked_keeps_what_it_knew() {
        let (world, clock) = World::new();
        world.measure(&clock, MILLI, MILLI).await;
        let reading = world.measure(&clock, MILLI, SECOND * 600).await;
        assert_eq!((reading.stepped_by_ms, wrong_by(&world, &clock)), (None, 0));
    }

    #[test]
    fn people_are_told_of_more_than_a_second() {
        let skew = |ahead_ms, error| Skew { ahead_ms, error };
        assert!(skew(1_002, MILLI).is_notable() && skew(-1_002, MILLI).is_notable());
        assert!(!skew(1_001, MILLI).is_notable() && !skew(-5_000, SECOND * 4).is_notable());
        let told = [599_999, -1_999, 1_400].map(|ahead| skew(ahead, MILLI).to_string());
        assert_eq!(told, ["10m ahead of the server's", "2s behind the server's", "1s ahead of the server's"]);
    }

    #[tokio::test]
    async fn the_host_itself_counts_on() {
        let clock = ServerClock::new();
        let ask = async { Ok::<_, Infallible>(Some(START)) };
        let skew = clock.measure(ask).await.unwrap().unwrap().skew;
        assert!(skew.is_notable(), "{skew:?}");
        let before = SystemHost.elapsed();
        assert!(!before.is_zero() && SystemHost.elapsed() >= before);
        assert!(clock.now() >= START && clock.now().since(START) < SECOND * 60);
    }
}
