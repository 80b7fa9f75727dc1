//! Explain: why a delivery runs or does not, and what would help.
//!
//! [`Facts`] are what a store says, gathered by a fixed number of queries; [`Explanation`] is what follows from them, and
//! needs no store. Sentences are made elsewhere.

mod facts;
mod findings;
#[cfg(test)]
mod tests;

pub use facts::{Facts, KeyFacts, facts_of, facts_of_head};
pub use findings::{Explanation, Finding, Found, Remedy, explain};
