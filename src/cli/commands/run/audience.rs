//! Who hears what the worker tells: its log, and those who watch it from outside.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::strangers::Strangers;
use crate::cli::log::Log;
use crate::dispatch::DispatchEvent;
use crate::monitor::Monitor;

/// Everyone who hears the events of a worker.
pub(super) struct Audience {
    pub(super) log: Log,
    pub(super) strangers: Strangers,
    pub(super) monitor: Option<Arc<Monitor>>,
}

impl Audience {
    /// Listens until the worker has ended. Blocks while standard error does.
    pub(super) fn listen(mut self, mut events: mpsc::Receiver<DispatchEvent>) {
        while let Some(event) = events.blocking_recv() {
            self.hear(&event);
        }
    }

    /// What is counted comes first: it must not wait for a terminal.
    fn hear(&mut self, event: &DispatchEvent) {
        if let Some(monitor) = &self.monitor {
            monitor.observe(event);
        }
        self.log.write(event);
        if let Some(warning) = self.strangers.warning_for(event) {
            self.log.warn(&warning);
        }
    }
}
