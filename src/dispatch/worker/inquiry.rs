//! Looking for work: when to ask the store, what for, and what its answer means.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::super::StopWhen;
use super::super::claim::{self, Asked, Haul};
use super::super::event::{DispatchEvent, FoundCrashed};
use super::super::health;
use super::super::roster::Plan;
use super::{Answer, OUTBOX_LIMIT, Phase, Worker};
use crate::model::{Filter, ListQuery, SortBy};
use crate::store::{ClaimRequest, ErrorKind, Result, Store, StoreError};

impl Worker {
    /// Asks the store for work, or whether there will be any, when there is reason to.
    pub(super) fn inquire(&mut self) {
        // Another round would forget what the last one found.
        if !self.may_inquire() || self.is_over() {
            return;
        }
        let now = Instant::now();
        if self.polling.next_round_at().is_some_and(|time| now >= time) {
            self.polling.begin_round();
            self.roster.begin_round();
        }
        self.inquired_at = now;
        if let Some(plan) = self.roster.next_plan(self.allowance()) {
            self.inquiry = Some(self.claim(plan));
        } else if self.polling.in_round() && self.roster.round_is_over() {
            let is_idle = self.has_nothing_to_do() && !self.roster.anyone_hungry();
            self.polling.end_round(now, is_idle, self.wake_ups.is_listening());
            if self.polling.nothing_due() && self.options.stop_when == StopWhen::NothingUnfinished {
                self.inquiry = Some(self.ask_for_unfinished());
            }
        }
    }

    fn may_inquire(&self) -> bool {
        let may_ask = self.asks_from().is_none_or(|time| Instant::now() >= time);
        self.phase == Phase::Working && !self.is_held_up() && may_ask && self.pauses.is_known()
    }

    /// Until when the store is left alone, after a failure or a step of its time.
    fn asks_from(&self) -> Option<Instant> {
        self.health.ask_again_at().max(self.time.rest_ends_at())
    }

    /// Whether to wait for an answer, for a reader, or for the end before asking anything.
    fn is_held_up(&self) -> bool {
        self.inquiry.is_some() || self.outbox.len() >= OUTBOX_LIMIT || self.failure.is_some()
    }

    /// The next time at which there is reason to ask the store, unless something else happens before.
    pub(super) fn look_again_at(&self) -> Option<Instant> {
        if self.phase != Phase::Working || self.is_held_up() || !self.pauses.is_known() {
            return None;
        }
        let after_rest = self.asks_from().filter(|time| *time > Instant::now());
        after_rest.or(self.polling.next_round_at())
    }

    /// Whether nothing runs, waits or is still to be recorded.
    pub(super) fn has_nothing_to_do(&self) -> bool {
        self.executors.is_empty() && self.roster.waiting() == 0
    }

    /// How many more deliveries may be taken on.
    fn allowance(&self) -> usize {
        match self.options.stop_when {
            StopWhen::Deliveries(limit) => {
                usize::try_from(limit.saturating_sub(self.taken_on)).unwrap_or(usize::MAX)
            }
            _ => usize::MAX,
        }
    }

    fn claim(&self, plan: Plan) -> BoxFuture<'static, Answer> {
        let asked = Asked { at: Instant::now(), steps: self.time.steps() };
        let request = ClaimRequest {
            handlers: self.roster.names_of(&plan),
            limit: plan.limit,
            lease: plan.lease,
            owner: self.options.owner.clone(),
            now: self.surroundings.clock.now(),
        };
        let store = self.surroundings.store.clone();
        Box::pin(async move { Answer::Claimed(plan, claim::claim(store, request, asked).await) })
    }

    fn ask_for_unfinished(&self) -> BoxFuture<'static, Answer> {
        let (store, handlers) = (self.surroundings.store.clone(), self.roster.names());
        Box::pin(
            async move { Answer::Unfinished(anything_unfinished(&*store, handlers).await.map_err(Arc::new)) },
        )
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        self.inquiry = None;
        match answer {
            Answer::Claimed(plan, Ok(haul)) => self.claimed(&plan, haul),
            Answer::Unfinished(Ok(anything)) => {
                self.store_answered();
                // What the round before it found may be out of date by now.
                self.polling.nothing_unfinished = !anything && self.polling.nothing_due();
            }
            Answer::Claimed(_, Err(error)) | Answer::Unfinished(Err(error)) => {
                self.polling.failed();
                self.store_failed(error);
            }
        }
    }

    fn claimed(&mut self, plan: &Plan, haul: Haul) {
        match &haul.trouble {
            Some(error) => self.store_failed(error.clone()),
            None => self.store_answered(),
        }
        let count = haul.leased.len();
        if count == 0 {
            return;
        }
        let now = Instant::now();
        self.wake_ups.close();
        self.polling.found_work(now);
        self.counts.claimed += count as u64;
        self.tell_of_claims(&haul);
        for crash in haul.leased.iter().filter_map(|(claimed, _)| FoundCrashed::by(claimed)) {
            self.counts.crashed += 1;
            self.tell(DispatchEvent::FoundCrashed(Box::new(crash)));
        }
        self.roster.claimed(plan, count, now - haul.asked.at, now);
        let leased_until = haul.asked.at + plan.lease;
        // Its handler may be gone by now, or have leases of another length.
        let is_working = self.phase == Phase::Working;
        let (wanted, unwanted): (Vec<_>, Vec<_>) = haul
            .leased
            .into_iter()
            .partition(|(claimed, _)| is_working && self.roster.wants(&claimed.delivery.handler, plan.lease));
        self.hand_back(unwanted.into_iter().map(|(claimed, _)| claimed).collect(), leased_until);
        for (claimed, found) in wanted {
            self.take_on(claimed, found, &haul.asked, leased_until);
        }
    }

    fn tell_of_claims(&mut self, haul: &Haul) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (claimed, _) in &haul.leased {
            *counts.entry(&claimed.delivery.handler).or_default() += 1;
        }
        for (handler, count) in counts {
            self.tell(DispatchEvent::Claimed { handler: handler.to_owned(), count });
        }
    }

    /// Listens from the moment at which a round found nothing to do, until a claim brings something.
    pub(super) fn listen_while_idle(&mut self) {
        let is_idle = self.phase == Phase::Working && self.polling.nothing_due() && self.has_nothing_to_do();
        if is_idle && self.wake_ups.may_listen() {
            self.wake_ups.listen(&*self.surroundings.store, &self.roster.names());
        }
    }

    pub(super) fn woken(&mut self) {
        self.wake_ups.woken();
        self.polling.woken(Instant::now());
    }

    pub(super) fn not_woken_any_more(&mut self, error: StoreError) {
        self.polling.unheard(Instant::now());
        if let Some(error) = self.wake_ups.lost(error) {
            self.tell(DispatchEvent::WakeUpsLost { error });
        }
    }
}

async fn anything_unfinished(store: &dyn Store, handlers: Vec<String>) -> Result<bool> {
    for handler in handlers {
        let filter = Filter { handler: Some(handler), ..Filter::default() };
        let query = ListQuery { filter, sort: SortBy::Due, limit: Some(1), ..ListQuery::default() };
        match health::answer(async { store.list(&query).next().await.transpose() }).await {
            Ok(None) => {}
            // One that cannot be understood is unfinished as well, but nobody will ever finish it.
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            other => return other.map(|found| found.is_some()),
        }
    }
    Ok(false)
}
