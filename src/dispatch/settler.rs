//! The one queue through which outcomes and renewals reach the store. What queues up while a write is under way is
//! written together by the next one, so that many quick handlers do not pay for a round trip each.
//!
//! While many deliveries run or wait, a write also lingers for a few milliseconds, as more outcomes are about to come and a
//! large write costs little more than a small one. A worker that dies in that window loses its outcomes, and the
//! deliveries are made once more, as with any outcome that was not written. With little else to do nothing lingers: the
//! next delivery of a key may be waiting for just this outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::health::{self, StoreNews};
use crate::clock::Clock;
use crate::model::Lease;
use crate::store::{ErrorKind, Fenced, Outcome, Result, Settlement, Store, StoreError};

/// At most this many settlements in one write.
const BATCH: usize = 500;

/// How long a write waits for more.
const LINGER: Duration = Duration::from_millis(3);

/// Writes linger while so many deliveries run or wait.
pub(super) const MANY: usize = 8;

/// How many settlements may wait. There are never more than deliveries that run, so that this is no limit but a hint.
const QUEUE: usize = 1_024;

/// Records outcomes and renewals.
#[derive(Clone, Debug)]
pub(super) struct Settler {
    queue: mpsc::Sender<Request>,
}

#[derive(Debug)]
struct Request {
    settlement: Settlement,
    reply: oneshot::Sender<Result<Fenced, Arc<StoreError>>>,
}

impl Settler {
    /// Starts the task that writes; it ends with the last clone of the settler. `is_busy` says whether [`MANY`]
    /// deliveries run or wait.
    pub(super) fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        news: mpsc::UnboundedSender<StoreNews>,
        is_busy: watch::Receiver<bool>,
    ) -> (Self, AbortOnDropHandle<()>) {
        let (queue, requests) = mpsc::channel(QUEUE);
        let writer = Writer { store, clock, news, is_failing: false };
        (Settler { queue }, AbortOnDropHandle::new(tokio::spawn(writer.run(requests, is_busy))))
    }

    /// Records one outcome or renewal. A delivery has to have no more than one of them under way at a time.
    ///
    /// # Errors
    /// That of the store; whether it was recorded is unknown then.
    pub(super) async fn settle(&self, lease: &Lease, outcome: Outcome) -> Result<Fenced, Arc<StoreError>> {
        let (reply, answer) = oneshot::channel();
        let settlement = Settlement { lease: lease.clone(), outcome };
        let is_queued = self.queue.send(Request { settlement, reply }).await.is_ok();
        match answer.await {
            Ok(result) if is_queued => result,
            _ => Err(Arc::new(StoreError::new(ErrorKind::Unavailable, "the writer of outcomes has ended"))),
        }
    }
}

struct Writer {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    news: mpsc::UnboundedSender<StoreNews>,
    is_failing: bool,
}

impl Writer {
    async fn run(mut self, mut requests: mpsc::Receiver<Request>, mut is_busy: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        while requests.recv_many(&mut batch, BATCH).await > 0 {
            linger(&mut requests, &mut batch, &mut is_busy).await;
            let (settlements, replies): (Vec<_>, Vec<_>) =
                batch.drain(..).map(|request| (request.settlement, request.reply)).unzip();
            match self.write(&settlements).await {
                Err(error) if settlements.len() > 1 && !is_outage(&error) => {
                    self.write_one_by_one(settlements, replies).await;
                }
                result => reply_to_all(replies, result),
            }
        }
    }

    /// One that the store refuses must not take the others with it.
    async fn write_one_by_one(
        &mut self,
        settlements: Vec<Settlement>,
        replies: Vec<oneshot::Sender<Result<Fenced, Arc<StoreError>>>>,
    ) {
        for (settlement, reply) in settlements.into_iter().zip(replies) {
            let result = self.write(&[settlement]).await;
            reply_to_all(vec![reply], result);
        }
    }

    async fn write(&mut self, settlements: &[Settlement]) -> Result<Vec<Fenced>, Arc<StoreError>> {
        let result = health::answer(self.store.settle(settlements, self.clock.now())).await.map_err(Arc::new);
        self.tell(result.as_ref().err());
        result
    }

    fn tell(&mut self, error: Option<&Arc<StoreError>>) {
        let was_failing = std::mem::replace(&mut self.is_failing, error.is_some());
        let news = match error {
            Some(error) => StoreNews::Failed(error.clone()),
            None if was_failing => StoreNews::Answered,
            None => return,
        };
        // Nobody listens when the worker is gone.
        let _ = self.news.send(news);
    }
}

/// Waits for more, as long as that helps.
async fn linger(
    requests: &mut mpsc::Receiver<Request>,
    batch: &mut Vec<Request>,
    is_busy: &mut watch::Receiver<bool>,
) {
    let ends_at = Instant::now() + LINGER;
    while batch.len() < BATCH && *is_busy.borrow_and_update() {
        let room = BATCH - batch.len();
        tokio::select! {
            more = requests.recv_many(batch, room) => if more == 0 { return },
            changed = is_busy.changed() => if changed.is_err() { return },
            () = sleep_until(ends_at) => return,
        }
    }
}

fn is_outage(error: &StoreError) -> bool {
    error.kind() == ErrorKind::Unavailable
}

fn reply_to_all(
    replies: Vec<oneshot::Sender<Result<Fenced, Arc<StoreError>>>>,
    result: Result<Vec<Fenced>, Arc<StoreError>>,
) {
    for (i, reply) in replies.into_iter().enumerate() {
        let own = result.as_ref().map(|fenced| fenced.get(i).copied().unwrap_or(Fenced::LeaseLost));
        // An attempt that gave up waiting needs no reply.
        let _ = reply.send(own.map_err(Arc::clone));
    }
}
