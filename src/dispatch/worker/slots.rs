//! From a leased delivery to its outcome: what waits for a slot, what starts, and what is handed back.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::claim::{self, Asked, Found, Task};
use super::super::event::{DispatchEvent, Finished, Verdict};
use super::super::executor::{Assignment, Slot, execute, hand_back};
use super::super::on_dead;
use super::super::settler;
use super::super::subscription::Subscription;
use super::{Done, OUTBOX_LIMIT, Phase, UNRECORDED_LIMIT, Worker};
use crate::store::Claimed;

impl Worker {
    pub(super) fn take_on(&mut self, claimed: Claimed, found: Found, asked: &Asked, leased_until: Instant) {
        let Some((index, subscription)) = self.roster.find(&claimed.delivery.handler) else { return };
        let max_attempts = claim::max_attempts(&claimed.delivery, &subscription);
        let task = claim::task_for(&claimed.delivery, found, max_attempts);
        self.taken_on += u64::from(task != Task::Release);
        let needs_slot = matches!(task, Task::Run(_));
        let time_steps = asked.steps.clone();
        let assignment = Assignment { claimed, task, subscription, max_attempts, leased_until, time_steps };
        match needs_slot {
            true => self.roster.enqueue(index, assignment, asked.at, Instant::now()),
            false => self.execute(index, assignment, None),
        }
    }

    fn execute(&mut self, index: usize, assignment: Assignment, slot: Option<Slot>) {
        let (surroundings, subscription) = (self.surroundings.clone(), assignment.subscription.clone());
        self.executors.spawn(async move {
            Done::Finished(index, subscription, Box::new(execute(assignment, slot, surroundings).await))
        });
    }

    pub(super) fn finished(
        &mut self,
        index: usize,
        subscription: &Arc<Subscription>,
        finished: Box<Finished>,
    ) {
        self.roster.finished(index);
        let now = Instant::now();
        self.polling.found_work(now);
        if let Verdict::Retrying { at, .. } | Verdict::Snoozed { until: at } = &finished.verdict
            && let Some(due_at) = now.checked_add(at.since(self.surroundings.clock.now()))
        {
            self.polling.expect(due_at);
        }
        self.counts.add(&finished.verdict);
        if let Some(telling) = on_dead::tell(subscription, &finished, &self.surroundings) {
            self.executors.spawn(async move { Done::ToldOfDeath(telling.await) });
        }
        self.tell(DispatchEvent::Finished(finished));
    }

    /// Hands back what cannot or shall not start any more, and starts what can.
    pub(super) fn attend_to_the_waiting(&mut self) {
        let unwanted = match self.phase == Phase::Working && self.failure.is_none() {
            true => {
                let shut_out = self.roster.take_shut_out();
                shut_out.into_iter().chain(self.roster.take_overdue(Instant::now())).collect()
            }
            false => self.roster.take_waiting(),
        };
        self.give_up(unwanted);
        while self.may_start()
            && let Some((index, assignment)) = self.roster.start_next()
        {
            let (subscription, token) = (assignment.subscription.clone(), self.roster.attempt_token(index));
            let slot = Slot::new(index, subscription, token, self.slots.clone());
            self.execute(index, assignment, Some(slot));
        }
        let is_busy = self.roster.running() + self.roster.waiting() >= settler::MANY;
        self.is_busy.send_if_modified(|was_busy| std::mem::replace(was_busy, is_busy) != is_busy);
    }

    /// Whether an outcome could be recorded and told. While the store fails, what waits is better off elsewhere.
    fn may_start(&self) -> bool {
        let unrecorded = self.executors.len().saturating_sub(self.roster.running());
        self.health.is_well() && self.outbox.len() < OUTBOX_LIMIT && unrecorded < UNRECORDED_LIMIT
    }

    /// Hands back what was taken on and has not begun.
    pub(super) fn give_up(&mut self, unwanted: Vec<Assignment>) {
        if let Some(until) = unwanted.iter().map(|assignment| assignment.leased_until).min() {
            self.taken_on -= unwanted.len() as u64;
            self.hand_back(unwanted.into_iter().map(|assignment| assignment.claimed).collect(), until);
        }
    }

    pub(super) fn hand_back(&mut self, unused: Vec<Claimed>, leased_until: Instant) {
        if unused.is_empty() {
            return;
        }
        let surroundings = self.surroundings.clone();
        self.executors
            .spawn(async move { Done::HandedBack(hand_back(unused, leased_until, surroundings).await) });
    }

    pub(super) fn handed_back(&mut self, verdicts: &[(String, Verdict)]) {
        let mut handlers: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (handler, verdict) in verdicts {
            self.counts.add(verdict);
            let (count, lost) = handlers.entry(handler).or_default();
            *count += 1;
            *lost += usize::from(*verdict != Verdict::Released);
        }
        for (handler, (count, lost)) in handlers {
            self.tell(DispatchEvent::HandedBack { handler: handler.to_owned(), count, lost });
        }
    }
}
