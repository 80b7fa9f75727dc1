//! What a store remembers between its claims of handlers with a *backlog*: where the claim scan meets little but deliveries
//! that wait behind others, claims look for the heads of keys instead, and a scan of these serves many claims.
//!
//! All of it is a guess at where to look. What can be taken is decided by the look, take and confirmation of each claim; a
//! guess that is wrong costs a round trip or a delay, never the order of a key.
//!
//! The heads of a scan are known for [`HORIZON`]. Keys that this store moved since (it completed, appended, took and lost)
//! are looked up by the next claim. What other processes moved is found by the next scan: when the horizon is reached, when
//! the heads run out, or when a claim would come back empty.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::super::documents::date;
use super::candidate::{HandlerKey, Place};
use super::limits::Limits;
use super::rounds::DueHead;
use crate::model::Timestamp;

/// How long the heads of a scan are relied on, in the time that claims are given. Heads that become due within it are part
/// of the scan.
const HORIZON: Duration = Duration::from_secs(1);

/// A claim that found some deliveries, but fewer than it may, scans again only after a rest of so many times what the last
/// scan took, and not before [`SHORTEST_REST`]: a scan costs with the number of keys.
const REST_PER_SCAN: u32 = 4;
const SHORTEST_REST: Duration = Duration::from_millis(50);

/// Claims with random places behind a claim that lost much to other workers.
const CAUTIOUS_CLAIMS: u32 = 8;

/// See the [module](self). Shared by the clones of a store.
#[derive(Default)]
pub(in super::super) struct Memory {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    backlogs: HashMap<String, Backlog>,
    /// Keyed deliveries under leases that this store took.
    running: HashMap<String, HandlerKey>,
    cautious_claims: u32,
    /// How often something was forgotten: what a scan finds that began before may be out of date behind it.
    oblivions: u64,
}

#[derive(Default)]
struct Backlog {
    heads: Heads,
    /// Keys that may have another head since the scan.
    moved: HashSet<String>,
    scan: Option<Scan>,
    claims_left: u32,
}

/// A scan for heads.
#[derive(Clone, Copy)]
struct Scan {
    /// All heads that are due until then were found.
    until: Timestamp,
    ended_at: Instant,
    took: Duration,
}

impl Scan {
    fn has_rested(&self) -> bool {
        self.ended_at.elapsed() >= (self.took * REST_PER_SCAN).max(SHORTEST_REST)
    }
}

/// When a scan began.
#[derive(Clone, Copy)]
pub(super) struct Beginning {
    oblivions: u64,
    at: Instant,
}

/// What a scan for the heads of a handler found.
pub(super) struct HeadScan {
    pub(super) handler: String,
    pub(super) found: Vec<DueHead>,
    /// All heads that are due until then are among them.
    pub(super) until: Timestamp,
    pub(super) begun: Beginning,
    pub(super) ended_at: Instant,
}

/// One head a key, the oldest first.
#[derive(Default)]
struct Heads {
    by_age: BTreeSet<(Place, String)>,
    places: HashMap<String, Place>,
}

impl Heads {
    fn insert(&mut self, key: String, place: Place) {
        self.remove(&key);
        self.by_age.insert((place.clone(), key.clone()));
        self.places.insert(key, place);
    }

    fn remove(&mut self, key: &str) {
        if let Some(place) = self.places.remove(key) {
            self.by_age.remove(&(place, key.to_owned()));
        }
    }
}

impl Memory {
    /// A memory whose claims go by other limits.
    #[cfg(test)]
    pub(super) fn with_limits(limits: Limits) -> Self {
        Memory { limits, ..Memory::default() }
    }

    /// What the claims of this memory go by.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of these handlers are claimed for by their heads. Counts one claim.
    pub(super) fn begin_claim(&self, handlers: &[String]) -> HashSet<String> {
        let mut state = self.state();
        let mut by_heads = HashSet::new();
        for handler in handlers {
            let Some(backlog) = state.backlogs.get_mut(handler) else { continue };
            match backlog.claims_left.checked_sub(1) {
                Some(left) => {
                    backlog.claims_left = left;
                    by_heads.insert(handler.clone());
                }
                None => {
                    state.backlogs.remove(handler);
                    state.oblivions += 1;
                }
            }
        }
        by_heads
    }

    /// The claim scan of a handler met little else but deliveries that wait.
    pub(super) fn met_backlog(&self, handler: &str) {
        self.state().backlogs.entry(handler.to_owned()).or_insert_with(|| self.fresh());
    }

    fn fresh(&self) -> Backlog {
        Backlog { claims_left: self.limits.claims_by_heads, ..Backlog::default() }
    }

    /// Which of these handlers have to be scanned, since nothing is known of their heads at `now`, or not any more: it may
    /// have been forgotten since the claim began.
    pub(super) fn unknown(&self, handlers: &[String], now: Timestamp) -> Vec<String> {
        self.filter(handlers, |backlog| backlog.scan.is_none_or(|scan| scan.until < now))
    }

    /// Which of these handlers may be scanned again.
    pub(super) fn rested(&self, handlers: &[String]) -> Vec<String> {
        self.filter(handlers, |backlog| backlog.scan.is_none_or(|scan| scan.has_rested()))
    }

    fn filter(&self, handlers: &[String], keep: impl Fn(&Backlog) -> bool) -> Vec<String> {
        let state = self.state();
        let keep = |handler: &&String| state.backlogs.get(*handler).is_none_or(&keep);
        handlers.iter().filter(keep).cloned().collect()
    }

    /// Until when a scan at `now` has to look.
    pub(super) fn horizon(now: Timestamp) -> Timestamp {
        now.saturating_add(HORIZON)
    }

    /// To be asked when a scan begins.
    pub(super) fn begin_scan(&self) -> Beginning {
        Beginning { oblivions: self.state().oblivions, at: Instant::now() }
    }

    /// Notes what a scan found. Keys that moved since it began are still to be looked up. Where something was forgotten
    /// since, the claim that scanned goes by it, and the next one scans again.
    fn note(&self, state: &mut State, scan: HeadScan) {
        let HeadScan { handler, found, until, begun, ended_at } = scan;
        let is_current = state.oblivions == begun.oblivions;
        let backlog = state.backlogs.entry(handler).or_insert_with(|| self.fresh());
        backlog.heads = Heads::default();
        for head in found {
            backlog.heads.insert(head.key, head.place);
        }
        let scan = Scan { until, ended_at, took: ended_at - begun.at };
        backlog.scan = Some(scan).filter(|_| is_current);
    }

    /// Notes what was scanned, and hands out the oldest heads that are due, at most `count`, and the keys to look up. Both at
    /// once, so that what was found cannot be forgotten before it was used.
    pub(super) fn reserve(
        &self,
        scans: Vec<HeadScan>,
        handlers: &[String],
        now: Timestamp,
        count: usize,
    ) -> Reservation<'_> {
        let mut state = self.state();
        scans.into_iter().for_each(|scan| self.note(&mut state, scan));
        let mut oldest: Vec<(Place, HandlerKey)> = Vec::new();
        let mut moved = HashSet::new();
        for handler in handlers {
            let Some(backlog) = state.backlogs.get_mut(handler) else { continue };
            let keys: Vec<String> = backlog.moved.iter().take(self.limits.most_looked_up).cloned().collect();
            for key in keys {
                // Before heads are counted: what is remembered of it shall not stand for another.
                backlog.heads.remove(&key);
                backlog.moved.remove(&key);
                moved.insert((handler.clone(), key));
            }
            let due = backlog.heads.by_age.iter().take_while(|((due_at, _), _)| *due_at <= date(now));
            oldest
                .extend(due.take(count).map(|(place, key)| (place.clone(), (handler.clone(), key.clone()))));
        }
        oldest.sort();
        oldest.truncate(count);
        for (_, (handler, key)) in &oldest {
            if let Some(backlog) = state.backlogs.get_mut(handler) {
                backlog.heads.remove(key);
            }
        }
        let heads = oldest.into_iter().map(|(place, handler_key)| (handler_key, place.1)).collect();
        Reservation { memory: self, heads, moved }
    }

    /// A lease was taken.
    pub(super) fn took(&self, id: &str, (handler, key): HandlerKey, expires_at: Timestamp) {
        let mut state = self.state();
        if let Some(backlog) = state.backlogs.get_mut(&handler)
            && backlog.scan.is_some_and(|scan| expires_at <= scan.until)
        {
            // It is due again before the next scan.
            backlog.moved.insert(key.clone());
        }
        if state.running.len() >= self.limits.most_running {
            state.running.clear();
        }
        state.running.insert(id.to_owned(), (handler, key));
    }

    /// These deliveries are not under their leases any more.
    pub(in super::super) fn settled<'i>(&self, ids: impl IntoIterator<Item = &'i str>) {
        let mut state = self.state();
        for id in ids {
            if let Some((handler, key)) = state.running.remove(id)
                && let Some(backlog) = state.backlogs.get_mut(&handler)
            {
                backlog.moved.insert(key);
            }
        }
    }

    /// Something happened to these keys.
    pub(in super::super) fn moved(&self, keys: impl IntoIterator<Item = HandlerKey>) {
        let mut state = self.state();
        for (handler, key) in keys {
            if let Some(backlog) = state.backlogs.get_mut(&handler) {
                backlog.moved.insert(key);
            }
        }
    }

    /// Anything may have happened.
    pub(in super::super) fn forget(&self) {
        let mut state = self.state();
        state.backlogs.clear();
        state.oblivions += 1;
    }

    /// Notes how a take went. Workers that are after the same deliveries get out of each other's way for a while.
    pub(super) fn note_losses(&self, asked: usize, won: usize) {
        let mut state = self.state();
        state.cautious_claims = match won * 2 < asked {
            true => CAUTIOUS_CLAIMS,
            false => state.cautious_claims.saturating_sub(1),
        };
    }

    /// Whether other workers are after the same deliveries.
    pub(super) fn is_contended(&self) -> bool {
        self.state().cautious_claims > 0
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

/// Heads that one claim tries, so that no other of this store tries them meanwhile. Keys of which it was not said what
/// became of them are looked up by the next claim, also when the claim is dropped half-way.
pub(super) struct Reservation<'m> {
    memory: &'m Memory,
    /// The head of each key, as remembered.
    pub(super) heads: HashMap<HandlerKey, String>,
    /// The keys to look up.
    pub(super) moved: HashSet<HandlerKey>,
}

impl Reservation<'_> {
    /// The key is done with: nothing of it will be due before the next scan, or somebody knows.
    pub(super) fn forget(&mut self, handler_key: &HandlerKey) {
        self.heads.remove(handler_key);
        self.moved.remove(handler_key);
    }

    /// The key has this head, which was not tried.
    pub(super) fn keep(&mut self, handler_key: &HandlerKey, place: Place) {
        self.forget(handler_key);
        let (handler, key) = handler_key;
        let mut state = self.memory.state();
        let Some(backlog) = state.backlogs.get_mut(handler) else { return };
        if backlog.scan.is_some_and(|scan| place.0 <= date(scan.until)) {
            backlog.heads.insert(key.clone(), place);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let keys: Vec<HandlerKey> =
            self.heads.drain().map(|(key, _)| key).chain(self.moved.drain()).collect();
        self.memory.moved(keys);
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_764_528_000_000);

    fn later(millis: u64) -> Timestamp {
        NOW.saturating_add(Duration::from_millis(millis))
    }

    fn handlers() -> Vec<String> {
        vec!["h".to_owned()]
    }

    fn handler_key(key: &str) -> HandlerKey {
        ("h".to_owned(), key.to_owned())
    }

    fn place(millis: i64, id: &str) -> Place {
        (DateTime::from_millis(NOW.as_millis() + millis), id.to_owned())
    }

    /// A memory of which a scan at [`NOW`] has found these heads: due so many milliseconds later, of a key.
    fn memory_of(limits: Limits, heads: &[(i64, &str)]) -> Memory {
        let memory = Memory::with_limits(limits);
        memory.met_backlog("h");
        scan(&memory, heads, NOW, Duration::ZERO);
        memory
    }

    fn scan(memory: &Memory, heads: &[(i64, &str)], now: Timestamp, took: Duration) {
        let found = heads.iter().map(|(due, key)| DueHead {
            place: place(*due, &format!("head of {key}")),
            key: (*key).to_owned(),
        });
        let begun = memory.begin_scan();
        let begun = Beginning { at: begun.at - took, ..begun };
        let (found, until, ended_at) = (found.collect(), Memory::horizon(now), Instant::now());
        let scan = HeadScan { handler: "h".into(), found, until, begun, ended_at };
        drop(memory.reserve(vec![scan], &[], now, 0));
    }

    fn remembered(heads: &[(i64, &str)]) -> Memory {
        memory_of(Limits::default(), heads)
    }

    fn keys_of<'k>(keys: impl IntoIterator<Item = &'k HandlerKey>) -> Vec<&'k str> {
        let mut keys: Vec<&str> = keys.into_iter().map(|(_, key)| key.as_str()).collect();
        keys.sort_unstable();
        keys
    }

    fn heads_in<'r>(reservation: &'r Reservation<'_>) -> Vec<&'r str> {
        keys_of(reservation.heads.keys())
    }

    #[test]
    fn the_oldest_heads_that_are_due_are_handed_out_once() {
        let memory = remembered(&[(-1, "b"), (-3, "a"), (-2, "c"), (500, "later")]);
        let first = memory.reserve(vec![], &handlers(), NOW, 2);
        assert_eq!(heads_in(&first), ["a", "c"]);
        assert_eq!(first.heads[&handler_key("a")], "head of a");
        let second = memory.reserve(vec![], &handlers(), NOW, 9);
        assert_eq!((heads_in(&second), keys_of(&second.moved)), (vec!["b"], vec![]));
        assert!(memory.reserve(vec![], &handlers(), NOW, 9).heads.is_empty());
        assert_eq!(heads_in(&memory.reserve(vec![], &handlers(), later(500), 9)), ["later"]);
    }

    #[test]
    fn what_a_dropped_reservation_held_is_looked_up_again() {
        let memory = remembered(&[(-1, "a"), (-1, "done")]);
        let mut reservation = memory.reserve(vec![], &handlers(), NOW, 9);
        reservation.forget(&handler_key("done"));
        drop(reservation);
        let again = memory.reserve(vec![], &handlers(), NOW, 9);
        assert_eq!((heads_in(&again), keys_of(&again.moved)), (vec![], vec!["a"]));
        drop(again);
        assert_eq!(keys_of(&memory.reserve(vec![], &handlers(), NOW, 9).moved), ["a"]);
    }

    #[test]
    fn what_was_not_tried_is_kept_up_to_the_horizon() {
        let memory = remembered(&[(-2, "a"), (-1, "b")]);
        let mut reservation = memory.reserve(vec![], &handlers(), NOW, 9);
        reservation.keep(&handler_key("a"), place(-2, "head of a"));
        reservation.keep(&handler_key("b"), place(1_001, "beyond the horizon"));
        drop(reservation);
        let again = memory.reserve(vec![], &handlers(), later(5_000), 9);
        assert_eq!((heads_in(&again), keys_of(&again.moved)), (vec!["a"], vec![]));
    }

    #[test]
    fn keys_that_moved_take_no_place_of_a_head() {
        let memory = remembered(&[(-3, "a"), (-2, "b"), (-1, "c")]);
        memory.moved(["a", "b", "new"].map(handler_key));
        let reservation = memory.reserve(vec![], &handlers(), NOW, 1);
        assert_eq!((heads_in(&reservation), keys_of(&reservation.moved)), (vec!["c"], vec!["a", "b", "new"]));
    }

    #[test]
    fn so_many_keys_are_looked_up_and_no_more() {
        let memory = memory_of(Limits { most_looked_up: 2, ..Limits::default() }, &[]);
        memory.moved(["a", "b", "c"].map(handler_key));
        let first = memory.reserve(vec![], &handlers(), NOW, 9);
        let second = memory.reserve(vec![], &handlers(), NOW, 9);
        assert_eq!((first.moved.len(), second.moved.len()), (2, 1));
    }

    #[test]
    fn a_scan_is_relied_on_up_to_its_horizon() {
        let memory = Memory::default();
        memory.met_backlog("h");
        assert_eq!(memory.unknown(&handlers(), NOW), ["h"]);
        scan(&memory, &[], NOW, Duration::ZERO);
        assert_eq!(memory.unknown(&handlers(), later(1_000)), Vec::<String>::new());
        assert_eq!(memory.unknown(&handlers(), later(1_001)), ["h"]);
        assert_eq!(memory.unknown(&["other".to_owned()], NOW), ["other"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_is_followed_by_a_rest() {
        let memory = remembered(&[]);
        assert_eq!(memory.rested(&handlers()), Vec::<String>::new());
        tokio::time::advance(Duration::from_millis(50)).await;
        assert_eq!(memory.rested(&handlers()), ["h"]);
        scan(&memory, &[], NOW, Duration::from_millis(30));
        tokio::time::advance(Duration::from_millis(119)).await;
        assert_eq!(memory.rested(&handlers()), Vec::<String>::new());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(memory.rested(&handlers()), ["h"]);
    }

    #[test]
    fn the_claim_scan_is_tried_again_behind_so_many_claims() {
        let memory = Memory::with_limits(Limits { claims_by_heads: 2, ..Limits::default() });
        let by_heads = || memory.begin_claim(&handlers()).len();
        assert_eq!(by_heads(), 0);
        memory.met_backlog("h");
        assert_eq!([by_heads(), by_heads(), by_heads(), by_heads()], [1, 1, 0, 0]);
        memory.met_backlog("h");
        memory.forget();
        assert_eq!(by_heads(), 0);
    }

    #[test]
    fn what_is_forgotten_during_a_scan_is_found_by_it_and_scanned_again() {
        let memory = remembered(&[]);
        let forget = |memory: &Memory| memory.forget();
        let use_up = |memory: &Memory| while !memory.begin_claim(&handlers()).is_empty() {};
        for forget in [&forget as &dyn Fn(&Memory), &use_up] {
            let begun = memory.begin_scan();
            forget(&memory);
            assert_eq!(memory.unknown(&handlers(), NOW), ["h"]);
            let found = vec![DueHead { place: place(-1, "head of a"), key: "a".into() }];
            let (until, ended_at) = (Memory::horizon(NOW), Instant::now());
            let late = HeadScan { handler: "h".into(), found, until, begun, ended_at };
            assert_eq!(heads_in(&memory.reserve(vec![late], &handlers(), NOW, 9)), ["a"]);
            assert_eq!(memory.unknown(&handlers(), NOW), ["h"]);
            scan(&memory, &[], NOW, Duration::ZERO);
            assert_eq!(memory.unknown(&handlers(), NOW), Vec::<String>::new());
        }
    }

    #[test]
    fn the_key_of_a_lease_that_ended_is_looked_up() {
        let memory = remembered(&[]);
        memory.took("d", handler_key("a"), later(30_000));
        assert!(memory.reserve(vec![], &handlers(), NOW, 9).moved.is_empty());
        memory.settled(["d", "unknown"]);
        assert_eq!(keys_of(&memory.reserve(vec![], &handlers(), NOW, 9).moved), ["a"]);
    }

    #[test]
    fn the_key_of_a_lease_that_ends_before_the_next_scan_is_looked_up() {
        let memory = remembered(&[]);
        memory.took("long", handler_key("long"), later(1_001));
        memory.took("short", handler_key("short"), later(1_000));
        assert_eq!(keys_of(&memory.reserve(vec![], &handlers(), NOW, 9).moved), ["short"]);
    }

    #[test]
    fn leases_that_nobody_reports_on_do_not_pile_up() {
        let memory = memory_of(Limits { most_running: 2, ..Limits::default() }, &[]);
        for id in ["d1", "d2", "d3"] {
            memory.took(id, handler_key(id), later(30_000));
        }
        memory.settled(["d1", "d2", "d3"]);
        assert_eq!(keys_of(&memory.reserve(vec![], &handlers(), NOW, 9).moved), ["d3"]);
    }

    #[test]
    fn claims_are_cautious_for_a_while_behind_one_that_lost_much() {
        let memory = Memory::default();
        memory.note_losses(4, 2);
        assert!(!memory.is_contended());
        memory.note_losses(4, 1);
        for _ in 0..CAUTIOUS_CLAIMS {
            assert!(memory.is_contended());
            memory.note_losses(4, 4);
        }
        assert!(!memory.is_contended());
    }
}
