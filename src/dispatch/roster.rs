//! Who may claim, and how many: the slots of each handler, and what waits for them.
//!
//! One claim asks for one handler or for several, but has one limit. To never lease more than can start soon, a claim
//! for several handlers asks for no more than the least of their free slots. So handlers that are idle share one
//! probe, and a handler that has work to do is *hungry* and claims by itself: for all its free slots, and for what its
//! pace lets it claim ahead. What was claimed waits in a queue of its handler, so that a slot that becomes free has its
//! next delivery at once and a handler whose slots are taken holds nobody else back. Each handler has a gate, which may let
//! nothing through or so many: no more is claimed than it lets start.

mod replacement;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::breaker::Ending;
use super::gate::{Gate, GateNews, Halt};
use super::pace::{Pace, Smoothed};
use super::subscription::Subscription;

pub(super) use replacement::{Former, Replacement};

/// The most deliveries that wait in a worker, of all its handlers.
const MOST_WAITING: usize = 1_000;

/// The handlers of a worker, what they are busy with, and the deliveries (`W`) that wait for them.
#[derive(Debug)]
pub(super) struct Roster<W> {
    /// A station never moves, as what runs and the claim under way know it by its place.
    stations: Vec<Station<W>>,
    index: HashMap<String, usize>,
    limit: Option<usize>,
    running: usize,
    waiting: usize,
    /// Whose turn it is to claim among the hungry.
    claim_turn: usize,
    /// Whose turn it is to start among those that have something to start.
    start_turn: usize,
    /// Groups of idle handlers that this round of probes still has to ask for.
    round: Vec<Vec<usize>>,
    /// Seconds that a claim takes which brings something.
    claim_time: Smoothed,
    /// What happened at the gates, and of whom.
    news: Vec<(String, GateNews)>,
}

/// A handler at work.
#[derive(Debug)]
struct Station<W> {
    subscription: Arc<Subscription>,
    running: usize,
    waiting: VecDeque<Waiting<W>>,
    is_hungry: bool,
    pace: Pace,
    gate: Gate,
    /// Those that run under this subscription.
    attempts: TaskTracker,
}

#[derive(Debug)]
struct Waiting<W> {
    work: W,
    /// When it is handed back.
    until: Instant,
}

impl<W> Station<W> {
    fn new(subscription: Arc<Subscription>, limit: Option<usize>) -> Self {
        let pace = pace_of(&subscription, limit);
        let gate = Gate::new(&subscription, Instant::now());
        let (waiting, attempts) = (VecDeque::new(), TaskTracker::new());
        Station { subscription, running: 0, waiting, is_hungry: false, pace, gate, attempts }
    }

    fn slots(&self) -> usize {
        self.subscription.concurrency.saturating_sub(self.running)
    }

    /// How many may start now.
    fn free(&self) -> usize {
        self.slots().min(self.gate.lets_through(self.running))
    }

    /// How many more its gate would let start than wait already.
    fn let_through(&self) -> usize {
        self.gate.lets_through(self.running).saturating_sub(self.waiting.len())
    }

    /// How many to ask for when nothing is known of its pace.
    fn claimable(&self) -> usize {
        self.free().min(self.let_through())
    }

    fn is_longing(&self) -> bool {
        self.is_hungry && !self.gate.is_shut()
    }
}

fn pace_of(subscription: &Subscription, limit: Option<usize>) -> Pace {
    Pace::new(subscription.concurrency.min(limit.unwrap_or(usize::MAX)), subscription.lease)
}

/// What to claim next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) members: Vec<usize>,
    pub(super) limit: usize,
    pub(super) lease: Duration,
}

impl<W> Roster<W> {
    pub(super) fn new(subscriptions: Vec<Arc<Subscription>>, limit: Option<usize>) -> Self {
        let index = subscriptions.iter().enumerate().map(|(i, one)| (one.handler().to_owned(), i)).collect();
        let stations = subscriptions.into_iter().map(|one| Station::new(one, limit)).collect();
        Roster {
            stations,
            index,
            limit,
            running: 0,
            waiting: 0,
            claim_turn: 0,
            start_turn: 0,
            round: Vec::new(),
            claim_time: Smoothed::default(),
            news: Vec::new(),
        }
    }

    /// The handlers, with their places.
    pub(super) fn places(&self) -> Vec<(usize, String)> {
        let all = self.stations.iter().enumerate().filter(|(_, station)| !station.gate.is_locked());
        all.map(|(i, station)| (i, station.subscription.handler().to_owned())).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.places().into_iter().map(|(_, name)| name).collect()
    }

    pub(super) fn subscriptions(&self) -> Vec<Arc<Subscription>> {
        let all = self.stations.iter().filter(|station| !station.gate.is_locked());
        all.map(|station| station.subscription.clone()).collect()
    }

    pub(super) fn names_of(&self, plan: &Plan) -> Vec<String> {
        plan.members.iter().map(|&i| self.stations[i].subscription.handler().to_owned()).collect()
    }

    pub(super) fn find(&self, handler: &str) -> Option<(usize, Arc<Subscription>)> {
        let index = *self.index.get(handler)?;
        Some((index, self.stations[index].subscription.clone()))
    }

    /// How many slots are taken.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// How many slots each handler has taken.
    pub(super) fn running_by_handler(&self) -> impl Iterator<Item = usize> {
        let all = self.stations.iter().filter(|station| !station.gate.is_locked());
        all.map(|station| station.running)
    }

    /// How many deliveries wait for a slot.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    // ---- claims ------------------------------------------------------------------------------------------------

    /// Begins a round of probes for all handlers that are idle, those with equal leases together.
    pub(super) fn begin_round(&mut self) {
        let mut groups: BTreeMap<Duration, Vec<usize>> = BTreeMap::new();
        // Those that only wait for their rate claim when it lets them; till then nobody can say that nothing is due.
        for station in self.stations.iter_mut().filter(|station| station.slots() > 0) {
            station.is_hungry |= station.gate.is_held_by_rate();
        }
        let idle = |station: &Station<W>| !station.is_hungry && station.claimable() > 0;
        for (i, station) in self.stations.iter().enumerate().filter(|(_, station)| idle(station)) {
            groups.entry(station.subscription.lease).or_default().push(i);
        }
        self.round = groups.into_values().collect();
    }

    pub(super) fn round_is_over(&self) -> bool {
        self.round.is_empty()
    }

    pub(super) fn anyone_hungry(&self) -> bool {
        self.stations.iter().any(Station::is_longing)
    }

    /// The next claim, of at most `allowance` deliveries; `None` when no one wants or can take anything now.
    pub(super) fn next_plan(&mut self, allowance: usize) -> Option<Plan> {
        if allowance == 0 {
            return None;
        }
        self.next_probe(allowance).or_else(|| self.next_of_the_hungry(allowance))
    }

    fn next_probe(&mut self, allowance: usize) -> Option<Plan> {
        let room = self.room().min(allowance);
        if room == 0 {
            return None;
        }
        loop {
            let mut members = self.round.pop()?;
            members.retain(|&i| self.stations[i].claimable() > 0);
            let least = members.iter().map(|&i| self.stations[i].claimable()).min().unwrap_or(0);
            if least > 0 {
                return Some(self.plan(members, room.min(least)));
            }
        }
    }

    fn next_of_the_hungry(&mut self, allowance: usize) -> Option<Plan> {
        let count = self.stations.len();
        let in_turn = (0..count).map(|step| (self.claim_turn + step) % count);
        let next = in_turn.into_iter().find(|&i| self.stations[i].is_hungry && self.demand(i) > 0)?;
        let limit = self.demand(next).min(allowance);
        self.claim_turn = next + 1;
        // Until the answer is there; a delivery that finishes meanwhile makes it hungry again.
        self.stations[next].is_hungry = false;
        Some(self.plan(vec![next], limit))
    }

    /// How many a hungry handler claims now: for its free slots, and up to half of what it claims ahead. Nothing as long
    /// as its slots are taken and at least half of that waits, so that claims are few and large.
    fn demand(&self, index: usize) -> usize {
        let station = &self.stations[index];
        let (free, waiting) = (station.free().min(self.room()), station.waiting.len());
        let ahead = self.ahead(station);
        if free == 0 && waiting * 2 >= ahead {
            return 0;
        }
        let wanted = (free + ahead).saturating_sub(waiting).min(free.max(ahead.div_ceil(2)));
        wanted.min(station.let_through())
    }

    /// How many deliveries of a handler may wait. The hungry take turns, so that so many claims pass between two of one.
    fn ahead(&self, station: &Station<W>) -> usize {
        let hungry = self.stations.iter().filter(|station| station.is_longing()).count().max(1);
        let ahead = station.pace.ahead(self.claim_time.get().unwrap_or(0.0) * hungry as f64);
        ahead.min((MOST_WAITING + station.waiting.len()).saturating_sub(self.waiting))
    }

    /// The free slots of the whole worker.
    fn room(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| limit.saturating_sub(self.running))
    }

    fn plan(&self, members: Vec<usize>, limit: usize) -> Plan {
        let lease = members.first().map_or(Duration::ZERO, |&i| self.stations[i].subscription.lease);
        Plan { members, limit, lease }
    }

    /// A claim brought so many within so long.
    pub(super) fn claimed(&mut self, plan: &Plan, count: usize, took: Duration, now: Instant) {
        self.claim_time.add(took.as_secs_f64(), 0.3);
        for &i in &plan.members {
            self.stations[i].pace.count(now);
            // It brought as much as it asked for: there may be more for any of its handlers.
            self.stations[i].is_hungry |= count >= plan.limit;
        }
    }

    // ---- gates -------------------------------------------------------------------------------------------------

    /// Lets time pass at the gates: nothing else here knows of it.
    pub(super) fn pass_time(&mut self, now: Instant) {
        for index in 0..self.stations.len() {
            let news = self.stations[index].gate.pass_time(now);
            news.into_iter().for_each(|news| self.note(index, news));
        }
    }

    /// A handler is paused, or is not.
    pub(super) fn pause(&mut self, index: usize, pause: Option<Halt>) {
        if let Some(news) = self.stations[index].gate.pause(pause) {
            self.note(index, news);
        }
    }

    /// An attempt ended in a way that says something about its handler.
    pub(super) fn judge(&mut self, index: usize, ending: Ending, now: Instant) {
        if let Some(news) = self.stations[index].gate.ended(ending, now) {
            self.note(index, news);
        }
    }

    /// What waited behind a gate may be due at once: a round of probes would come late for it.
    fn note(&mut self, index: usize, news: GateNews) {
        let station = &mut self.stations[index];
        station.is_hungry |= !station.gate.is_shut();
        self.news.push((station.subscription.handler().to_owned(), news));
    }

    /// What happened at the gates since the last call, with the names of the handlers.
    pub(super) fn take_news(&mut self) -> Vec<(String, GateNews)> {
        std::mem::take(&mut self.news)
    }

    /// When the first gate opens, or lets more through, as time passes.
    pub(super) fn gates_open_at(&self) -> Option<Instant> {
        let opens_at = |station: &Station<W>| {
            let wants = station.slots() > 0 && (station.is_hungry || !station.waiting.is_empty());
            station.gate.opens_at(wants)
        };
        self.stations.iter().filter_map(opens_at).min()
    }

    // ---- what waits and what runs ------------------------------------------------------------------------------

    /// Lets a delivery wait for a slot. Its lease is counted from `leased_at`.
    pub(super) fn enqueue(&mut self, index: usize, work: W, leased_at: Instant, now: Instant) {
        let station = &mut self.stations[index];
        let a_third = leased_at + station.subscription.lease / 3;
        let until = a_third.min(now + station.pace.patience());
        station.waiting.push_back(Waiting { work, until });
        self.waiting += 1;
    }

    /// Takes a slot for the next delivery that waits, if there is one with a free slot. Handlers take turns.
    pub(super) fn start_next(&mut self) -> Option<(usize, W)> {
        if self.waiting == 0 || self.room() == 0 {
            return None;
        }
        let count = self.stations.len();
        let mut in_turn = (0..count).map(|step| (self.start_turn + step) % count);
        let next = in_turn.find(|&i| self.stations[i].free() > 0 && !self.stations[i].waiting.is_empty())?;
        self.start_turn = next + 1;
        let station = &mut self.stations[next];
        let work = station.waiting.pop_front()?.work;
        station.running += 1;
        station.pace.started();
        station.gate.started();
        self.running += 1;
        self.waiting -= 1;
        Some((next, work))
    }

    /// For an attempt that begins: held until it is over.
    pub(super) fn attempt_token(&self, index: usize) -> TaskTrackerToken {
        self.stations[index].attempts.token()
    }

    /// An attempt is over and its slot is free again, though its outcome is not recorded yet.
    pub(super) fn freed(&mut self, index: usize, elapsed: Duration) {
        self.stations[index].running -= 1;
        self.stations[index].pace.ended(elapsed);
        self.running -= 1;
    }

    /// An outcome is recorded, so that the next delivery of its key may be due.
    pub(super) fn finished(&mut self, index: usize) {
        self.stations[index].is_hungry = true;
    }

    /// When the first delivery will have waited too long.
    pub(super) fn patience_ends_at(&self) -> Option<Instant> {
        self.stations.iter().filter_map(|station| Some(station.waiting.front()?.until)).min()
    }

    /// What has waited too long, so that others can have it. Its handlers claim nothing ahead before they are measured
    /// again, so that the same deliveries do not come back at once.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<W> {
        let mut overdue = Vec::new();
        for station in &mut self.stations {
            if station.waiting.front().is_some_and(|first| first.until <= now) {
                station.pace.turned_slow();
                overdue.extend(station.waiting.drain(..).map(|waiting| waiting.work));
            }
        }
        self.waiting -= overdue.len();
        overdue
    }

    /// What waits for handlers whose gate is shut, so that others can have it.
    pub(super) fn take_shut_out(&mut self) -> Vec<W> {
        let shut = self.stations.iter_mut().filter(|station| station.gate.is_shut());
        let out: Vec<W> = shut.flat_map(|station| station.waiting.drain(..)).map(|one| one.work).collect();
        self.waiting -= out.len();
        out
    }

    /// Everything that waits.
    pub(super) fn take_waiting(&mut self) -> Vec<W> {
        self.waiting = 0;
        let all = self.stations.iter_mut().flat_map(|station| station.waiting.drain(..));
        all.map(|waiting| waiting.work).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::{Outcome, handler_fn};

    const MILLI: Duration = Duration::from_millis(1);

    /// What waits is a number here.
    type Numbered = Roster<usize>;

    fn roster(handlers: &[(&str, usize, u64)], limit: Option<usize>) -> Numbered {
        let subscription = |&(name, concurrency, lease): &(&str, usize, u64)| {
            let nothing = handler_fn(|_| async { Outcome::Succeeded });
            let lease = Duration::from_secs(lease);
            Arc::new(Subscription::new(name, nothing).concurrency(concurrency).lease(lease))
        };
        Roster::new(handlers.iter().map(subscription).collect(), limit)
    }

    fn next(roster: &mut Numbered, allowance: usize) -> Option<(Vec<String>, usize)> {
        let plan = roster.next_plan(allowance)?;
        Some((roster.names_of(&plan), plan.limit))
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    impl Numbered {
        /// Lets so many deliveries wait.
        fn wait(&mut self, index: usize, count: usize) {
            let now = Instant::now();
            (0..count).for_each(|number| self.enqueue(index, number, now, now));
        }

        /// Starts so many deliveries of a handler that has slots for them.
        fn start(&mut self, index: usize, count: usize) {
            self.wait(index, count);
            (0..count).for_each(|_| assert_eq!(self.start_next().unwrap().0, index));
        }

        fn was_full(&mut self, plan: &Plan) {
            self.claimed(plan, plan.limit, 10 * MILLI, Instant::now());
        }

        /// Measures a handler that starts 8,000 a second when claims take 10 ms; leaves it idle.
        fn measure_as_quick(&mut self, index: usize) {
            let (began, plan) = (Instant::now(), self.plan(vec![index], 1));
            self.claimed(&plan, 0, 10 * MILLI, began);
            for _ in 0..8_000 {
                self.start(index, 1);
                self.freed(index, Duration::ZERO);
            }
            self.claimed(&plan, 0, 10 * MILLI, began + Duration::from_secs(1));
        }
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
        roster.start(0, 1);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 3)));
        assert_eq!(next(&mut roster, 100), Some((names(&["b"]), 2)));
        assert_eq!(next(&mut roster, 100), None);
        roster.freed(0, MILLI);
        roster.finished(0);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 4)));
    }

    #[test]
    fn the_whole_worker_has_a_limit_and_an_allowance() {
        let mut roster = roster(&[("a", 4, 60)], Some(3));
        roster.start(0, 2);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 1)));
        roster.begin_round();
        assert_eq!(next(&mut roster, 0), None);
        roster.start(0, 1);
        assert_eq!(next(&mut roster, 100), None);
        roster.wait(0, 1);
        assert_eq!(roster.start_next(), None);
    }

    #[test]
    fn a_handler_without_a_free_slot_is_not_probed() {
        let mut roster = roster(&[("slow", 1, 60), ("quick", 2, 60)], None);
        roster.start(0, 1);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["quick"]), 2)));
    }

    #[test]
    fn a_slot_that_becomes_free_has_its_next_delivery_at_once_the_oldest_first() {
        let mut roster = roster(&[("a", 2, 60)], None);
        roster.wait(0, 4);
        assert_eq!((roster.start_next(), roster.start_next()), (Some((0, 0)), Some((0, 1))));
        assert_eq!(roster.start_next(), None);
        roster.freed(0, MILLI);
        assert_eq!(roster.start_next(), Some((0, 2)));
        assert_eq!((roster.running(), roster.waiting()), (2, 1));
    }

    #[test]
    fn handlers_take_turns_at_the_slots_of_the_worker() {
        let mut roster = roster(&[("a", 9, 60), ("b", 9, 60)], Some(1));
        roster.wait(0, 9);
        roster.wait(1, 9);
        let turns: Vec<usize> = (0..4)
            .map(|_| {
                let (index, _) = roster.start_next().unwrap();
                roster.freed(index, MILLI);
                index
            })
            .collect();
        assert_eq!(turns, [0, 1, 0, 1]);
    }

    #[test]
    fn a_quick_handler_claims_ahead_in_halves() {
        let mut roster = roster(&[("a", 4, 60)], None);
        roster.measure_as_quick(0);
        roster.finished(0);
        // 8,000 a second, for two claims of 10 ms, and four times that as it may still grow, up to the most.
        assert_eq!(next(&mut roster, 1_000), Some((names(&["a"]), 250)));
        roster.wait(0, 250);
        while roster.start_next().is_some() {}
        roster.finished(0);
        assert_eq!(next(&mut roster, 1_000), Some((names(&["a"]), 250)));
        roster.wait(0, 250);
        roster.finished(0);
        // 496 wait: it claims again when less than half of the most does.
        assert_eq!(next(&mut roster, 1_000), None);
    }

    #[test]
    fn a_claim_ahead_keeps_to_the_allowance() {
        let mut roster = roster(&[("a", 4, 60)], None);
        roster.measure_as_quick(0);
        roster.finished(0);
        assert_eq!(next(&mut roster, 7), Some((names(&["a"]), 7)));
    }

    #[test]
    fn many_quick_handlers_share_what_may_wait() {
        let handlers: Vec<String> = (0..5).map(|i| format!("handler-{i}")).collect();
        let handlers: Vec<_> = handlers.iter().map(|name| (name.as_str(), 1, 60)).collect();
        let mut roster = roster(&handlers, None);
        for index in 0..5 {
            roster.measure_as_quick(index);
        }
        for index in 0..5 {
            roster.start(index, 1);
        }
        (0..5).for_each(|index| roster.finished(index));
        while let Some(plan) = roster.next_plan(10_000) {
            let index = plan.members[0];
            roster.wait(index, plan.limit);
            roster.finished(index);
        }
        assert!((900..=MOST_WAITING).contains(&roster.waiting()), "{}", roster.waiting());
    }

    #[test]
    fn what_waited_too_long_is_handed_back_and_nothing_is_claimed_ahead_for_a_while() {
        let mut roster = roster(&[("a", 1, 60), ("b", 1, 60)], None);
        roster.measure_as_quick(0);
        roster.finished(0);
        let now = Instant::now();
        (0..5).for_each(|number| roster.enqueue(0, number, now, now));
        assert_eq!(roster.start_next(), Some((0, 0)));
        let until = now + Duration::from_secs(1);
        assert_eq!(roster.patience_ends_at(), Some(until));
        assert_eq!(roster.take_overdue(until - MILLI), [0; 0]);
        assert_eq!(roster.take_overdue(until), [1, 2, 3, 4]);
        assert_eq!((roster.patience_ends_at(), roster.waiting()), (None, 0));
        assert_eq!(next(&mut roster, 100), None);
    }

    #[test]
    fn a_lease_that_was_long_in_coming_leaves_less_time_to_wait() {
        let mut roster = roster(&[("a", 1, 9)], None);
        let leased_at = Instant::now();
        let now = leased_at + Duration::from_millis(2_500);
        roster.enqueue(0, 0, leased_at, now);
        assert_eq!(roster.patience_ends_at(), Some(leased_at + Duration::from_secs(3)));
    }

    // ---- gates

    fn with_rate(rate: &str) -> Numbered {
        let nothing = handler_fn(|_| async { Outcome::Succeeded });
        let subscription = Subscription::new("a", nothing).concurrency(8).rate(rate.parse().unwrap());
        Roster::new(vec![Arc::new(subscription)], None)
    }

    #[test]
    fn a_paused_handler_is_not_asked_for_and_gives_up_what_waits() {
        let mut roster = roster(&[("a", 2, 60), ("b", 2, 60)], None);
        roster.start(0, 2);
        roster.wait(0, 3);
        roster.wait(1, 1);
        roster.pause(0, Some(Halt { until: None }));
        assert_eq!(roster.take_news(), [("a".to_owned(), GateNews::Paused)]);
        assert_eq!(roster.take_shut_out(), [0, 1, 2]);
        assert_eq!((roster.running(), roster.waiting()), (2, 1));
        roster.freed(0, MILLI);
        roster.finished(0);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["b"]), 2)));
        assert_eq!((next(&mut roster, 100), roster.anyone_hungry()), (None, false));
        roster.pause(0, None);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 1)));
    }

    #[test]
    fn a_pause_ends_with_time_and_the_handler_is_hungry() {
        let mut roster = roster(&[("a", 2, 60)], None);
        let until = Instant::now() + Duration::from_secs(60);
        roster.pause(0, Some(Halt { until: Some(until) }));
        assert_eq!(roster.gates_open_at(), Some(until));
        roster.pass_time(until);
        let news: Vec<_> = roster.take_news().into_iter().map(|(_, news)| news).collect();
        assert_eq!(news, [GateNews::Paused, GateNews::Resumed]);
        assert_eq!((next(&mut roster, 100), roster.gates_open_at()), (Some((names(&["a"]), 2)), None));
    }

    #[test]
    fn no_more_is_claimed_than_the_rate_lets_start() {
        let mut roster = with_rate("20/s");
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 2)));
        roster.wait(0, 1);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 1)));
        roster.wait(0, 1);
        roster.begin_round();
        assert_eq!(next(&mut roster, 100), None);
        assert_eq!((roster.start_next(), roster.start_next()), (Some((0, 0)), Some((0, 0))));
        roster.wait(0, 1);
        assert_eq!(roster.start_next(), None);
        let opens_at = roster.gates_open_at().unwrap();
        roster.pass_time(opens_at);
        assert_eq!(roster.start_next(), Some((0, 0)));
    }

    /// Nobody can say that nothing is due before the rate lets somebody look.
    #[test]
    fn a_handler_that_waits_for_its_rate_counts_as_hungry() {
        let mut roster = with_rate("1/s");
        roster.start(0, 1);
        roster.freed(0, MILLI);
        roster.begin_round();
        assert_eq!((next(&mut roster, 100), roster.round_is_over()), (None, true));
        assert!(roster.anyone_hungry());
        let opens_at = roster.gates_open_at().unwrap();
        roster.pass_time(opens_at);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 1)));
        assert!(!roster.anyone_hungry());
    }

    #[test]
    fn behind_an_open_breaker_one_at_a_time_is_claimed_until_it_closes() {
        let mut roster = roster(&[("a", 8, 60)], None);
        let now = Instant::now();
        (0..10).for_each(|_| roster.judge(0, Ending::Badly { error: "no route".into() }, now));
        roster.begin_round();
        assert_eq!((next(&mut roster, 100), roster.anyone_hungry()), (None, false));
        let opens_at = roster.gates_open_at().unwrap();
        roster.pass_time(opens_at);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 1)));
        roster.start(0, 1);
        roster.finished(0);
        assert_eq!(next(&mut roster, 100), None);
        roster.freed(0, MILLI);
        roster.judge(0, Ending::Well, opens_at);
        assert_eq!(next(&mut roster, 100), Some((names(&["a"]), 8)));
    }

    /// Its pace is that of better days.
    #[test]
    fn nothing_is_claimed_ahead_of_a_probe() {
        let mut roster = roster(&[("a", 4, 60)], None);
        roster.measure_as_quick(0);
        let now = Instant::now();
        (0..10).for_each(|_| roster.judge(0, Ending::Badly { error: "no route".into() }, now));
        let opens_at = roster.gates_open_at().unwrap();
        roster.pass_time(opens_at);
        assert_eq!(next(&mut roster, 1_000), Some((names(&["a"]), 1)));
    }
}
