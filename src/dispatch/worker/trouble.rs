//! A store that fails, and a time that is not known or steps.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::StopWhen;
use super::super::event::DispatchEvent;
use super::super::timekeeper::{Measured, TimeNews};
use super::{PATIENCE, Worker};
use crate::store::{ErrorKind, StoreError};

impl Worker {
    /// As long as nothing is known of the time nothing is claimed, and that is an outage.
    pub(super) fn time_heard(&mut self, measured: Measured) {
        match self.time.heard(measured) {
            Ok(TimeNews { skew, stepped_by_ms }) => {
                if let Some(by_ms) = stepped_by_ms {
                    self.tell(DispatchEvent::TimeStepped { by_ms });
                }
                if let Some(skew) = skew {
                    self.tell(DispatchEvent::ClockDiffers { skew });
                }
            }
            Err(error) => self.store_failed(error),
        }
    }

    pub(super) fn store_failed(&mut self, error: Arc<StoreError>) {
        self.tell(DispatchEvent::CallFailed { error: error.clone() });
        self.outage(error);
    }

    pub(super) fn outage(&mut self, error: Arc<StoreError>) {
        let now = Instant::now();
        match self.health.failed(now) {
            Some(Duration::ZERO) => self.tell(DispatchEvent::StoreFailing { error: error.clone() }),
            Some(lasting) => self.tell(DispatchEvent::StoreStillFailing { error: error.clone(), lasting }),
            None => {}
        }
        let is_hopeless = !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Conflict);
        let ends_by_itself = self.options.stop_when != StopWhen::Never;
        if ends_by_itself && (is_hopeless || self.health.failing_for(now) >= PATIENCE) {
            self.failure.get_or_insert(error);
        }
    }

    pub(super) fn store_answered(&mut self) {
        if let Some(after) = self.health.answered(Instant::now()) {
            self.tell(DispatchEvent::StoreRecovered { after });
        }
    }
}
