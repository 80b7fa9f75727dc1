//! The worker's loop: signals, finished attempts, answers of the store and claims, one after the other.

mod gates;
mod inquiry;
mod replacing;
mod slots;
mod trouble;

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::claim::Haul;
use super::controls::{Pauses, Reports};
use super::event::{Counts, DispatchEvent, Finished, OnDeadFailed, Verdict};
use super::executor::{Assignment, Freed, Surroundings};
use super::handle::Request;
use super::health::{Health, StoreNews};
use super::polling::Polling;
use super::pulse::{BEAT_EVERY, Heart, Stage};
use super::roster::{Plan, Roster};
use super::settler::Settler;
use super::subscription::Subscription;
use super::timekeeper::{Measured, Timekeeper};
use super::wake::{Wake, WakeUps};
use super::{DispatchOptions, Dispatcher, Signals, StopWhen};
use crate::model::Pause;
use crate::store::{Result, StoreError};

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
