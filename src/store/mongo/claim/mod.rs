//! Claiming in a bounded number of round trips, however many deliveries are taken.
//!
//! MongoDB has no rows to lock and skip, so a claim is optimistic. It takes three steps, each one round trip or several
//! side by side:
//!
//! 1. *look*: a page of the claim index, and the parked heads; for the keys among them, the head of each (the unfinished
//!    delivery of the lowest sequence, by a skip scan of the `open` index) and the live leases. Unkeyed deliveries and heads
//!    without a live lease are eligible. Where the pages hold little but blocked deliveries, the handler has a *backlog*:
//!    for a while its claims look at its unkeyed deliveries and at the heads of all its keys instead. That costs with the
//!    number of keys and not with that of what waits behind them, and what is found serves many claims ([`backlog`]).
//! 2. *take*: one update command with a fresh token, one statement for each state that was seen. Its filter is evaluated
//!    for each document in one go, and a delivery that was taken is no longer due: one claimer wins.
//! 3. *confirm*: looks at heads and live leases again. A delivery that is not its key's head, or that runs beside another
//!    one, is put back as it was found. Where fewer were taken than asked for, what was won is read back by its token.
//!
//! # Why no two of a key run at once
//! Of two confirmed takes of one handler and key, let the later acknowledged one be B, the other A. B's confirmation
//! begins after both writes, and sees A unfinished under a live lease; so B is put back. A claimer that yields to a
//! delivery which itself yields leaves both where they were, and the next claim finds the head free. No step relies on what
//! is remembered: a memory that is wrong leads to a take that misses, or that is put back.

pub(super) mod backlog;
mod candidate;
#[cfg(test)]
mod interleaving;
mod limits;
mod rounds;
mod server;

use std::collections::{HashMap, HashSet};

use futures_util::future::{try_join, try_join_all, try_join3};
use tokio::time::Instant;

use self::backlog::{HeadScan, Memory, Reservation};
use self::candidate::{Candidate, Grant, HandlerKey, Pin, Place, with_lease};
use self::limits::Limits;
use self::rounds::{PageRequest, Rounds, Take};
use super::MongoStore;
use crate::model::{IdKind, IdSource, LeaseToken, Timestamp};
use crate::store::{ClaimRequest, Claimed, ErrorKind, Result, StoreError};

const DOING: &str = "claiming deliveries";

/// Where other workers are after the same deliveries, so many times as many are looked at, and taken from a random place.
const CAUTION: usize = 4;

/// A claim that finds heads held up looks at so many times as many in the next round.
const REACH_GROWTH: usize = 4;

/// Deliveries parked in one write.
const PARK_BATCH: usize = 10_000;

/// See [`Store::claim`](crate::store::Store::claim).
pub(super) async fn claim(store: &MongoStore, request: &ClaimRequest) -> Result<Vec<Claimed>> {
    let claimed = claim_by(store, &store.memory, &*store.ids, request).await?;
    store.leases.note(claimed.iter().map(|claimed| &claimed.lease));
    Ok(claimed)
}

async fn claim_by<R: Rounds>(
    rounds: &R,
    memory: &Memory,
    ids: &dyn IdSource,
    request: &ClaimRequest,
) -> Result<Vec<Claimed>> {
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Vec::new());
    }
    let mut claim = Claim::new(rounds, memory, ids, request);
    match claim.run().await {
        // What was taken is the caller's to run: the error will be back with the next call.
        Err(_) if !claim.won.is_empty() => Ok(claim.won),
        Err(error) => Err(error),
        Ok(()) => Ok(claim.won),
    }
}

/// One claim in progress.
struct Claim<'a, R> {
    rounds: &'a R,
    memory: &'a Memory,
    limits: Limits,
    ids: &'a dyn IdSource,
    request: &'a ClaimRequest,
    scan: ClaimScan,
    backlog: BacklogScan,
    token: Option<LeaseToken>,
    won: Vec<Claimed>,
    /// The blocked deliveries of each key that the claim scan met.
    blocked: HashMap<HandlerKey, HashSet<String>>,
}

/// How far the claim scan has come.
struct ClaimScan {
    handlers: Vec<String>,
    after: Option<Place>,
    size: usize,
    met: usize,
}

/// How far the heads of the handlers with a backlog were looked at.
struct BacklogScan {
    handlers: Vec<String>,
    reach: usize,
    /// What was looked at.
    tried: HashSet<String>,
    /// The handlers whose keys were scanned by this claim.
    scanned: HashSet<String>,
    /// Whether what is remembered was not enough.
    wants_scan: bool,
}

/// What a stretch of the claim scan shows.
#[derive(Default)]
struct PageLook {
    eligible: Vec<Candidate>,
    blocked: Vec<Candidate>,
    met: usize,
    last: Option<Place>,
    is_full: bool,
}

/// What the heads of the handlers with a backlog show.
#[derive(Default)]
struct HeadsLook<'m> {
    eligible: Vec<Candidate>,
    reservation: Option<Reservation<'m>>,
    seen: Vec<String>,
    /// The handlers whose keys were scanned for it.
    scanned: Vec<String>,
    /// Whether it left nothing out of what is remembered.
    is_whole: bool,
}

/// Who may run of each key.
#[derive(Default)]
struct KeyStates {
    /// The head of each key.
    heads: HashMap<HandlerKey, String>,
    live: LiveLeases,
}

/// The deliveries that run under a live lease.
type LiveLeases = HashMap<HandlerKey, Vec<String>>;

/// Whether no delivery of the key runs, other than `id`.
fn runs_alone(live: &LiveLeases, handler_key: &HandlerKey, id: &str) -> bool {
    live.get(handler_key).is_none_or(|live| live.iter().all(|other| other == id))
}

impl KeyStates {
    /// Whether `id` is the head of its key, and no other delivery of the key runs.
    fn allows(&self, handler_key: &HandlerKey, id: &str) -> bool {
        self.heads.get(handler_key).is_some_and(|head| head == id) && runs_alone(&self.live, handler_key, id)
    }
}

impl<'a, R: Rounds> Claim<'a, R> {
    fn new(rounds: &'a R, memory: &'a Memory, ids: &'a dyn IdSource, request: &'a ClaimRequest) -> Self {
        let limits = memory.limits();
        let by_heads = memory.begin_claim(&request.handlers);
        let (by_heads, paged) =
            request.handlers.iter().cloned().partition::<Vec<_>, _>(|handler| by_heads.contains(handler));
        let caution = if memory.is_contended() { CAUTION } else { 1 };
        let wanted = request.limit.saturating_mul(caution);
        let size = wanted.saturating_mul(2).clamp(limits.smallest_page, limits.largest_page);
        Claim {
            rounds,
            memory,
            limits,
            ids,
            request,
            scan: ClaimScan { handlers: paged, after: None, size, met: 0 },
            backlog: BacklogScan {
                handlers: by_heads,
                reach: wanted.min(limits.largest_page),
                tried: HashSet::new(),
                scanned: HashSet::new(),
                wants_scan: false,
            },
            token: None,
            won: Vec::new(),
            blocked: HashMap::new(),
        }
    }

    async fn run(&mut self) -> Result<()> {
        loop {
            let (page, mut heads) = try_join(self.look_at_page(), self.look_at_heads()).await?;
            let eligible_on_page = page.eligible.len();
            let mut eligible = page.eligible;
            eligible.append(&mut heads.eligible);
            eligible.sort_by(Candidate::by_age);
            self.take_from(&mut eligible, heads.reservation).await?;
            if self.missing() == 0 {
                return Ok(());
            }
            self.note_blocked(&page.blocked);
            let is_backlog_over = self.look_further(heads.seen, heads.scanned, heads.is_whole);
            let is_scan_over = self.scan.handlers.is_empty() || !page.is_full;
            if is_scan_over {
                self.scan.handlers.clear();
            } else {
                self.scan_on(page.met, page.last, eligible_on_page);
            }
            if is_scan_over && is_backlog_over {
                return self.park().await;
            }
        }
    }

    fn missing(&self) -> usize {
        self.request.limit - self.won.len()
    }

    // ---- the claim scan ----------------------------------------------------------------------------------------

    /// Due deliveries in lane ready, the oldest first, behind the place that the scan has reached. The first look also
    /// finds the parked heads: they may run, although the claim scan leaves them out.
    async fn look_at_page(&self) -> Result<PageLook> {
        let scan = &self.scan;
        if scan.handlers.is_empty() {
            return Ok(PageLook::default());
        }
        let request = PageRequest {
            handlers: &scan.handlers,
            now: self.request.now,
            after: scan.after.as_ref(),
            size: scan.size,
        };
        let (page, parked) = try_join(self.rounds.page(request), self.parked_heads()).await?;
        let last = page.candidates.last().map(Candidate::place);
        let candidates = without_duplicates(page.candidates, parked);
        let keys = candidates.iter().filter_map(Candidate::handler_key).collect();
        let states = self.key_states(&keys).await?;
        let met = candidates.len();
        let (eligible, blocked) =
            candidates.into_iter().partition(|candidate| match candidate.handler_key() {
                Some(handler_key) => states.allows(&handler_key, &candidate.id),
                None => true,
            });
        Ok(PageLook { eligible, blocked, met, last, is_full: page.is_full })
    }

    async fn parked_heads(&self) -> Result<Vec<Candidate>> {
        if self.scan.after.is_some() {
            return Ok(Vec::new());
        }
        let parked = self.rounds.lowest_parked(&self.scan.handlers).await?;
        if parked.is_empty() {
            return Ok(Vec::new());
        }
        let keys = parked.iter().map(|(handler_key, _)| handler_key.clone()).collect();
        let heads = self.rounds.heads(&keys).await?;
        let freed = parked.iter().filter_map(|(handler_key, lowest)| {
            heads.get(handler_key).filter(|head| head.sequence == *lowest).map(|head| head.id.clone())
        });
        self.rounds.candidates(freed.collect(), self.request.now).await
    }

    async fn key_states(&self, keys: &HashSet<HandlerKey>) -> Result<KeyStates> {
        if keys.is_empty() {
            return Ok(KeyStates::default());
        }
        let (heads, live) =
            try_join(self.rounds.heads(keys), self.rounds.live(keys, self.request.now)).await?;
        let heads = heads.into_iter().map(|(handler_key, head)| (handler_key, head.id)).collect();
        Ok(KeyStates { heads, live })
    }

    /// Goes on with a larger page as long as the yield so far promises that the scan ends soon; otherwise leaves the
    /// handlers that made it long to the scan for heads.
    fn scan_on(&mut self, met: usize, last: Option<Place>, eligible: usize) {
        self.scan.met += met;
        self.scan.after = last.or(self.scan.after.take());
        self.scan.size = self.limits.largest_page;
        let is_fruitful =
            self.missing().saturating_mul(self.scan.met) <= eligible.saturating_mul(self.limits.most_scanned);
        if is_fruitful && self.scan.met < self.limits.most_scanned {
            return;
        }
        let in_the_way: HashSet<&String> = self.blocked.keys().map(|(handler, _)| handler).collect();
        let (backlogs, others) = std::mem::take(&mut self.scan.handlers)
            .into_iter()
            .partition(|handler| in_the_way.contains(handler));
        self.scan.handlers = others;
        for handler in &backlogs {
            self.memory.met_backlog(handler);
        }
        self.backlog.handlers.extend::<Vec<String>>(backlogs);
    }

    fn note_blocked(&mut self, blocked: &[Candidate]) {
        for candidate in blocked {
            if let Some(handler_key) = candidate.handler_key() {
                self.blocked.entry(handler_key).or_default().insert(candidate.id.clone());
            }
        }
    }

    // ---- the heads of a backlog --------------------------------------------------------------------------------

    /// What can run of handlers with a backlog is found without meeting what waits: unkeyed deliveries have a stretch of
    /// the `open` index to themselves, and the heads of all keys are a skip scan of the rest, or known from the last one.
    async fn look_at_heads(&self) -> Result<HeadsLook<'a>> {
        let handlers = &self.backlog.handlers;
        if handlers.is_empty() {
            return Ok(HeadsLook { is_whole: true, ..HeadsLook::default() });
        }
        let scans = self.scan_for_heads().await?;
        let scanned = scans.iter().map(|scan| scan.handler.clone()).collect();
        let (now, reach) = (self.request.now, self.backlog.reach);
        let mut reservation = self.memory.reserve(scans, handlers, now, reach);
        let keys = reservation.heads.keys().chain(&reservation.moved).cloned().collect();
        let remembered = reservation.heads.values().cloned().collect();
        let look_ups =
            try_join(self.rounds.candidates(remembered, now), self.rounds.whole_heads(&reservation.moved));
        let (unkeyed, (remembered, moved), live) =
            try_join3(self.rounds.unkeyed(handlers, now, reach), look_ups, self.rounds.live(&keys, now))
                .await?;
        let is_whole = unkeyed.len() < reach && reservation.heads.len() < reach;
        let mut candidates: Vec<Candidate> = unkeyed.into_iter().chain(remembered).collect();
        candidates.extend(due_ones(moved, &mut reservation, now));
        let seen = candidates.iter().map(|candidate| candidate.id.clone()).collect();
        candidates.retain(|candidate| self.is_free(candidate, &live));
        Ok(HeadsLook { eligible: candidates, reservation: Some(reservation), seen, scanned, is_whole })
    }

    fn is_free(&self, candidate: &Candidate, live: &LiveLeases) -> bool {
        let runs_alone = match candidate.handler_key() {
            Some(handler_key) => runs_alone(live, &handler_key, &candidate.id),
            None => true,
        };
        runs_alone && !self.backlog.tried.contains(&candidate.id)
    }

    /// Scans the keys of those handlers of which nothing is known, or of which what is known was not enough.
    async fn scan_for_heads(&self) -> Result<Vec<HeadScan>> {
        let (handlers, until) = (&self.backlog.handlers, Memory::horizon(self.request.now));
        let mut wanted = self.memory.unknown(handlers, self.request.now);
        if self.backlog.wants_scan {
            wanted.extend(self.worth_a_scan());
            wanted.sort();
            wanted.dedup();
        }
        let scans = wanted.into_iter().map(|handler| async move {
            let begun = self.memory.begin_scan();
            let found = self.rounds.due_heads(&handler, until).await?;
            Ok::<_, StoreError>(HeadScan { handler, found, until, begun, ended_at: Instant::now() })
        });
        try_join_all(scans).await
    }

    /// The handlers with a backlog that this claim may scan once more: a claim without any yield each of them.
    fn worth_a_scan(&self) -> Vec<String> {
        let mut handlers = match self.won.is_empty() {
            true => self.backlog.handlers.clone(),
            false => self.memory.rested(&self.backlog.handlers),
        };
        handlers.retain(|handler| !self.backlog.scanned.contains(handler));
        handlers
    }

    /// Decides how to go on where a look at the heads did not yield enough; returns whether there is nothing else to see.
    fn look_further(&mut self, seen: Vec<String>, scanned: Vec<String>, is_whole: bool) -> bool {
        let backlog = &mut self.backlog;
        if backlog.handlers.is_empty() {
            return true;
        }
        backlog.scanned.extend(scanned);
        backlog.reach =
            (backlog.reach * REACH_GROWTH).clamp(self.limits.smallest_page, self.limits.largest_page);
        let tried_before = backlog.tried.len();
        backlog.tried.extend(seen);
        let is_new = backlog.tried.len() > tried_before;
        if is_new && !is_whole {
            return false;
        }
        backlog.wants_scan = true;
        self.worth_a_scan().is_empty()
    }

    // ---- take and confirm --------------------------------------------------------------------------------------

    /// Takes what is eligible, the oldest first, until the limit is reached or it is used up.
    async fn take_from(
        &mut self,
        eligible: &mut Vec<Candidate>,
        mut reservation: Option<Reservation<'_>>,
    ) -> Result<()> {
        self.leave_out_won(eligible);
        if self.memory.is_contended() && eligible.len() > self.missing() {
            let place = fastrand::usize(..eligible.len());
            eligible.rotate_left(place);
        }
        let mut left = eligible.as_slice();
        while self.missing() > 0 && !left.is_empty() {
            let (now, later) = left.split_at(self.missing().min(left.len()));
            let before = self.won.len();
            self.take(now).await?;
            if let Some(reservation) = &mut reservation {
                let won = self.won[before..].iter().filter_map(handler_key_of);
                won.for_each(|handler_key| reservation.forget(&handler_key));
            }
            left = later;
        }
        if let Some(reservation) = &mut reservation {
            for candidate in left {
                if let Some(handler_key) = candidate.handler_key() {
                    reservation.keep(&handler_key, candidate.place());
                }
            }
        }
        Ok(())
    }

    /// One call returns one delivery of a key: what an earlier look has won may have been buried since, and another
    /// delivery of its key, or itself requeued, be eligible now.
    fn leave_out_won(&self, eligible: &mut Vec<Candidate>) {
        if self.won.is_empty() {
            return;
        }
        let ids: HashSet<&str> = self.won.iter().map(|claimed| claimed.delivery.id.as_str()).collect();
        let keys: HashSet<HandlerKey> = self.won.iter().filter_map(handler_key_of).collect();
        eligible.retain(|candidate| {
            let is_of_won_key =
                candidate.handler_key().is_some_and(|handler_key| keys.contains(&handler_key));
            !is_of_won_key && !ids.contains(candidate.id.as_str())
        });
    }

    /// Takes candidates, confirms them, and puts back those that may not run.
    async fn take(&mut self, candidates: &[Candidate]) -> Result<()> {
        let token = self.token();
        let taken = self.write_leases(candidates, &token).await?;
        let mut claimed = match taken {
            Some(taken) if taken == candidates.len() as u64 => self.as_read(candidates, &token),
            _ => HashMap::new(),
        };
        let ids = candidates.iter().map(|candidate| candidate.id.as_str());
        let unread: Vec<&str> = ids.filter(|id| !claimed.contains_key(*id)).collect();
        let keys = candidates.iter().filter_map(Candidate::handler_key).collect();
        let (read_back, states) = try_join(self.rounds.won(&unread, &token), self.key_states(&keys)).await?;
        claimed.extend(
            read_back
                .into_iter()
                .map(|delivery| (delivery.id.as_str().to_owned(), with_lease(delivery, &token))),
        );
        self.memory.note_losses(candidates.len(), claimed.len());
        let mut undo = Vec::new();
        for candidate in candidates {
            let Some(claimed) = claimed.remove(&candidate.id) else { continue };
            match candidate.handler_key() {
                Some(handler_key) if !states.allows(&handler_key, &candidate.id) => undo.push(candidate),
                _ => self.won(claimed),
            }
        }
        if undo.is_empty() { Ok(()) } else { self.rounds.put_back(&undo, &token).await }
    }

    fn won(&mut self, claimed: Claimed) {
        if let Some(handler_key) = handler_key_of(&claimed) {
            self.memory.took(claimed.delivery.id.as_str(), handler_key, self.grant().expires_at);
        }
        self.won.push(claimed);
    }

    /// All were taken as they were read: what they are now need not be read again, but for those with a history.
    fn as_read(&self, candidates: &[Candidate], token: &LeaseToken) -> HashMap<String, Claimed> {
        let whole = candidates.iter().filter(|candidate| candidate.is_whole());
        whole
            .filter_map(|candidate| Some((candidate.id.clone(), candidate.claimed(token, &self.grant())?)))
            .collect()
    }

    fn token(&mut self) -> LeaseToken {
        let fresh = || LeaseToken::from(self.ids.next(IdKind::LeaseToken, self.request.now));
        self.token.get_or_insert_with(fresh).clone()
    }

    fn grant(&self) -> Grant<'a> {
        let now = self.request.now;
        Grant { owner: &self.request.owner, expires_at: now.saturating_add(self.request.lease), now }
    }

    /// One command; returns how many leases it wrote. `None` when its answer is lost: the confirmation finds out.
    async fn write_leases(&self, candidates: &[Candidate], token: &LeaseToken) -> Result<Option<u64>> {
        let mut groups: Vec<(Pin, Vec<&Candidate>)> = Vec::new();
        for candidate in candidates {
            let pin = candidate.pin();
            match groups.iter_mut().find(|(other, _)| *other == pin) {
                Some((_, members)) => members.push(candidate),
                None => groups.push((pin, vec![candidate])),
            }
        }
        match self.rounds.take(Take { groups, token, grant: self.grant() }).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(None),
            result => result.map(Some),
        }
    }

    // ---- parking -----------------------------------------------------------------------------------------------

    /// Parks the keys of which this claim met many blocked deliveries. Only a claim that found less than it may has the
    /// time: it is of use to clients whose claims read what is blocked one by one.
    async fn park(&mut self) -> Result<()> {
        let blocked = std::mem::take(&mut self.blocked).into_values();
        let many = blocked.filter(|ids| ids.len() >= self.limits.parking_threshold);
        let ids: Vec<String> = many.flatten().collect();
        for batch in ids.chunks(PARK_BATCH) {
            self.rounds.park(batch).await?;
        }
        Ok(())
    }
}

/// What is on a page, and the parked heads that were not brought back in time to be on it as well.
fn without_duplicates(mut on_page: Vec<Candidate>, parked: Vec<Candidate>) -> Vec<Candidate> {
    if !parked.is_empty() {
        let ids: HashSet<String> = on_page.iter().map(|candidate| candidate.id.clone()).collect();
        on_page.extend(parked.into_iter().filter(|candidate| !ids.contains(&candidate.id)));
    }
    on_page
}

fn handler_key_of(claimed: &Claimed) -> Option<HandlerKey> {
    Some((claimed.delivery.handler.clone(), claimed.delivery.key.clone()?))
}

/// Those of the heads that are due. Of the others the reservation keeps what will be due before long.
fn due_ones(heads: Vec<Candidate>, reservation: &mut Reservation<'_>, now: Timestamp) -> Vec<Candidate> {
    let (due, later): (Vec<Candidate>, Vec<Candidate>) =
        heads.into_iter().partition(|head| head.due_at <= super::documents::date(now));
    let found: HashSet<HandlerKey> = due.iter().chain(&later).filter_map(Candidate::handler_key).collect();
    let gone: Vec<HandlerKey> =
        reservation.moved.iter().filter(|handler_key| !found.contains(*handler_key)).cloned().collect();
    gone.iter().for_each(|handler_key| reservation.forget(handler_key));
    for head in later {
        if let Some(handler_key) = head.handler_key() {
            reservation.keep(&handler_key, head.place());
        }
    }
    due
}
