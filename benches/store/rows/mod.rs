//! What is measured, and the bounds.

mod append;
mod backlog;
mod children;
mod claims;
mod end_to_end;
mod hot_key;
mod lines;
mod purge;
mod wake_up;
mod worker;

use anyhow::Result;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::harness::Lab;
use Bound::{AtLeast, AtMost};

/// What a ratio is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// One line of the report.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    /// The two things whose ratio it is.
    pub what: &'static str,
    pub bound: Option<Bound>,
}

const fn bounded(name: &'static str, bound: Bound, what: &'static str) -> Row {
    Row { name, what, bound: Some(bound) }
}

const fn informative(name: &'static str, what: &'static str) -> Row {
    Row { name, what, bound: None }
}

/// Rows that are measured together, on the same data.
pub struct Scenario {
    pub rows: &'static [Row],
    pub run: for<'l> fn(&'l Lab) -> BoxFuture<'l, Result<Vec<Measured>>>,
}

/// What was measured for a row.
#[derive(Clone, Debug)]
pub struct Measured {
    pub name: &'static str,
    /// Of all figures but the ratio: `ms`, or `/s` for rates.
    pub unit: &'static str,
    /// Ours.
    pub subject: f64,
    pub floor: f64,
    pub ratio: f64,
    /// The same by the published algorithm.
    pub published: Option<f64>,
    /// An object with more about it.
    pub details: Value,
}

impl Measured {
    /// `subject / floor`.
    pub fn new(name: &'static str, unit: &'static str, subject: f64, floor: f64, details: Value) -> Self {
        Measured { name, unit, subject, floor, ratio: subject / floor, published: None, details }
    }

    pub fn beside_published(self, published: Option<f64>) -> Self {
        Measured { published, ..self }
    }
}

/// The row of this name.
pub fn row(name: &str) -> Option<&'static Row> {
    SCENARIOS.iter().flat_map(|scenario| scenario.rows).find(|row| row.name == name)
}

/// Everything that can be measured, in the order in which it is.
pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        rows: &[
            bounded(
                "claim-100-unkeyed",
                AtMost(1.6),
                "claim 100 of 10k unkeyed / one update of 100 known ids",
            ),
            bounded("claim-100-unkeyed-published", AtLeast(12.0), "the same, published algorithm / ours"),
            informative("claim-1-unkeyed", "claim 1 of 10k unkeyed / one update of 1 known id"),
            informative("claim-10-unkeyed", "claim 10 of 10k unkeyed / one update of 10 known ids"),
        ],
        run: |lab| Box::pin(claims::unkeyed(lab)),
    },
    Scenario {
        rows: &[
            informative("claim-1-unkeyed-100k", "claim 1 of 100k unkeyed / one update of 1 known id"),
            informative("claim-10-unkeyed-100k", "claim 10 of 100k unkeyed / one update of 10 known ids"),
            informative("claim-100-unkeyed-100k", "claim 100 of 100k unkeyed / one update of 100 known ids"),
        ],
        run: |lab| Box::pin(claims::unkeyed_100k(lab)),
    },
    Scenario {
        rows: &[
            bounded(
                "claim-100-keyed-interleaved",
                AtMost(2.5),
                "claim 100 of 10k keys x 10, due in turns / one update of 100 known ids",
            ),
            bounded("claim-100-keyed-published", AtLeast(15.0), "the same, published algorithm / ours"),
            informative("claim-1-keyed-interleaved", "claim 1 of 10k keys x 10 / one update of 1 known id"),
            informative(
                "claim-10-keyed-interleaved",
                "claim 10 of 10k keys x 10 / one update of 10 known ids",
            ),
        ],
        run: |lab| Box::pin(claims::keyed_interleaved(lab)),
    },
    Scenario {
        rows: &[bounded(
            "claim-100-keyed-by-key",
            AtMost(3.7),
            "claim 100 of 10k keys x 10, due key by key / one update of 100 known ids",
        )],
        run: |lab| Box::pin(claims::keyed_by_key(lab)),
    },
    Scenario {
        rows: &[
            bounded(
                "claim-10-delayed-heads-first",
                AtMost(10.0),
                "the first claim of 10 beside 5,000 delayed heads with 31 followers each / without them",
            ),
            bounded("claim-10-delayed-heads-steady", AtMost(1.5), "the claims behind it / without them"),
        ],
        run: |lab| Box::pin(backlog::delayed_heads(lab)),
    },
    Scenario {
        rows: &[
            bounded(
                "claim-100-hot-key-first",
                AtMost(2.0),
                "the first claim of 100 beside 50k blocked of one key / without them",
            ),
            bounded("claim-100-hot-key-steady", AtMost(1.2), "the claims behind it / without them"),
            informative(
                "claim-1-hot-key-first",
                "the first claim of 1 beside 50k blocked of one key / without them",
            ),
            informative("claim-1-hot-key-steady", "the claims behind it / without them"),
            informative(
                "claim-10-hot-key-first",
                "the first claim of 10 beside 50k blocked of one key / without them",
            ),
            informative("claim-10-hot-key-steady", "the claims behind it / without them"),
        ],
        run: |lab| Box::pin(backlog::hot_key(lab)),
    },
    Scenario {
        rows: &[
            bounded(
                "claim-100-blocked-keys-first",
                AtMost(3.0),
                "the first claim of 100 beside 1,000 keys with 100 blocked each / without them",
            ),
            bounded("claim-100-blocked-keys-steady", AtMost(1.2), "the claims behind it / without them"),
            informative(
                "claim-1-blocked-keys-first",
                "the first claim of 1 beside 1,000 keys with 100 blocked each / without them",
            ),
            informative("claim-1-blocked-keys-steady", "the claims behind it / without them"),
            informative(
                "claim-10-blocked-keys-first",
                "the first claim of 10 beside 1,000 keys with 100 blocked each / without them",
            ),
            informative("claim-10-blocked-keys-steady", "the claims behind it / without them"),
        ],
        run: |lab| Box::pin(backlog::blocked_keys(lab)),
    },
    Scenario {
        rows: &[bounded(
            "claim-100-history",
            AtMost(1.2),
            "claim 100 with 1M completed history (quick: 200k) / without",
        )],
        run: |lab| Box::pin(backlog::history(lab)),
    },
    Scenario {
        rows: &[bounded(
            "drain-hot-key",
            AtLeast(0.2),
            "deliveries of one key handled in order, per second / bare majority updates, per second",
        )],
        run: |lab| Box::pin(hot_key::drain(lab)),
    },
    Scenario {
        rows: &[
            bounded(
                "end-to-end-unkeyed",
                AtLeast(0.7),
                "a no-op handler with 32 slots, per second / known ids leased and completed in batches as large as its claims, at least 32",
            ),
            informative("end-to-end-unkeyed-1", "the same with 1 slot"),
            informative("end-to-end-unkeyed-8", "the same with 8 slots"),
        ],
        run: |lab| Box::pin(end_to_end::unkeyed(lab)),
    },
    Scenario {
        rows: &[
            bounded("end-to-end-keyed", AtLeast(0.5), "the same, every ten deliveries of one key"),
            informative("end-to-end-keyed-1", "the same with 1 slot"),
            informative("end-to-end-keyed-8", "the same with 8 slots"),
        ],
        run: |lab| Box::pin(end_to_end::keyed(lab)),
    },
    Scenario {
        rows: &[bounded(
            "wake-up",
            AtMost(5.0),
            "from the commit of an event to the start of its handler in an idle worker / 1 ms",
        )],
        run: |lab| Box::pin(wake_up::wake_up(lab)),
    },
    Scenario {
        rows: &[bounded(
            "children",
            AtLeast(0.8),
            "/bin/true as the handler with 8 slots, per second / bare spawn and wait, 8 at a time",
        )],
        run: |lab| Box::pin(children::children(lab)),
    },
    Scenario {
        rows: &[informative(
            "lines",
            "children that answer line by line, 8 slots, per second / a process of /bin/true for each delivery",
        )],
        run: |lab| Box::pin(lines::lines(lab)),
    },
    Scenario {
        rows: &[bounded(
            "purge",
            AtMost(1.5),
            "purge of 100k completed (quick: 30k) with their events / plain deletes in batches of the same size",
        )],
        run: |lab| Box::pin(purge::purge(lab)),
    },
    Scenario {
        rows: &[
            informative("append-1", "append of 1 event / plain inserts of the same in a transaction"),
            informative("append-10", "append of 10 events / plain inserts of the same in a transaction"),
            informative("append-100", "append of 100 events / plain inserts of the same in a transaction"),
            informative("append-100-one-key", "append of 100 events of one key / plain inserts of the same"),
            informative("append-100-keys", "append of 100 events of 100 keys / plain inserts of the same"),
        ],
        run: |lab| Box::pin(append::append(lab)),
    },
    Scenario {
        rows: &[informative(
            "append-one-key-contended",
            "single events of one key by 8 stores that know nothing of each other, per second / by one alone",
        )],
        run: |lab| Box::pin(append::contended(lab)),
    },
];
