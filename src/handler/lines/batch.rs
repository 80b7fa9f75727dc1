//! The deliveries that one request asks for, and what became of each.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt as _;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::answer::{self, shown};
use super::keeper::Ended;
use crate::handler::context::Guarded;
use crate::handler::{HandlerContext, Outcome, Stop};

/// One delivery, on its way through a child.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) context: HandlerContext,
    pub(super) reply: oneshot::Sender<Outcome>,
    pub(super) guarded: Option<Guarded>,
}

impl Item {
    pub(super) fn new(id: String, context: HandlerContext, reply: oneshot::Sender<Outcome>) -> Self {
        Item { id, context, reply, guarded: None }
    }

    fn settle(self, outcome: Outcome) {
        // Nobody waits when the attempt was given up.
        let _ = self.reply.send(outcome);
    }
}

/// Deliveries that share a request.
pub(super) struct Batch {
    waiting: HashMap<String, Item>,
    answered: HashSet<String>,
    /// Answered ones whose outcome is told when the child has ended; `None` where it is told at once.
    held: Option<Vec<(Item, Outcome)>>,
}

impl Batch {
    /// A batch whose outcomes are told as soon as they are known.
    pub(super) fn told_at_once(items: Vec<Item>) -> Self {
        let waiting = items.into_iter().map(|item| (item.id.clone(), item)).collect();
        Batch { waiting, answered: HashSet::new(), held: None }
    }

    /// A batch whose outcomes are told by [`conclude`](Batch::conclude).
    pub(super) fn told_at_the_end(items: Vec<Item>) -> Self {
        Batch { held: Some(Vec::new()), ..Batch::told_at_once(items) }
    }

    /// Tells the guard which child has them, until each is settled.
    pub(super) fn guard(&mut self, child: u32) {
        for item in self.waiting.values_mut() {
            // What it was told of another child is over first.
            item.guarded = None;
            item.guarded = item.context.guard(child);
        }
    }

    /// Whether nothing is left to be answered.
    pub(super) fn is_answered(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the child has answered anything.
    pub(super) fn has_answers(&self) -> bool {
        !self.answered.is_empty()
    }

    /// How many there were when nothing was released.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.answered.len()
    }

    /// Whether a stop of this one is of any concern: its outcome is not told yet.
    pub(super) fn is_untold(&self, id: &str) -> bool {
        let is_held = |held: &Vec<(Item, Outcome)>| held.iter().any(|(item, _)| item.id == id);
        self.waiting.contains_key(id) || self.held.as_ref().is_some_and(is_held)
    }

    /// Takes a line of answers in. Those in front of one that makes no sense stand.
    ///
    /// # Errors
    /// Says what is wrong with the line, and shows it.
    pub(super) fn hear(&mut self, line: &[u8]) -> Result<(), String> {
        let broken = |why: &str| format!("{why}: {}", shown(line));
        let answers =
            answer::parse(line).map_err(|why| broken(&format!("the answer makes no sense ({why})")))?;
        for answer in answers {
            let Some(item) = self.waiting.remove(&answer.id) else {
                let is_repeated = self.answered.contains(&answer.id);
                return Err(broken(match is_repeated {
                    true => "answered twice",
                    false => "answered a delivery that it does not have",
                }));
            };
            self.answered.insert(answer.id);
            let outcome = answer.verdict.into_outcome();
            match &mut self.held {
                Some(held) => held.push((item, outcome)),
                None => item.settle(outcome),
            }
        }
        Ok(())
    }

    /// Gives back what is asked to stop before it was begun.
    pub(super) fn release_stopped(&mut self) {
        self.waiting
            .extract_if(|_, item| item.context.stop_requested().is_some())
            .for_each(|(_, item)| item.settle(Outcome::Released));
    }

    /// Waits until one of those that wait is to stop, or the worker drains, and gives it back.
    pub(super) async fn release_next(&mut self) {
        let withdrawn = |item: &Item| {
            let (id, context) = (item.id.clone(), item.context.clone());
            async move {
                tokio::select! {
                    _ = context.stopped() => id,
                    () = context.draining() => id,
                }
            }
        };
        let mut all: FuturesUnordered<_> = self.waiting.values().map(withdrawn).collect();
        if let Some(item) = all.next().await.and_then(|id| self.waiting.remove(&id)) {
            item.settle(Outcome::Released);
        }
    }

    /// Gives an outcome to all that were not answered, and tells what was held back.
    pub(super) fn conclude(self, outcome: impl Fn(&Item) -> Outcome) {
        for item in self.waiting.into_values() {
            let outcome = outcome(&item);
            item.settle(outcome);
        }
        self.held.into_iter().flatten().for_each(|(item, outcome)| item.settle(outcome));
    }

    /// Whether this process did not get to the child before the lease of one of them was over.
    pub(super) fn was_ended_by_guard(&self, ended: Option<&Ended>) -> bool {
        let status = ended.and_then(|ended| ended.status);
        self.waiting.values().any(|item| item.context.was_ended_by_guard(status))
    }

    /// Any of the contexts of those that were not answered.
    pub(super) fn any_context(&self) -> Option<&HandlerContext> {
        self.waiting.values().map(|item| &item.context).next()
    }

    /// The requests to stop, as they come.
    pub(super) fn stops(&self) -> Stops {
        let stop = |item: &Item| {
            let (id, context) = (item.id.clone(), item.context.clone());
            async move { (id, context.stopped().await) }
        };
        let mut stops = self.waiting.values().map(stop);
        match self.waiting.len() {
            1 => Stops(Either::Left(stops.next().map(Box::pin).map(|one| one as Pending))),
            _ => Stops(Either::Right(stops.map(|one| Box::pin(one) as Pending).collect())),
        }
    }
}

type Pending = std::pin::Pin<Box<dyn Future<Output = (String, Stop)> + Send>>;

/// The requests to stop of a batch, as they come.
pub(super) struct Stops(Either<Option<Pending>, FuturesUnordered<Pending>>);

impl Stops {
    /// The next one; never ends when there are no more. May be dropped and called again.
    pub(super) async fn next(&mut self) -> (String, Stop) {
        let next = match &mut self.0 {
            Either::Left(Some(one)) => {
                let stop = one.await;
                self.0 = Either::Left(None);
                Some(stop)
            }
            Either::Left(None) => None,
            Either::Right(many) => many.next().await,
        };
        match next {
            Some(stop) => stop,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::AttemptControl;
    use crate::model::Timestamp;

    fn batch_of(ids: &[&str], hold: bool) -> (Batch, HashMap<String, oneshot::Receiver<Outcome>>) {
        let mut replies = HashMap::new();
        let items = ids.iter().map(|id| {
            let (reply, receiver) = oneshot::channel();
            replies.insert((*id).to_owned(), receiver);
            let control = AttemptControl::new(Timestamp::EPOCH, Default::default());
            Item::new((*id).to_owned(), control.context(), reply)
        });
        let items = items.collect();
        (if hold { Batch::told_at_the_end(items) } else { Batch::told_at_once(items) }, replies)
    }

    #[test]
    fn each_item_gets_its_own_answer_and_the_rest_what_is_left() {
        let (mut batch, mut replies) = batch_of(&["a", "b", "c"], false);
        batch.hear(br#"{"id": "b", "ok": true}"#).unwrap();
        assert_eq!(replies.get_mut("b").unwrap().try_recv(), Ok(Outcome::Succeeded));
        batch.hear(br#"[{"id": "a", "error": "no", "dead": true}]"#).unwrap();
        assert!(!batch.is_answered() && batch.is_untold("c") && !batch.is_untold("a"));
        batch.conclude(|item| Outcome::failed(format!("no answer for {}", item.id)));
        assert_eq!(replies.get_mut("a").unwrap().try_recv(), Ok(Outcome::rejected("no")));
        assert_eq!(replies.get_mut("c").unwrap().try_recv(), Ok(Outcome::failed("no answer for c")));
    }

    #[test]
    fn what_is_held_is_told_at_the_end() {
        let (mut batch, mut replies) = batch_of(&["a", "b"], true);
        batch.hear(br#"[{"id": "a", "ok": true}, {"id": "b", "ok": true}]"#).unwrap();
        assert!(batch.is_answered() && batch.is_untold("a"));
        assert!(replies.get_mut("a").unwrap().try_recv().is_err());
        batch.conclude(|_| Outcome::Released);
        assert_eq!(replies.get_mut("a").unwrap().try_recv(), Ok(Outcome::Succeeded));
    }

    #[test]
    fn what_makes_no_sense_is_named_and_shown() {
        let (mut batch, mut replies) = batch_of(&["a", "b"], false);
        let twice = br#"[{"id":"a","ok":true},{"id":"a","ok":true},{"id":"b","ok":true}]"#;
        assert_eq!(
            batch.hear(twice).unwrap_err(),
            format!("answered twice: {}", String::from_utf8_lossy(twice))
        );
        assert_eq!(replies.get_mut("a").unwrap().try_recv(), Ok(Outcome::Succeeded));
        assert!(!batch.is_answered());
        let unknown = batch.hear(br#"{"id":"x","ok":true}"#).unwrap_err();
        assert_eq!(unknown, r#"answered a delivery that it does not have: {"id":"x","ok":true}"#);
        let garbage = batch.hear(b"hello").unwrap_err();
        assert!(garbage.starts_with("the answer makes no sense (") && garbage.ends_with("): hello"));
    }
}
