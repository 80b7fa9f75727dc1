//! The gates of the handlers: what shuts them, and what is told of that.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::breaker::Turn;
use super::super::event::DispatchEvent;
use super::super::executor::Freed;
use super::super::gate::{GateNews, Halt};
use super::{Phase, Worker};
use crate::model::Pause;
use crate::store::{Result, StoreError};

impl Worker {
    /// Lets time pass at the gates, and tells what happened there.
    pub(super) fn attend_to_the_gates(&mut self) {
        self.roster.pass_time(Instant::now());
        for (handler, news) in self.roster.take_news() {
            self.report(&handler, &news);
            if let Some(event) = self.event_of(handler, news) {
                self.tell(event);
            }
        }
    }

    /// Tells the store, for operators.
    fn report(&self, handler: &str, news: &GateNews) {
        match news {
            GateNews::Breaker(Turn::Opened(trip)) => self.reports.tripped(handler, trip),
            GateNews::Breaker(Turn::Closed { .. }) => self.reports.closed(handler),
            GateNews::Breaker(Turn::HalfOpened) | GateNews::Paused | GateNews::Resumed => {}
        }
    }

    fn event_of(&self, handler: String, news: GateNews) -> Option<DispatchEvent> {
        Some(match news {
            GateNews::Paused => DispatchEvent::Paused { pause: self.pauses.of(&handler)?.clone() },
            GateNews::Resumed => DispatchEvent::Resumed { handler },
            GateNews::Breaker(Turn::Opened(trip)) => DispatchEvent::BreakerOpened {
                handler,
                failures: trip.failures,
                pause: trip.pause,
                error: trip.error,
            },
            GateNews::Breaker(Turn::HalfOpened) => DispatchEvent::BreakerHalfOpened { handler },
            GateNews::Breaker(Turn::Closed { after }) => DispatchEvent::BreakerClosed { handler, after },
        })
    }

    pub(super) fn freed(&mut self, freed: Freed) {
        if !self.roster.is_current(freed.handler, &freed.subscription) {
            return self.roster.freed_by_former(freed.handler);
        }
        self.roster.freed(freed.handler, freed.elapsed);
        if let Some(ending) = freed.ending {
            self.roster.judge(freed.handler, ending, Instant::now());
        }
    }

    /// Which pauses hold is a question of the time, so that before that is known nothing is asked, and nothing is claimed.
    pub(super) fn look_for_pauses_at(&self) -> Option<Instant> {
        let is_idle = self.has_nothing_to_do() && !self.roster.anyone_hungry();
        self.pauses.next_read_at(is_idle).filter(|_| self.phase == Phase::Working && self.time.is_known())
    }

    pub(super) fn look_for_pauses(&mut self) {
        if self.look_for_pauses_at().is_some_and(|time| time <= Instant::now()) {
            self.pauses.read(self.surroundings.store.clone(), &*self.surroundings.clock);
        }
    }

    /// Without an answer, what was known goes on. As long as nothing was ever known nothing is claimed, and that is an
    /// outage.
    pub(super) fn pauses_heard(&mut self, answer: Result<Vec<Pause>, Arc<StoreError>>) {
        if let Err(error) = &answer {
            self.tell(DispatchEvent::CallFailed { error: error.clone() });
        } else if !self.pauses.is_known() {
            self.tell(DispatchEvent::Ready);
        }
        let untold = self.pauses.heard(answer);
        match untold {
            Some(error) if !self.pauses.is_known() => self.outage(error),
            Some(error) if self.health.is_well() => self.tell(DispatchEvent::PausesUnknown { error }),
            _ => self.obey_pauses(),
        }
    }

    pub(super) fn obey_pauses(&mut self) {
        let (now, clock_now) = (Instant::now(), self.surroundings.clock.now());
        for (index, handler) in &self.roster.places() {
            // One that ended since it was read is over, even if the store does not answer any more.
            let pause = self.pauses.of(handler).filter(|pause| pause.holds_at(clock_now));
            let halt = pause.map(|pause| {
                let left = pause.paused_until.map(|until| until.since(clock_now));
                Halt { until: left.and_then(|left| now.checked_add(left)) }
            });
            self.roster.pause(*index, halt);
        }
    }
}
