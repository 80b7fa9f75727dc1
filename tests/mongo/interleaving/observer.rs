//! Writes down what is certain, and objects to what contradicts it. What was on its way when an actor crashed may have
//! happened or not, and is not certain.

use std::collections::{BTreeMap, BTreeSet};

/// So long before its lease ends, by its own clock, a worker is through with a delivery or has given it up. No two clocks
/// may disagree by more.
pub const MARGIN: i64 = 3_000;

/// A delivery as a claim returned it, or as it was stored.
#[derive(Clone, Debug)]
pub struct Seen {
    pub id: String,
    pub key: Option<String>,
    pub sequence: Option<i64>,
    pub requeues: u32,
    /// When its lease ends, for one that was claimed.
    pub expires_at: i64,
    pub token: String,
}

#[derive(Debug)]
struct Record {
    seen: Seen,
    /// Nothing that may have finished it was asked for since it was last certain to be unfinished.
    is_unfinished: bool,
    /// The token and the end (in true time) of the run that is certain to have its lease.
    run: Option<(String, i64)>,
}

/// What was certain at an instant.
#[derive(Clone, Default)]
pub struct Before {
    /// Deliveries that were unfinished, and how often each had been requeued by then.
    unfinished: BTreeMap<String, u32>,
    /// How often each may have been buried by then, or its worker have asked for what finishes it.
    endings: BTreeMap<String, usize>,
}

/// See the [module](self).
#[derive(Default)]
pub struct Observer {
    records: BTreeMap<String, Record>,
    returned: BTreeSet<(String, String)>,
    endings: BTreeMap<String, usize>,
    /// Deliveries that were seen to wait, each with those before it that had been requeued by then, and how often.
    waiting: BTreeMap<String, BTreeMap<String, u32>>,
    completed: BTreeSet<String>,
    pub starts: usize,
}

impl Observer {
    pub fn stored(&mut self, seen: Seen, is_unfinished: bool) {
        let record = Record { is_unfinished, run: None, seen };
        self.records.insert(record.seen.id.clone(), record);
    }

    pub fn ids(&self) -> Vec<String> {
        self.records.keys().cloned().collect()
    }

    pub fn before(&self) -> Before {
        let unfinished = self.records.values().filter(|record| record.is_unfinished);
        let unfinished = unfinished.map(|record| (record.seen.id.clone(), record.seen.requeues));
        Before { unfinished: unfinished.collect(), endings: self.endings.clone() }
    }

    /// A claim that began when `before` was certain has returned these, at `now`, to a worker whose clock is `offset` ahead.
    pub fn started(
        &mut self,
        before: &Before,
        claimed: &[Seen],
        now: i64,
        offset: i64,
    ) -> Result<(), String> {
        let mut keys = BTreeSet::new();
        for one in claimed {
            if !keys.insert(one.key.as_ref().unwrap_or(&one.id)) {
                return Err(format!("one claim takes two of a key: {claimed:#?}"));
            }
            if !self.returned.insert((one.id.clone(), one.token.clone())) {
                return Err(format!("{one:?} is returned twice"));
            }
            self.look_for_overtaken(before, one)?;
            let end = one.expires_at - MARGIN - offset;
            let was_buried = self.endings.get(&one.id) != before.endings.get(&one.id);
            // A claim that comes too late has no lease to start under, or it is not certain.
            if now < end && !was_buried {
                self.start(one, now, end)?;
            }
        }
        Ok(())
    }

    fn others<'o>(&'o self, one: &'o Seen) -> impl Iterator<Item = &'o Record> {
        let alike = self.records.values().filter(|other| one.key.is_some() && other.seen.key == one.key);
        alike.filter(|other| other.seen.id != one.id)
    }

    fn look_for_overtaken(&self, before: &Before, one: &Seen) -> Result<(), String> {
        let overtaken = self.others(one).find(|other| {
            let requeues = Some(&other.seen.requeues);
            let waited =
                self.waiting.get(&one.id).is_some_and(|others| others.get(&other.seen.id) == requeues);
            let was_before = waited || before.unfinished.get(&other.seen.id) == requeues;
            other.is_unfinished && was_before && other.seen.sequence < one.sequence
        });
        overtaken.map_or(Ok(()), |overtaken| Err(format!("{one:?} overtakes {overtaken:?}")))
    }

    fn start(&mut self, one: &Seen, now: i64, end: i64) -> Result<(), String> {
        let is_running = |record: &&Record| record.run.as_ref().is_some_and(|(_, end)| now < *end);
        let known = self.records.get(&one.id);
        if let Some(other) = self.others(one).chain(known).find(is_running) {
            return Err(format!("{one:?} runs beside {other:?}"));
        }
        let run = Some((one.token.clone(), end));
        self.starts += 1;
        self.records.insert(one.id.clone(), Record { seen: one.clone(), is_unfinished: true, run });
        Ok(())
    }

    /// The worker does not run it any more, and has or has not asked for what may finish it.
    pub fn ends(&mut self, id: &str, token: &str, may_finish: bool) {
        if let Some(record) = self.records.get_mut(id) {
            record.run.take_if(|(running, _)| running == token);
            record.is_unfinished &= !may_finish;
        }
        if may_finish {
            *self.endings.entry(id.to_owned()).or_default() += 1;
        }
    }

    pub fn completed(&mut self, id: &str) -> Result<(), String> {
        if self.completed.insert(id.to_owned()) { Ok(()) } else { Err(format!("{id} is completed again")) }
    }

    /// An operator is about to bury it: its worker, if any, is about to lose its lease.
    pub fn may_be_buried(&mut self, id: &str) {
        *self.endings.entry(id.to_owned()).or_default() += 1;
        if let Some(record) = self.records.get_mut(id) {
            (record.run, record.is_unfinished) = (None, false);
        }
    }

    /// It was requeued, by who knew what was certain before, and has seen these wait since.
    pub fn requeued(&mut self, id: &str, requeues: u32, before: &Before, waiting: &[Seen]) {
        let was_ended = self.endings.get(id) != before.endings.get(id);
        let Some(record) = self.records.get_mut(id) else { return };
        if was_ended || record.run.is_some() || record.seen.requeues >= requeues {
            return;
        }
        (record.seen.requeues, record.is_unfinished) = (requeues, true);
        let (key, sequence) = (record.seen.key.clone(), record.seen.sequence);
        for later in waiting.iter().filter(|one| key.is_some() && one.key == key && one.sequence > sequence) {
            // Whoever returns it from now on has taken it since.
            self.waiting.entry(later.id.clone()).or_default().insert(id.to_owned(), requeues);
        }
    }

    /// Those that may be dead.
    pub fn finished(&self) -> Vec<String> {
        let finished = self.records.values().filter(|record| !record.is_unfinished);
        finished.map(|record| record.seen.id.clone()).collect()
    }
}
