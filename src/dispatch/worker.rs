//! The worker's loop: signals, finished attempts, answers of the store and claims, one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::breaker::Turn;
use super::claim::{self, Asked, Found, Haul, Task};
use super::controls::{Pauses, Reports};
use super::event::{Counts, DispatchEvent, Finished, FoundCrashed, OnDeadFailed, Verdict};
use super::executor::{Assignment, Freed, Slot, Surroundings, execute, hand_back};
use super::gate::{GateNews, Halt};
use super::handle::{Request, ResubscribeError, Resubscription};
use super::health::{self, Health, StoreNews};
use super::polling::Polling;
use super::pulse::{BEAT_EVERY, Heart, Stage};
use super::roster::{Former, Plan, Replacement, Roster};
use super::settler::{self, Settler};
use super::subscription::Subscription;
use super::timekeeper::{Measured, TimeNews, Timekeeper};
use super::wake::{Wake, WakeUps};
use super::{DispatchOptions, Dispatcher, Signals, StopWhen, on_dead};
use crate::model::{Filter, ListQuery, Pause, SortBy};
use crate::store::{ClaimRequest, Claimed, ErrorKind, Result, Store, StoreError};

/// How many events may wait for their reader before nothing new is taken on.
const OUTBOX_LIMIT: usize = 1_024;

/// How many outcomes may wait to be recorded before nothing more starts.
const UNRECORDED_LIMIT: usize = 1_000;

/// How long a worker that would end by itself puts up with a store that fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for a claim under way when the worker has to end now. Its leases would be left to run out.
const CLAIM_ON_STOP: Duration = Duration::from_secs(1);

/// A running dispatcher.
pub(super) struct Worker {
    options: DispatchOptions,
    signals: Signals,
    surroundings: Surroundings,
    phase: Phase,
    roster: Roster<Assignment>,
    executors: JoinSet<Done>,
    requests: mpsc::UnboundedReceiver<Request>,
    /// What ends behind handlers that were replaced.
    closing: JoinSet<()>,
    slots: mpsc::UnboundedSender<Freed>,
    freed: mpsc::UnboundedReceiver<Freed>,
    is_busy: watch::Sender<bool>,
    wake_ups: WakeUps,
    inquiry: Option<BoxFuture<'static, Answer>>,
    inquired_at: Instant,
    polling: Polling,
    time: Timekeeper,
    pauses: Pauses,
    reports: Reports,
    health: Health,
    news: mpsc::UnboundedReceiver<StoreNews>,
    events: mpsc::Sender<DispatchEvent>,
    outbox: VecDeque<DispatchEvent>,
    counts: Counts,
    taken_on: u64,
    failure: Option<Arc<StoreError>>,
    heart: Heart,
    _writer: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    /// Nothing new; what runs goes on until then.
    Draining(Instant),
    /// What runs is being stopped, since then.
    Stopping(Instant),
}

/// What an executor did.
enum Done {
    Finished(usize, Arc<Subscription>, Box<Finished>),
    HandedBack(Vec<(String, Verdict)>),
    ToldOfDeath(Option<Box<OnDeadFailed>>),
}

/// The store's answer to what the worker asked.
enum Answer {
    Claimed(Plan, Result<Haul, Arc<StoreError>>),
    Unfinished(Result<bool, Arc<StoreError>>),
}

enum Step {
    Drain,
    Stop,
    Asked(Request),
    Closed(Result<(), JoinError>),
    Freed(Freed),
    Done(Result<Done, JoinError>),
    Answered(Answer),
    Woken(Wake),
    News(StoreNews),
    Time(Measured),
    Pauses(Result<Vec<Pause>, Arc<StoreError>>),
    ForgetInquiry,
    Told,
    LookAgain,
}

impl Worker {
    pub(super) fn new(dispatcher: Dispatcher, signals: Signals, events: mpsc::Sender<DispatchEvent>) -> Self {
        let Dispatcher { store, clock, server_clock, subscriptions, options, requests, heart, .. } =
            dispatcher;
        let (report, news) = mpsc::unbounded_channel();
        let (is_busy, watch_busy) = watch::channel(false);
        let (settler, writer) = Settler::start(store.clone(), clock.clone(), report, watch_busy);
        let (slots, freed) = mpsc::unbounded_channel();
        let (draining, stopping) = (CancellationToken::new(), CancellationToken::new());
        let reports = Reports::start(store.clone(), clock.clone(), options.owner.clone());
        let time = Timekeeper::start(store.clone(), server_clock);
        Worker {
            surroundings: Surroundings {
                store,
                clock,
                settler,
                guard: options.guard.clone(),
                draining,
                stopping,
            },
            roster: Roster::new(subscriptions, options.concurrency),
            polling: Polling::new(options.poll_interval),
            time,
            pauses: Pauses::new(options.poll_interval),
            reports,
            options,
            signals,
            phase: Phase::Working,
            executors: JoinSet::new(),
            requests,
            closing: JoinSet::new(),
            slots,
            freed,
            is_busy,
            wake_ups: WakeUps::new(),
            inquiry: None,
            inquired_at: Instant::now(),
            health: Health::new(),
            news,
            events,
            outbox: VecDeque::new(),
            counts: Counts::default(),
            taken_on: 0,
            failure: None,
            heart,
            _writer: writer,
        }
    }

    pub(super) async fn run(mut self) -> Result<Counts, Arc<StoreError>> {
        self.tell(DispatchEvent::Started {
            owner: self.options.owner.clone(),
            handlers: self.roster.names(),
        });
        if let Some(skew) = self.time.skew_before() {
            self.tell(DispatchEvent::ClockDiffers { skew });
        }
        loop {
            self.attend_to_the_gates();
            self.attend_to_the_waiting();
            self.inquire();
            if self.is_over() {
                break;
            }
            self.listen_while_idle();
            self.look_for_pauses();
            self.beat();
            let step = self.next_step().await;
            self.take(step);
        }
        let untold = std::mem::take(&mut self.outbox);
        let telling = tell_all(self.events.clone(), untold);
        tokio::join!(telling, self.close_handlers(), self.reports.end(), self.closing.join_all());
        let stopped = DispatchEvent::Stopped { counts: self.counts };
        tell_all(self.events.clone(), VecDeque::from([stopped])).await;
        self.failure.map_or(Ok(self.counts), Err)
    }

    async fn next_step(&mut self) -> Step {
        let beat_at = Instant::now() + BEAT_EVERY;
        let look_again_at = self.look_again_at();
        let patience_ends_at = self.roster.patience_ends_at();
        let gates_open_at = self.roster.gates_open_at().filter(|_| self.phase == Phase::Working);
        let look_for_pauses_at = self.look_for_pauses_at();
        let (drain_ends_at, forget_at) = match self.phase {
            Phase::Working => (None, None),
            Phase::Draining(until) => (Some(until), None),
            Phase::Stopping(since) => (None, self.inquiry.as_ref().map(|_| since + CLAIM_ON_STOP)),
        };
        tokio::select! {
            biased;
            () = self.signals.stop.cancelled(), if !self.is_stopping() => Step::Stop,
            () = self.signals.drain.cancelled(), if self.phase == Phase::Working => Step::Drain,
            () = sleep_until_some(drain_ends_at) => Step::Stop,
            Some(request) = self.requests.recv() => Step::Asked(request),
            Some(result) = self.closing.join_next() => Step::Closed(result),
            Some(freed) = self.freed.recv() => Step::Freed(freed),
            Some(done) = self.executors.join_next() => Step::Done(done),
            answer = answer_to(&mut self.inquiry) => Step::Answered(answer),
            () = sleep_until_some(forget_at) => Step::ForgetInquiry,
            Some(news) = self.news.recv() => Step::News(news),
            Some(measured) = self.time.measured() => Step::Time(measured),
            answer = self.pauses.answer() => Step::Pauses(answer),
            () = deliver(&self.events, &mut self.outbox), if !self.outbox.is_empty() => Step::Told,
            wake = self.wake_ups.next() => Step::Woken(wake),
            () = sleep_until_some(patience_ends_at) => Step::LookAgain,
            () = sleep_until_some(look_again_at) => Step::LookAgain,
            () = sleep_until_some(gates_open_at) => Step::LookAgain,
            () = sleep_until_some(look_for_pauses_at) => Step::LookAgain,
            () = sleep_until(beat_at) => Step::LookAgain,
        }
    }

    /// Shows how the worker is. A loop that stands still does not come here, which is what is seen of it.
    fn beat(&self) {
        let stage = match self.phase {
            Phase::Working if !self.pauses.is_known() => Stage::Starting,
            Phase::Working => Stage::Working,
            Phase::Draining(_) | Phase::Stopping(_) => Stage::Draining,
        };
        let inquired_at = self.inquiry.as_ref().map(|_| self.inquired_at);
        self.heart.beat(|vitals| {
            vitals.beat_at = Instant::now();
            vitals.stage = stage;
            vitals.failing_since = self.health.failing_since();
            vitals.asked_at = inquired_at.into_iter().chain(self.pauses.asked_at()).min();
            vitals.is_unread = self.outbox.len() >= OUTBOX_LIMIT;
            vitals.running.iter_mut().zip(self.roster.running_by_handler()).for_each(|(shown, n)| *shown = n);
        });
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Drain => self.drain(),
            Step::Stop => self.stop(),
            Step::Asked(request) => self.resubscribe(request),
            Step::Closed(result) => result.unwrap_or_else(resume_panic),
            Step::Freed(freed) => self.freed(freed),
            Step::Done(Ok(Done::Finished(index, subscription, finished))) => {
                self.finished(index, &subscription, finished);
            }
            Step::Done(Ok(Done::HandedBack(verdicts))) => self.handed_back(&verdicts),
            Step::Done(Ok(Done::ToldOfDeath(failed))) => {
                failed.into_iter().for_each(|failed| self.tell(DispatchEvent::OnDeadFailed(failed)));
            }
            Step::Done(Err(error)) => resume_panic(error),
            Step::Woken(Wake::Up) => self.woken(),
            Step::Woken(Wake::Lost(error)) => self.not_woken_any_more(error),
            Step::Answered(answer) => self.answered(answer),
            Step::News(StoreNews::Failed(error)) => self.store_failed(error),
            Step::News(StoreNews::Answered) => self.store_answered(),
            Step::Time(measured) => self.time_heard(measured),
            Step::Pauses(answer) => self.pauses_heard(answer),
            Step::ForgetInquiry => self.inquiry = None,
            Step::Told | Step::LookAgain => {}
        }
    }

    fn tell(&mut self, event: DispatchEvent) {
        self.outbox.push_back(event);
    }

    // ---- looking for work --------------------------------------------------------------------------------------

    /// Asks the store for work, or whether there will be any, when there is reason to.
    fn inquire(&mut self) {
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
    fn look_again_at(&self) -> Option<Instant> {
        if self.phase != Phase::Working || self.is_held_up() || !self.pauses.is_known() {
            return None;
        }
        let after_rest = self.asks_from().filter(|time| *time > Instant::now());
        after_rest.or(self.polling.next_round_at())
    }

    /// Whether nothing runs, waits or is still to be recorded.
    fn has_nothing_to_do(&self) -> bool {
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

    fn answered(&mut self, answer: Answer) {
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

    fn take_on(&mut self, claimed: Claimed, found: Found, asked: &Asked, leased_until: Instant) {
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

    fn finished(&mut self, index: usize, subscription: &Arc<Subscription>, finished: Box<Finished>) {
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

    // ---- what waits for a slot ---------------------------------------------------------------------------------

    /// Hands back what cannot or shall not start any more, and starts what can.
    fn attend_to_the_waiting(&mut self) {
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
    fn give_up(&mut self, unwanted: Vec<Assignment>) {
        if let Some(until) = unwanted.iter().map(|assignment| assignment.leased_until).min() {
            self.taken_on -= unwanted.len() as u64;
            self.hand_back(unwanted.into_iter().map(|assignment| assignment.claimed).collect(), until);
        }
    }

    fn hand_back(&mut self, unused: Vec<Claimed>, leased_until: Instant) {
        if unused.is_empty() {
            return;
        }
        let surroundings = self.surroundings.clone();
        self.executors
            .spawn(async move { Done::HandedBack(hand_back(unused, leased_until, surroundings).await) });
    }

    fn handed_back(&mut self, verdicts: &[(String, Verdict)]) {
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

    // ---- gates -------------------------------------------------------------------------------------------------

    /// Lets time pass at the gates, and tells what happened there.
    fn attend_to_the_gates(&mut self) {
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

    fn freed(&mut self, freed: Freed) {
        if !self.roster.is_current(freed.handler, &freed.subscription) {
            return self.roster.freed_by_former(freed.handler);
        }
        self.roster.freed(freed.handler, freed.elapsed);
        if let Some(ending) = freed.ending {
            self.roster.judge(freed.handler, ending, Instant::now());
        }
    }

    /// Which pauses hold is a question of the time, so that before that is known nothing is asked, and nothing is claimed.
    fn look_for_pauses_at(&self) -> Option<Instant> {
        let is_idle = self.has_nothing_to_do() && !self.roster.anyone_hungry();
        self.pauses.next_read_at(is_idle).filter(|_| self.phase == Phase::Working && self.time.is_known())
    }

    fn look_for_pauses(&mut self) {
        if self.look_for_pauses_at().is_some_and(|time| time <= Instant::now()) {
            self.pauses.read(self.surroundings.store.clone(), &*self.surroundings.clock);
        }
    }

    /// Without an answer, what was known goes on. As long as nothing was ever known nothing is claimed, and that is an
    /// outage.
    fn pauses_heard(&mut self, answer: Result<Vec<Pause>, Arc<StoreError>>) {
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

    fn obey_pauses(&mut self) {
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

    // ---- other handlers ----------------------------------------------------------------------------------------

    fn resubscribe(&mut self, request: Request) {
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

    // ---- being woken -------------------------------------------------------------------------------------------

    /// Listens from the moment at which a round found nothing to do, until a claim brings something.
    fn listen_while_idle(&mut self) {
        let is_idle = self.phase == Phase::Working && self.polling.nothing_due() && self.has_nothing_to_do();
        if is_idle && self.wake_ups.may_listen() {
            self.wake_ups.listen(&*self.surroundings.store, &self.roster.names());
        }
    }

    fn woken(&mut self) {
        self.wake_ups.woken();
        self.polling.woken(Instant::now());
    }

    fn not_woken_any_more(&mut self, error: StoreError) {
        self.polling.unheard(Instant::now());
        if let Some(error) = self.wake_ups.lost(error) {
            self.tell(DispatchEvent::WakeUpsLost { error });
        }
    }

    // ---- the time ----------------------------------------------------------------------------------------------

    /// As long as nothing is known of the time nothing is claimed, and that is an outage.
    fn time_heard(&mut self, measured: Measured) {
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

    // ---- the store's health ------------------------------------------------------------------------------------

    fn store_failed(&mut self, error: Arc<StoreError>) {
        self.tell(DispatchEvent::CallFailed { error: error.clone() });
        self.outage(error);
    }

    fn outage(&mut self, error: Arc<StoreError>) {
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

    fn store_answered(&mut self) {
        if let Some(after) = self.health.answered(Instant::now()) {
            self.tell(DispatchEvent::StoreRecovered { after });
        }
    }

    // ---- the end -----------------------------------------------------------------------------------------------

    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping(_))
    }

    fn drain(&mut self) {
        let grace = self.options.grace;
        self.phase = Phase::Draining(Instant::now() + grace);
        self.wake_ups.close();
        self.surroundings.draining.cancel();
        self.tell(DispatchEvent::Draining { running: self.executors.len(), grace });
    }

    fn stop(&mut self) {
        self.phase = Phase::Stopping(Instant::now());
        self.wake_ups.close();
        self.surroundings.draining.cancel();
        self.surroundings.stopping.cancel();
        self.tell(DispatchEvent::Stopping { running: self.executors.len() });
    }

    /// Nothing runs any more: what handlers keep between attempts ends too.
    fn close_handlers(&self) -> impl Future<Output = ()> + Send + use<> {
        let (subscriptions, hurry) = (self.roster.subscriptions(), self.signals.stop.clone());
        async move {
            join_all(subscriptions.iter().map(|one| one.close(hurry.clone()))).await;
        }
    }

    fn is_over(&self) -> bool {
        let is_busy = self.inquiry.is_some() || !self.has_nothing_to_do();
        let is_done = match self.options.stop_when {
            StopWhen::Never => false,
            StopWhen::NothingDue => self.polling.nothing_due(),
            StopWhen::NothingUnfinished => self.polling.nothing_unfinished,
            StopWhen::Deliveries(limit) => self.taken_on >= limit,
        };
        !is_busy && (is_done || self.phase != Phase::Working || self.failure.is_some())
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

/// A panic of an executor is an error in the dispatcher itself, not one of a handler.
fn resume_panic(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

async fn tell_all(events: mpsc::Sender<DispatchEvent>, untold: VecDeque<DispatchEvent>) {
    for event in untold {
        if events.send(event).await.is_err() {
            break;
        }
    }
}

async fn deliver(events: &mpsc::Sender<DispatchEvent>, outbox: &mut VecDeque<DispatchEvent>) {
    match events.reserve().await {
        Ok(permit) => {
            if let Some(event) = outbox.pop_front() {
                permit.send(event);
            }
        }
        Err(_) => outbox.clear(),
    }
}

async fn sleep_until_some(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn answer_to(inquiry: &mut Option<BoxFuture<'static, Answer>>) -> Answer {
    match inquiry {
        Some(inquiry) => inquiry.await,
        None => pending().await,
    }
}
