//! The worker's loop: signals, finished attempts, answers of the store and claims, one after the other.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::backoff::Backoff;
use super::claim::{self, Haul, Task};
use super::event::{Counts, DispatchEvent, Finished};
use super::executor::{Assignment, Surroundings, execute};
use super::health::{self, Health, StoreNews};
use super::roster::{Plan, Roster};
use super::settler::Settler;
use super::{DispatchOptions, Dispatcher, Signals, StopWhen};
use crate::model::{Filter, ListQuery, SortBy};
use crate::store::{ClaimRequest, ErrorKind, Result, Store, StoreError};

/// The shortest pause between two looks for work.
const SHORTEST_POLL: Duration = Duration::from_millis(50);

/// How many events may wait for their reader before nothing new is taken on.
const OUTBOX_LIMIT: usize = 1_024;

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
    roster: Roster,
    executors: JoinSet<(usize, Finished)>,
    inquiry: Option<BoxFuture<'static, Answer>>,
    polling: Polling,
    health: Health,
    news: mpsc::UnboundedReceiver<StoreNews>,
    events: mpsc::Sender<DispatchEvent>,
    outbox: VecDeque<DispatchEvent>,
    counts: Counts,
    taken_on: u64,
    failure: Option<Arc<StoreError>>,
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

/// When to look for work, and what the last looks brought.
struct Polling {
    pause: Backoff,
    next_round_at: Instant,
    in_round: bool,
    /// Nothing was found and nothing finished since the current round began.
    is_quiet: bool,
    /// A whole round was quiet, with nothing running.
    nothing_due: bool,
    /// Behind such a round, the store had nothing unfinished either.
    nothing_unfinished: bool,
}

/// The store's answer to what the worker asked.
enum Answer {
    Claimed(Plan, Result<Haul, Arc<StoreError>>),
    Unfinished(Result<bool, Arc<StoreError>>),
}

enum Step {
    Drain,
    Stop,
    Finished(Result<(usize, Finished), JoinError>),
    Answered(Answer),
    News(StoreNews),
    ForgetInquiry,
    Told,
    LookAgain,
}

impl Worker {
    pub(super) fn new(dispatcher: Dispatcher, signals: Signals, events: mpsc::Sender<DispatchEvent>) -> Self {
        let Dispatcher { store, clock, subscriptions, options } = dispatcher;
        let (report, news) = mpsc::unbounded_channel();
        let (settler, writer) = Settler::start(store.clone(), clock.clone(), report);
        let (draining, stopping) = (CancellationToken::new(), CancellationToken::new());
        Worker {
            surroundings: Surroundings { store, clock, settler, draining, stopping },
            roster: Roster::new(subscriptions, options.concurrency),
            polling: Polling::new(options.poll_interval),
            options,
            signals,
            phase: Phase::Working,
            executors: JoinSet::new(),
            inquiry: None,
            health: Health::new(),
            news,
            events,
            outbox: VecDeque::new(),
            counts: Counts::default(),
            taken_on: 0,
            failure: None,
            _writer: writer,
        }
    }

    pub(super) async fn run(mut self) -> Result<Counts, Arc<StoreError>> {
        self.tell(DispatchEvent::Started {
            owner: self.options.owner.clone(),
            handlers: self.roster.names(),
        });
        loop {
            self.inquire();
            if self.is_over() {
                break;
            }
            let step = self.next_step().await;
            self.take(step);
        }
        self.tell(DispatchEvent::Stopped { counts: self.counts });
        for event in self.outbox {
            if self.events.send(event).await.is_err() {
                break;
            }
        }
        self.failure.map_or(Ok(self.counts), Err)
    }

    async fn next_step(&mut self) -> Step {
        let look_again_at = self.look_again_at();
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
            Some(finished) = self.executors.join_next() => Step::Finished(finished),
            answer = answer_to(&mut self.inquiry) => Step::Answered(answer),
            () = sleep_until_some(forget_at) => Step::ForgetInquiry,
            Some(news) = self.news.recv() => Step::News(news),
            () = deliver(&self.events, &mut self.outbox), if !self.outbox.is_empty() => Step::Told,
            () = sleep_until_some(look_again_at) => Step::LookAgain,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Drain => self.drain(),
            Step::Stop => self.stop(),
            Step::Finished(Ok((index, finished))) => self.finished(index, finished),
            Step::Finished(Err(error)) => resume_panic(error),
            Step::Answered(answer) => self.answered(answer),
            Step::News(StoreNews::Failed(error)) => self.store_failed(error),
            Step::News(StoreNews::Answered) => self.store_answered(),
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
        if !self.may_inquire() {
            return;
        }
        let now = Instant::now();
        if !self.polling.in_round && now >= self.polling.next_round_at {
            self.polling.begin_round();
            self.roster.begin_round();
        }
        if let Some(plan) = self.roster.next_plan(self.allowance()) {
            self.inquiry = Some(self.claim(plan));
        } else if self.polling.in_round && self.roster.round_is_over() {
            let is_idle = self.executors.is_empty() && !self.roster.anyone_hungry();
            self.polling.end_round(now, is_idle);
            if self.polling.nothing_due && self.options.stop_when == StopWhen::NothingUnfinished {
                self.inquiry = Some(self.ask_for_unfinished());
            }
        }
    }

    fn may_inquire(&self) -> bool {
        let is_well = self.health.ask_again_at().is_none_or(|time| Instant::now() >= time);
        self.phase == Phase::Working && !self.is_held_up() && is_well
    }

    /// Whether to wait for an answer, for a reader, or for the end before asking anything.
    fn is_held_up(&self) -> bool {
        self.inquiry.is_some() || self.outbox.len() >= OUTBOX_LIMIT || self.failure.is_some()
    }

    /// The next time at which there is reason to ask the store, unless something else happens before.
    fn look_again_at(&self) -> Option<Instant> {
        if self.phase != Phase::Working || self.is_held_up() {
            return None;
        }
        let after_failure = self.health.ask_again_at().filter(|time| *time > Instant::now());
        let next_round = (!self.polling.in_round).then_some(self.polling.next_round_at);
        after_failure.or(next_round)
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
        let request = ClaimRequest {
            handlers: self.roster.names_of(&plan),
            limit: plan.limit,
            lease: plan.lease,
            owner: self.options.owner.clone(),
            now: self.surroundings.clock.now(),
        };
        let store = self.surroundings.store.clone();
        Box::pin(async move { Answer::Claimed(plan, claim::claim(store, request).await) })
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
                self.polling.nothing_unfinished = !anything;
            }
            Answer::Claimed(_, Err(error)) | Answer::Unfinished(Err(error)) => {
                self.polling.failed();
                self.store_failed(error);
            }
        }
    }

    fn claimed(&mut self, plan: &Plan, haul: Haul) {
        match haul.trouble {
            Some(error) => self.store_failed(error),
            None => self.store_answered(),
        }
        let count = haul.leased.len();
        if count == 0 {
            return;
        }
        self.polling.found_work();
        self.counts.claimed += count as u64;
        self.tell(DispatchEvent::Claimed { count });
        if count >= plan.limit {
            self.roster.was_full(plan);
        }
        let leased_until = haul.asked_at + plan.lease;
        for (claimed, found) in haul.leased {
            let Some((index, subscription)) = self.roster.find(&claimed.delivery.handler) else { continue };
            let max_attempts = claim::max_attempts(&claimed.delivery, &subscription);
            let task = match self.phase {
                Phase::Working => claim::task_for(&claimed.delivery, found, max_attempts),
                Phase::Draining(_) | Phase::Stopping(_) => Task::Release,
            };
            self.taken_on += u64::from(task != Task::Release);
            let assignment = Assignment { claimed, task, subscription, max_attempts, leased_until };
            self.start(index, assignment);
        }
    }

    fn start(&mut self, index: usize, assignment: Assignment) {
        let surroundings = self.surroundings.clone();
        self.roster.started(index);
        self.executors.spawn(async move { (index, execute(assignment, surroundings).await) });
    }

    fn finished(&mut self, index: usize, finished: Finished) {
        self.roster.finished(index);
        self.polling.found_work();
        self.counts.add(&finished.verdict);
        self.tell(DispatchEvent::Finished(Box::new(finished)));
    }

    // ---- the store's health ------------------------------------------------------------------------------------

    fn store_failed(&mut self, error: Arc<StoreError>) {
        let now = Instant::now();
        if self.health.failed(now) {
            self.tell(DispatchEvent::StoreFailing { error: error.clone() });
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
        self.surroundings.draining.cancel();
        self.tell(DispatchEvent::Draining { running: self.executors.len(), grace });
    }

    fn stop(&mut self) {
        self.phase = Phase::Stopping(Instant::now());
        self.surroundings.draining.cancel();
        self.surroundings.stopping.cancel();
        self.tell(DispatchEvent::Stopping { running: self.executors.len() });
    }

    fn is_over(&self) -> bool {
        let is_busy = self.inquiry.is_some() || !self.executors.is_empty();
        let is_done = match self.options.stop_when {
            StopWhen::Never => false,
            StopWhen::NothingDue => self.polling.nothing_due,
            StopWhen::NothingUnfinished => self.polling.nothing_unfinished,
            StopWhen::Deliveries(limit) => self.taken_on >= limit,
        };
        !is_busy && (is_done || self.phase != Phase::Working || self.failure.is_some())
    }
}

impl Polling {
    fn new(longest_pause: Duration) -> Self {
        Polling {
            pause: Backoff::new(SHORTEST_POLL, longest_pause),
            next_round_at: Instant::now(),
            in_round: false,
            is_quiet: true,
            nothing_due: false,
            nothing_unfinished: false,
        }
    }

    fn begin_round(&mut self) {
        self.in_round = true;
        self.is_quiet = true;
        self.nothing_due = false;
        self.nothing_unfinished = false;
    }

    fn end_round(&mut self, now: Instant, is_idle: bool) {
        self.in_round = false;
        self.nothing_due = self.is_quiet && is_idle;
        self.next_round_at = now + self.pause.next();
    }

    fn found_work(&mut self) {
        self.pause.reset();
        self.is_quiet = false;
        self.nothing_due = false;
        self.nothing_unfinished = false;
        if !self.in_round {
            self.next_round_at = self.next_round_at.min(Instant::now() + SHORTEST_POLL);
        }
    }

    fn failed(&mut self) {
        self.is_quiet = false;
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
