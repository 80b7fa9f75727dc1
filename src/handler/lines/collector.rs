//! Gathers deliveries that are handled at the same time into batches.
//!
//! The dispatcher knows nothing of batches: it has one attempt for each delivery. Each of them waits here until a child is
//! free, and until there are enough of them, or a moment has passed. Deliveries of one key are never in one batch, as the
//! dispatcher never has two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::batch::{Batch, Item};
use super::crew::{Crew, Request};
use super::talk::Style;
use super::{BatchLimits, Written};
use crate::handler::{HandlerContext, Outcome};

/// How long the first delivery of a batch waits for others while a child is free.
const LINGER: Duration = Duration::from_millis(5);

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// A delivery that waits for its batch.
struct Ticket {
    handler: String,
    json: Vec<u8>,
    item: Item,
    since: Instant,
    turn: Arc<AtomicU8>,
}

/// Takes deliveries in. Dropping it ends everything that it has begun.
#[derive(Debug)]
pub(super) struct Collector {
    tickets: mpsc::UnboundedSender<Ticket>,
    _task: AbortOnDropHandle<()>,
}

impl Collector {
    pub(super) fn start(crew: Arc<Crew>, limits: BatchLimits) -> Self {
        let (tickets, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(collect(receiver, crew, limits));
        Collector { tickets, _task: AbortOnDropHandle::new(task) }
    }

    /// Has one delivery handled in some batch. One that is to stop before that is given back.
    pub(super) async fn handle(&self, written: Written, context: &HandlerContext) -> Outcome {
        let Written { id, handler, json } = written;
        let (reply, mut outcome) = oneshot::channel();
        let turn = Arc::new(AtomicU8::new(WAITING));
        let item = Item::new(id, context.clone(), reply);
        let ticket = Ticket { handler, json, item, since: Instant::now(), turn: turn.clone() };
        if self.tickets.send(ticket).is_err() {
            return Outcome::Released;
        }
        tokio::select! {
            biased;
            outcome = &mut outcome => return outcome.unwrap_or(Outcome::Released),
            _ = context.stopped() => {}
            () = context.draining() => {}
        }
        match turn.compare_exchange(WAITING, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Outcome::Released,
            Err(_) => outcome.await.unwrap_or(Outcome::Released),
        }
    }
}

impl Ticket {
    /// Whether it is still wanted; from then on its attempt waits for what becomes of it.
    fn begin(&self) -> bool {
        self.turn.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

async fn collect(mut tickets: mpsc::UnboundedReceiver<Ticket>, crew: Arc<Crew>, limits: BatchLimits) {
    let free = Arc::new(Semaphore::new(limits.at_once.max(1)));
    let mut under_way = JoinSet::new();
    while let Ok(permit) = free.clone().acquire_owned().await {
        let Some(batch) = gather(&mut tickets, limits.size.max(1)).await else { return };
        while under_way.try_join_next().is_some() {}
        let Some(request) = request_of(batch, crew.style()) else { continue };
        let crew = crew.clone();
        under_way.spawn(async move {
            crew.serve(request).await;
            drop(permit);
        });
    }
}

/// The next batch: as many as there are, but no more than `size`. `None` when there will never be any.
async fn gather(tickets: &mut mpsc::UnboundedReceiver<Ticket>, size: usize) -> Option<Vec<Ticket>> {
    let first = tickets.recv().await?;
    let until = first.since + LINGER;
    let mut batch = vec![first];
    while batch.len() < size {
        let next = match tickets.try_recv() {
            Ok(ticket) => Some(ticket),
            Err(_) => timeout_at(until, tickets.recv()).await.ok().flatten(),
        };
        match next {
            Some(ticket) => batch.push(ticket),
            None => break,
        }
    }
    Some(batch)
}

/// What to write for those that are still wanted. `None` when there are none.
fn request_of(mut tickets: Vec<Ticket>, style: Style) -> Option<Request> {
    tickets.retain(Ticket::begin);
    let handler = tickets.first()?.handler.clone();
    let mut input = vec![b'['];
    for (index, ticket) in tickets.iter().enumerate() {
        input.extend_from_slice(if index > 0 { b"," } else { b"" });
        input.extend_from_slice(&ticket.json);
    }
    input.extend_from_slice(b"]\n");
    let items = tickets.into_iter().map(|ticket| ticket.item).collect();
    let batch = match style {
        Style::Lasting => Batch::told_at_once(items),
        Style::Once => Batch::told_at_the_end(items),
    };
    Some(Request { handler, input, batch })
}
