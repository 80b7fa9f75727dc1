//! What a bulk change did, and what that means as a whole.

use serde::Serialize;

use crate::model::{DeliveryId, Status};
use crate::store::StoreError;

/// What a bulk change did.
///
/// When it ran to its end, `changed + skipped + failed` is what it was about. When it was stopped (interrupted, at its
/// limit, or by an error) the rest was not reached.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkReport {
    /// What the change was about: selected when the plan was made, or found under the ids that were given.
    pub matched: u64,
    /// Changed by this run.
    pub changed: u64,
    /// Left alone, as the change does not apply to the state they are in: most likely they moved meanwhile.
    pub skipped: u64,
    /// Not found, not readable, or refused by the store.
    pub failed: u64,
    /// Whether it was stopped from outside before its end.
    pub interrupted: bool,
    /// What became of each one, in the order in which they were given; only for changes by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Item>>,
    /// The error that ended it, or the first of those that did not.
    #[serde(skip)]
    pub error: Option<StoreError>,
}

impl BulkReport {
    /// A report about `matched` deliveries, of which none has been dealt with.
    pub fn about(matched: u64) -> Self {
        BulkReport { matched, ..Default::default() }
    }

    /// How many have been dealt with.
    pub fn done(&self) -> u64 {
        self.changed + self.skipped + self.failed
    }

    pub(super) fn keep_first_error(&mut self, error: StoreError) {
        self.error.get_or_insert(error);
    }

    /// Closes the account of a change that looked at everything: what it had matched and did not meet has moved.
    pub(super) fn ran_to_its_end(&mut self) {
        self.skipped = self.skipped.max(self.matched.saturating_sub(self.changed + self.failed));
    }
}

/// One delivery of a change by id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The id that was given.
    pub id: DeliveryId,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: ItemOutcome,
}

/// What became of one delivery of a change by id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum ItemOutcome {
    /// It was changed.
    Changed,
    /// It would have been changed, had this not been a dry run.
    WouldChange,
    /// The change does not apply to the status it is in.
    Skipped {
        /// That status.
        status: Status,
    },
    /// There is no such delivery.
    Missing,
    /// The store refused, or did not answer; in the latter case it may have been changed.
    Failed {
        /// What the store said.
        error: String,
    },
}

/// What a bulk change amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Everything that could be changed was; also when there was nothing to change.
    Done,
    /// Some were changed, and others should have been.
    Partly,
    /// Something should have been changed, and nothing was.
    Failed,
}

/// What the numbers of a bulk change amount to. Skipped ones are no failure: somebody else was faster.
pub fn classify(report: &BulkReport) -> Verdict {
    let flawless = report.failed == 0 && report.error.is_none();
    match (flawless, report.changed) {
        (true, _) => Verdict::Done,
        (false, 0) => Verdict::Failed,
        (false, _) => Verdict::Partly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn the_verdict_on_every_combination() {
        use Verdict::{Done, Failed, Partly};
        let table = [
            // changed, skipped, failed, ended by an error
            (0, 0, 0, false, Done),
            (9, 0, 0, false, Done),
            (0, 9, 0, false, Done),
            (9, 9, 0, false, Done),
            (0, 0, 9, false, Failed),
            (0, 9, 9, false, Failed),
            (9, 0, 9, false, Partly),
            (9, 9, 9, false, Partly),
            (0, 0, 0, true, Failed),
            (0, 9, 0, true, Failed),
            (0, 0, 9, true, Failed),
            (0, 9, 9, true, Failed),
            (9, 0, 0, true, Partly),
            (9, 9, 0, true, Partly),
            (9, 0, 9, true, Partly),
            (9, 9, 9, true, Partly),
        ];
        for (changed, skipped, failed, ended, verdict) in table {
            let error = ended.then(|| StoreError::new(ErrorKind::Unavailable, "gone"));
            let report = BulkReport { changed, skipped, failed, error, ..BulkReport::about(18) };
            assert_eq!(classify(&report), verdict, "{report:?}");
        }
    }

    #[test]
    fn an_item_is_flat_in_json() {
        let skipped = Item { id: "a".into(), outcome: ItemOutcome::Skipped { status: Status::Completed } };
        let json = serde_json::to_string(&skipped).unwrap();
        assert_eq!(json, r#"{"id":"a","outcome":"skipped","status":"completed"}"#);
        let would = Item { id: "b".into(), outcome: ItemOutcome::WouldChange };
        assert_eq!(serde_json::to_string(&would).unwrap(), r#"{"id":"b","outcome":"would-change"}"#);
    }
}
