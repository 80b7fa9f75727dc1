//! What an operator means: a plan that says how much it is about, and its application in batches that can be
//! stopped, limited and paced. Nothing here knows a terminal.
//!
//! Every operation is level-triggered and safe to repeat: it looks at the state of the store, changes it by
//! compare-and-set or in a transaction, and what it did before it was stopped stays done.

mod backfill;
mod bulk;
mod check;
mod control;
mod errors;
pub mod explain;
mod import;
mod keys;
mod lines;
mod pace;
mod pause;
mod publish;
mod purge;
mod repair;
#[cfg(test)]
mod testing;

pub use crate::model::{InvalidRate, Rate};
pub use backfill::BackfillPlan;
pub use bulk::{BulkReport, Item, ItemOutcome, Verdict, classify};
pub use check::{Measure, Reading, Scope, Severity, Threshold, Thresholds, check};
pub use control::{Control, silent};
pub use errors::{ErrorGroup, ErrorGroups, MAX_GROUPS, error_groups};
pub use import::{HandlerChange, ImportPlan, ImportReport, Refusal};
pub use keys::{PruneReport, prune_keys};
pub use lines::MAX_LINE_BYTES;
pub use pace::Pace;
pub use pause::{PauseReport, controls, is_known, pause, resume};
pub use publish::{PublishPlan, PublishReport, Stopped};
pub use purge::{PurgePlan, PurgeReport};
pub use repair::{Bounds, Inapplicable, RepairPlan, repair_each};
