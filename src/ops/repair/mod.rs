//! Requeue and bury: a whole selection in batches, or named deliveries one by one.

mod each;
mod order;
mod plan;

pub use each::repair_each;
pub use plan::{Bounds, Inapplicable, RepairPlan};
