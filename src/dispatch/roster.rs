//! Who may claim, and how many: the slots of each handler.
//!
//! One claim asks for one handler or for several, but has one limit. To never lease more than can start at once, a
//! claim for several handlers asks for no more than the least of their free slots. So handlers that are idle share
//! one probe, and a handler that has work to do is *hungry* and claims by itself for all its free slots.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::subscription::Subscription;

/// The handlers of a worker and what they are busy with.
#[derive(Debug)]
pub(super) struct Roster {
    slots: Vec<Slots>,
    index: HashMap<String, usize>,
    limit: usize,
    running: usize,
    /// Whose turn it is among the hungry.
    turn: usize,
    /// Groups of idle handlers that this round of probes still has to ask for.
    round: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Slots {
    subscription: Arc<Subscription>,
    running: usize,
    is_hungry: bool,
}

impl Slots {
    fn free(&self) -> usize {
        self.subscription.concurrency.saturating_sub(self.running)
    }
}

/// What to claim next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) members: Vec<usize>,
    pub(super) limit: usize,
    pub(super) lease: Duration,
}

impl Roster {
    pub(super) fn new(subscriptions: Vec<Arc<Subscription>>, limit: Option<usize>) -> Self {
        let limit = limit.unwrap_or_else(|| subscriptions.iter().map(|one| one.concurrency).sum());
        let index = subscriptions.iter().enumerate().map(|(i, one)| (one.handler().to_owned(), i)).collect();
        let idle = |subscription| Slots { subscription, running: 0, is_hungry: false };
        let slots = subscriptions.into_iter().map(idle).collect();
        Roster { slots, index, limit, running: 0, turn: 0, round: Vec::new() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.slots.iter().map(|slots| slots.subscription.handler().to_owned()).collect()
    }

    pub(super) fn names_of(&self, plan: &Plan) -> Vec<String> {
        plan.members.iter().map(|&i| self.slots[i].subscription.handler().to_owned()).collect()
    }

    pub(super) fn find(&self, handler: &str) -> Option<(usize, Arc<Subscription>)> {
        let index = *self.index.get(handler)?;
        Some((index, self.slots[index].subscription.clone()))
    }

    /// Begins a round of probes for all handlers that are idle, those with equal leases together.
    pub(super) fn begin_round(&mut self) {
        let mut groups: BTreeMap<Duration, Vec<usize>> = BTreeMap::new();
        for (i, slots) in
            self.slots.iter().enumerate().filter(|(_, slots)| !slots.is_hungry && slots.free() > 0)
        {
            groups.entry(slots.subscription.lease).or_default().push(i);
        }
        self.round = groups.into_values().collect();
    }

    pub(super) fn round_is_over(&self) -> bool {
        self.round.is_empty()
    }

    pub(super) fn anyone_hungry(&self) -> bool {
        self.slots.iter().any(|slots| slots.is_hungry)
    }

    /// The next claim, of at most `allowance` deliveries; `None` when no one wants or can take anything now.
    pub(super) fn next_plan(&mut self, allowance: usize) -> Option<Plan> {
        let room = self.limit.saturating_sub(self.running).min(allowance);
        if room == 0 {
            return None;
        }
        self.next_probe(room).or_else(|| self.next_of_the_hungry(room))
    }

    fn next_probe(&mut self, room: usize) -> Option<Plan> {
        let members = self.round.pop()?;
        let least = members.iter().map(|&i| self.slots[i].free()).min().unwrap_or(0);
        Some(self.plan(members, room.min(least)))
    }

    fn next_of_the_hungry(&mut self, room: usize) -> Option<Plan> {
        let count = self.slots.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let next = in_turn.into_iter().find(|&i| self.slots[i].is_hungry && self.slots[i].free() > 0)?;
        self.turn = next + 1;
        // Until the answer is there; a delivery that finishes meanwhile makes it hungry again.
        self.slots[next].is_hungry = false;
        let limit = room.min(self.slots[next].free());
        Some(self.plan(vec![next], limit))
    }

    fn plan(&self, members: Vec<usize>, limit: usize) -> Plan {
        let lease = members.first().map_or(Duration::ZERO, |&i| self.slots[i].subscription.lease);
        Plan { members, limit, lease }
    }

    /// A claim brought as much as it asked for: there may be more for any of its handlers.
    pub(super) fn was_full(&mut self, plan: &Plan) {
        for &i in &plan.members {
            self.slots[i].is_hungry = true;
        }
    }

    pub(super) fn started(&mut self, index: usize) {
        self.slots[index].running += 1;
        self.running += 1;
    }

    /// A slot is free again, and the next delivery of its key may be as well.
    pub(super) fn finished(&mut self, index: usize) {
        self.slots[index].running -= 1;
        self.slots[index].is_hungry = true;
        self.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::{Outcome, handler_fn};

    fn roster(handlers: &[(&str, usize, u64)], limit: Option<usize>) -> Roster {
        let subscription = |&(name, concurrency, lease): &(&str, usize, u64)| {
            let nothing = handler_fn(|_| async { Outcome::Succeeded });
            let lease = Duration::from_secs(lease);
            Arc::new(Subscription::new(name, nothing).concurrency(concurrency).lease(lease))
        };
        Roster::new(handlers.iter().map(subscription).collect(), limit)
    }

    fn next(roster: &mut Roster, allowance: usize) -> Option<(Vec<String>, usize)> {
        let plan = roster.next_plan(allowance)?;
        Some((roster.names_of(&plan), plan.limit))
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn idle_handlers_share_a_probe_for_the_least_of_their_slots() {
        let mut roster = roster(&[("a", 4, 60), ("b", 2, 60), ("c", 8, 30)], None);
        assert_eq!(next(&mut roster, 100), None);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["a", "b"]), 2)));
        assert_eq!(next(&mut roster, 100), Some((names(&["c"]), 8)));
        assert!(roster.round_is_over());
        assert_eq!(next(&mut roster, 100), None);
    }

    #[test]
    fn hungry_handlers_take_turns_and_fill_their_own_slots() {
        let mut roster = roster(&[("a", 4, 60), ("b", 2, 60)], None);
        roster.begin_round();
        let probe = roster.next_plan(100).unwrap();
        roster.was_full(&probe);
        roster.started(0);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 3)));
        assert_eq!(next(&mut roster, 100), Some((names(&["b"]), 2)));
        assert_eq!(next(&mut roster, 100), None);
        roster.finished(0);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 4)));
    }

    #[test]
    fn the_whole_worker_has_a_limit_and_an_allowance() {
        let mut roster = roster(&[("a", 4, 60)], Some(3));
        roster.finished_and_started(2);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 1)));
        roster.begin_round();
        assert_eq!(next(&mut roster, 0), None);
        roster.started(0);
        assert_eq!(next(&mut roster, 100), None);
    }

    #[test]
    fn a_handler_without_a_free_slot_is_not_probed() {
        let mut roster = roster(&[("slow", 1, 60), ("quick", 2, 60)], None);
        roster.started(0);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["quick"]), 2)));
    }

    impl Roster {
        fn finished_and_started(&mut self, count: usize) {
            (0..count).for_each(|_| self.started(0));
        }
    }
}
