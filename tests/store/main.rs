//! The conformance suite: every sentence of the contract on [`Store`](relayctl::store::Store) is a case, and every
//! case runs by name on every backend, each in a fresh database.
//!
//! The modules are the concerns of the contract. A case is an `async fn` over a [`Fixture`](fixture::Fixture), and the
//! `conformance!` list at the top of its module makes the tests `<module>::<backend>::<case>` of it.
//!
//! The MongoDB backend needs a replica set: `dev/test` starts one and tells where it is in
//! `RELAYCTL_TEST_MONGODB_URI`. Without it `cargo test --test store memory::` still runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where it stopped")]
// A case that is missing from the list of its module is dead code.
#![deny(dead_code)]

#[macro_use]
mod conformance;
mod backend;
mod fixture;

mod append;
mod backfill;
mod claim;
mod concurrency;
mod controls;
mod fencing;
mod inquire;
mod keys;
mod limits;
mod listing;
mod model_based;
mod ordering;
mod parking;
mod payload;
mod purge;
mod repair;
mod setup;
mod statistics;
mod time;
mod transactions;
mod transfer;
mod wake_up;
