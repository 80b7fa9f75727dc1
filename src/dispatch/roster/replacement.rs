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
        self.check_kept(&kept)?;
        let wanted: HashSet<_> =
            kept.iter().map(String::as_str).chain(new.iter().map(|one| one.handler())).collect();
        let removed: Vec<_> =
            self.names().into_iter().filter(|name| !wanted.contains(name.as_str())).collect();
        let (changed, added): (Vec<_>, Vec<_>) =
            new.into_iter().partition(|one| self.index.contains_key(one.handler()));
        let names = |all: &[Arc<Subscription>]| all.iter().map(|one| one.handler().to_owned()).collect();
        let change = Resubscription {
            added: names(&added),
            removed: removed.clone(),
            changed: names(&changed),
            unchanged: kept,
        };
        let mut replacement = Replacement { change, unwanted: Vec::new(), former: Vec::new() };
        removed.iter().for_each(|name| self.remove(name, &mut replacement));
        changed.into_iter().for_each(|one| self.redefine(one, &mut replacement));
        added.into_iter().for_each(|one| self.add(one));
        Ok(replacement)
    }

    fn check_kept(&self, kept: &[String]) -> Result<(), InvalidInput> {
        match kept.iter().find(|name| !self.index.contains_key(*name)) {
            Some(name) => {
                Err(InvalidInput::new(format!("handler {name}"), "cannot be kept, as it is not there"))
            }
            None => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::dispatch::BreakerPolicy;
    use crate::dispatch::breaker::Ending;
    use crate::handler::{Outcome, handler_fn};

    fn subscription(name: &str, concurrency: usize) -> Arc<Subscription> {
        let nothing = handler_fn(|_| async { Outcome::Succeeded });
        Arc::new(Subscription::new(name, nothing).concurrency(concurrency))
    }

    fn roster(names: &[&str], limit: Option<usize>) -> Roster<usize> {
        Roster::new(names.iter().map(|name| subscription(name, 4)).collect(), limit)
    }

    fn wait(roster: &mut Roster<usize>, index: usize, count: usize) {
        let now = Instant::now();
        (0..count).for_each(|number| roster.enqueue(index, number, now, now));
    }

    fn replace(roster: &mut Roster<usize>, kept: &[&str], new: &[(&str, usize)]) -> Replacement<usize> {
        let kept = kept.iter().map(|name| name.to_string()).collect();
        let new = new.iter().map(|(name, concurrency)| subscription(name, *concurrency)).collect();
        roster.replace(kept, new).unwrap()
    }

    #[test]
    fn what_waits_for_a_definition_that_is_gone_is_given_up() {
        let mut roster = roster(&["a", "b", "c"], None);
        (0..3).for_each(|index| wait(&mut roster, index, index + 1));
        let replacement = replace(&mut roster, &["a"], &[("b", 4)]);
        assert_eq!((replacement.unwanted, replacement.former.len()), (vec![0, 1, 2, 0, 1], 2));
        assert_eq!((roster.waiting(), roster.names()), (1, vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!((roster.start_next(), roster.start_next()), (Some((0, 0)), None));
    }

    #[test]
    fn a_vacant_station_is_given_away_when_nothing_runs_there() {
        let mut roster = roster(&["a", "b"], None);
        wait(&mut roster, 0, 1);
        roster.start_next().unwrap();
        replace(&mut roster, &["b"], &[]);
        replace(&mut roster, &["b"], &[("c", 4)]);
        assert_eq!(roster.places(), [(1, "b".to_owned()), (2, "c".to_owned())]);
        roster.freed(0, Duration::ZERO);
        replace(&mut roster, &["b", "c"], &[("d", 4)]);
        assert_eq!(roster.places()[0], (0, "d".to_owned()));
        assert_eq!((roster.running(), roster.find("a").is_none()), (0, true));
    }

    #[test]
    fn what_runs_of_a_former_definition_frees_a_slot_of_the_new_one() {
        let mut roster = roster(&["a"], None);
        let former = roster.find("a").unwrap().1;
        wait(&mut roster, 0, 4);
        (0..4).for_each(|_| assert!(roster.start_next().is_some()));
        replace(&mut roster, &[], &[("a", 2)]);
        wait(&mut roster, 0, 2);
        for running in [3, 2] {
            assert_eq!((roster.start_next(), roster.is_current(0, &former)), (None, false));
            roster.freed_by_former(0);
            assert_eq!(roster.running(), running);
        }
        assert_eq!(roster.start_next(), None);
        roster.freed_by_former(0);
        assert_eq!(roster.start_next(), Some((0, 0)));
    }

    #[test]
    fn turns_stay_fair() {
        let mut roster = roster(&["a", "b", "c"], Some(1));
        wait(&mut roster, 1, 1);
        roster.start_next().unwrap();
        roster.freed(1, Duration::ZERO);
        replace(&mut roster, &["a", "c"], &[("d", 4), ("e", 4)]);
        assert_eq!(roster.places().len(), 4);
        (0..4).for_each(|index| wait(&mut roster, index, 9));
        let turns: Vec<usize> = (0..8)
            .map(|_| {
                let (index, _) = roster.start_next().unwrap();
                roster.freed(index, Duration::ZERO);
                index
            })
            .collect();
        assert_eq!(turns, [2, 3, 0, 1, 2, 3, 0, 1]);
    }

    /// The station is given away in the same moment.
    #[test]
    fn what_happens_at_the_gate_of_a_removed_handler_has_its_name() {
        let mut roster = roster(&["a"], None);
        let failures = BreakerPolicy::default().failures;
        let now = Instant::now();
        (0..failures).for_each(|_| roster.judge(0, Ending::Badly { error: "no route".into() }, now));
        roster.take_news();
        replace(&mut roster, &[], &[("b", 4)]);
        let of: Vec<_> = roster.take_news().into_iter().map(|(name, _)| name).collect();
        assert_eq!((of, roster.places()), (vec!["a".to_owned()], vec![(0, "b".to_owned())]));
    }

    #[test]
    fn one_that_is_not_there_cannot_be_kept() {
        let mut roster = roster(&["a"], None);
        wait(&mut roster, 0, 1);
        let error = roster.replace(vec!["b".to_owned()], vec![subscription("a", 1)]).unwrap_err();
        assert!(error.to_string().contains("handler b"), "{error}");
        assert_eq!((roster.waiting(), roster.find("a").unwrap().1.concurrency), (1, 4));
    }

    #[test]
    fn a_lease_of_another_length_is_not_wanted() {
        let roster = roster(&["a"], None);
        let minute = Duration::from_secs(60);
        assert!(roster.wants("a", minute) && !roster.wants("a", 2 * minute) && !roster.wants("b", minute));
    }
}
