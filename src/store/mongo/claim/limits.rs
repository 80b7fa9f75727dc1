//! The sizes that a claim goes by. They decide how much is read at once and when a claim changes its ways, never what may be
//! taken; a test makes them so small that a dozen deliveries lead everywhere.

use crate::store::PARKING_THRESHOLD;

/// See the [module](self). Each was chosen by measurement: `benches/store`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Candidates on the first page, at least: some more than asked for, since some are blocked.
    pub(super) smallest_page: usize,
    /// Candidates on later pages, and heads that are looked at in one go.
    pub(super) largest_page: usize,
    /// The most candidates to meet in the claim scan. Where so many would not do, the heads are looked for instead.
    pub(super) most_scanned: usize,
    /// Blocked deliveries of a key that one claim meets before it parks them.
    pub(super) parking_threshold: usize,
    /// So many claims look for heads before the claim scan is tried again.
    pub(super) claims_by_heads: u32,
    /// Keys that are looked up by one claim, at most.
    pub(super) most_looked_up: usize,
    /// Leases that are remembered, at most; a worker that never reports outcomes shall not fill the memory.
    pub(super) most_running: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            smallest_page: 64,
            largest_page: 1_000,
            most_scanned: 2_000,
            parking_threshold: PARKING_THRESHOLD,
            claims_by_heads: 64,
            most_looked_up: 1_000,
            most_running: 100_000,
        }
    }
}
