//! Other handlers for a worker that runs.

use std::sync::Arc;

use super::super::event::DispatchEvent;
use super::super::executor::Assignment;
use super::super::handle::{Request, ResubscribeError, Resubscription};
use super::super::roster::{Former, Replacement};
use super::{Phase, Worker};

impl Worker {
    pub(super) fn resubscribe(&mut self, request: Request) {
        let Request { kept, new, reply } = request;
        let is_ending = self.phase != Phase::Working || self.failure.is_some();
        let result = match is_ending {
            true => Err(ResubscribeError::Ending),
            false => {
                let replacement = self.roster.replace(kept, new.into_iter().map(Arc::new).collect());
                replacement.map(|replacement| self.replaced(replacement)).map_err(ResubscribeError::from)
            }
        };
        // Who asked may not wait any more.
        let _ = reply.send(result);
    }

    fn replaced(&mut self, replacement: Replacement<Assignment>) -> Resubscription {
        let Replacement { change, unwanted, former } = replacement;
        self.heart.beat(|vitals| {
            vitals.handlers = self.roster.names().into();
            vitals.running = self.roster.running_by_handler().collect();
        });
        self.tell(DispatchEvent::Resubscribed(change.clone()));
        self.give_up(unwanted);
        former.into_iter().for_each(|former| self.part_from(former));
        if !change.is_empty() {
            self.obey_pauses();
            self.wake_ups.close();
            // Everybody is asked for: nothing that was found before holds for the new ones.
            self.roster.begin_round();
            self.polling.begin_round();
        }
        change
    }

    /// What a former definition keeps between attempts ends when nothing runs under it any more.
    fn part_from(&mut self, former: Former) {
        let hurry = self.signals.stop.clone();
        self.closing.spawn(async move {
            former.attempts.close();
            former.attempts.wait().await;
            former.subscription.close(hurry).await;
        });
    }
}
