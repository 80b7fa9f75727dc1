//! Other handlers for a worker that runs.
//!
//! A handler that is changed keeps its station: what runs of the old definition takes slots of the new one, and ends as it
//! began. One that is removed leaves a station with a locked gate, which is given away when nothing runs there any more,
//! or at once to a handler of the same name. What was claimed ahead for a definition that is gone is handed back: its
//! lease, its limits and what is to be done with it were settled for the old one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::{Roster, Station, pace_of};
use crate::dispatch::handle::Resubscription;
use crate::dispatch::subscription::Subscription;
use crate::model::InvalidInput;

/// What has become of a roster, and is still to be done about it.
#[derive(Debug)]
pub(in crate::dispatch) struct Replacement<W> {
    pub(in crate::dispatch) change: Resubscription,
    /// What waited for definitions that are gone.
    pub(in crate::dispatch) unwanted: Vec<W>,
    /// The definitions that are gone.
    pub(in crate::dispatch) former: Vec<Former>,
}

/// A definition that is gone.
#[derive(Debug)]
pub(in crate::dispatch) struct Former {
    pub(in crate::dispatch) subscription: Arc<Subscription>,
    /// What still runs under it.
    pub(in crate::dispatch) attempts: TaskTracker,
}

impl<W> Roster<W> {
    /// Has these handlers from now on: `kept` ones as they are, and `new` ones. No name may be there twice.
    ///
    /// # Errors
    /// Names the one that is to be kept and is not there. Nothing has changed then.
    pub(in crate::dispatch) fn replace(
        &mut self,
        kept: Vec<String>,
        new: Vec<Arc<Subscription>>,
    ) -> Result<Replacement<W>, InvalidInput> {
        if let Some(unknown) = kept.iter().find(|name| !self.index.contains_key(*name)) {
            return Err(InvalidInput::new(
                format!("handler {unknown}"),
                "cannot be kept, as it is not there",
            ));
        }
        let wanted: HashSet<&str> =
            new.iter().map(|one| one.handler()).chain(kept.iter().map(String::as_str)).collect();
        let mut removed = self.names();
        removed.retain(|name| !wanted.contains(name.as_str()));
        let (changed, added): (Vec<_>, Vec<_>) =
            new.into_iter().partition(|one| self.index.contains_key(one.handler()));
        let names = |all: &[Arc<Subscription>]| all.iter().map(|one| one.handler().to_owned()).collect();
        let change =
            Resubscription { added: names(&added), removed, changed: names(&changed), unchanged: kept };
        let mut replacement = Replacement { change, unwanted: Vec::new(), former: Vec::new() };
        for name in replacement.change.removed.clone() {
            self.remove(&name, &mut replacement);
        }
        changed.into_iter().for_each(|one| self.redefine(one, &mut replacement));
        added.into_iter().for_each(|one| self.add(one));
        Ok(replacement)
    }

    fn remove(&mut self, name: &str, replacement: &mut Replacement<W>) {
        let Some(index) = self.index.remove(name) else { return };
        self.empty(index, replacement);
        if let Some(news) = self.stations[index].gate.lock() {
            self.note(index, news);
        }
    }

    fn redefine(&mut self, subscription: Arc<Subscription>, replacement: &mut Replacement<W>) {
        let Some(&index) = self.index.get(subscription.handler()) else { return };
        self.empty(index, replacement);
        let station = &mut self.stations[index];
        station.pace = pace_of(&subscription, self.limit);
        let news = station.gate.redefine(&subscription);
        station.subscription = subscription;
        if let Some(news) = news {
            self.note(index, news);
        }
    }

    /// Takes leave of a definition, and of what waits for it.
    fn empty(&mut self, index: usize, replacement: &mut Replacement<W>) {
        let station = &mut self.stations[index];
        self.waiting -= station.waiting.len();
        replacement.unwanted.extend(station.waiting.drain(..).map(|waiting| waiting.work));
        replacement.former.push(Former {
            subscription: station.subscription.clone(),
            attempts: std::mem::take(&mut station.attempts),
        });
    }

    /// What still runs of a removed handler of the same name takes slots of the new one.
    fn add(&mut self, subscription: Arc<Subscription>) {
        let name = subscription.handler().to_owned();
        let station = Station::new(subscription, self.limit);
        let index = self.vacant_for(&name);
        match self.stations.get_mut(index) {
            Some(vacant) => *vacant = Station { running: vacant.running, ..station },
            None => self.stations.push(station),
        }
        self.index.insert(name, index);
    }

    fn vacant_for(&self, name: &str) -> usize {
        let position = |fits: &dyn Fn(&Station<W>) -> bool| {
            self.stations.iter().position(|station| station.gate.is_locked() && fits(station))
        };
        position(&|station| station.subscription.handler() == name)
            .or_else(|| position(&|station| station.running == 0))
            .unwrap_or(self.stations.len())
    }

    /// Whether a lease of such a length is what a handler claims now.
    pub(in crate::dispatch) fn wants(&self, handler: &str, lease: Duration) -> bool {
        self.find(handler).is_some_and(|(_, subscription)| subscription.lease == lease)
    }

    /// Whether a handler is still defined so.
    pub(in crate::dispatch) fn is_current(&self, index: usize, subscription: &Arc<Subscription>) -> bool {
        Arc::ptr_eq(&self.stations[index].subscription, subscription)
    }

    /// An attempt under a former definition is over. It says nothing about the pace of this one.
    pub(in crate::dispatch) fn freed_by_former(&mut self, index: usize) {
        self.stations[index].running -= 1;
        self.running -= 1;
    }
}
