//! Who hears what the worker tells: its log, and those who watch it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::calm::{Calm, More};
use super::strangers::Strangers;
use super::supervisor::Supervisor;
use super::tally::Tally;
use crate::cli::log::Log;
use crate::dispatch::{DispatchEvent, Pulse};
use crate::monitor::Monitor;

/// From one look at the numbers to the next.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Everyone who hears the events of a worker.
pub(super) struct Audience {
    log: Arc<Log>,
    strangers: Strangers,
    monitor: Option<Arc<Monitor>>,
    tally: Tally,
    calm: Calm,
    supervisor: Supervisor,
}

impl Audience {
    /// For the worker whose pulse this is.
    pub(super) fn new(
        log: Arc<Log>,
        strangers: Strangers,
        pulse: Pulse,
        monitor: Option<Arc<Monitor>>,
    ) -> Self {
        let tally = Tally::new(pulse, Instant::now());
        Audience { log, strangers, monitor, tally, calm: Calm::default(), supervisor: Supervisor::default() }
    }

    /// Listens until the worker has ended. Blocks while standard error does.
    pub(super) fn listen(mut self, mut events: mpsc::Receiver<DispatchEvent>, runtime: &Handle) {
        let mut look_at = Instant::now();
        loop {
            let pause = look_at.saturating_duration_since(Instant::now());
            match runtime.block_on(async { timeout(pause, events.recv()).await }) {
                Ok(Some(event)) => self.hear(&event),
                Ok(None) => break,
                Err(_) => {}
            }
            if Instant::now() >= look_at {
                self.look();
                look_at = Instant::now() + LOOK_EVERY;
            }
        }
        // Others hold the log too, and may do so until the process ends.
        if let Some(status_line) = &self.log.status_line {
            status_line.end();
        }
    }

    /// What is counted comes first: it must not wait for a terminal.
    fn hear(&mut self, event: &DispatchEvent) {
        if let Some(monitor) = &self.monitor {
            monitor.observe(event);
        }
        self.tally.observe(event);
        if let DispatchEvent::Stopped { .. } = event {
            self.calm.take_all().iter().for_each(|more| self.tell_of(more));
        }
        if self.log.status_line.is_none() || self.calm.admits(event, Instant::now()) {
            self.log.write(event);
        }
        if let Err(error) = self.supervisor.hear(event) {
            self.log.warn(&format!("the service manager was not told: {error}; look at NOTIFY_SOCKET"));
        }
        if let Some(warning) = self.strangers.warning_for(event) {
            self.log.warn(&warning);
        }
    }

    /// Shows the numbers of now.
    fn look(&mut self) {
        let now = Instant::now();
        self.calm.take_over(now).iter().for_each(|more| self.tell_of(more));
        self.supervisor.look(now, || self.tally.summary());
        if let Some(status_line) = &self.log.status_line {
            status_line.show(&self.tally.line(status_line.columns(), now));
        }
    }

    fn tell_of(&self, more: &More) {
        self.log.more(&more.handler, more.trouble, more.count);
    }
}
