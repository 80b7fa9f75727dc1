//! What the service manager is told, if one listens: systemd's protocol, see sd_notify(3) and sd_watchdog_enabled(3).

use std::io;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::time::interval;
use tokio_util::task::AbortOnDropHandle;

use crate::dispatch::{DispatchEvent, Pulse};

/// How often the numbers are told.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Tells the service manager how the worker is.
#[derive(Debug, Default)]
pub(super) struct Supervisor {
    is_stopping: bool,
    status: String,
    status_at: Option<Instant>,
}

impl Supervisor {
    /// Tells what an event means: that the worker is ready, or that it stops.
    ///
    /// # Errors
    /// When the service manager cannot be reached. Nothing is wrong when there is none.
    pub(super) fn hear(&mut self, event: &DispatchEvent) -> io::Result<()> {
        match event {
            DispatchEvent::Ready => sd_notify::notify(&[NotifyState::Ready]),
            DispatchEvent::Draining { .. }
            | DispatchEvent::Stopping { .. }
            | DispatchEvent::Stopped { .. }
                if !self.is_stopping =>
            {
                self.is_stopping = true;
                sd_notify::notify(&[NotifyState::Stopping])
            }
            _ => Ok(()),
        }
    }

    /// Tells the numbers, now and then, when they have changed.
    pub(super) fn look(&mut self, now: Instant, numbers: impl FnOnce() -> String) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < STATUS_EVERY;
        if self.status_at.is_some_and(is_early) {
            return;
        }
        self.status_at = Some(now);
        let status = numbers();
        if status != self.status {
            // Whether anybody listens was found out before.
            let _ = sd_notify::notify(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }
}

/// Pats the watchdog of the service manager, if it has one for this process, as long as the worker's loop turns.
pub(super) fn pat_watchdog(pulse: Pulse) -> Option<AbortOnDropHandle<()>> {
    let patience = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero())?;
    // The service manager's socket can be full, which must not stop anything else.
    let pat = || drop(tokio::task::spawn_blocking(|| sd_notify::notify(&[NotifyState::Watchdog])));
    Some(AbortOnDropHandle::new(tokio::spawn(pat_while_alive(pulse, patience / 2, pat))))
}

/// Twice in the time that the watchdog waits, as its manual advises.
async fn pat_while_alive(pulse: Pulse, every: Duration, pat: impl Fn()) {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        if pulse.check_alive().is_ok() {
            pat();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::mpsc;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::clock::ManualClock;
    use crate::dispatch::{DispatchOptions, Dispatcher, Signals, Subscription};
    use crate::handler::{Outcome, handler_fn};
    use crate::model::Timestamp;
    use crate::store::memory::MemoryStore;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_patted_only_while_the_loop_turns() {
        let nothing = handler_fn(|_| async { Outcome::Succeeded });
        let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
        let subscriptions = vec![Subscription::new("mail", nothing)];
        let dispatcher =
            Dispatcher::new(Arc::new(MemoryStore::new()), clock, subscriptions, DispatchOptions::default());
        let dispatcher = dispatcher.unwrap();
        let pats = Arc::new(AtomicU32::new(0));
        let patted = pats.clone();
        let pat = move || {
            patted.fetch_add(1, Ordering::SeqCst);
        };
        let _patting = tokio::spawn(pat_while_alive(dispatcher.pulse(), 2 * SECOND, pat));
        let pats = || pats.load(Ordering::SeqCst);

        let (sender, mut events) = mpsc::channel(64);
        let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
        let mut running = std::pin::pin!(dispatcher.run(Signals::default(), sender));
        let turn = async |running: &mut std::pin::Pin<&mut _>, time| {
            tokio::select! {
                () = sleep(time) => {}
                _ = running => panic!("it does not end by itself"),
            }
        };
        turn(&mut running, 60 * SECOND).await;
        assert!((30..=31).contains(&pats()), "{}", pats());
        // Nobody runs the loop now. What it showed last is good for ten seconds.
        for _ in 0..60 {
            advance(SECOND).await;
            tokio::task::yield_now().await;
        }
        assert!((34..=36).contains(&pats()), "{}", pats());
        let before = pats();
        turn(&mut running, 10 * SECOND).await;
        assert!(pats() >= before + 4, "{} after {before}", pats());
        reading.abort();
    }
}
