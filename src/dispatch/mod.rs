//! The worker: claims deliveries, has them handled, and records what became of them.
//!
//! One loop (`worker`) decides everything in one order: signals, finished attempts, what starts and what is claimed
//! next. What was claimed ahead (`pace` says how much) waits in a queue of its handler (`roster`). Each delivery runs in
//! a task of its own (`executor`) with its time-out and its lease; outcomes of all of them reach the store through one
//! queue (`settler`), which writes together what came together. While there is nothing to do the store may wake the
//! worker (`wake`). A handler that an operator paused, that keeps failing, or that has a rate is held back at its gate
//! (`gate`); pauses are read, and breakers reported, beside the work (`controls`), and so is the time at the store's server
//! (`timekeeper`). While it runs it can be given other handlers (`handle`). What happens is told as a stream of
//! [`DispatchEvent`]s, and how the worker is can be seen from its [`Pulse`]; nothing here knows a terminal.

mod attempt;
mod backoff;
mod breaker;
mod bucket;
mod claim;
mod controls;
mod event;
mod executor;
mod gate;
mod handle;
mod health;
mod on_dead;
mod pace;
mod polling;
mod prepared;
mod pulse;
mod roster;
mod settler;
mod subscription;
mod tempo;
mod timekeeper;
mod transactional;
mod wake;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, ServerClock};
use crate::handler::Guard;
use crate::model::InvalidInput;
use crate::store::{Store, StoreError};

use handle::Request;
use pulse::Heart;

pub use breaker::BreakerPolicy;
pub use event::{Counts, DispatchEvent, Finished, FoundCrashed, OnDeadFailed, Timing, Verdict};
pub use handle::{DispatcherHandle, ResubscribeError, Resubscription};
pub use pulse::{Obstacle, Pulse};
pub use subscription::{Limits, MIN_LEASE, Subscription};

/// When a worker ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopWhen {
    /// Never.
    #[default]
    Never,
    /// When nothing is due any more.
    NothingDue,
    /// When nothing of its handlers is unfinished, delayed retries included.
    NothingUnfinished,
    /// When it has taken on this many deliveries; what it hands back unused does not count.
    Deliveries(u64),
}

/// How a worker works.
#[derive(Clone, Debug)]
pub struct DispatchOptions {
    /// Who holds the leases, such as `host:pid`; for people to read.
    pub owner: String,
    /// How many deliveries may run at once over all handlers; as many as their own limits allow when absent.
    pub concurrency: Option<usize>,
    /// The longest pause between two looks for work. After work it starts at 50 ms and doubles; while the store wakes the
    /// worker when there is something to do it is the longest at once.
    pub poll_interval: Duration,
    /// How long running deliveries may go on when the worker drains.
    pub grace: Duration,
    /// When to end.
    pub stop_when: StopWhen,
    /// What ends commands when this process cannot: where there is none, they outlive a worker that is killed, and their
    /// lease where it is stopped.
    pub guard: Option<Guard>,
}

impl Default for DispatchOptions {
    fn default() -> Self {
        DispatchOptions {
            owner: format!("pid:{}", std::process::id()),
            concurrency: None,
            poll_interval: Duration::from_secs(1),
            grace: Duration::from_secs(30),
            stop_when: StopWhen::Never,
            guard: None,
        }
    }
}

/// How a running worker is told to end.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Take on nothing new, let what runs go on for the grace, then stop it.
    pub drain: CancellationToken,
    /// Stop what runs now.
    pub stop: CancellationToken,
}

/// A worker for the deliveries of some handlers.
///
/// It claims for the handlers it was given and for no others. Of a handler that is quick it claims ahead what can start
/// within about two claims, and never so much that a third of a lease could pass before its start; what has waited for a
/// second is handed back. Outcomes that come within a few milliseconds are written together: a worker that dies loses
/// those that it had not written, and their deliveries are made once more.
#[derive(Debug)]
pub struct Dispatcher {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    server_clock: Option<ServerClock>,
    subscriptions: Vec<Arc<Subscription>>,
    options: DispatchOptions,
    handle: DispatcherHandle,
    requests: mpsc::UnboundedReceiver<Request>,
    heart: Heart,
}

impl Dispatcher {
    /// A worker that does nothing yet.
    ///
    /// # Errors
    /// Names the subscription and setting that make no sense: none at all, the same handler twice, a limit of zero, a
    /// lease below [`MIN_LEASE`].
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        subscriptions: Vec<Subscription>,
        options: DispatchOptions,
    ) -> Result<Self, InvalidInput> {
        handle::check(&[], &subscriptions)?;
        if options.concurrency == Some(0) {
            return Err(InvalidInput::new("concurrency", "must be at least 1"));
        }
        if options.poll_interval.is_zero() {
            return Err(InvalidInput::new("poll interval", "must be more than zero"));
        }
        let heart = Heart::new(subscriptions.iter().map(|one| one.handler().to_owned()).collect());
        let subscriptions = subscriptions.into_iter().map(Arc::new).collect();
        let (sender, requests) = mpsc::unbounded_channel();
        let handle = DispatcherHandle::new(sender);
        Ok(Dispatcher { store, clock, server_clock: None, subscriptions, options, handle, requests, heart })
    }

    /// For those who have something to ask of the worker while it runs.
    pub fn handle(&self) -> DispatcherHandle {
        self.handle.clone()
    }

    /// Goes by this clock, and keeps it set: the store's server is asked for the time at the start and every 10 s. Workers
    /// of one store that all do so agree about leases, whatever the clocks of their hosts show.
    ///
    /// Nothing is claimed before the server has told the time once. Later the clock goes on as it was set while the store
    /// does not answer.
    pub fn keeping_time(mut self, clock: ServerClock) -> Self {
        self.clock = Arc::new(clock.clone());
        self.server_clock = Some(clock);
        self
    }

    /// What the worker shows of itself while it runs, for those who watch over it.
    pub fn pulse(&self) -> Pulse {
        self.heart.pulse()
    }

    /// Works until a signal or [`DispatchOptions::stop_when`] ends it, and until the outcome of everything that it took
    /// on is recorded. Reports on `events`, and takes on nothing new while nobody reads them; a closed channel is fine.
    ///
    /// A store that does not answer is waited for. Dropping the future kills what runs; its leases run out.
    ///
    /// # Errors
    /// When it would end by itself and the store keeps failing: such a run belongs to a script, which wants to know.
    pub async fn run(
        self,
        signals: Signals,
        events: mpsc::Sender<DispatchEvent>,
    ) -> Result<Counts, Arc<StoreError>> {
        worker::Worker::new(self, signals, events).run().await
    }
}
